"""States of several ranks become one."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import pytest

from bcpformat.errors import InvalidArgumentError
from bcpformat.model.leaves import PerRank
from bcpformat.model.rank_state import RankState
from bcpformat.model.state_merge import StateMerger
from tests.model.merges import (
    Point,
    described,
    digest_of,
    merged,
    problems_of,
    value_of,
    w,
)

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
