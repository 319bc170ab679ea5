"""The header of a file (spec 5)."""

from __future__ import annotations

import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.errors import (
    ChecksumError,
    ErrorCode,
    FormatError,
    InvalidArgumentError,
    UnsupportedError,
)
from bcpformat.wire import Header, Kind, data_file_head, decode_header, encode_header

ID = bytes(range(16))
DATA = Header(kind=Kind.DATA, attempt_id=ID)
MANIFEST = Header(kind=Kind.MANIFEST, attempt_id=ID, root_stored_bytes=5, root_raw_bytes=9)


def changed(header: Header, offset: int, value: bytes) -> bytes:
    """Return an encoded header with bytes replaced and the checksum made right again."""
    data = bytearray(encode_header(header))
    data[offset : offset + len(value)] = value
    data[56:] = struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(data[:56])))
    return bytes(data)


def code_of(data: bytes, expect: Kind = Kind.DATA) -> ErrorCode:
    with pytest.raises(FormatError) as caught:
        decode_header(data, key="some/key", expect=expect)
    assert "some/key" in str(caught.value)
    return caught.value.code


def test_a_header_has_the_bytes_of_the_specification() -> None:
    fields = struct.pack("<8sHHHH16sQQQ", b"\x89BCP\r\n\x1a\n", 1, 0, 1, 0, ID, 5, 9, 0)

    assert encode_header(MANIFEST) == fields + struct.pack("<Q", xxhash.xxh3_64_intdigest(fields))


@given(
    kind=st.sampled_from(Kind),
    attempt_id=st.binary(min_size=16, max_size=16),
    minor=st.integers(0, 2**16 - 1),
    lengths=st.tuples(st.integers(1, 2**64 - 1), st.integers(1, 2**64 - 1)).map(sorted),
)
def test_a_header_is_decoded_to_what_was_encoded(
    kind: Kind, attempt_id: bytes, minor: int, lengths: list[int]
) -> None:
    stored, raw = lengths if kind is Kind.MANIFEST else (0, 0)
    header = Header(
        kind=kind,
        attempt_id=attempt_id,
        minor=minor,
        root_stored_bytes=stored,
        root_raw_bytes=raw,
    )

    assert decode_header(encode_header(header) + b"more", key="k", expect=kind) == header


def test_a_data_file_begins_with_its_header_and_zeros() -> None:
    head = data_file_head(ID)

    assert decode_header(head, key="k", expect=Kind.DATA) == DATA
    assert head[64:] == bytes(4032)


@pytest.mark.parametrize("nbytes", range(64))
def test_every_shorter_file_is_truncated(nbytes: int) -> None:
    assert code_of(encode_header(DATA)[:nbytes]) is ErrorCode.TRUNCATED


@pytest.mark.parametrize("bit", range(64 * 8))
def test_a_flip_of_any_bit_is_found(bit: int) -> None:
    data = bytearray(encode_header(MANIFEST))
    data[bit // 8] ^= 1 << bit % 8

    expected = ErrorCode.MAGIC if bit < 64 else ErrorCode.HEADER_CHECKSUM
    assert code_of(bytes(data), Kind.MANIFEST) is expected


@pytest.mark.parametrize(
    ("header", "offset", "value", "code"),
    [
        (DATA, 0, b"\x89BCP\n\x1a\n\0", ErrorCode.MAGIC),
        (DATA, 0, b"\x09BCP\r\n\x1a\n", ErrorCode.MAGIC),
        (DATA, 0, b"\xef\xbb\xbf\x89BCP\r", ErrorCode.MAGIC),
        (DATA, 0, b"PK\x03\x04\0\0\0\0", ErrorCode.MAGIC),
        (DATA, 8, b"\x02\0", ErrorCode.VERSION),
        (DATA, 8, b"\0\0", ErrorCode.VERSION),
        (DATA, 12, b"\x01\0", ErrorCode.KIND),
        (DATA, 12, b"\x03\0", ErrorCode.KIND),
        (DATA, 12, b"\x04\0", ErrorCode.KIND),
        (DATA, 14, b"\x01\0", ErrorCode.RESERVED),
        (DATA, 48, b"\0\0\0\0\0\0\0\x01", ErrorCode.RESERVED),
        (DATA, 32, b"\x01", ErrorCode.LENGTH),
        (DATA, 40, b"\x01", ErrorCode.LENGTH),
        (MANIFEST, 32, b"\0", ErrorCode.LENGTH),
        (MANIFEST, 32, b"\x0a", ErrorCode.LENGTH),
        (MANIFEST, 40, b"\0", ErrorCode.LENGTH),
    ],
)
def test_a_field_out_of_its_rule_is_refused(
    header: Header, offset: int, value: bytes, code: ErrorCode
) -> None:
    assert code_of(changed(header, offset, value), header.kind) is code


def test_the_rules_are_checked_in_the_order_of_the_specification() -> None:
    data = bytearray(changed(DATA, 8, b"\x02\0\0\0\x01\0\x01\0"))
    assert code_of(bytes(data)) is ErrorCode.VERSION
    assert code_of(changed(DATA, 12, b"\x01\0\x01\0")) is ErrorCode.KIND

    data[56] ^= 1
    assert code_of(bytes(data)) is ErrorCode.HEADER_CHECKSUM
    data[0] ^= 1
    assert code_of(bytes(data)) is ErrorCode.MAGIC
    reserved_and_length = changed(DATA, 32, b"\x01" + bytes(15) + b"\x01")
    assert code_of(reserved_and_length) is ErrorCode.RESERVED


def test_another_major_version_is_unsupported_and_both_versions_are_named() -> None:
    with pytest.raises(UnsupportedError, match=r"2\.7.*1\.0"):
        decode_header(changed(DATA, 8, b"\x02\0\x07\0"), key="k", expect=Kind.DATA)


def test_a_wrong_checksum_is_a_checksum_error() -> None:
    with pytest.raises(ChecksumError):
        decode_header(encode_header(DATA)[:-1] + b"\xff", key="k", expect=Kind.DATA)


@pytest.mark.parametrize(
    "fields",
    [
        {"attempt_id": bytes(15)},
        {"minor": -1},
        {"minor": 2**16},
        {"root_stored_bytes": 1},
        {"kind": Kind.MANIFEST},
        {"kind": Kind.MANIFEST, "root_stored_bytes": 1, "root_raw_bytes": 2**64},
    ],
)
def test_a_header_that_breaks_a_rule_cannot_be_made(fields: dict[str, int | bytes]) -> None:
    with pytest.raises(InvalidArgumentError):
        Header(**({"kind": Kind.DATA, "attempt_id": ID} | fields))  # type: ignore[arg-type]
