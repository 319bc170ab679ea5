"""Chunk rows of all parts in the order of the manifest: by tensor, origin and start (spec 7.4).

Rows may count millions and differ in their number of axes.  An origin is compared as the position
of its element in the tensor's row-major order, which ascends as origins do, so that a row's key is
two numbers whatever its number of axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod

import numpy as np
import numpy.typing as npt

from bcpformat.model.limits import GROUP_ROWS
from bcpformat.model.manifest import Ints, TensorTable
from bcpformat.wire.layout import Layout

_STEP = 2**18
"""Rows whose axes are looked at together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkOrder:
    """The order of some chunk rows, and where the axes of each are.

    Attributes:
        ndim: Axes of each row as given, shape ``(rows,)``.
        first: Where they begin in columns with values per axis, shape ``(rows,)``.
        order: Row as given of each row in order, shape ``(rows,)``; None if they are in order.
        repeated: Rows as given whose keys equal that of another before them.
    """

    ndim: npt.NDArray[np.uint8]
    first: Ints
    order: Ints | None
    repeated: Ints

    def row(self, column: Ints) -> Ints:
        """Return values per row, in order."""
        return column if self.order is None else column[self.order]

    def axes(self, column: Ints) -> Ints:
        """Return values per axis, in order."""
        if self.order is None:
            return column
        out = np.empty_like(column)
        at = 0
        for low in range(0, len(self.order), _STEP):
            rows = self.order[low : low + _STEP]
            ndim = self.ndim[rows].astype(np.int64)
            source = self.first[rows]
            target = at + np.cumsum(ndim) - ndim
            for axis in range(int(ndim.max())):
                some = ndim > axis
                out[target[some] + axis] = column[source[some] + axis]
            at += int(ndim.sum())
        return out


def sort_chunks(
    tensor: npt.NDArray[np.integer],
    origin: Ints | None,
    start: Ints | None,
    shapes: Sequence[Sequence[int]],
    *,
    find_repeated: bool,
) -> ChunkOrder:
    """Return the order of chunk rows.

    Args:
        tensor: Row of the tensor of each chunk, shape ``(rows,)``.
        origin: Origins, the rows' axes one after the other; None if all are zero.
        start: First elements of flat ranges, shape ``(rows,)``; None if all are zero.
        shapes: Shapes of the tensors.
        find_repeated: Whether to look for rows with equal keys.
    """
    ndims = np.fromiter(map(len, shapes), np.uint8, len(shapes))
    ndim = ndims[tensor]
    first = np.cumsum(ndim, dtype=np.int64)
    first -= ndim
    keys: list[npt.NDArray[np.integer]] = [] if start is None else [start]
    if origin is not None:
        extents = np.fromiter(chain.from_iterable(shapes), np.int64, int(ndims.sum(dtype=np.int64)))
        extent_first = np.cumsum(ndims, dtype=np.int64) - ndims
        element = np.zeros(len(tensor), dtype=np.int64)
        for axis in range(int(ndim.max(initial=0))):
            for rows in _rows_with(axis, ndim):
                extent = extents[extent_first[tensor[rows]] + axis]
                element[rows] = element[rows] * extent + origin[first[rows] + axis]
        span = max(max(map(prod, shapes), default=1), 1)
        if len(shapes) * span < 2**63:  # one key is sorted in half the time of two
            keys.append(element + tensor * np.int64(span))
        else:
            keys += [element, tensor]
    else:
        keys.append(tensor)
    order = _sorted(keys)
    repeated = _repeated(keys, order) if find_repeated else np.zeros(0, dtype=np.int64)
    return ChunkOrder(ndim=ndim, first=first, order=order, repeated=repeated)


def _rows_with(axis: int, ndim: npt.NDArray[np.uint8]) -> Iterator[Ints]:
    """Yield the rows that have an axis, some at a time."""
    for low in range(0, len(ndim), _STEP):
        yield low + np.flatnonzero(ndim[low : low + _STEP] > axis)


def _sorted(keys: Sequence[npt.NDArray[np.integer]]) -> Ints | None:
    """Return the order of rows by some keys, the last first; None if they are in order."""
    if len(keys) > 1:
        return np.lexsort(keys)
    (key,) = keys
    return None if bool((key[1:] >= key[:-1]).all()) else np.argsort(key, kind="stable")


def _repeated(keys: Sequence[npt.NDArray[np.integer]], order: Ints | None) -> Ints:
    rows = np.arange(len(keys[0])) if order is None else order
    same = np.ones(max(len(rows) - 1, 0), dtype=np.bool_)
    for key in keys:
        same &= key[rows[1:]] == key[rows[:-1]]
    return rows[1:][same]


def fill_extents(extent: Ints, tensors: TensorTable) -> Ints:
    """Return extents, in order, with a tensor's shape where there are zeros."""
    out = extent if extent.flags.writeable else extent.copy()
    layout = Layout(tensors)
    for low, rows in _groups(tensors):
        axes = slice(layout.values_before(low), layout.values_before(low + rows))
        absent = out[axes] == 0
        out[axes][absent] = layout.rows(low, rows).shapes()[absent]
    return out


def fill_counts(count: Ints, extent: Ints | None, tensors: TensorTable) -> Ints:
    """Return counts of flat ranges, in order, with all of the box where there are zeros."""
    out = count if count.flags.writeable else count.copy()
    layout = Layout(tensors)
    for low, rows in _groups(tensors):
        absent = out[low : low + rows] == 0
        axes = slice(layout.values_before(low), layout.values_before(low + rows))
        elements = layout.rows(low, rows).elements(None if extent is None else extent[axes])
        out[low : low + rows][absent] = elements[absent]
    return out


def _groups(tensors: TensorTable) -> Iterator[tuple[int, int]]:
    """Yield the first row and number of rows of groups of chunk rows."""
    total = int(tensors.chunks.sum())
    for low in range(0, total, GROUP_ROWS):
        yield low, min(GROUP_ROWS, total - low)
