"""What ranks have different: an error that says who has what, or values of each."""

from __future__ import annotations

import io
import struct
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bcpformat.errors import DisagreementError
from bcpformat.model.leaves import PerRank
from bcpformat.model.rank_state import RankState
from bcpformat.model.state_merge import Disagree
from tests.model.merges import (
    Point,
    described,
    merged,
    problems_free,
    problems_of,
    undeclared,
    value_of,
    w,
)

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
