"""Boxes of a tensor as few rectangles of the plane: what a picture of it draws (pure).

A tensor is laid out as a matrix: its first axes, folded, are the rows, the others the columns.
A box of it is one rectangle or several.  Where there are too many to draw, boxes of one owner that
together make a larger box become one, which shows the same areas; where that is not enough, the
tensor is sampled on a grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from bcpformat.model.geometry import axis_rows
from bcpformat.model.manifest import Ints, ints
from bcpformat.model.tiling import Rows, cut_ranges
from bcpformat.plan.ranges import expand
from bcpformat.plan.resolve import ChunkIndex

Bools = npt.NDArray[np.bool_]


class How(Enum):
    """What a rectangle stands for.

    Example:
        >>> How.SAMPLED.value
        'sampled'
    """

    SINGLE = "single"
    """A box, or a part of it that the layout cuts off."""
    MERGED = "merged"
    """Boxes of one owner that lie side by side."""
    SAMPLED = "sampled"
    """Cells of a grid whose middles have one owner; the edges are those of the cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """Boxes of one tensor, as columns; axes of one element are left out.

    Attributes:
        shape: Shape `(axes,)` of the tensor without its axes of one element.
        origin: Shape `(axes, boxes)`.
        extent: Shape `(axes, boxes)`.
        owner: Shape `(boxes,)`: who has the box.
        source: Shape `(boxes,)`: the row that the box comes from; -1 for several.
    """

    shape: tuple[int, ...]
    origin: Ints
    extent: Ints
    owner: Ints
    source: Ints

    def __len__(self) -> int:
        return len(self.owner)

    def take(self, rows: Ints) -> Boxes:
        """Return the boxes at these indices, as copies."""
        return Boxes(
            shape=self.shape,
            origin=self.origin.take(rows, axis=1),
            extent=self.extent.take(rows, axis=1),
            owner=self.owner.take(rows),
            source=self.source.take(rows),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangles:
    """Rectangles in a plane of `height` rows and `width` columns; columns of shape `(rows,)`.

    Attributes:
        height: Rows of the plane, in elements.
        width: Columns of the plane, in elements.
        how: What each of them stands for.
        top: First row.
        bottom: The row after the last one.
        left: First column.
        right: The column after the last one.
        owner: That of the box.
        source: That of the box.
    """

    height: int
    width: int
    how: How
    top: Ints
    bottom: Ints
    left: Ints
    right: Ints
    owner: Ints
    source: Ints

    def __len__(self) -> int:
        return len(self.owner)


def owned_boxes(
    shape: tuple[int, ...], *, origin: Ints, extent: Ints, owner: Ints, source: Ints
) -> Boxes:
    """Return boxes of a tensor of `shape`; the columns are those of `Boxes`, with all its axes."""
    axes = [axis for axis, size in enumerate(shape) if size != 1]
    return Boxes(
        shape=tuple([shape[axis] for axis in axes]),
        origin=origin[axes],
        extent=extent[axes],
        owner=owner,
        source=source,
    )


def chunk_boxes(index: ChunkIndex, row: int) -> Boxes:
    """Return the boxes that the chunks of a tensor fill; the owner is the row of the data file.

    Args:
        index: The chunks of a manifest.
        row: That of the tensor; the source of a box is the row of its chunk.
    """
    manifest = index.manifest
    chunks, shape = manifest.chunks, manifest.tensors.shapes[row]
    rows = np.arange(index.first[row], index.first[row + 1], dtype=np.int64)
    axis0 = int(axis_rows(manifest.tensors)[index.first[row]])
    values = slice(axis0, axis0 + len(rows) * len(shape))

    def column(found: Ints | None, default: tuple[int, ...]) -> Ints:
        if found is None:
            return np.repeat(np.array([default], dtype=np.int64).T, len(rows), axis=1)
        return np.ascontiguousarray(found[values].reshape(len(rows), len(shape)).T)

    cut = cut_ranges(
        Rows(
            tensor=np.arange(len(rows), dtype=np.int64),
            origin=column(chunks.origin, (0,) * len(shape)),
            extent=column(chunks.extent, shape),
            start=np.zeros_like(rows) if chunks.start is None else chunks.start[rows],
            count=index.geometry.count[rows],
        )
    )
    source = rows[cut.tensor]
    return owned_boxes(
        shape,
        origin=cut.origin,
        extent=cut.extent,
        owner=manifest.runs.file[chunks.run[source]],
        source=source,
    )


def fold_axis(boxes: Boxes) -> int:
    """Return how many axes are rows: what cuts the fewest boxes, then what is nearest a square."""
    axes = len(boxes.shape)
    if axes < 2:
        return 0
    sizes = np.array(boxes.shape, dtype=np.float64)

    def cost(fold: int) -> tuple[float, float]:
        squareness = np.log2(sizes[:fold]).sum() - np.log2(sizes[fold:]).sum()
        return _count(boxes, fold), abs(float(squareness))

    return min(range(1, axes), key=cost)


def rectangles(boxes: Boxes, *, fold: int, most: int) -> Rectangles:
    """Return the rectangles of boxes of a tensor with elements.

    Args:
        boxes: Within their tensor; where two share elements, the first is seen if sampled.
        fold: Axes that are rows.
        most: How many rectangles there may be.
    """
    if _count(boxes, fold) <= most:
        return _unfolded(boxes, fold, How.SINGLE)
    merged = _merged(boxes)
    if _count(merged, fold) <= most:
        return _unfolded(merged, fold, How.MERGED)
    return _sampled(merged, fold, most)


def _count(boxes: Boxes, fold: int) -> float:
    """Return how many rectangles boxes are (a float: the number has no bound)."""
    steps, _ = _runs(boxes, fold)
    return float(np.prod(steps, axis=0, dtype=np.float64).sum())


def _runs(boxes: Boxes, fold: int) -> tuple[Ints, Ints]:
    """Return how rows and columns of boxes lie in the plane.

    Returns:
        Shape `(axes, boxes)`: on each axis, how many rectangles it makes; and shape `(2, boxes)`:
        rows and columns of each of these.
    """
    steps = boxes.extent.copy()
    size = np.ones((2, len(boxes)), dtype=np.int64)
    for group, axes in enumerate((range(fold), range(fold, len(boxes.shape)))):
        is_one = np.ones(len(boxes), dtype=np.bool_)
        for axis in reversed(axes):
            size[group] = np.where(is_one, size[group] * boxes.extent[axis], size[group])
            steps[axis][is_one] = 1
            is_one &= boxes.extent[axis] == boxes.shape[axis]
    return steps, size


def _unfolded(boxes: Boxes, fold: int, how: How) -> Rectangles:
    steps, size = _runs(boxes, fold)
    numbers = np.prod(steps, axis=0, dtype=np.int64)
    box, rest = expand(np.zeros_like(numbers), numbers)
    first = np.zeros((2, len(box)), dtype=np.int64)
    total = [1, 1]
    for axis in reversed(range(len(boxes.shape))):
        group = int(axis >= fold)
        rest, step = np.divmod(rest, steps[axis][box])
        first[group] += (boxes.origin[axis][box] + step) * total[group]
        total[group] *= boxes.shape[axis]
    return Rectangles(
        height=total[0],
        width=total[1],
        how=how,
        top=first[0],
        bottom=first[0] + size[0][box],
        left=first[1],
        right=first[1] + size[1][box],
        owner=boxes.owner[box],
        source=boxes.source[box],
    )


def _merged(boxes: Boxes) -> Boxes:
    """Return the boxes with those of one owner that follow one another on an axis made one."""
    for axis in reversed(range(len(boxes.shape))):
        others = [other for other in range(len(boxes.shape)) if other != axis]
        equal = [boxes.owner]
        equal += [column[other] for other in others for column in (boxes.origin, boxes.extent)]
        boxes = boxes.take(np.lexsort((boxes.origin[axis], *reversed(equal))))
        ends = boxes.origin[axis] + boxes.extent[axis]
        joined = boxes.origin[axis, 1:] == ends[:-1]
        joined &= boxes.owner[1:] == boxes.owner[:-1]
        for other in others:
            for column in (boxes.origin[other], boxes.extent[other]):
                joined &= column[1:] == column[:-1]
        if not joined.any():
            continue
        first = np.flatnonzero(np.concatenate(([True], ~joined)))
        extent = np.add.reduceat(boxes.extent[axis], first)
        is_several = np.diff(np.append(first, len(boxes))) > 1
        boxes = boxes.take(first)
        boxes.extent[axis] = extent
        boxes.source[is_several] = -1
    return boxes


def _sampled(boxes: Boxes, fold: int, most: int) -> Rectangles:
    """Return rectangles that show who has the middles of at most `most` cells."""
    cells = _cells(boxes, most)
    edges = [
        ints([step * size // number for step in range(number + 1)])
        for number, size in zip(cells, boxes.shape, strict=True)
    ]
    low, high = np.zeros_like(boxes.origin), np.zeros_like(boxes.origin)
    for axis, ends in enumerate(edges):
        middle = (ends[:-1] + ends[1:]) // 2
        low[axis] = np.searchsorted(middle, boxes.origin[axis])
        high[axis] = np.searchsorted(middle, boxes.origin[axis] + boxes.extent[axis])
    grid = np.full(cells, -1, dtype=np.int64)
    for box in reversed(np.flatnonzero((low < high).all(axis=0)).tolist()):
        inside = zip(low[:, box].tolist(), high[:, box].tolist(), strict=True)
        grid[tuple([slice(*ends) for ends in inside])] = boxes.owner[box]

    rows, columns = _edges(edges[:fold]), _edges(edges[fold:])
    grid = grid.reshape(len(rows) - 1, len(columns) - 1)
    place = np.stack(np.nonzero(grid >= 0))
    seen = _merged(
        Boxes(
            shape=grid.shape,
            origin=place,
            extent=np.ones_like(place),
            owner=grid[grid >= 0],
            source=np.full(place.shape[1], -1, dtype=np.int64),
        )
    )
    end = seen.origin + seen.extent
    return Rectangles(
        height=int(rows[-1]),
        width=int(columns[-1]),
        how=How.SAMPLED,
        top=rows[seen.origin[0]],
        bottom=rows[end[0]],
        left=columns[seen.origin[1]],
        right=columns[end[1]],
        owner=seen.owner,
        source=seen.source,
    )


def _cells(boxes: Boxes, most: int) -> list[int]:
    """Return how many cells each axis has: 1 where no box is cut, else as many as there may be.

    Short axes come first, so that long ones get what these do not need.
    """
    spanned = boxes.extent == np.array(boxes.shape, dtype=np.int64)[:, np.newaxis]
    cut = np.flatnonzero(~spanned.all(axis=1)).tolist()
    cells = [1] * len(boxes.shape)
    left = most
    for rank, axis in enumerate(sorted(cut, key=boxes.shape.__getitem__)):
        share = int(left ** (1 / (len(cut) - rank)) + 1e-9)
        cells[axis] = min(boxes.shape[axis], share)
        left //= cells[axis]
    return cells


def _edges(edges: list[Ints]) -> Ints:
    """Return the edges of the cells of folded axes, each cell as large as it is in elements."""
    size = np.ones(1, dtype=np.int64)
    for ends in edges:
        size = np.multiply.outer(size, np.diff(ends)).reshape(-1)
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(size)))
