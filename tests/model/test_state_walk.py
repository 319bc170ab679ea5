"""Walks over a state tree by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.errors import ErrorCode, LimitError
from bcpformat.model import state_walk
from bcpformat.model.state_walk import Path, prune_state, saved_leaves, state_leaves

STATE = [
    7,
    [6, "", [6, "version", [2, 1], "t", 5]],
    *("w", 0),
    *("opt", [6, [2, 0], [6, "step", [2, 7], "avg", [0, 1, 4]], "groups", [8, [6], True, 2]]),
    *("user", [20, "point", [9, 3, [1]]]),
    *("empty", [8], "rng", [19, 0], "set", [10, "a"], "text", [18, 0, 0]),
]


def test_leaves_come_with_names_and_flags_in_state_order() -> None:
    assert list(state_leaves(STATE)) == [
        ("%m/%e/t", 5, 0),
        ("w", 0, 0),
        ("opt/%i0/avg", 1, 4),
        ("opt/groups/2", 2, 0),
        ("user/0", 3, 0),
    ]


@pytest.mark.parametrize(
    ("root", "leaves"),
    [
        (4, [("", 4, 0)]),
        ([0, 4, 2], [("", 4, 2)]),
        ([20, "t", 4], [("", 4, 0)]),
        ("text", []),
        ([8], []),
    ],
)
def test_a_state_of_one_value_has_its_leaf_at_the_top(root: Any, leaves: Any) -> None:
    assert list(state_leaves(root)) == leaves


def test_saved_leaves_are_what_a_template_has_values_for() -> None:
    assert saved_leaves(STATE) == {
        "w": 0,
        "opt/%i0/step": [2, 7],
        "opt/%i0/avg": [0, 1, 4],
        "opt/groups/0": [6],
        "opt/groups/1": True,
        "opt/groups/2": 2,
        "user": [20, "point", [9, 3, [1]]],
        "empty": [8],
        "rng": [19, 0],
        "set": [10, "a"],
        "text": [18, 0, 0],
    }


def test_an_ordered_dict_with_metadata_alone_is_a_saved_leaf() -> None:
    assert saved_leaves([8, [7, [6]]]) == {"0": [7, [6]]}
    assert saved_leaves([7, [6]]) == {"": [7, [6]]}


def test_what_has_no_name_is_no_saved_leaf() -> None:
    assert saved_leaves([6, "k" * 70_000, [1], "a", True]) == {"a": True}


def test_saved_leaves_whose_names_are_out_of_all_proportion_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_walk, "_MOST_CHARACTERS", 10)

    assert len(saved_leaves([8, *[True] * 10])) == 10
    with pytest.raises(LimitError) as caught:
        saved_leaves([8, *[True] * 11])
    assert caught.value.code is ErrorCode.LIMIT


# ---- pruning -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["w"], [7, [1], "w", 0]),
        (["opt/%i0/avg"], [7, [1], "opt", [6, [2, 0], [6, "avg", [0, 1, 4]]]]),
        (["opt/groups/2"], [7, [1], "opt", [6, "groups", [8, [1], [1], 2]]]),
        (["opt/groups/0"], [7, [1], "opt", [6, "groups", [8, [6], [1], [1]]]]),
        (["user"], [7, [1], "user", [20, "point", [9, 3, [1]]]]),
        (["user/0"], [7, [1], "user", [20, "point", [9, 3, [1]]]]),
        (["%m/%e/t"], [7, [6, "", [6, "t", 5]]]),
        (["empty", "rng"], [7, [1], "empty", [8], "rng", [19, 0]]),
        (["set", "text"], [7, [1], "set", [10, "a"], "text", [18, 0, 0]]),
        ([], None),
        (["opt", ""], None),
    ],
)
def test_a_tree_is_pruned_to_the_names_that_are_taken(names: list[str], expected: Any) -> None:
    assert prune_state(STATE, names.__contains__) == expected


def test_a_tree_of_which_everything_is_taken_stays_as_it_is() -> None:
    assert prune_state(STATE, lambda _: True) == STATE


@pytest.mark.parametrize("root", [3, [8], [6], [7, [6]], [1], "text"])
def test_a_leaf_at_the_top_is_taken_by_the_empty_name(root: Any) -> None:
    assert prune_state(root, lambda name: name == "") == root
    assert prune_state(root, lambda _: False) is None


def test_what_has_no_name_is_not_taken() -> None:
    assert prune_state([6, "k" * 70_000, [1], "a", True], lambda _: True) == [6, "a", True]


@given(st.sets(st.sampled_from([name for name, _, _ in state_leaves(STATE)])))
def test_leaves_keep_their_names_when_a_tree_is_pruned(names: set[str]) -> None:
    pruned = prune_state(STATE, names.__contains__)

    left = [] if pruned is None else list(state_leaves(pruned))
    assert left == [leaf for leaf in state_leaves(STATE) if leaf[0] in names]


# ---- the path ----------------------------------------------------------------------------------


def test_a_path_makes_names_of_whatever_a_walk_sets() -> None:
    path = Path()

    seen = [path.name()]
    for key in ("a", "b/c"):
        path.keys.append(key)
        seen.append(path.name())
    path.keys[-1] = 7
    path.keys.append([9, True])
    seen.append(path.name())
    path.leave()
    path.keys[-1] = None
    seen.append(path.name())
    path.leave()
    path.keys[-1] = "z"
    seen.append(path.name())
    path.leave()
    seen.append(path.name())

    assert seen == ["", "a", "a/b%2Fc", "a/7/%(%t%)", "a/%m", "z", ""]


def test_a_path_longer_than_a_name_may_be_has_none_until_it_is_left() -> None:
    path = Path()
    path.keys += ["k" * 70_000, "a"]

    assert path.name() is None and "more than 65535 bytes" in path.where()
    path.leave()
    path.keys[-1] = "b"
    assert path.name() == "b" and path.where() == "state 'b'"
