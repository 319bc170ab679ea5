"""Exact tiling, against painting every element."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.errors import ErrorCode, InvalidArgumentError, Problem
from bcpformat.model.coverage import check_tilings
from bcpformat.model.region import Box, Region

MAX_INTEGER = 2**53 - 1
Tensor = tuple[tuple[int, ...], list[Region]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The arguments of `check_tilings` for some tensors, every column in full."""

    shapes: Sequence[tuple[int, ...]]
    chunk_counts: npt.NDArray[np.int64]
    origin_values: npt.NDArray[np.uint64]
    extent_values: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.uint64]

    def as_arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def columns_of(tensors: Sequence[Tensor]) -> Columns:
    regions = [region for _, own in tensors for region in own]
    return Columns(
        shapes=[shape for shape, _ in tensors],
        chunk_counts=np.array([len(own) for _, own in tensors], np.int64),
        origin_values=np.array([o for r in regions for o in r.box.origin], np.uint64),
        extent_values=np.array([e for r in regions for e in r.box.shape], np.uint64),
        starts=np.array([r.start for r in regions], np.uint64),
        counts=np.array([r.count for r in regions], np.uint64),
    )


def problem_of(
    shape: tuple[int, ...], regions: list[Region], *, max_corners: int = 2**24
) -> Problem | None:
    arguments = columns_of([(shape, regions)]).as_arguments()
    found = check_tilings(**arguments, max_corners=max_corners)
    return found[0][1] if found else None


def code_of(shape: tuple[int, ...], regions: list[Region]) -> ErrorCode | None:
    problem = problem_of(shape, regions)
    return problem.code if problem else None


def boxes(*pairs: tuple[tuple[int, ...], tuple[int, ...]]) -> list[Region]:
    return [Region.whole(Box(origin=origin, shape=shape)) for origin, shape in pairs]


def painted(shape: tuple[int, ...], regions: list[Region]) -> npt.NDArray[np.int64]:
    canvas = np.zeros(shape, np.int64)
    for region in regions:
        inside = np.zeros(region.box.numel, np.int64)
        inside[region.start : region.start + region.count] = 1
        where = tuple(slice(o, e) for o, e in zip(region.box.origin, region.box.end, strict=True))
        canvas[where] += inside.reshape(region.box.shape)
    return canvas


def split_axes(shape: tuple[int, ...], regions: list[Region]) -> int:
    pieces = [box for region in regions for box, _ in region.boxes()]
    return sum(any(box.shape[axis] != size for box in pieces) for axis, size in enumerate(shape))


def expected_code(shape: tuple[int, ...], regions: list[Region]) -> ErrorCode | None:
    if split_axes(shape, regions) > 8:
        return ErrorCode.LIMIT
    return None if (painted(shape, regions) == 1).all() else ErrorCode.COVERAGE


def shapes(*, max_ndim: int = 3, max_size: int = 5) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(1, max_size), max_size=max_ndim).map(tuple)


@st.composite
def guillotines(draw: st.DrawFn, box: Box, depth: int = 4) -> list[Box]:
    """Return boxes that tile ``box``, from cuts across whole boxes, in a random order."""
    axes = [axis for axis, size in enumerate(box.shape) if size > 1]
    if not axes or not depth or draw(st.integers(0, 4)) == 0:
        return [box]
    axis = draw(st.sampled_from(axes))
    at = draw(st.integers(1, box.shape[axis] - 1))
    halves = []
    for begin, size in ((0, at), (at, box.shape[axis] - at)):
        origin, shape = list(box.origin), list(box.shape)
        origin[axis] += begin
        shape[axis] = size
        half = Box(origin=tuple(origin), shape=tuple(shape))
        halves += draw(guillotines(half, depth - 1))
    return halves


@st.composite
def tilings(draw: st.DrawFn, shape: st.SearchStrategy[tuple[int, ...]] | None = None) -> Tensor:
    """Return a tensor and regions that tile it: cut boxes, then cut flat ranges in them."""
    whole = draw(shapes() if shape is None else shape)
    regions = []
    for box in draw(guillotines(Box.whole(whole))):
        cuts = draw(st.lists(st.integers(0, box.numel), max_size=3))
        edges = sorted({0, box.numel, *cuts})
        regions += [
            Region(box=box, start=low, count=high - low) for low, high in itertools.pairwise(edges)
        ]
    if draw(st.booleans()):
        regions = draw(st.permutations(regions))
    return whole, list(regions)


@st.composite
def regions_in(draw: st.DrawFn, shape: tuple[int, ...]) -> Region:
    origin = tuple(draw(st.integers(0, size - 1)) for size in shape)
    extent = tuple(draw(st.integers(1, n - o)) for n, o in zip(shape, origin, strict=True))
    box = Box(origin=origin, shape=extent)
    start = draw(st.integers(0, box.numel - 1))
    return Region(box=box, start=start, count=draw(st.integers(1, box.numel - start)))


@st.composite
def damaged(draw: st.DrawFn) -> Tensor:
    """Return a tiling with one region replaced: by another one, by a neighbour, or moved."""
    shape, regions = draw(tilings())
    index = draw(st.integers(0, len(regions) - 1))
    region = regions[index]
    kind = draw(st.sampled_from(["other", "copy", "move"]))
    if kind == "other":
        region = draw(regions_in(shape))
    elif kind == "copy":
        region = draw(st.sampled_from(regions))
    else:
        origin = tuple(
            draw(st.integers(0, n - e)) for n, e in zip(shape, region.box.shape, strict=True)
        )
        box = Box(origin=origin, shape=region.box.shape)
        region = Region(box=box, start=region.start, count=region.count)
    regions[index] = region
    return shape, regions


@st.composite
def scattered(draw: st.DrawFn) -> Tensor:
    shape = draw(shapes(max_size=3))
    return shape, draw(st.lists(regions_in(shape), min_size=1, max_size=5))


CASES = st.one_of(tilings(), damaged(), scattered())
PINWHEEL = (
    ((0, 0), (2, 1)),
    ((0, 1), (1, 2)),
    ((1, 1), (1, 1)),
    ((1, 2), (2, 1)),
    ((2, 0), (1, 2)),
)
TWISTED = (((0, 0), (2, 1)), ((0, 1), (1, 2)), ((1, 1), (1, 1)), ((0, 2), (2, 1)), ((2, 0), (1, 2)))


@pytest.mark.slow
@given(tilings())
def test_regions_cut_from_a_tensor_tile_it(case: Tensor) -> None:
    assert code_of(*case) is None


@pytest.mark.slow
@given(CASES)
def test_regions_tile_if_and_only_if_painting_holds_every_element_once(case: Tensor) -> None:
    assert code_of(*case) is expected_code(*case)


@pytest.mark.slow
@given(CASES, st.sampled_from([1, 2, 5, 16]))
def test_the_answer_does_not_depend_on_the_corners_held_at_once(
    case: Tensor, max_corners: int
) -> None:
    assert problem_of(*case, max_corners=max_corners) == problem_of(*case)


@pytest.mark.slow
@given(st.lists(st.one_of(CASES, st.just(((0, 2), []))), max_size=6))
def test_many_tensors_at_once_have_the_problems_each_has_alone(tensors: list[Tensor]) -> None:
    found = check_tilings(**columns_of(tensors).as_arguments())

    alone = [(i, problem_of(*tensor)) for i, tensor in enumerate(tensors)]
    assert found == [(i, problem) for i, problem in alone if problem]


def test_a_region_does_not_join_the_last_one_of_the_tensor_before() -> None:
    ascending = ((4,), boxes(((0,), (2,)), ((2,), (2,))))
    descending = ((8,), boxes(((4,), (4,)), ((0,), (4,))))

    assert check_tilings(**columns_of([ascending, descending]).as_arguments()) == []


@pytest.mark.slow
@given(st.lists(tilings(), max_size=4))
def test_columns_of_defaults_may_be_left_out(tensors: list[Tensor]) -> None:
    wholes = [
        (shape, [Region.whole(box) for box in {region.box: None for region in regions}])
        for shape, regions in tensors
    ]
    arguments = columns_of(wholes).as_arguments()

    for name in ("starts", "counts"):
        assert check_tilings(**{**arguments, name: None}) == []
    assert check_tilings(**{**arguments, "starts": None, "counts": None}) == []


@pytest.mark.slow
@given(st.lists(CASES, max_size=4))
def test_origins_and_extents_left_out_are_those_of_the_whole_tensor(tensors: list[Tensor]) -> None:
    spanning = [
        (
            shape,
            [
                Region(box=Box.whole(shape), start=r.start, count=min(r.count, math.prod(shape)))
                for r in regions
            ],
        )
        for shape, regions in tensors
    ]
    arguments = columns_of(spanning).as_arguments()

    left_out = check_tilings(**{**arguments, "origin_values": None, "extent_values": None})

    assert left_out == check_tilings(**arguments)


@pytest.mark.parametrize("max_corners", [1, 4, 2**24])
def test_a_pinwheel_tiles(max_corners: int) -> None:
    assert problem_of((3, 3), boxes(*PINWHEEL), max_corners=max_corners) is None


@pytest.mark.parametrize("max_corners", [1, 4, 2**24])
def test_a_gap_and_an_overlap_of_equal_volume_are_found(max_corners: int) -> None:
    problem = problem_of((3, 3), boxes(*TWISTED), max_corners=max_corners)

    assert problem is not None
    assert problem.code is ErrorCode.COVERAGE
    assert "2 hold the element at (0, 2)" in problem.message


@pytest.mark.slow
@given(CASES)
def test_equal_volume_is_reported_with_the_first_element_not_held_once(case: Tensor) -> None:
    shape, regions = case
    canvas = painted(shape, regions)
    wrong = np.argwhere(canvas != 1)

    problem = problem_of(shape, regions)

    if problem is not None and canvas.sum() == canvas.size:
        position = tuple(wrong[0].tolist())
        assert f"{canvas[position]} hold the element at {position} of" in problem.message
    elif problem is not None:
        assert f"hold {canvas.sum()} of the {canvas.size} elements" in problem.message


def test_a_duplicate_in_place_of_a_neighbour_is_found() -> None:
    halves = boxes(((0, 0), (2, 4)), ((0, 0), (2, 4)))

    assert code_of((4, 4), halves) is ErrorCode.COVERAGE


def test_other_volume_is_reported_in_elements() -> None:
    problem = problem_of((6,), boxes(((0,), (4,))))

    assert problem is not None
    assert problem.message == "chunks hold 4 of the 6 elements of shape (6,)"


def test_the_place_of_a_problem_is_left_to_the_caller() -> None:
    problem = problem_of((6,), [])

    assert problem is not None
    assert problem.where == ""


def test_no_tensors_have_no_problems() -> None:
    assert check_tilings(**columns_of([]).as_arguments()) == []


@pytest.mark.parametrize(("chunks", "code"), [(0, ErrorCode.COVERAGE), (1, None)])
@pytest.mark.parametrize(
    "left_out", [(), ("origin_values", "extent_values", "starts", "counts")], ids=["full", "none"]
)
def test_a_tensor_without_axes_has_one_chunk(
    chunks: int, code: ErrorCode | None, left_out: tuple[str, ...]
) -> None:
    arguments = columns_of([((), boxes(((), ())) * chunks)]).as_arguments()
    arguments |= dict.fromkeys(left_out)

    assert [problem.code for _, problem in check_tilings(**arguments)] == ([code] if code else [])


def test_a_second_chunk_of_a_tensor_without_axes_is_refused() -> None:
    assert code_of((), boxes(((), ())) * 2) is ErrorCode.COVERAGE


def test_a_tensor_without_elements_has_no_chunk() -> None:
    assert code_of((3, 0), []) is None
    assert code_of((3, 0), boxes(((0, 0), (3, 0)))) is ErrorCode.COVERAGE


def test_a_tensor_with_elements_has_a_chunk() -> None:
    assert code_of((3,), []) is ErrorCode.COVERAGE


def test_defaults_alone_allow_one_chunk_for_each_tensor_with_elements() -> None:
    found = check_tilings(
        shapes=[(2,), (0,), (3, 4), (5,), ()],
        chunk_counts=np.array([1, 0, 2, 0, 1]),
        origin_values=None,
        extent_values=None,
        starts=None,
        counts=None,
    )

    assert [(index, problem.code) for index, problem in found] == [
        (2, ErrorCode.COVERAGE),
        (3, ErrorCode.COVERAGE),
    ]
    assert "24 of the 12 elements" in found[0][1].message


def test_32_axes_of_one_element_are_none_to_split() -> None:
    shape = (1,) * 31 + (4,)
    halves = boxes(((0,) * 32, (1,) * 31 + (2,)), ((0,) * 31 + (2,), (1,) * 31 + (2,)))

    assert code_of(shape, halves) is None


BOUNDS: list[tuple[str, Callable[[Columns], None]]] = [
    ("an extent of zero", lambda c: c.extent_values.__setitem__(2, 0)),
    ("an extent beyond the shape", lambda c: c.extent_values.__setitem__(2, 5)),
    ("an end beyond the shape", lambda c: c.origin_values.__setitem__(2, 3)),
    ("an end that wraps", lambda c: c.origin_values.__setitem__(2, 2**64 - 1)),
    ("an extent that wraps", lambda c: c.extent_values.__setitem__(2, 2**64 - 1)),
    ("the largest origin of a signed column", lambda c: c.origin_values.__setitem__(2, 2**63 - 1)),
    ("no element", lambda c: c.counts.__setitem__(1, 0)),
    ("a count beyond the box", lambda c: c.counts.__setitem__(1, 7)),
    ("a range that ends beyond the box", lambda c: c.starts.__setitem__(1, 1)),
    ("a range that wraps", lambda c: c.starts.__setitem__(1, 2**64 - 1)),
]


@pytest.mark.parametrize(("what", "damage"), BOUNDS, ids=[what for what, _ in BOUNDS])
def test_a_chunk_out_of_bounds_is_refused(what: str, damage: Callable[[Columns], None]) -> None:
    halves = boxes(((0, 0), (2, 3)), ((2, 0), (2, 3)))
    columns = columns_of([((4, 3), halves), ((4, 3), halves)])
    damage(columns)

    found = check_tilings(**columns.as_arguments())

    assert [(i, p.code) for i, p in found] == [(0, ErrorCode.BOUNDS)]
    assert "chunk 1: " in found[0][1].message


def test_a_box_out_of_bounds_comes_before_a_range_out_of_bounds() -> None:
    columns = columns_of([((4,), boxes(((0,), (2,)), ((2,), (2,))))])
    columns.counts[0] = 3
    columns.extent_values[1] = 3

    found = check_tilings(**columns.as_arguments())

    assert "chunk 1: box of origin (2,) and extent (3,)" in found[0][1].message


def test_a_range_out_of_bounds_is_found_where_only_starts_are_given() -> None:
    arguments = columns_of([((4,), boxes(((0,), (4,))))]).as_arguments()
    arguments |= {"counts": None, "starts": np.array([1], np.uint64)}

    assert [problem.code for _, problem in check_tilings(**arguments)] == [ErrorCode.BOUNDS]


@pytest.mark.parametrize("name", ["origin_values", "extent_values", "starts", "counts"])
def test_a_column_of_another_length_is_refused(name: str) -> None:
    arguments = columns_of([((4,), boxes(((0,), (4,))))]).as_arguments()
    arguments[name] = np.zeros(2, np.uint64)

    with pytest.raises(InvalidArgumentError, match=f"{name} must have 1 values, got 2"):
        check_tilings(**arguments)


def test_a_number_of_chunks_for_another_number_of_tensors_is_refused() -> None:
    arguments = columns_of([((4,), boxes(((0,), (4,))))]).as_arguments()
    arguments["shapes"] = [(4,), (4,)]

    with pytest.raises(InvalidArgumentError, match="chunk_counts must have 2 values, got 1"):
        check_tilings(**arguments)


@pytest.mark.slow
@given(scattered(), st.data())
def test_large_numbers_tile_as_small_ones_do(case: Tensor, data: st.DataObject) -> None:
    shape, regions = case
    bits = 52 - sum(size.bit_length() for size in shape)
    shares = sorted(data.draw(st.integers(0, bits)) for _ in shape)
    factors = [2 ** (high - low) for low, high in zip([0, *shares], shares, strict=False)]

    def scaled(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(value * factor for value, factor in zip(values, factors, strict=True))

    small = [Region.whole(region.box) for region in regions]
    large = boxes(*[(scaled(r.box.origin), scaled(r.box.shape)) for r in regions])

    assert code_of(scaled(shape), large) is code_of(shape, small)


@pytest.mark.parametrize("at", [1, 2**52, MAX_INTEGER - 1])
def test_the_largest_tensor_may_be_split_anywhere(at: int) -> None:
    exact = boxes(((0,), (at,)), ((at,), (MAX_INTEGER - at,)))

    assert code_of((MAX_INTEGER,), exact) is None
    assert code_of((MAX_INTEGER,), exact[::-1]) is None


def test_one_element_too_many_in_the_largest_tensor_is_found() -> None:
    overlap = boxes(((0,), (2**52 + 1,)), ((2**52,), (2**52 - 1,)))

    assert code_of((MAX_INTEGER,), overlap) is ErrorCode.COVERAGE


def test_the_largest_flat_range_may_be_split_within_rows() -> None:
    shape = (2**26, 2**27 - 1)
    whole, at = Box.whole(shape), 2**51 + 12_345
    parts = [
        Region(box=whole, start=at, count=whole.numel - at),
        Region(box=whole, start=0, count=at),
    ]

    assert code_of(shape, parts) is None


def test_eight_axes_of_nearly_2_to_53_elements_are_split_exactly() -> None:
    shape = (2,) * 7 + (2**46 - 1,)
    zero, half = (0,) * 7, (1,) * 7
    uneven = [
        Region.whole(Box(origin=(*high, at), shape=(*half, length)))
        for high in np.ndindex(2, 2, 2, 2, 2, 2, 2)
        for cut in [1 + sum(high)]
        for at, length in ((cut, shape[-1] - cut), (0, cut))
    ]

    assert code_of(shape, uneven) is None
    uneven[0] = Region.whole(Box(origin=(*zero, 0), shape=uneven[0].box.shape))
    assert code_of(shape, uneven) is ErrorCode.COVERAGE


def test_a_volume_that_wraps_to_the_right_one_is_found() -> None:
    shape = (2**52,)
    copies = boxes(((0,), shape)) * (2**12 + 1)

    problem = problem_of(shape, copies)

    assert problem is not None
    assert f"hold {2**64 + 2**52} of the {2**52} elements" in problem.message


def test_a_tensor_of_too_many_elements_is_refused_alone() -> None:
    whole = boxes(((0,), (MAX_INTEGER,)))

    found = check_tilings(
        **columns_of(
            [((MAX_INTEGER + 1,), whole), ((MAX_INTEGER,), whole), ((2**62, 2**62), [])]
        ).as_arguments()
    )

    assert [(i, p.code) for i, p in found] == [(0, ErrorCode.OVERFLOW), (2, ErrorCode.OVERFLOW)]


def test_keys_of_many_large_tensors_take_several_batches() -> None:
    side = 31_000_000
    large = [
        (tuple(side * o for o in origin), tuple(side * e for e in extent))
        for origin, extent in PINWHEEL
    ]
    tensors = [((3 * side, 3 * side), boxes(*large)) for _ in range(2**64 // (9 * side**2) + 2)]
    twisted = [(tuple(side * o for o in a), tuple(side * e for e in b)) for a, b in TWISTED]
    tensors[1] = tensors[-1] = ((3 * side, 3 * side), boxes(*twisted))

    found = check_tilings(**columns_of(tensors).as_arguments())

    assert [i for i, _ in found] == [1, len(tensors) - 1]


WIDE = st.lists(st.sampled_from([1, 2, 2]), min_size=8, max_size=10).map(tuple)


@pytest.mark.slow
@given(tilings(WIDE))
def test_more_than_eight_split_axes_are_refused(case: Tensor) -> None:
    assert code_of(*case) is expected_code(*case)


def test_nine_split_axes_are_counted() -> None:
    shape = (2,) * 9
    corners = boxes(*[(origin, (1,) * 9) for origin in np.ndindex(shape)])

    problem = problem_of(shape, corners)

    assert problem is not None
    assert problem.code is ErrorCode.LIMIT
    assert "split 9 axes" in problem.message


def test_eight_split_axes_are_accepted() -> None:
    shape = (2,) * 8 + (3,)
    corners = boxes(*[((*origin, 0), (1,) * 8 + (3,)) for origin in np.ndindex(shape[:8])])

    assert code_of(shape, corners[::-1]) is None


def test_bounds_come_before_split_axes_and_split_axes_before_tiling() -> None:
    corners = boxes(*[(origin, (1,) * 9) for origin in np.ndindex((2,) * 9)])
    columns = columns_of([((2,) * 9, corners), ((2,) * 9, corners[:-1])])
    columns.origin_values[0] = 2

    found = check_tilings(**columns.as_arguments())

    assert [p.code for _, p in found] == [ErrorCode.BOUNDS, ErrorCode.LIMIT]


def test_an_axis_of_one_element_is_not_split_by_a_flat_range() -> None:
    whole = Box.whole((2, 2, 2, 2, 1, 2, 2, 2, 2, 2))
    ranges = [Region(box=whole, start=0, count=2), Region(box=whole, start=2, count=510)]

    assert split_axes(whole.shape, ranges) == 8
    assert code_of(whole.shape, ranges) is None


def test_a_flat_range_within_nine_axes_is_refused_although_ranges_join() -> None:
    whole = Box.whole((2,) * 9)
    ranges = [Region(box=whole, start=0, count=1), Region(box=whole, start=1, count=511)]

    assert code_of(whole.shape, ranges) is ErrorCode.LIMIT


def test_tensors_of_nine_axes_with_and_without_too_many_split_are_told_apart() -> None:
    shape = (2,) * 9
    fine = boxes(((0,) * 9, (1, *shape[1:])), ((1,) + (0,) * 8, (1, *shape[1:])))
    corners = boxes(*[(origin, (1,) * 9) for origin in np.ndindex(shape)])

    found = check_tilings(
        **columns_of(
            [(shape, fine), (shape, corners), ((1,) * 9, boxes(((0,) * 9, (1,) * 9)))]
        ).as_arguments()
    )

    assert [(i, p.code) for i, p in found] == [(1, ErrorCode.LIMIT)]
