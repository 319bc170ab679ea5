"""What stands apart from the tree of a state: tensors, objects, values of single ranks."""

from __future__ import annotations

import io
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from bcpformat.model.leaves import NumpyAdapter, PerRank
from bcpformat.model.state import EncodedState, encode_state
from bcpformat.model.state_decode import check_per_rank_value, check_state, decode_state
from bcpformat.model.user_types import TypeRegistry

NO_TYPES = TypeRegistry()


def encoded(value: object) -> EncodedState:
    adapters = {np.ndarray: NumpyAdapter()}
    return encode_state(value, adapters=adapters, encoders={}, types=NO_TYPES)


def decoded(state: EncodedState) -> Any:
    return decode_state(
        state.root,
        tensor=lambda index, _flags: state.leaves[index].value,
        read_object=lambda row: state.objects[row][1],
        per_rank=lambda ordinal: state.per_rank[ordinal],
        builders={},
        types=NO_TYPES,
    )


def problems(state: EncodedState) -> list[Any]:
    found = check_state(
        state.root,
        names=state.names,
        aliases=state.aliases,
        object_names=[name for name, _ in state.objects],
        per_rank_paths=len(state.per_rank),
    )
    return found + [p for _, node in state.per_rank for p in check_per_rank_value(node)]


def content(value: Any) -> Any:
    """Return a large value so that two are equal if their types and contents are."""
    return type(value), value.getvalue() if isinstance(value, io.BytesIO) else value


def test_keys_of_several_types_that_look_alike_stay_apart() -> None:
    value = {0: np.zeros(1), "0": np.ones(2), (0,): np.ones(3), "%i0": np.ones(4), "": {}}

    state = encoded(value)

    assert state.names == ["%(%i0%)", "%25i0", "%i0", "0"]
    restored = decoded(state)
    assert list(restored) == list(value)
    assert all(restored[key] is tensor for key, tensor in value.items() if key != "")


def test_tensors_that_share_their_elements_are_stored_once_under_the_first_path() -> None:
    w, other = np.zeros(3), np.ones(3)

    state = encoded({"z": w, "b": [other, w], "a": w})

    assert state.names == ["b/0", "z"] and state.aliases == {1: ("b/1", "a")}
    assert state.leaves[0].value is other and state.leaves[1].value is w
    restored = decoded(state)
    assert restored["z"] is restored["a"] is restored["b"][1]


def test_tensors_without_elements_are_never_aliases() -> None:
    empty = np.zeros((0, 3))

    assert encoded([empty, empty]).names == ["0", "1"]


def test_tensors_that_overlap_in_another_way_are_two_tensors() -> None:
    base = np.arange(15.0)

    assert encoded({"a": base[:10], "b": base[5:]}).aliases == {}


@pytest.mark.parametrize(
    ("value", "kind", "data"),
    [
        ("é" * 40_000, 0, "é".encode() * 40_000),
        ("a" * 65_537, 0, b"a" * 65_537),
        (b"b" * 65_537, 1, b"b" * 65_537),
        (bytearray(65_537), 2, bytes(65_537)),
        (io.BytesIO(bytes(65_537)), 3, bytes(65_537)),
        (-(2 ** (65_536 * 8)), 4, bytes(65_536) + b"\xff"),
    ],
    ids=["text", "ascii", "bytes", "bytearray", "BytesIO", "int"],
)
def test_a_value_above_64_kib_is_stored_as_an_object(value: object, kind: int, data: bytes) -> None:
    state = encoded({"v": [value]})

    assert state.root == [6, "v", [8, [18, kind, 0]]] and state.objects == [("v/0", data)]
    assert problems(state) == [] and content(decoded(state)["v"][0]) == content(value)


@pytest.mark.parametrize(
    "value",
    [
        "a" * 65_536,
        "é" * 32_768,
        b"b" * 65_536,
        bytearray(65_536),
        io.BytesIO(bytes(65_536)),
        2 ** (65_536 * 8 - 2),
    ],
    ids=["ascii", "text", "bytes", "bytearray", "BytesIO", "int"],
)
def test_a_value_of_64_kib_is_stored_in_the_state(value: object) -> None:
    state = encoded([value])

    assert state.objects == [] and content(decoded(state)[0]) == content(value)


def test_objects_are_in_the_order_of_their_names() -> None:
    state = encoded({"b": b"b" * 70_000, "a": b"a" * 70_000})

    assert [name for name, _ in state.objects] == ["a", "b"]
    assert state.root == [6, "b", [18, 1, 1], "a", [18, 1, 0]]


def test_large_values_within_sets_and_per_rank_values_stay_where_they_are() -> None:
    text = "a" * 70_000

    state = encoded({"s": {text, 2**600_000}, "r": PerRank([text, bytearray(70_000), 2**600_000])})

    assert state.objects == [] and problems(state) == []


def test_per_rank_values_are_documents_of_their_own_in_state_order() -> None:
    w = np.arange(3, dtype=np.uint8)
    state = encoded({"z": PerRank(1), "a": [PerRank([w, w.astype(ml_dtypes.int4)])]})

    assert state.root == [6, "z", [19, 0], "a", [8, [19, 1]]] and state.leaves == []
    inline = [[21, 1, "uint8", [3], b"\x00\x01\x02"], [21, 1, "int4", [3], b"\x10\x02"]]
    assert state.per_rank == [("z", [2, 1]), ("a/0", [8, *inline])]


def test_values_of_other_libraries_are_encoded_by_their_exact_type() -> None:
    state = encode_state(
        [slice(1), PerRank(slice(2))],
        adapters={},
        encoders={slice: lambda value: [14, value.stop]},
        types=NO_TYPES,
    )

    assert state.root == [8, [14, 1], [19, 0]] and state.per_rank == [("1", [14, 2])]
