"""Encoded blocks: the codec registry, zstd frames, planes (spec 9.1 to 9.3)."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest
import zstandard

import bcpformat
from bcpformat import BcpError
from spec.examples.make_example import frame_of, joined
from tests.oracle.make_checkpoint import PLANES, shorter
from tests.rules.build import Draft, base, compressed
from tests.rules.samples import encoded
from tests.rules.verdicts import (
    OPTIONS,
    accept,
    problems,
    read_code,
    refuse,
    refuse_to_open,
    store_of,
)

ZEROS = bytes(4096)
MAGIC = b"\x28\xb5\x2f\xfd"
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\0\0\0skip"
EMPTY = MAGIC + b"\x20\x00\x01\0\0"
"""A frame of no content."""


def frame(
    *,
    content: bytes | None = None,
    descriptor: int = 0x60,
    between: bytes = b"",
    count: int = 4096,
) -> bytes:
    """Return a frame of 4096 zeros with another header.

    Args:
        content: The field of the content size, None for that of 4096 in two bytes.
        descriptor: The byte behind the magic.
        between: What stands between descriptor and content size: window, dictionary id.
        count: How many zeros its only block makes.
    """
    size = struct.pack("<H", 4096 - 256) if content is None else content
    block = struct.pack("<I", 1 | 1 << 1 | count << 3)[:3] + b"\0"
    return MAGIC + bytes([descriptor]) + between + size + block


TENSOR = {"t": ("int8", (4096,), ZEROS)}


def test_the_example_of_the_spec_is_decoded() -> None:
    """BCP-COD-003, BCP-COD-004: a valid case, and the same from `frame`."""
    assert frame() == joined(frame_of(0, 4096))

    accept(encoded(frame(), ZEROS), TENSOR)


# ---- the registry ------------------------------------------------------------------------------


def test_a_codec_with_a_feature_needs_it_in_require() -> None:
    """BCP-COD-001: E_FEATURE."""
    draft = base()
    draft.root["require"] = []

    refuse_to_open(draft, "E_FEATURE")


def test_a_codec_without_a_feature_needs_none() -> None:
    """BCP-COD-001: `raw` and `zstd` are core."""
    draft = encoded(frame(), ZEROS)
    assert draft.root["require"] == []

    accept(draft, TENSOR)


def test_planes_of_items_of_one_byte_are_refused() -> None:
    """BCP-COD-002: E_CODEC."""
    refuse_to_open(encoded(frame(), ZEROS, codec=PLANES, item=1), "E_CODEC")


# ---- frames ------------------------------------------------------------------------------------

NOT_ONE_FRAME = {
    "trailing byte": frame() + b"\0",
    "second frame": frame() + frame(),
    "empty frame behind": frame() + EMPTY,
    "empty frame before": EMPTY + frame(),
    "skippable frame behind": frame() + SKIPPABLE,
    "skippable frame before": SKIPPABLE + frame(),
    "skippable frame alone": SKIPPABLE,
    "cut": frame()[:-1],
    "header alone": frame()[:7],
    "magic alone": MAGIC,
    "one byte": MAGIC[:1],
    "another magic": b"\x27" + frame()[1:],
    "older magic": b"\x27\xb5\x2f\xfd" + frame()[4:],
    "frame of half and frame of half": compressed(bytes(2048)) * 2,
}


@pytest.mark.parametrize("name", NOT_ONE_FRAME)
def test_a_block_is_exactly_one_frame(name: str) -> None:
    """BCP-COD-003, BCP-COD-006: E_BLOCK_ENCODING."""
    refuse(encoded(NOT_ONE_FRAME[name], ZEROS), "E_BLOCK_ENCODING")


def window(log2: int, mantissa: int = 0) -> bytes:
    """Return the byte of a window of 2^log2 bytes and so many eighths of it."""
    return bytes([(log2 - 10) << 3 | mantissa])


GOOD_HEADERS = {
    "4 bytes of content size": frame(descriptor=0xA0, content=struct.pack("<I", 4096)),
    "8 bytes of content size": frame(descriptor=0xE0, content=struct.pack("<Q", 4096)),
    "window of 2^27": frame(descriptor=0x40, between=window(27)),
    "window of 1 KiB and a content that fits": frame(descriptor=0x40, between=window(12)),
}


@pytest.mark.parametrize("name", GOOD_HEADERS)
def test_other_headers_of_the_same_meaning_are_accepted(name: str) -> None:
    """BCP-COD-004: valid cases, the largest window among them."""
    accept(encoded(GOOD_HEADERS[name], ZEROS), TENSOR)


def test_a_frame_may_have_a_checksum() -> None:
    """BCP-COD-004, BCP-COD-006: and then it is checked."""
    right = zstandard.ZstdCompressor(write_checksum=True).compress(ZEROS)
    wrong = right[:-1] + bytes([right[-1] ^ 1])

    accept(encoded(right, ZEROS), TENSOR)
    refuse(encoded(wrong, ZEROS), "E_BLOCK_ENCODING")


BAD_HEADERS = {
    "no content size": frame(descriptor=0x00, between=window(12), content=b""),
    "less content": frame(content=struct.pack("<H", 4095 - 256)),
    "more content": frame(content=struct.pack("<H", 4097 - 256)),
    "dictionary id of 1 byte": frame(descriptor=0x61, between=b"\1"),
    "dictionary id 0": frame(descriptor=0x61, between=b"\0"),
    "dictionary id of 2 bytes": frame(descriptor=0x62, between=b"\0\0"),
    "dictionary id of 4 bytes": frame(descriptor=0x63, between=bytes(4)),
    "reserved bit": frame(descriptor=0x68),
    "window above 2^27": frame(descriptor=0x40, between=window(27, 1)),
    "window of 2^41": frame(descriptor=0x40, between=b"\xff"),
    "content of 2^64-1": frame(descriptor=0xE0, content=b"\xff" * 8),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_a_header_declares_the_content_and_no_more(name: str) -> None:
    """BCP-COD-004, BCP-COD-006: E_BLOCK_ENCODING."""
    refuse(encoded(BAD_HEADERS[name], ZEROS), "E_BLOCK_ENCODING")


def test_the_unused_bit_of_a_header_has_no_meaning() -> None:
    """BCP-COD-004: RFC 8878 lets decoders ignore it; only the reserved bit is a rule."""
    accept(encoded(frame(descriptor=0x70), ZEROS), TENSOR)


@pytest.mark.parametrize(
    "stored",
    [
        frame(descriptor=0xE0, content=struct.pack("<Q", 2**40)),
        frame(descriptor=0xC0, between=b"\xff", content=struct.pack("<Q", 2**60)),
    ],
)
def test_a_header_is_checked_before_memory_is_taken(stored: bytes) -> None:
    """BCP-COD-005: neither the content nor the window that it declares is allocated."""
    store = store_of(encoded(stored, ZEROS))
    tracemalloc.start()
    with pytest.raises(BcpError) as caught:
        bcpformat.read(store, as_numpy=True, options=OPTIONS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert caught.value.code.value == "E_BLOCK_ENCODING"
    assert peak < 2**25


@pytest.mark.parametrize("count", [1, 4095, 4097, 8192])
def test_a_frame_decodes_to_the_length_it_declares(count: int) -> None:
    """BCP-COD-006: E_BLOCK_ENCODING for fewer and for more bytes."""
    refuse(encoded(frame(count=count), ZEROS), "E_BLOCK_ENCODING")


def test_a_damaged_frame_does_not_decode() -> None:
    """BCP-COD-006: E_BLOCK_ENCODING for a block of the type that RFC 8878 reserves."""
    damaged = bytearray(frame())
    damaged[7] |= 0x06

    refuse(encoded(bytes(damaged), ZEROS), "E_BLOCK_ENCODING")


def test_a_frame_of_other_content_has_another_digest() -> None:
    """BCP-COD-006, BCP-RUN-008: what decodes is not right yet."""
    refuse(encoded(joined(frame_of(1, 4096)), ZEROS), "E_BLOCK_CHECKSUM")


# ---- planes ------------------------------------------------------------------------------------


def planes(*parts: bytes) -> bytes:
    """Return a block of planes with the right lengths."""
    return struct.pack(f"<{len(parts)}I", *map(len, parts)) + b"".join(parts)


NOISE = random.Random(1).randbytes(2048)
SPREAD = bytes(byte for pair in zip(NOISE, bytes(2048), strict=True) for byte in pair)
"""Elements of two bytes: the high ones are zero, the low ones are noise."""
HIGH = compressed(bytes(2048))


def of_planes(stored: bytes, raw: bytes = SPREAD, *, item: int = 2) -> Draft:
    """Return a checkpoint of a block of `planes-zstd`."""
    return encoded(stored, raw, codec=PLANES, item=item)


def test_planes_that_do_not_get_shorter_are_raw() -> None:
    """BCP-COD-007: plane 0 is a frame, plane 1 is raw."""
    accept(of_planes(planes(HIGH, NOISE)), {"t": ("bfloat16", (2048,), SPREAD)})


@pytest.mark.parametrize("item", [2, 4, 8])
def test_planes_go_from_the_most_to_the_least_significant_byte(item: int) -> None:
    """BCP-COD-007, BCP-COD-008: for every item, all planes frames of different bytes."""
    raw = bytes(range(1, item + 1)) * 512
    parts = [bytes(shorter(bytes([item - number]) * 512)) for number in range(item)]
    dtype = {2: "bfloat16", 4: "float32", 8: "int64"}[item]

    accept(of_planes(planes(*parts), raw, item=item), {"t": (dtype, (512,), raw)})
    refuse(of_planes(planes(*reversed(parts)), raw, item=item), "E_BLOCK_CHECKSUM")


BAD_PLANES = {
    "longer than the plane": planes(HIGH + bytes(2049 - len(HIGH)), NOISE[:1]),
    "frame of less": planes(compressed(bytes(2047)), NOISE),
    "frame of more": planes(compressed(bytes(2049)), NOISE),
    "frame and a byte": planes(HIGH + b"\0", NOISE),
    "no frame": planes(bytes(20), NOISE),
    "no bytes": planes(b"", NOISE),
    "raw but a byte less": planes(HIGH, NOISE[:-1]),
}


@pytest.mark.parametrize("name", BAD_PLANES)
def test_a_plane_is_raw_or_one_frame_of_its_length(name: str) -> None:
    """BCP-COD-007: E_BLOCK_ENCODING."""
    refuse(of_planes(BAD_PLANES[name]), "E_BLOCK_ENCODING")


def _lengths(first: int, second: int, tail: bytes = b"") -> bytes:
    return struct.pack("<2I", first, second) + HIGH + NOISE + tail


@pytest.mark.parametrize(
    "stored",
    [
        _lengths(len(HIGH), 2048, b"\0"),
        _lengths(len(HIGH), 2047),
        _lengths(len(HIGH) + 1, 2048),
        _lengths(2**32 - 1, 2048),
        _lengths(2**32 - 1, len(HIGH) + 2048 + 1),
        struct.pack("<2I", len(HIGH), 2048)[:7],
        b"\0",
        bytes(8),
    ],
    ids=[
        "byte behind",
        "short",
        "long",
        "huge",
        "wraps in 32 bits",
        "cut head",
        "one byte",
        "zeros",
    ],
)
def test_lengths_of_planes_add_up_to_that_of_the_block(stored: bytes) -> None:
    """BCP-COD-008: E_BLOCK_ENCODING."""
    refuse(of_planes(stored), "E_BLOCK_ENCODING")


def test_a_refused_block_leaves_the_others_readable() -> None:
    """BCP-COD-006: the code says which block, nothing else is lost."""
    draft = base()
    file = draft.data["b.bcd"]
    stored = file.parts[4096]
    file.parts[4096] = b"\0" + stored[1:]

    assert read_code(draft) == "E_BLOCK_ENCODING"
    assert problems(draft) == ["E_BLOCK_ENCODING"]
    found = bcpformat.read(store_of(draft), filter=["p", "w"], as_numpy=True, options=OPTIONS)
    assert sorted(found) == ["p", "w"]
