"""Random layouts of tensors in data files, as manifests without data (for plan tests)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from bcpformat.model.dtypes import DType
from bcpformat.model.manifest import (
    ChunkTable,
    FileRow,
    Ints,
    Manifest,
    RunTable,
    TensorTable,
    Writer,
    empty_per_rank,
    ints,
)
from bcpformat.model.region import Box, Region
from bcpformat.plan.pack import LARGE_BLOCK_LOG2, LARGE_RUN_BYTES, SMALL_BLOCK_LOG2, aligned

SUBBYTE = ["uint2", "int4", "float6_e2m3fn"]
DTYPES = ["uint8", "float32", "bfloat16", "complex128", "int4", "float6_e2m3fn"]


def cut_box(draw: st.DrawFn, box: Box) -> list[Box]:
    """Cut a box by random straight cuts."""
    if box.numel <= 1 or draw(st.integers(0, 2)) == 0:
        return [box]
    axes = [a for a, n in enumerate(box.shape) if n > 1]
    axis = draw(st.sampled_from(axes))
    at = draw(st.integers(1, box.shape[axis] - 1))
    low, high = list(box.shape), list(box.shape)
    low[axis], high[axis] = at, box.shape[axis] - at
    origin = list(box.origin)
    origin[axis] += at
    left = Box(origin=box.origin, shape=tuple(low))
    right = Box(origin=tuple(origin), shape=tuple(high))
    return cut_box(draw, left) + cut_box(draw, right)


@st.composite
def regions(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Region]:
    """Regions that tile a shape: boxes, some of them cut into flat ranges."""
    if 0 in shape:
        return []
    found = []
    for box in cut_box(draw, Box.whole(shape)):
        cuts = sorted(draw(st.sets(st.integers(1, max(1, box.numel - 1)), max_size=3)))
        ends = [c for c in cuts if c < box.numel] + [box.numel]
        start = 0
        for end in ends:
            found.append(Region(box=box, start=start, count=end - start))
            start = end
    return sorted(found, key=lambda r: (r.box.origin, r.start))


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor and the regions it is saved in, in the order of chunk rows."""

    dtype: str
    shape: tuple[int, ...]
    regions: Sequence[Region]

    @property
    def bits(self) -> int:
        return DType.named(self.dtype).bits

    def nbytes(self) -> list[int]:
        return [(r.count * self.bits + 7) // 8 for r in self.regions]


def build(tensors: Sequence[Saved], runs: Sequence[Sequence[int]], log2: Sequence[int]) -> Manifest:
    """Return the manifest of tensors whose chunks lie in runs of one file.

    Args:
        tensors: The tensors.
        runs: Chunk rows of each run, in the order in which they lie there.
        log2: Base-2 logarithm of the block size of each run.
    """
    rows = [region for tensor in tensors for region in tensor.regions]
    nbytes = [n for tensor in tensors for n in tensor.nbytes()]
    items = [DType.named(t.dtype).item for t in tensors for _ in t.regions]
    run_of, offset_of, raw = [0] * len(rows), [0] * len(rows), []
    for run, own in enumerate(runs):
        end = 0
        for row in own:
            run_of[row], offset_of[row] = run, aligned(end, 64)
            end = offset_of[row] + nbytes[row]
        raw.append(end)
    padded = (ints(raw) + 4095) & -4096
    zeros = np.zeros(len(runs), dtype=np.int64)
    blocks = ((ints(raw) - 1) >> ints(log2)) + 1
    table = RunTable(
        file=zeros,
        position=4096 + np.cumsum(padded) - padded,
        raw=ints(raw),
        stored=ints(raw),
        codec=zeros,
        item=ints([items[own[0]] for own in runs]),
        block_log2=ints(log2),
        block0=np.cumsum(blocks) - blocks,
    )
    file = FileRow(
        name="a.bcd",
        attempt_id=bytes(16),
        table_bytes=int(4096 + padded.sum()),
        blocks=int(blocks.sum()),
        digest=b"",
    )
    names = [f"t{i:03}" for i in range(len(tensors))]
    origin = [v for r in rows for v in r.box.origin]
    extent = [v for r in rows for v in r.box.shape]
    return Manifest(
        attempt_id=bytes(16),
        created_us=0,
        writer=Writer(name="test", version="0"),
        require=("subbyte",) if any(t.bits < 8 for t in tensors) else (),
        files=[file] if runs else [],
        tensors=TensorTable(
            names=names,
            dtypes=[t.dtype for t in tensors],
            shapes=[t.shape for t in tensors],
            chunks=ints([len(t.regions) for t in tensors]),
        ),
        runs=table,
        chunks=ChunkTable(
            run=ints(run_of),
            offset=ints(offset_of),
            origin=_unless_default(origin, [0] * len(origin)),
            extent=_unless_default(
                extent, [n for t in tensors for _ in t.regions for n in t.shape]
            ),
            start=_unless_default([r.start for r in rows], [0] * len(rows)),
            count=_unless_default([r.count for r in rows], [r.box.numel for r in rows]),
        ),
        state=[6, *[v for i, n in enumerate(names) for v in (n, i)]],
        per_rank=empty_per_rank(),
    )


def _unless_default(values: list[int], default: list[int]) -> Ints | None:
    return None if values == default else ints(values)


def in_own_runs(tensors: Sequence[Saved], *, log2: int | None = None) -> Manifest:
    """Return a manifest with a run for each chunk, unless given of the writer's block sizes."""
    nbytes = [n for tensor in tensors for n in tensor.nbytes()]
    sizes = [
        log2 or (SMALL_BLOCK_LOG2 if n < LARGE_RUN_BYTES else LARGE_BLOCK_LOG2) for n in nbytes
    ]
    return build(tensors, [[row] for row in range(len(nbytes))], sizes)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Manifests of up to three tensors with random regions, runs and block sizes."""
    tensors = []
    for _ in range(draw(st.integers(1, 3))):
        shape = draw(st.lists(st.integers(0, 5), max_size=4))
        if shape:  # long on one axis, so that there are several blocks
            axis = draw(st.integers(0, len(shape) - 1))
            shape[axis] *= draw(st.sampled_from([1, 1, 97, 511]))
        if np.prod(shape) > 2**14:
            shape = shape[:2]
        found = draw(regions(tuple(shape)))
        tensors.append(Saved(draw(st.sampled_from(DTYPES)), tuple(shape), found))
    return draw(packed(tensors))


@st.composite
def packed(draw: st.DrawFn, tensors: Sequence[Saved]) -> Manifest:
    """Manifests of given tensors, whose chunks lie in random runs."""
    items = [DType.named(t.dtype).item for t in tensors for _ in t.regions]
    runs: list[list[int]] = []
    for row in draw(st.permutations(range(len(items)))):
        if runs and items[runs[-1][-1]] == items[row] and draw(st.booleans()):
            runs[-1].append(row)
        else:
            runs.append([row])
    return build(tensors, runs, [draw(st.sampled_from([12, 12, 13])) for _ in runs])


@st.composite
def long_rows(draw: st.DrawFn) -> Manifest:
    """Manifests of one tensor whose rows are about as long as one to three blocks."""
    shape = (
        *draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)),
        draw(st.integers(200, 900)),
    )
    saved = draw(st.one_of(regions(shape), st.just([Region.whole(Box.whole(shape))])))
    return draw(packed([Saved("complex128", shape, saved)]))


@st.composite
def subbyte(draw: st.DrawFn) -> Manifest:
    """Manifests of one small tensor whose chunks and rows end anywhere in a byte."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    return draw(packed([Saved(draw(st.sampled_from(SUBBYTE)), shape, draw(regions(shape)))]))


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    """A non-empty box within a shape without zeros."""
    origin = tuple(draw(st.integers(0, n - 1)) for n in shape)
    extent = tuple(draw(st.integers(1, n - o)) for n, o in zip(shape, origin, strict=True))
    return Box(origin=origin, shape=extent)
