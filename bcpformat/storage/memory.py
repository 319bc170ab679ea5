"""A store in this process's memory."""

from __future__ import annotations

import builtins
import threading
from types import TracebackType

from bcpformat.errors import ObjectExistsError, ObjectNotFoundError, StateError
from bcpformat.model.closing import Closing
from bcpformat.storage.arguments import (
    byte_view,
    check_alignment,
    check_finish,
    check_key,
    check_prefix,
    check_range,
    check_read,
)
from bcpformat.storage.store import ObjectInfo, ReadableBytes, WritableBytes


class _Objects:
    """The objects of one store and all its children, by full key, under one lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_key: dict[str, _Object] = {}


class _Object:
    """The content of one object; a deleted one lives on in those that hold it open."""

    def __init__(self, data: bytes) -> None:
        self.data = data


class MemoryStore:
    """A store that is gone when the process is; a location like any other.

    Thread safety: every method may run in many threads.

    Example:
        >>> store = MemoryStore()
        >>> store.put_if_absent("data/x", b"abc")
        >>> store.read("data/x", offset_bytes=1), store.children()
        (b'bc', ['data'])
    """

    def __init__(self) -> None:
        self._objects = _Objects()
        self._prefix = ""

    def describe(self) -> str:
        """Return the store's place in words, for messages."""
        return f"memory/{self._prefix}".rstrip("/")

    def open_reader(self, key: str, *, direct: bool) -> MemoryReader:
        """Open an object for reading; `direct` makes no difference."""
        return MemoryReader(key, self._find(key).data)

    def read(self, key: str, *, offset_bytes: int = 0, nbytes: int | None = None) -> bytes:
        """Return up to `nbytes` bytes of an object, all that follow if None."""
        data = self._find(key).data
        check_read(offset_bytes, nbytes)
        return data[offset_bytes : None if nbytes is None else offset_bytes + nbytes]

    def create(self, key: str, *, nbytes_hint: int | None) -> MemoryWriter:
        """Create an object that must not exist and return its writer; it is empty until then."""
        created = self._add(key, b"")
        return MemoryWriter(key, self._full(key), created, self._objects)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Publish an object atomically; never replace one."""
        self._add(key, bytes(data))

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        """Return every object whose key starts with `prefix`, sorted by key."""
        check_prefix(prefix)
        full, skip = self._prefix + prefix, len(self._prefix)
        with self._objects.lock:
            found = [
                (k, len(o.data)) for k, o in self._objects.by_key.items() if k.startswith(full)
            ]
        return [ObjectInfo(key[skip:], nbytes) for key, nbytes in sorted(found)]

    def delete(self, key: str) -> None:
        """Remove an object."""
        full = self._full(key)
        with self._objects.lock:
            if self._objects.by_key.pop(full, None) is None:
                raise self._missing(key)

    def sync(self) -> None:
        """Do nothing: memory has no names to make durable."""

    def child(self, prefix: str) -> MemoryStore:
        """Return the store of the keys below ``prefix + "/"``, over the same objects."""
        child = MemoryStore()
        child._objects = self._objects
        child._prefix = self._full(prefix) + "/"
        return child

    def children(self) -> builtins.list[str]:
        """Return the names of the immediate sub-stores, sorted."""
        return sorted({i.key.partition("/")[0] for i in self.list() if "/" in i.key})

    def _full(self, key: str) -> str:
        check_key(key)
        return self._prefix + key

    def _find(self, key: str) -> _Object:
        full = self._full(key)
        with self._objects.lock:
            found = self._objects.by_key.get(full)
        if found is None:
            raise self._missing(key)
        return found

    def _add(self, key: str, data: bytes) -> _Object:
        full, added = self._full(key), _Object(data)
        with self._objects.lock:
            if self._objects.by_key.setdefault(full, added) is not added:
                raise ObjectExistsError(
                    f"expected no object {key!r} in {self.describe()!r}, found one", key=key
                )
        return added

    def _missing(self, key: str) -> ObjectNotFoundError:
        return ObjectNotFoundError(f"no object {key!r} in {self.describe()!r}", key=key)


class MemoryReader(Closing):
    """An object of a `MemoryStore`, as it was when it was opened."""

    alignment = 1

    def __init__(self, key: str, data: bytes) -> None:
        self.key = key
        self.nbytes = len(data)
        self._data: bytes | None = data

    def read_into(self, offset_bytes: int, out: WritableBytes) -> int:
        """Fill `out` with the object's bytes from `offset_bytes` on."""
        view = byte_view(out, writable=True)
        data = self._open_data()
        check_alignment(offset_bytes, view, alignment=1)
        check_range(
            self.key,
            nbytes=self.nbytes,
            offset_bytes=offset_bytes,
            wanted_bytes=len(view),
            alignment=1,
        )
        view[:] = memoryview(data)[offset_bytes : offset_bytes + len(view)]
        return len(view)

    def map(self) -> memoryview | None:
        """Return the whole object as read-only memory."""
        return memoryview(self._open_data())

    def close(self) -> None:
        """Release the object; a second call does nothing."""
        self._data = None

    def _open_data(self) -> bytes:
        data = self._data
        if data is None:
            raise StateError(f"object {self.key!r} is closed")
        return data


class MemoryWriter:
    """An object of a `MemoryStore` being created; others see it empty until `finish`."""

    alignment = 1

    def __init__(self, key: str, full_key: str, created: _Object, objects: _Objects) -> None:
        self.key = key
        self._full_key = full_key
        self._created = created
        self._objects = objects
        self._lock = threading.Lock()
        self._buffer: bytearray | None = bytearray()

    def write_at(self, offset_bytes: int, data: ReadableBytes) -> None:
        """Write all of `data` at `offset_bytes`."""
        view = byte_view(data, writable=False)
        check_alignment(offset_bytes, view, alignment=1)
        with self._lock:
            buffer = self._open_buffer()
            if len(view) == 0:
                return
            end = offset_bytes + len(view)
            if end > len(buffer):
                buffer.extend(bytes(end - len(buffer)))
            buffer[offset_bytes:end] = view

    def finish(self, nbytes: int) -> None:
        """Cut the object to `nbytes` and show it."""
        with self._lock:
            buffer = self._open_buffer()
            check_finish(self.key, nbytes=nbytes, end_bytes=len(buffer))
            self._created.data = bytes(memoryview(buffer)[:nbytes])
            self._buffer = None

    def abort(self) -> None:
        """Remove the object; after `finish` or `abort` this does nothing."""
        with self._lock:
            if self._buffer is None:
                return
            self._buffer = None
        with self._objects.lock:
            if self._objects.by_key.get(self._full_key) is self._created:
                del self._objects.by_key[self._full_key]

    def _open_buffer(self) -> bytearray:
        if self._buffer is None:
            raise StateError(f"the writer of object {self.key!r} is finished or aborted")
        return self._buffer

    def __enter__(self) -> MemoryWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()
