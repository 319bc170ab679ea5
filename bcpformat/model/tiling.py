"""Tilings of many tensors, reduced by merging and proven by signed corners (spec 8.2).

Neighbours that make one larger box are merged, axis by axis from the last.  A merge keeps the
number of boxes at every element, so it loses nothing, and it reduces every regular split in
row-major order to the whole tensor in linear time.  Only what is left goes to `corners`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bcpformat.model.corners import first_uncancelled

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A tensor that its regions do not tile, although they have its volume.

    Attributes:
        tensor: Index of the tensor.
        position: The first element that not exactly one region holds, in tensor coordinates.
        times: How many regions hold it.

    Example:
        >>> Misfit(tensor=0, position=(1, 2), times=2).times
        2
    """

    tensor: int
    position: tuple[int, ...]
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Regions as columns, those of one tensor together.

    Attributes:
        tensor: Shape `(rows,)`, ascending: index of the tensor.
        origin: Shape `(axes, rows)`, in tensor coordinates.
        extent: Shape `(axes, rows)`.
        start: Shape `(rows,)`: first element of the flat range in its box.
        count: Shape `(rows,)`: elements of the flat range.
    """

    tensor: Ints
    origin: Ints
    extent: Ints
    start: Ints
    count: Ints

    def take(self, rows: Ints) -> Rows:
        """Return the rows at these indices, ascending, as copies."""
        return Rows(
            tensor=self.tensor.take(rows),
            origin=self.origin.take(rows, axis=1),
            extent=self.extent.take(rows, axis=1),
            start=self.start.take(rows),
            count=self.count.take(rows),
        )

    def joined(self, adjacent: Bools, same_axes: Sequence[int]) -> Bools:
        """Return which rows, the first left out, continue the one before.

        Args:
            adjacent: Shape `(rows - 1,)`: which of them begin where the one before ends.
            same_axes: Axes on which the boxes must be equal.
        """
        joined = adjacent.copy()
        joined &= self.tensor[1:] == self.tensor[:-1]
        for axis in same_axes:
            joined &= self.origin[axis, 1:] == self.origin[axis, :-1]
            joined &= self.extent[axis, 1:] == self.extent[axis, :-1]
        return joined


def misfits(shape: Ints, rows: Rows, *, max_corners: int) -> Iterator[Misfit]:
    """Yield the tensors that their regions do not tile, in no particular order.

    Args:
        shape: Shape `(axes, tensors)`.
        rows: Regions of some of the tensors; the others are not looked at.
        max_corners: Corners to hold at once, at least 1.

    Preconditions:
        Regions lie within their tensors and have their volume together; at most 8 axes of a
        tensor are split.  `coverage` checks it.
    """
    rows = cut_ranges(_merge_ranges(rows))
    active = np.flatnonzero(~_spans(shape, rows).all(axis=1))
    inner = shape[active]
    rows = replace(rows, origin=rows.origin[active], extent=rows.extent[active])
    for axis in reversed(range(active.size)):
        rows = _merge_boxes(rows, axis)
    spans = _spans(inner, rows)
    # The volume is right, so a tensor with one spanning box has no other.
    left = np.flatnonzero(~spans.all(axis=0))
    rows, spans = rows.take(left), spans.take(left, axis=1)

    split = np.zeros(inner.shape, np.bool_)
    for axis, spanning in enumerate(spans):
        split[axis, rows.tensor[~spanning]] = True
    split_axes = split.sum(axis=0)
    order = np.argsort(~split, axis=0, kind="stable")
    for number in np.flatnonzero(np.bincount(split_axes[rows.tensor])).tolist():
        tensors = np.flatnonzero(split_axes == number)
        bucket = rows.take(np.flatnonzero(split_axes[rows.tensor] == number))
        first_axes = order[:number]
        low = np.take_along_axis(bucket.origin, first_axes[:, bucket.tensor], axis=0)
        extent = np.take_along_axis(bucket.extent, first_axes[:, bucket.tensor], axis=0)
        for local, corner, times in first_uncancelled(
            sizes=np.take_along_axis(inner, first_axes, axis=0)[:, tensors],
            tensor=np.searchsorted(tensors, bucket.tensor),
            low=low,
            high=low + extent,
            max_corners=max_corners,
        ):
            tensor = int(tensors[local])
            position = np.zeros(len(shape), np.int64)
            position[active[first_axes[:, tensor]]] = corner
            yield Misfit(tensor=tensor, position=tuple(position.tolist()), times=times)


def _spans(shape: Ints, rows: Rows) -> Bools:
    """Return for each axis and row whether the box spans the tensor on it."""
    spans: Bools = np.equal(rows.origin, 0)
    for axis, sizes in enumerate(shape):
        spans[axis] &= rows.extent[axis] == sizes[rows.tensor]
    return spans


def _merge_ranges(rows: Rows) -> Rows:
    """Return the rows with flat ranges that follow one another in equal boxes made one."""
    ends = rows.start + rows.count
    joined = rows.joined(ends[:-1] == rows.start[1:], range(len(rows.origin)))
    if not joined.any():
        return rows
    first = np.flatnonzero(np.concatenate(([True], ~joined)))
    return replace(rows.take(first), count=np.add.reduceat(rows.count, first))


def _merge_boxes(rows: Rows, axis: int) -> Rows:
    """Return the rows with boxes that follow one another on ``axis`` made one."""
    ends = rows.origin[axis] + rows.extent[axis]
    others = [other for other in range(len(rows.origin)) if other != axis]
    joined = rows.joined(ends[:-1] == rows.origin[axis, 1:], others)
    if not joined.any():
        return rows
    first = np.flatnonzero(np.concatenate(([True], ~joined)))
    merged = rows.take(first)
    merged.extent[axis] = np.add.reduceat(rows.extent[axis], first)
    return merged


def cut_ranges(rows: Rows) -> Rows:
    """Return rows of whole boxes: each flat range cut as `region.flat_range_boxes` does.

    The same walk, one step for all rows at once.

    Returns:
        At most ``2 * axes - 1`` boxes for each row, in the order of the rows and within a row in
        row-major order; ``tensor`` is that of the row.
    """
    elements = np.prod(rows.extent, axis=0, dtype=np.int64)
    partial = rows.count != elements
    if not partial.any():
        return rows
    source = np.flatnonzero(partial)
    extent = rows.extent.take(source, axis=1)
    axes = len(extent)
    units = np.ones_like(extent)  # elements of one step on each axis
    for axis in range(axes - 1, 0, -1):
        units[axis - 1] = units[axis] * extent[axis]
    position = rows.start[source]
    stop = position + rows.count[source]
    walk: list[tuple[int, Ints, Ints]] = []  # axis, steps on it, position before them
    for axis in range(axes - 1, 0, -1):
        steps = np.minimum(-position % units[axis - 1], stop - position) // units[axis]
        walk.append((axis, steps, position))
        position = position + steps * units[axis]
    for axis in range(axes):
        steps = (stop - position) // units[axis]
        walk.append((axis, steps, position))
        position = position + steps * units[axis]

    sizes = np.ones(rows.tensor.size, np.int64)
    sizes[source] = sum(steps > 0 for _, steps, _ in walk)
    cut = rows.take(np.repeat(np.arange(rows.tensor.size), sizes))
    free = (np.cumsum(sizes) - sizes)[source]  # where the next box of each row goes
    for axis, steps, position in walk:
        some = np.flatnonzero(steps)
        slot, rest = free[some], position[some]
        free[some] += 1
        for index in range(axis + 1):
            step, rest = np.divmod(rest, units[index].take(some))
            cut.origin[index, slot] += step
            cut.extent[index, slot] = 1
        cut.extent[axis, slot] = steps[some]
    cut.start[:] = 0
    cut.count[:] = np.prod(cut.extent, axis=0, dtype=np.int64)
    return cut
