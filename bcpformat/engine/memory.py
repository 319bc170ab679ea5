"""Copies between addresses, with and without releasing the interpreter lock.

A copy of a few kilobytes takes less time than giving the lock away and taking it back, and a
thread that does so in a loop starves the others (the convoy); a large copy must release it.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

HOLD_BYTES = 2**17
"""Copies below this keep the interpreter lock."""

_held = ctypes.PyDLL(None).memmove
_held.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_held.restype = None
_released = ctypes.CDLL(None).memmove
_released.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_released.restype = None


def address_of(array: npt.NDArray[np.generic]) -> int:
    """Return the address of an array's first element."""
    return int(array.__array_interface__["data"][0])


def copy(target: int, source: int, nbytes: int) -> None:
    """Copy bytes between addresses.

    Preconditions: both ranges are valid for `nbytes` bytes; the caller holds their owners.
    """
    if nbytes < HOLD_BYTES:
        _held(target, source, nbytes)
    else:
        _released(target, source, nbytes)


def byte_view(array: npt.NDArray[np.generic]) -> Bytes:
    """Return the bytes of a C-contiguous array, 1-d, without a copy."""
    return array.reshape(-1).view(np.uint8)
