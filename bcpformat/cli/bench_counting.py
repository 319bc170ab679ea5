"""Counting what is read: what a store is asked for, and what the kernel says."""

from __future__ import annotations

import builtins
import os
import threading

from bcpformat.model.closing import Closing
from bcpformat.storage import ObjectInfo, ObjectReader, ObjectWriter, Store, WritableBytes


class CountingStore:
    """Any store, with the ranges of all reads recorded.

    Thread safety: as the inner store.

    Example:
        >>> from bcpformat.storage import MemoryStore
        >>> store = CountingStore(MemoryStore())
        >>> store.put_if_absent("a", b"xyz")
        >>> store.read("a", offset_bytes=1), store.reads, store.bytes_read
        (b'yz', [('a', 1, 2)], 2)
    """

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._reads: builtins.list[tuple[str, int, int]] = []

    @property
    def reads(self) -> builtins.list[tuple[str, int, int]]:
        """Key, offset and size in bytes of every read, in order of arrival."""
        with self._lock:
            return builtins.list(self._reads)

    @property
    def bytes_read(self) -> int:
        """Bytes of all reads."""
        return sum(nbytes for _, _, nbytes in self.reads)

    def note(self, key: str, offset_bytes: int, nbytes: int) -> None:
        """Record a read."""
        with self._lock:
            self._reads.append((key, offset_bytes, nbytes))

    def describe(self) -> str:
        """Return the inner store's place."""
        return self._inner.describe()

    def open_reader(self, key: str, *, direct: bool) -> ObjectReader:
        """Open an object; what its reader reads is recorded."""
        return _Reader(self._inner.open_reader(key, direct=direct), self)

    def read(self, key: str, *, offset_bytes: int = 0, nbytes: int | None = None) -> bytes:
        """Return up to `nbytes` bytes of an object, all that follow if None."""
        data = self._inner.read(key, offset_bytes=offset_bytes, nbytes=nbytes)
        self.note(key, offset_bytes, len(data))
        return data

    def create(self, key: str, *, nbytes_hint: int | None) -> ObjectWriter:
        """Create an object."""
        return self._inner.create(key, nbytes_hint=nbytes_hint)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Publish an object."""
        self._inner.put_if_absent(key, data)

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        """Return every object whose key starts with `prefix`, sorted by key."""
        return self._inner.list(prefix)

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._inner.delete(key)

    def sync(self) -> None:
        """Make every created name durable."""
        self._inner.sync()

    def child(self, prefix: str) -> Store:
        """Return the store below a prefix; what it reads is not recorded."""
        return self._inner.child(prefix)

    def children(self) -> builtins.list[str]:
        """Return the names of the immediate sub-stores, sorted."""
        return self._inner.children()


class _Reader(Closing):
    """A reader whose reads are recorded."""

    def __init__(self, inner: ObjectReader, store: CountingStore) -> None:
        self._inner = inner
        self._store = store

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
        count = self._inner.read_into(offset_bytes, out)
        self._store.note(self.key, offset_bytes, count)
        return count

    def map(self) -> memoryview | None:
        return self._inner.map()

    def close(self) -> None:
        self._inner.close()


def kernel_bytes_read() -> int | None:
    """Return the bytes this process has read by system calls, None where nobody counts them."""
    if not os.path.exists("/proc/self/io"):
        return None
    with open("/proc/self/io", "rb") as file:
        for line in file:
            name, _, value = line.partition(b":")
            if name == b"rchar":
                return int(value)
    return None
