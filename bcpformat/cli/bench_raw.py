"""The speed of the storage itself: large direct writes and reads between it and warm memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bcpformat.storage import DIRECT_ALIGNMENT_BYTES, AlignedBuffer

CALL_BYTES = 2**23
"""Bytes of one system call; from 4 MiB on more do not help."""


class RawFile:
    """A file of no content in particular, written and read past the page cache.

    Attributes:
        direct: Whether the file system lets the page cache be bypassed; else it is not.

    Thread safety: none.
    """

    def __init__(self, path: str, nbytes: int) -> None:
        """Make the buffers warm; the file is made by `write`.

        Args:
            path: Where it will be.
            nbytes: Its size, rounded up to the alignment.
        """
        self._path = path
        self._nbytes = -(-nbytes // DIRECT_ALIGNMENT_BYTES) * DIRECT_ALIGNMENT_BYTES
        self._buffers = [AlignedBuffer(CALL_BYTES, touch=True) for _ in range(2)]
        noise = np.random.default_rng(0)
        for buffer in self._buffers:
            buffer.array[:] = np.frombuffer(noise.bytes(CALL_BYTES), np.uint8)
        self.direct = self._try_direct()

    def _try_direct(self) -> bool:
        if not hasattr(os, "O_DIRECT"):
            return False
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT
            descriptor = os.open(self._path, flags, 0o600)
        except OSError:
            return False
        finally:
            if os.path.exists(self._path):
                os.unlink(self._path)
        os.close(descriptor)
        return True

    def write(self, *, threads: int) -> None:
        """Write the file, which must not exist, and make it and its name durable."""
        descriptor = self._open(os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            self._share(descriptor, os.pwrite, threads)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        folder = os.open(os.path.dirname(self._path), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def read(self, *, threads: int) -> None:
        """Read the file into the buffers, again and again."""
        descriptor = self._open(os.O_RDONLY)
        try:
            self._share(descriptor, _read_into, threads)
        finally:
            os.close(descriptor)

    def _open(self, flags: int) -> int:
        return os.open(self._path, flags | (os.O_DIRECT if self.direct else 0), 0o600)

    def _share(
        self, descriptor: int, call: Callable[[int, memoryview, int], int], threads: int
    ) -> None:
        starts = range(0, self._nbytes, CALL_BYTES)

        def work(number: int) -> None:
            self._each(descriptor, call, self._buffers[number].view, starts[number::threads])

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))

    def _each(
        self,
        descriptor: int,
        call: Callable[[int, memoryview, int], int],
        memory: memoryview,
        starts: Sequence[int],
    ) -> None:
        for start in starts:
            part = memory[: min(CALL_BYTES, self._nbytes - start)]
            done = 0
            while done < len(part):
                count = call(descriptor, part[done:], start + done)
                if count <= 0:
                    raise OSError(f"{self._path!r} ends at byte {start + done}")
                done += count

    def close(self) -> None:
        """Free the buffers."""
        for buffer in self._buffers:
            buffer.close()


def _read_into(descriptor: int, memory: memoryview, start: int) -> int:
    return os.preadv(descriptor, [memory], start)
