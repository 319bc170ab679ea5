"""Boxes, regions, and flat ranges cut into boxes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.errors import InvalidArgumentError
from bcpformat.model.region import Box, Region, flat_range_boxes

SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)


def slices_of(box: Box) -> tuple[slice, ...]:
    return tuple(slice(o, e) for o, e in zip(box.origin, box.end, strict=True))


def spec_cut(
    origin: tuple[int, ...], extent: tuple[int, ...], a: int, b: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return what the pseudo-code of spec 8.2 returns."""
    if not extent:
        return [(origin, extent)]
    inner = math.prod(extent[1:])

    def row(r: int, low: int, high: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        return [
            ((origin[0] + r, *rest_origin), (1, *rest_extent))
            for rest_origin, rest_extent in spec_cut(origin[1:], extent[1:], low, high)
        ]

    if a >= b:
        return []
    first, last = a // inner, (b - 1) // inner
    if first == last:
        return row(first, a - first * inner, b - first * inner)
    out = []
    if a % inner != 0:
        out += row(first, a - first * inner, inner)
        first += 1
    whole = b // inner
    if first < whole:
        out.append(((origin[0] + first, *origin[1:]), (whole - first, *extent[1:])))
    if b % inner != 0:
        out += row(whole, 0, b - whole * inner)
    return out


@st.composite
def shapes_and_ranges(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    shape = draw(SHAPES)
    start = draw(st.integers(0, math.prod(shape)))
    return shape, start, draw(st.integers(start, math.prod(shape)))


@st.composite
def box_pairs(draw: st.DrawFn) -> tuple[Box, Box]:
    ndim = draw(st.integers(0, 3))
    corner = st.tuples(*[st.integers(0, 4)] * ndim)
    first, second = (Box(origin=draw(corner), shape=draw(corner)) for _ in range(2))
    return first, second


def test_a_box_knows_its_size_and_its_end() -> None:
    box = Box(origin=(1, 2), shape=(3, 4))

    assert (box.ndim, box.numel, box.end) == (2, 12, (4, 6))


def test_a_box_without_axes_has_one_element() -> None:
    assert Box.whole(()).numel == 1


def test_a_box_refuses_an_origin_of_another_length() -> None:
    with pytest.raises(InvalidArgumentError, match="same number of axes"):
        Box(origin=(0,), shape=(1, 2))


@pytest.mark.parametrize(("origin", "shape"), [((-1,), (1,)), ((0,), (-1,))])
def test_a_box_refuses_negative_numbers(origin: tuple[int, ...], shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="-1"):
        Box(origin=origin, shape=shape)


@given(box_pairs())
def test_an_intersection_holds_the_elements_of_both(pair: tuple[Box, Box]) -> None:
    painted = np.zeros((8,) * pair[0].ndim, int)
    for box in pair:
        painted[slices_of(box)] += 1

    common = pair[0].intersect(pair[1])

    if common is None:
        assert not (painted == 2).any()
    else:
        assert (painted[slices_of(common)] == 2).all()
        assert common.numel == (painted == 2).sum()


@given(box_pairs())
def test_a_box_contains_another_that_ends_within_it_on_every_axis(pair: tuple[Box, Box]) -> None:
    outer, inner = pair

    assert outer.contains(inner) == all(
        set(range(a, a + n + 1)) >= set(range(b, b + m + 1))
        for a, n, b, m in zip(outer.origin, outer.shape, inner.origin, inner.shape, strict=True)
    )


@pytest.mark.parametrize("method", ["intersect", "contains"])
def test_boxes_of_different_ranks_do_not_compare(method: str) -> None:
    with pytest.raises(InvalidArgumentError, match="1 axes, got 2"):
        getattr(Box.whole((2,)), method)(Box.whole((2, 2)))


@pytest.mark.parametrize(("start", "count"), [(-1, 1), (0, -1), (0, 7), (6, 1)])
def test_a_region_refuses_a_range_outside_its_box(start: int, count: int) -> None:
    with pytest.raises(InvalidArgumentError, match="6 elements"):
        Region(box=Box.whole((2, 3)), start=start, count=count)


def test_a_region_is_whole_if_it_holds_all_of_its_box() -> None:
    assert Region.whole(Box.whole((2, 3))).is_whole
    assert not Region(box=Box.whole((2, 3)), start=0, count=5).is_whole


def test_a_whole_region_is_its_box() -> None:
    box = Box(origin=(4, 5), shape=(2, 3))

    assert Region.whole(box).boxes() == ((box, 0),)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 2)])
def test_a_region_without_elements_has_no_boxes(shape: tuple[int, ...]) -> None:
    assert Region(box=Box.whole(shape), start=0, count=0).boxes() == ()


@given(shapes_and_ranges())
def test_boxes_of_a_region_are_those_of_its_range_moved_by_its_origin(
    case: tuple[tuple[int, ...], int, int],
) -> None:
    shape, start, stop = case
    origin = tuple(range(7, 7 + len(shape)))
    region = Region(box=Box(origin=origin, shape=shape), start=start, count=stop - start)

    moved = [
        (Box(origin=tuple(np.add(origin, box.origin).tolist()), shape=box.shape), flat)
        for box, flat in flat_range_boxes(shape, start, stop)
    ]

    assert list(region.boxes()) == moved


@given(shapes_and_ranges())
def test_boxes_of_a_flat_range_hold_it_in_order(case: tuple[tuple[int, ...], int, int]) -> None:
    shape, start, stop = case
    positions = np.arange(math.prod(shape)).reshape(shape)

    cut = flat_range_boxes(shape, start, stop)

    held = [positions[slices_of(box)].ravel() for box, _ in cut]
    assert np.concatenate([[], *held]).tolist() == list(range(start, stop))
    assert [int(elements[0]) for elements in held] == [flat for _, flat in cut]
    assert len(cut) <= max(1, 2 * len(shape) - 1)


@given(shapes_and_ranges())
def test_a_flat_range_is_cut_as_the_spec_says(case: tuple[tuple[int, ...], int, int]) -> None:
    shape, start, stop = case

    cut = [(box.origin, box.shape) for box, _ in flat_range_boxes(shape, start, stop)]

    expected = spec_cut((0,) * len(shape), shape, start, stop) if start < stop else []
    assert cut == expected


def test_middle_rows_are_one_box() -> None:
    cut = [(box.origin, box.shape, flat) for box, flat in flat_range_boxes((5, 4), 2, 18)]

    assert cut == [((0, 2), (1, 2), 2), ((1, 0), (3, 4), 4), ((4, 0), (1, 2), 16)]


def test_a_flat_range_of_nearly_2_to_53_elements_is_exact() -> None:
    shape = (2**26, 2**27 - 1)
    total = math.prod(shape)

    cut = flat_range_boxes(shape, 1, total - 1)

    assert [flat for _, flat in cut] == [1, 2**27 - 1, total - 2**27 + 1]
    assert sum(box.numel for box, _ in cut) == total - 2
