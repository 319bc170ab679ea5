"""Nodes that anybody may have written: values, or a refusal."""

from __future__ import annotations

import io
import struct
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.errors import ErrorCode, FormatError, LimitError, UnsupportedError
from bcpformat.model.keys import by_value
from bcpformat.model.limits import MAX_INTEGER
from bcpformat.model.nodes import SET, encoded, int_bytes
from bcpformat.model.state_decode import check_per_rank_value, check_state, decode_state
from bcpformat.model.state_values import set_node
from bcpformat.model.user_types import (
    TorchDevice,
    TorchDType,
    TorchSize,
    TypeRegistry,
    UnknownType,
)

NO_TYPES = TypeRegistry()
SHARED = object()


def decoded(node: Any, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "tensor": lambda index, flags: ("tensor", index, flags),
        "read_object": lambda row: b"object %d" % row,
        "per_rank": lambda ordinal: ("ranks", ordinal),
        "builders": {},
        "types": NO_TYPES,
        "inline": lambda *parts: parts,
    }
    return decode_state(node, **(arguments | changes))


def refused(node: Any, **changes: Any) -> FormatError:
    with pytest.raises(FormatError) as caught:
        decoded(node, **changes)
    return caught.value


# ---- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "value"),
    [
        (7, ("tensor", 7, 0)),
        ([0, 7, 5], ("tensor", 7, 5)),
        ([19, 2], ("ranks", 2)),
        ([18, 0, 3], "object 3"),
        ([18, 1, 3], b"object 3"),
        ([18, 2, 3], bytearray(b"object 3")),
        ([18, 4, 3], int.from_bytes(b"object 3", "little")),
        ([20, "gone", [8, 1]], UnknownType("gone", [("tensor", 1, 0)])),
        ([21, 0, "uint8", [2], b"ab"], (0, "uint8", (2,), b"ab")),
        ([21, 1, "int4", [3], b"ab"], (1, "int4", (3,), b"ab")),
        ([21, 0, "float32", [2, 0], b""], (0, "float32", (2, 0), b"")),
        ([14], TorchSize(())),
        ([15, "bfloat16"], TorchDType("bfloat16")),
        ([16, "cuda:0"], TorchDevice("cuda:0")),
        ([6, [9, [2, 1], [9]], 0], {(1, ()): ("tensor", 0, 0)}),
    ],
)
def test_a_node_has_the_value_of_the_table(node: Any, value: object) -> None:
    made = decoded(node)

    assert type(made) is type(value) and made == value


def test_a_large_bytes_io_comes_back_at_its_start() -> None:
    made = decoded([18, 3, 0])

    assert type(made) is io.BytesIO and made.tell() == 0 and made.read() == b"object 0"


@given(st.binary(min_size=8, max_size=8))
def test_every_bit_of_a_float_survives(bits: bytes) -> None:
    assert struct.pack("<d", decoded([4, bits])) == bits


@given(st.binary(min_size=16, max_size=16))
def test_every_bit_of_a_complex_survives(bits: bytes) -> None:
    made = decoded([5, bits])

    assert struct.pack("<dd", made.real, made.imag) == bits


def test_signalling_nan_survives_in_a_numpy_scalar() -> None:
    bits = struct.pack("<I", 0x7FA00001)

    assert decoded([17, "float32", bits]).tobytes() == bits


def test_an_int_of_a_million_digits_needs_no_decimals() -> None:
    data = b"\x01" * 400_000 + b"\x00"

    assert decoded([3, data[:-1]]) == int.from_bytes(data, "little")


def test_tensors_are_asked_for_once_a_leaf_in_state_order() -> None:
    asked: list[tuple[int, int]] = []

    decoded(
        [7, [6, "m", 4], "a", 1, "b", [8, 0, [0, 1, 2], [9, 1]]],
        tensor=lambda *call: asked.append(call),
    )

    assert asked == [(4, 0), (1, 0), (0, 0), (1, 2), (1, 0)]


def test_metadata_becomes_the_attribute_of_an_ordered_dict() -> None:
    made = decoded([7, [6, "", [2, 1]], "a", True])

    assert made == OrderedDict(a=True) and vars(made) == {"_metadata": {"": 1}}


def test_a_registered_type_is_decoded_by_its_own_function() -> None:
    types = TypeRegistry()
    types.register_type(slice, name="slice", encode=repr, decode=lambda parts: slice(*parts))

    assert decoded([20, "slice", [8, [2, 1], [2, 5]]], types=types) == slice(1, 5)


def test_what_a_users_decoder_raises_says_where() -> None:
    def fail(_: Any) -> slice:
        raise KeyError("gone")

    types = TypeRegistry()
    types.register_type(slice, name="slice", encode=repr, decode=fail)

    with pytest.raises(KeyError) as caught:
        decoded([6, "p", [8, [20, "slice", [1]]]], types=types)
    assert caught.value.__notes__ == ["while 'slice' decoded the value at state 'p/0'"]


# ---- builders ----------------------------------------------------------------------------------


def test_a_builder_makes_the_values_of_its_library() -> None:
    builders: dict[int, Any] = {14: list, 15: str.upper, 16: lambda name: ("device", name)}

    made = decoded([8, [14, 2, 3], [15, "half"], [16, "cpu"]], builders=builders)

    assert made == [[2, 3], "HALF", ("device", "cpu")]


@pytest.mark.parametrize("error", [ValueError, TypeError, RuntimeError])
def test_what_a_builder_does_not_know_is_shown_as_a_stand_in(error: type[Exception]) -> None:
    def fail(_: object) -> object:
        raise error("no such device")

    made = decoded([8, [15, "float3"], [16, "abacus"]], builders={15: fail, 16: fail})

    assert made == [TorchDType("float3"), TorchDevice("abacus")]


def test_a_builder_does_not_see_a_node_of_another_form() -> None:
    assert refused([14, "x"], builders={14: list}).code is ErrorCode.STATE


# ---- refusals ----------------------------------------------------------------------------------

FAULTS: list[tuple[Any, ErrorCode]] = [
    ([], ErrorCode.STATE),
    ([[1]], ErrorCode.STATE),
    (["text"], ErrorCode.STATE),
    ([True], ErrorCode.STATE),
    ([22], ErrorCode.STATE),
    ([2**60], ErrorCode.STATE),
    ({}, ErrorCode.STATE),
    (None, ErrorCode.STATE),
    (1.5, ErrorCode.STATE),
    ([0], ErrorCode.STATE),
    ([0, 0], ErrorCode.STATE),
    ([0, True, 1], ErrorCode.STATE),
    ([0, 0, True], ErrorCode.STATE),
    ([0, 0, 8], ErrorCode.STATE),
    ([0, 0, 1, 1], ErrorCode.STATE),
    ([0, 0, 0], ErrorCode.MP_NONCANONICAL),
    ([1, 1], ErrorCode.STATE),
    ([2], ErrorCode.STATE),
    ([2, True], ErrorCode.STATE),
    ([2, b""], ErrorCode.STATE),
    ([2, 2**53], ErrorCode.STATE),
    ([2, -1], ErrorCode.STATE),
    ([2, 1, 1], ErrorCode.STATE),
    ([3, b""], ErrorCode.STATE),
    ([3, 1], ErrorCode.STATE),
    ([3, b"\x05"], ErrorCode.MP_NONCANONICAL),
    ([3, MAX_INTEGER.to_bytes(7, "little")], ErrorCode.MP_NONCANONICAL),
    ([3, b"\xff\xff"], ErrorCode.MP_NONCANONICAL),
    ([3, b"\x01" * 8 + b"\x00"], ErrorCode.MP_NONCANONICAL),
    ([4, b"\x00" * 7], ErrorCode.STATE),
    ([4, "12345678"], ErrorCode.STATE),
    ([5, b"\x00" * 8], ErrorCode.STATE),
    ([6, "a"], ErrorCode.STATE),
    ([6, "a", [1], "a", [1]], ErrorCode.STATE),
    ([6, [2, 1], [1], [2, 1], [1]], ErrorCode.STATE),
    ([6, [9, "a"], [1], "b", [1], [9, "a"], [1]], ErrorCode.STATE),
    ([6, b"a", [1]], ErrorCode.STATE),
    ([6, 0, [1]], ErrorCode.STATE),
    ([6, [1], [1]], ErrorCode.STATE),
    ([6, [4, b"\x00" * 8], [1]], ErrorCode.STATE),
    ([6, [9, b"a"], [1]], ErrorCode.STATE),
    ([6, [8, "a"], [1]], ErrorCode.STATE),
    ([6, [], [1]], ErrorCode.STATE),
    ([6, [True, 1], [1]], ErrorCode.STATE),
    ([6, [3, b"\x05"], [1]], ErrorCode.MP_NONCANONICAL),
    ([7], ErrorCode.STATE),
    ([7, [1], "a"], ErrorCode.STATE),
    ([7, [22]], ErrorCode.STATE),
    ([7, [1], b"", [1]], ErrorCode.STATE),
    ([8, [22]], ErrorCode.STATE),
    ([9, None], ErrorCode.STATE),
    ([10, "b", "a"], ErrorCode.STATE),
    ([10, "a", "a"], ErrorCode.STATE),
    ([10, 0], ErrorCode.STATE),
    ([10, [8]], ErrorCode.STATE),
    ([10, [10]], ErrorCode.STATE),
    ([10, [9, 0]], ErrorCode.STATE),
    ([10, [12, b""]], ErrorCode.STATE),
    ([10, [2, 2**53]], ErrorCode.STATE),
    ([10, []], ErrorCode.STATE),
    ([11, [11, "b", "a"]], ErrorCode.STATE),
    ([11, [3, b"\x05"]], ErrorCode.MP_NONCANONICAL),
    ([12, "a"], ErrorCode.STATE),
    ([13], ErrorCode.STATE),
    ([14, 2**53], ErrorCode.STATE),
    ([14, True], ErrorCode.STATE),
    ([15, b"a"], ErrorCode.STATE),
    ([16, 0], ErrorCode.STATE),
    ([17, "float32"], ErrorCode.STATE),
    ([17, "float32", "abcd"], ErrorCode.STATE),
    ([17, "float32", b"abc"], ErrorCode.STATE),
    ([17, "int4", b"a"], ErrorCode.STATE),
    ([17, "float33", b"abcd"], ErrorCode.DTYPE),
    ([18, 0], ErrorCode.STATE),
    ([18, 5, 0], ErrorCode.STATE),
    ([18, 0, "a"], ErrorCode.STATE),
    ([19], ErrorCode.STATE),
    ([19, True], ErrorCode.STATE),
    ([20, "a"], ErrorCode.STATE),
    ([20, b"a", [1]], ErrorCode.STATE),
    ([20, "a", [22]], ErrorCode.STATE),
    ([21, 0, "uint8", [1]], ErrorCode.STATE),
    ([21, True, "uint8", [1], b"a"], ErrorCode.STATE),
    ([21, 8, "uint8", [1], b"a"], ErrorCode.STATE),
    ([21, 0, "uint9", [1], b"a"], ErrorCode.DTYPE),
    ([21, 0, "uint8", ["a"], b"a"], ErrorCode.STATE),
    ([21, 0, "uint8", [2], b"a"], ErrorCode.STATE),
    ([21, 0, "uint8", [1] * 33, b"a"], ErrorCode.STATE),
    ([21, 0, "uint16", [2**52, 0, 2], b""], ErrorCode.OVERFLOW),
]


@pytest.mark.parametrize(("node", "code"), FAULTS, ids=[repr(node) for node, _ in FAULTS])
def test_a_node_of_another_form_is_refused_with_its_place(node: Any, code: ErrorCode) -> None:
    error = refused([6, "a", [8, node]])

    assert error.code is code and str(error).startswith("state 'a/")
    assert isinstance(error, UnsupportedError) is (code is ErrorCode.DTYPE)


@pytest.mark.parametrize(("node", "code"), FAULTS, ids=[repr(node) for node, _ in FAULTS])
def test_the_checks_find_the_same_faults(node: Any, code: ErrorCode) -> None:
    is_inline = type(node) is list and node[:1] == [21]
    is_row = type(node) is list and node[:1] in ([0], [18], [19])
    of_state = check_state([8, node], names=[], aliases={}, object_names=[], per_rank_paths=0)
    of_rank = check_per_rank_value([8, node])

    assert is_inline or code in [problem.code for problem in of_state]
    assert is_row or [problem.code for problem in of_rank] == [code]


def test_an_inline_tensor_within_a_state_is_refused() -> None:
    assert refused([21, 0, "uint8", [], b"a"], inline=None).code is ErrorCode.STATE


def test_an_object_that_is_not_utf8_is_no_str() -> None:
    error = refused([8, [18, 0, 0]], read_object=lambda _: b"ab\xff")

    assert error.code is ErrorCode.STATE and "not UTF-8" in str(error)


@pytest.mark.parametrize("data", [b"", b"\x01\x00", b"\x01"])
def test_an_object_that_is_no_shortest_int_is_refused(data: bytes) -> None:
    refused([18, 4, 0], read_object=lambda _: data)


@pytest.mark.parametrize(
    "node",
    [
        [6, [2, 1], [1], True, [1]],
        [6, [9, [2, 0]], [1], [9, False], [1]],
        [10, [2, 1], True],
        [10, [2, 1], [4, struct.pack("<d", 1.0)]],
        [10, [3, int_bytes(2**70)], [4, struct.pack("<d", 2.0**70)]],
        [10, [4, bytes(8)], [4, bytes(7) + b"\x80"]],
        [10, [4, bytes(8)], [5, bytes(16)]],
        [10, [9, False], [9, [2, 0]]],
        [10, [11, [2, 1], True]],
        [10, [11, [2, 1]], [11, True]],
    ],
)
def test_what_is_equal_by_value_is_equal(node: Any) -> None:
    ordered = [node[0], *sorted(node[1:], key=encoded)] if node[0] == 10 else node
    problems = check_state(ordered, names=[], aliases={}, object_names=[], per_rank_paths=0)

    assert [p.code for p in problems] == [ErrorCode.STATE]
    assert refused(ordered).code is ErrorCode.STATE


NUMBERS = st.one_of(
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([2**53 - 1, 2**53, -(2**60), 2**61 - 1]),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 2.0**53, -(2.0**60), float("inf")]),
    st.sampled_from([0j, 1 + 0j, complex(1, -0.0), complex(0.5, 1), complex(float("inf"), 0)]),
    st.sampled_from(["", "1", b"", b"1", None]),
)
ELEMENTS = st.recursive(
    NUMBERS,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)


@given(ELEMENTS, ELEMENTS)
def test_elements_are_equal_by_value_if_python_says_so(a: Any, b: Any) -> None:
    nodes = [set_node(SET, [value], "", 1)[1] for value in (a, b)]

    assert (by_value(nodes[0]) == by_value(nodes[1])) == (a == b)


@pytest.mark.parametrize("kind", [6, 10])
def test_many_keys_or_elements_of_one_hash_are_refused_at_once(kind: int) -> None:
    chosen = [[3, int_bytes(k * (2**61 - 1))] for k in range(2**22, 2**22 + 300)]
    chosen.sort(key=encoded)
    node = [6, *(part for key in chosen for part in (key, True))] if kind == 6 else [10, *chosen]

    with pytest.raises(LimitError) as caught:
        decoded(node)

    assert caught.value.code is ErrorCode.LIMIT


def test_nan_of_different_bits_are_different_elements() -> None:
    bits = [b"\x00" * 6 + b"\xf8\x7f", b"\x01" + b"\x00" * 5 + b"\xf8\x7f"]

    made = decoded([10, [4, bits[0]], [4, bits[1]]])

    assert {struct.pack("<d", value) for value in made} == set(bits)


def deep(kind: int, levels: int) -> Any:
    start: list[Any] = {6: [6, "a"], 7: [7, [1], "a"], 20: [20, "t"]}.get(kind, [kind])
    node: Any = True
    for _ in range(levels):
        node = [*start, node]
    return node


@pytest.mark.parametrize("kind", [6, 7, 8, 9, 11, 20])
def test_nodes_nest_128_deep_and_no_deeper(kind: int) -> None:
    decoded(deep(kind, 128 - (kind == 7)))

    for levels in (129, 5_000):
        error = refused(deep(kind, levels))
        assert error.code is ErrorCode.DEPTH and str(error).startswith("state: ")
        assert check_per_rank_value(deep(kind, levels))[0].code is ErrorCode.DEPTH


# ---- anything at all ---------------------------------------------------------------------------

CODES = st.integers(0, 22)
ATOMS = st.one_of(
    CODES,
    st.integers(0, MAX_INTEGER),
    st.booleans(),
    st.sampled_from(["a", "", "float32", "uint8", "int4"]),
    st.text(max_size=3),
    st.binary(max_size=16),
)
ANYTHING = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.builds(lambda code, rest: [code, *rest], CODES, st.lists(inner, max_size=4))
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=12,
)


def is_refused(node: Any) -> bool:
    try:
        decoded(node)
    except FormatError as error:
        assert type(error.code) is ErrorCode
        return True
    return False


@pytest.mark.slow
@given(ANYTHING)
def test_any_value_of_the_profile_is_decoded_or_refused(node: Any) -> None:
    problems = check_per_rank_value(node)

    assert is_refused(node) or all("within a per-rank value" in p.message for p in problems)


@pytest.mark.slow
@given(ANYTHING, st.lists(st.text(max_size=2), max_size=3), st.integers(0, 3))
def test_any_value_of_the_profile_is_checked(node: Any, names: list[str], paths: int) -> None:
    problems = check_state(
        node, names=names, aliases={0: ("b",)}, object_names=names, per_rank_paths=paths
    )

    assert len(problems) <= 100 and all(str(problem) for problem in problems)


def test_a_scalar_of_an_unstructured_type_is_a_numpy_scalar() -> None:
    made = decoded([17, "complex32", b"abcd"])

    assert isinstance(made, np.void) and made.tobytes() == b"abcd"
