"""The msgpack profile: one encoding for each value, and nothing else is accepted (spec 6)."""

from __future__ import annotations

import struct
import time
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bcpformat.errors import ErrorCode, FormatError, InvalidArgumentError
from bcpformat.wire import decode_document, encode_document, mp
from bcpformat.wire.walk import walk
from tests.wire.manifests import VALUES, plain

MALFORMED = ErrorCode.MP_MALFORMED
TYPE = ErrorCode.MP_TYPE
NONCANONICAL = ErrorCode.MP_NONCANONICAL


def decode(data: bytes, *, max_depth: int = 16) -> Any:
    return mp.decode(data, max_depth=max_depth, where="document")


def encode(value: Any, *, max_depth: int = 16) -> bytes:
    return mp.encode(value, max_depth=max_depth, where="value")


def code_of(data: bytes, *, max_depth: int = 16) -> ErrorCode:
    with pytest.raises(FormatError) as caught:
        decode(data, max_depth=max_depth)
    assert "document at byte" in str(caught.value)
    return caught.value.code


def spelled(value: object) -> bytes:
    """Return the encoding of a value as the specification says it, form by form."""
    match value:
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            if value < 128:
                return bytes([value])
            for tag, nbytes in ((0xCC, 1), (0xCD, 2), (0xCE, 4)):
                if value < 1 << 8 * nbytes:
                    return bytes([tag]) + value.to_bytes(nbytes, "big")
            return b"\xcf" + value.to_bytes(8, "big")
        case bytes():
            return length(len(value), None, 0, (0xC4, 0xC5, 0xC6)) + value
        case str():
            data = value.encode()
            return length(len(data), 0xA0, 32, (0xD9, 0xDA, 0xDB)) + data
        case list():
            head = length(len(value), 0x90, 16, (None, 0xDC, 0xDD))
            return head + b"".join(map(spelled, value))
        case dict():
            pairs = sorted((k.encode(), v) for k, v in value.items())
            head = length(len(value), 0x80, 16, (None, 0xDE, 0xDF))
            return head + b"".join(spelled(k.decode()) + spelled(v) for k, v in pairs)
    raise AssertionError(value)


def length(n: int, fixed: int | None, below: int, tags: tuple[int | None, ...]) -> bytes:
    if fixed is not None and n < below:
        return bytes([fixed + n])
    for tag, nbytes in zip(tags, (1, 2, 4), strict=True):
        if tag is not None and n < 1 << 8 * nbytes:
            return bytes([tag]) + n.to_bytes(nbytes, "big")
    raise AssertionError(n)


@pytest.mark.slow
@given(VALUES)
def test_a_value_has_the_encoding_of_the_specification_and_is_decoded_from_it(value: Any) -> None:
    data = encode(value, max_depth=64)

    assert data == spelled(value)
    assert plain(decode(data, max_depth=64)) == plain(value)
    assert plain(walk(data, max_depth=64, where="")) == plain(value)


def test_bins_may_be_views_of_the_document() -> None:
    data = encode({"a": [b"xy", "z"], "b": b""}, max_depth=64)

    found = walk(data, max_depth=64, where="", views=True)

    view = found["a"][0]  # type: ignore[index,call-overload]  # known
    assert isinstance(view, memoryview)
    assert view.obj is data
    assert found == {"a": [b"xy", "z"], "b": b""}


@pytest.mark.slow
@given(VALUES)
def test_a_document_cut_anywhere_is_malformed(value: Any) -> None:
    data = encode(value, max_depth=64)
    for nbytes in range(len(data)):
        assert code_of(data[:nbytes], max_depth=64) is MALFORMED


@given(VALUES, st.data())
def test_what_is_accepted_is_what_would_be_encoded(value: Any, data: st.DataObject) -> None:
    document = bytearray(encode(value, max_depth=64))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(document) - 1))
        document[position] = data.draw(st.integers(0, 255))

    outcomes = []
    for decoder in (mp.decode, walk):
        try:
            outcomes.append(plain(decoder(bytes(document), max_depth=8, where="")))
            assert spelled(decoder(bytes(document), max_depth=8, where="")) == document
        except FormatError as error:
            outcomes.append(error.code)
    assert outcomes[0] == outcomes[1]


@given(st.binary(max_size=60))
@example(b"\xd7\xff" + bytes(8))
@example(b"\xc7\x05\xff12345")
@example(b"\xc7\x0c\xff" + b"\xff" * 12)
def test_any_bytes_are_accepted_in_one_form_or_refused(document: bytes) -> None:
    try:
        value = decode(document)
    except FormatError:
        return
    assert spelled(value) == document


FAULTS = {
    "empty": (b"", MALFORMED),
    "trailing object": (b"\x01\x01", MALFORMED),
    "trailing after array": (b"\x91\x01\xc0", MALFORMED),
    "truncated map": (b"\x82\xa1a\x01\xa1b", MALFORMED),
    "truncated length": (b"\xdb\0\0", MALFORMED),
    "array32 claims 4G": (b"\xdd\xff\xff\xff\xff" + bytes(100), MALFORMED),
    "map32 claims 4G": (b"\xdf\xff\xff\xff\xff" + bytes(100), MALFORMED),
    "bin32 claims 4G": (b"\xc6\xff\xff\xff\xff" + bytes(100), MALFORMED),
    "str32 claims 4G": (b"\xdb\xff\xff\xff\xff" + bytes(100), MALFORMED),
    "map with fewer bytes than keys and values": (b"\x82\xa1a\x01", MALFORMED),
    "invalid utf8": (b"\xa2\xff\xfe", MALFORMED),
    "invalid utf8 in a key": (b"\x81\xa1\xff\x01", MALFORMED),
    "surrogate utf8": (b"\xa3\xed\xa0\x80", MALFORMED),
    "overlong utf8": (b"\xa2\xc0\x80", MALFORMED),
    "utf8 above the last character": (b"\xa4\xf4\x90\x80\x80", MALFORMED),
    "nil": (b"\xc0", TYPE),
    "nil as a value": (b"\x81\xa1a\xc0", TYPE),
    "nil as a key": (b"\x81\xc0\x01", TYPE),
    "byte c1": (b"\xc1", TYPE),
    "float32": (b"\xca\0\0\0\0", TYPE),
    "float64": (b"\x91\xcb" + struct.pack(">d", 1.0), TYPE),
    "nan": (b"\x81\xa1a\xcb" + struct.pack(">d", float("nan")), TYPE),
    "timestamp 32": (b"\xd6\xff\0\0\0\1", TYPE),
    "timestamp 64": (b"\xd7\xff" + bytes(8), TYPE),
    "timestamp 96": (b"\xc7\x0c\xff" + bytes(12), TYPE),
    "timestamp of another length": (b"\xc7\x05\xff12345", TYPE),
    "ext": (b"\xd4\x05\0", TYPE),
    "ext32 claims 4G": (b"\xc9\xff\xff\xff\xff\x05", TYPE),
    "negative fixint": (b"\x91\xff", TYPE),
    "int8": (b"\xd0\x05", TYPE),
    "int64": (b"\xd3" + bytes(7) + b"\x05", TYPE),
    "int as a key": (b"\x81\x01\x01", TYPE),
    "bin as a key": (b"\x81\xc4\x01a\x01", TYPE),
    "array as a key": (b"\x81\x90\x01", TYPE),
    "map as a key": (b"\x81\x80\x01", TYPE),
    "false as a key": (b"\x81\xc2\x01", TYPE),
    "duplicate key, same value": (b"\x82\xa1a\x01\xa1a\x01", NONCANONICAL),
    "duplicate key, other value": (b"\x82\xa1a\x01\xa1a\x02", NONCANONICAL),
    "keys unsorted": (b"\x82\xa1b\x01\xa1a\x01", NONCANONICAL),
    "keys sorted by length": (b"\x82\xa1b\x01\xa2ab\x01", NONCANONICAL),
    "keys sorted as UTF-16": (
        b"\x82\xa4\xf0\x90\x80\x80\x01\xa3\xef\xbf\xbd\x01",
        NONCANONICAL,
    ),
    "uint8 for 127": (b"\xcc\x7f", NONCANONICAL),
    "uint16 for 255": (b"\xcd\0\xff", NONCANONICAL),
    "uint32 for 65535": (b"\xce\0\0\xff\xff", NONCANONICAL),
    "uint64 for 2^32-1": (b"\xcf\0\0\0\0\xff\xff\xff\xff", NONCANONICAL),
    "str8 for 31 bytes": (b"\xd9\x1f" + b"a" * 31, NONCANONICAL),
    "str16 for 255 bytes": (b"\xda\0\xff" + b"a" * 255, NONCANONICAL),
    "str32 for 65535 bytes": (b"\xdb\0\0\xff\xff" + b"a" * 65535, NONCANONICAL),
    "str8 for a key": (b"\x81\xd9\x01a\x01", NONCANONICAL),
    "bin16 for 255 bytes": (b"\xc5\0\xff" + bytes(255), NONCANONICAL),
    "bin32 for 65535 bytes": (b"\xc6\0\0\xff\xff" + bytes(65535), NONCANONICAL),
    "array16 for 15": (b"\xdc\0\x0f" + bytes(15), NONCANONICAL),
    "array32 for 65535": (b"\xdd\0\0\xff\xff" + bytes(65535), NONCANONICAL),
    "map16 for 0": (b"\xde\0\0", NONCANONICAL),
    "map32 for 0": (b"\xdf\0\0\0\0", NONCANONICAL),
    "2^53": (b"\xcf\0\x20\0\0\0\0\0\0", ErrorCode.RANGE),
    "2^64-1": (b"\x91\xcf" + b"\xff" * 8, ErrorCode.RANGE),
}


@pytest.mark.parametrize(("document", "code"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_has_its_code(document: bytes, code: ErrorCode) -> None:
    assert code_of(document) is code


def test_a_fault_is_found_where_it_is() -> None:
    with pytest.raises(FormatError, match="document at byte 4: nil"):
        decode(b"\x82\xa1a\x01\xc0\x01")


def test_the_first_fault_decides() -> None:
    assert code_of(b"\x93\xcc\x01\xc0\xa1\xff") is NONCANONICAL
    assert code_of(b"\x93\xc0\xcc\x01\xa1\xff") is TYPE


@pytest.mark.parametrize("max_depth", [16, 128])
def test_arrays_and_maps_nest_as_deep_as_allowed_and_no_deeper(max_depth: int) -> None:
    arrays = b"\x91" * (max_depth - 1) + b"\x90"
    maps = b"\x81\xa1a" * max_depth + b"\x01"
    assert encode(decode(arrays, max_depth=max_depth), max_depth=max_depth) == arrays
    assert encode(decode(maps, max_depth=max_depth), max_depth=max_depth) == maps

    assert code_of(b"\x91" + arrays, max_depth=max_depth) is ErrorCode.DEPTH
    assert code_of(b"\x81\xa1a" + maps, max_depth=max_depth) is ErrorCode.DEPTH


@pytest.mark.parametrize("nesting", [b"\x91", b"\x81\xa0", b"\xdd\0\1\0\0", b"\xdf\0\1\0\0\xa0"])
def test_a_depth_bomb_is_refused_at_once_and_in_little_memory(nesting: bytes) -> None:
    bomb = nesting * 100_000
    tracemalloc.start()
    begin = time.perf_counter()

    code = code_of(bomb, max_depth=128)

    assert code is ErrorCode.DEPTH
    assert time.perf_counter() - begin < 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * len(bomb) + 2**20


def test_nested_claims_do_not_allocate_what_they_claim() -> None:
    """Each of 128 arrays claims nearly as many items as the document has bytes."""
    document = b"\xdc\x3f\0" * 128 + bytes(2**14)
    tracemalloc.start()

    code = code_of(document, max_depth=128)

    assert code is MALFORMED
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 * len(document)


def test_payload_that_looks_like_many_arrays_is_decoded_all_the_same() -> None:
    for payload in (b"\xdc\xff\xff" * 1000, b"\xdd" * 20_000):
        value = [payload, "x" * 70_000, 1]
        assert decode(encode(value)) == value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (None, "value: type 'NoneType'"),
        ([1, 2.5], r"value\[1\]: type 'float'"),
        ({"a": {"b": [(), 1]}}, r"value\['a'\]\['b'\]\[0\]: type 'tuple'"),
        ({"a": -1}, r"value\['a'\]: integer -1"),
        ([2**53], r"value\[0\]: integer 9007199254740992"),
        ({"a": {1: 2}}, r"value\['a'\]: map key 1"),
        ({"a": "\ud800"}, r"value\['a'\]: str cannot be UTF-8"),
        ({"\udfff": 1}, "value: str cannot be UTF-8"),
        ({"b": 1, "a": {"\udfff": 1}}, r"value\['a'\]: str cannot be UTF-8"),
        ([bytearray(b"x")], r"value\[0\]: type 'bytearray'"),
        ([type("Text", (str,), {})("x")], r"value\[0\]: type 'Text'"),
        ([[[[]]]], r"value\[0\]\[0\]\[0\]: nests"),
    ],
)
def test_a_value_without_form_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(InvalidArgumentError, match=path) as caught:
        encode(value, max_depth=3)

    assert caught.value.code is ErrorCode.NO_FORM


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)

    with pytest.raises(InvalidArgumentError):
        encode(value)


def test_keys_are_sorted_at_every_depth_and_the_value_is_left_alone() -> None:
    value = {"b": [{"d": 1, "c": 2}], "a": True}

    assert encode(value) == msgpack.packb({"a": True, "b": [{"c": 2, "d": 1}]})
    assert list(value) == ["b", "a"]


def test_the_document_of_a_node_nests_up_to_128() -> None:
    node: Any = 1
    for _ in range(128):
        node = [8, node]

    assert decode_document(encode_document(node), where="w") == node
    with pytest.raises(InvalidArgumentError):
        encode_document([8, node])
    with pytest.raises(FormatError, match="the place") as caught:
        decode_document(b"\x92\x08" * 129 + b"\x01", where="the place")
    assert caught.value.code is ErrorCode.DEPTH
