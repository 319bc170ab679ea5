"""The resolver against an oracle that paints elements one by one."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.model.checks import check_manifest
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.model.manifest import Manifest, ints
from bcpformat.model.region import Box, Region
from bcpformat.plan.resolve import Blocks, ChunkIndex, Pieces
from tests.plan.layouts import Saved, in_own_runs, long_rows, manifests
from tests.plan.painted import Read, reads, stored


def resolved(read: Read) -> tuple[Pieces, Blocks]:
    return ChunkIndex(read.manifest).resolve(read.tensors, read.boxes)


def grid(shape: tuple[int, ...], cell: tuple[int, ...]) -> list[Region]:
    """Regions that tile a shape by boxes of one shape, smaller at the far ends."""
    steps = [range(0, n, c) for n, c in zip(shape, cell, strict=True)]
    return [
        Region.whole(
            Box(
                origin=origin,
                shape=tuple(min(c, n - o) for c, n, o in zip(cell, shape, origin, strict=True)),
            )
        )
        for origin in product(*steps)
    ]


def flat(shape: tuple[int, ...], count: int) -> list[Region]:
    """Regions that tile a shape by flat ranges of equal length, the last one shorter."""
    box = Box.whole(shape)
    return [
        Region(box=box, start=start, count=min(count, box.numel - start))
        for start in range(0, box.numel, count)
    ]


@given(manifests())
def test_random_layouts_are_valid_manifests(manifest: Manifest) -> None:
    assert check_manifest(manifest, limits=DEFAULT_LIMITS) == []


@given(st.one_of(reads(), reads(long_rows())))
def test_exactly_the_needed_blocks_are_read_once(read: Read) -> None:
    _, blocks = resolved(read)

    pairs = list(zip(blocks.run.tolist(), blocks.index.tolist(), strict=True))
    assert len(pairs) == len(set(pairs))
    assert pairs == sorted(pairs)
    assert set(pairs) == read.needed_blocks()


@given(reads())
def test_every_wanted_element_lies_whole_in_one_piece_and_every_piece_holds_some(
    read: Read,
) -> None:
    pieces, _ = resolved(read)

    chunks = read.manifest.chunks
    assert (pieces.run == chunks.run[pieces.chunk]).all()
    low = pieces.offset - chunks.offset[pieces.chunk]
    served = 0
    for want in range(len(read.wants)):
        bits = read.bits(want)
        for chunk, found in read.taken(want):
            rows = np.flatnonzero((pieces.want == want) & (pieces.chunk == chunk))
            first, stop = found * bits // 8, ((found + 1) * bits + 7) // 8
            inside = (low[rows, None] <= first) & (stop <= (low + pieces.nbytes)[rows, None])
            assert (inside.sum(axis=0) == 1).all()
            assert inside.any(axis=1).all()
            served += len(rows)
    assert served == len(pieces.chunk)


@given(reads())
def test_a_stretch_holds_wanted_elements_only_in_the_order_of_the_destination(read: Read) -> None:
    pieces, _ = resolved(read)

    index = ChunkIndex(read.manifest)
    low = pieces.offset - read.manifest.chunks.offset[pieces.chunk]
    for row in np.flatnonzero(pieces.target >= 0).tolist():
        want, chunk = int(pieces.want[row]), int(pieces.chunk[row])
        bits = read.bits(want)
        (found,) = [found for at, found in read.taken(want) if at == chunk]
        count = len(found)
        assert np.array_equal(found, np.arange(found[0], found[0] + count))
        assert int(low[row]) * 8 == int(found[0]) * bits
        assert int(pieces.nbytes[row]) == (count * bits + 7) // 8
        at, rest = divmod(int(pieces.target[row]) * 8, bits)
        elements = np.flatnonzero(read.wanted(want))
        assert not rest
        assert np.array_equal(stored(read.manifest, index, chunk)[found], elements[at : at + count])
        if count * bits % 8:  # the rest of the last byte is the end of the chunk and of the want
            assert int(found[-1]) + 1 == int(index.geometry.count[chunk])
            assert at + count == len(elements)


@given(reads())
def test_whole_boxes_that_give_one_stretch_are_copied_as_one(read: Read) -> None:
    pieces, _ = resolved(read)

    index = ChunkIndex(read.manifest)
    for row in np.flatnonzero(pieces.target < 0).tolist():
        want, chunk = int(pieces.want[row]), int(pieces.chunk[row])
        if read.bits(want) < 8 or not index.region(chunk).is_whole:
            continue
        (found,) = [found for at, found in read.taken(want) if at == chunk]
        elements = stored(read.manifest, index, chunk)[found]
        places = np.searchsorted(np.flatnonzero(read.wanted(want)), elements)
        assert (np.diff(found) > 1).any() or (np.diff(places) > 1).any()


@given(reads())
def test_the_region_of_a_chunk_is_the_one_that_was_saved(read: Read) -> None:
    """The oracle asks `region`, so it is checked against coverage: regions tile their tensors."""
    index = ChunkIndex(read.manifest)
    held = [np.zeros(shape, dtype=np.int64) for shape in read.manifest.tensors.shapes]
    for chunk in range(len(read.manifest.chunks)):
        tensor = int(index.geometry.tensor[chunk])
        for box, _ in index.region(chunk).boxes():
            held[tensor][tuple(map(slice, box.origin, box.end))] += 1

    assert all((times == 1).all() for times in held)


@pytest.mark.parametrize(
    ("saved", "wanted"),
    [
        (grid((96, 8), (24, 8)), Box(origin=(12, 0), shape=(48, 8))),
        (flat((96, 8), 100), Box(origin=(12, 0), shape=(48, 8))),
        (grid((4, 96), (1, 32)), Box(origin=(2, 16), shape=(1, 60))),
        (grid((8, 12), (8, 4)), Box(origin=(3, 0), shape=(1, 12))),
    ],
    ids=["row slabs", "flat ranges", "parts of one row", "rows of columns"],
)
def test_what_is_one_stretch_on_both_sides_is_copied_as_one(
    saved: list[Region], wanted: Box
) -> None:
    shape = tuple(max(r.box.end[axis] for r in saved) for axis in range(2))
    manifest = in_own_runs([Saved("float32", shape, saved)])

    pieces, _ = ChunkIndex(manifest).resolve(ints([0]), {0: wanted})

    assert (pieces.target >= 0).all()
    assert int(pieces.nbytes.sum()) == wanted.numel * 4
    order = np.argsort(pieces.target)
    ends = (pieces.target + pieces.nbytes)[order]
    assert pieces.target[order].tolist() == [0, *ends[:-1].tolist()]
    assert len(pieces.chunk) == len(set(pieces.chunk.tolist()))


def test_rows_closer_than_a_block_are_one_piece() -> None:
    rows, columns = 4096, 1024
    manifest = in_own_runs(
        [Saved("float32", (rows, columns), grid((rows, columns), (rows, columns)))]
    )
    column = Box(origin=(0, 10), shape=(rows, 2))

    pieces, _ = ChunkIndex(manifest).resolve(ints([0]), {0: column})

    assert pieces.target.tolist() == [-1]
    assert pieces.offset.tolist() == [40]
    assert pieces.nbytes.tolist() == [(rows - 1) * columns * 4 + 8]


@pytest.mark.parametrize("blocks", [2, 3])
def test_rows_with_a_block_between_them_are_pieces_of_their_own(blocks: int) -> None:
    shape = (5, blocks * 1024)
    manifest = in_own_runs([Saved("float32", shape, [Region.whole(Box.whole(shape))])], log2=12)
    column = Box(origin=(1, 10), shape=(3, 2))

    pieces, found = ChunkIndex(manifest).resolve(ints([0]), {0: column})

    assert pieces.offset.tolist() == [row * blocks * 4096 + 40 for row in (1, 2, 3)]
    assert pieces.nbytes.tolist() == [8] * 3
    assert found.index.tolist() == [blocks, 2 * blocks, 3 * blocks]


def test_rows_in_blocks_that_follow_one_another_are_one_piece() -> None:
    """More than a block apart in bytes, but no block between them is needless."""
    whole = [Region.whole(Box.whole((5, 2000)))]
    manifest = in_own_runs([Saved("float32", (5, 2000), whole)], log2=12)
    column = Box(origin=(0, 1000), shape=(2, 100))

    pieces, blocks = ChunkIndex(manifest).resolve(ints([0]), {0: column})

    assert pieces.offset.tolist() == [4000]
    assert pieces.nbytes.tolist() == [8400]
    assert blocks.index.tolist() == [0, 1, 2, 3]


def test_a_want_without_elements_needs_nothing() -> None:
    manifest = in_own_runs([Saved("float32", (96, 8), grid((96, 8), (24, 8)))])

    pieces, blocks = ChunkIndex(manifest).resolve(
        ints([0, 0]),
        {0: Box(origin=(0, 0), shape=(0, 8)), 1: Box(origin=(30, 4), shape=(5, 0))},
    )

    assert len(pieces.chunk) == len(blocks.number) == 0


def test_the_order_of_chunk_rows_does_not_matter() -> None:
    saved = grid((64, 64), (8, 16))
    shuffled = [saved[i] for i in np.random.default_rng(1).permutation(len(saved))]
    wanted = Box(origin=(5, 20), shape=(31, 30))

    one, two = (
        ChunkIndex(in_own_runs([Saved("uint8", (64, 64), rows)])).resolve(ints([0]), {0: wanted})[0]
        for rows in (saved, shuffled)
    )

    found = [saved.index(shuffled[chunk]) for chunk in two.chunk.tolist()]
    assert sorted(found) == one.chunk.tolist()


def test_chunks_far_from_a_want_are_not_looked_at_one_by_one() -> None:
    """Sixteen wants of each tensor, and each meets one chunk of 500."""
    shape = (500 * 4, 8)
    manifest = in_own_runs([Saved("float32", shape, grid(shape, (4, 8)))] * 4)
    wants = [(t, Box(origin=(i * 100 + 1, 0), shape=(2, 8))) for t in range(4) for i in range(16)]
    index = ChunkIndex(manifest)

    pieces, _ = index.resolve(ints([t for t, _ in wants]), {i: b for i, (_, b) in enumerate(wants)})

    assert sorted(pieces.want.tolist()) == list(range(64))
    assert sorted(pieces.chunk.tolist()) == sorted(
        t * 500 + i * 25 for t in range(4) for i in range(16)
    )


def test_more_chunks_than_are_looked_at_together_give_the_same() -> None:
    shape = (70_000, 2)
    small = Saved("uint8", (2, 2), grid((2, 2), (1, 2)))
    manifest = in_own_runs([Saved("uint8", shape, grid(shape, (1, 2))), small])
    boxes = {i: Box(origin=(i * 20_000, 0), shape=(10_000, 2)) for i in range(3)}

    pieces, _ = ChunkIndex(manifest).resolve(ints([0, 0, 0, 1]), boxes)

    assert np.bincount(pieces.want).tolist() == [10_000, 10_000, 10_000, 2]
    assert (pieces.target >= 0).all()


def test_a_column_of_many_rows_takes_no_memory_for_each_row() -> None:
    whole = [Region.whole(Box.whole((2**21, 1024)))]
    index = ChunkIndex(in_own_runs([Saved("uint8", (2**21, 1024), whole)]))
    column = Box(origin=(0, 3), shape=(2**21, 2))
    tracemalloc.start()

    pieces, _ = index.resolve(ints([0]), {0: column})

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pieces.nbytes.tolist() == [(2**21 - 1) * 1024 + 2]
    assert peak < 2**20


def test_elements_below_a_byte_that_end_both_chunk_and_want_are_copied() -> None:
    """The last byte of neither holds anything else."""
    saved = [Region(box=Box.whole((7,)), start=s, count=c) for s, c in ((0, 4), (4, 3))]
    manifest = in_own_runs([Saved("int4", (7,), saved)])

    pieces, _ = ChunkIndex(manifest).resolve(ints([0]), {})

    assert pieces.target.tolist() == [0, 2]
    assert pieces.nbytes.tolist() == [2, 2]


def test_positions_of_many_huge_tensors_meet_their_own_tensor_only() -> None:
    """The tensor and a position below 2^53 do not fit one integer for 600 tensors."""
    size = 2**53 - 1
    saved = [
        Region.whole(Box(origin=(0,), shape=(1,))),
        Region.whole(Box(origin=(1,), shape=(size - 1,))),
    ]
    manifest = in_own_runs([Saved("uint8", (size,), saved)] * 600, log2=30)
    far = np.zeros_like(manifest.runs.position)
    manifest = replace(manifest, runs=replace(manifest.runs, position=far))
    boxes = {i: Box(origin=(size - 1 - i,), shape=(1,)) for i in range(600)}

    pieces, _ = ChunkIndex(manifest).resolve(np.arange(600), boxes)

    assert pieces.want.tolist() == list(range(600))
    assert pieces.chunk.tolist() == [2 * i + 1 for i in range(600)]
    assert pieces.offset.tolist() == [size - 2 - i for i in range(600)]


def slabs(shape: tuple[int, ...], parts: int) -> list[Box]:
    """The slabs of a shape on axis 0 as torch.chunk cuts them."""
    size = -(-shape[0] // parts)
    return [
        Box(origin=(low, *(0,) * (len(shape) - 1)), shape=(min(size, shape[0] - low), *shape[1:]))
        for low in range(0, shape[0], size)
    ]


@pytest.mark.parametrize(
    ("saved", "wanted", "shape"),
    [
        (4, 8, (16_384, 16_384)),
        (4, 8, (16_381, 16_001)),
        (2, 4, (8192, 28_672)),
        (2, 4, (8191, 28_671)),
        (128, 96, (128_256, 16_384)),
        (96, 128, (151_936, 16_381)),
    ],
)
def test_resharding_large_tensors_on_axis_0_reads_little_more_than_is_wanted(
    saved: int, wanted: int, shape: tuple[int, int]
) -> None:
    regions = [Region.whole(box) for box in slabs(shape, saved)]
    index = ChunkIndex(in_own_runs([Saved("bfloat16", shape, regions)]))

    for box in slabs(shape, wanted):
        pieces, blocks = index.resolve(ints([0]), {0: box})

        assert int(blocks.raw.sum()) <= 1.05 * 2 * box.numel
        assert int(blocks.raw.sum()) <= 2 * box.numel + 2 * 2**20
        assert (pieces.target >= 0).all()
        assert int(pieces.nbytes.sum()) == 2 * box.numel
