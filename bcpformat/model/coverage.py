"""The rules that bind the chunks of a tensor to its shape (spec 8.2).

Every chunk lies within its tensor, at most 8 axes are split, and the regions hold every
element exactly once.  Equal volume alone proves nothing, as a gap and an overlap of the same
size cancel; it settles tensors of one chunk, and `tiling` proves the others.

Everything runs on columns for all tensors of one rank at once; no Python object per chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bcpformat.errors import ErrorCode, InvalidArgumentError, Problem
from bcpformat.model.limits import MAX_INTEGER, MAX_SPLIT_AXES
from bcpformat.model.tiling import Rows, misfits

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# uint64 from a file, or int64 as the planner computes it.
Column = npt.NDArray[np.uint64] | npt.NDArray[np.int64]

_HALF_BITS = 26
_HALF_MASK = (1 << _HALF_BITS) - 1


def check_tilings(
    *,
    shapes: Sequence[tuple[int, ...]],
    chunk_counts: npt.NDArray[np.integer],
    origin_values: Column | None,
    extent_values: Column | None,
    starts: Column | None,
    counts: Column | None,
    max_corners: int = 2**24,
) -> list[tuple[int, Problem]]:
    """Return for each tensor the first rule its chunks break (BCP-REG-001 to 005).

    The order is: chunks of a tensor without elements and the reverse (`E_COVERAGE`), boxes
    in bounds (`E_BOUNDS`), flat ranges in bounds (`E_BOUNDS`), split axes (`E_LIMIT`), exact
    tiling (`E_COVERAGE`).  A tensor of more than 2^53-1 elements is `E_OVERFLOW`.

    Args:
        shapes: Shape of each tensor, in elements.
        chunk_counts: Shape `(tensors,)`: how many of the rows belong to each tensor, in order.
        origin_values: The origins of all rows one after the other, each of its tensor's rank;
            None if all are zero.
        extent_values: The extents likewise; None if all are their tensor's shape.
        starts: Shape `(chunks,)`; None if all 0.
        counts: Shape `(chunks,)`; None if each is the number of elements of its box.
        max_corners: Corners to hold at once, at least 1.  A tensor with more takes several
            passes and a small multiple of the memory of its rows.

    Returns:
        The index of a tensor and its problem, ascending; ``where`` is empty, for the caller to
        fill in the name.

    Raises:
        InvalidArgumentError: A column has another length than `chunk_counts` and ranks ask for.

    Preconditions:
        At most 2^26 chunks in total, which `Limits` bounds.
    """
    elements_of = list(map(math.prod, shapes))
    ranks = np.fromiter(map(len, shapes), np.int64, len(shapes))
    chunks = chunk_counts.astype(np.int64)
    total = int(chunks.sum())
    total_values = int((chunks * ranks).sum())
    _require_length("chunk_counts", chunk_counts, len(shapes))
    _require_length("origin_values", origin_values, total_values)
    _require_length("extent_values", extent_values, total_values)
    _require_length("starts", starts, total)
    _require_length("counts", counts, total)

    problems: dict[int, Problem] = {}
    if max(elements_of, default=0) > MAX_INTEGER:
        for index, elements in enumerate(elements_of):
            if elements > MAX_INTEGER:
                problems[index] = _problem(
                    ErrorCode.OVERFLOW,
                    f"shape {shapes[index]} has {elements} elements, at most {MAX_INTEGER} may be",
                )
                elements_of[index] = -1
    elements_array = np.array(elements_of, np.int64)
    wrong = (elements_array >= 0) & ((elements_array > 0) != (chunks > 0))
    for index in np.flatnonzero(wrong).tolist():
        problems[index] = _coverage(
            f"chunks hold none of the {elements_of[index]} elements of shape {shapes[index]}"
            if elements_of[index]
            else f"shape {shapes[index]} has no elements, but {chunks[index]} chunks"
        )

    live = (elements_array > 0) & (chunks > 0)
    if origin_values is None and extent_values is None and starts is None and counts is None:
        for index in np.flatnonzero(live & (chunks > 1)).tolist():
            volume = int(chunks[index]) * elements_of[index]
            problems[index] = _volume_problem(volume, elements_of[index], shapes[index])
        live[:] = False
    for rank in np.flatnonzero(np.bincount(ranks[live])).tolist():
        member = live & (ranks == rank)
        everyone = bool(member.all())
        rows = slice(None) if everyone else np.repeat(member, chunks)
        values = slice(None) if everyone else np.repeat(member, chunks * ranks)
        members = np.flatnonzero(member)
        row_count = int(chunks[members].sum())
        group = _Group(
            shape=_axes(
                np.array([shapes[index] for index in members.tolist()], np.int64), members.size
            ),
            elements=elements_array[members],
            chunks=chunks[members],
        )
        found = _check_group(
            group,
            origin=None if origin_values is None else _axes(origin_values[values], row_count),
            extent=None if extent_values is None else _axes(extent_values[values], row_count),
            start=None if starts is None else starts[rows].astype(np.int64),
            count=None if counts is None else counts[rows].astype(np.int64),
            max_corners=max_corners,
        )
        problems.update((int(members[tensor]), problem) for tensor, problem in found.items())
    return sorted(problems.items(), key=lambda item: item[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Tensors of one rank, each with elements and chunks.

    Attributes:
        shape: Shape `(rank, tensors)`.
        elements: Shape `(tensors,)`: elements of each.
        chunks: Shape `(tensors,)`: rows of each.
    """

    shape: Ints
    elements: Ints
    chunks: Ints

    def shape_of(self, tensor: int) -> tuple[int, ...]:
        return tuple(self.shape[:, tensor].tolist())


def _check_group(
    group: _Group,
    *,
    origin: Ints | None,
    extent: Ints | None,
    start: Ints | None,
    count: Ints | None,
    max_corners: int,
) -> dict[int, Problem]:
    """Return the problem of each tensor of the group that has one."""
    tensors = group.chunks.size
    tensor = np.repeat(np.arange(tensors), group.chunks)
    if origin is None:
        origin = np.zeros((group.shape.shape[0], tensor.size), np.int64)
    if extent is None:
        extent = np.repeat(group.shape, group.chunks, axis=1)
    problems: dict[int, Problem] = {}

    good = np.ones(tensor.size, np.bool_)
    for axis, sizes in enumerate(group.shape):
        low, length, size = origin[axis], extent[axis], np.repeat(sizes, group.chunks)
        # No difference wraps where the length is positive, whatever the column holds.
        good &= (low >= 0) & (length >= 1) & (low <= size - length)
    for index, row, chunk in _first_bad_rows(group, good):
        problems[index] = _problem(
            ErrorCode.BOUNDS,
            f"chunk {chunk}: box of origin {tuple(origin[:, row].tolist())} and extent "
            f"{tuple(extent[:, row].tolist())} must hold elements and end within shape "
            f"{group.shape_of(index)}",
        )
    fits = _mask_of(tensors, problems)[tensor]
    box_elements = np.prod(extent, axis=0, dtype=np.int64)
    rows = Rows(
        tensor=tensor,
        origin=origin,
        extent=extent,
        start=np.zeros(tensor.size, np.int64) if start is None else start,
        count=box_elements if count is None else count,
    )
    if start is not None or count is not None:
        good = (rows.start >= 0) & (rows.count >= 1)
        good &= rows.start <= box_elements - rows.count
        for index, row, chunk in _first_bad_rows(group, good | ~fits):
            problems[index] = _problem(
                ErrorCode.BOUNDS,
                f"chunk {chunk}: flat range from {rows.start[row]} of {rows.count[row]} elements "
                f"must hold elements and end within the {box_elements[row]} of extent "
                f"{tuple(extent[:, row].tolist())}",
            )
    _check_split_axes(group, rows, problems)
    _check_volume(group, rows.count, problems)

    open_tensors = _mask_of(tensors, problems) & (group.chunks > 1)
    if open_tensors.any():
        if not open_tensors.all():
            rows = rows.take(np.flatnonzero(open_tensors[tensor]))
        for misfit in misfits(group.shape, rows, max_corners=max_corners):
            problems[misfit.tensor] = _coverage(
                f"chunks overlap and leave a gap of equal volume: {misfit.times} hold the "
                f"element at {misfit.position} of shape {group.shape_of(misfit.tensor)}"
            )
    return problems


def _check_split_axes(group: _Group, rows: Rows, problems: dict[int, Problem]) -> None:
    """Find tensors of which the cut regions split more than `MAX_SPLIT_AXES` axes.

    A flat range spans an axis if it begins and ends between whole slabs of that axis.
    """
    wide = (group.shape > 1).sum(axis=0) > MAX_SPLIT_AXES
    wide &= _mask_of(wide.size, problems)
    if not wide.any():
        return
    rows = rows.take(np.flatnonzero(wide[rows.tensor]))
    split_axes = np.zeros(wide.size, np.int64)
    slab = np.ones(rows.tensor.size, np.int64)
    for axis in reversed(range(group.shape.shape[0])):
        extent = rows.extent[axis]
        slab *= extent
        split = (rows.origin[axis] != 0) | (extent != group.shape[axis, rows.tensor])
        cut = (rows.start % slab != 0) | ((rows.start + rows.count) % slab != 0)
        split |= cut & (extent > 1)
        split_axes += np.bincount(rows.tensor, split, wide.size) > 0
    for index in np.flatnonzero(split_axes > MAX_SPLIT_AXES).tolist():
        problems[index] = _problem(
            ErrorCode.LIMIT,
            f"chunks split {split_axes[index]} axes of shape {group.shape_of(index)}, "
            f"at most {MAX_SPLIT_AXES} may be split",
        )


def _check_volume(group: _Group, count: Ints, problems: dict[int, Problem]) -> None:
    """Find tensors whose chunks hold more or fewer elements than the tensor has.

    Up to 2^26 counts below 2^53 would wrap, so the halves of their bits are added apart.
    """
    first = np.cumsum(group.chunks) - group.chunks
    high = np.add.reduceat(count >> _HALF_BITS, first)
    low = np.add.reduceat(count & _HALF_MASK, first)
    equal = (high + (low >> _HALF_BITS) == group.elements >> _HALF_BITS) & (
        low & _HALF_MASK == group.elements & _HALF_MASK
    )
    for index in np.flatnonzero(~equal & _mask_of(equal.size, problems)).tolist():
        volume = (int(high[index]) << _HALF_BITS) + int(low[index])
        problems[index] = _volume_problem(volume, int(group.elements[index]), group.shape_of(index))


def _axes(values: Column, rows: int) -> Ints:
    """Return row-major vectors as one contiguous row for each axis."""
    axes_first = values.astype(np.int64).reshape(rows, -1 if values.size else 0).T
    return np.ascontiguousarray(axes_first)


def _first_bad_rows(group: _Group, good: Bools) -> Iterator[tuple[int, int, int]]:
    """Yield tensor, row and chunk within the tensor of each tensor's first bad row."""
    bad = np.flatnonzero(~good)
    first = np.cumsum(group.chunks) - group.chunks
    owners, at = np.unique(np.searchsorted(first, bad, "right") - 1, return_index=True)
    for tensor, row in zip(owners.tolist(), bad[at].tolist(), strict=True):
        yield tensor, row, row - int(first[tensor])


def _mask_of(tensors: int, problems: dict[int, Problem]) -> Bools:
    """Return which tensors have no problem."""
    mask = np.ones(tensors, np.bool_)
    mask[list(problems)] = False
    return mask


def _require_length(name: str, column: npt.NDArray[np.integer] | None, expected: int) -> None:
    if column is not None and column.size != expected:
        raise InvalidArgumentError(f"{name} must have {expected} values, got {column.size}")


def _problem(code: ErrorCode, message: str) -> Problem:
    return Problem(code=code, where="", message=message)


def _coverage(message: str) -> Problem:
    return _problem(ErrorCode.COVERAGE, message)


def _volume_problem(volume: int, elements: int, shape: tuple[int, ...]) -> Problem:
    return _coverage(f"chunks hold {volume} of the {elements} elements of shape {shape}")
