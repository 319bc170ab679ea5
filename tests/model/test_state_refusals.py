"""Values without a form are refused, by path, before anything is written."""

from __future__ import annotations

import enum
import io
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.leaves import NumpyAdapter, PerRank, PerRankValues, TensorLeaf
from bcpformat.model.state import EncodedState, encode_state
from bcpformat.model.state_decode import check_state
from bcpformat.model.user_types import TypeRegistry, UnknownType

NO_TYPES = TypeRegistry()


def encoded(value: object, types: TypeRegistry = NO_TYPES) -> EncodedState:
    adapters = {np.ndarray: NumpyAdapter(), Shape: ShapeAdapter()}
    return encode_state(value, adapters=adapters, encoders={}, types=types)


def refusal(value: object, types: TypeRegistry = NO_TYPES) -> InvalidArgumentError:
    with pytest.raises(InvalidArgumentError) as caught:
        encoded(value, types)
    return caught.value


class Shape(tuple[int, ...]):
    """A tensor that is nothing but its shape."""

    __slots__ = ()


class ShapeAdapter:
    """Makes leaves of shapes without memory."""

    def describe(self, value: object, _path: Callable[[], str]) -> TensorLeaf:
        assert isinstance(value, Shape)
        return TensorLeaf("float64", tuple(value), 0, None, value, self)

    def array(self, _leaf: TensorLeaf) -> Any:
        return np.zeros(0)


class Plain:
    """A class of the user's own."""


class Colour(enum.IntEnum):
    RED = 1


Pair = namedtuple("Pair", "a b")


class Text(str):
    __slots__ = ()


def closed_stream() -> io.BytesIO:
    stream = io.BytesIO(b"a")
    stream.close()
    return stream


def with_attribute() -> OrderedDict[str, int]:
    made = OrderedDict(a=1)
    vars(made)["note"] = "lost by a pickle of its items"
    return made


@pytest.mark.parametrize(
    "value",
    [
        Plain(),
        Plain,
        len,
        object(),
        range(3),
        slice(1),
        memoryview(b"a"),
        iter([]),
        {}.keys(),
        Ellipsis,
        Colour.RED,
        Pair(1, 2),
        Text("a"),
        defaultdict(int),
        Counter(),
        np.str_("a"),
        np.bytes_(b"a"),
        np.datetime64(1, "s"),
        np.longdouble(1),
        np.zeros(1, [("a", "i4")])[0],
        ml_dtypes.int4(1),
        np.ma.masked_array([1]),
        np.array([None]),
        np.float32,
        np.dtype("f4"),
        PerRankValues({0: 1}),
        PerRank(PerRank(1)),
        closed_stream(),
        with_attribute(),
        "\ud800",
        {Plain},
        {("a", range(3))},
        {frozenset({Colour.RED})},
        {"\udfff"},
        frozenset({np.float64(1)}),
        {float("nan"), float("nan")},
        Shape([1] * 33),
        Shape([2**50, 8]),
        Shape([2**50, 0, 8]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_without_a_form_is_refused_with_its_path(value: object) -> None:
    error = refusal({"model": [0, {("k", 1): value}]})

    assert error.code is ErrorCode.NO_FORM
    assert str(error).startswith("'model/1/%(k,%i1%)'")


@pytest.mark.parametrize(
    "key",
    [None, 1.5, b"a", frozenset(), Colour.RED, Text("a"), np.int64(1), "\ud800", (1, None)],
    ids=repr,
)
def test_a_key_without_a_form_is_refused_with_the_path_of_its_dict(key: object) -> None:
    error = refusal({"a": [{key: 1}]})

    assert error.code is ErrorCode.NO_FORM and str(error).startswith("'a/0'")


def test_a_value_at_the_top_is_refused_as_the_top() -> None:
    assert str(refusal(Plain())).startswith("the top: a value of type ")


def test_a_refusal_names_the_type_and_the_way_out() -> None:
    assert "Plain has no form" in str(refusal([Plain()]))
    assert "name its codec with bcpformat.register_type" in str(refusal([Plain()]))
    assert "collections.Counter" in str(refusal([Counter()]))
    assert "make it a dict, or" in str(refusal([Counter()]))
    assert "make it a tuple, or" in str(refusal([Pair(1, 2)]))
    assert "make it a numpy.ndarray, or" in str(refusal([np.ma.masked_array([1])]))


def test_a_refusal_of_the_values_of_all_ranks_says_what_to_pass() -> None:
    assert "pass PerRank(values[rank])" in str(refusal([PerRankValues({0: 1})]))


def test_a_refusal_within_a_per_rank_value_has_the_whole_path() -> None:
    assert str(refusal({"rng": PerRank({"a": Plain()})})).startswith("'rng/a'")
    assert str(refusal({"rng": PerRank([np.array(["a"])])})).startswith("'rng/0'")
    assert str(refusal({"rng": PerRank([Shape([1] * 33)])})).startswith("'rng/0'")


def test_a_refusal_within_a_registered_type_has_the_path_of_the_value() -> None:
    types = TypeRegistry()
    types.register_type(Plain, name="plain", encode=lambda _: [range(3)], decode=lambda _: Plain())

    assert str(refusal({"p": Plain()}, types)).startswith("'p/0'")


def test_what_a_users_encoder_raises_says_where() -> None:
    def fail(_: Plain) -> object:
        raise KeyError("gone")

    types = TypeRegistry()
    types.register_type(Plain, name="plain", encode=fail, decode=lambda _: Plain())

    with pytest.raises(KeyError) as caught:
        encoded({"p": Plain()}, types)
    assert caught.value.__notes__ == ["while 'plain' encoded the value at 'p'"]


# ---- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.zeros(1), b"a" * 65_537])
def test_a_name_of_more_than_65535_bytes_is_refused(value: object) -> None:
    key = "é" * 16_000

    assert encoded({key: {key: value}}).root
    error = refusal({key: {key: {key: value}}})
    assert error.code is ErrorCode.NO_FORM and "65535" in str(error) and len(str(error)) < 1000


def test_a_key_longer_than_a_name_is_kept_where_nothing_needs_the_name() -> None:
    key = "k" * 70_000

    assert encoded({key: 1}).root == [6, key, [2, 1]]


# ---- depth -------------------------------------------------------------------------------------


def nested(levels: int, innermost: object) -> object:
    value = innermost
    for _ in range(levels):
        value = [value]
    return value


def in_users_type(levels: int) -> object:
    value: object = None
    for _ in range(levels):
        value = UnknownType("t", value)
    return value


def tuples(levels: int) -> Any:
    value: Any = ()
    for _ in range(levels - 1):
        value = (value,)
    return value


def frozensets(levels: int) -> Any:
    value: Any = frozenset()
    for _ in range(levels - 1):
        value = frozenset({value})
    return value


@pytest.mark.parametrize(
    ("deepest", "too_deep"),
    [
        (nested(128, True), nested(129, True)),
        (nested(127, 1), nested(128, 1)),
        (nested(127, np.zeros(1)), nested(128, np.zeros(1))),
        (nested(127, {}), nested(128, {})),
        (nested(127, {"a": "b"}), nested(127, {"a": None})),
        (nested(126, {1: "b"}), nested(127, {1: "b"})),
        (nested(127, OrderedDict), nested(128, OrderedDict)),
        (nested(127, set()), nested(127, {1})),
        (nested(126, {(True,)}), nested(126, {(1,)})),
        (nested(100, tuples(28)), nested(100, tuples(29))),
        (nested(100, {tuples(27): True}), nested(100, {tuples(28): True})),
        (nested(100, {tuples(27)}), nested(100, {tuples(28)})),
        (frozensets(128), frozensets(129)),
        (in_users_type(127), in_users_type(128)),
        (PerRank(nested(128, True)), PerRank(nested(129, True))),
        (PerRank(nested(126, np.zeros(1))), PerRank(nested(127, np.zeros(1)))),
        (nested(127, PerRank(nested(128, True))), nested(128, PerRank(None))),
        (nested(127, b"a" * 65_537), nested(128, b"a" * 65_537)),
    ],
)
def test_arrays_nest_128_deep_and_no_deeper(deepest: Any, too_deep: Any) -> None:
    state = encoded(swapped(deepest))

    assert (
        check_state(
            state.root,
            names=state.names,
            aliases={},
            object_names=[name for name, _ in state.objects],
            per_rank_paths=len(state.per_rank),
        )
        == []
    )
    error = refusal(swapped(too_deep))
    assert error.code is ErrorCode.DEPTH and "nest deeper than 128" in str(error)


def swapped(value: Any) -> Any:
    """Return the value with an OrderedDict in place of the type: it has metadata below it."""
    if isinstance(value, list):
        return [swapped(item) for item in value]
    if value is OrderedDict:
        made = OrderedDict()
        vars(made)["_metadata"] = True
        return made
    return value


@pytest.mark.parametrize("kind", [dict, list, OrderedDict])
def test_a_container_that_holds_itself_is_refused_with_a_path(kind: type) -> None:
    value = kind()
    if kind is list:
        value.append(value)
    else:
        value["a"] = value

    error = refusal({"loop": value})

    assert error.code is ErrorCode.DEPTH
    assert str(error).startswith("'loop/0/0/" if kind is list else "'loop/a/a/")


def test_metadata_that_holds_its_dict_is_refused() -> None:
    value: OrderedDict[str, object] = OrderedDict()
    vars(value)["_metadata"] = value

    assert refusal(value).code is ErrorCode.DEPTH


def test_a_users_encoder_that_returns_its_argument_is_refused() -> None:
    types = TypeRegistry()
    types.register_type(Plain, name="plain", encode=lambda value: value, decode=lambda _: Plain())

    assert refusal({"p": Plain()}, types).code is ErrorCode.DEPTH


def test_a_key_of_deep_tuples_is_refused_without_a_recursion_error() -> None:
    assert refusal({tuples(600): 1}).code is ErrorCode.DEPTH
