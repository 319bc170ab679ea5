"""How the ranks of one save or read talk to each other: a small protocol, and one rank alone.

A save needs two things of its ranks: one small sum of everybody's numbers on the calling thread,
and a place to put short values under keys that the others can wait for.  The second must work on
a background thread while the first is used on another.  `bcpformat.torch` has both for
`torch.distributed`; any other launcher needs these methods and nothing else.  Only reads that
share what they read (`ReadOptions.shared`) also use `exchange`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bcpformat.engine.memory import Bytes
from bcpformat.model.manifest import Ints


class Coordinator(Protocol):
    """One rank's end of a group of ranks.

    After `total` or `exchange` has failed the group is of no more use for saves and reads.  `put`,
    `take` and `forget` raise a CoordinationError (``E_RANK_LOST``) where the values are lost.

    Attributes:
        rank: This rank's position in the group, from 0.
        size: Ranks in the group.
    """

    rank: int
    size: int

    def describe(self, rank: int) -> str:
        """Return words for a rank, such as ``"rank 1 (global 3)"``."""
        ...

    def total(self, values: Ints, *, timeout_s: float) -> Ints:
        """Return the sum over all ranks; every rank calls it, in the same order of calls.

        Args:
            values: Integers of equal number on every rank; no sum passes 2^63-1.
            timeout_s: How long to wait for the others.

        Raises:
            CoordinationError: A rank did not come (``E_TIMEOUT``) or is gone (``E_RANK_LOST``); the
                message and `.ranks` name it where that can be known.
        """
        ...

    def exchange(self, parts: Sequence[Bytes], *, timeout_s: float) -> list[Bytes]:
        """Give every rank its part; every rank calls it, in one order with `total`.

        Args:
            parts: What each rank gets of this one, by rank: bytes, 1-d, any number of them.  They
                are not changed; several may be the same array.
            timeout_s: How long to wait for the others.

        Returns:
            What each rank gave to this one, by rank; only to be read.

        Raises:
            CoordinationError: As for `total`.
        """
        ...

    def put(self, key: str, value: bytes) -> None:
        """Publish a value, once, from any thread.

        Args:
            key: Printable ASCII without spaces; new in this group.
            value: Any number of bytes.
        """
        ...

    def take(self, key: str, *, timeout_s: float) -> bytes | None:
        """Return a value that any rank has published, waiting for it; None if it did not come.

        May be called again and again, and from any thread.
        """
        ...

    def forget(self, key: str) -> None:
        """Remove a value that nobody will take any more; nothing happens without one."""
        ...


class SoloCoordinator:
    """A group of one rank.

    Example:
        >>> SoloCoordinator().size
        1
    """

    rank = 0
    size = 1

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def describe(self, rank: int) -> str:
        """Return words for a rank."""
        return f"rank {rank}"

    def total(self, values: Ints, *, timeout_s: float) -> Ints:
        """Return the values: there is nobody else."""
        del timeout_s
        return values

    def exchange(self, parts: Sequence[Bytes], *, timeout_s: float) -> list[Bytes]:
        """Return the parts: there is nobody else."""
        del timeout_s
        return list(parts)

    def put(self, key: str, value: bytes) -> None:
        """Keep a value."""
        self._values[key] = value

    def take(self, key: str, *, timeout_s: float) -> bytes | None:
        """Return a value, None without one: nobody else could bring it."""
        del timeout_s
        return self._values.get(key)

    def forget(self, key: str) -> None:
        """Drop a value."""
        self._values.pop(key, None)
