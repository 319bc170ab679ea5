"""Planes: byte i of every element together, each plane compressed on its own (spec 9.3).

The high bytes of floats hold sign and exponent, which repeat; the low bytes are noise.  Apart,
the first compress to their entropy and the second cost next to nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bcpformat.codec.views import Bytes, Scratch
from bcpformat.codec.zstd import decompress_frame_into
from bcpformat.errors import ErrorCode, FormatError

PLANE_ITEMS = (2, 4, 8)
"""Element sizes, in bytes, that can be taken apart."""

LENGTH_BYTES = 4

_SAMPLES = 1024
_WINDOW_WORDS = 4
_FEWEST_WINDOWS = 64


class Compressor(Protocol):
    """What turns one plane into one frame."""

    def compress(self, data: memoryview, /) -> bytes:
        """Return `data` as one frame."""
        ...


def split_planes(raw: Bytes, planes: Bytes) -> None:
    """Copy every byte of the elements of `raw` to its plane.

    Args:
        raw: Little-endian elements of k bytes.
        planes: Shape ``(k, elements)``, filled; row 0 gets the most significant bytes.
    """
    item = len(planes)
    words = raw.view(f"<u{item}")
    # Shift and cast: a strided copy of every k-th byte takes twice to four times as long.
    for plane, shift in zip(planes[:-1], range(8 * item - 8, 0, -8), strict=True):
        np.right_shift(words, shift, out=plane, casting="unsafe")
    np.copyto(planes[-1], words, casting="unsafe")


def join_planes(planes: Sequence[Bytes], out: Bytes, *, scratch: Bytes) -> None:
    """Fill `out` with the elements whose bytes lie in `planes`.

    Args:
        planes: k planes of one length, the most significant bytes first.
        out: Gets k bytes for every element, little-endian.
        scratch: Memory as large as `out`, overwritten.
    """
    if len(planes) == 2:
        _interleave(planes[0], planes[1], out.view("<u2"))
    elif len(planes) == 4:
        half = len(out) // 2
        high, low = scratch[:half].view("<u2"), scratch[half : 2 * half].view("<u2")
        _interleave(planes[0], planes[1], high)
        _interleave(planes[2], planes[3], low)
        _interleave(high, low, out.view("<u4"))
    else:
        for place, plane in enumerate(reversed(planes)):
            out[place :: len(planes)] = plane


def encode_planes(
    raw: Bytes, *, item: int, varied: Compressor, repetitive: Compressor, scratch: Scratch
) -> bytes | None:
    """Return the stored form of a block, or None if it is not shorter than the block.

    Args:
        raw: The block; its length is a multiple of `item`.
        item: Size of an element in bytes, one of `PLANE_ITEMS`.
        varied: Used on blocks without repeats.
        repetitive: Used on blocks that mostly repeat themselves.
        scratch: Used until the call returns.
    """
    plane_bytes = len(raw) // item
    planes = scratch.take(len(raw)).reshape(item, plane_bytes)
    split_planes(raw, planes)
    compressor = repetitive if is_repetitive(raw) else varied
    parts: list[bytes | memoryview] = []
    for plane in planes:
        frame = compressor.compress(plane.data)
        parts.append(frame if len(frame) < plane_bytes else plane.data)
    lengths = [len(part) for part in parts]
    if LENGTH_BYTES * item + sum(lengths) >= len(raw):
        return None
    return b"".join([struct.pack(f"<{item}I", *lengths), *parts])


def decode_planes(stored: memoryview, out: Bytes, *, item: int, scratch: Scratch) -> None:
    """Fill `out` with the raw bytes of an encoded block.

    Args:
        stored: The stored form.
        out: As long as the raw bytes.  Its content is unspecified after an error.
        item: Size of an element in bytes.
        scratch: Used until the call returns.

    Raises:
        FormatError: E_BLOCK_ENCODING; BCP-COD-007 or BCP-COD-008 is violated.
    """
    lengths = _plane_lengths(stored, len(out), item)
    plane_bytes = len(out) // item
    memory = scratch.take(2 * len(out))
    planes: list[Bytes] = []
    at = LENGTH_BYTES * item
    for number, (length, decoded) in enumerate(
        zip(lengths, memory[: len(out)].reshape(item, plane_bytes), strict=True)
    ):
        part = stored[at : at + length]
        at += length
        if length == plane_bytes:
            planes.append(np.frombuffer(part, np.uint8))
            continue
        try:
            decompress_frame_into(part, decoded)
        except FormatError as error:
            raise FormatError(f"plane {number}: {error.message}", code=error.code) from error
        planes.append(decoded)
    join_planes(planes, out, scratch=memory[len(out) :])


def is_repetitive(raw: Bytes) -> bool:
    """Return whether more than half of a sample of a block occurs twice in the sample.

    Such a block (a broadcast row, a tiled pattern) is worth a real search for matches; other
    blocks are better without one.  Zeros do not count: any compressor finds them.
    """
    words = raw[: len(raw) - len(raw) % (8 * _WINDOW_WORDS)].view("<u8")
    windows = words.reshape(-1, _WINDOW_WORDS)
    if len(windows) < _FEWEST_WINDOWS:
        return False
    # Odd multipliers, modulo 2^64; windows of zeros, and few others, give 0.
    weights = np.array(
        [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], np.uint64
    )
    keys = np.sort(windows[:: max(1, len(windows) // _SAMPLES)] @ weights)
    repeats = np.count_nonzero((keys[1:] == keys[:-1]) & (keys[1:] != 0))
    return 2 * int(repeats) > len(keys)


def _plane_lengths(stored: memoryview, raw_bytes: int, item: int) -> tuple[int, ...]:
    if item not in PLANE_ITEMS or raw_bytes % item:
        raise _refusal(f"expected a multiple of an item of 2, 4 or 8, got {raw_bytes} of {item}")
    head = LENGTH_BYTES * item
    if len(stored) < head:
        raise _refusal(f"expected {head} bytes of plane lengths, found {len(stored)}")
    lengths = struct.unpack_from(f"<{item}I", stored)
    if head + sum(lengths) != len(stored):
        raise _refusal(f"planes end at byte {head + sum(lengths)} of {len(stored)} stored bytes")
    if max(lengths) > raw_bytes // item:
        raise _refusal(f"expected planes of up to {raw_bytes // item} bytes, found {max(lengths)}")
    return lengths


def _refusal(message: str) -> FormatError:
    return FormatError(f"planes-zstd: {message}", code=ErrorCode.BLOCK_ENCODING)


def _interleave(
    high: npt.NDArray[np.unsignedinteger],
    low: npt.NDArray[np.unsignedinteger],
    out: npt.NDArray[np.unsignedinteger],
) -> None:
    """Fill `out` with elements of twice the width, from their high and low halves."""
    # A product is faster here than a shift, which numpy does not vectorise while it casts.
    np.multiply(high, out.dtype.type(1 << 8 * high.itemsize), out=out, dtype=out.dtype)
    np.bitwise_or(out, low, out=out)
