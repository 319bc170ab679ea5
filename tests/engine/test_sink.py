"""Placing of pieces, with the bytes of files that exist in memory only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.engine.memory import address_of
from bcpformat.engine.sink import Destinations, Sink
from bcpformat.errors import CoverageError
from bcpformat.model.dtypes import DType, pack_subbyte
from bcpformat.model.manifest import Manifest, ints
from bcpformat.model.region import Box, Region
from bcpformat.plan.resolve import ChunkIndex
from bcpformat.plan.tasks import TaskPlan, cut_tasks
from tests.plan.layouts import Saved, in_own_runs, subbyte
from tests.plan.painted import Read, reads, slices, stored


def elements(manifest: Manifest, tensor: int) -> np.ndarray:
    """Random elements of a tensor as bits, those of a sub-byte type in a byte each."""
    dtype = DType.named(manifest.tensors.dtypes[tensor])
    shape = manifest.tensors.shapes[tensor]
    rng = np.random.default_rng(tensor)
    if dtype.bits < 8:
        return rng.integers(0, 1 << dtype.bits, shape, dtype=np.uint8)
    data = rng.bytes(int(np.prod(shape)) * dtype.bits // 8)
    return np.frombuffer(data, dtype.opaque).reshape(shape)


def bytes_of(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Return elements as a chunk of them is stored."""
    if dtype.bits < 8:
        return pack_subbyte(np.ascontiguousarray(array).reshape(-1), dtype.bits)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def image_of(manifest: Manifest, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the bytes of the data file."""
    image = np.zeros(manifest.files[0].table_bytes if manifest.files else 0, np.uint8)
    index = ChunkIndex(manifest)
    for chunk, tensor in enumerate(index.geometry.tensor.tolist()):
        dtype = DType.named(manifest.tensors.dtypes[tensor])
        data = bytes_of(arrays[tensor].reshape(-1)[stored(manifest, index, chunk)], dtype)
        at = int(manifest.runs.position[manifest.chunks.run[chunk]] + manifest.chunks.offset[chunk])
        image[at : at + len(data)] = data
    return image


class Reading:
    """One read of a file that lies in memory, up to the placing of its pieces.

    Destinations have one byte more than they need on either side, to see who writes there.
    """

    def __init__(self, read: Read, arrays: Sequence[np.ndarray], *, apart: bool = False) -> None:
        self.read = read
        self.image = image_of(read.manifest, arrays)
        self.index = ChunkIndex(read.manifest)
        self.pieces, self.blocks = self.index.resolve(read.tensors, read.boxes)
        self.expected = [arrays[tensor][slices(box)] for tensor, box in read.wants]
        self.dtypes = [DType.named(read.manifest.tensors.dtypes[t]) for t, _ in read.wants]
        nbytes = [
            (box.numel * d.bits + 7) // 8
            for (_, box), d in zip(read.wants, self.dtypes, strict=True)
        ]
        self.memory = [np.full(n + 32, 0xA5, np.uint8) for n in nbytes]
        self.strided = {
            want: np.zeros((*box.shape, 2), self.dtypes[want].opaque)[..., 1]
            for want, (_, box) in enumerate(read.wants)
            if apart and self.dtypes[want].bits >= 8
        }
        address = [
            0 if i in self.strided else address_of(m) + 16 for i, m in enumerate(self.memory)
        ]
        out = Destinations(
            address=ints(address), nbytes=ints(nbytes), strided=self.strided, owners=self.memory
        )
        self.sink = Sink(self.index, read.tensors, read.boxes, self.pieces, out)

    def plan(self, task_bytes: int) -> TaskPlan:
        runs, blocks = self.read.manifest.runs, self.blocks
        return cut_tasks(
            self.pieces,
            blocks,
            runs=runs,
            position=runs.position[blocks.run] + (blocks.index << runs.block_log2[blocks.run]),
            stored=blocks.raw.copy(),
            task_bytes=task_bytes,
        )

    def place(self, plan: TaskPlan) -> None:
        for task in plan.tasks:
            buffer = self.image[task.start : task.stop].copy()
            rows = slice(*task.pairs)
            columns = (plan.piece, plan.source, plan.skip, plan.nbytes)
            placed = [
                self.sink.place(piece, address_of(buffer) + source, skip, nbytes)
                for piece, source, skip, nbytes in zip(
                    *(c[rows].tolist() for c in columns), strict=True
                )
            ]
            self.sink.count(plan.piece[rows], placed)

    def check(self) -> None:
        for want, (expected, memory) in enumerate(zip(self.expected, self.memory, strict=True)):
            assert (memory[:16] == 0xA5).all()
            assert (memory[-16:] == 0xA5).all()
            data = bytes_of(expected, self.dtypes[want])
            if want in self.strided:
                assert bytes_of(self.strided[want], self.dtypes[want]).tobytes() == data.tobytes()
            else:
                assert memory[16:-16].tobytes() == data.tobytes()


@given(reads(), st.sampled_from([4096, 16384, 2**23]), st.booleans())
def test_every_wanted_element_comes_to_its_place(read: Read, task_bytes: int, apart: bool) -> None:  # noqa: FBT001
    arrays = [elements(read.manifest, t) for t in range(len(read.manifest.tensors))]
    reading = Reading(read, arrays, apart=apart)

    reading.place(reading.plan(task_bytes))
    reading.sink.finish()

    reading.check()


@given(reads(subbyte()), st.sampled_from([4096, 2**23]))
def test_every_wanted_element_below_a_byte_comes_to_its_place(read: Read, task_bytes: int) -> None:
    reading = Reading(read, [elements(read.manifest, 0)])

    reading.place(reading.plan(task_bytes))
    reading.sink.finish()

    reading.check()


@given(reads(), st.data())
def test_a_read_of_which_a_part_is_not_placed_is_noticed(read: Read, data: st.DataObject) -> None:
    arrays = [elements(read.manifest, t) for t in range(len(read.manifest.tensors))]
    reading = Reading(read, arrays)
    plan = reading.plan(4096)
    if not plan.tasks:
        return
    lost = data.draw(st.integers(0, len(plan.tasks) - 1))

    reading.place(replace(plan, tasks=[t for i, t in enumerate(plan.tasks) if i != lost]))

    with pytest.raises(CoverageError, match="bytes of its destination were written"):
        reading.sink.finish()


def halves() -> list[Region]:
    return [Region.whole(Box(origin=(row, 0), shape=(2, 6))) for row in (0, 2)]


def test_a_slab_of_rows_is_placed_by_copies_alone() -> None:
    manifest = in_own_runs([Saved("float32", (4, 6), halves())])
    read = Read(manifest, [(0, Box(origin=(1, 0), shape=(2, 6)))])
    reading = Reading(read, [elements(manifest, 0)])

    reading.place(reading.plan(2**23))
    reading.sink.finish()

    reading.check()
    assert reading.pieces.target.tolist() == [0, 24]


def test_elements_of_half_a_byte_that_begin_within_bytes_are_put_together() -> None:
    """Neither the chunk nor the want begins or ends with a whole byte where they meet."""
    saved = [Region(box=Box.whole((3, 5)), start=s, count=c) for s, c in ((0, 4), (4, 7), (11, 4))]
    manifest = in_own_runs([Saved("int4", (3, 5), saved)])
    read = Read(
        manifest, [(0, Box(origin=(0, 1), shape=(3, 3))), (0, Box.whole((3, 5)))], frozenset([1])
    )
    reading = Reading(read, [elements(manifest, 0)])

    reading.place(reading.plan(2**23))
    reading.sink.finish()

    reading.check()
