"""States of several ranks become one, or an error that says who differs in what."""

from __future__ import annotations

import io
import struct
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.errors import DisagreementError, ErrorCode, InvalidArgumentError
from bcpformat.model.leaves import NumpyAdapter, PerRank
from bcpformat.model.rank_state import ObjectRef, RankState
from bcpformat.model.state import encode_state
from bcpformat.model.state_check import check_per_rank_value, check_state
from bcpformat.model.state_decode import decode_state
from bcpformat.model.state_merge import Disagree, MergedState, StateMerger
from bcpformat.model.user_types import TypeRegistry


class Point:
    """A type that is registered."""

    def __init__(self, parts: Any) -> None:
        self.parts = parts


TYPES = TypeRegistry()
TYPES.register_type(Point, name="point", encode=lambda p: p.parts, decode=Point)


def described(value: object) -> RankState:
    """The document of a rank that holds a value."""
    state = encode_state(value, adapters={np.ndarray: NumpyAdapter()}, encoders={}, types=TYPES)
    return RankState(
        root=state.root,
        names=state.names,
        dtypes=[leaf.dtype for leaf in state.leaves],
        shapes=[leaf.shape for leaf in state.leaves],
        aliases=state.aliases,
        objects=[ObjectRef(name=n, nbytes=len(d), digest=d[:1] * 16) for n, d in state.objects],
        per_rank=len(state.per_rank),
    )


def digest_of(state: RankState) -> bytes:
    return repr(state).encode()


def merged(
    *values: object, disagree: Disagree = "error", states: Sequence[RankState] | None = None
) -> MergedState:
    """The merged state of ranks 0, 1 and so on, after all rules of a state."""
    merger = StateMerger(disagree=disagree, digest_of=digest_of)
    for rank, state in enumerate(states or map(described, values)):
        merger.add(rank, state)
    result = merger.finish()
    problems = check_state(
        result.root,
        names=result.names,
        aliases=result.aliases,
        object_names=[o.name for o in result.objects],
        per_rank_paths=result.per_rank,
    )
    assert problems == []
    assert [p for node in result.undeclared.values for p in check_per_rank_value(node)] == []
    return result


def value_of(state: MergedState) -> Any:
    """A merged state as a value: tensors as their names, per-rank nodes by ordinal."""
    return decode_state(
        state.root,
        tensor=lambda row, _flags: ("tensor", state.names[row]),
        read_object=lambda row: state.objects[row].name.encode(),
        per_rank=lambda ordinal: ("per rank", ordinal),
        builders={},
        types=TYPES,
    )


def problems_of(*values: object, disagree: Disagree = "error") -> dict[str, str]:
    """Place to message of everything that ranks do not agree on."""
    with pytest.raises(DisagreementError) as caught:
        merged(*values, disagree=disagree)
    assert caught.value.code is ErrorCode.DISAGREE
    assert all(p.code is ErrorCode.DISAGREE for p in caught.value.problems)
    return {p.where: p.message for p in caught.value.problems}


def w(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.zeros(shape or (2,), dtype)


# ---- what is united ----------------------------------------------------------------------------


def test_keys_of_the_lowest_rank_come_first_and_new_ones_after_them() -> None:
    state = merged({"b": 1, "a": 2}, {"c": 3, "a": 2}, {"0": 4, "b": 1})

    assert list(value_of(state).items()) == [("b", 1), ("a", 2), ("c", 3), ("0", 4)]


def test_dicts_are_united_at_any_depth() -> None:
    state = merged({"x": ({"a": {}},)}, {"x": ({"a": {"k": 1}, "b": 2},)})

    assert value_of(state) == {"x": ({"a": {"k": 1}, "b": 2},)}


def test_tensors_of_all_ranks_get_rows_by_name() -> None:
    state = merged({"z": w(1), "m": w(2)}, {"a": w(3), "z": w(1)})

    assert state.names == ["a", "m", "z"] and state.shapes == [(3,), (2,), (1,)]
    assert [rows.tolist() for rows in state.tensor_rows] == [[1, 2], [0, 2]]
    assert state.root == [6, "z", [0, 2, 1], "m", [0, 1, 1], "a", [0, 0, 1]]


def test_a_tensor_at_the_top_stays_there() -> None:
    states = [
        RankState(root=0, names=[""], dtypes=["int8"], shapes=[()], digest=d) for d in (b"1", b"2")
    ]

    assert merged(states=states).root == 0


def test_objects_of_all_ranks_get_rows_by_name() -> None:
    state = merged({"b": b"b" * 70_000}, {"a": "a" * 70_000, "b": b"b" * 70_000})

    assert [o.name for o in state.objects] == ["a", "b"]
    assert [rows.tolist() for rows in state.object_rows] == [[1], [0, 1]]
    assert state.root == [6, "b", [18, 1, 1], "a", [18, 0, 0]]


def test_per_rank_nodes_are_numbered_in_the_merged_state_order() -> None:
    first, second = PerRank(1), PerRank(2)
    state = merged({"a": {}, "r": first}, {"r": second, "a": {"s": second}})

    assert state.root == [6, "a", [6, "s", [19, 0]], "r", [19, 1]]
    assert [rows.tolist() for rows in state.ordinals] == [[1], [1, 0]] and state.per_rank == 2


def test_the_metadata_of_an_ordered_dict_is_united_too() -> None:
    one, two = OrderedDict(a=1), OrderedDict(b=2)
    vars(one)["_metadata"] = OrderedDict({"": {"version": 1}})
    vars(two)["_metadata"] = OrderedDict({"b": {"version": 1}})

    both = value_of(merged(one, two))

    assert list(both.items()) == [("a", 1), ("b", 2)]
    assert list(vars(both)["_metadata"]) == ["", "b"]


def test_values_of_a_registered_type_with_tensors_are_united_inside() -> None:
    state = merged(Point({"a": w()}), Point({"a": w(), "b": w()}))

    assert state.names == ["a", "b"] and type(value_of(state)) is Point


def test_a_document_of_many_ranks_is_merged_once_and_its_ranks_all_count() -> None:
    merger = StateMerger(disagree="per_rank", digest_of=digest_of)
    documents = [replace(described({"lr": d, "w": w()}), digest=bytes([d])) for d in (1, 2)]

    numbers = [merger.add(rank, documents[rank % 2]) for rank in range(6)]

    assert numbers == [0, 1] * 3
    undeclared = merger.finish().undeclared
    assert undeclared.rank.tolist() == list(range(6)) and undeclared.values == [[2, 1], [2, 2]]
    assert undeclared.value.tolist() == [0, 1] * 3 and undeclared.path.tolist() == [0] * 6


def test_one_document_is_returned_as_it_is_without_a_digest() -> None:
    merger = StateMerger(disagree="error", digest_of=lambda _: pytest.fail("there is no other"))
    state = described({"t": w(), "r": PerRank(1), "o": b"o" * 70_000})
    merger.add(3, state)

    result = merger.finish()

    assert result.root is state.root and result.names is state.names
    rows = (result.tensor_rows, result.object_rows, result.ordinals)
    assert [r.tolist() for (r,) in rows] == [[0]] * 3


def test_ranks_must_ascend() -> None:
    merger = StateMerger(disagree="error", digest_of=digest_of)
    merger.add(1, described({}))

    with pytest.raises(InvalidArgumentError, match="got 1 after 1"):
        merger.add(1, described({}))


def test_there_must_be_something_to_merge() -> None:
    with pytest.raises(InvalidArgumentError, match="no state"):
        StateMerger(disagree="error", digest_of=digest_of).finish()


# ---- what differs ------------------------------------------------------------------------------

NAN = struct.unpack("<d", b"\x01\0\0\0\0\0\xf8\x7f")[0]


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        (0.1, 0.2, "rank 0 has 0.1, rank 1 has 0.2"),
        (1, True, "rank 0 has 1, rank 1 has True"),
        (1, 1.0, "rank 0 has 1, rank 1 has 1.0"),
        (0.0, -0.0, "rank 0 has 0.0, rank 1 has -0.0"),
        (float("nan"), NAN, "rank 0 has nan, rank 1 has nan that differs"),
        (None, False, "rank 0 has None, rank 1 has False"),
        ("x", b"x", "rank 0 has 'x', rank 1 has b'x'"),
        ("a" * 99 + "b", "a" * 99 + "c", "aaa... that differs"),
        (2**70, -(2**70), "rank 1 has -1180591620717411303424"),
        (2**300, 2**301, "rank 0 has an int of 38 bytes, rank 1 has an int of 38 bytes that"),
        (bytearray(2), io.BytesIO(b"12"), "a bytearray of 2 bytes, rank 1 has a BytesIO of 2"),
        (np.float32(1), np.float64(1), "rank 0 has np.float32(1.0), rank 1 has np.float64(1.0)"),
        (1 + 2j, 1 - 2j, "rank 0 has (1+2j), rank 1 has (1-2j)"),
        ({1}, {2}, "rank 0 has a set of 1, rank 1 has a set of 1 that differs"),
        ([1], [1, 2], "rank 0 has a list of 1, rank 1 has a list of 2"),
        ([1], (1,), "rank 0 has a list of 1, rank 1 has a tuple of 1"),
        ({}, [], "rank 0 has a dict, rank 1 has a list of 0"),
        ({}, OrderedDict(), "rank 0 has a dict, rank 1 has an OrderedDict"),
        (Point(1), Point(2), "a value of type point, rank 1 has a value of type point that"),
        (Point(1), 1, "rank 0 has a value of type point, rank 1 has 1"),
    ],
    ids=repr,
)
def test_plain_values_that_differ_are_named_with_their_ranks(
    one: object, two: object, said: str
) -> None:
    found = problems_of({"a": [one]}, {"a": [two]})

    assert list(found) == ["a/0"] and said in found["a/0"]
    assert found["a/0"].endswith("; wrap it in PerRank, or pass disagree='per_rank'")


@pytest.mark.parametrize("value", [float("nan"), NAN, -0.0, {1, 2}, b"", 2**99, Point([1, {}])])
def test_values_with_equal_bits_agree(value: object) -> None:
    assert problems_free({"a": value}, {"a": value, "b": 1})


def problems_free(*values: object) -> bool:
    merged(*values)
    return True


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        (w(), 1, "rank 0 has a numpy array, rank 1 has 1; what has tensors in it must"),
        (1, [w()], "rank 0 has 1, rank 1 has a list of 1; what has tensors in it must"),
        ([w()], [w(), w()], "rank 0 has a list of 1, rank 1 has a list of 2; what has tensors"),
        ({"x": w()}, [], "rank 0 has a dict, rank 1 has a list of 0; what has tensors"),
        (PerRank(1), 1, "rank 0 has a PerRank, rank 1 has 1; wrap it in PerRank on every rank"),
        (w(), PerRank(1), "rank 0 has a numpy array, rank 1 has a PerRank; wrap it in PerRank"),
        ("a" * 70_000, "b" * 70_000, "a str of 70000 bytes that differs; wrap it in PerRank,"),
        ("a", "b" * 70_000, "rank 0 has 'a', rank 1 has a str of 70000 bytes; wrap it in PerRank,"),
        (b"a" * 70_000, "a" * 70_000, "rank 0 has bytes of 70000 bytes, rank 1 has a str of 70000"),
        (Point([w(), 1]), Point([w(), 2]), "has 1, rank 1 has 2; it is part of a value of a reg"),
        (Point(w()), Point(1), "rank 0 has a value of type point, rank 1 has a value of type"),
        ({1: 0}, {True: 0}, "rank 0 has the key 1, rank 1 has the key True; they are equal in"),
        ({(0, 1): 0}, {(False, 1): 0}, "rank 0 has the key (0, 1), rank 1 has the key (False, 1)"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 99 else type(value).__name__,
)
@pytest.mark.parametrize("disagree", ["error", "per_rank"])
def test_what_cannot_become_a_per_rank_value_is_an_error_in_any_case(
    one: object, two: object, said: str, disagree: Disagree
) -> None:
    ((place, message),) = problems_of({"a": one}, {"a": two}, disagree=disagree).items()

    assert said in message and place.startswith("a")


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        (0, 1, "rank 0 has a tensor, rank 1 has a numpy array"),
        (0, 2, "rank 0 has a tensor, rank 1 has a parameter;"),
        (2, 6, "rank 0 has a parameter, rank 1 has a parameter that requires a gradient"),
        (4, 0, "rank 0 has a tensor that requires a gradient, rank 1 has a tensor;"),
    ],
)
def test_flags_of_a_tensor_must_be_equal(one: int, two: int, said: str) -> None:
    states = [
        RankState(root=[0, 0, flags] if flags else 0, names=[""], dtypes=["int8"], shapes=[()])
        for flags in (one, two)
    ]
    with pytest.raises(DisagreementError, match=said) as caught:
        merged(states=states)

    assert [p.where for p in caught.value.problems] == ["the state"]


def test_data_type_and_shape_of_a_tensor_must_be_equal() -> None:
    found = problems_of({"w": w(4, 3)}, {"w": w(4, 3), "x": w()}, {"w": w(4, 4, dtype="int8")})

    assert found == {
        "w": "rank 0 has (4, 3) float32, rank 2 has (4, 4) int8; a tensor has one global shape "
        "and data type"
    }


def test_other_keys_of_a_tensor_may_be_absent_but_not_differ() -> None:
    plain = described({"w": w()})
    said: list[Mapping[str, Any]] = [{"user": {"a": 1}}, {"user": {"a": 1}}, {"user": {"a": True}}]
    one, two, three = (replace(plain, extra={0: extra}) for extra in said)

    assert merged(states=[plain, one, two]).extra == {0: {"user": {"a": 1}}}
    with pytest.raises(DisagreementError, match="w: 'user' of the tensor differs: rank 1 has"):
        merged(states=[plain, two, three])


def test_one_problem_is_found_for_each_place_whatever_the_number_of_ranks() -> None:
    found = problems_of(*({"a": n, "b": [0, n]} for n in range(9)))

    assert list(found) == ["a", "b/1"] and "rank 0 has 0, rank 1 has 1" in found["a"]


def test_the_lowest_rank_that_has_a_value_is_named() -> None:
    found = problems_of({}, {"b": 1}, {"a": 1}, {"b": 1, "c": 1}, {"a": 2})

    assert found["a"].startswith("rank 2 has 1, rank 4 has 2")


def test_at_most_a_hundred_problems_are_kept_and_forty_shown() -> None:
    with pytest.raises(DisagreementError) as caught:
        merged([0] * 300, [1] * 300)

    assert len(caught.value.problems) == 100
    lines = caught.value.message.splitlines()
    assert lines[0].endswith("in 100 places or more") and len(lines) == 42
    assert "60 more" in lines[-1]


def test_at_most_a_hundred_tensors_that_differ_are_kept() -> None:
    assert len(problems_of({n: w(1) for n in range(120)}, {n: w(2) for n in range(120)})) == 100


def test_few_problems_are_all_shown() -> None:
    with pytest.raises(DisagreementError) as caught:
        merged([0, 0], [1, 1])

    assert len(caught.value.message.splitlines()) == 3 and "in 2 places" in caught.value.message


# ---- values that become per-rank values --------------------------------------------------------


def undeclared(state: MergedState) -> dict[int, dict[int, Any]]:
    """Ordinal to rank to value."""
    found: dict[int, dict[int, Any]] = {}
    rows = state.undeclared
    for path, rank, value in zip(
        rows.path.tolist(), rows.rank.tolist(), rows.value.tolist(), strict=True
    ):
        node = rows.values[value]
        found.setdefault(path, {})[rank] = decode_state(
            node, tensor=no, read_object=no, per_rank=no, builders={}, types=TYPES
        )
    assert len(rows) == sum(map(len, found.values()))
    return found


def no(*_: object) -> Any:
    raise AssertionError("nothing of this kind is in a value")


def test_a_value_that_differs_becomes_a_per_rank_node_with_the_values_of_all_ranks() -> None:
    state = merged(
        {"r": PerRank(0), "lr": 1, "w": w()}, {"w": w()}, {"lr": 1, "x": 0}, {"lr": 2}, {"lr": 1},
        disagree="per_rank",
    )  # fmt: skip

    assert value_of(state)["lr"] == ("per rank", 1) and state.per_rank == 2
    assert undeclared(state) == {1: {0: 1, 2: 1, 3: 2, 4: 1}}


def test_where_kinds_differ_the_whole_value_becomes_per_rank() -> None:
    ranks = [{"a": [1, {"k": 2}]}, {"a": [1, {"k": 3, "j": 4}]}, {"a": {"k": 1}}, {"a": [5]}]

    state = merged(*ranks, disagree="per_rank")

    assert value_of(state) == {"a": ("per rank", 0)}
    assert undeclared(state) == {0: {rank: value["a"] for rank, value in enumerate(ranks)}}


def test_a_whole_state_may_differ() -> None:
    state = merged(1, [2], disagree="per_rank")

    assert state.root == [19, 0] and undeclared(state) == {0: {0: 1, 1: [2]}}


def test_values_of_a_registered_type_without_tensors_differ_as_a_whole() -> None:
    state = merged({"p": Point([1, 2])}, {"p": Point([1, 3])}, disagree="per_rank")

    assert {r: p.parts for r, p in undeclared(state)[0].items()} == {0: [1, 2], 1: [1, 3]}


def test_a_value_that_differed_cannot_become_a_tensor_later() -> None:
    found = problems_of({"a": 1}, {"a": 2}, {"a": w()}, {"a": 3}, disagree="per_rank")

    assert found["a"].startswith("rank 0 has 1, rank 2 has a numpy array")


def test_keys_that_some_documents_lack_are_lacking_in_their_values() -> None:
    ranks: list[Any] = [{"v": {"a": 1}}, {"v": {"b": 2}}, {"v": {"a": 1, "c": 3}}, {"v": {"a": 1}}]

    state = merged(*ranks, {"v": 0}, disagree="per_rank")

    assert undeclared(state)[0] == {**{r: value["v"] for r, value in enumerate(ranks)}, 4: 0}


def test_values_of_several_places_are_kept_apart() -> None:
    state = merged([1, 1, "x"], [2, 1, "y"], disagree="per_rank")

    assert undeclared(state) == {0: {0: 1, 1: 2}, 1: {0: "x", 1: "y"}}


def test_plain_values_beside_tensors_in_a_registered_type_cannot_become_per_rank_values() -> None:
    found = problems_of({"p": Point([w(), 1])}, {"p": Point([w(), 2])}, disagree="per_rank")

    assert list(found) == ["p/1"] and "it is part of a value of a registered type" in found["p/1"]


def test_plain_values_after_a_registered_type_with_tensors_become_per_rank_values() -> None:
    state = merged([Point([w()]), 1], [Point([w()]), 2], disagree="per_rank")

    assert undeclared(state) == {0: {0: 1, 1: 2}}


def test_what_holds_a_problem_is_no_value_that_differs() -> None:
    assert list(problems_of({"v": [w()]}, {"v": [1]}, {"v": 5}, disagree="per_rank")) == ["v/0"]


def test_once_there_is_a_problem_plain_values_that_differ_are_none() -> None:
    found = problems_of({"a": 1, "b": 1}, {"a": w(), "b": 2}, {"b": w()}, disagree="per_rank")

    assert list(found) == ["a", "b"] and found["b"].startswith("rank 0 has 1, rank 2 has a numpy")


# ---- names of one tensor -----------------------------------------------------------------------


def test_names_that_are_one_tensor_on_all_ranks_stay_one() -> None:
    t = w()
    state = merged({"emb": t, "head": t}, {"emb": t, "head": t, "x": w(3)})

    assert state.names == ["emb", "x"] and state.aliases == {0: ("head",)}
    assert [rows.tolist() for rows in state.tensor_rows] == [[0], [0, 1]]


@pytest.mark.parametrize("name", ["emb", "head"])
@pytest.mark.parametrize("first", [False, True])
def test_a_rank_with_one_of_the_names_has_the_same_tensor(name: str, *, first: bool) -> None:
    t = w()
    ranks = [{"emb": t, "head": t}, {name: w()}]

    state = merged(*(reversed(ranks) if first else ranks))

    order = ["head", "emb"] if first and name == "head" else ["emb", "head"]
    assert state.names == order[:1] and state.aliases == {0: (order[1],)}
    assert [rows.tolist() for rows in state.tensor_rows] == [[0], [0]]


def test_names_are_one_tensor_through_several_ranks() -> None:
    s, t = w(), w()
    state = merged({"a": s, "b": s}, {"c": t, "b": t}, {"c": w()})

    assert state.names == ["a"] and state.aliases == {0: ("b", "c")}


def test_names_of_many_tensors_are_one_tensor_through_several_ranks() -> None:
    a, b, c = w(), w(), w()
    state = merged(
        {"p": w(3), "a": a, "b": a}, {"d": b, "c": b}, {"d": c, "b": c, "q": w(4)}, {"c": w()}
    )

    assert state.names == ["a", "p", "q"] and state.aliases == {0: ("b", "d", "c")}
    assert [rows.tolist() for rows in state.tensor_rows] == [[0, 1], [0], [0, 2], [0]]


def test_names_that_are_one_tensor_here_and_two_there_are_refused() -> None:
    t = w()
    found = problems_of({"head": w(), "emb": w(), "x": 1}, {"x": 1}, {"emb": t, "head": t})

    assert found == {
        "emb": "rank 0 has it and 'head' as two tensors, rank 2 as one; tie them on every rank "
        "that has both, or on none"
    }


def test_names_that_are_one_tensor_through_others_and_two_somewhere_are_refused() -> None:
    s, t = w(), w()
    found = problems_of({"a": s, "b": s}, {"b": t, "c": t}, {"a": w(), "c": w()})

    assert list(found) == ["a"] and "rank 2 has it and 'c' as two tensors" in found["a"]


def test_shapes_of_names_that_are_one_tensor_must_be_equal() -> None:
    t = w(2)
    found = problems_of({"emb": t, "head": t}, {"head": w(3)})

    assert list(found) == ["emb"]
    assert found["emb"].startswith("rank 0 has (2,) float32, rank 1 has (3,) float32")


# ---- any states --------------------------------------------------------------------------------

plain = st.sampled_from([None, True, 1, 1.0, -0.0, 0.0, "x", b"x", 2**70, frozenset({1}), Point(3)])
keys = st.sampled_from(["a", "b", 2, (2, "d"), False])
trees = st.recursive(
    plain | st.just(w()) | st.just(PerRank(0)),
    lambda inner: (
        st.dictionaries(keys, inner, max_size=3)
        | st.lists(inner, max_size=2)
        | st.lists(inner, max_size=2).map(tuple)
    ),
    max_leaves=10,
)


def exact(value: Any) -> Any:
    """A value that is equal only for values of equal kinds and bits; dicts without order."""
    if isinstance(value, float):
        return float, struct.pack("<d", value)
    if isinstance(value, dict):
        return dict, sorted((repr(key), exact(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), [exact(item) for item in value]
    if isinstance(value, Point):
        return Point, exact(value.parts)
    return type(value), "" if isinstance(value, (np.ndarray, PerRank)) else value


@st.composite
def parts_of_one_tree(draw: st.DrawFn) -> list[object]:
    """What some ranks have of one tree: each lacks some keys, and has others in another order."""
    tree = draw(st.dictionaries(keys, trees, min_size=1, max_size=4))

    def part(value: object) -> object:
        if isinstance(value, dict):
            kept = draw(st.permutations(list(value)))[draw(st.integers(0, 1)) :]
            return {key: part(value[key]) for key in kept}
        if isinstance(value, (list, tuple)):
            return type(value)(map(part, value))
        return value.copy() if isinstance(value, np.ndarray) else value

    return [part(tree) for _ in range(draw(st.integers(2, 4)))]


def united(one: Any, two: Any) -> Any:
    """The oracle of trees that do not differ."""
    if isinstance(one, dict):
        both = {key: united(one[key], two[key]) for key in one if key in two}
        return {key: both.get(key, one.get(key, two.get(key))) for key in [*one, *two]}
    return type(one)(map(united, one, two)) if isinstance(one, (list, tuple)) else one


@given(parts_of_one_tree())
def test_parts_of_one_tree_become_their_union(values: list[object]) -> None:
    documents = list(map(described, values))

    state = merged(states=documents)

    whole = values[0]
    for value in values[1:]:
        whole = united(whole, value)
    expected = described(whole)
    assert state.root == expected.root and state.names == expected.names
    assert state.shapes == expected.shapes and state.per_rank == expected.per_rank
    distinct = {digest_of(document): document for document in documents}
    for document, rows in zip(distinct.values(), state.tensor_rows, strict=True):
        assert [state.names[row] for row in rows.tolist()] == document.names


def differences(values: Mapping[int, Any], path: tuple[Any, ...] = ()) -> dict[Any, dict[int, Any]]:
    """The oracle of trees that may differ: the path of each difference to what ranks have there."""
    first, *others = values.values()
    found: dict[Any, dict[int, Any]] = {}
    if all(isinstance(value, dict) for value in values.values()):
        below: Any = {key: None for value in values.values() for key in value}
    elif isinstance(first, (list, tuple)) and all(
        type(value) is type(first) and len(value) == len(first) for value in others
    ):
        below = range(len(first))
    elif any(exact(value) != exact(first) for value in others):
        return {path: dict(values)}
    else:
        return {}
    for key in below:
        has = {
            rank: value[key]
            for rank, value in values.items()
            if not isinstance(value, dict) or key in value
        }
        found |= differences(has, (*path, key))
    return found


def is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return not isinstance(value, (np.ndarray, PerRank))


@given(st.lists(trees, min_size=2, max_size=4))
def test_any_difference_is_an_error(values: list[object]) -> None:
    if differences(dict(enumerate(values))):
        assert problems_of(*values)
    else:
        assert problems_free(*values)


@given(trees, trees)
def test_all_differences_of_two_ranks_are_found(one: object, two: object) -> None:
    expected = differences({0: one, 1: two})

    found = problems_of(one, two) if expected else {}

    assert len(found) == len(expected)


@given(st.lists(trees, min_size=2, max_size=4))
def test_all_plain_differences_become_values_of_their_ranks(values: list[Any]) -> None:
    expected = differences(dict(enumerate(values)))
    if not all(is_plain(value) for has in expected.values() for value in has.values()):
        assert problems_of(*values, disagree="per_rank")
        return

    state = merged(*values, disagree="per_rank")

    found = undeclared(state)
    assert len(found) == len(expected)
    for path, has in expected.items():
        place: Any = value_of(state)
        for key in path:
            place = place[key]
        kind, ordinal = place
        assert kind == "per rank"
        assert {r: exact(v) for r, v in found[ordinal].items()} == {
            r: exact(v) for r, v in has.items()
        }
