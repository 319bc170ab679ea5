"""Saved regions against wanted boxes, many of both at once (pure).

Regions and wants are `Rows`; a want is a region that is a whole box.  What the two share is a box.
The questions are which pairs share one, whether it lies in one stretch on both sides, and which
bytes of the region it takes.  Nothing here loops over rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bcpformat.model.manifest import Ints
from bcpformat.model.tiling import Rows, cut_ranges
from bcpformat.plan.ranges import expand

Bools = npt.NDArray[np.bool_]

_KEY_BITS = 62
"""A tensor in the high bits and a position below 2^53 added to it stay below 2^63."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """What regions and wants share as one flat range on both sides; arrays of shape `(pairs,)`.

    Attributes:
        is_one: Whether the shared elements are one flat range of the region and of the want;
            the other columns mean nothing where they are not.
        first: First of them in the region's own elements.
        count: How many; 0 or less if the region's flat range holds none of the shared box.
        target: First of them in the row-major elements of the want.
    """

    is_one: Bools
    first: Ints
    count: Ints
    target: Ints


def meeting(shape: Ints, regions: Rows, wants: Rows) -> tuple[Ints, Ints]:
    """Return the rows of all regions and wants whose boxes share elements.

    Two searches bound the regions of each want along the first axis that its tensor has; what is
    between is compared one by one.  Rows in ascending order make the bounds narrow, but are not
    needed for the result.  A flat range may yet miss the shared box.

    Args:
        shape: Shape `(axes, tensors)`.
        regions: All regions of the tensors.
        wants: Boxes within the tensors.

    Returns:
        Rows of `regions` and of `wants`, pair by pair, ascending by want and region.
    """
    axes, tensors = shape.shape
    lead = np.argmax(shape != 1, axis=0)
    low, stop = _lead_span(regions, lead)
    # Keys order tensors, then positions.  They may run into those of the next tensor, not wrap.
    room = _KEY_BITS - tensors.bit_length()
    base = regions.tensor << room
    reach = np.maximum.accumulate(base + stop - 1)
    ahead = np.minimum.accumulate((base + low)[::-1])[::-1]
    axis, column = lead[wants.tensor], np.arange(len(wants.tensor))
    want_low = wants.origin[axis, column]
    want_stop = want_low + wants.extent[axis, column]
    base = wants.tensor << room
    first = np.searchsorted(reach, base + want_low)
    last = np.searchsorted(ahead, base + want_stop - 1, side="right")
    want, region = expand(first, np.maximum(last - first, 0))
    shared = regions.tensor[region] == wants.tensor[want]
    shared &= (low[region] < want_stop[want]) & (stop[region] > want_low[want])
    for number in range(axes):
        origin, wanted = regions.origin[number], wants.origin[number]
        shared &= origin[region] < (wanted + wants.extent[number])[want]
        shared &= (origin + regions.extent[number])[region] > wanted[want]
    found = np.flatnonzero(shared)
    return region[found], want[found]


def _lead_span(regions: Rows, lead: Ints) -> tuple[Ints, Ints]:
    """Return the positions from and to which regions lie on the axis `lead` of their tensors."""
    axis, column = lead[regions.tensor], np.arange(len(regions.tensor))
    origin, extent = regions.origin[axis, column], regions.extent[axis, column]
    numel = np.prod(regions.extent, axis=0, dtype=np.int64)
    if np.array_equal(numel, regions.count):
        return origin, origin + extent
    slab = numel // extent  # all axes before have the size 1
    first = regions.start // slab
    last = (regions.start + regions.count - 1) // slab
    return origin + first, origin + last + 1


def stretches(regions: Rows, wants: Rows) -> Stretches:
    """Return what the wants take of the regions where that is one flat range on both sides.

    Args:
        regions: The regions of pairs.
        wants: The wants of the same pairs.
    """
    low, size = _shared(regions, wants)
    in_box, box_first = _flat(regions, low, size)
    in_want, want_first = _flat(wants, low, size)
    numel = np.prod(size, axis=0, dtype=np.int64)
    first = np.maximum(box_first, regions.start)
    stop = np.minimum(box_first + numel, regions.start + regions.count)
    return Stretches(
        is_one=in_box & in_want,
        first=first - regions.start,
        count=stop - first,
        target=want_first + first - box_first,
    )


def _shared(regions: Rows, wants: Rows) -> tuple[Ints, Ints]:
    """Return origin and extent of what boxes share, shape `(axes, pairs)`."""
    low = np.maximum(regions.origin, wants.origin)
    high = np.minimum(regions.origin + regions.extent, wants.origin + wants.extent)
    return low, high - low


def _flat(frames: Rows, low: Ints, size: Ints) -> tuple[Bools, Ints]:
    """Return whether boxes are one flat range of the boxes they lie in, and where they begin."""
    is_flat = np.ones(len(frames.tensor), dtype=np.bool_)
    spanning = is_flat.copy()
    for axis in reversed(range(len(size))):
        is_flat &= spanning | (size[axis] == 1)
        spanning &= size[axis] == frames.extent[axis]
    first = np.zeros(len(frames.tensor), dtype=np.int64)
    for axis in range(len(size)):
        first *= frames.extent[axis]
        first += low[axis] - frames.origin[axis]
    return is_flat, first


def byte_ranges(
    regions: Rows, wants: Rows, *, bits: Ints, offset: Ints, block_log2: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return the bytes that wants take of regions, as few ranges without a needless block.

    Ranges are one if no whole block lies between them: every block that a range touches holds a
    byte that is wanted, and the number of ranges is bounded by the number of such blocks.

    Args:
        regions: The regions of pairs.
        wants: The wants of the same pairs.
        bits: Bits of an element of each pair.
        offset: First byte of each region in the raw bytes of its run.
        block_log2: Base-2 logarithm of the block size of each run, in bytes.

    Returns:
        The pair of each range, and its first byte and end in the raw bytes of the run; ascending.
    """
    parts = cut_ranges(replace(regions, tensor=np.arange(len(regions.tensor), dtype=np.int64)))
    begin = np.cumsum(parts.count) - parts.count
    heads = np.append(True, parts.tensor[1:] != parts.tensor[:-1])
    begin -= begin[heads][parts.tensor]  # in the region's own elements
    low, size = _shared(parts, wants.take(parts.tensor))
    some = np.flatnonzero((size > 0).all(axis=0))
    if not len(some):
        return some, some, some
    pair, size, parts = parts.tensor[some], size[:, some], parts.take(some)
    begin = begin[some] + _flat(parts, low[:, some], size)[1]

    stride = np.ones_like(size)
    for axis in range(len(size) - 1, 0, -1):
        stride[axis - 1] = stride[axis] * parts.extent[axis]
    block_bits = np.int64(8) << block_log2[pair]
    length = np.ones(len(pair), dtype=np.int64)
    is_one = np.ones(len(pair), dtype=np.bool_)
    steps = size.copy()  # on each axis, how many ranges it makes
    for axis in reversed(range(len(size))):
        near = is_one & ((stride[axis] - length) * bits[pair] < block_bits)
        length += np.where(near, (size[axis] - 1) * stride[axis], 0)
        steps[axis][near] = 1
        is_one &= steps[axis] == 1
    part, rest = expand(np.zeros_like(length), np.prod(steps, axis=0, dtype=np.int64))
    begin, length, pair = begin[part], length[part], pair[part]
    for axis in reversed(range(len(size))):
        if (steps[axis] != 1).any():
            rest, step = np.divmod(rest, steps[axis][part])
            begin += step * stride[axis][part]
    first = offset[pair] + ((begin * bits[pair]) >> 3)
    stop = offset[pair] + (((begin + length) * bits[pair] + 7) >> 3)

    log2 = block_log2[pair]
    apart = pair[1:] != pair[:-1]
    apart |= first[1:] >> log2[1:] > ((stop[:-1] - 1) >> log2[:-1]) + 1
    heads = np.append(True, apart)
    return pair[heads], first[heads], stop[np.append(apart, True)]
