"""How the ranks of a group meet in its store, whatever earlier attempts have left there.

A store outlives process groups, and an attempt to meet may have failed on some ranks and not even
begun on others.  So nothing is counted and no key is trusted for being there.  Each rank says
hello with a number nobody has used before; rank 0 answers every number it sees with the name of
the meeting; and only ranks that repeat that name count as present.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bcpformat.errors import CoordinationError
from bcpformat.torch.mailbox import Mailbox

_LEAD = 0
_LISTED = 8
_ALL_HERE = "-"


@dataclass(frozen=True, slots=True)
class RankNames:
    """What the ranks of a group are called in messages.

    Attributes:
        global_ranks: The global rank of each, by its rank in the group.

    Example:
        >>> RankNames((4, 6)).describe(1)
        'rank 1 (global 6)'
        >>> RankNames((0, 1, 2)).describe_all([0, 2])
        'rank 0, rank 2'
    """

    global_ranks: tuple[int, ...]

    def describe(self, rank: int) -> str:
        """Return what to call a rank of the group."""
        known_as = self.global_ranks[rank]
        return f"rank {rank}" if known_as == rank else f"rank {rank} (global {known_as})"

    def describe_all(self, ranks: Sequence[int]) -> str:
        """Return what to call several ranks; of many, the first few."""
        named = ", ".join(self.describe(rank) for rank in ranks[:_LISTED])
        more = len(ranks) - _LISTED
        return f"{named} and {more} more" if more > 0 else named


def join(mailbox: Mailbox, rank: int, names: RankNames, *, timeout_s: float) -> str:
    """Wait until every rank of the group has called this, and agree on a name that is new.

    Args:
        mailbox: Keys that only this group uses.
        rank: This rank's position in the group.
        names: Those of the group, which say how many there are.
        timeout_s: How long to wait for the others.

    Returns:
        The name of this meeting, the same on every rank, never used before in any store.

    Raises:
        CoordinationError: Ranks did not come (``E_TIMEOUT``), named in the message and in `.ranks`;
            or the store is gone (``E_RANK_LOST``).
    """
    deadline = time.monotonic() + timeout_s
    if rank == _LEAD:
        name = secrets.token_hex(8)
        missing = _Lead(mailbox, name, size=len(names.global_ranks)).gather(timeout_s)
    else:
        name, missing = _follow(mailbox, rank, len(names.global_ranks), deadline)
    if rank in missing:
        text = f"the other ranks of the group stopped waiting before {names.describe(rank)} came"
        raise CoordinationError(text, ranks=missing)
    if missing:
        text = (
            f"{names.describe(rank)} waited {timeout_s:g} s to join the other ranks of its group, "
            f"but {names.describe_all(missing)} did not come: see what happens there, or "
            "raise the time-out"
        )
        raise CoordinationError(text, ranks=missing)
    return name


class _Lead:
    """Rank 0: names the meeting and answers whoever says hello, until all are present."""

    def __init__(self, mailbox: Mailbox, name: str, *, size: int) -> None:
        self._mailbox = mailbox
        self._name = name
        self._absent = list(range(1, size))
        self._answered: dict[int, bytes] = {}

    def gather(self, timeout_s: float) -> list[int]:
        """Return the ranks that did not come, once all have or the time is over."""
        self._mailbox.until(self._is_complete, timeout_s=timeout_s)
        verdict = ",".join(map(str, self._absent)) or _ALL_HERE
        self._mailbox.set(_verdict(self._name), verdict.encode())
        return self._absent

    def _is_complete(self) -> bool:
        silent = set(self._mailbox.absent([_hello(rank) for rank in self._absent]))
        for position, rank in enumerate(self._absent):
            if position in silent:
                continue
            number = self._mailbox.get(_hello(rank))
            # An old number is answered too; nobody reads that, and the new one comes later.
            if self._answered.get(rank) != number:
                self._answered[rank] = number
                self._mailbox.set(_welcome(number), self._name.encode())
        away = self._mailbox.absent([_present(self._name, rank) for rank in self._absent])
        self._absent = [self._absent[position] for position in away]
        return not self._absent


def _follow(mailbox: Mailbox, rank: int, size: int, deadline: float) -> tuple[str, list[int]]:
    """Return the name of the meeting, and the ranks that did not come."""
    number = secrets.token_hex(8).encode()
    mailbox.set(_hello(rank), number)
    if not _comes(mailbox, _welcome(number), deadline):
        return "", [_LEAD]
    name = mailbox.get(_welcome(number)).decode()
    mailbox.delete(_welcome(number))
    mailbox.set(_present(name, rank), b"1")
    if not _comes(mailbox, _verdict(name), deadline):
        # This rank stays among those present: others that give up now must not miss it too.
        away = mailbox.absent([_present(name, other) for other in range(1, size)])
        return name, [position + 1 for position in away] or [_LEAD]
    verdict = mailbox.get(_verdict(name)).decode()
    if verdict != _ALL_HERE:
        return name, list(map(int, verdict.split(",")))
    mailbox.delete(_hello(rank))  # not before: the lead may be reading it
    mailbox.delete(_present(name, rank))
    return name, []


def _comes(mailbox: Mailbox, key: str, deadline: float) -> bool:
    return mailbox.until(lambda: mailbox.has([key]), timeout_s=deadline - time.monotonic())


def _hello(rank: int) -> str:
    return f"hello/{rank}"


def _welcome(number: bytes) -> str:
    return f"welcome/{number.decode()}"


def _present(name: str, rank: int) -> str:
    return f"{name}/present/{rank}"


def _verdict(name: str) -> str:
    return f"{name}/verdict"
