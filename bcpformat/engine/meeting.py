"""The ranks of one save or read: one id, one outcome, and nobody waits for ever."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from bcpformat.engine.coordinator import Coordinator
from bcpformat.engine.failure import decode_failure, encode_failure
from bcpformat.engine.memory import Bytes
from bcpformat.errors import BcpError, CoordinationError, ErrorCode
from bcpformat.model.manifest import Ints, ints

LOG = logging.getLogger("bcpformat")
PATIENCE_S = 30.0
"""A wait that takes longer is logged, with whom it is for."""

HEARING_S, FAILED_S = 10.0, 2.0
"""How long whoever tells the outcome waits until all have heard it, if it is a good one or not."""

_ID_WORDS = 8
_DONE, _FAILED = b"\0", b"\1"


class StoppedError(CoordinationError):
    """This rank has stopped because others failed; `Meeting.settle` raises what they failed with.

    Attributes:
        ranks: Those that failed.
    """

    def __init__(self, ranks: Sequence[int] = ()) -> None:
        named = ", ".join(f"rank {rank}" for rank in ranks) or "a rank"
        text = f"{named} failed, with which this rank read together"
        super().__init__(text, ranks=ranks, code=ErrorCode.RANK_LOST)


class Meeting:
    """One save or read of a group of ranks.

    Attributes:
        id: 16 bytes, the same on every rank and in no other meeting.
        rank: This rank's position in the group.
        size: Ranks in the group.
        timeout_s: How long each wait for other ranks may take.
    """

    def __init__(self, coordinator: Coordinator, identity: bytes, *, timeout_s: float) -> None:
        self._coordinator = coordinator
        self.id = identity
        self.rank = coordinator.rank
        self.size = coordinator.size
        self.timeout_s = timeout_s

    # ---- on the thread that all ranks call from --------------------------------------------

    def total(self, values: Ints) -> Ints:
        """Return the sum of all ranks' values."""
        return self._coordinator.total(values, timeout_s=self.timeout_s)

    def exchange(self, parts: Sequence[Bytes]) -> list[Bytes]:
        """Give every rank its part; return what each gave to this one."""
        return self._coordinator.exchange(parts, timeout_s=self.timeout_s)

    def settle(self, error: BaseException | None) -> None:
        """Raise on every rank what one of them failed with; every rank calls it.

        Args:
            error: What this rank failed with; a `StoppedError` does not count, as it only follows
                from the failure of another.

        Raises:
            BcpError: That of the lowest rank that failed.
        """
        own = None if isinstance(error, StoppedError) else error
        if int(self.total(ints([own is not None]))[0]):
            self.raise_first(own)
        elif error is not None:
            raise error

    def raise_first(self, error: BaseException | None) -> None:
        """Raise the error of the lowest rank that failed; every rank calls it, and one has one."""
        mine = np.zeros(self.size, dtype=np.int64)
        mine[self.rank] = error is not None
        failed = np.flatnonzero(self.total(mine)).tolist()
        if error is not None and self.rank == failed[0]:
            self.fail("failed", self.rank, error)
        if len(failed) > 1:
            LOG.error("ranks %s failed too", failed[1:])
        try:
            self.take("failed", failed[0])
        except BcpError as common:
            with suppress(CoordinationError):  # whoever failed must not end before all know it
                self.total(ints([0]))
                if self.rank == failed[0]:
                    self.forget("failed", self.rank)
            if error is None or isinstance(error, BcpError):
                raise common from error
        if error is not None:  # not ours: only this rank can raise it as it is
            raise error

    # ---- on any thread ---------------------------------------------------------------------

    def put(self, what: str, rank: int, data: bytes) -> None:
        """Publish something of, or for, one rank."""
        self._coordinator.put(self._key(what, rank), _DONE + data)

    def fail(self, what: str, rank: int, error: BaseException) -> None:
        """Publish an error of this rank in its place: whoever takes it raises it."""
        record = encode_failure(self.rank, error, size=self.size)
        self._coordinator.put(self._key(what, rank), _FAILED + record)

    def take(
        self,
        what: str,
        rank: int,
        *,
        source: int | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """Return what was published, waiting for it.

        Args:
            what: Its kind.
            rank: Whose it is.
            source: The rank that publishes it, if it is another.
            timeout_s: How long to wait, if not as long as for anything else.

        Raises:
            CoordinationError: It did not come in time; the message names the rank.
            BcpError: An error was published in its place.
        """
        source = rank if source is None else source
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        data = self._wait(what, rank, time.monotonic() + timeout_s)
        if data is None:
            raise self._missing(what, [source], timeout_s)
        return data

    def take_all(self, what: str) -> Iterator[tuple[int, bytes]]:
        """Yield what every rank published, by rank; all of it comes within one time-out.

        Raises:
            CoordinationError: Some of it did not come; the message names the ranks.
            BcpError: A rank published an error.
        """
        deadline = time.monotonic() + self.timeout_s
        for rank in range(self.size):
            data = self._wait(what, rank, deadline)
            if data is None:
                late = [r for r in range(rank, self.size) if self._peek(what, r) is None]
                raise self._missing(what, late or [rank], self.timeout_s)
            yield rank, data
            self.forget(what, rank)

    def announce(self, data: bytes | BaseException) -> None:
        """Tell all ranks the outcome, and wait a little until they have heard it.

        The process that tells it may host what it is told through, and end soon.
        """
        with suppress(CoordinationError):  # whoever hears nothing looks at the store
            if isinstance(data, BaseException):
                self.fail("outcome", self.rank, data)
            else:
                self.put("outcome", self.rank, data)
            deadline = time.monotonic() + (HEARING_S if isinstance(data, bytes) else FAILED_S)
            others = [rank for rank in range(self.size) if rank != self.rank]
            if all(self._wait("heard", rank, deadline) is not None for rank in others):
                self.forget("outcome", self.rank)
            for rank in others:
                self.forget("heard", rank)

    def outcome(self, lead: int) -> bytes:
        """Return the outcome that another rank tells.

        Raises:
            BcpError: That is what it tells; `.rank` says whose it is.
            CoordinationError: It tells nothing; `.rank` is None.
        """
        try:
            # the lead itself may wait one time-out for the others
            return self.take("outcome", lead, timeout_s=2 * self.timeout_s)
        finally:
            with suppress(CoordinationError):
                self.put("heard", self.rank, b"")

    def forget(self, what: str, rank: int) -> None:
        """Remove what nobody will take any more."""
        self._coordinator.forget(self._key(what, rank))

    def _key(self, what: str, rank: int) -> str:
        return f"{self.id.hex()}/{what}/{rank}"

    def _wait(self, what: str, rank: int, deadline: float) -> bytes | None:
        key = self._key(what, rank)
        left = max(0.0, deadline - time.monotonic())
        record = self._coordinator.take(key, timeout_s=min(left, PATIENCE_S))
        if record is None and left > PATIENCE_S:
            LOG.warning("waiting for the %s of rank %d since %.0f s", what, rank, PATIENCE_S)
            record = self._coordinator.take(key, timeout_s=left - PATIENCE_S)
        return None if record is None else self._opened(record)

    def _peek(self, what: str, rank: int) -> bytes | None:
        return self._coordinator.take(self._key(what, rank), timeout_s=0.0)

    @staticmethod
    def _opened(record: bytes) -> bytes:
        if record[:1] == _FAILED:
            raise decode_failure(record[1:])
        return record[1:]

    def _missing(self, what: str, ranks: list[int], waited_s: float) -> CoordinationError:
        describe = self._coordinator.describe
        named = ", ".join(map(describe, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
        text = (
            f"{describe(self.rank)} waited {waited_s:g} s for the {what} of {named}, "
            "which did not come: see whether that process lives, or raise timeout_s"
        )
        return CoordinationError(text, ranks=ranks)


def convene(
    coordinator: Coordinator,
    prepare: Callable[[], Ints],
    *,
    width: int,
    timeout_s: float,
) -> tuple[Meeting, Ints]:
    """Begin a save or read: agree on its id, and sum numbers of all ranks, in one exchange.

    Args:
        coordinator: This rank's end of the group.
        prepare: What may fail on this rank alone, such as a state that has no form; returns this
            rank's numbers.
        width: How many numbers that is, the same on every rank.
        timeout_s: How long each wait for other ranks may take.

    Returns:
        The meeting, and the sums, shape `(width,)`.

    Raises:
        BcpError: `prepare` failed on some rank: every rank raises the error of the lowest.
        CoordinationError: A rank did not come.
    """
    error: BaseException | None = None
    words = np.zeros(_ID_WORDS + 1 + width, dtype=np.int64)
    if coordinator.rank == 0:
        words[:_ID_WORDS] = np.frombuffer(os.urandom(16), dtype="<u2")
    try:
        words[_ID_WORDS + 1 :] = prepare()
    except BaseException as caught:  # noqa: BLE001  # raised below, on every rank
        error = caught
        words[_ID_WORDS] = 1
    if coordinator.size == 1 and error is not None:
        raise error
    sums = coordinator.total(words, timeout_s=timeout_s)
    identity = sums[:_ID_WORDS].astype("<u2").tobytes()
    meeting = Meeting(coordinator, identity, timeout_s=timeout_s)
    if int(sums[_ID_WORDS]):
        meeting.raise_first(error)
    return meeting, sums[_ID_WORDS + 1 :]


WORD_BITS = 20
"""Numbers that are compared have at most so many bits: the sum of 2^23 squares is below 2^63."""


def words_of(digest: bytes) -> list[int]:
    """Return 40 bits of a digest or an id as two numbers to compare.

    Args:
        digest: At least 5 bytes.

    Example:
        >>> words_of(bytes([1, 0, 16, 0, 0]))
        [1, 1]
    """
    bits = int.from_bytes(digest[:5], "little")
    return [bits & (1 << WORD_BITS) - 1, bits >> WORD_BITS]


def with_squares(values: Sequence[int]) -> list[int]:
    """Return numbers and their squares, to be summed over all ranks.

    Args:
        values: Below 2^20.
    """
    return [*values, *(value * value for value in values)]


def are_equal(sums: Sequence[int], size: int) -> list[bool]:
    """Return for each of the numbers of `with_squares` whether all ranks have the same.

    The mean of squares is the square of the mean if and only if all values are equal.

    Args:
        sums: The numbers, summed over all ranks.
        size: Ranks.

    Example:
        >>> are_equal([2 + 2, 3 + 4, 4 + 4, 9 + 16], 2)
        [True, False]
    """
    half = len(sums) // 2
    pairs = zip(sums[:half], sums[half:], strict=True)
    return [total * total == size * squares for total, squares in pairs]


def together(meeting: Meeting | None, error: BaseException | None) -> None:
    """Raise an error on every rank that reads or saves together, or just here if alone."""
    if meeting is not None:
        meeting.settle(error)
    elif error is not None:
        raise error


@contextmanager
def in_step(meeting: Meeting | None) -> Iterator[None]:
    """Raise on every rank what the body of the `with` fails with on one of them.

    Args:
        meeting: That of the ranks, all of which enter it; None: this one alone.

    Raises:
        BcpError: That of the lowest rank that failed.
    """
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        if meeting is None:
            raise
        failure = error
    together(meeting, failure)
