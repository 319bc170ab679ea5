"""Who stores what: planned once for a layout, remembered for the saves that follow.

The ranks of a group remember the same layouts under the same numbers.  A save begins with one sum
of a few numbers; only if somebody's layout is new do plans go from rank to rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from bcpformat.codec.digest import document_digest
from bcpformat.engine.coordinator import Coordinator
from bcpformat.engine.meeting import Meeting, are_equal, convene, with_squares, words_of
from bcpformat.errors import BcpError, CoordinationError, DisagreementError
from bcpformat.model.limits import DOCUMENT_DEPTH
from bcpformat.model.manifest import Ints, Value, ints
from bcpformat.plan.assign import Assignment, assign
from bcpformat.plan.layout import Layout, layout_from_columns
from bcpformat.wire.mp import decode, encode

REMEMBERED = 8
"""Layouts that a group remembers."""


class Memory:
    """The layouts of one rank that its group has planned for.

    Attributes:
        number: That of the last plan.
    """

    def __init__(self) -> None:
        self.number = 0
        self._known: dict[bytes, tuple[int, Assignment]] = {}

    def find(self, fingerprint: bytes) -> tuple[int, Assignment | None]:
        """Return the number and assignment of a layout; 0 and None for a new one."""
        return self._known.get(fingerprint, (0, None))

    def keep(self, fingerprint: bytes, number: int, assignment: Assignment) -> None:
        """Remember a layout, and forget the oldest of too many."""
        self.number = number
        self._known.pop(fingerprint, None)
        self._known[fingerprint] = (number, assignment)
        while len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]


_memories: WeakKeyDictionary[Coordinator, Memory] = WeakKeyDictionary()
_lock = Lock()


def memory_of(coordinator: Coordinator) -> Memory:
    """Return what this rank remembers of its group."""
    with _lock:
        return _memories.setdefault(coordinator, Memory())


@dataclass(slots=True)
class _Proposal:
    """What this rank brings to a save."""

    layout: bytes = b""
    fingerprint: bytes = b""
    call: Mapping[str, Value] = field(default_factory=dict)
    number: int = 0
    assignment: Assignment | None = None


def agree(
    coordinator: Coordinator,
    propose: Callable[[], tuple[Layout, Mapping[str, Value]]],
    *,
    timeout_s: float,
) -> tuple[Meeting, Assignment]:
    """Begin a save: return its meeting, and what this rank stores.

    Args:
        coordinator: This rank's end of the group.
        propose: Makes this rank's layout, and what all ranks must be called with alike; it may
            fail.
        timeout_s: How long each wait for other ranks may take.

    Raises:
        DisagreementError: The ranks were called with different things, or hold one name with two
            shapes or data types.
        CoordinationError: A rank did not come.
        BcpError: `propose` failed on some rank.
    """
    memory = memory_of(coordinator)
    mine = _Proposal()

    def numbers() -> Ints:
        layout, mine.call = propose()
        mine.layout = _encoded(layout.to_columns())
        mine.fingerprint = document_digest(mine.layout)
        mine.number, mine.assignment = memory.find(mine.fingerprint)
        equal = [mine.number, *words_of(document_digest(_encoded(mine.call)))]
        return ints([mine.number == 0, *with_squares(equal)])

    meeting, sums = convene(coordinator, numbers, width=7, timeout_s=timeout_s)
    new, *compared = sums.tolist()
    is_known, *same = are_equal(compared, meeting.size)
    if not all(same):
        _compare_calls(meeting, mine.call)
    if not new and is_known and mine.assignment is not None:
        return meeting, mine.assignment
    meeting.put("layout", meeting.rank, mine.layout)
    if meeting.rank == 0:
        memory.number += 1  # now: no number is given twice, whoever fails to hear of this one
        _plan(meeting, memory.number)
    try:
        # rank 0 itself may wait one time-out for the layouts, and then says whose did not come
        patience_s = 2 * meeting.timeout_s
        data = meeting.take("assignment", meeting.rank, source=0, timeout_s=patience_s)
    except BcpError as error:
        if error.rank is not None:  # rank 0 did say it, so it looks at no layout any more
            with suppress(CoordinationError):
                meeting.forget("layout", meeting.rank)
        raise
    finally:
        with suppress(CoordinationError):
            meeting.forget("assignment", meeting.rank)
    number, assignment = _assignment(data)
    memory.keep(mine.fingerprint, number, assignment)
    return meeting, assignment


def _compare_calls(meeting: Meeting, call: Mapping[str, Value]) -> None:
    """Raise on every rank that this save was called for with different arguments."""
    if meeting.rank == 0:
        meeting.put("call", 0, _encoded(call))
    lead = cast("dict[str, Value]", _decoded(meeting.take("call", 0), "the call of rank 0"))
    # encoded, as True equals 1
    theirs, mine = ({k: _encoded(v) for k, v in said.items()} for said in (lead, call))
    differing = sorted(k for k in theirs.keys() | mine.keys() if theirs.get(k) != mine.get(k))
    error = None
    if differing:
        shown = "; ".join(
            f"{k}: {call.get(k)!r:.100} here, {lead.get(k)!r:.100} on rank 0" for k in differing
        )
        error = DisagreementError(f"the ranks of one save were called with different {shown}")
    try:
        meeting.settle(error)
    finally:
        if meeting.rank == 0:  # all have come to the sum, so all have taken it
            with suppress(CoordinationError):
                meeting.forget("call", 0)


def _plan(meeting: Meeting, number: int) -> None:
    """Assign on rank 0 what everybody stores, and tell each rank its own."""
    try:
        layouts = [
            layout_from_columns(_decoded(data, f"the layout of rank {rank}"))
            for rank, data in meeting.take_all("layout")
        ]
        answers = [_assignment_bytes(number, assignment) for assignment in assign(layouts)]
    except BaseException as error:
        for rank in range(meeting.size):
            meeting.fail("assignment", rank, error)
        if not isinstance(error, BcpError):
            raise
        return
    for rank, answer in enumerate(answers):
        meeting.put("assignment", rank, answer)


_COLUMNS = ("piece", "low", "high", "check_piece", "check_group")


def _assignment_bytes(number: int, assignment: Assignment) -> bytes:
    columns = [getattr(assignment, name).astype("<i8").tobytes() for name in _COLUMNS]
    return _encoded([number, *columns])


def _assignment(data: bytes) -> tuple[int, Assignment]:
    number, *columns = cast("list[Any]", _decoded(data, "the assignment"))
    found = {
        name: np.frombuffer(column, dtype="<i8").astype(np.int64)
        for name, column in zip(_COLUMNS, columns, strict=True)
    }
    return number, Assignment(**found)


def _encoded(value: object) -> bytes:
    return encode(cast(Value, value), max_depth=DOCUMENT_DEPTH, where="a note to other ranks")


def _decoded(data: bytes, where: str) -> Value:
    return decode(data, max_depth=DOCUMENT_DEPTH, where=where)
