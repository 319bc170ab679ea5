"""A store that remembers every operation and fails at one of them.

It shows two things a round trip cannot: what was asked of the storage (a right answer by a
wasteful route), and what is left when a save dies at any one of its operations.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from bcpformat.errors import StorageError
from bcpformat.model.closing import Closing
from bcpformat.storage.arguments import byte_view
from bcpformat.storage.buffers import AlignedBuffer
from bcpformat.storage.store import (
    ObjectInfo,
    ObjectReader,
    ObjectWriter,
    ReadableBytes,
    Store,
    WritableBytes,
)

Effect: TypeAlias = Literal["fail", "late", "short"]
"""What happens at the chosen operation.

``fail``: nothing, and the error is raised.  ``late``: the whole operation, and then the error
is raised, as when a reply is lost.  ``short``: half of its bytes, and nobody is told, as by a
lying device: the rest of a `write_at` is zero, `put_if_absent` publishes half, `read` and
`read_into` return half; `delete`, `sync` and `abort` do nothing, the others all they should.
"""

_Result = TypeVar("_Result")


class Operation(NamedTuple):
    """One call to a store; equal to the plain tuple.

    Attributes:
        op: The method's name, such as ``"write_at"``.
        key: The key or prefix, relative to the outermost store; ``""`` where there is none.
        offset_bytes: Where the range starts.
        nbytes: The range's size; for `read` what came back, for `finish` the final size, for
            what moves no bytes 0.
    """

    op: str
    key: str
    offset_bytes: int
    nbytes: int


class FaultyStore:
    """Any store, with every operation recorded and one of them spoiled.

    Operations are counted from 0 over the store, its children, readers and writers.

    Thread safety: as the inner store; the order of concurrent operations is that of arrival.

    Example:
        >>> from bcpformat.storage import MemoryStore
        >>> store = FaultyStore(MemoryStore(), fail_at=1)
        >>> store.put_if_absent("a", b"xyz")
        >>> store.put_if_absent("b", b"xyz")
        Traceback (most recent call last):
        bcpformat.errors.StorageError: injected fault at operation 1: put_if_absent 'b' [E_IO]
        >>> [info.key for info in store.list()]
        ['a']
        >>> store.operations[0] == ("put_if_absent", "a", 0, 3)
        True
    """

    def __init__(
        self,
        inner: Store,
        *,
        fail_at: int | None = None,
        error: BaseException | None = None,
        effect: Effect = "fail",
        crash: bool = False,
    ) -> None:
        """Wrap a store.

        Args:
            inner: The store that does the work.
            fail_at: The number of the operation to spoil, None for none.
            error: What is raised there; a StorageError if None.
            effect: What happens there.
            crash: The process is dead from there on: every later operation does nothing and
                raises too, so nothing is cleaned up.
        """
        self._inner = inner
        self._prefix = ""
        self._trace = _Trace(fail_at=fail_at, error=error, effect=effect, crash=crash)

    @property
    def operations(self) -> builtins.list[Operation]:
        """Every operation so far, in order, the spoiled one included."""
        return self._trace.operations

    @property
    def reads(self) -> builtins.list[tuple[str, int, int]]:
        """Key, offset and size in bytes of every `read` and `read_into`, in order."""
        return [o[1:] for o in self.operations if o.op in ("read", "read_into")]

    @property
    def bytes_read(self) -> int:
        """Bytes asked for by `read_into` or returned by `read`; mapped views do not count."""
        return sum(nbytes for _, _, nbytes in self.reads)

    @property
    def bytes_written(self) -> int:
        """Bytes given to `write_at` and `put_if_absent`."""
        return sum(o.nbytes for o in self.operations if o.op in ("write_at", "put_if_absent"))

    def describe(self) -> str:
        """Return the inner store's place; not an operation."""
        return self._inner.describe()

    def open_reader(self, key: str, *, direct: bool) -> ObjectReader:
        """Open an object for reading."""
        reader = self._do("open_reader", key, lambda: self._inner.open_reader(key, direct=direct))
        return _Reader(reader, self._prefix + key, self._trace)

    def read(self, key: str, *, offset_bytes: int = 0, nbytes: int | None = None) -> bytes:
        """Return up to `nbytes` bytes of an object, all that follow if None."""
        return self._trace.read(
            self._prefix + key,
            offset_bytes,
            lambda: self._inner.read(key, offset_bytes=offset_bytes, nbytes=nbytes),
        )

    def create(self, key: str, *, nbytes_hint: int | None) -> ObjectWriter:
        """Create an object that must not exist and return its writer."""
        writer = self._do("create", key, lambda: self._inner.create(key, nbytes_hint=nbytes_hint))
        return _Writer(writer, self._prefix + key, self._trace)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Publish an object; a short one has half of its bytes."""
        self._do(
            "put_if_absent",
            key,
            lambda: self._inner.put_if_absent(key, data),
            nbytes=len(data),
            short=lambda: self._inner.put_if_absent(key, data[: len(data) // 2]),
        )

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        """Return every object whose key starts with `prefix`, sorted by key."""
        return self._do("list", prefix, lambda: self._inner.list(prefix))

    def delete(self, key: str) -> None:
        """Remove an object; a short call removes nothing."""
        self._do("delete", key, lambda: self._inner.delete(key), short=_nothing)

    def sync(self) -> None:
        """Make every created name durable; a short call does nothing."""
        self._do("sync", "", self._inner.sync, short=_nothing)

    def child(self, prefix: str) -> FaultyStore:
        """Return the store below a prefix; it shares the record and the fault."""
        child = FaultyStore(self._inner.child(prefix))
        child._prefix = f"{self._prefix}{prefix}/"
        child._trace = self._trace
        return child

    def children(self) -> builtins.list[str]:
        """Return the names of the immediate sub-stores, sorted."""
        return self._do("children", "", self._inner.children)

    def _do(
        self,
        op: str,
        key: str,
        act: Callable[[], _Result],
        *,
        nbytes: int = 0,
        short: Callable[[], _Result] | None = None,
    ) -> _Result:
        return self._trace.do(Operation(op, self._prefix + key, 0, nbytes), act, short or act)


class _Trace:
    """The record and the fault, shared by a store and all that it opened."""

    def __init__(
        self, *, fail_at: int | None, error: BaseException | None, effect: Effect, crash: bool
    ) -> None:
        self.operations: list[Operation] = []
        self._fail_at = fail_at
        self._error = error
        self._effect = effect
        self._crash = crash
        self._lock = threading.Lock()

    def do(
        self, operation: Operation, act: Callable[[], _Result], short: Callable[[], _Result]
    ) -> _Result:
        """Record an operation and let it happen, or what the fault makes of it."""
        return self._perform(self._record(operation), act, short)

    def read(self, key: str, offset_bytes: int, act: Callable[[], bytes]) -> bytes:
        """Record a read of a size that only the answer tells."""
        number = self._record(Operation("read", key, offset_bytes, 0))
        data = self._perform(number, act, lambda: _first_half(act()))
        self.operations[number] = Operation("read", key, offset_bytes, len(data))
        return data

    def _record(self, operation: Operation) -> int:
        with self._lock:
            self.operations.append(operation)
            return len(self.operations) - 1

    def _perform(
        self, number: int, act: Callable[[], _Result], short: Callable[[], _Result]
    ) -> _Result:
        fail_at = self._fail_at
        if fail_at is None or number < fail_at or (number > fail_at and not self._crash):
            return act()
        if number == fail_at and self._effect == "late":
            act()
        if number == fail_at and self._effect == "short":
            result = short()
            if not self._crash:
                return result
        raise self._fault(self.operations[fail_at], fail_at)

    def _fault(self, spoiled: Operation, number: int) -> BaseException:
        if self._error is not None:
            return self._error
        return StorageError(
            f"injected fault at operation {number}: {spoiled.op} {spoiled.key!r}", key=spoiled.key
        )


class _Reader(Closing):
    """A reader whose operations are recorded."""

    def __init__(self, inner: ObjectReader, full_key: str, trace: _Trace) -> None:
        self._inner = inner
        self._full_key = full_key
        self._trace = trace

    @property
    def key(self) -> str:
        return self._inner.key

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes

    @property
    def alignment(self) -> int:
        return self._inner.alignment

    def read_into(self, offset_bytes: int, out: WritableBytes) -> int:
        view = byte_view(out, writable=True)
        half = len(view) // 2 // self.alignment * self.alignment
        return self._trace.do(
            Operation("read_into", self._full_key, offset_bytes, len(view)),
            lambda: self._inner.read_into(offset_bytes, view),
            lambda: self._inner.read_into(offset_bytes, view[:half]),
        )

    def map(self) -> memoryview | None:
        return self._trace.do(
            Operation("map", self._full_key, 0, self.nbytes), self._inner.map, self._inner.map
        )

    def close(self) -> None:
        self._inner.close()


class _Writer:
    """A writer whose operations are recorded."""

    def __init__(self, inner: ObjectWriter, full_key: str, trace: _Trace) -> None:
        self._inner = inner
        self._full_key = full_key
        self._trace = trace
        self._over = False

    @property
    def key(self) -> str:
        return self._inner.key

    @property
    def alignment(self) -> int:
        return self._inner.alignment

    def write_at(self, offset_bytes: int, data: ReadableBytes) -> None:
        view = byte_view(data, writable=False)
        half = len(view) // 2 // self.alignment * self.alignment
        self._trace.do(
            Operation("write_at", self._full_key, offset_bytes, len(view)),
            lambda: self._inner.write_at(offset_bytes, view),
            lambda: self._write_half(offset_bytes, view, half),
        )

    def _write_half(self, offset_bytes: int, view: memoryview, half: int) -> None:
        if len(view) == 0:
            return
        with AlignedBuffer(len(view)) as torn:
            torn.array[:half] = view[:half]
            self._inner.write_at(offset_bytes, torn.array)

    def finish(self, nbytes: int) -> None:
        self._trace.do(
            Operation("finish", self._full_key, 0, nbytes),
            lambda: self._inner.finish(nbytes),
            lambda: self._inner.finish(nbytes),
        )
        self._over = True

    def abort(self) -> None:
        if self._over:
            return
        self._over = True
        self._trace.do(Operation("abort", self._full_key, 0, 0), self._inner.abort, _nothing)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()


def _nothing() -> None:
    pass


def _first_half(data: bytes) -> bytes:
    return data[: len(data) // 2]
