"""Random layouts of tensors in data files, as manifests without data (for plan tests)."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from bcpformat.model.checks import block_counts
from bcpformat.model.manifest import (
    ChunkTable,
    FileRow,
    Manifest,
    RunTable,
    TensorTable,
    Writer,
    empty_per_rank,
    ints,
)
from bcpformat.model.region import Box, Region
from bcpformat.plan.pack import aligned

DTYPES = {"uint8": 8, "float32": 32, "bfloat16": 16, "complex128": 128}


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


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Manifests of up to three tensors with random regions, runs and block sizes."""
    names, dtypes, shapes, counts = [], [], [], []
    rows: list[tuple[int, Region, int, int]] = []
    for tensor in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.integers(0, 6), max_size=3)))
        if draw(st.booleans()) and shape:
            shape = (shape[0] * 97, *shape[1:])
        dtype = draw(st.sampled_from(sorted(DTYPES)))
        found = draw(regions(shape))
        names.append(f"t{tensor}")
        dtypes.append(dtype)
        shapes.append(shape)
        counts.append(len(found))
        rows += [(tensor, r, r.count * DTYPES[dtype] // 8, DTYPES[dtype] // 8) for r in found]
    items = [8 if r[3] == 16 else r[3] for r in rows]
    run_of, offset_of = [0] * len(rows), [0] * len(rows)
    runs: list[list[int]] = []
    order = draw(st.permutations(range(len(rows))))
    for row in order:
        nbytes = rows[row][2]
        if runs and runs[-1][1] == items[row] and draw(st.booleans()):
            offset_of[row] = aligned(runs[-1][0], 64)
            runs[-1][0] = offset_of[row] + nbytes
        else:
            runs.append([nbytes, items[row]])
        run_of[row] = len(runs) - 1
    raw = ints([r[0] for r in runs])
    log2 = ints([draw(st.sampled_from([12, 12, 13])) for _ in runs])
    padded = (raw + 4095) & -4096
    position = 4096 + np.cumsum(padded) - padded
    zeros = np.zeros(len(runs), dtype=np.int64)
    table = RunTable(
        file=zeros,
        position=position,
        raw=raw,
        stored=raw,
        codec=zeros,
        item=ints([r[1] for r in runs]),
        block_log2=log2,
        block0=zeros,
    )
    blocks = block_counts(table) if runs else zeros
    table = RunTable(
        file=zeros,
        position=position,
        raw=raw,
        stored=raw,
        codec=zeros,
        item=table.item,
        block_log2=log2,
        block0=np.cumsum(blocks) - blocks,
    )
    end = int(4096 + padded.sum())
    file = FileRow(
        name="a.bcd", attempt_id=bytes(16), table_bytes=end, blocks=int(blocks.sum()), digest=b""
    )
    return Manifest(
        attempt_id=bytes(16),
        created_us=0,
        writer=Writer(name="test", version="0"),
        require=(),
        files=[file] if runs else [],
        tensors=TensorTable(names=names, dtypes=dtypes, shapes=shapes, chunks=ints(counts)),
        runs=table,
        chunks=ChunkTable(
            run=ints(run_of),
            offset=ints(offset_of),
            origin=ints([v for r in rows for v in r[1].box.origin]),
            extent=ints([v for r in rows for v in r[1].box.shape]),
            start=ints([r[1].start for r in rows]),
            count=ints([r[1].count for r in rows]),
        ),
        state=[6, *[v for i, n in enumerate(names) for v in (n, i)]],
        per_rank=empty_per_rank(),
    )


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    """A non-empty box within a shape without zeros."""
    origin = tuple(draw(st.integers(0, n - 1)) for n in shape)
    extent = tuple(draw(st.integers(1, n - o)) for n, o in zip(shape, origin, strict=True))
    return Box(origin=origin, shape=extent)
