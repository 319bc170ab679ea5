"""The rules of a state tree that tie it to the rows of a manifest."""

from __future__ import annotations

from typing import Any

import pytest

from bcpformat.errors import ErrorCode, Problem
from bcpformat.model.names import MAX
from bcpformat.model.state_decode import check_per_rank_value, check_state


def problems(node: Any, **rows: Any) -> list[Problem]:
    arguments: dict[str, Any] = {
        "names": [],
        "aliases": {},
        "object_names": [],
        "per_rank_paths": 0,
    }
    return check_state(node, **(arguments | rows))


def fault(node: Any, **rows: Any) -> Problem:
    (found,) = problems(node, **rows)
    return found


def test_a_tree_that_holds_to_every_rule_has_no_problem() -> None:
    node = [
        7,
        [6, "", [8, 0]],
        *("w", 1, [9, "a", [2, 1]], [8, [0, 1, 2], [20, "t", [6, True, 2]]]),
        *("text", [18, 0, 1], "bytes", [18, 1, 0], "rank", [19, 0], "more", [9, [19, 1]]),
    ]
    names = ["%m/%e/0", "w", "%(a,%i1%)/1/%t"]
    aliases = {1: ("%(a,%i1%)/0",)}

    found = problems(
        node, names=names, aliases=aliases, object_names=["bytes", "text"], per_rank_paths=2
    )

    assert found == []


@pytest.mark.parametrize("index", [1, 2**53 - 1, -1])
def test_a_leaf_of_a_tensor_that_does_not_exist_is_found(index: int) -> None:
    found = problems([8, 0, [9, index]], names=["0"])

    assert [(p.code, p.where) for p in found] == [(ErrorCode.INDEX, "state '1/0'")]
    flagged = problems([8, 0, [0, index, 1]], names=["0"])
    assert [p.code for p in flagged] == [ErrorCode.INDEX]


def test_a_tensor_whose_name_is_not_the_path_of_its_first_leaf_is_found() -> None:
    found = problems([6, "a", 1, "b", 0], names=["a", "b"])

    assert [(p.code, p.where) for p in found] == [
        (ErrorCode.STATE, "state 'a'"),
        (ErrorCode.STATE, "state 'b'"),
    ]
    assert "'b'" in found[0].message and "'a'" in found[1].message


@pytest.mark.parametrize("aliases", [("c", "b"), ("b", "x"), ("x", "c")])
def test_aliases_that_are_not_the_other_paths_in_order_are_found(aliases: tuple[str, str]) -> None:
    found = problems([6, "a", 0, "b", 0, "c", 0], names=["a"], aliases={0: aliases})

    assert {p.code for p in found} == {ErrorCode.STATE} and "alias" in found[0].message


@pytest.mark.parametrize("aliases", [{}, {0: ("b",)}, {0: ("b", "c", "d")}])
def test_a_tensor_with_other_than_as_many_leaves_as_names_is_found(aliases: Any) -> None:
    found = fault([6, "a", 0, "b", 0, "c", 0], names=["a"], aliases=aliases)

    assert found.code is ErrorCode.STATE and "3 leaves" in found.message


def test_a_tensor_that_no_leaf_refers_to_is_found() -> None:
    found = fault([6], names=["a"])

    assert found.code is ErrorCode.STATE and "'a'" in found.message


def test_a_leaf_at_the_top_has_the_empty_name() -> None:
    assert problems(0, names=[""]) == []
    assert fault(0, names=["a"]).where == "state"


def test_the_path_of_a_leaf_is_compared_as_escaped() -> None:
    assert problems([6, "a/b", 0], names=["a%2Fb"]) == []
    assert problems([6, "a/b", 0], names=["a/b"]) != []


def test_an_object_that_does_not_exist_is_found() -> None:
    assert fault([8, [18, 0, 1]], object_names=["0"]).code is ErrorCode.STATE
    assert fault([8, [18, 0, -1]], object_names=["0"]).code is ErrorCode.STATE


def test_an_object_whose_name_is_not_the_path_of_its_node_is_found() -> None:
    found = fault([8, [18, 0, 0]], object_names=["1"])

    assert (found.code, found.where) == (ErrorCode.STATE, "state '0'") and "'1'" in found.message


def test_an_object_that_no_node_refers_to_is_allowed() -> None:
    assert problems([8], object_names=["notes"]) == []


def test_per_rank_ordinals_out_of_order_are_found() -> None:
    found = problems([8, [19, 1], [19, 0]], per_rank_paths=2)

    assert [(p.code, p.where) for p in found] == [
        (ErrorCode.STATE, "state '0'"),
        (ErrorCode.STATE, "state '1'"),
    ]


def test_rows_of_a_per_rank_node_that_does_not_exist_are_found() -> None:
    assert fault([8, [19, 0]], per_rank_paths=2).code is ErrorCode.INDEX


def test_a_per_rank_node_without_rows_is_found() -> None:
    assert fault([8, [19, 0], [19, 1]], per_rank_paths=1).code is ErrorCode.STATE


@pytest.mark.parametrize("node", [0, [0, 0, 1], [18, 0, 0], [19, 0]])
def test_a_per_rank_value_refers_to_no_rows(node: Any) -> None:
    (found,) = check_per_rank_value([6, "a", node])

    assert (found.code, found.where) == (ErrorCode.STATE, "state 'a'")


def test_a_per_rank_value_holds_inline_tensors_and_a_state_does_not() -> None:
    node = [8, [21, 4, "bfloat16", [2], b"abcd"]]

    assert check_per_rank_value(node) == []
    assert fault(node).code is ErrorCode.STATE


def test_every_problem_is_found_and_not_only_the_first() -> None:
    found = problems([8, [22], 5, [20, "t", [2, True]], [6, "a"], [10, "b", "a"]])

    assert [p.where for p in found] == [f"state '{i}'" for i in range(5)]


def test_a_place_is_safe_for_a_terminal_and_short() -> None:
    found = fault([6, "\x9b31m" + "a" * 10_000, [22]])

    assert found.where.isprintable() and len(found.where) < 420


# ---- bounded by the input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [
        {},
        {"names": [str(i) for i in range(1000)]},
        {"names": ["x"] * 1000},
    ],
)
def test_a_check_ends_after_a_hundred_problems(rows: Any) -> None:
    assert len(problems([8, *range(1000, 2000)], **rows)) == 100
    assert len(problems([8], names=["x"] * 1000)) == 100


def test_leaves_below_a_very_long_key_do_not_multiply_it() -> None:
    node = [6, "k" * 2**24, [8, *([8, 0] for _ in range(10_000))]]

    found = problems(node, names=["x"])  # if every leaf's name were made, this took minutes

    assert {p.code for p in found} == {ErrorCode.STATE}
    assert "more than 65535 bytes" in found[0].where


def test_plain_values_below_a_very_long_key_are_valid() -> None:
    node = [6, "k" * 2**24, [8, *([8] for _ in range(10_000))]]

    assert problems(node) == []


@pytest.mark.parametrize(
    "key",
    ["k" * (MAX + 1), [3, b"\x01" * 70_000], [9, "a" * MAX], "/" * (MAX // 2)],
    ids=["str", "int", "tuple", "escaped"],
)
def test_a_tensor_below_a_key_longer_than_a_name_is_found(key: Any) -> None:
    found = fault([6, key, 0], names=["x"])

    assert "more than 65535 bytes" in found.where


def test_a_tensor_with_the_longest_name_is_valid() -> None:
    key = "é" * 16_383

    name = f"{key}/{key}" + "a" * 2

    assert problems([6, key, [6, key + "aa", 0]], names=[name]) == []
