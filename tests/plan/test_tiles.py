"""Tiles: what reads of columns and of rows take of the blocks that `pack` makes."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcpformat.model.manifest import Ints, ints
from bcpformat.model.region import Box
from bcpformat.plan.pack import pack
from bcpformat.plan.tiles import MAX_TILES, Tile, TileGrid, tile_boxes, tile_grid

MIB = 2**20


def grid_of(shape: tuple[int, ...], *, tile: Tile = True, size: int = 4) -> TileGrid:
    grid = tile_grid(shape, tile, bits=8 * size)
    assert grid is not None
    return grid


def sharers(shape: tuple[int, ...], axis: int, ranks: int) -> list[Box]:
    """What each of some ranks wants that share an axis as `torch.chunk` does."""
    step = -(-shape[axis] // ranks)
    found = []
    for low in range(0, shape[axis], step):
        origin, extent = [0] * len(shape), [*shape]
        origin[axis], extent[axis] = low, min(step, shape[axis] - low)
        found.append(Box(origin=tuple(origin), shape=tuple(extent)))
    return found


class Stored:
    """A tensor cut into tiles, each in a run of its own with blocks of the size it asks for."""

    def __init__(self, shape: tuple[int, ...], tile: Tile, *, size: int) -> None:
        self.size = size
        self.log2 = grid_of(shape, tile=tile, size=size).block_log2
        self.boxes = tile_boxes(Box.whole(shape), tile, bits=8 * size)
        self.raw = [
            int(pack(ints([box.numel * size]), ints([size])).run_raw[0]) for box in self.boxes
        ]

    def times_read(self, wanted: Box) -> float:
        """The bytes of all blocks that hold a wanted element, per wanted byte."""
        read = 0
        for box, raw in zip(self.boxes, self.raw, strict=True):
            inner = box.intersect(wanted)
            if inner is not None:
                low, high = self._stretches(box, inner)
                step = np.zeros((raw >> self.log2) + 2, dtype=np.int64)
                np.add.at(step, low >> self.log2, 1)
                np.add.at(step, ((high - 1) >> self.log2) + 1, -1)
                touched = np.flatnonzero(np.cumsum(step))
                read += int(np.minimum(2**self.log2, raw - (touched << self.log2)).sum())
        return read / (wanted.numel * self.size)

    def _stretches(self, box: Box, inner: Box) -> tuple[Ints, Ints]:
        """The first byte of each row of `inner` in the bytes of `box`, and the byte after it."""
        low = np.zeros(1, dtype=np.int64)
        for axis, extent in enumerate(box.shape[:-1]):
            at = np.arange(inner.shape[axis]) + inner.origin[axis] - box.origin[axis]
            low = (low[:, np.newaxis] * extent + at).reshape(-1)
        low = (low * box.shape[-1] + inner.origin[-1] - box.origin[-1]) * self.size
        return low, low + inner.shape[-1] * self.size

    def worst(self, shape: tuple[int, ...], axis: int, ranks: int) -> float:
        return max(self.times_read(wanted) for wanted in sharers(shape, axis, ranks))


# ---- how much is read --------------------------------------------------------------------------

LARGE = [
    ((4096, 4096), 2),
    ((4096, 4096), 4),
    ((1024, 8192), 4),
    ((8192, 1024), 4),
    ((4096, 11008), 2),
    ((3001, 5003), 4),
]


@pytest.mark.parametrize("axis", [1, 0], ids=["columns", "rows"])
@pytest.mark.parametrize(("shape", "size"), LARGE, ids=repr)
def test_sharers_of_rows_or_columns_read_at_most_a_quarter_too_much(
    shape: tuple[int, int], size: int, axis: int
) -> None:
    stored = Stored(shape, True, size=size)

    worst = {ranks: stored.worst(shape, axis, ranks) for ranks in range(2, 9)}

    assert max(worst.values()) <= 1.25, worst


@pytest.mark.parametrize("axis", [1, 0], ids=["columns", "rows"])
@pytest.mark.parametrize(
    ("shape", "size"), [((1024, 1024), 4), ((2048, 2048), 2), ((2048, 2048), 4)], ids=repr
)
def test_tiles_of_a_small_matrix_suit_powers_of_two(
    shape: tuple[int, int], size: int, axis: int
) -> None:
    stored = Stored(shape, True, size=size)

    assert [stored.worst(shape, axis, ranks) for ranks in (2, 4, 8)] == [1, 1, 1]
    assert stored.worst(shape, axis, 3) <= 1.5


@pytest.mark.parametrize("axis", [2, 1, 0], ids=["columns", "rows", "experts"])
def test_matrices_one_after_the_other_are_read_by_any_axis(axis: int) -> None:
    shape = (8, 4096, 1408)
    stored = Stored(shape, True, size=2)

    assert max(stored.worst(shape, axis, ranks) for ranks in (2, 4, 8)) <= 1.25


def test_whoever_wants_everything_reads_it_once() -> None:
    assert Stored((4096, 4096), True, size=2).times_read(Box.whole((4096, 4096))) == 1


def test_larger_matrices_have_larger_blocks_up_to_the_usual_ones() -> None:
    found = [grid_of((2**log2, 8192), size=2).block_log2 for log2 in range(11, 18)]

    assert found == [14, 15, 16, 17, 18, 18, 18]


# ---- what the tiles are ------------------------------------------------------------------------


@st.composite
def tiled(draw: st.DrawFn) -> tuple[Box, Tile, int]:
    """A box of 1 to some 4 MiB that may be tiled, a wish, and the bytes of an element."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 30, 64, 700]), min_size=1, max_size=3))
    size = draw(st.sampled_from([1, 2, 4]))
    shape.insert(draw(st.integers(0, len(shape))), -(-MIB // (prod(shape) * size)))
    extents = st.lists(st.integers(1, 900), min_size=1, max_size=4).map(tuple)
    tile = draw(st.one_of(st.just(True), extents))
    origin = tuple(draw(st.integers(0, 5)) for _ in shape)
    return Box(origin=origin, shape=tuple(shape)), tile, size


@settings(max_examples=50)
@given(tiled())
def test_tiles_hold_every_element_of_the_box_once(made: tuple[Box, Tile, int]) -> None:
    box, tile, size = made

    boxes = tile_boxes(box, tile, bits=8 * size)

    times = np.zeros(box.end, dtype=np.int8)
    for inner in boxes:
        times[tuple(slice(a, b) for a, b in zip(inner.origin, inner.end, strict=True))] += 1
    assert times.sum() == box.numel
    assert (times[tuple(slice(a, None) for a in box.origin)] == 1).all()


@given(tiled())
def test_tiles_have_256_kib_except_the_last_on_an_axis(made: tuple[Box, Tile, int]) -> None:
    box, tile, size = made

    for inner in tile_boxes(box, tile, bits=8 * size):
        is_last = any(a == b for a, b in zip(inner.end, box.end, strict=True))
        assert is_last or inner.numel * size >= 2**18


@given(tiled())
def test_a_chosen_tile_has_all_rows_and_there_are_few(made: tuple[Box, Tile, int]) -> None:
    box, _, size = made

    boxes = tile_boxes(box, True, bits=8 * size)

    assert len(boxes) <= MAX_TILES
    cut = {axis for b in boxes for axis in range(box.ndim) if b.shape[axis] != box.shape[axis]}
    assert len(cut) <= 1


@pytest.mark.parametrize(
    ("shape", "tile", "bits"),
    [
        pytest.param((4096, 4096), False, 32, id="not asked for"),
        pytest.param((2**24,), True, 32, id="one axis"),
        pytest.param((1, 2**24, 1), (256, 256, 256), 32, id="one axis longer than one"),
        pytest.param((), True, 32, id="no axis"),
        pytest.param((511, 512), True, 32, id="below 1 MiB"),
        pytest.param((4096, 4096), True, 4, id="sub-byte"),
        pytest.param((2**20, 7), True, 32, id="rows of less than 64 bytes"),
        pytest.param((4096, 4096), (4096, 5000), 32, id="a tile that is the whole"),
    ],
)
def test_what_stays_whole_is_one_box(shape: tuple[int, ...], tile: Tile, bits: int) -> None:
    box = Box(origin=(5,) * len(shape), shape=shape)

    assert tile_grid(shape, tile, bits=bits) is None
    assert tile_boxes(box, tile, bits=bits) == [box]


@pytest.mark.parametrize(
    ("shape", "tile", "expected"),
    [
        pytest.param((8192, 8192), (512, 512), (512, 512), id="both axes"),
        pytest.param((8192, 8192), (512,), (8192, 512), id="other axes are whole"),
        pytest.param((8, 8192, 8192), (2, 512, 512), (2, 512, 512), id="three axes"),
        pytest.param((8, 8192, 8192), (512, 512), (8, 512, 512), id="the last two of three"),
        pytest.param((8192, 8192), (9, 512, 512), (512, 512), id="more extents than axes"),
        pytest.param((300, 8192), (512, 512), (300, 512), id="more than there is"),
        pytest.param((8192, 8192), (8, 512), (128, 512), id="too small a tile grows"),
        pytest.param((8, 8192, 8192), (1, 8, 8), (8, 1024, 8), id="on the first axes"),
    ],
)
def test_a_tuple_gives_extents_on_the_last_axes(
    shape: tuple[int, ...], tile: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert grid_of(shape, tile=tile).extent == expected


def test_blocks_are_at_most_a_quarter_of_a_given_tile() -> None:
    assert grid_of((8192, 8192), tile=(256, 256)).block_log2 == 16
    assert grid_of((8192, 8192), tile=(512, 512)).block_log2 == 18
    assert grid_of((8192, 8192), tile=(2048, 2048)).block_log2 == 18


def test_kernels_of_a_convolution_are_cut_by_input_channels() -> None:
    rows, channels, *rest = grid_of((1024, 512, 3, 3)).extent

    assert (rows, *rest) == (1024, 3, 3)
    assert 8 <= channels <= 64


def test_axes_of_extent_one_are_passed_over() -> None:
    grid = grid_of((4096, 1, 4096, 1), size=2)

    assert grid.extent == (4096, 1, grid_of((4096, 4096), size=2).extent[1], 1)


def test_tiles_are_stored_by_columns() -> None:
    boxes = tile_boxes(Box(origin=(7, 10, 20), shape=(2, 1024, 1024)), (1, 512, 512), bits=32)

    assert [box.origin for box in boxes] == [
        (7, 10, 20),
        (7, 522, 20),
        (7, 10, 532),
        (7, 522, 532),
        (8, 10, 20),
        (8, 522, 20),
        (8, 10, 532),
        (8, 522, 532),
    ]
