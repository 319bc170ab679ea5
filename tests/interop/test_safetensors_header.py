from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load

from bcpformat.errors import BcpError, ErrorCode, FormatError
from bcpformat.interop.safetensors_file import open_safetensors
from bcpformat.interop.safetensors_header import MAX_HEADER_BYTES, build_header, parse_header

ROW = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def file_of(header: object, data: bytes = bytes(8)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def refusal(tmp_path: Path, content: bytes) -> ErrorCode:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(FormatError) as caught:
        open_safetensors(str(path))
    return caught.value.code


def row(**changes: object) -> dict[str, object]:
    return {"w": {**ROW, **changes}}


HOSTILE = {
    "empty file": (b"", ErrorCode.TRUNCATED),
    "seven bytes": (b"1234567", ErrorCode.TRUNCATED),
    "header beyond the file": (struct.pack("<Q", 100) + b"{}", ErrorCode.TRUNCATED),
    "header above the limit": (struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}", ErrorCode.LIMIT),
    "largest length": (b"\xff" * 8 + b"{}", ErrorCode.LIMIT),
    "no header": (struct.pack("<Q", 0), ErrorCode.MAGIC),
    "a list": (file_of(b"[]"), ErrorCode.MAGIC),
    "space before the brace": (file_of(b" {}"), ErrorCode.MAGIC),
    "not JSON": (file_of(b"{nope}"), ErrorCode.TYPE),
    "not UTF-8": (file_of(b'{"\xff":1}'), ErrorCode.TYPE),
    "text after the map": (file_of(b"{} x"), ErrorCode.TYPE),
    "nested too deep": (file_of(b'{"a":' + b"[" * 200_000), ErrorCode.TYPE),
    "NaN": (file_of(b'{"w":NaN}'), ErrorCode.TYPE),
    "a number of many digits": (file_of(b'{"w":' + b"9" * 5000 + b"}"), ErrorCode.TYPE),
    "a name twice": (
        file_of(b'{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
                b'"w":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}'),
        ErrorCode.TYPE,
    ),
    "a key twice": (
        file_of(b'{"w":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}}'),
        ErrorCode.TYPE,
    ),
    "a surrogate": (file_of(b'{"\\ud800":1}'), ErrorCode.NAME),
    "a row that is no map": (file_of({"w": 1}), ErrorCode.TYPE),
    "no dtype": (file_of({"w": {"shape": [2], "data_offsets": [0, 8]}}), ErrorCode.KEY_MISSING),
    "no shape": (file_of({"w": {"dtype": "F32", "data_offsets": [0, 8]}}), ErrorCode.KEY_MISSING),
    "no offsets": (file_of({"w": {"dtype": "F32", "shape": [2]}}), ErrorCode.KEY_MISSING),
    "a key more": (file_of(row(extra=1)), ErrorCode.KEY_UNKNOWN),
    "an unknown dtype": (file_of(row(dtype="F33")), ErrorCode.DTYPE),
    "a dtype that is no text": (file_of(row(dtype=[])), ErrorCode.DTYPE),
    "bits in no defined order": (file_of(row(dtype="F6_E2M3", shape=[4])), ErrorCode.DTYPE),
    "a shape that is no list": (file_of(row(shape=2)), ErrorCode.TYPE),
    "an extent that is a float": (file_of(row(shape=[2.0])), ErrorCode.TYPE),
    "an extent that is a bool": (file_of(row(shape=[True, 2])), ErrorCode.TYPE),
    "a negative extent": (file_of(row(shape=[-2])), ErrorCode.OVERFLOW),
    "two negative extents": (file_of(row(shape=[-2, -1])), ErrorCode.OVERFLOW),
    "an extent above 2^53": (file_of(row(shape=[2**64])), ErrorCode.OVERFLOW),
    "a product above 2^53": (file_of(row(shape=[2**32, 2**32])), ErrorCode.OVERFLOW),
    "a product above 2^53 beside 0": (file_of(row(shape=[2**32, 2**32, 0])), ErrorCode.OVERFLOW),
    "too many axes": (file_of(row(shape=[1] * 33)), ErrorCode.RANGE),
    "one offset": (file_of(row(data_offsets=[8])), ErrorCode.RANGE),
    "an end before the begin": (file_of(row(data_offsets=[8, 0])), ErrorCode.RANGE),
    "a negative offset": (file_of(row(data_offsets=[-8, 0])), ErrorCode.OVERFLOW),
    "offsets of another length": (file_of(row(data_offsets=[0, 4])), ErrorCode.RAW_LENGTH),
    "half a byte": (file_of(row(dtype="F4", shape=[3], data_offsets=[0, 2])), ErrorCode.RANGE),
    "data that ends early": (file_of({"w": ROW}, bytes(7)), ErrorCode.TRUNCATED),
    "data left over": (file_of({"w": ROW}, bytes(9)), ErrorCode.EXTENT_HOLE),
    "data and no tensor": (file_of({}, bytes(1)), ErrorCode.EXTENT_HOLE),
    "a hole": (file_of(row(data_offsets=[8, 16]), bytes(16)), ErrorCode.EXTENT_HOLE),
    "an overlap": (
        file_of({"a": ROW, "b": {**ROW, "data_offsets": [4, 12]}}, bytes(12)),
        ErrorCode.EXTENT_OVERLAP,
    ),
    "the same bytes twice": (file_of({"a": ROW, "b": ROW}), ErrorCode.EXTENT_OVERLAP),
    "metadata that is a list": (file_of({"__metadata__": [], "w": ROW}), ErrorCode.TYPE),
    "metadata that is no text": (file_of({"__metadata__": {"a": 1}, "w": ROW}), ErrorCode.TYPE),
}  # fmt: skip


@pytest.mark.parametrize(("content", "code"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_is_refused_with_its_code(
    tmp_path: Path, content: bytes, code: ErrorCode
) -> None:
    assert refusal(tmp_path, content) is code


@given(st.binary(max_size=200))
def test_any_bytes_are_a_header_or_one_of_our_errors(data: bytes) -> None:
    try:
        parse_header(b"{" + data, data_bytes=0, where="x")
    except BcpError:
        return


@given(st.data())
def test_a_mutated_header_is_refused_or_accepted_by_the_library_too(data: st.DataObject) -> None:
    whole = bytearray(
        file_of(
            {
                "__metadata__": {"k": "v"},
                "w": ROW,
                "e": {"dtype": "U8", "shape": [0, 3], "data_offsets": [8, 8]},
            }
        )
    )
    position = data.draw(st.integers(8, len(whole) - 9))
    whole[position] = data.draw(st.integers(0, 255))
    length = len(whole) - 16
    try:
        parse_header(bytes(whole[8 : 8 + length]), data_bytes=8, where="x")
    except BcpError:
        return
    try:
        load(bytes(whole))
    except safetensors.SafetensorError as error:
        raise AssertionError(f"we accept {bytes(whole)!r}, the library says {error}") from error


def test_a_built_header_is_parsed_back() -> None:
    text = json.dumps(
        {
            "__metadata__": {"k": "\u00fc"},
            "w": ROW,
            "a/b": {"dtype": "BF16", "shape": [], "data_offsets": [8, 10]},
        }
    )
    parsed = parse_header(text.encode(), data_bytes=10, where="x")

    built = build_header(parsed.entries, parsed.metadata)

    assert len(built) % 8 == 0
    assert parse_header(built[8:], data_bytes=10, where="x") == parsed


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        open_safetensors(str(tmp_path))

    assert caught.value.code is ErrorCode.FILE_TYPE
