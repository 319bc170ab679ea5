"""Values of any size under the keys of a c10d store, and waits for them that always end.

A call to such a store cannot be interrupted and blocks for as long as the process that hosts the
store is silent.  So every call is made on a thread of its own, and what the caller waits for is
that thread.  And a c10d client serves one call at a time: a client that somebody waits with is of
no use to anybody else.  So nothing here waits *in* the store; it asks, with growing pauses,
whether a key is there.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from typing import Any, TypeAlias, TypeVar

from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore, Store

from bcpformat.errors import CoordinationError, ErrorCode

_Result = TypeVar("_Result")
# Any: each call has a result of its own type, and `_Line.begin` gives it back as that type.
_Call: TypeAlias = tuple[Callable[[], Any], "Future[Any]"]

_LENGTH_BYTES = 8
_INLINE_BYTES = 64 << 10
_PIECE_BYTES = 1 << 20  # TCPStore refuses more than 8 MiB; small pieces let other calls between
_BLOCK_KEYS = 16 << 10  # TCPStore refuses to be asked for more than 128 Ki keys at once

_LAST_CALL_S = 5.0  # how long the end of a mailbox waits for a call that has begun
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.25
_PAUSE_PER_RANK_S = 0.0002  # all ranks together ask at most 5000 times a second


class Mailbox:
    """The values of one group of ranks in a c10d store, on a client of its own.

    Thread safety: all methods may be called from any thread.

    Attributes:
        client: The client, below the prefix.  It is cloned where the store can be, so that no
            call of anybody else stands in the way.
    """

    def __init__(self, store: Store, prefix: str, *, size: int, answer_s: float) -> None:
        """Connect to the store.

        Args:
            store: That of the group.
            prefix: Stands before every key.
            size: Ranks that use the store at the same time.
            answer_s: How long the store may take to answer one call.

        Raises:
            CoordinationError: The store does not answer (``E_RANK_LOST``).
        """
        self._answer_s = answer_s
        self._longest_pause_s = max(_LONGEST_PAUSE_S, size * _PAUSE_PER_RANK_S)
        self._line = _Line()
        self._lost: str | None = None
        self.client = self._ask(lambda: PrefixStore(prefix, _cloned(store)))

    @property
    def is_lost(self) -> bool:
        """Whether a call has failed; then all that follow fail at once."""
        return self._lost is not None

    def put(self, key: str, value: bytes) -> None:
        """Publish a value (see `Coordinator.put`).

        Raises:
            CoordinationError: The store does not answer (``E_RANK_LOST``), here and below.
        """
        head = len(value).to_bytes(_LENGTH_BYTES, "little")
        if len(value) <= _INLINE_BYTES:
            self.set(key, head + value)
            return
        for number in range(_count(len(value))):
            start = number * _PIECE_BYTES
            self.set(_piece_key(key, number), value[start : start + _PIECE_BYTES])
        self.set(key, head)  # last: whoever sees it sees all

    def take(self, key: str, *, timeout_s: float) -> bytes | None:
        """Return a value, waiting for it (see `Coordinator.take`)."""
        if not self.until(lambda: self.has([key]), timeout_s=timeout_s):
            return None
        nbytes, value = self._opened(key)
        if nbytes <= _INLINE_BYTES:
            return value
        return b"".join(self.get(_piece_key(key, number)) for number in range(_count(nbytes)))

    def forget(self, key: str) -> None:
        """Remove a value (see `Coordinator.forget`)."""
        if not self.has([key]):
            return
        nbytes, _ = self._opened(key)
        self.delete(key)
        if nbytes > _INLINE_BYTES:
            for number in range(_count(nbytes)):
                self.delete(_piece_key(key, number))

    def _opened(self, key: str) -> tuple[int, bytes]:
        head = self.get(key)
        return int.from_bytes(head[:_LENGTH_BYTES], "little"), head[_LENGTH_BYTES:]

    # ---- short values, as the store has them -----------------------------------------------

    def set(self, key: str, value: bytes) -> None:
        """Set a key to at most 8 MiB."""
        self._ask(lambda: self._set(key, value))

    def get(self, key: str) -> bytes:
        """Return what a key is set to; it must be."""
        return self._ask(lambda: self.client.get(key))

    def delete(self, key: str) -> None:
        """Remove a key, if it is there."""
        self._ask(lambda: self.client.delete_key(key))

    def has(self, keys: Sequence[str]) -> bool:
        """Return whether all of these keys are set."""
        asked = list(keys)
        return self._ask(lambda: self.client.check(asked))

    def absent(self, keys: Sequence[str]) -> list[int]:
        """Return which of these keys are not set, by position, with few questions if few are."""
        found: list[int] = []
        spans = [(a, min(a + _BLOCK_KEYS, len(keys))) for a in range(0, len(keys), _BLOCK_KEYS)]
        while spans:
            low, high = spans.pop()
            if self.has(keys[low:high]):
                continue
            if high - low == 1:
                found.append(low)
            else:
                middle = (low + high) // 2
                spans += [(low, middle), (middle, high)]
        return sorted(found)

    def until(self, is_ready: Callable[[], bool], *, timeout_s: float) -> bool:
        """Ask until the answer is yes; return whether it came in time.

        At least one question is asked.  The pauses grow with the time waited, to at most a
        quarter of a second, or more where thousands of ranks ask.
        """
        start = time.monotonic()
        while not is_ready():
            waited = time.monotonic() - start
            if waited >= timeout_s:
                return False
            pause = min(max(waited / 8, _FIRST_PAUSE_S), self._longest_pause_s)
            time.sleep(min(pause, timeout_s - waited))
        return True

    def post(self, key: str, value: bytes | None) -> None:
        """Set a key, or remove it if None, without waiting and whatever becomes of it."""
        if self._lost is not None:
            return
        if value is None:
            self._line.begin(lambda: self.client.delete_key(key))
        else:
            self._line.begin(lambda: self._set(key, value))

    def _set(self, key: str, value: bytes) -> None:
        # The stub says str; bytes are what the store keeps, and what it gives back.
        self.client.set(key, value)  # type: ignore[arg-type]

    def perform(self, call: Callable[[], _Result], *, timeout_s: float) -> _Result:
        """Make a long call that uses the client where no other call does.

        Raises:
            TimeoutError: It did not return in time; the client is lost.
            RuntimeError: What it raised.
        """
        return self._wait(self._line.begin(call), timeout_s)

    def _ask(self, call: Callable[[], _Result]) -> _Result:
        if self._lost is not None:
            raise _store_lost(self._lost)
        try:
            return self._wait(self._line.begin(call), self._answer_s)
        except (TimeoutError, RuntimeError) as error:  # whatever c10d raises is a RuntimeError
            self._lost = str(error).partition("\n")[0]
            raise _store_lost(self._lost) from error

    def _wait(self, answer: Future[_Result], timeout_s: float) -> _Result:
        try:
            return answer.result(timeout_s)
        except TimeoutError:
            self._lost = f"no answer within {timeout_s:g} s"
            raise TimeoutError(self._lost) from None


def _store_lost(what: str) -> CoordinationError:
    text = (
        f"the store of the process group does not answer ({what}): see whether the process that "
        "hosts it lives, which is that of rank 0 or the launcher"
    )
    return CoordinationError(text, code=ErrorCode.RANK_LOST)


def _cloned(store: Store) -> Store:
    """Return another client of the same store, or the same one where it cannot be cloned."""
    try:
        # The stub lacks it; every store of torch 2.13 has it.
        return store.clone()  # type: ignore[attr-defined,no-any-return]
    except DistError:  # it can be, and there is no answer
        raise
    except (AttributeError, RuntimeError):  # a store written in Python, or an older torch
        return store


def _count(nbytes: int) -> int:
    return -(-nbytes // _PIECE_BYTES)


def _piece_key(key: str, number: int) -> str:
    return f"{key} {number}"  # no key has a space


class _Line:
    """A thread that makes calls one after the other; it ends with this object."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        # A daemon: a call that never returns must not keep the process.
        self._thread = Thread(
            target=_serve, args=(self._calls,), name="bcpformat-store", daemon=True
        )
        self._thread.start()
        # At exit too: a thread that comes back from a call into an interpreter that is gone
        # aborts the process.
        weakref.finalize(self, _end, self._calls, self._thread)

    def begin(self, call: Callable[[], _Result]) -> Future[_Result]:
        """Have a call made after those before it."""
        answer: Future[_Result] = Future()
        if self._thread.is_alive():
            self._calls.put((call, answer))
        else:  # the interpreter is about to exit
            _make(call, answer)
        return answer


def _end(calls: SimpleQueue[_Call | None], thread: Thread) -> None:
    """End the thread of a line after the call it is in; nobody waits for those that follow."""
    with suppress(Empty):
        while True:
            calls.get_nowait()
    calls.put(None)
    if thread is not current_thread():
        thread.join(_LAST_CALL_S)


def _serve(calls: SimpleQueue[_Call | None]) -> None:
    while (item := calls.get()) is not None:
        _make(*item)
        del item  # or the last value lives until the next call


def _make(call: Callable[[], Any], answer: Future[Any]) -> None:
    try:
        answer.set_result(call())
    except Exception as error:  # noqa: BLE001  # goes to the thread that waits
        answer.set_exception(error)
