"""Ranks that are threads of one process: what several processes would do, without any.

What the ranks say to each other is counted, so that a test can show what a save did not need to
say.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from bcpformat.engine.coordinator import Coordinator
from bcpformat.engine.memory import Bytes
from bcpformat.errors import CoordinationError, ErrorCode, InvalidArgumentError
from bcpformat.model.manifest import Ints, ints

_Result = TypeVar("_Result")
_Part = TypeVar("_Part")


def run_ranks(
    size: int, function: Callable[[Coordinator], _Result], *, timeout_s: float = 60.0
) -> list[_Result]:
    """Call a function on every rank of a new group, at the same time.

    Args:
        size: Ranks in the group.
        function: What each rank does with its end of the group.
        timeout_s: How long all of it may take.

    Returns:
        What it returned, by rank.

    Raises:
        BaseExceptionGroup: It raised, on any rank; the errors are in the order of the ranks, and a
            note on each says which.  (An ExceptionGroup, if they all are of Exception.)
        TimeoutError: A rank is not done in time; the message names it.

    Example:
        >>> run_ranks(3, lambda ranks: ranks.total(ints([ranks.rank]), timeout_s=5).tolist())
        [[3], [3], [3]]
    """
    return Ranks(size).run(function, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True)
class Outcome(Generic[_Result]):
    """What became of a function on one rank.

    Attributes:
        value: What it returned; None if it raised.
        error: What it raised; None if it returned.
    """

    value: _Result | None
    error: BaseException | None


class Ranks:
    """A group of ranks that are threads, for one run after another.

    A rank whose function raised is gone for that run, as a process would be: a sum that needs it
    fails at once and names it (``E_RANK_LOST``).  So does one that needs a rank whose function has
    returned.  After a sum has failed every further sum does; make a new group.

    Attributes:
        totals: How many sums have been made.
        exchanged_bytes: Bytes that ranks gave to others in exchanges.

    Thread safety: one run at a time; the counts may be read when none is going on.

    Example:
        >>> ranks = Ranks(2)
        >>> outcomes = ranks.outcomes(lambda end: end.put(f"from/{end.rank}", b"abc"))
        >>> ranks.put_bytes("from/"), ranks.keys
        (6, ['from/0', 'from/1'])
    """

    def __init__(self, size: int) -> None:
        """Make a group.

        Args:
            size: Ranks in the group, at least 1.
        """
        self._board = _Board(size)
        self._ends = [_End(self._board, rank, size) for rank in range(size)]

    def run(
        self, function: Callable[[Coordinator], _Result], *, timeout_s: float = 60.0
    ) -> list[_Result]:
        """Call a function on every rank; return what it returned (see `run_ranks`)."""
        outcomes = self._outcomes(function, timeout_s)
        errors = []
        for rank, (_, error) in enumerate(outcomes):
            if error is not None:
                error.add_note(f"raised on rank {rank} of {len(outcomes)}")
                errors.append(error)
        if errors:
            raise BaseExceptionGroup(f"{len(errors)} of {len(outcomes)} ranks raised", errors)
        return [value for values, _ in outcomes for value in values]

    def outcomes(
        self, function: Callable[[Coordinator], _Result], *, timeout_s: float = 60.0
    ) -> list[Outcome[_Result]]:
        """Call a function on every rank; return what it returned or raised, by rank.

        Raises:
            TimeoutError: A rank is not done in time; the message names it.
        """
        return [
            Outcome(value=values[0] if values else None, error=error)
            for values, error in self._outcomes(function, timeout_s)
        ]

    @property
    def totals(self) -> int:
        """How many sums have been made."""
        return self._board.totals

    @property
    def exchanged_bytes(self) -> int:
        """Bytes that ranks gave to others in exchanges."""
        return self._board.exchanged_bytes

    @property
    def keys(self) -> list[str]:
        """Keys whose values nobody has removed, sorted."""
        return sorted(self._board.values)

    def put_bytes(self, prefix: str = "") -> int:
        """Bytes of all values put under keys that begin so."""
        return _under(self._board.bytes_put, prefix)

    def taken_bytes(self, prefix: str = "") -> int:
        """Bytes of all values taken under keys that begin so, each as often as it was taken."""
        return _under(self._board.bytes_taken, prefix)

    def _outcomes(
        self, function: Callable[[Coordinator], _Result], timeout_s: float
    ) -> list[tuple[list[_Result], BaseException | None]]:
        board = self._board
        board.gone.clear()
        results: list[list[_Result]] = [[] for _ in self._ends]
        errors: list[BaseException | None] = [None for _ in self._ends]

        def act(end: _End) -> None:
            try:
                results[end.rank].append(function(end))
            except BaseException as error:  # noqa: BLE001  # goes to the caller of the run
                errors[end.rank] = error
            finally:
                board.leave(end.rank)

        # Daemons: a rank that hangs must not keep the process.
        threads = [threading.Thread(target=act, args=(end,), daemon=True) for end in self._ends]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        hung = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
        if hung:
            raise TimeoutError(f"{_named(hung)} not done within {timeout_s:g} s")
        return list(zip(results, errors, strict=True))


@dataclass(slots=True)
class _Call(Generic[_Part]):
    """One call of `total` or `exchange`: what the ranks that have come to it brought."""

    what: str
    parts: dict[int, _Part] = field(default_factory=dict)
    taken: int = 0


class _Board:
    """What all ranks of a group see."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.values: dict[str, bytes] = {}
        self.gone: set[int] = set()
        self.totals = 0
        self.bytes_put: list[tuple[str, int]] = []
        self.bytes_taken: list[tuple[str, int]] = []
        self.exchanged_bytes = 0
        self._calls: dict[int, _Call[Any]] = {}  # Any: of sums or of exchanges
        self._failure: CoordinationError | None = None
        self._changed = threading.Condition()

    def leave(self, rank: int) -> None:
        """Say that a rank is gone."""
        with self._changed:
            self.gone.add(rank)
            self._changed.notify_all()

    def total(self, rank: int, call: int, values: Ints, timeout_s: float) -> Ints:
        """Return the sum of a call that all ranks come to."""
        with self._changed:
            shared = self._met(rank, call, values.copy(), "sum", timeout_s)
            self.totals += call not in self._calls
            return ints(np.sum([shared[r] for r in range(self.size)], axis=0))

    def exchange(
        self, rank: int, call: int, parts: Sequence[Bytes], timeout_s: float
    ) -> list[Bytes]:
        """Return what each rank gave to one, in a call that all ranks come to."""
        given = [part.copy() for part in parts]
        for part in given:
            part.flags.writeable = False
        with self._changed:
            shared = self._met(rank, call, given, "exchange", timeout_s)
            self.exchanged_bytes += sum(len(p) for r, p in enumerate(given) if r != rank)
            return [shared[r][rank] for r in range(self.size)]

    def _met(
        self, rank: int, call: int, part: _Part, what: str, timeout_s: float
    ) -> dict[int, _Part]:
        """Return what all ranks brought to a call, by rank; the last to leave removes it."""
        shared: _Call[_Part] = self._calls.setdefault(call, _Call(what))
        if self._failure is not None:
            raise self._failed(shared, timeout_s, is_late=False)
        shared.parts[rank] = part
        self._changed.notify_all()
        came = self._changed.wait_for(lambda: self._is_decided(shared), timeout_s)
        if len(shared.parts) < self.size:
            raise self._failed(shared, timeout_s, is_late=not came)
        shared.taken += 1
        if shared.taken == self.size:
            del self._calls[call]
        return shared.parts

    def _is_decided(self, shared: _Call[_Part]) -> bool:
        if len(shared.parts) == self.size or self._failure is not None:
            return True
        return any(rank not in shared.parts for rank in self.gone)

    def _failed(
        self, shared: _Call[_Part], timeout_s: float, *, is_late: bool
    ) -> CoordinationError:
        if self._failure is None:
            code = ErrorCode.TIMEOUT if is_late else ErrorCode.RANK_LOST
            absent = [rank for rank in range(self.size) if rank not in shared.parts]
            missing = absent if is_late else [rank for rank in absent if rank in self.gone]
            why = f"did not come within {timeout_s:g} s" if is_late else "is gone"
            text = f"no {shared.what} of {self.size} ranks: {_named(missing)} {why}"
            self._failure = CoordinationError(text, ranks=missing, code=code)
            self._changed.notify_all()
        known = self._failure  # each rank raises one of its own: a traceback is not shared
        return CoordinationError(known.message, ranks=known.ranks, code=known.code)

    def put(self, key: str, value: bytes) -> None:
        """Keep a value; what the protocol only asks for is checked here."""
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise InvalidArgumentError(f"a key is printable ASCII without spaces, got {key!r}")
        with self._changed:
            if key in self.values:
                raise InvalidArgumentError(f"there is a value under {key!r} already")
            self.values[key] = bytes(value)
            self.bytes_put.append((key, len(value)))
            self._changed.notify_all()

    def take(self, rank: int, key: str, timeout_s: float) -> bytes | None:
        """Return a value, waiting for it; not for ranks that are all gone."""
        with self._changed:
            self._changed.wait_for(
                lambda: key in self.values or len(self.gone | {rank}) == self.size, timeout_s
            )
            value = self.values.get(key)
            if value is not None:
                self.bytes_taken.append((key, len(value)))
            return value

    def forget(self, key: str) -> None:
        """Drop a value."""
        with self._changed:
            self.values.pop(key, None)


class _End:
    """One rank's end of a group of threads (see `Coordinator`)."""

    def __init__(self, board: _Board, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._board = board
        self._calls = 0

    def describe(self, rank: int) -> str:
        return f"rank {rank}"

    def total(self, values: Ints, *, timeout_s: float) -> Ints:
        self._calls += 1
        return self._board.total(self.rank, self._calls, values, timeout_s)

    def exchange(self, parts: Sequence[Bytes], *, timeout_s: float) -> list[Bytes]:
        self._calls += 1
        return self._board.exchange(self.rank, self._calls, parts, timeout_s)

    def put(self, key: str, value: bytes) -> None:
        self._board.put(key, value)

    def take(self, key: str, *, timeout_s: float) -> bytes | None:
        return self._board.take(self.rank, key, timeout_s)

    def forget(self, key: str) -> None:
        self._board.forget(key)


def _under(counted: list[tuple[str, int]], prefix: str) -> int:
    return sum(nbytes for key, nbytes in counted if key.startswith(prefix))


def _named(ranks: list[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks)
