"""Many chunk rows of any number of axes are sorted as a sort of tuples would."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from bcpformat.engine.chunk_rows import sort_chunks
from bcpformat.engine.gathered import GatheredColumn
from bcpformat.model.manifest import ints

ROWS = 300_000  # more than are looked at together


@pytest.mark.slow
@pytest.mark.parametrize("with_start", [False, True])
def test_rows_of_mixed_axes_are_sorted_in_parts(with_start: bool) -> None:  # noqa: FBT001
    rng = np.random.default_rng(1)
    shapes = [(900, 7), (), (50, 3, 4), (1000,)]
    ndims = np.array(list(map(len, shapes)))
    tensor = rng.integers(0, len(shapes), ROWS)
    element = rng.integers(0, np.array(list(map(prod, shapes)))[tensor])
    vectors = [np.unravel_index(element[tensor == t], s or (1,)) for t, s in enumerate(shapes)]
    first = np.cumsum(ndims[tensor]) - ndims[tensor]
    origin = np.empty(int(ndims[tensor].sum()), np.int64)
    for t, shape in enumerate(shapes):
        for axis in range(len(shape)):
            origin[first[tensor == t] + axis] = vectors[t][axis]
    start = rng.integers(0, 3, ROWS) if with_start else None

    order = sort_chunks(tensor, origin, start, shapes, find_repeated=True)

    keys = (np.zeros(ROWS) if start is None else start, element, tensor)
    expected = np.lexsort(keys)
    assert np.array_equal(order.row(np.arange(ROWS)), expected)
    where = np.repeat(np.arange(ROWS), ndims[tensor])
    assert np.array_equal(order.axes(where), np.repeat(expected, ndims[tensor[expected]]))
    ordered = order.axes(origin)
    ends = np.cumsum(ndims[tensor[expected]])
    three = np.flatnonzero(ndims[tensor[expected]] == 3)
    back = np.ravel_multi_index([ordered[ends[three] - 3 + axis] for axis in range(3)], (50, 3, 4))
    assert np.array_equal(back, element[expected][three])
    distinct = len(set(zip(*(key.tolist() for key in keys), strict=True)))
    assert len(order.repeated) == ROWS - distinct


def test_rows_in_order_stay_where_they_are() -> None:
    column = ints([3, 1, 2])

    order = sort_chunks(ints([0, 0, 1]), ints([0, 2, 0]), None, [(4,), (2,)], find_repeated=False)

    assert order.order is None and order.row(column) is column and order.axes(column) is column


def test_rows_with_equal_keys_are_found_where_they_are() -> None:
    order = sort_chunks(ints([1, 0, 1, 1]), None, ints([0, 5, 5, 0]), [(9,), (9,)],
                        find_repeated=True)  # fmt: skip

    assert order.repeated.tolist() == [3]


def test_no_rows_have_an_order() -> None:
    none = ints([])

    assert sort_chunks(none, None, None, [], find_repeated=True).order is None
    assert sort_chunks(none, none, none, [(1,)], find_repeated=True).axes(none).tolist() == []


def test_a_column_of_many_parts_is_put_together_in_order() -> None:
    column = GatheredColumn("u4")
    parts = [np.arange(n * 999, n * 999 + 999) for n in range(200)]
    buffer = parts[0]

    for part in parts:
        column.append(part, len(part))

    assert sum(map(len, column._few)) < 2**16 and all(few is not buffer for few in column._few)
    assert column.take().tolist() == list(range(200 * 999))  # type: ignore[union-attr]
    assert column.take() is None


def test_parts_without_a_column_stand_for_zeros_before_and_after_one_with_it() -> None:
    column = GatheredColumn("i8")
    for values in (None, [7], None, []):
        column.append(
            None if values is None else ints(values), 2 if values is None else len(values)
        )

    assert column.has_absent and column.take().tolist() == [0, 0, 7, 0, 0]  # type: ignore[union-attr]


def test_a_column_that_no_part_has_is_absent() -> None:
    column = GatheredColumn("u1")
    column.append(None, 3)

    assert column.take() is None


def test_the_only_part_of_a_column_is_not_copied() -> None:
    column, values = GatheredColumn("u1"), ints([1, 2])
    column.append(ints([]), 0)
    column.append(values, 2)

    assert column.take() is values
