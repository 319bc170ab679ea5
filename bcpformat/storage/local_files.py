"""One local file: positional reads and write-once writes, past the page cache where it pays."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from bcpformat.errors import StateError, StorageError
from bcpformat.model.closing import Closing
from bcpformat.storage.arguments import (
    byte_view,
    check_alignment,
    check_finish,
    check_range,
    truncated,
)
from bcpformat.storage.posix import Descriptor, set_direct, storage_error
from bcpformat.storage.store import DIRECT_ALIGNMENT_BYTES, ReadableBytes, WritableBytes

_WRITE_BACK_BYTES = 1 << 20
_UNMAPPABLE = frozenset({errno.ENODEV, errno.EOPNOTSUPP, errno.ENOSYS})


class LocalReader(Closing):
    """A local file, open for reading.

    Thread safety: as `ObjectReader` says.
    """

    def __init__(self, descriptor: int, *, key: str, where: str, nbytes: int, direct: bool) -> None:
        """Take over an open descriptor of a regular file.

        Args:
            descriptor: Owned by the reader from here on.
            key: The object's key.
            where: The store in words, for messages.
            nbytes: Size in bytes.
            direct: Bypass the page cache if the file system accepts it.
        """
        self.key = key
        self.nbytes = nbytes
        direct = direct and set_direct(descriptor, direct=True)
        self.alignment = DIRECT_ALIGNMENT_BYTES if direct else 1
        self._where = where
        self._descriptor = Descriptor(descriptor, key=key)

    def read_into(self, offset_bytes: int, out: WritableBytes) -> int:
        """Fill `out` with the object's bytes from `offset_bytes` on."""
        view = byte_view(out, writable=True)
        check_alignment(offset_bytes, view, alignment=self.alignment)
        fill = check_range(
            self.key,
            nbytes=self.nbytes,
            offset_bytes=offset_bytes,
            wanted_bytes=len(view),
            alignment=self.alignment,
        )
        done = 0
        with self._descriptor.borrow() as descriptor:
            while done < fill:
                count = self._read_some(descriptor, offset_bytes + done, view[done:])
                if count == 0:
                    raise truncated(
                        self.key, offset_bytes=offset_bytes, wanted_bytes=fill, found_bytes=done
                    )
                done += count
        return fill

    def _read_some(self, descriptor: int, offset_bytes: int, view: memoryview) -> int:
        try:
            try:
                return os.preadv(descriptor, [view], offset_bytes)
            except OSError as error:
                if error.errno != errno.EINVAL or self.alignment == 1:
                    raise
            # Refused late, or continued behind a short read: the page cache takes any position.
            set_direct(descriptor, direct=False)
            return os.preadv(descriptor, [view], offset_bytes)
        except OSError as error:
            action = f"cannot read {self.key!r} in {self._where!r} at byte {offset_bytes}"
            raise storage_error(error, key=self.key, action=action) from error

    def map(self) -> memoryview | None:
        """Return the whole file as read-only memory, or None if it cannot be mapped."""
        with self._descriptor.borrow() as descriptor:
            if self.nbytes == 0:
                return memoryview(b"")
            try:
                return memoryview(mmap.mmap(descriptor, self.nbytes, access=mmap.ACCESS_READ))
            except ValueError as error:
                found = os.fstat(descriptor).st_size
                raise truncated(
                    self.key, offset_bytes=0, wanted_bytes=self.nbytes, found_bytes=found
                ) from error
            except OSError as error:
                if error.errno in _UNMAPPABLE:
                    return None
                action = f"cannot map {self.key!r} in {self._where!r}"
                raise storage_error(error, key=self.key, action=action) from error

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        # Nothing was written: an error of closing says nothing about what was read.
        with suppress(OSError):
            self._descriptor.close()


class LocalWriter:
    """A local file being created.

    The first failure is final: after a failed write-back the kernel may call the pages clean,
    so a second fsync would succeed for lost data (https://lwn.net/Articles/752063/).

    Thread safety: as `ObjectWriter` says.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        key: str,
        where: str,
        direct: bool,
        remove: Callable[[], None],
    ) -> None:
        """Take over a descriptor of a file just created.

        Args:
            descriptor: Owned by the writer from here on.
            key: The object's key.
            where: The store in words, for messages.
            direct: Bypass the page cache if the file system accepts it.
            remove: Unlink the file, if its name still means it.
        """
        self.key = key
        direct = direct and set_direct(descriptor, direct=True)
        self.alignment = DIRECT_ALIGNMENT_BYTES if direct else 1
        self._where = where
        self._remove = remove
        self._descriptor = Descriptor(descriptor, key=key)
        self._lock = threading.Lock()
        self._end_bytes = 0
        self._written_bytes = 0
        self._failure: StorageError | None = None
        self._over = False

    def write_at(self, offset_bytes: int, data: ReadableBytes) -> None:
        """Write all of `data` at `offset_bytes`."""
        view = byte_view(data, writable=False)
        check_alignment(offset_bytes, view, alignment=self.alignment)
        self._check_usable()
        done = 0
        with self._descriptor.borrow() as descriptor:
            while done < len(view):
                count = self._write_some(descriptor, offset_bytes + done, view[done:])
                done += count
                with self._lock:
                    self._written_bytes += count
            if self.alignment == 1 and done >= _WRITE_BACK_BYTES:
                _start_write_back(descriptor, offset_bytes, done)
        with self._lock:
            self._end_bytes = max(self._end_bytes, offset_bytes + done if done else 0)

    def _write_some(self, descriptor: int, offset_bytes: int, view: memoryview) -> int:
        try:
            try:
                count = os.pwrite(descriptor, view, offset_bytes)
            except OSError as error:
                if error.errno != errno.EINVAL or self.alignment == 1:
                    raise
                # Refused late, or continued behind a short write: the page cache takes any.
                set_direct(descriptor, direct=False)
                count = os.pwrite(descriptor, view, offset_bytes)
            if count == 0:
                raise OSError(errno.EIO, "the file system took no bytes")
        except OSError as error:
            raise self._fail(error, f"write at byte {offset_bytes} of") from error
        return count

    def finish(self, nbytes: int) -> None:
        """Cut the file to `nbytes`, fsync and close it."""
        self._check_usable()
        check_finish(self.key, nbytes=nbytes, end_bytes=self._end_bytes)
        try:
            with self._descriptor.borrow() as descriptor:
                if nbytes != self._end_bytes:
                    os.ftruncate(descriptor, nbytes)
                os.fsync(descriptor)
            self._descriptor.close()
        except OSError as error:
            raise self._fail(error, "finish") from error
        self._over = True

    def abort(self) -> None:
        """Remove the file; after `finish` or `abort` this does nothing."""
        if self._over:
            return
        self._over = True
        # The file is thrown away, and with it what closing has to say.
        with suppress(OSError):
            self._descriptor.close()
        self._remove()

    def _check_usable(self) -> None:
        if self._over:
            raise StateError(f"the writer of object {self.key!r} is finished or aborted")
        if self._failure is not None:
            why = self._failure.message
            raise StorageError(
                f"object {self.key!r} is lost since an earlier call failed: {why}",
                key=self.key,
                code=self._failure.code,
            )

    def _fail(self, error: OSError, doing: str) -> StorageError:
        failure = storage_error(
            error,
            key=self.key,
            action=f"cannot {doing} {self.key!r} in {self._where!r}, "
            f"{self._written_bytes} bytes written",
        )
        self._failure = self._failure or failure
        return failure

    def __enter__(self) -> LocalWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.abort()
        except StorageError as left_behind:
            if error is None:
                raise
            error.add_note(f"the unfinished object was not removed: {left_behind.message}")


def _start_write_back(descriptor: int, offset_bytes: int, nbytes: int) -> None:
    """Let the device start on these pages, so that fsync finds little left to do.

    The advice starts write-back without waiting and drops only pages that are clean.
    """
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(descriptor, offset_bytes, nbytes, os.POSIX_FADV_DONTNEED)
