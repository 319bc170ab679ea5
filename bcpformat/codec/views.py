"""Memory as flat bytes, whatever object holds it, and memory that one thread reuses."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
"""Flat bytes, shape ``(nbytes,)``, C-contiguous."""

ReadableBytes: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[np.generic]
"""C-contiguous memory of any item type that is read from."""

KEPT_SCRATCH_BYTES = 1 << 24
"""Scratch up to this size is kept between blocks; default blocks need an eighth of it."""


def flat_view(data: ReadableBytes) -> memoryview:
    """Return the bytes of `data` as a flat view that shares its memory.

    Args:
        data: C-contiguous; the caller sees to it.
    """
    if isinstance(data, np.ndarray):
        if data.dtype != np.uint8:
            # Types of ml_dtypes have no format that a buffer could give.
            data = data.reshape(-1).view(np.uint8)
        data = data.data
    view = memoryview(data)
    if view.ndim == 1 and view.format == "B":
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


class Scratch:
    """Memory that is reused from block to block, as fresh pages cost more than the work in them.

    Thread safety: none; every thread or encoder owns its own.

    Example:
        >>> scratch = Scratch()
        >>> scratch.take(100).shape
        (100,)
    """

    def __init__(self) -> None:
        self._memory: Bytes = np.empty(0, np.uint8)

    def take(self, nbytes: int) -> Bytes:
        """Return `nbytes` bytes of unspecified content, valid until the next call."""
        if nbytes > KEPT_SCRATCH_BYTES:
            return np.empty(nbytes, np.uint8)
        if nbytes > self._memory.size:
            self._memory = np.empty(nbytes, np.uint8)
        return self._memory[:nbytes]
