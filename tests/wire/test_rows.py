"""The sections files, tensors and objects: one fault at a time (spec 7.2, 7.3, 7.5)."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest

from bcpformat.errors import ErrorCode, FormatError, UnsupportedError
from bcpformat.model.dtypes import DTYPES
from bcpformat.model.manifest import TensorTable, Value
from bcpformat.wire.rows import decode_files, decode_objects, decode_tensors, encode_tensors
from tests.wire.manifests import DIGEST, ID

FILE: dict[str, Value] = {"blocks": 1, "digest": DIGEST, "name": "a.bcd", "table": 8192}
TENSOR: dict[str, Value] = {"dtype": "float32", "name": "w", "shape": [2, 3]}
OBJECT: dict[str, Value] = {"name": "o", "nbytes": 1, "offset": 0, "run": 0}
FIRST = {"files": FILE, "tensors": TENSOR, "objects": OBJECT}


def packed(rows: Any) -> bytes:
    return msgpack.packb(rows)


def decode(kind: str, rows: Any, *, minor: int = 0) -> Any:
    raw = packed(rows)
    match kind:
        case "files":
            return decode_files(raw, attempt_id=ID, minor=minor)
        case "tensors":
            return decode_tensors(raw, minor=minor)
        case _:
            return decode_objects(raw, minor=minor)


def code_of(kind: str, rows: Any, *, minor: int = 0) -> ErrorCode:
    with pytest.raises(FormatError) as caught:
        decode(kind, rows, minor=minor)
    assert kind.rstrip("s") in str(caught.value)
    return caught.value.code


def row(kind: str, /, **changes: Any) -> dict[str, Any]:
    values = FIRST[kind] | changes
    return {key: values[key] for key in sorted(values) if values[key] is not None}


@pytest.mark.parametrize(
    ("kind", "key"), [(kind, key) for kind, first in FIRST.items() for key in first]
)
def test_a_missing_key_is_refused_with_its_row(kind: str, key: str) -> None:
    with pytest.raises(FormatError, match=f"{kind} row 1: no key '{key}'") as caught:
        decode(kind, [row(kind), row(kind, **{key: None})])

    assert caught.value.code is ErrorCode.KEY_MISSING


@pytest.mark.parametrize("kind", FIRST)
def test_an_unknown_key_is_refused_unless_the_minor_is_newer(kind: str) -> None:
    rows = [row(kind, zzz=[1])]

    assert code_of(kind, rows) is ErrorCode.KEY_UNKNOWN
    assert len(decode(kind, rows, minor=1)) == 1


@pytest.mark.parametrize("kind", FIRST)
def test_what_is_no_array_of_maps_is_refused(kind: str) -> None:
    assert code_of(kind, row(kind)) is ErrorCode.TYPE
    assert code_of(kind, [row(kind), []]) is ErrorCode.TYPE
    assert code_of(kind, [[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]) is ErrorCode.DEPTH


@pytest.mark.parametrize("kind", FIRST)
def test_rows_must_ascend_by_name(kind: str) -> None:
    rows = [row(kind, name=name) for name in ("b.bcd", "a.bcd")]

    assert code_of(kind, rows) is ErrorCode.ORDER
    assert code_of(kind, [rows[0], rows[0]]) is ErrorCode.ORDER
    assert len(decode(kind, rows[::-1])) == 2


def test_names_are_ordered_by_their_utf8_bytes_not_their_utf16_words() -> None:
    names = ["\ufffd", "\U00010000"]

    assert decode("tensors", [row("tensors", name=n) for n in names]).names == tuple(names)
    assert code_of("tensors", [row("tensors", name=n) for n in names[::-1]]) is ErrorCode.ORDER


def test_composed_and_decomposed_names_differ() -> None:
    names = ["e\u0301", "\u00e9"]

    assert decode("tensors", [row("tensors", name=n) for n in names]).names == tuple(names)


@pytest.mark.parametrize(
    ("kind", "changes", "code"),
    [
        ("files", {"attempt": ID}, ErrorCode.MP_NONCANONICAL),
        ("files", {"attempt": bytes(15)}, ErrorCode.RANGE),
        ("files", {"attempt": "x"}, ErrorCode.TYPE),
        ("files", {"blocks": False}, ErrorCode.TYPE),
        ("files", {"blocks": 2**53}, ErrorCode.RANGE),
        ("files", {"digest": bytes(8)}, ErrorCode.RANGE),
        ("files", {"digest": "0123456789abcdef"}, ErrorCode.TYPE),
        ("files", {"ext": {}}, ErrorCode.MP_NONCANONICAL),
        ("files", {"ext": []}, ErrorCode.TYPE),
        ("files", {"kind": "data"}, ErrorCode.MP_NONCANONICAL),
        ("files", {"kind": 1}, ErrorCode.TYPE),
        ("files", {"lengths": False}, ErrorCode.MP_NONCANONICAL),
        ("files", {"lengths": 1}, ErrorCode.TYPE),
        ("files", {"name": b"a.bcd"}, ErrorCode.TYPE),
        ("files", {"table": b""}, ErrorCode.TYPE),
        ("files", {"table": 1.0}, ErrorCode.MP_TYPE),
        ("files", {"unused": []}, ErrorCode.MP_NONCANONICAL),
        ("files", {"unused": {}}, ErrorCode.TYPE),
        ("files", {"unused": [4096, True]}, ErrorCode.TYPE),
        ("files", {"unused": [4096]}, ErrorCode.RANGE),
        ("files", {"unused": [4096, 1, 4096, 1], "attempt": DIGEST}, ErrorCode.ORDER),
        ("files", {"unused": [8192, 1, 4096, 1], "attempt": DIGEST}, ErrorCode.ORDER),
        ("files", {"unused": [4096, 1]}, ErrorCode.EXTENT_HOLE),
        ("tensors", {"aliases": []}, ErrorCode.MP_NONCANONICAL),
        ("tensors", {"aliases": "a"}, ErrorCode.TYPE),
        ("tensors", {"aliases": ["a", 1]}, ErrorCode.TYPE),
        ("tensors", {"aliases": ["a\n"]}, ErrorCode.NAME),
        ("tensors", {"chunks": 1}, ErrorCode.MP_NONCANONICAL),
        ("tensors", {"chunks": 0, "shape": [2, 0]}, ErrorCode.MP_NONCANONICAL),
        ("tensors", {"chunks": True}, ErrorCode.TYPE),
        ("tensors", {"dtype": 1}, ErrorCode.TYPE),
        ("tensors", {"dtype": "bf16"}, ErrorCode.DTYPE),
        ("tensors", {"dtype": ""}, ErrorCode.DTYPE),
        ("tensors", {"dtype": "float32" * 1000}, ErrorCode.DTYPE),
        ("tensors", {"ext": {}}, ErrorCode.MP_NONCANONICAL),
        ("tensors", {"name": 1}, ErrorCode.TYPE),
        ("tensors", {"name": "a\0b"}, ErrorCode.NAME),
        ("tensors", {"name": "\x1f"}, ErrorCode.NAME),
        ("tensors", {"name": "\x7f"}, ErrorCode.NAME),
        ("tensors", {"name": "n" * 65_536}, ErrorCode.NAME),
        ("tensors", {"name": "\u00e9" * 32_768}, ErrorCode.NAME),
        ("tensors", {"segments": []}, ErrorCode.MP_NONCANONICAL),
        ("tensors", {"segments": ["q"]}, ErrorCode.TYPE),
        ("tensors", {"segments": [["q", 0, 0]]}, ErrorCode.RANGE),
        ("tensors", {"segments": [["q", 0, 0, 1, 1]]}, ErrorCode.RANGE),
        ("tensors", {"segments": [["q", 0, 0, False]]}, ErrorCode.TYPE),
        ("tensors", {"shape": 6}, ErrorCode.TYPE),
        ("tensors", {"shape": [True]}, ErrorCode.TYPE),
        ("tensors", {"shape": [2.0]}, ErrorCode.MP_TYPE),
        ("tensors", {"shape": [-1]}, ErrorCode.MP_TYPE),
        ("tensors", {"shape": [2**53]}, ErrorCode.RANGE),
        ("tensors", {"shape": [1] * 33}, ErrorCode.RANGE),
        ("tensors", {"user": {}}, ErrorCode.MP_NONCANONICAL),
        ("tensors", {"user": 1}, ErrorCode.TYPE),
        ("objects", {"media": "application/octet-stream"}, ErrorCode.MP_NONCANONICAL),
        ("objects", {"media": b"x"}, ErrorCode.TYPE),
        ("objects", {"name": "a\n"}, ErrorCode.NAME),
        ("objects", {"nbytes": 0}, ErrorCode.RANGE),
        ("objects", {"nbytes": True}, ErrorCode.TYPE),
        ("objects", {"offset": "0"}, ErrorCode.TYPE),
        ("objects", {"run": []}, ErrorCode.TYPE),
        ("objects", {"ext": {"a": 1}}, ErrorCode.KEY_UNKNOWN),
    ],
)
def test_a_key_out_of_its_rule_is_refused(
    kind: str, changes: dict[str, Any], code: ErrorCode
) -> None:
    # A row without fault comes first, so that the row at fault has to be found.
    first = row(kind, name="" if kind != "files" else "0.bcd")
    raised = code_of(kind, [first, row(kind, **changes)])

    assert raised is code


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".bcd",
        "..",
        "../a.bcd",
        "/a.bcd",
        "a/b.bcd",
        "a\\b.bcd",
        "A.bcd",
        "a.BCD",
        "a.bcd\n",
        "a.bcd.",
        "a b.bcd",
        "-a.bcd",
        "a.b.bcd",
        "con",
        "a\u2215b.bcd",
        "a" * 97 + ".bcd",
        "\u0661.bcd",
    ],
)
def test_a_file_name_out_of_the_grammar_is_refused(name: str) -> None:
    assert code_of("files", [row("files", name=name)]) is ErrorCode.FILE_NAME


@pytest.mark.parametrize("name", ["0.bcd", "a" * 96 + ".bcd", "a-0-.bcd", "con.bcd"])
def test_a_file_name_of_the_grammar_is_accepted(name: str) -> None:
    assert decode("files", [row("files", name=name)])[0].name == name


def test_a_file_of_another_attempt_may_have_unused_ranges() -> None:
    (file,) = decode("files", [row("files", attempt=DIGEST, unused=[4096, 1, 8192, 2])])

    assert file.attempt_id == DIGEST
    assert file.unused == ((4096, 1), (8192, 2))


def test_every_data_type_of_the_registry_is_accepted() -> None:
    rows = [row("tensors", name=name, dtype=name) for name in sorted(DTYPES)]

    assert decode("tensors", rows).dtypes == tuple(sorted(DTYPES))


def test_an_unknown_data_type_is_unsupported_and_the_tensor_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"tensor 'w'.*'bf16'.*'bfloat16'"):
        decode("tensors", [row("tensors", dtype="bf16")])


LARGEST = 2**53 - 1


@pytest.mark.parametrize(
    ("dtype", "shape", "outcome"),
    [
        ("uint8", [LARGEST], "read"),
        ("uint8", [0, LARGEST], "read"),
        ("uint8", [2**26, 2**26], "read"),
        ("uint8", [2**26, 2**27], "refused"),
        ("uint8", [2**52, 2**52, 0], "refused"),
        ("uint8", [0, 2**52, 2**52], "refused"),
        ("uint8", [2**32, 2**32, 2**32, 2**32], "refused"),
        ("uint8", [2, 2**63 // 2**11], "refused"),
        ("float64", [2**50], "refused"),
        ("float64", [2**50 - 1], "read"),
        ("float64", [0, 2**50], "refused"),
        ("int4", [LARGEST], "read"),
        ("complex128", [2**49], "refused"),
        ("complex128", [2**49 - 1], "read"),
        ("float32", [1] * 32, "read"),
    ],
)
def test_a_tensor_too_large_for_the_integers_is_an_overflow(
    dtype: str, shape: list[int], outcome: str
) -> None:
    rows = [row("tensors", dtype=dtype, shape=shape)]

    if outcome == "read":
        assert decode("tensors", rows).shapes == (tuple(shape),)
    else:
        assert code_of("tensors", rows) is ErrorCode.OVERFLOW


def test_a_name_has_at_most_65535_bytes() -> None:
    for name in ("n" * 65_535, "\u00e9" * 32_767):
        assert decode("tensors", [row("tensors", name=name)]).names == (name,)


def test_the_number_of_chunks_defaults_to_one_or_none() -> None:
    shapes: dict[str, list[int]] = {"a": [], "b": [0], "c": [3], "d": [2, 0, 2]}
    rows = [row("tensors", name=name, shape=shape) for name, shape in shapes.items()]
    rows.append(row("tensors", name="e", chunks=5))
    rows.append(row("tensors", name="f", chunks=1, shape=[0]))

    assert decode("tensors", rows).chunks.tolist() == [1, 0, 1, 0, 5, 1]


def test_rules_are_checked_in_the_order_of_the_reader() -> None:
    """Spec 13, step 5: names, data types, overflow, order."""
    rows = [
        row("tensors", name="b", shape=[2**53 - 1] * 2),
        row("tensors", name="a", dtype="bf16"),
        row("tensors", name="\x01"),
    ]

    assert code_of("tensors", rows) is ErrorCode.NAME
    assert code_of("tensors", rows[:2]) is ErrorCode.DTYPE
    rows[1]["dtype"] = "bool"
    assert code_of("tensors", rows[:2]) is ErrorCode.OVERFLOW
    rows[0]["shape"] = []
    assert code_of("tensors", rows[:2]) is ErrorCode.ORDER


def test_other_keys_of_a_row_are_kept_as_read() -> None:
    extra = {"ext": {"a": 1}, "segments": [["q", 0, 0, 1]], "user": {"b": [True]}}
    tensors = decode("tensors", [row("tensors", aliases=["x"], later=3, **extra)], minor=1)

    assert tensors.aliases == {0: ("x",)}
    assert tensors.extra == {0: {**extra, "later": 3}}
    (file,) = decode("files", [row("files", ext={"a": 1}, later=3)], minor=1)
    assert file.extra == {"ext": {"a": 1}, "later": 3}


def test_many_tensors_are_there_and_back() -> None:
    count = 5000
    tensors = TensorTable(
        names=tuple(f"layers.{i:05d}.weight" for i in range(count)),
        dtypes=("bfloat16", "float32") * (count // 2),
        shapes=tuple((i % 7, 4096) for i in range(count)),
        chunks=np.arange(count) % 4,
    )

    found = decode_tensors(encode_tensors(tensors, minor=0), minor=0)

    assert found.names == tensors.names
    assert found.dtypes == tensors.dtypes
    assert found.shapes == tensors.shapes
    assert found.chunks.tolist() == tensors.chunks.tolist()
