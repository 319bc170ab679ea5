"""Fused tensors: several named tensors in one, each split among ranks on its own.

Attention keeps q, k and v in one matrix, a gated layer its gate and up projections.  A rank's part
is then not one box of the whole: it is one box of each of them.  The whole is stored in its logical
order, all of q, then all of k, then all of v, so that any other number of ranks can read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bcpformat.errors import InvalidArgumentError
from bcpformat.model.shards import Shard, Shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One of the tensors within a fused one, and the part of it that a rank holds.

    Attributes:
        name: Such as ``"q"``.
        extent: Its size on the fused axis, over all ranks, in elements.
        origin: First element of this rank's part, from the segment's own beginning.
        width: Elements of this rank's part.
    """

    name: str
    extent: int
    origin: int
    width: int


def even_segments(
    extents: Mapping[str, int],
    *,
    rank: int,
    size: int,
    units: Mapping[str, int] | None = None,
) -> list[Segment]:
    """Return the segments of a rank when each tensor is split evenly among ranks.

    Args:
        extents: Name to size on the fused axis, in their order.
        rank: This rank, of those that split the tensor.
        size: How many those are.
        units: Name to the smallest number of elements that stays together, such as the width of a
            head.  A tensor of fewer units than ranks, as k and v with grouped heads, is held by
            `size / units` neighbours each; by default it is 1 element.

    Raises:
        InvalidArgumentError: A tensor cannot be split evenly, even if all together could.

    Example:
        >>> found = even_segments({"gate": 6, "up": 6}, rank=1, size=2)
        >>> [(s.name, s.origin, s.width) for s in found]
        [('gate', 3, 3), ('up', 3, 3)]
        >>> kv = even_segments({"k": 8}, rank=3, size=4, units={"k": 4})
        >>> kv[0].origin, kv[0].width
        (4, 4)
    """
    if not 0 <= rank < size:
        raise InvalidArgumentError(f"rank must be 0 to {size - 1}, got {rank}")
    found = []
    for name, extent in extents.items():
        unit = (units or {}).get(name, 1)
        count, rest = divmod(extent, unit)
        if rest or not (count % size == 0 or (count and size % count == 0)):
            text = (
                f"segment {name!r} of {extent} elements in units of {unit} cannot be split evenly "
            )
            text += f"among {size} ranks; say what each rank holds with Segment(...)"
            raise InvalidArgumentError(text)
        width = max(count // size, 1) * unit if count else 0
        origin = rank * width if count % size == 0 else rank // (size // count) * unit
        found.append(Segment(name=name, extent=extent, origin=origin, width=width))
    return found


def fused(
    data: Any,  # Any: a tensor of any library
    segments: Sequence[Segment],
    *,
    global_shape: Sequence[int],
    axis: int = 0,
    origin: Sequence[int] | None = None,
) -> Shards:
    """Return a rank's part of a fused tensor as pieces of the whole, to write or to read into.

    Args:
        data: The rank's parts of all segments, one after the other on `axis`.
        segments: What they are.
        global_shape: Shape of the whole; on `axis` the sum of all extents.
        axis: The fused axis.
        origin: First element on the other axes, if those are split too; `axis` counts as 0.

    Raises:
        InvalidArgumentError: The sizes do not add up, or there is no such axis.

    Example:
        >>> import numpy as np
        >>> parts = even_segments({"gate": 4, "up": 4}, rank=1, size=2)
        >>> pieces = fused(np.arange(4), parts, global_shape=(8,)).pieces
        >>> [(p.origin, p.data.tolist()) for p in pieces]
        [((2,), [0, 1]), ((6,), [2, 3])]
    """
    whole = tuple(global_shape)
    if not -len(whole) <= axis < len(whole):
        raise InvalidArgumentError(f"axis {axis} does not exist in the whole of shape {whole}")
    axis %= len(whole)
    if sum(s.extent for s in segments) != whole[axis]:
        text = (
            f"segments of {sum(s.extent for s in segments)} elements on axis {axis} do not make up "
        )
        raise InvalidArgumentError(f"{text}the whole of shape {whole}")
    if sum(s.width for s in segments) != data.shape[axis]:
        text = f"data of shape {tuple(data.shape)} has not the {sum(s.width for s in segments)} "
        raise InvalidArgumentError(f"{text}elements of its segments on axis {axis}")
    advice = []
    base = [0] * len(whole) if origin is None else [*origin]
    pieces = []
    first, at = 0, 0
    for segment in segments:
        if not 0 <= segment.origin <= segment.extent - segment.width:
            text = (
                f"segment {segment.name!r}: {segment.width} elements from {segment.origin} do not "
            )
            raise InvalidArgumentError(f"{text}lie within its {segment.extent}")
        place = [*base[:axis], first + segment.origin, *base[axis + 1 :]]
        part = data[(slice(None),) * axis + (slice(at, at + segment.width),)]
        pieces.append(Shard(part, global_shape=whole, origin=place))
        advice.append((segment.name, axis, first, segment.extent))
        first += segment.extent
        at += segment.width
    return Shards(pieces, segments=advice)
