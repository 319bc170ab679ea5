"""Reads of needed blocks, and which pieces each of them serves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.model.manifest import Ints, ints
from bcpformat.model.region import Box, Region
from bcpformat.plan.resolve import Blocks, ChunkIndex, Pieces
from bcpformat.plan.tasks import TaskPlan, cut_tasks
from tests.plan.layouts import Saved, in_own_runs
from tests.plan.painted import Read, reads

TASK_BYTES = st.sampled_from([4096, 16384, 2**23])


def planned(read: Read, task_bytes: int, *, ratio: int = 1) -> tuple[Pieces, Blocks, TaskPlan]:
    """Plan a read; with a `ratio` above 1 as if encoding made every block that much smaller."""
    pieces, blocks = ChunkIndex(read.manifest).resolve(read.tensors, read.boxes)
    runs = read.manifest.runs
    position = runs.position[blocks.run] + (blocks.index << runs.block_log2[blocks.run]) // ratio
    plan = cut_tasks(
        pieces,
        blocks,
        runs=runs,
        position=position,
        stored=np.maximum(blocks.raw // ratio, 1),
        task_bytes=task_bytes,
    )
    return pieces, blocks, plan


def served(pieces: Pieces, plan: TaskPlan) -> list[Ints]:
    """Return for each piece how often each of its bytes is placed."""
    times = [np.zeros(n, dtype=np.int64) for n in pieces.nbytes.tolist()]
    for piece, skip, nbytes in zip(
        plan.piece.tolist(), plan.skip.tolist(), plan.nbytes.tolist(), strict=True
    ):
        assert 0 <= skip < skip + nbytes <= len(times[piece])
        times[piece][skip : skip + nbytes] += 1
    return times


@given(reads(), TASK_BYTES)
def test_every_block_is_read_in_one_task(read: Read, task_bytes: int) -> None:
    _, blocks, plan = planned(read, task_bytes)

    assert [b for task in plan.tasks for b in range(*task.blocks)] == list(range(len(blocks.run)))
    assert [p for task in plan.tasks for p in range(*task.pairs)] == list(range(len(plan.piece)))


@given(reads(), TASK_BYTES)
def test_a_task_reads_no_byte_that_is_not_of_its_blocks(read: Read, task_bytes: int) -> None:
    _, blocks, plan = planned(read, task_bytes)

    for task in plan.tasks:
        assert task.start % 4096 == 0
        assert not task.encoded
        rows = slice(*task.blocks)
        padding = (-blocks.raw[rows] % 4096)[:-1].sum()
        assert task.stop - task.start == int(blocks.raw[rows].sum() + padding)


@given(reads(), TASK_BYTES, st.sampled_from([1, 3]))
def test_every_byte_of_a_piece_is_placed_once(read: Read, task_bytes: int, ratio: int) -> None:
    pieces, _, plan = planned(read, task_bytes, ratio=ratio)

    assert all((times == 1).all() for times in served(pieces, plan))


@given(reads(), TASK_BYTES)
def test_a_pair_takes_the_bytes_of_its_piece_from_the_buffer_of_its_task(
    read: Read, task_bytes: int
) -> None:
    """The image of the file holds positions, so that every byte says where it comes from."""
    pieces, _, plan = planned(read, task_bytes)
    first = read.manifest.runs.position[pieces.run] + pieces.offset

    for task in plan.tasks:
        buffer = np.arange(task.start, task.stop)
        for pair in range(*task.pairs):
            source, nbytes = int(plan.source[pair]), int(plan.nbytes[pair])
            at = int(first[plan.piece[pair]]) + int(plan.skip[pair])
            assert np.array_equal(buffer[source : source + nbytes], np.arange(at, at + nbytes))


@given(reads(), TASK_BYTES)
def test_a_pair_of_a_task_holds_a_byte_that_is_wanted(read: Read, task_bytes: int) -> None:
    pieces, _, plan = planned(read, task_bytes)

    chunks = read.manifest.chunks
    wanted = {
        (want, chunk): np.concatenate(
            (found * read.bits(want) // 8, ((found + 1) * read.bits(want) - 1) // 8)
        )
        for want in range(len(read.wants))
        for chunk, found in read.taken(want)
    }
    for pair, piece in enumerate(plan.piece.tolist()):
        chunk = int(pieces.chunk[piece])
        low = int(pieces.offset[piece]) - int(chunks.offset[chunk]) + int(plan.skip[pair])
        found = wanted[int(pieces.want[piece]), chunk]
        assert ((found >= low) & (found < low + int(plan.nbytes[pair]))).any()


def test_a_piece_is_not_paired_with_tasks_that_others_need() -> None:
    """Two columns of one chunk, whose rows are three blocks long: each has blocks of its own."""
    whole = [Region.whole(Box.whole((4, 3072)))]
    manifest = in_own_runs([Saved("float32", (4, 3072), whole)], log2=12)
    columns = [Box(origin=(0, at), shape=(4, 8)) for at in (0, 1536)]
    read = Read(manifest, [(0, column) for column in columns])

    pieces, blocks, plan = planned(read, 4096)

    assert blocks.index.tolist() == [0, 1, 3, 4, 6, 7, 9, 10]
    assert len(plan.tasks) == 8
    pairs = [[int(pieces.want[p]) for p in plan.piece[slice(*t.pairs)]] for t in plan.tasks]
    assert pairs == [[0], [1]] * 4


def test_blocks_that_are_not_needed_end_a_read() -> None:
    manifest = in_own_runs([Saved("uint8", (40960,), [Region.whole(Box.whole((40960,)))])], log2=12)
    wants = [(0, Box(origin=(at,), shape=(4096,))) for at in (0, 4096, 20480)]

    _, _, plan = planned(Read(manifest, wants), 2**23)

    assert [(t.start, t.stop) for t in plan.tasks] == [(4096, 12288), (24576, 28672)]


def test_a_read_ends_after_the_block_that_passes_its_size() -> None:
    manifest = in_own_runs([Saved("uint8", (40960,), [Region.whole(Box.whole((40960,)))])], log2=12)

    _, _, plan = planned(Read(manifest, [(0, Box.whole((40960,)))], frozenset([0])), 16384)

    assert [t.stop - t.start for t in plan.tasks] == [16384, 16384, 8192]


def test_no_wants_make_no_tasks() -> None:
    manifest = in_own_runs([Saved("uint8", (4,), [Region.whole(Box.whole((4,)))])])

    pieces, blocks, plan = planned(Read(manifest, []), 2**23)

    assert len(pieces.chunk) == len(blocks.number) == len(plan.tasks) == len(plan.piece) == 0


def test_blocks_without_pieces_are_read_for_nobody() -> None:
    """As full validation does."""
    manifest = in_own_runs([Saved("uint8", (9000,), [Region.whole(Box.whole((9000,)))])], log2=12)
    none = ints([])
    blocks = ChunkIndex(manifest).blocks_of(ints([0]), ints([0]), ints([9000]), manifest.runs)

    plan = cut_tasks(
        Pieces(chunk=none, want=none, run=none, offset=none, nbytes=none, target=none),
        blocks,
        runs=manifest.runs,
        position=4096 + blocks.index * 4096,
        stored=blocks.raw,
        task_bytes=2**23,
    )

    assert [(t.start, t.stop, t.pairs) for t in plan.tasks] == [(4096, 13096, (0, 0))]
