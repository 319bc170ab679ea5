"""Destinations of one read that share memory: the same place twice, or a template to refuse.

Nothing is written before this is settled: two tensors read into one place would leave whichever
came last, and a part of a third in what lies across both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from bcpformat.model.manifest import Ints

_MOST_WORK = 10_000
"""Steps spent on whether two strided arrays share an element; who needs more is refused."""

Memory = npt.NDArray[np.generic]
"""An array whose place matters and whose elements are never looked at."""


@dataclass(frozen=True, slots=True)
class Clash:
    """Two destinations that share memory but are not the same place for the same tensor."""

    first: int
    second: int


def memory_at(address: int, *, shape: Sequence[int], strides: Sequence[int], size: int) -> Memory:
    """Return an array over any memory, such as that of a device.

    Args:
        address: First byte of the first element.
        shape: Shape in elements.
        strides: Bytes from one element to the next on each axis.
        size: Bytes of an element.
    """
    interface = {
        "version": 3,
        "data": (address, False),
        "shape": tuple(shape),
        "strides": tuple(strides),
        "typestr": f"|V{size}",
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))


def is_folded(shape: Sequence[int], strides: Sequence[int], *, size: int) -> bool:
    """Return whether two elements of an array may share memory, as in an expanded or sliding view.

    Args:
        shape: Shape in elements.
        strides: Step on each axis, in the unit of `size`.
        size: Size of an element.

    Example:
        >>> is_folded((2, 3), (3, 1), size=1), is_folded((2, 3), (1, 1), size=1)
        (False, True)
    """
    if 0 in shape:
        return False
    reach = size - 1
    for stride, extent in sorted((abs(s), n) for n, s in zip(shape, strides, strict=True)):
        if extent > 1:
            if stride <= reach:
                return True
            reach += stride * (extent - 1)
    return False


def settle(
    address: Ints, nbytes: Ints, row: Ints, memory: dict[int, Memory]
) -> tuple[set[int], list[Clash]]:
    """Return the destinations that repeat another one, and those that clash.

    Args:
        address: First byte of each destination, shape `(wants,)`; 0 without elements.
        nbytes: Bytes of each destination, shape `(wants,)`.
        row: The tensor each is for, shape `(wants,)`.
        memory: Destination to its memory where that is not `nbytes` from `address` on.
    """
    low, high = address.copy(), address + nbytes
    for want, array in memory.items():
        low[want], high[want] = np.lib.array_utils.byte_bounds(array)
    placed = np.flatnonzero((low != 0) & (nbytes != 0))
    placed = placed[np.argsort(low[placed], kind="stable")]
    if not (low[placed][1:] < np.maximum.accumulate(high[placed])[:-1]).any():
        return set(), []
    repeats: set[int] = set()
    clashes = []
    near: list[int] = []  # those so far that reach beyond the start of the next
    for second in placed.tolist():
        near = [first for first in near if high[first] > low[second]]
        for first in near:
            here, there = memory.get(first), memory.get(second)
            same = row[first] == row[second] and nbytes[first] == nbytes[second]
            if same and _is_same(address, first, second, here, there):
                repeats.add(second)
                break
            if _meet(
                here if here is not None else _whole(address, nbytes, first),
                there if there is not None else _whole(address, nbytes, second),
            ):
                clashes.append(Clash(first, second))
                break
        if second not in repeats:
            near.append(second)
    return repeats, clashes


def _is_same(
    address: Ints, first: int, second: int, here: Memory | None, there: Memory | None
) -> bool:
    if here is None or there is None:
        return here is there and address[first] == address[second]
    return _geometry(here) == _geometry(there)


def _geometry(array: Memory) -> tuple[Any, ...]:  # Any: address, shape, strides and type
    return array.ctypes.data, array.shape, array.strides, array.dtype.str


def _whole(address: Ints, nbytes: Ints, want: int) -> Memory:
    return memory_at(int(address[want]), shape=(int(nbytes[want]),), strides=(1,), size=1)


def _meet(first: Memory, second: Memory) -> bool:
    """Return whether two arrays share memory, or may."""
    bound: Any = _MOST_WORK  # Any: numpy's stub knows two of all integers
    try:
        return bool(np.shares_memory(first, second, max_work=bound))
    except np.exceptions.TooHardError:
        return True
