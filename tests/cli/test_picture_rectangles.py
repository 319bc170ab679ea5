from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.cli.picture_rectangles import (
    Boxes,
    How,
    Rectangles,
    chunk_boxes,
    fold_axis,
    owned_boxes,
    rectangles,
)
from bcpformat.model.manifest import Manifest, ints
from bcpformat.model.region import Box, Region
from bcpformat.plan.resolve import ChunkIndex
from tests.cli.pictures import grid, with_files
from tests.plan.layouts import Saved, in_own_runs, manifests


def boxes(shape: tuple[int, ...], found: Sequence[Box], owner: Sequence[int]) -> Boxes:
    return owned_boxes(
        shape,
        origin=ints([box.origin for box in found]).reshape(-1, len(shape)).T,
        extent=ints([box.shape for box in found]).reshape(-1, len(shape)).T,
        owner=ints(owner),
        source=np.arange(len(found)),
    )


def painted(found: Rectangles) -> tuple[np.ndarray, np.ndarray]:
    """Return the owner of each element of a plane, and how often it is drawn."""
    owner = np.full((found.height, found.width), -1)
    times = np.zeros_like(owner)
    columns = (found.top, found.bottom, found.left, found.right, found.owner)
    for top, bottom, left, right, who in zip(*columns, strict=True):
        owner[top:bottom, left:right] = who
        times[top:bottom, left:right] += 1
    return owner, times


@pytest.mark.slow
@given(manifests(), st.data())
def test_every_element_is_drawn_once_in_the_colour_of_its_file(
    manifest: Manifest, data: st.DataObject
) -> None:
    if not manifest.files:
        return
    runs = len(manifest.runs)
    files = data.draw(st.lists(st.integers(0, 2), min_size=runs, max_size=runs))
    manifest = with_files(manifest, files)
    index = ChunkIndex(manifest)
    row = data.draw(st.sampled_from(np.flatnonzero(manifest.tensors.chunks).tolist()))
    expected = np.full(manifest.tensors.shapes[row], -1)
    for chunk in range(index.first[row], index.first[row + 1]):
        for box, _ in index.region(chunk).boxes():
            inside = zip(box.origin, box.end, strict=True)
            expected[tuple(slice(*ends) for ends in inside)] = files[manifest.chunks.run[chunk]]
    found = chunk_boxes(index, row)
    fold = data.draw(st.integers(0, len(found.shape)))
    most = data.draw(st.sampled_from([1, 4, 10**9]))

    result = rectangles(found, fold=fold, most=most)

    owner, times = painted(result)
    assert (times == 1).all()
    assert len(result) <= most
    if result.how is not How.SAMPLED:
        assert np.array_equal(owner.reshape(-1), expected.reshape(-1))


def test_neighbours_of_one_owner_are_one_rectangle_if_there_are_too_many() -> None:
    found = boxes((4, 6), [r.box for r in grid((4, 6), (4, 6))], [0, 0, 0, 1, 1, 1] * 4)

    result = rectangles(found, fold=1, most=5)

    assert result.how is How.MERGED
    assert len(result) == 2
    assert result.source.tolist() == [-1, -1]


def test_flat_ranges_of_one_owner_become_the_box_that_they_fill() -> None:
    ranges = [Region(box=Box.whole((6, 7)), start=n, count=3) for n in range(0, 42, 3)]
    manifest = in_own_runs([Saved("uint8", (6, 7), ranges)])

    result = rectangles(chunk_boxes(ChunkIndex(manifest), 0), fold=1, most=4)

    assert len(result) == 1


def test_a_sample_shows_who_has_the_middle_of_each_cell() -> None:
    found = boxes((9, 9), [r.box for r in grid((9, 9), (9, 9))], list(range(81)))

    result = rectangles(found, fold=1, most=9)

    assert result.how is How.SAMPLED
    assert sorted(result.owner.tolist()) == [9 * r + c for r in (1, 4, 7) for c in (1, 4, 7)]


def test_a_short_axis_is_sampled_whole_and_the_long_one_gets_the_rest() -> None:
    cut = [r.box for r in grid((2, 1000), (2, 1000))]
    found = boxes((2, 1000), cut, list(range(2000)))

    result = rectangles(found, fold=1, most=100)

    assert len(result) == 100
    assert set(zip(result.top.tolist(), result.bottom.tolist(), strict=True)) == {(0, 1), (1, 2)}


def test_the_largest_axis_is_sampled_without_a_number_that_wraps() -> None:
    size = 2**53 - 1
    ends = np.linspace(0, size, 5001).astype(np.int64).tolist()
    cut = [Box(origin=(a,), shape=(b - a,)) for a, b in pairwise(ends)]

    result = rectangles(boxes((size,), cut, range(5000)), fold=0, most=2000)

    assert (result.left.min(), result.right.max()) == (0, size)
    assert (result.right > result.left).all()


def test_axes_of_one_element_are_neither_rows_nor_columns() -> None:
    shape = (1, 3, 1, 5, 1)

    found = boxes(shape, [r.box for r in grid(shape, (1, 3, 1, 1, 1))], range(3))

    assert found.shape == (3, 5)
    assert fold_axis(found) == 1


def test_axes_are_folded_where_that_cuts_the_fewest_boxes() -> None:
    shape = (8, 4, 3, 3)
    by_second = boxes(shape, [r.box for r in grid(shape, (1, 4, 1, 1))], range(4))
    by_last = boxes(shape, [r.box for r in grid(shape, (1, 1, 1, 3))], range(3))

    assert fold_axis(by_second) == 1
    assert fold_axis(by_last) == 3
