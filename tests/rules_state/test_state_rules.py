"""The state tree and per-rank values (spec 10), on real checkpoints."""

from __future__ import annotations

import struct
import sys
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bcpformat
from bcpformat import ErrorCode, MemoryStore
from bcpformat.errors import InvalidArgumentError
from bcpformat.model.manifest import Manifest
from bcpformat.model.nodes import encoded
from bcpformat.model.user_types import TorchDevice, TorchDType, UnknownType
from tests.rules_state.hostile import (
    accepted,
    found_by_validation,
    manifest_of,
    read,
    refused,
    with_data,
    with_manifest,
    with_state,
    written,
)

F64 = struct.Struct("<d").pack
PLAIN = written({"a": 1})
TENSOR = written({"w": np.zeros(3, np.float32)})


def as_state(node: Any) -> MemoryStore:
    """Return a checkpoint of nothing but a state: a dict with a node under "a"."""
    return with_state(PLAIN, [6, "a", node])


# ---- the form of nodes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "value"),
    [
        (True, True),
        ("text", "text"),
        (b"bytes", b"bytes"),
        ([1], None),
        ([2, 5], 5),
        ([3, b"\xff"], -1),
        ([4, F64(0.5)], 0.5),
        ([5, F64(1) + F64(2)], 1 + 2j),
        ([6, [2, 0], True], {0: True}),
        ([7, [1], "k", True], OrderedDict(k=True)),
        ([8, True, [8]], [True, []]),
        ([9, True], (True,)),
        ([10, [2, 1], [2, 2]], {1, 2}),
        ([11], frozenset()),
        ([12, b"x"], bytearray(b"x")),
        ([17, "int16", b"\x01\x02"], np.int16(513)),
    ],
)
def test_a_node_of_the_table_is_read(node: Any, value: object) -> None:
    """BCP-STA-001: the valid twin of the refusals."""
    assert accepted(as_state(node))["a"] == value


@pytest.mark.parametrize(
    "node",
    [
        [],
        [22],
        ["a"],
        [[2, 1]],
        [True],
        {"k": True},
        [1, True],
        [2],
        [2, True],
        [2, 1, 1],
        [4, F64(1)[:7]],
        [5, F64(1)],
        [6, "k"],
        [7],
        [7, [1], "k"],
        [12, "x"],
        [14, "x"],
        [15, b"x"],
        [17, "int16", b"\x01"],
        [17, "uint4", b"\x01"],
        [18, 5, 0],
        [19],
        [19, True],
        [20, "t"],
        [21, 0, "uint8", [1], b"x"],
    ],
)
def test_a_node_of_another_form_is_refused(node: Any) -> None:
    """BCP-STA-001."""
    assert refused(as_state(node)) is ErrorCode.STATE


@pytest.mark.parametrize(
    "node",
    [
        [3, b"\x05"],
        [3, b"\xff\xff"],
        [3, (2**53 - 1).to_bytes(7, "little")],
        [6, [3, b"\x05"], True],
    ],
)
def test_a_number_in_another_row_of_the_table_is_refused(node: Any) -> None:
    """BCP-STA-009: also one in more bytes than it needs."""
    assert accepted(as_state([3, (2**53).to_bytes(7, "little")]))["a"] == 2**53
    assert refused(as_state(node)) is ErrorCode.MP_NONCANONICAL


def test_a_tensor_leaf_without_flags_is_a_bare_integer() -> None:
    """BCP-STA-009."""
    assert accepted(with_state(TENSOR, [6, "w", 0]))["w"].tolist() == [0, 0, 0]
    assert refused(with_state(TENSOR, [6, "w", [0, 0, 0]])) is ErrorCode.MP_NONCANONICAL


# ---- keys and elements -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        [[4, F64(1.5)]],
        [b"bytes"],
        [[1]],
        [[8, "x"]],
        [[9, [1]]],
        ["k", "k"],
        [[2, 1], [2, 1]],
        [[2, 1], True],
        [False, [2, 0]],
        [[9, "x", True], [9, "x", [2, 1]]],
    ],
)
@pytest.mark.parametrize("kind", [[6], [7, [1]]])
def test_keys_of_another_kind_or_equal_ones_are_refused(kind: list[Any], keys: list[Any]) -> None:
    """BCP-STA-002: true counts as 1, false as 0."""
    node = [*kind, *(part for key in keys for part in (key, True))]

    assert refused(as_state(node)) is ErrorCode.STATE


def test_keys_that_differ_are_kept_apart() -> None:
    """BCP-STA-002."""
    keys = ["1", [2, 1], [9, [2, 1]], [9], False, [3, b"\xff"]]
    node = [6, *(part for key in keys for part in (key, True))]

    assert list(accepted(as_state(node))["a"]) == ["1", 1, (1,), (), False, -1]


ZERO, MINUS_ZERO, ONE = [4, F64(0.0)], [4, F64(-0.0)], [4, F64(1.0)]


@pytest.mark.parametrize(
    "elements",
    [
        [[8]],
        [[12, b"x"]],
        [[10]],
        [[9, [8]]],
        ["b", "a"],
        ["a", "a"],
        [[2, 2], [2, 1]],
        sorted([[2, 1], True], key=encoded),
        sorted([[2, 1], ONE], key=encoded),
        sorted([ZERO, MINUS_ZERO], key=encoded),
        sorted([[9, [2, 0]], [9, False]], key=encoded),
        sorted([[11, True], [11, [2, 1]]], key=encoded),
        [[11, *sorted([[2, 1], True], key=encoded)]],
    ],
)
@pytest.mark.parametrize("kind", [10, 11])
def test_elements_of_another_kind_or_order_or_equal_ones_are_refused(
    kind: int, elements: list[Any]
) -> None:
    """BCP-STA-003: true counts as 1, 1.0 as 1, -0.0 as 0.0."""
    assert refused(as_state([kind, *elements])) is ErrorCode.STATE


def test_elements_in_the_order_of_their_bytes_are_read() -> None:
    """BCP-STA-003: a NaN equals no other bits."""
    nans = [[4, bytes([n, 0, 0, 0, 0, 0, 0xF8, 0x7F])] for n in range(2)]
    node = [10, *sorted(["a", b"a", False, [2, 7], [1], [9, "a"], [11], *nans], key=encoded)]

    back = accepted(as_state(node))["a"]

    assert len(back) == 9
    assert {"a", b"a", False, 7, None, ("a",), frozenset()} < back


# ---- what nodes refer to -----------------------------------------------------------------------


def test_a_tensor_that_does_not_exist_is_refused() -> None:
    """BCP-STA-004."""
    assert refused(with_state(TENSOR, [6, "w", 0, "v", 1])) is ErrorCode.INDEX


@pytest.mark.parametrize(
    "node",
    [
        [6, "v", 0],  # the path is not the name
        [8, 0],
        [6],  # nobody refers to it
        [6, "w", 0, "v", 0],  # a second leaf, and no alias
    ],
)
def test_leaves_that_are_not_the_names_of_their_tensor_are_refused(node: Any) -> None:
    """BCP-STA-004."""
    assert refused(with_state(TENSOR, node)) is ErrorCode.STATE


@pytest.mark.parametrize(
    ("aliases", "valid"),
    [(("b", "c"), True), (("c", "b"), False), (("b",), False), (("b", "c", "d"), False)],
)
def test_aliases_are_the_other_paths_in_state_order(aliases: tuple[str, ...], valid: bool) -> None:  # noqa: FBT001
    """BCP-STA-004."""
    w = np.zeros(3)
    store = written({"a": w, "b": w, "c": w})

    def change(m: Manifest) -> Manifest:
        return replace(m, tensors=replace(m.tensors, aliases={0: aliases}))

    found = with_manifest(store, change)

    if valid:
        accepted(found)
    else:
        assert refused(found) is ErrorCode.STATE


def test_ordinals_of_per_rank_nodes_ascend_from_0() -> None:
    """BCP-STA-005."""
    store = written({"a": bcpformat.PerRank(1), "b": bcpformat.PerRank(2)})

    assert accepted(with_state(store, [6, "a", [19, 0], "b", [19, 1]]))["b"][0] == 2
    for node in ([6, "a", [19, 1], "b", [19, 0]], [6, "a", [19, 0], "b", [19, 0]]):
        assert refused(with_state(store, node)) is ErrorCode.STATE


def test_an_object_node_refers_to_an_object_of_its_path() -> None:
    """BCP-STA-006."""
    store = written({"a": b"x" * 70_000})

    assert accepted(with_state(store, [6, "a", [18, 1, 0]]))["a"] == b"x" * 70_000
    assert refused(with_state(store, [6, "a", [18, 1, 1]])) is ErrorCode.STATE
    assert refused(with_state(store, [6, "b", [18, 1, 0]])) is ErrorCode.STATE


def test_an_object_without_a_node_is_allowed() -> None:
    """BCP-STA-006: other objects need no node."""
    store = written({"a": b"x" * 70_000})

    assert accepted(with_state(store, [6, "b", True])) == {"b": True}


@pytest.mark.parametrize(
    ("kind", "content", "code"),
    [
        (0, b"x" * 69_999 + b"\xff", ErrorCode.STATE),
        (4, b"\x05" + bytes(69_999), ErrorCode.MP_NONCANONICAL),
    ],
)
def test_the_content_of_an_object_fits_its_kind(kind: int, content: bytes, code: ErrorCode) -> None:
    """BCP-STA-001, BCP-STA-009: text is UTF-8, an int has as few bytes as possible."""
    store = written({"a": content})

    assert accepted(store)["a"] == content
    assert refused(with_state(store, [6, "a", [18, kind, 0]])) is code


# ---- per-rank values ---------------------------------------------------------------------------


def with_per_rank(document: bytes) -> MemoryStore:
    """Return a checkpoint with a document as the value of rank 0."""
    store = written({"a": bcpformat.PerRank(b"x" * (len(document) - 2) if document[1:] else True)})
    manifest = manifest_of(store)
    assert manifest.per_rank.nbytes.tolist() == [len(document)]
    position = int(manifest.runs.position[0])

    def change(data: bytearray) -> None:
        data[position : position + len(document)] = document

    return with_data(store, change)


@pytest.mark.parametrize(
    "document",
    [
        bytes.fromhex("05"),  # a bare integer
        bytes.fromhex("90"),
        bytes.fromhex("91 16"),  # kind 22
        bytes.fromhex("93 00 00 01"),  # a tensor of the checkpoint
        bytes.fromhex("93 12 01 00"),  # an object
        bytes.fromhex("92 13 00"),  # a per-rank value
        bytes.fromhex("80"),
    ],
)
def test_a_per_rank_value_of_another_form_is_refused(document: bytes) -> None:
    """BCP-STA-001, BCP-STA-004: it refers to no rows, and full validation looks into it."""
    assert refused(with_per_rank(document)) is ErrorCode.STATE


def test_a_per_rank_value_is_read_as_it_lies_in_its_file() -> None:
    """BCP-STA-001: the valid twin."""
    assert accepted(with_per_rank(bytes.fromhex("91 01")))["a"][0] is None


def test_a_per_rank_value_that_is_no_document_is_refused() -> None:
    """BCP-STA-001: full validation decodes it."""
    assert refused(with_per_rank(b"\xc0")) is ErrorCode.MP_TYPE


def test_every_bad_per_rank_value_is_found() -> None:
    """BCP-ERR-004: each under its own code."""
    store = written({"a": bcpformat.PerRank(True), "b": bcpformat.PerRank(True)})
    manifest = manifest_of(store)
    first, second = (int(manifest.runs.position[0]) + n for n in manifest.per_rank.offset.tolist())

    def change(data: bytearray) -> None:
        data[first], data[second] = 0xC0, 0x05

    found = found_by_validation(with_data(store, change))

    assert found == [ErrorCode.MP_TYPE, ErrorCode.STATE]


# ---- types that this process does not have -----------------------------------------------------


class Plan:
    """A type of a user."""

    def __init__(self, steps: int) -> None:
        self.steps = steps


def test_what_has_no_form_is_refused_with_its_path_and_nothing_is_stored() -> None:
    """BCP-STA-007: never by a general object serialiser."""
    store = MemoryStore()

    for value in (Plan(3), print, {1, Plan}, np.array([Plan(3)], object)):
        with pytest.raises(InvalidArgumentError, match="model/0") as caught:
            bcpformat.write(store, {"model": [value]})
        assert caught.value.code is ErrorCode.NO_FORM
    assert store.list() == []


def test_a_type_that_nobody_registered_shows_its_parts_and_is_kept() -> None:
    """BCP-STA-008."""
    found = accepted(as_state([20, "com.example.plan", [6, "steps", [2, 3]]]))["a"]

    assert found == UnknownType("com.example.plan", {"steps": 3})
    assert accepted(written({"a": found}))["a"] == found


def test_nothing_is_imported_or_called_by_a_name_in_a_file() -> None:
    """BCP-STA-008, BCP-SEC-001."""
    name = "antigravity"
    sys.modules.pop(name, None)

    node = [8, [20, f"{name}.main", True], [15, f"{name}.x"], [16, name], [20, "os.system", "ls"]]
    found = read(as_state(node))["a"]

    assert name not in sys.modules
    assert found[0] == UnknownType(f"{name}.main", True)
    assert found[1] == TorchDType(f"{name}.x")
    assert found[2] == TorchDevice(name)
    assert found[3] == UnknownType("os.system", "ls")
