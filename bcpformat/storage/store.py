"""What a store is: keys to bytes, as protocols of a few methods.

A store knows nothing of checkpoints.  Objects are written once, by one writer, and never
replaced.  A key is relative and '/'-separated, such as ``"data/x.bcd"``; an empty prefix is
the whole store.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

DIRECT_ALIGNMENT_BYTES = 4096
"""What offsets, lengths and addresses are multiples of where the page cache is bypassed."""

ReadableBytes: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[np.generic]
"""C-contiguous memory of any item type that is read from."""

WritableBytes: TypeAlias = bytearray | memoryview | npt.NDArray[np.generic]
"""C-contiguous memory of any item type that is filled."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One entry of a listing.

    Attributes:
        key: The key, relative to the store that listed it.
        nbytes: Size in bytes; 0 for what is no regular object, such as a symbolic link or a FIFO.

    Example:
        >>> ObjectInfo("manifest.bcp", 64).nbytes
        64
    """

    key: str
    nbytes: int


class ObjectReader(Protocol):
    """One object, open for reading; a context manager.

    Thread safety: `read_into` may run in many threads; `close` waits for those that run.
    """

    @property
    def key(self) -> str:
        """The object's key."""
        ...

    @property
    def nbytes(self) -> int:
        """Size in bytes when it was opened."""
        ...

    @property
    def alignment(self) -> int:
        """4096 when offsets, lengths and addresses of `read_into` must be multiples, else 1.

        It never changes.
        """
        ...

    def read_into(self, offset_bytes: int, out: WritableBytes) -> int:
        """Fill `out` with the object's bytes from `offset_bytes` on.

        With an alignment of 4096, `out` may end after the object by less than 4096 bytes:
        then it is filled up to the object's end, and what follows is unspecified.

        Returns:
            The number of bytes filled.

        Raises:
            FormatError: The object ends before `out` does (E_TRUNCATED).
            InvalidArgumentError: Offset, length or address is not aligned.
            StorageError: The store failed.
        """
        ...

    def map(self) -> memoryview | None:
        """Return the whole object as read-only memory, or None if the store cannot map.

        The memory outlives the reader and lives as long as the view.  Nobody may shorten the
        object meanwhile: on a local file that ends the process.
        """
        ...

    def close(self) -> None:
        """Release the object; a second call does nothing."""
        ...

    def __enter__(self) -> ObjectReader: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class ObjectWriter(Protocol):
    """One object being created; a context manager that aborts unless it was finished.

    After a failed write the object is lost: every later call but `abort` raises.

    Thread safety: `write_at` may run in many threads, in any order, on disjoint ranges;
    `finish` and `abort` belong to one thread and wait for the writes that run.
    """

    @property
    def key(self) -> str:
        """The object's key."""
        ...

    @property
    def alignment(self) -> int:
        """4096 when offsets, lengths and addresses of `write_at` must be multiples, else 1.

        Pad the last piece and let `finish` cut it.  It never changes.
        """
        ...

    def write_at(self, offset_bytes: int, data: ReadableBytes) -> None:
        """Write all of `data` at `offset_bytes`.

        Raises:
            InvalidArgumentError: Offset, length or address is not aligned.
            StateError: The writer is finished or aborted.
            StorageError: The store failed, now or before.
        """
        ...

    def finish(self, nbytes: int) -> None:
        """Cut the object to `nbytes`, make its content durable and close it.

        Ranges below `nbytes` that were never written read as zero.  The object's *name* is
        durable after `Store.sync`.

        Raises:
            InvalidArgumentError: No write reached `nbytes`.
            StateError: The writer is finished or aborted.
            StorageError: The store failed, now or before; never try again.
        """
        ...

    def abort(self) -> None:
        """Remove the object; after `finish` or `abort` this does nothing."""
        ...

    def __enter__(self) -> ObjectWriter: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class Store(Protocol):
    """Keys to bytes.

    Whether ``"a"`` and ``"a/b"`` can both be objects is the store's affair; use neither.  Keys
    that break `check_key` raise InvalidArgumentError everywhere.

    Thread safety: every method may run in many threads.
    """

    def describe(self) -> str:
        """Return the store's place in words, for messages."""
        ...

    def open_reader(self, key: str, *, direct: bool) -> ObjectReader:
        """Open an object for reading.

        Args:
            key: The object's key.
            direct: Bypass the page cache if the store can; `alignment` says whether it does.

        Raises:
            ObjectNotFoundError: No object has that key.
            StorageError: It is a directory, symbolic link, FIFO, socket or device
                (E_FILE_TYPE), or the store failed.
        """
        ...

    def read(self, key: str, *, offset_bytes: int = 0, nbytes: int | None = None) -> bytes:
        """Return up to `nbytes` bytes of an object, all that follow if None.

        For small documents.  Fewer bytes come back where the object ends.

        Raises:
            ObjectNotFoundError: No object has that key.
            StorageError: It is no regular object (E_FILE_TYPE), or the store failed.
        """
        ...

    def create(self, key: str, *, nbytes_hint: int | None) -> ObjectWriter:
        """Create an object that must not exist and return its writer.

        Args:
            key: The new object's key.
            nbytes_hint: The expected size in bytes, None if unknown; it binds nobody.

        Raises:
            ObjectExistsError: Something has that key.
            StorageError: The store failed.
        """
        ...

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Publish an object atomically and durably; never replace one.

        Of many callers exactly one succeeds.  Names created before through this store are
        durable before the object appears.

        Raises:
            ObjectExistsError: Something has that key.
            StorageError: The store failed; with E_UNCERTAIN the object may be there.
        """
        ...

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        """Return every object whose key starts with `prefix`, sorted by key.

        All depths; nothing follows a symbolic link.  A store that does not exist is empty.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove an object (or link, or FIFO) durably.

        Raises:
            ObjectNotFoundError: Nothing has that key.
            StorageError: It is a directory (E_FILE_TYPE), or the store failed.
        """
        ...

    def sync(self) -> None:
        """Make every name created through this store durable.

        Raises:
            StorageError: The store failed, now or at an earlier `sync`; never try again.
        """
        ...

    def child(self, prefix: str) -> Store:
        """Return the store of the keys below ``prefix + "/"``; it need not exist."""
        ...

    def children(self) -> builtins.list[str]:
        """Return the names of the immediate sub-stores, sorted."""
        ...
