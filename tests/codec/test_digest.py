"""Digests against known answers and against the library's own order of bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import xxhash

from bcpformat.codec.digest import block_digest, document_digest

RAMP = bytes(range(256)) * 17  # longer than the 240 bytes up to which XXH3 takes another path


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (b"", 0x2D06800538D394C2),
        (b"a", 0xE6C632B61E964E1F),
        (b"abc", 0x78AF5F94892F3950),
        (RAMP, 0x56F05CA6814AF06F),
        (bytes(1 << 20), 0x918780B90550BF34),
    ],
    ids=["empty", "a", "abc", "ramp", "zeros"],
)
def test_a_block_digest_has_its_known_answer(data: bytes, digest: int) -> None:
    assert f"{block_digest(data):016x}" == f"{digest:016x}"


@pytest.mark.parametrize(
    ("data", "stored"),
    [
        (b"", "7f498d4624c30160d8984701d306aa99"),
        (b"abc", "50392f89945faf7885613a73b65ab006"),
        (RAMP, "6ff04a81a65cf0566cf788623a5ccaaa"),
    ],
    ids=["empty", "abc", "ramp"],
)
def test_a_document_digest_is_stored_low_word_first_and_little_endian(
    data: bytes, stored: str
) -> None:
    assert document_digest(data).hex() == stored


def test_a_document_digest_is_the_canonical_form_reversed() -> None:
    assert document_digest(RAMP) == xxhash.xxh3_128(RAMP).digest()[::-1]


@pytest.mark.parametrize(
    "data",
    [
        bytearray(RAMP),
        memoryview(RAMP),
        np.frombuffer(RAMP, np.uint8),
        np.frombuffer(RAMP, "<f4").reshape(2, -1),
        np.frombuffer(RAMP, ml_dtypes.bfloat16),
        np.frombuffer(RAMP, "<u2").reshape(4, -1).data,
    ],
    ids=["bytearray", "memoryview", "u8", "2-d f4", "bfloat16", "2-d memoryview"],
)
def test_digests_do_not_depend_on_what_holds_the_bytes(
    data: bytearray | memoryview | np.ndarray,
) -> None:
    assert block_digest(data) == block_digest(RAMP)
    assert document_digest(data) == document_digest(RAMP)


def test_no_elements_have_the_digest_of_no_bytes() -> None:
    assert block_digest(np.empty((0, 4), "<f4")) == block_digest(b"")
