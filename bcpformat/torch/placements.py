"""Which boxes of a tensor one rank of a mesh holds, and where each lies in its local tensor.

torch describes a distributed tensor by its shape, a mesh of ranks, and for each mesh axis whether
it splits an axis of the tensor.  It splits as `torch.chunk` does: pieces of the rounded-up size,
the last ones smaller or empty.  Where several mesh axes split one tensor axis, their order counts
(DTensor knows two ways to say it, and `compute_local_shape_and_global_offset` follows the wrong
one where sizes are uneven), so nothing here is believed that the local tensor contradicts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.region import Box, Region

Segments: TypeAlias = tuple[tuple[int, int], ...]
"""Origin and extent of stretches of one tensor axis, in the order in which they lie locally."""

Order: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Tensor axes that are split, and for each the mesh axes that split it, the first one first."""


@dataclass(frozen=True, slots=True)
class Split:
    """What one mesh axis does to the tensor.

    Attributes:
        axis: The tensor axis that it splits; None: every rank along it holds the same.
        factor: 1, or the number of pieces into which the axis is cut first, so that each rank
            takes its part of every piece (`_StridedShard`).

    Example:
        >>> str(Split(0)), str(Split(1, factor=2)), str(Split(None))
        ('Shard(0)', '_StridedShard(1, split_factor=2)', 'Replicate()')
    """

    axis: int | None
    factor: int = 1

    def __str__(self) -> str:
        if self.axis is None:
            return "Replicate()"
        if self.factor == 1:
            return f"Shard({self.axis})"
        return f"_StridedShard({self.axis}, split_factor={self.factor})"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshLayout:
    """How a tensor lies on a mesh, seen from one rank.

    Attributes:
        shape: Global shape in elements.
        mesh: Number of ranks along each mesh axis, shape `(mesh axes,)`.
        coordinate: Place of the rank in the mesh, shape `(mesh axes,)`.
        splits: What each mesh axis does, shape `(mesh axes,)`.
        order: The order of splitting where torch states it; None: see `readings`.
        from_view: The tensor is a view of another one, so a factor says how that one is folded
            and nothing of an order of mesh axes.

    Raises:
        InvalidArgumentError: The parts do not agree.

    Example:
        >>> layout = MeshLayout(shape=(5,), mesh=(2,), coordinate=(1,), splits=(Split(0),))
        >>> held(layout, (2,)).boxes
        (Box(origin=(3,), shape=(2,)),)
    """

    shape: tuple[int, ...]
    mesh: tuple[int, ...]
    coordinate: tuple[int, ...]
    splits: tuple[Split, ...]
    order: Order | None = None
    from_view: bool = False

    def __post_init__(self) -> None:
        sizes = {len(self.mesh), len(self.coordinate), len(self.splits)}
        within = zip(self.coordinate, self.mesh, strict=False)
        if len(sizes) > 1 or not all(0 <= place < ranks for place, ranks in within):
            raise InvalidArgumentError(f"{self} does not lie within its mesh")
        axes = [split.axis for split in self.splits if split.axis is not None]
        if any(not 0 <= axis < len(self.shape) for axis in axes):
            raise InvalidArgumentError(f"{self} splits an axis that the tensor does not have")
        if any(split.factor < 1 for split in self.splits):
            raise InvalidArgumentError(f"{self} has a split factor below 1")

    def __str__(self) -> str:
        splits = ", ".join(str(split) for split in self.splits)
        text = f"shape {self.shape} with placements [{splits}] "
        return f"{text}on a mesh of shape {self.mesh} at {self.coordinate}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Held:
    """What a rank holds of a tensor.

    Attributes:
        shape: Shape of the local tensor.
        boxes: In tensor coordinates, each with elements, in the row-major order of their places
            in the local tensor.
        slices: The place of each in the local tensor.
        regions: The boxes as regions.
        origins: Their origins.
    """

    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    slices: tuple[tuple[slice, ...], ...]
    regions: tuple[Region, ...]
    origins: tuple[tuple[int, ...], ...]


NOTHING = Held(shape=(), boxes=(), slices=(), regions=(), origins=())
"""What a rank outside the mesh holds."""


def held(layout: MeshLayout, local_shape: tuple[int, ...]) -> Held:
    """Return what a rank holds, given what torch says and the local tensor's shape.

    Args:
        layout: What torch says.
        local_shape: Shape of the local tensor, in elements.

    Raises:
        InvalidArgumentError: No reading of the layout gives a local tensor of that shape, or it
            cannot be known which one it has (`E_NO_FORM`).
    """
    possible = readings(layout)
    for number, axes in enumerate(possible):
        if _fits(axes, local_shape):
            if number and _is_uncertain(layout):
                text = f"{layout} and a local tensor of shape {local_shape}: {_TWO_WAYS}"
                raise InvalidArgumentError(text, code=ErrorCode.NO_FORM)
            return _held(axes, local_shape)
    computed = _shape_of(possible[0])
    text = f"{layout} has a local tensor of shape {computed} on this rank, but it holds one of "
    text += f"shape {local_shape}, so where its elements belong is not known; {_WAY_OUT}"
    raise InvalidArgumentError(text, code=ErrorCode.NO_FORM)


_WAY_OUT = "save its .full_tensor() instead"
_TWO_WAYS = f"two orders of splitting are possible, which differ on other ranks; {_WAY_OUT}"


def readings(layout: MeshLayout) -> tuple[tuple[Segments, ...], ...]:
    """Return the segments of each tensor axis that the rank holds, the likely reading first.

    Without a factor mesh axes split from left to right.  With one there are two readings: torch's
    `redistribute`, `full_tensor` and `fully_shard` take the factors for an order of mesh axes, so
    that FSDP after tensor parallelism chunks each part of that; `distribute_tensor` and views
    take them from left to right, each with its factor.  The two agree where sizes are even, and
    mostly where not.
    """
    if layout.order is not None:
        return (_in_order(layout, layout.order),)
    if layout.from_view or all(split.factor == 1 for split in layout.splits):
        return (_left_to_right(layout),)
    order = splitting_order(layout)
    if order is None:
        return (_left_to_right(layout),)
    return (_in_order(layout, order), _left_to_right(layout))


def splitting_order(layout: MeshLayout) -> Order | None:
    """Return the order of mesh axes that the factors stand for, None if there is none.

    A mesh axis has as its factor the number of ranks of those that split the same tensor axis
    before it and stand to the right of it.

    Example:
        >>> splits = (Split(0, factor=2), Split(0))  # FSDP over tensor parallelism
        >>> splitting_order(MeshLayout(shape=(7,), mesh=(3, 2), coordinate=(0, 0), splits=splits))
        ((0, (1, 0)),)
    """
    orders: dict[int, list[int]] = {}
    for mesh_axis in range(len(layout.mesh) - 1, -1, -1):
        split = layout.splits[mesh_axis]
        if split.axis is None:
            continue
        before = orders.setdefault(split.axis, [])
        products = [prod(layout.mesh[m] for m in before[:n]) for n in range(len(before) + 1)]
        if split.factor not in products:
            return None
        before.insert(products.index(split.factor), mesh_axis)
    return tuple((axis, tuple(mesh_axes)) for axis, mesh_axes in sorted(orders.items()))


def _in_order(layout: MeshLayout, order: Order) -> tuple[Segments, ...]:
    """Return the segments of each axis if mesh axes chunk one after the other."""
    axes = [_all_of(extent) for extent in layout.shape]
    for axis, mesh_axes in order:
        for mesh_axis in mesh_axes:
            parts, part = layout.mesh[mesh_axis], layout.coordinate[mesh_axis]
            axes[axis] = _chunk(axes[axis], parts, part)
    return tuple(axes)


def _left_to_right(layout: MeshLayout) -> tuple[Segments, ...]:
    """Return the segments of each axis if mesh axes split from left to right, with factors."""
    axes = [_all_of(extent) for extent in layout.shape]
    for parts, part, split in zip(layout.mesh, layout.coordinate, layout.splits, strict=True):
        if split.axis is None:
            continue
        whole = axes[split.axis]
        pieces = (_chunk(whole, split.factor, piece) for piece in range(split.factor))
        taken = itertools.chain.from_iterable(_chunk(piece, parts, part) for piece in pieces)
        axes[split.axis] = _joined(taken)
    return tuple(axes)


def _all_of(extent: int) -> Segments:
    return ((0, extent),) if extent else ()


def _chunk(segments: Segments, parts: int, part: int) -> Segments:
    """Return one of the parts into which `torch.chunk` cuts a sequence of elements."""
    total = sum(extent for _, extent in segments)
    size = -(-total // parts)
    low = min(total, size * part)
    high = min(total, low + size)
    taken = []
    position = 0
    for origin, extent in segments:
        first, last = max(low - position, 0), min(high - position, extent)
        if first < last:
            taken.append((origin + first, last - first))
        position += extent
    return tuple(taken)


def _joined(segments: itertools.chain[tuple[int, int]]) -> Segments:
    """Return segments with neighbours that touch made one."""
    out: list[tuple[int, int]] = []
    for origin, extent in segments:
        if out and sum(out[-1]) == origin:
            out[-1] = (out[-1][0], out[-1][1] + extent)
        else:
            out.append((origin, extent))
    return tuple(out)


def _fits(axes: tuple[Segments, ...], local_shape: tuple[int, ...]) -> bool:
    """Return whether a local tensor has the shape; all tensors without elements are equal."""
    shape = _shape_of(axes)
    return shape == local_shape or (0 in shape and 0 in local_shape)


def _shape_of(axes: tuple[Segments, ...]) -> tuple[int, ...]:
    return tuple(sum(extent for _, extent in segments) for segments in axes)


def _is_uncertain(layout: MeshLayout) -> bool:
    """Return whether some rank holds equal shapes but other elements by the two readings.

    That rank would take its elements for those of the first reading.
    """
    for coordinate in itertools.product(*(range(ranks) for ranks in layout.mesh)):
        there = MeshLayout(
            shape=layout.shape, mesh=layout.mesh, coordinate=coordinate, splits=layout.splits
        )
        first, second = readings(there)
        if _fits(first, _shape_of(second)) and _boxes(first) != _boxes(second):
            return True
    return False


def _held(axes: tuple[Segments, ...], local_shape: tuple[int, ...]) -> Held:
    boxes = _boxes(axes)
    return Held(
        shape=local_shape,
        boxes=boxes,
        slices=tuple(itertools.product(*(_places(segments) for segments in axes))) if boxes else (),
        regions=tuple(Region.whole(box) for box in boxes),
        origins=tuple(box.origin for box in boxes),
    )


def _boxes(axes: tuple[Segments, ...]) -> tuple[Box, ...]:
    """Return the boxes that the segments of all axes span, in local row-major order."""
    return tuple(
        Box(origin=tuple(o for o, _ in corner), shape=tuple(e for _, e in corner))
        for corner in itertools.product(*axes)
    )


def _places(segments: Segments) -> Sequence[slice]:
    ends = list(itertools.accumulate(extent for _, extent in segments))
    return [slice(end - extent, end) for end, (_, extent) in zip(ends, segments, strict=True)]
