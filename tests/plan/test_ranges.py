"""Ranges of integers as columns, against sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bcpformat.model.manifest import ints
from bcpformat.plan.ranges import expand, union

RANGES = st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 9)), max_size=12)


@given(RANGES)
def test_ranges_expand_to_their_members_in_order(ranges: list[tuple[int, int]]) -> None:
    owner, member = expand(ints([r[0] for r in ranges]), ints([r[1] for r in ranges]))

    assert list(zip(owner.tolist(), member.tolist(), strict=True)) == [
        (i, first + step) for i, (first, size) in enumerate(ranges) for step in range(size)
    ]


@given(RANGES.map(lambda ranges: [(first, size + 1) for first, size in ranges]))
def test_a_union_holds_every_member_once_and_ascends(ranges: list[tuple[int, int]]) -> None:
    found = union(ints([r[0] for r in ranges]), ints([r[0] + r[1] for r in ranges]))

    assert found.tolist() == sorted(
        {m for first, size in ranges for m in range(first, first + size)}
    )
