"""Which bytes a read needs, and where they go (pure).

A *want* is a box of a tensor and a destination.  `resolve` intersects wants with the saved
regions and yields *pieces*, one chunk's contribution to one want, and the blocks they need, which
`plan.tasks` turns into reads.  Everything that may count many is a column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bcpformat.model.checks import axis_rows, block_counts, chunk_geometry, tensor_dtypes
from bcpformat.model.manifest import Ints, Manifest, RunTable
from bcpformat.model.region import Box, Region, flat_range_boxes


@dataclass(frozen=True, slots=True)
class Pieces:
    """Contributions of chunks to wants; arrays of shape `(pieces,)`.

    Attributes:
        chunk: Row of the chunk.
        want: Position of the want.
        run: Row of the chunk's run.
        offset: First byte of the chunk in the raw bytes of its run.
        nbytes: Raw bytes of the chunk.
        target: First byte in the want's destination if the whole chunk goes there as one
            contiguous stretch of bytes, else -1: its elements are placed box by box.
        regions: Piece to its chunk's region, for pieces with `target` -1.
    """

    chunk: Ints
    want: Ints
    run: Ints
    offset: Ints
    nbytes: Ints
    target: Ints
    regions: Mapping[int, Region]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks a read needs, ascending; arrays of shape `(blocks,)`.

    Attributes:
        run: Row of the run.
        index: Position in the run, in blocks.
        raw: Raw bytes.
        table: Position in the block table of the file.
        number: Position among all blocks of the checkpoint, run after run.
    """

    run: Ints
    index: Ints
    raw: Ints
    table: Ints
    number: Ints


class ChunkIndex:
    """A manifest's chunks, ready to be resolved against wants any number of times."""

    __slots__ = ("axes", "bits", "first", "geometry", "manifest", "run_block0")

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.geometry = chunk_geometry(manifest)
        dtypes, kinds = tensor_dtypes(manifest.tensors)
        self.bits = np.array([d.bits for d in dtypes], dtype=np.int64)[kinds] if dtypes else kinds
        self.first = np.concatenate(([0], np.cumsum(manifest.tensors.chunks)))
        chunks = manifest.chunks
        regular = chunks.origin is None and chunks.extent is None
        self.axes = None if regular else axis_rows(manifest.tensors)
        counts = block_counts(manifest.runs)
        self.run_block0 = np.concatenate(([0], np.cumsum(counts)))

    def region(self, chunk: int) -> Region:
        """Return the region of a chunk row, in tensor coordinates."""
        chunks = self.manifest.chunks
        shape = self.manifest.tensors.shapes[int(self.geometry.tensor[chunk])]
        origin: tuple[int, ...] = (0,) * len(shape)
        extent = shape
        if self.axes is not None:
            axes = slice(int(self.axes[chunk]), int(self.axes[chunk + 1]))
            if chunks.origin is not None:
                origin = tuple(chunks.origin[axes].tolist())
            if chunks.extent is not None:
                extent = tuple(chunks.extent[axes].tolist())
        start = int(chunks.start[chunk]) if chunks.start is not None else 0
        count = int(self.geometry.count[chunk])
        return Region(box=Box(origin=origin, shape=extent), start=start, count=count)

    def resolve(self, tensors: Ints, boxes: Mapping[int, Box]) -> tuple[Pieces, Blocks]:
        """Return the pieces and blocks that the wants need, no block twice and none for nothing.

        Args:
            tensors: Row of each want's tensor, shape `(wants,)`.
            boxes: Want to its box in tensor coordinates; wants without one take all elements.
        """
        counts = self.manifest.tensors.chunks[tensors]
        want = np.repeat(np.arange(len(tensors), dtype=np.int64), counts)
        starts = np.cumsum(counts) - counts
        chunk = np.arange(len(want), dtype=np.int64) - starts[want] + self.first[tensors][want]
        target = np.zeros(len(want), dtype=np.int64)
        regions: dict[int, Region] = {}
        spans: list[tuple[int, int, int]] = []  # chunk, first and last byte of it
        keep = np.ones(len(want), dtype=np.bool_)
        plain = np.ones(len(want), dtype=np.bool_)
        odd = counts[want] > 1
        if boxes:
            has_box = np.zeros(len(tensors), dtype=np.bool_)
            has_box[list(boxes)] = True
            odd |= has_box[want]
        for piece in np.flatnonzero(odd).tolist():
            self._place(piece, int(chunk[piece]), boxes.get(int(want[piece])), target, regions)
            if target[piece] < 0:
                plain[piece] = False
                needed = self._segments(
                    int(chunk[piece]), regions[piece], boxes.get(int(want[piece]))
                )
                keep[piece] = bool(needed)
                spans += [(int(chunk[piece]), *segment) for segment in needed]
        new = np.cumsum(keep) - 1
        pieces = self._pieces(chunk[keep], want[keep], target[keep])
        pieces = Pieces(
            chunk=pieces.chunk,
            want=pieces.want,
            run=pieces.run,
            offset=pieces.offset,
            nbytes=pieces.nbytes,
            target=pieces.target,
            regions={int(new[p]): region for p, region in regions.items() if keep[p]},
        )
        return pieces, self._blocks(chunk[plain], spans)

    def _pieces(self, chunk: Ints, want: Ints, target: Ints) -> Pieces:
        chunks = self.manifest.chunks
        return Pieces(
            chunk=chunk,
            want=want,
            run=chunks.run[chunk],
            offset=chunks.offset[chunk],
            nbytes=self.geometry.nbytes[chunk],
            target=target,
            regions={},
        )

    def _place(
        self,
        piece: int,
        chunk: int,
        box: Box | None,
        target: Ints,
        regions: dict[int, Region],
    ) -> None:
        """Decide whether a chunk's bytes go to the destination as one stretch."""
        tensor = int(self.geometry.tensor[chunk])
        region = self.region(chunk)
        wanted = box if box is not None else Box.whole(self.manifest.tensors.shapes[tensor])
        first = _contiguous_origin(region, wanted)
        bits = int(self.bits[tensor])
        if first is not None and first * bits % 8 == 0 and _ends_on_byte(region, bits, wanted):
            target[piece] = first * bits // 8
        else:
            target[piece] = -1
            regions[piece] = region

    def _segments(self, chunk: int, region: Region, box: Box | None) -> list[tuple[int, int]]:
        """Return the raw byte ranges of a chunk that a box needs, whole blocks apart merged."""
        tensor = int(self.geometry.tensor[chunk])
        bits = int(self.bits[tensor])
        nbytes = int(self.geometry.nbytes[chunk])
        wanted = box if box is not None else Box.whole(self.manifest.tensors.shapes[tensor])
        if bits < 8:
            inside = any(b.intersect(wanted) is not None for b, _ in region.boxes())
            return [(0, nbytes)] if inside else []
        run = int(self.manifest.chunks.run[chunk])
        block_bytes = 1 << int(self.manifest.runs.block_log2[run])
        size = bits // 8
        found: list[tuple[int, int]] = []
        for part, flat in region.boxes():
            inner = part.intersect(wanted)
            if inner is not None:
                at = flat - region.start
                found += _row_ranges(part, inner, at, size, block_bytes)
        return found

    def _blocks(self, plain: Ints, spans: list[tuple[int, int, int]]) -> Blocks:
        """Return the blocks that hold the given chunks and byte ranges of chunks."""
        chunks, runs = self.manifest.chunks, self.manifest.runs
        extra = np.array(spans, dtype=np.int64).reshape(-1, 3)
        chunk = np.concatenate((plain, extra[:, 0]))
        low = np.concatenate((np.zeros(len(plain), dtype=np.int64), extra[:, 1]))
        high = np.concatenate((self.geometry.nbytes[plain], extra[:, 2]))
        offset = chunks.offset[chunk]
        return self.blocks_of(chunks.run[chunk], offset + low, offset + high, runs)

    def blocks_of(self, run: Ints, low: Ints, high: Ints, runs: RunTable) -> Blocks:
        """Return the blocks that hold the raw bytes `low` to `high` of the given runs."""
        shift = runs.block_log2[run]
        first = self.run_block0[run] + (low >> shift)
        stop = self.run_block0[run] + ((high - 1) >> shift) + 1
        number = _union(first, stop)
        block_run = np.searchsorted(self.run_block0, number, side="right") - 1
        index = number - self.run_block0[block_run]
        log2 = runs.block_log2[block_run]
        raw = np.minimum(np.int64(1) << log2, runs.raw[block_run] - (index << log2))
        return Blocks(
            run=block_run,
            index=index,
            raw=raw,
            table=runs.block0[block_run] + index,
            number=number,
        )


def _union(first: Ints, stop: Ints) -> Ints:
    """Return the integers in the union of ranges, ascending."""
    if not len(first):
        return first
    order = np.argsort(first, kind="stable")
    first, stop = first[order], stop[order]
    reach = np.maximum.accumulate(stop)
    new = np.append(True, first[1:] > reach[:-1])
    begin = first[new]
    end = reach[np.append(np.flatnonzero(new)[1:] - 1, len(first) - 1)]
    sizes = end - begin
    before = np.cumsum(sizes) - sizes
    numbers: Ints = np.arange(int(sizes.sum()), dtype=np.int64)
    numbers += np.repeat(begin - before, sizes)
    return numbers


def _contiguous_origin(region: Region, wanted: Box) -> int | None:
    """Return where a region begins in a wanted box if it fills one flat range of it, else None."""
    if not wanted.contains(region.box):
        return None
    box = region.box
    spanning = True
    for axis in range(len(box.shape) - 1, -1, -1):
        if not spanning and box.shape[axis] != 1:
            return None
        if box.shape[axis] != wanted.shape[axis]:
            spanning = False
    flat = 0
    for axis, extent in enumerate(wanted.shape):
        flat = flat * extent + box.origin[axis] - wanted.origin[axis]
    return flat + region.start


def _ends_on_byte(region: Region, bits: int, wanted: Box) -> bool:
    return bits >= 8 or region.count * bits % 8 == 0 or region.count == wanted.numel


def _row_ranges(
    part: Box, inner: Box, first: int, size: int, block_bytes: int
) -> list[tuple[int, int]]:
    """Return the byte ranges of `inner` within the row-major bytes of `part`.

    Ranges with less than a block between them are merged: every block there is needed anyway.
    The number of ranges is thereby bounded by the number of blocks.

    Args:
        part: A box whose elements lie one after the other, in tensor coordinates.
        inner: The wanted box within it.
        first: Position of the first element of `part`, in elements from the chunk's first.
        size: Bytes of an element.
        block_bytes: Block size of the run.
    """
    strides = [size] * len(part.shape)
    for axis in range(len(part.shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * part.shape[axis + 1]
    length = size
    starts: npt.NDArray[np.int64] = np.array([first * size], dtype=np.int64)
    for axis in range(len(part.shape) - 1, -1, -1):
        begin = (inner.origin[axis] - part.origin[axis]) * strides[axis]
        extent = inner.shape[axis]
        starts = starts + begin
        if extent > 1:
            if len(starts) == 1 and strides[axis] - length < block_bytes:
                length += (extent - 1) * strides[axis]
            else:
                steps = np.arange(extent, dtype=np.int64) * strides[axis]
                starts = (steps[:, None] + starts[None, :]).reshape(-1)
    return [(start, start + length) for start in starts.tolist()]


def place_elements(
    region: Region,
    elements: npt.NDArray[np.generic],
    first: int,
    wanted: Box,
    out: npt.NDArray[np.generic],
) -> int:
    """Copy elements of a region into a destination; return how many were copied.

    Args:
        region: The chunk's region, in tensor coordinates.
        elements: Consecutive elements of the chunk, 1-d.
        first: Position of the first of them in the chunk, in elements.
        wanted: The box that `out` stands for, in tensor coordinates.
        out: The destination, of the shape of `wanted`, any strides.
    """
    start = region.start + first
    copied = 0
    for part, flat in flat_range_boxes(region.box.shape, start, start + len(elements)):
        box = Box(
            origin=tuple(a + b for a, b in zip(part.origin, region.box.origin, strict=True)),
            shape=part.shape,
        )
        inner = box.intersect(wanted)
        if inner is None:
            continue
        source = elements[flat - start : flat - start + part.numel].reshape(part.shape)
        out[_slices(inner, wanted)] = source[_slices(inner, box)]
        copied += inner.numel
    return copied


def _slices(inner: Box, frame: Box) -> tuple[slice, ...]:
    return tuple(
        slice(a - b, a - b + n)
        for a, b, n in zip(inner.origin, frame.origin, inner.shape, strict=True)
    )
