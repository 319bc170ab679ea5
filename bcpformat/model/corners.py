"""Signed corners: whether boxes tile larger boxes exactly (spec 8.2).

Every box gives each of its 2^d corners the sign (-1)^(number of high ends in it), and the
box to tile gives its own corners the opposite sign.  The signs at every corner add up to zero
exactly if the boxes tile it: the totals are the mixed difference of the number of boxes that
hold each element, and a mixed difference determines its function.  Pairs of boxes are never
compared.  Here a corner is one integer, so that two sorts find what does not cancel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_MAX_KEY = 2**62


def first_uncancelled(
    *, sizes: Ints, tensor: Ints, low: Ints, high: Ints, max_corners: int
) -> Iterator[tuple[int, Ints, int]]:
    """Yield the tensors whose corners do not cancel.

    A corner is its position in a grid of ``size + 1`` points on each axis, and the grids of
    tensors lie one after the other.  At most 2^53 elements in at most 8 axes of at least 2
    make a grid below 2^58.

    Args:
        sizes: Shape `(axes, tensors)`: of the box each tensor is, from zero; at least 2.
        tensor: Shape `(boxes,)`, ascending: the tensor of each box.  Every tensor has one.
        low: Shape `(axes, boxes)`: first element of each box.
        high: Shape `(axes, boxes)`: the position after its last element.
        max_corners: Corners to hold at once, at least 1.

    Yields:
        A tensor, the row-major first position of which the total is not zero, and the number
        of boxes that hold the element there.  That number is the total and 1, as every other
        corner that counts there comes before it.
    """
    axes, tensors = sizes.shape
    strides = np.ones_like(sizes)
    for axis in range(axes - 1, 0, -1):
        strides[axis - 1] = strides[axis] * (sizes[axis] + 1)
    grids = strides[0] * (sizes[0] + 1)
    ends = np.cumsum(np.bincount(tensor, minlength=tensors)).tolist()
    for first, last in _batches(grids.tolist(), [end << axes for end in ends], max_corners):
        rows = slice(ends[first - 1] if first else 0, ends[last - 1])
        owner = tensor[rows] - first
        size, stride = sizes[:, first:last], strides[:, first:last]
        base = np.cumsum(grids[first:last]) - grids[first:last]
        step = stride.take(owner, axis=1)
        keys, totals = _uncancelled(
            _Boxes(key=base.take(owner), low=low[:, rows] * step, high=high[:, rows] * step),
            _Boxes(key=base, low=np.zeros_like(stride), high=size * stride),
            max_corners,
        )
        failed, at = np.unique(np.searchsorted(base, keys, "right") - 1, return_index=True)
        for local, index in zip(failed.tolist(), at.tolist(), strict=True):
            corner = (keys[index] - base[local]) // stride[:, local] % (size[:, local] + 1)
            yield first + local, corner, 1 + int(totals[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Boxes:
    """Boxes as sums of keys: one key for the axes already expanded, two ends for each other.

    Attributes:
        key: Shape `(boxes,)`.
        low: Shape `(axes, boxes)`: what the low end on each axis adds to the key.
        high: Shape `(axes, boxes)`: what the high end adds.
    """

    key: Ints
    low: Ints
    high: Ints

    def corners(self) -> tuple[Ints, Ints]:
        """Return the keys of all corners: those of positive sign, those of negative sign."""
        plus = self.key[np.newaxis]
        minus = plus[:0]
        for low, high in zip(self.low, self.high, strict=True):
            plus, minus = (
                np.concatenate((plus + low, minus + high)),
                np.concatenate((minus + low, plus + high)),
            )
        return plus.reshape(-1), minus.reshape(-1)

    def expanded(self, other: _Boxes) -> _Boxes:
        """Return the low ends of these boxes and the high ends of the others, sorted by key."""
        key = np.concatenate((self.key + self.low[0], other.key + other.high[0]))
        order = np.argsort(key)
        low = np.concatenate((self.low[1:], other.low[1:]), axis=1).take(order, axis=1)
        high = np.concatenate((self.high[1:], other.high[1:]), axis=1).take(order, axis=1)
        return _Boxes(key=key[order], low=low, high=high)

    def between(self, first: int, last: int) -> _Boxes:
        """Return the boxes with ``first <= key <= last``; these are sorted by key."""
        rows = slice(np.searchsorted(self.key, first), np.searchsorted(self.key, last, "right"))
        return _Boxes(key=self.key[rows], low=self.low[:, rows], high=self.high[:, rows])


def _batches(
    grids: list[int], corner_ends: list[int], max_corners: int
) -> Iterator[tuple[int, int]]:
    """Yield ranges of tensors of which the keys fit in an int64 and the corners in memory."""
    first, keys, before = 0, 0, 0
    for index, (grid, end) in enumerate(zip(grids, corner_ends, strict=True)):
        if index > first and (keys + grid > _MAX_KEY or end - before > max_corners):
            yield first, index
            first, keys, before = index, 0, corner_ends[index - 1]
        keys += grid
    yield first, len(grids)


def _uncancelled(plus: _Boxes, minus: _Boxes, max_corners: int) -> tuple[Ints, Ints]:
    """Return corners at which boxes of both signs do not cancel, ascending, and their totals.

    Too many corners to hold are expanded on their first axis only and taken in ranges of
    keys, as corners of different keys never meet; then only the first range that fails
    counts.  Rows at most double on the way, whatever the number of axes.
    """
    axes = len(plus.low)
    if not axes or (plus.key.size + minus.key.size) << axes <= max_corners:
        plus_even, plus_odd = plus.corners()
        minus_even, minus_odd = minus.corners()
        return _difference(
            np.concatenate((plus_even, minus_odd)), np.concatenate((plus_odd, minus_even))
        )
    plus, minus = plus.expanded(minus), minus.expanded(plus)
    keys = np.sort(np.concatenate((plus.key, minus.key)))
    step = max(1, max_corners >> (axes - 1))
    lasts = np.unique(np.append(keys[step - 1 :: step], keys[-1]))
    first = int(keys[0])
    for last in lasts.tolist():
        found = _uncancelled(plus.between(first, last), minus.between(first, last), max_corners)
        if found[0].size:
            return found
        first = last + 1
    return found


def _difference(plus: Ints, minus: Ints) -> tuple[Ints, Ints]:
    """Return the values that are not equally often in both, ascending, and by how much."""
    plus.sort()
    minus.sort()
    if np.array_equal(plus, minus):
        return plus[:0], plus[:0]
    values, inverse = np.unique(np.concatenate((plus, minus)), return_inverse=True)
    times = np.bincount(inverse[: plus.size], minlength=values.size)
    times -= np.bincount(inverse[plus.size :], minlength=values.size)
    return values[times != 0], times[times != 0]
