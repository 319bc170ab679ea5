"""Warm, aligned memory that is reused.

The first touch of a fresh page costs more than the copy or the read into it: a copy into
fresh pages is 5-8 times slower than into warm ones, a direct read 2-5 times.  So buffers
are private anonymous maps with huge-page advice, touched once and kept.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import numpy.typing as npt

from bcpformat.errors import InvalidArgumentError, StateError
from bcpformat.model.closing import Closing


class AlignedBuffer(Closing):
    """Page-aligned zeroed memory of this process, outside Python's allocator.

    Attributes:
        nbytes: Size in bytes.

    Example:
        >>> buffer = AlignedBuffer(8192)
        >>> buffer.array[0] = 7
        >>> buffer.view[0], buffer.nbytes
        (7, 8192)
        >>> buffer.close()
    """

    def __init__(self, nbytes: int, *, touch: bool = False) -> None:
        """Reserve address space; pages come at the first touch.

        Args:
            nbytes: Size in bytes, at least 1.
            touch: Touch every page now.

        Raises:
            InvalidArgumentError: `nbytes` is below 1.
            MemoryError: There is not so much address space.
        """
        if nbytes < 1:
            raise InvalidArgumentError(f"nbytes must be at least 1, got {nbytes}")
        self.nbytes = nbytes
        try:
            # The default, a shared map, gets no huge pages on most systems.
            pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"cannot reserve a buffer of {nbytes} bytes: {error}") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):
                pages.madvise(mmap.MADV_HUGEPAGE)
        self._array: npt.NDArray[np.uint8] | None = np.frombuffer(pages, np.uint8)
        if touch:
            self.touch()

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """The memory as bytes, shape ``(nbytes,)``; it lives as long as any view of it.

        Raises:
            StateError: The buffer is closed.
        """
        if self._array is None:
            raise StateError(f"the buffer of {self.nbytes} bytes is closed")
        return self._array

    @property
    def view(self) -> memoryview:
        """The memory as a flat view of bytes.

        Raises:
            StateError: The buffer is closed.
        """
        return self.array.data

    def touch(self, *, start_bytes: int = 0, stop_bytes: int | None = None) -> None:
        """Make the pages of a range warm; their content stays.

        Several threads may touch disjoint ranges; nobody else may write there meanwhile.

        Args:
            start_bytes: Where the range starts.
            stop_bytes: Where it ends; the buffer's end if None.
        """
        pages = self.array[start_bytes : stop_bytes : mmap.PAGESIZE]
        np.bitwise_or(pages, 0, out=pages)

    def close(self) -> None:
        """Give the memory back once no view of it is left; a second call does nothing."""
        self._array = None


class BufferPool(Closing):
    """A fixed number of equal buffers; who finds none waits, which is the back-pressure.

    Buffers are made warm when first needed, and the last one released is the next one given:
    it is the one still in the processor's caches.  A thread that holds a buffer of a shared
    pool must not wait for another one: two such threads could wait for each other.

    Attributes:
        num: The number of buffers.
        nbytes: Size of each in bytes.

    Thread safety: every method may run in many threads.

    Example:
        >>> with BufferPool(2, 4096) as pool, pool.borrow() as buffer:
        ...     buffer.nbytes
        4096
    """

    def __init__(self, num: int, nbytes: int) -> None:
        """Set the sizes; no memory is taken yet.

        Raises:
            InvalidArgumentError: One of them is below 1.
        """
        if num < 1 or nbytes < 1:
            raise InvalidArgumentError(
                f"expected at least 1 buffer of at least 1 byte, got {num} of {nbytes}"
            )
        self.num = num
        self.nbytes = nbytes
        self._changed = threading.Condition()
        self._free: list[AlignedBuffer] = []
        self._borrowed: set[AlignedBuffer] = set()
        self._making = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the pool was closed."""
        return self._closed

    def acquire(self) -> AlignedBuffer:
        """Return a warm buffer with unspecified content, waiting until there is one.

        Raises:
            StateError: The pool is closed, before or while waiting.
            MemoryError: There is no memory for it.
        """
        with self._changed:
            while not self._closed and not self._free and self._taken() >= self.num:
                self._changed.wait()
            self._check_open()
            if self._free:
                buffer = self._free.pop()
                self._borrowed.add(buffer)
                return buffer
            self._making += 1
        made: AlignedBuffer | None = None
        try:
            made = AlignedBuffer(self.nbytes, touch=True)
        finally:
            with self._changed:
                self._making -= 1
                if made is None:
                    self._changed.notify()
                else:
                    self._borrowed.add(made)
        return made

    def release(self, buffer: AlignedBuffer) -> None:
        """Give a buffer back; its views must not be used any more.

        Raises:
            InvalidArgumentError: It was not acquired here, or was released already.
        """
        with self._changed:
            if buffer not in self._borrowed:
                raise InvalidArgumentError(
                    f"expected one of the {len(self._borrowed)} buffers in use, found another"
                )
            self._borrowed.remove(buffer)
            if self._closed:
                buffer.close()
            else:
                self._free.append(buffer)
                self._changed.notify()

    @contextmanager
    def borrow(self) -> Iterator[AlignedBuffer]:
        """Yield an acquired buffer and release it afterwards."""
        buffer = self.acquire()
        try:
            yield buffer
        finally:
            self.release(buffer)

    def close(self) -> None:
        """Free the buffers, those in use when they are released; a second call does nothing."""
        with self._changed:
            self._closed = True
            for buffer in self._free:
                buffer.close()
            self._free.clear()
            self._changed.notify_all()

    def _taken(self) -> int:
        return len(self._borrowed) + self._making

    def _check_open(self) -> None:
        if self._closed:
            raise StateError(f"the pool of {self.num} buffers of {self.nbytes} bytes is closed")


_pools: dict[tuple[int, int, int], BufferPool] = {}
_pools_lock = threading.Lock()


def get_pool(num: int, nbytes: int) -> BufferPool:
    """Return this process's pool of that shape, which stays warm between calls.

    A forked child gets its own.  Who closes it ends it for all; the next call makes a new one.

    Args:
        num: The number of buffers.
        nbytes: Size of each in bytes.

    Example:
        >>> get_pool(2, 4096) is get_pool(2, 4096)
        True
    """
    key = (os.getpid(), num, nbytes)
    with _pools_lock:
        pool = _pools.get(key)
        if pool is None or pool.closed:
            pool = _pools[key] = BufferPool(num, nbytes)
        return pool
