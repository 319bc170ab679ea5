"""Zstandard frames as the format allows them: exactly one, and sized before it is decoded.

A library allocates what a frame claims, skips what it may skip and stops at the first end.
So the header is read here first, and the end of the frame is checked against the end of the
bytes (spec 9.2; RFC 8878, section 3.1).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal, TypeAlias

import zstandard

from bcpformat.codec.views import Bytes, ReadableBytes, flat_view
from bcpformat.errors import ErrorCode, FormatError, InvalidArgumentError

MAGIC = b"\x28\xb5\x2f\xfd"
MAX_WINDOW_BYTES = 1 << 27
MAX_LEVEL = 22

_MAX_WALKED_BLOCKS = 1 << 14
"""A frame of 2 GiB in full blocks; walking them takes some milliseconds."""

Profile: TypeAlias = Literal["default", "huffman"]
"""``huffman`` all but gives up matches: the exponents of floats have only chance ones."""


@dataclass(frozen=True, slots=True)
class _Header:
    """What follows from an acceptable frame header.

    Attributes:
        nbytes: Its size, from the magic on.
        checksum: Whether four bytes of checksum end the frame.
    """

    nbytes: int
    checksum: bool


def compress_frame(data: ReadableBytes, *, level: int = 1, profile: Profile = "default") -> bytes:
    """Return `data` as one frame, which may be longer than `data`.

    Args:
        data: Raw bytes.
        level: 1 to 22; profile ``huffman`` has none.
        profile: How matches are looked for.

    Raises:
        InvalidArgumentError: `level` is out of range.
    """
    return make_compressor(level=level, profile=profile).compress(flat_view(data))


def decompress_frame(stored: ReadableBytes, *, raw_bytes: int) -> bytes:
    """Return the content of the one frame that `stored` is.

    Args:
        stored: The frame and nothing else.
        raw_bytes: The expected content size, in bytes; the caller bounds it.

    Raises:
        FormatError: E_BLOCK_ENCODING; it is not exactly one acceptable frame of this content
            size, or is damaged.
    """
    view = flat_view(stored)
    _read_header(view, raw_bytes)
    try:
        if raw_bytes == 0:
            return _decompress_nothing(view)
        return _decompressor().decompress(view, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise _damaged(view, raw_bytes, error) from error


def decompress_frame_into(stored: ReadableBytes, out: Bytes) -> None:
    """Fill `out` with the content of the one frame that `stored` is, without another copy.

    Args:
        stored: The frame and nothing else.
        out: Its length is the expected content size.  Its content is unspecified after an error.

    Raises:
        FormatError: As `decompress_frame` does.
    """
    view = flat_view(stored)
    target = flat_view(out)
    header = _read_header(view, len(target))
    if len(target) == 0 or not _ends_at_its_end(view, header):
        target[:] = decompress_frame(view, raw_bytes=len(target))
        return
    try:
        # The frame is complete and `out` has room for all of it, so zstd decodes straight to it.
        filled = _decompressor().stream_reader(view).readinto(target)
    except zstandard.ZstdError as error:
        raise _damaged(view, len(target), error) from error
    if filled != len(target):
        raise _refusal(f"the frame holds {filled} bytes, expected {len(target)}")


def make_compressor(*, level: int, profile: Profile) -> zstandard.ZstdCompressor:
    """Return a compressor, for one thread at a time, whose frames the format allows.

    Args:
        level: 1 to 22; profile ``huffman`` has none.
        profile: How matches are looked for.

    Raises:
        InvalidArgumentError: `level` is out of range.
    """
    # Below 1 zstd stores literals as they are: floats would not shrink at all.
    if not 1 <= level <= MAX_LEVEL:
        raise InvalidArgumentError(f"level must be 1 to {MAX_LEVEL}, got {level}")
    if profile == "default":
        return zstandard.ZstdCompressor(level=level)
    # A table of 64 matches finds long repeats only; all else goes to the Huffman coder.  A
    # positive target_length would switch that coder off, a small window would cut its blocks.
    parameters = zstandard.ZstdCompressionParameters(
        strategy=zstandard.STRATEGY_FAST,
        target_length=0,
        min_match=7,
        hash_log=6,
        chain_log=6,
        search_log=1,
        window_log=19,
    )
    return zstandard.ZstdCompressor(compression_params=parameters)


def _read_header(stored: memoryview, raw_bytes: int) -> _Header:
    head = bytes(stored[:18])
    if head[:4] != MAGIC:
        raise _refusal(f"expected the magic {MAGIC.hex(' ')}, found {head[:4].hex(' ')!r}")
    if len(head) < 5:
        raise _refusal(f"the frame header ends after {len(head)} bytes")
    descriptor = head[4]
    single_segment = bool(descriptor & 0x20)
    if descriptor & 0x08:
        raise _refusal("the reserved bit of the frame header is set")
    if descriptor & 0x03:
        raise _refusal("the frame needs a dictionary")
    size_flag = descriptor >> 6
    size_bytes = (1 if single_segment else 0, 2, 4, 8)[size_flag]
    if size_bytes == 0:
        raise _refusal(f"the frame declares no content size, expected {raw_bytes}")
    at = 5 if single_segment else 6
    if len(head) < at + size_bytes:
        raise _refusal(f"the frame header ends after {len(head)} bytes, not {at + size_bytes}")
    content = int.from_bytes(head[at : at + size_bytes], "little")
    if size_bytes == 2:
        content += 256
    if content != raw_bytes:
        raise _refusal(f"the frame declares {content} bytes of content, expected {raw_bytes}")
    window = content if single_segment else _window_bytes(head[5])
    if window > MAX_WINDOW_BYTES:
        raise _refusal(f"the frame needs a window of {window} bytes, at most {MAX_WINDOW_BYTES}")
    return _Header(at + size_bytes, checksum=bool(descriptor & 0x04))


def _window_bytes(descriptor: int) -> int:
    base = 1 << (10 + (descriptor >> 3))
    return base + (base >> 3) * (descriptor & 7)


def _ends_at_its_end(stored: memoryview, header: _Header) -> bool:
    """Return whether the frame ends exactly where `stored` does, as far as is cheap to say.

    Reads the three-byte headers of the blocks of the frame.  False stands for "no, or too many
    blocks": `decompress_frame` then has the last word.
    """
    at = header.nbytes
    for _ in range(_MAX_WALKED_BLOCKS):
        block = int.from_bytes(stored[at : at + 3], "little")
        # A block is its last bit, two bits of type (1: one byte, repeated), 21 bits of size.
        at += 3 + (1 if block & 0x06 == 0x02 else block >> 3)
        if at > len(stored):
            return False
        if block & 1:
            return at + (4 if header.checksum else 0) == len(stored)
    return False


def _decompress_nothing(stored: memoryview) -> bytes:
    """Decode a frame without content, which the one-shot function takes on trust."""
    decoder = _decompressor().decompressobj(write_size=1024)
    content = decoder.decompress(stored)
    if content or not decoder.eof or decoder.unused_data:
        raise _refusal(f"{len(stored)} bytes are not one whole frame without content")
    return content


def _damaged(stored: memoryview, raw_bytes: int, error: zstandard.ZstdError) -> FormatError:
    return _refusal(f"{len(stored)} bytes are not one whole frame of {raw_bytes} bytes: {error}")


def _refusal(message: str) -> FormatError:
    return FormatError(f"zstd: {message}", code=ErrorCode.BLOCK_ENCODING)


class _PerThread(threading.local):
    decompressor: zstandard.ZstdDecompressor | None = None


_PER_THREAD = _PerThread()


def _decompressor() -> zstandard.ZstdDecompressor:
    """Return this thread's decompressor; every use starts it afresh, also after an error."""
    if _PER_THREAD.decompressor is None:
        _PER_THREAD.decompressor = zstandard.ZstdDecompressor()
    return _PER_THREAD.decompressor
