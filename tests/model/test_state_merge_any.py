"""Any states of several ranks are united, or all their differences are found."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.model.leaves import PerRank
from tests.model.merges import (
    Point,
    described,
    digest_of,
    merged,
    problems_free,
    problems_of,
    undeclared,
    value_of,
    w,
)

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
