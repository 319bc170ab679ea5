"""States survive encoding and decoding, type by type and bit by bit."""

from __future__ import annotations

import io
import struct
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.model.dtypes import DTYPES, DType, dtype_from_name, unpack_subbyte
from bcpformat.model.leaves import NumpyAdapter, PerRank
from bcpformat.model.limits import MAX_INTEGER
from bcpformat.model.names import split_name
from bcpformat.model.state import EncodedState, encode_state
from bcpformat.model.state_decode import (
    check_per_rank_value,
    check_state,
    decode_state,
    state_leaves,
)
from bcpformat.model.user_types import (
    TorchDevice,
    TorchDType,
    TorchSize,
    TypeRegistry,
    UnknownType,
)

ADAPTERS = {np.ndarray: NumpyAdapter()}


class Point:
    """A type that is registered."""

    def __init__(self, parts: Any) -> None:
        self.parts = parts


TYPES = TypeRegistry()
TYPES.register_type(Point, name="point", encode=lambda p: p.parts, decode=Point)


# ---- the oracle: what must be equal ------------------------------------------------------------


def exact(value: Any) -> Any:
    """Return a value that is equal for two states only if nothing tells them apart."""
    kind = type(value)
    if kind is float:
        return kind, struct.pack("<d", value)
    if kind is complex:
        return kind, struct.pack("<dd", value.real, value.imag)
    if kind is dict:
        return kind, [(exact(key), exact(item)) for key, item in value.items()]
    if kind is OrderedDict:
        items = [(exact(key), exact(item)) for key, item in value.items()]
        return kind, exact(vars(value)), items
    if kind in (list, tuple):
        return kind, [exact(item) for item in value]
    if kind in (set, frozenset):
        return kind, sorted(map(repr, map(exact, value)))
    if kind is io.BytesIO:
        return kind, value.getvalue()
    if isinstance(value, np.ndarray):
        return kind, value.dtype, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return kind, value.dtype, value.tobytes()
    if kind is PerRank:
        return kind, exact(value.value)
    if kind is Point:
        return kind, exact(value.parts)
    if kind is UnknownType:
        return kind, value.name, exact(value.value)
    return kind, value


def encoded(value: object) -> EncodedState:
    return encode_state(value, adapters=ADAPTERS, encoders={}, types=TYPES)


def elements(_flags: int, name: str, shape: tuple[int, ...], data: bytes) -> Any:
    dtype = dtype_from_name(name)
    if dtype.bits >= 8:
        return np.frombuffer(data, dtype.numpy).reshape(shape)
    numel = int(np.prod(shape, dtype=int))
    bits = unpack_subbyte(np.frombuffer(data, np.uint8), dtype.bits, numel)
    return bits.view(dtype.numpy).reshape(shape)


def forbidden(*_: object) -> Any:
    raise AssertionError("nothing of this kind is in the state")


def decoded(state: EncodedState) -> object:
    def rank_value(ordinal: int) -> object:
        document = state.per_rank[ordinal][1]
        value = decode_state(
            document,
            tensor=forbidden,
            read_object=forbidden,
            per_rank=forbidden,
            builders={},
            types=TYPES,
            inline=elements,
        )
        return PerRank(value)

    return decode_state(
        state.root,
        tensor=lambda index, _flags: state.leaves[index].value,
        read_object=lambda row: state.objects[row][1],
        per_rank=rank_value,
        builders={},
        types=TYPES,
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


# ---- strategies --------------------------------------------------------------------------------

DTYPE = st.sampled_from(list(DTYPES.values()))
WHOLE = DTYPE.filter(lambda dtype: dtype.bits >= 8)
EDGES = [2**7, 2**15, MAX_INTEGER, 2**53, 2**63, 2**64]
INTS = st.integers() | st.sampled_from([s * e + d for e in EDGES for d in (-1, 0) for s in (1, -1)])
FLOATS = st.floats() | st.binary(min_size=8, max_size=8).map(lambda b: struct.unpack("<d", b)[0])
COMPLEXES = st.builds(complex, FLOATS, FLOATS)
TEXT = st.text(max_size=8)
KEYS = st.recursive(
    TEXT | INTS | st.booleans(), lambda inner: st.lists(inner, max_size=3).map(tuple)
)


@st.composite
def scalars(draw: Any) -> np.generic:
    dtype: DType = draw(WHOLE)
    size = dtype.numpy.itemsize
    bits = draw(st.binary(min_size=size, max_size=size))
    return np.frombuffer(bits, dtype.numpy)[0]


@st.composite
def arrays(draw: Any) -> Any:
    dtype: DType = draw(DTYPE)
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    numel = int(np.prod(shape, dtype=int))
    size = numel * dtype.numpy.itemsize
    bits = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    if dtype.bits < 8:
        bits = bits & np.uint8(2**dtype.bits - 1)
    return bits.view(dtype.numpy).reshape(shape)


def distinct(values: list[Any]) -> frozenset[Any]:
    """Return a set of values whose bits differ: Python takes two equal NaN for different."""
    return frozenset({repr(exact(value)): value for value in values}.values())


ELEMENTS = st.recursive(
    st.none() | st.booleans() | INTS | FLOATS | COMPLEXES | TEXT | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple) | st.lists(inner, max_size=3).map(distinct)
    ),
    max_leaves=8,
)
SETS = st.lists(ELEMENTS, max_size=4).map(distinct)
LEAVES = st.one_of(
    ELEMENTS,
    st.binary(max_size=8).map(bytearray),
    st.binary(max_size=8).map(io.BytesIO),
    scalars(),
    arrays(),
    SETS,
    SETS.map(set),
    st.builds(TorchSize, st.lists(st.integers(0, MAX_INTEGER), max_size=3).map(tuple)),
    st.builds(TorchDType, TEXT),
    st.builds(TorchDevice, TEXT),
)


def ordered(items: Mapping[Any, Any], metadata: Any) -> OrderedDict[Any, Any]:
    made = OrderedDict(items)
    if metadata is not None:
        vars(made)["_metadata"] = metadata
    return made


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.builds(ordered, st.dictionaries(KEYS, inner, max_size=4), st.none() | inner),
        st.builds(Point, inner),
        st.builds(UnknownType, st.just("unknown"), inner),
    )


VALUES = st.recursive(LEAVES, containers, max_leaves=10)
STATES = st.recursive(LEAVES | st.builds(PerRank, VALUES), containers, max_leaves=15)


# ---- round trips -------------------------------------------------------------------------------


@pytest.mark.slow
@given(STATES)
def test_every_state_comes_back_as_it_was(value: object) -> None:
    assert exact(decoded(encoded(value))) == exact(value)


@pytest.mark.slow
@given(STATES)
def test_a_reader_finds_nothing_wrong_with_an_encoded_state(value: object) -> None:
    assert problems(encoded(value)) == []


@pytest.mark.slow
@given(STATES)
def test_decoding_and_encoding_again_gives_the_same_nodes(value: object) -> None:
    first = encoded(value)

    again = encoded(decoded(first))

    assert (again.root, again.names, again.per_rank) == (first.root, first.names, first.per_rank)


@pytest.mark.slow
@given(STATES)
def test_tensors_and_names_are_in_the_order_of_their_bytes(value: object) -> None:
    state = encoded(value)

    assert state.names == sorted(state.names, key=lambda name: name.encode())
    found = [at(value, name) for name in state.names]
    assert all(leaf.value is tensor for leaf, tensor in zip(state.leaves, found, strict=True))


def at(value: Any, name: str) -> Any:
    """Return the tensor at a name by looking for each segment among all keys: slow, obvious."""
    for part in split_name(name):
        while type(value) in (Point, UnknownType):
            value = value.parts if type(value) is Point else value.value
        if part == "%m":
            value = vars(value)["_metadata"]
        elif isinstance(value, list | tuple):
            value = value[int(part)]
        else:
            value = next(item for key, item in value.items() if key_segment(key) == part)
    while type(value) in (Point, UnknownType):
        value = value.parts if type(value) is Point else value.value
    return value


def key_segment(key: object) -> str:
    ((name, _, _),) = state_leaves([6, encoded({key: 0}).root[1], 0])
    return name


@pytest.mark.parametrize(
    ("value", "root"),
    [
        (None, [1]),
        (True, True),
        ("text", "text"),
        (b"\x00", b"\x00"),
        (0, [2, 0]),
        (MAX_INTEGER, [2, MAX_INTEGER]),
        (MAX_INTEGER + 1, [3, b"\x00\x00\x00\x00\x00\x00\x20"]),
        (-1, [3, b"\xff"]),
        (-128, [3, b"\x80"]),
        (-129, [3, b"\x7f\xff"]),
        (-0.0, [4, b"\x00" * 7 + b"\x80"]),
        (1j, [5, b"\x00" * 14 + b"\xf0\x3f"]),
        ({}, [6]),
        ({"a": 1, 2: [], (3, "b"): ()}, [6, "a", [2, 1], [2, 2], [8], [9, [2, 3], "b"], [9]]),
        (OrderedDict(a=True), [7, [1], "a", True]),
        ([None, [False]], [8, [1], [8, False]]),
        (set(), [10]),
        ({"b", "a", 300, 5, True, None}, [10, [1], [2, 5], [2, 300], "a", "b", True]),
        (frozenset({(1, frozenset())}), [11, [9, [2, 1], [11]]]),
        (bytearray(b"ab"), [12, b"ab"]),
        (TorchSize((2, 3)), [14, 2, 3]),
        (TorchDType("bfloat16"), [15, "bfloat16"]),
        (TorchDevice("cuda:0"), [16, "cuda:0"]),
        (np.float32(1), [17, "float32", b"\x00\x00\x80\x3f"]),
        (np.bool_(True), [17, "bool", b"\x01"]),
        (np.longlong(-2), [17, "int64", b"\xfe" + b"\xff" * 7]),
        (ml_dtypes.bfloat16(1), [17, "bfloat16", b"\x80\x3f"]),
        (Point([1]), [20, "point", [8, [2, 1]]]),
        (UnknownType("else", None), [20, "else", [1]]),
        (np.zeros(2), [0, 0, 1]),
    ],
)
def test_a_value_has_the_node_of_the_table(value: object, root: object) -> None:
    assert encoded(value).root == root


@pytest.mark.slow
@given(SETS)
def test_elements_of_a_set_ascend_by_their_encoded_bytes(value: frozenset[Any]) -> None:
    root = encoded(value).root
    assert isinstance(root, list)

    packed = [msgpack.packb(node, use_bin_type=True) for node in root[1:]]

    assert packed == sorted(packed)


def test_a_large_set_is_ordered_by_bytes_and_not_by_value() -> None:
    value = {"a" * n for n in (1, 31, 32, 255, 256, 65535, 65536)} | {b"c" * n for n in (1, 300)}
    value |= {tuple(range(n)) for n in (0, 14, 15, 40)} | set(range(0, 70_000, 1000))

    root = encoded(value).root

    assert isinstance(root, list)
    packed = [msgpack.packb(node, use_bin_type=True) for node in root[1:]]
    assert packed == sorted(packed) and len(packed) == len(value)
    assert exact(decoded(encoded(value))) == exact(value)


def test_the_content_of_a_bytes_io_is_taken_whole_wherever_it_stands() -> None:
    stream = io.BytesIO(b"content")
    stream.seek(3)

    assert encoded(stream).root == [13, b"content"] and stream.tell() == 3


def test_metadata_of_an_ordered_dict_is_named_and_comes_first() -> None:
    value = ordered({"w": np.zeros(1)}, OrderedDict({"": {"version": np.ones(1)}}))

    state = encoded(value)

    assert state.names == ["%m/%e/version", "w"]
    assert [name for name, _, _ in state_leaves(state.root)] == ["%m/%e/version", "w"]


def test_an_ordered_dict_without_metadata_comes_back_without_it() -> None:
    assert vars(decoded(encoded(OrderedDict(a=1)))) == {}


def test_a_numpy_complex32_scalar_keeps_its_bits() -> None:
    value = np.array([1 + 2j]).astype(ml_dtypes.complex32)[0]

    assert encoded(value).root == [17, "complex32", value.tobytes()]
