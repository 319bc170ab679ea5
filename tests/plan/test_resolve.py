"""The resolver against an oracle that paints elements one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.model.checks import check_manifest
from bcpformat.model.dtypes import DType
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.model.manifest import Manifest, ints
from bcpformat.model.region import Box
from bcpformat.plan.resolve import ChunkIndex, _row_ranges, place_elements
from bcpformat.plan.tasks import cut_tasks
from tests.plan.layouts import boxes, manifests


def elements_of(manifest: Manifest, chunk: int) -> list[tuple[int, ...]]:
    """The tensor coordinates of a chunk's elements, in stored order."""
    region = ChunkIndex(manifest).region(chunk)
    found = []
    for flat in range(region.start, region.start + region.count):
        index = np.unravel_index(flat, region.box.shape) if region.box.shape else ()
        found.append(tuple(int(i) + o for i, o in zip(index, region.box.origin, strict=True)))
    return found


def needed_blocks(manifest: Manifest, wants: list[tuple[int, Box]]) -> set[tuple[int, int]]:
    """The blocks that hold a wanted element, found one element at a time."""
    index = ChunkIndex(manifest)
    found = set()
    for chunk in range(len(manifest.chunks)):
        tensor = int(index.geometry.tensor[chunk])
        size = DType.named(manifest.tensors.dtypes[tensor]).bits // 8
        run = int(manifest.chunks.run[chunk])
        for at, place in enumerate(elements_of(manifest, chunk)):
            for wanted, box in wants:
                if wanted == tensor and all(
                    o <= p < o + n for p, o, n in zip(place, box.origin, box.shape, strict=True)
                ):
                    byte = int(manifest.chunks.offset[chunk]) + at * size
                    found.add((run, byte >> int(manifest.runs.block_log2[run])))
    return found


@st.composite
def reads(draw: st.DrawFn) -> tuple[Manifest, list[tuple[int, Box]], set[int]]:
    """A manifest, wants in it, and which of them are given as whole tensors."""
    manifest = draw(manifests())
    full = [t for t, s in enumerate(manifest.tensors.shapes) if 0 not in s]
    wants, whole = [], set()
    for tensor in draw(st.lists(st.sampled_from(full), max_size=4)) if full else []:
        shape = manifest.tensors.shapes[tensor]
        if draw(st.booleans()):
            whole.add(len(wants))
            wants.append((tensor, Box.whole(shape)))
        else:
            wants.append((tensor, draw(boxes(shape))))
    return manifest, wants, whole


@given(manifests())
def test_random_layouts_are_valid_manifests(manifest: Manifest) -> None:
    assert check_manifest(manifest, limits=DEFAULT_LIMITS) == []


@given(reads())
def test_exactly_the_needed_blocks_are_read_once(
    case: tuple[Manifest, list[tuple[int, Box]], set[int]],
) -> None:
    manifest, wants, whole = case
    given_boxes = {i: box for i, (_, box) in enumerate(wants) if i not in whole}

    _, blocks = ChunkIndex(manifest).resolve(ints([t for t, _ in wants]), given_boxes)

    pairs = list(zip(blocks.run.tolist(), blocks.index.tolist(), strict=True))
    assert len(pairs) == len(set(pairs))
    assert pairs == sorted(pairs)
    assert set(pairs) == needed_blocks(manifest, wants)


@given(reads(), st.sampled_from([4096, 16384, 2**23]))
def test_tasks_place_every_wanted_element_once(
    case: tuple[Manifest, list[tuple[int, Box]], set[int]], task_bytes: int
) -> None:
    manifest, wants, whole = case
    index = ChunkIndex(manifest)
    given_boxes = {i: box for i, (_, box) in enumerate(wants) if i not in whole}
    image = np.arange(manifest.files[0].table_bytes if manifest.files else 0, dtype=np.int64)
    pieces, blocks = index.resolve(ints([t for t, _ in wants]), given_boxes)
    runs = manifest.runs
    position = runs.position[blocks.run] + (blocks.index << runs.block_log2[blocks.run])

    plan = cut_tasks(
        pieces,
        blocks,
        runs=runs,
        position=position,
        stored=blocks.raw.copy(),
        task_bytes=task_bytes,
    )

    sizes = [DType.named(manifest.tensors.dtypes[t]).bits // 8 for t, _ in wants]
    out = [
        np.full((*box.shape, size), -1, dtype=np.int64)
        for (_, box), size in zip(wants, sizes, strict=True)
    ]
    count = [0] * len(wants)
    for task in plan.tasks:
        assert task.start % 4096 == 0
        buffer = image[task.start : task.stop]
        for pair in range(*task.pairs):
            piece, nbytes = int(plan.piece[pair]), int(plan.nbytes[pair])
            source, skip = int(plan.source[pair]), int(plan.skip[pair])
            want = int(pieces.want[piece])
            data = buffer[source : source + nbytes]
            assert len(data) == nbytes
            if pieces.target[piece] >= 0:
                at = int(pieces.target[piece]) + skip
                out[want].reshape(-1)[at : at + nbytes] = data
                count[want] += nbytes
            else:
                rows = data.reshape(-1, sizes[want])
                rows = np.ascontiguousarray(rows).view([("v", "i8", sizes[want])]).reshape(-1)
                target = np.zeros(wants[want][1].shape, dtype=rows.dtype)
                target["v"] = out[want]
                copied = place_elements(
                    pieces.regions[piece], rows, skip // sizes[want], wants[want][1], target
                )
                out[want] = np.array(target["v"])
                count[want] += copied * sizes[want]
    for (tensor, box), got, size, total in zip(wants, out, sizes, count, strict=True):
        assert total == box.numel * size
        assert np.array_equal(got, expected_bytes(manifest, index, tensor, box, size))


def expected_bytes(
    manifest: Manifest, index: ChunkIndex, tensor: int, box: Box, size: int
) -> np.ndarray:
    """Where in the file each byte of a wanted box lies, found one element at a time."""
    out = np.full((*box.shape, size), -1, dtype=np.int64)
    for chunk in np.flatnonzero(index.geometry.tensor == tensor).tolist():
        run = int(manifest.chunks.run[chunk])
        base = int(manifest.runs.position[run]) + int(manifest.chunks.offset[chunk])
        for at, place in enumerate(elements_of(manifest, chunk)):
            local = tuple(p - o for p, o in zip(place, box.origin, strict=True))
            if all(0 <= p < n for p, n in zip(local, box.shape, strict=True)):
                out[local] = base + at * size + np.arange(size)
    return out


def test_rows_closer_than_a_block_are_one_range() -> None:
    rows, columns = 4096, 1024
    column = Box(origin=(0, 10), shape=(rows, 2))

    ranges = _row_ranges(Box.whole((rows, columns)), column, 0, 4, 2**20)

    assert ranges == [(40, 40 + (rows - 1) * columns * 4 + 8)]


def test_rows_further_apart_than_a_block_are_ranges_of_their_own() -> None:
    column = Box(origin=(1, 10), shape=(3, 2))

    ranges = _row_ranges(Box.whole((5, 2048)), column, 0, 4, 4096)

    assert ranges == [(row * 8192 + 40, row * 8192 + 48) for row in (1, 2, 3)]
