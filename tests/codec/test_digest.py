"""Digests against known answers and against the library's own order of bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.codec.block import verify_block
from bcpformat.codec.digest import block_digest, block_digests, document_digest
from bcpformat.errors import ChecksumError, ErrorCode, InvalidArgumentError

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


@given(st.binary(max_size=300), st.integers(1, 310))
def test_block_digests_are_those_of_the_slices(data: bytes, block_bytes: int) -> None:
    digests = block_digests(data, block_bytes=block_bytes)

    blocks = [data[i : i + block_bytes] for i in range(0, len(data), block_bytes)]
    assert digests.dtype == np.uint64
    assert digests.tolist() == [xxhash.xxh3_64_intdigest(block) for block in blocks]


def test_a_block_size_of_zero_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="got 0"):
        block_digests(b"abc", block_bytes=0)


def test_bytes_with_their_digest_verify() -> None:
    verify_block(RAMP, expected=block_digest(RAMP), where="block 3")


def test_a_flipped_bit_is_reported_with_both_digests_and_the_place() -> None:
    with pytest.raises(ChecksumError) as caught:
        verify_block(b"abb", expected=0x78AF5F94892F3950, where="'a.bcd' run 2 block 3")

    assert caught.value.code is ErrorCode.BLOCK_CHECKSUM
    for part in ("'a.bcd' run 2 block 3", "78af5f94892f3950", f"{block_digest(b'abb'):016x}"):
        assert part in str(caught.value)
