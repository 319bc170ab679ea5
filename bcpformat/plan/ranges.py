"""Ranges of integers as columns: expanded to their members, and united."""

from __future__ import annotations

import numpy as np

from bcpformat.model.manifest import Ints


def expand(first: Ints, size: Ints) -> tuple[Ints, Ints]:
    """Return the members of ranges, range after range.

    Args:
        first: First member of each range, shape `(ranges,)`.
        size: Members of each range, at least 0, shape `(ranges,)`.

    Returns:
        The position of each member's range, and the member; shape `(members,)`.

    Example:
        >>> owner, member = expand(np.array([5, 0]), np.array([2, 3]))
        >>> owner.tolist(), member.tolist()
        ([0, 0, 1, 1, 1], [5, 6, 0, 1, 2])
    """
    owner = np.repeat(np.arange(len(first), dtype=np.int64), size)
    member = np.arange(len(owner), dtype=np.int64)
    member += (first - (np.cumsum(size) - size))[owner]
    return owner, member


def union(first: Ints, stop: Ints) -> Ints:
    """Return the integers in the union of ranges, ascending.

    Args:
        first: First member of each range, shape `(ranges,)`.
        stop: End of each range, above its first member, shape `(ranges,)`.

    Example:
        >>> union(np.array([4, 1]), np.array([6, 5])).tolist()
        [1, 2, 3, 4, 5]
    """
    if not len(first):
        return first
    order = np.argsort(first, kind="stable")
    first, stop = first[order], stop[order]
    reach = np.maximum.accumulate(stop)
    new = np.append(True, first[1:] > reach[:-1])
    begin = first[new]
    end = reach[np.append(np.flatnonzero(new)[1:] - 1, len(first) - 1)]
    return expand(begin, end - begin)[1]
