"""zstd frames: what is accepted, what is refused, and what a refusal may cost."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.codec.zstd import (
    Profile,
    compress_frame,
    decompress_frame,
    decompress_frame_into,
    make_compressor,
)
from bcpformat.errors import ErrorCode, FormatError, InvalidArgumentError

MAGIC = b"\x28\xb5\x2f\xfd"
TEXT = b"the quick brown fox jumps over the lazy dog. " * 40
FRAME = zstandard.ZstdCompressor(level=1).compress(TEXT)
CHECKED = zstandard.ZstdCompressor(level=1, write_checksum=True).compress(TEXT)

Decode = Callable[[bytes, int], bytes]


def _decode(stored: bytes, raw_bytes: int) -> bytes:
    return decompress_frame(stored, raw_bytes=raw_bytes)


def _decode_into(stored: bytes, raw_bytes: int) -> bytes:
    out = np.full(raw_bytes, 0xAA, np.uint8)
    decompress_frame_into(stored, out)
    return out.tobytes()


both_ways = pytest.mark.parametrize("decode", [_decode, _decode_into], ids=["bytes", "into"])


def raw_block(data: bytes, *, last: bool = True) -> bytes:
    return (len(data) << 3 | int(last)).to_bytes(3, "little") + data


def repeated_block(value: int, count: int) -> bytes:
    return (count << 3 | 0x02 | 1).to_bytes(3, "little") + bytes([value])


def frame(
    *blocks: bytes,
    content: int,
    window: int | None = 0x00,
    flags: int = 0,
    dictionary: bytes = b"",
) -> bytes:
    """Return a frame by hand: an 8-byte content size; no window makes it a single segment."""
    single = 0x20 if window is None else 0
    head = bytes([0xC0 | single | flags]) + (b"" if window is None else bytes([window]))
    return MAGIC + head + dictionary + struct.pack("<Q", content) + b"".join(blocks)


@both_ways
@pytest.mark.parametrize("profile", ["default", "huffman"])
@pytest.mark.parametrize("size", [0, 1, 2, 255, 256, 257, 65_535, 65_791, 65_792, 300_000])
def test_frames_of_every_size_of_header_round_trip(
    decode: Decode, profile: Profile, size: int
) -> None:
    data = np.arange(size, dtype="<u4").tobytes()[:size]

    assert decode(compress_frame(data, profile=profile), size) == data


@both_ways
@given(data=st.binary(max_size=400), level=st.integers(1, 5))
def test_any_bytes_round_trip(decode: Decode, data: bytes, level: int) -> None:
    assert decode(compress_frame(data, level=level), len(data)) == data


@both_ways
def test_a_frame_made_by_hand_is_read(decode: Decode) -> None:
    stored = frame(raw_block(b"abc", last=False), repeated_block(0x7A, 5), content=8)

    assert decode(stored, 8) == b"abczzzzz"


@both_ways
def test_a_single_segment_made_by_hand_is_read(decode: Decode) -> None:
    assert decode(frame(raw_block(b"abc"), content=3, window=None), 3) == b"abc"


@both_ways
def test_the_unused_bit_of_the_header_is_ignored(decode: Decode) -> None:
    assert decode(frame(raw_block(b"abc"), content=3, flags=0x10), 3) == b"abc"


@both_ways
def test_a_frame_with_its_own_checksum_is_read(decode: Decode) -> None:
    assert decode(CHECKED, len(TEXT)) == TEXT


@both_ways
def test_a_window_of_128_mib_is_accepted(decode: Decode) -> None:
    assert decode(frame(raw_block(b"abc"), content=3, window=17 << 3), 3) == b"abc"


@both_ways
def test_a_frame_of_very_many_blocks_is_read(decode: Decode) -> None:
    empty = raw_block(b"", last=False)
    stored = frame(*[empty] * 20_000, raw_block(b"abc"), content=3)

    assert decode(stored, 3) == b"abc"


def _with_byte(stored: bytes, at: int, change: int) -> bytes:
    changed = bytearray(stored)
    changed[at] ^= change
    return bytes(changed)


SKIPPABLE = b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"note"
NOTHING = zstandard.ZstdCompressor().compress(b"")
STREAMED = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)

HOSTILE = {
    "no bytes": (b"", 3),
    "the magic alone": (MAGIC, 3),
    "another magic": (b"\x27" + FRAME[1:], len(TEXT)),
    "a header cut in the content size": (FRAME[:6], len(TEXT)),
    "a content of 1 TiB": (frame(repeated_block(0, 1 << 17), content=1 << 40), 1 << 17),
    "a content of 2^64-1": (frame(raw_block(b"abc"), content=2**64 - 1), 3),
    "no content size": (STREAMED, len(TEXT)),
    "a content size below the expected": (FRAME, len(TEXT) + 1),
    "a content size above the expected": (FRAME, len(TEXT) - 1),
    "less content than declared": (frame(raw_block(b"ab"), content=3), 3),
    "more content than declared": (frame(raw_block(b"abcd"), content=3), 3),
    "much more content than declared": (frame(repeated_block(0, 1 << 17), content=3), 3),
    "content where none is declared": (frame(raw_block(b"abc"), content=0), 0),
    "no content, then a byte": (NOTHING + b"x", 0),
    "no content, cut": (NOTHING[:-1], 0),
    "a dictionary id": (frame(raw_block(b"abc"), content=3, flags=1, dictionary=b"\x07"), 3),
    "dictionary id 0 in a byte": (
        frame(raw_block(b"abc"), content=3, flags=1, dictionary=b"\x00"),
        3,
    ),
    "a dictionary id of four bytes": (
        frame(raw_block(b"abc"), content=3, flags=3, dictionary=b"\1\2\3\4"),
        3,
    ),
    "a window above 128 MiB": (frame(raw_block(b"abc"), content=3, window=17 << 3 | 1), 3),
    "the largest window": (frame(raw_block(b"abc"), content=3, window=0xFF), 3),
    "the reserved bit": (frame(raw_block(b"abc"), content=3, flags=8), 3),
    "a block of the reserved type": (frame(b"\x1f\x00\x00abc", content=3), 3),
    "a trailing byte": (FRAME + b"\x00", len(TEXT)),
    "a trailing byte after a checksum": (CHECKED + b"\x00", len(TEXT)),
    "a second frame": (FRAME + FRAME, len(TEXT)),
    "a second frame without content": (FRAME + NOTHING, len(TEXT)),
    "a skippable frame after": (FRAME + SKIPPABLE, len(TEXT)),
    "a skippable frame before": (SKIPPABLE + FRAME, len(TEXT)),
    "a skippable frame alone": (SKIPPABLE, 4),
    "a frame cut by a byte": (FRAME[:-1], len(TEXT)),
    "a frame cut in half": (FRAME[: len(FRAME) // 2], len(TEXT)),
    "a frame without blocks": (frame(content=3), 3),
    "no last block": (frame(raw_block(b"abc", last=False), content=3), 3),
    "a checksum cut by a byte": (CHECKED[:-1], len(TEXT)),
    "no checksum where one is declared": (CHECKED[:-4], len(TEXT)),
    "a wrong checksum": (_with_byte(CHECKED, -1, 1), len(TEXT)),
    "very many blocks, then a byte": (
        frame(*[raw_block(b"", last=False)] * 20_000, raw_block(b"abc"), content=3) + b"x",
        3,
    ),
}


@both_ways
@pytest.mark.parametrize("name", HOSTILE)
def test_a_frame_the_format_does_not_allow_is_refused(decode: Decode, name: str) -> None:
    stored, raw_bytes = HOSTILE[name]

    with pytest.raises(FormatError) as caught:
        decode(stored, raw_bytes)

    assert caught.value.code is ErrorCode.BLOCK_ENCODING


@both_ways
@pytest.mark.parametrize("name", HOSTILE)
def test_a_refusal_allocates_little_more_than_the_expected_bytes(decode: Decode, name: str) -> None:
    stored, raw_bytes = HOSTILE[name]
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            decode(stored, raw_bytes)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < raw_bytes + 64 * 1024


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"\x27" + frame(content=3)[1:], "magic"),
        (MAGIC, "ends after 4 bytes"),
        (frame(content=3)[:-1], "ends after 13 bytes, not 14"),
        (frame(content=3, flags=8), "reserved bit"),
        (frame(content=3, flags=1, dictionary=b"\x00"), "dictionary"),
        (frame(content=3, flags=2, dictionary=b"\x00\x00"), "dictionary"),
        (frame(content=4), "declares 4 bytes of content, expected 3"),
        (STREAMED, "no content size"),
        (frame(content=3, window=17 << 3 | 1), "window of 150994944 bytes, at most 134217728"),
    ],
    ids=["magic", "magic only", "cut", "reserved", "dict 1", "dict 2", "size", "no size", "window"],
)
def test_the_header_alone_shows_the_fault(head: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decompress_frame(head, raw_bytes=3)


def test_a_single_segment_above_the_largest_window_is_refused_by_its_header() -> None:
    raw_bytes = (1 << 27) + 1
    head = frame(content=raw_bytes, window=None)

    with pytest.raises(FormatError, match="window"):
        decompress_frame(head, raw_bytes=raw_bytes)


def test_a_message_says_what_was_expected_and_found() -> None:
    with pytest.raises(FormatError, match=r"declares 1099511627776 bytes .* expected 3"):
        decompress_frame(frame(content=1 << 40), raw_bytes=3)


@both_ways
@given(
    at=st.integers(0, len(CHECKED) - 1),
    change=st.integers(1, 255),
)
def test_a_changed_byte_is_refused_or_harmless(decode: Decode, at: int, change: int) -> None:
    try:
        found = decode(_with_byte(CHECKED, at, change), len(TEXT))
    except FormatError as error:
        assert error.code is ErrorCode.BLOCK_ENCODING
    else:
        assert found == TEXT


@both_ways
@given(tail=st.binary(max_size=60), raw_bytes=st.integers(0, 40))
def test_no_bytes_after_a_good_header_raise_another_error(
    decode: Decode, tail: bytes, raw_bytes: int
) -> None:
    try:
        found = decode(frame(tail, content=raw_bytes), raw_bytes)
    except FormatError as error:
        assert error.code is ErrorCode.BLOCK_ENCODING
    else:
        assert len(found) == raw_bytes


@both_ways
def test_a_refused_frame_does_not_disturb_the_next(decode: Decode) -> None:
    for stored, raw_bytes in HOSTILE.values():
        with pytest.raises(FormatError):
            decode(stored, raw_bytes)
        assert decode(CHECKED, len(TEXT)) == TEXT


def test_the_two_ways_to_decode_accept_views_and_arrays() -> None:
    array = np.frombuffer(FRAME, np.uint8)
    out = np.zeros(len(TEXT) + 2, np.uint8)
    decompress_frame_into(memoryview(FRAME), out[1:-1])

    assert decompress_frame(array, raw_bytes=len(TEXT)) == TEXT
    assert out.tobytes() == b"\0" + TEXT + b"\0"


@pytest.mark.parametrize("level", [0, -1, 23])
def test_a_level_that_zstd_lacks_or_that_spoils_floats_is_refused(level: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"got {level}"):
        make_compressor(level=level, profile="default")
