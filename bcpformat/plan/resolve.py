"""Which bytes a read needs, and where they go (pure).

A *want* is a box of a tensor and a destination.  `resolve` intersects wants with the saved
regions and yields *pieces*, stretches of chunks with wanted elements, and the blocks they need,
which `plan.tasks` turns into reads.  Everything that may count many is a column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bcpformat.model.geometry import block_counts, chunk_geometry, tensor_dtypes
from bcpformat.model.manifest import Ints, Manifest, RunTable
from bcpformat.model.region import Box, Region
from bcpformat.model.tiling import Rows
from bcpformat.plan.intersect import byte_ranges, meeting, stretches
from bcpformat.plan.ranges import expand, union

_PAIRS_LOG2 = 16
"""Base-2 logarithm of the pairs of a chunk and a want that are looked at together."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Stretches of chunks that wants need; arrays of shape `(pieces,)`.

    Every block that a piece touches holds a byte of a wanted element, and no wanted element of a
    chunk lies in two pieces of one want.

    Attributes:
        chunk: Row of the chunk.
        want: Position of the want.
        run: Row of the chunk's run.
        offset: First byte in the raw bytes of the run.
        nbytes: Raw bytes.
        target: First byte in the want's destination if all of the piece goes there as one
            stretch, else -1: those of its elements that are wanted are placed box by box.
    """

    chunk: Ints
    want: Ints
    run: Ints
    offset: Ints
    nbytes: Ints
    target: Ints


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


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs of a chunk and a want, and their regions, all of equally many rows."""

    chunk: Ints
    want: Ints
    regions: Rows
    wanted: Rows


@dataclass(frozen=True, slots=True)
class _Found:
    """Pieces: chunk, want, first byte within the chunk, bytes, and place in the destination."""

    chunk: Ints
    want: Ints
    low: Ints
    nbytes: Ints
    target: Ints


class ChunkIndex:
    """A manifest's chunks, ready to be resolved against wants any number of times."""

    __slots__ = ("_axis0", "_ndim", "bits", "first", "geometry", "manifest", "run_block0")

    def __init__(self, manifest: Manifest) -> None:
        tensors = manifest.tensors
        self.manifest = manifest
        self.geometry = chunk_geometry(manifest)
        dtypes, kinds = tensor_dtypes(tensors)
        self.bits = np.array([d.bits for d in dtypes], dtype=np.int64)[kinds] if dtypes else kinds
        self.first = np.concatenate(([0], np.cumsum(tensors.chunks)))
        self._ndim = np.fromiter(map(len, tensors.shapes), dtype=np.int64, count=len(tensors))
        values = self._ndim * tensors.chunks
        self._axis0 = np.cumsum(values) - values  # of each tensor's first chunk
        self.run_block0 = np.concatenate(([0], np.cumsum(block_counts(manifest.runs))))

    def region(self, chunk: int) -> Region:
        """Return the region of a chunk row, in tensor coordinates."""
        chunks = self.manifest.chunks
        tensor = int(self.geometry.tensor[chunk])
        shape = self.manifest.tensors.shapes[tensor]
        axis0 = int(self._axis0[tensor]) + (chunk - int(self.first[tensor])) * len(shape)
        axes = slice(axis0, axis0 + len(shape))
        origin = (0,) * len(shape) if chunks.origin is None else tuple(chunks.origin[axes].tolist())
        extent = shape if chunks.extent is None else tuple(chunks.extent[axes].tolist())
        start = int(chunks.start[chunk]) if chunks.start is not None else 0
        count = int(self.geometry.count[chunk])
        return Region(box=Box(origin=origin, shape=extent), start=start, count=count)

    def near(self, tensors: Ints, boxes: Mapping[int, Box]) -> Ints:
        """Return the chunks that the wants may need, ascending; no run is looked at.

        A chunk that is a flat range of its box may yet hold no wanted element.

        Args:
            tensors: Row of each want's tensor, shape `(wants,)`.
            boxes: As for `resolve`.
        """
        counts = self.manifest.tensors.chunks[tensors]
        is_part = self._parts(tensors, boxes)
        whole = np.unique(tensors[~is_part])
        found = [expand(self.first[whole], self.manifest.tensors.chunks[whole])[1]]
        rest = np.flatnonzero(is_part & (counts > 0))
        if len(rest):
            for wants in self._batches(rest, tensors, counts):
                found.append(self._meeting(wants, tensors[wants], boxes).chunk)
        return np.unique(np.concatenate(found))

    def resolve(self, tensors: Ints, boxes: Mapping[int, Box]) -> tuple[Pieces, Blocks]:
        """Return the pieces and blocks that the wants need, no block twice and none for nothing.

        Args:
            tensors: Row of each want's tensor, shape `(wants,)`.
            boxes: Want to its box in tensor coordinates; wants without one take all elements.

        Preconditions: boxes lie within their tensors; the caller checks it.
        """
        counts = self.manifest.tensors.chunks[tensors]
        is_part = self._parts(tensors, boxes)
        whole = np.flatnonzero((counts == 1) & ~is_part)
        zeros = np.zeros(len(whole), dtype=np.int64)
        chunk = self.first[tensors[whole]]
        found = [_Found(chunk, whole, zeros, self.geometry.nbytes[chunk], zeros)]
        rest = np.flatnonzero((counts > 1) | (is_part & (counts == 1)))
        if len(rest):
            for wants in self._batches(rest, tensors, counts):
                found += self._find(wants, tensors[wants], boxes)
        return self._united(found)

    def _parts(self, tensors: Ints, boxes: Mapping[int, Box]) -> npt.NDArray[np.bool_]:
        """Return which wants may take less than all elements."""
        is_part = np.zeros(len(tensors), dtype=np.bool_)
        is_part[list(boxes)] = True
        is_part &= self._ndim[tensors] > 0  # a tensor without axes has no part
        return is_part

    def _batches(self, wants: Ints, tensors: Ints, counts: Ints) -> Sequence[Ints]:
        """Return wants in groups of equal numbers of axes and not too many chunks, by tensor."""
        ndim = self._ndim[tensors[wants]]
        order = np.lexsort((tensors[wants], ndim))
        wants, ndim = wants[order], ndim[order]
        window = np.cumsum(counts[wants]) >> _PAIRS_LOG2
        return np.split(wants, np.flatnonzero(np.diff(ndim) | np.diff(window)) + 1)

    def _find(self, wants: Ints, tensors: Ints, boxes: Mapping[int, Box]) -> list[_Found]:
        """Return what wants of tensors with equally many axes need; `tensors` ascends."""
        pairs = self._meeting(wants, tensors, boxes)
        regions, wanted, chunk, want = pairs.regions, pairs.wanted, pairs.chunk, pairs.want
        bits = self.bits[self.geometry.tensor[chunk]]

        found = stretches(regions, wanted)
        low, target = found.first * bits, found.target * bits
        size = found.count * bits
        is_one = found.is_one
        if bits.min(initial=8) < 8:
            # a last byte that is not full holds the last elements of both, and nothing after them
            last = (found.first + found.count == regions.count) & (
                found.target + found.count == wanted.count
            )
            is_one = is_one & ((low | target) & 7 == 0) & ((size & 7 == 0) | last)
        one = np.flatnonzero(is_one & (size > 0))
        pieces = [
            _Found(chunk[one], want[one], low[one] >> 3, (size[one] + 7) >> 3, target[one] >> 3)
        ]
        several = np.flatnonzero(~is_one)
        if len(several):
            chunk, want = chunk[several], want[several]
            chunks, runs = self.manifest.chunks, self.manifest.runs
            offset = chunks.offset[chunk]
            pair, first, stop = byte_ranges(
                regions.take(several),
                wanted.take(several),
                bits=bits[several],
                offset=offset,
                block_log2=runs.block_log2[chunks.run[chunk]],
            )
            none = np.full(len(pair), -1, dtype=np.int64)
            pieces.append(_Found(chunk[pair], want[pair], first - offset[pair], stop - first, none))
        return pieces

    def _meeting(self, wants: Ints, tensors: Ints, boxes: Mapping[int, Box]) -> _Pairs:
        """Return the pairs of a chunk and a want whose boxes share elements."""
        own, local = np.unique(tensors, return_inverse=True)
        shape = np.array([self.manifest.tensors.shapes[t] for t in own.tolist()], dtype=np.int64).T
        chunk, regions = self._regions(own, shape)
        wanted = _wanted(wants, local, shape, boxes)
        region, want = meeting(shape, regions, wanted)
        return _Pairs(chunk[region], wants[want], regions.take(region), wanted.take(want))

    def _regions(self, tensors: Ints, shape: Ints) -> tuple[Ints, Rows]:
        """Return the chunks of tensors with equally many axes, and their regions.

        Args:
            tensors: Rows of the tensors.
            shape: Their shapes, shape `(axes, tensors)`; the regions have its columns as tensors.
        """
        chunks, counts = self.manifest.chunks, self.manifest.tensors.chunks[tensors]
        tensor, chunk = expand(self.first[tensors], counts)
        axes = len(shape)
        values = expand(self._axis0[tensors], counts * axes)[1]

        def column(found: Ints | None) -> Ints | None:
            if found is None:
                return None
            return np.ascontiguousarray(found[values].reshape(-1, axes).T)

        origin, extent = column(chunks.origin), column(chunks.extent)
        return chunk, Rows(
            tensor=tensor,
            origin=np.zeros((axes, len(chunk)), dtype=np.int64) if origin is None else origin,
            extent=shape.take(tensor, axis=1) if extent is None else extent,
            start=np.zeros_like(chunk) if chunks.start is None else chunks.start[chunk],
            count=self.geometry.count[chunk],
        )

    def _united(self, found: Sequence[_Found]) -> tuple[Pieces, Blocks]:
        chunks = self.manifest.chunks
        chunk = np.concatenate([f.chunk for f in found])
        run = chunks.run[chunk]
        offset = chunks.offset[chunk] + np.concatenate([f.low for f in found])
        nbytes = np.concatenate([f.nbytes for f in found])
        pieces = Pieces(
            chunk=chunk,
            want=np.concatenate([f.want for f in found]),
            run=run,
            offset=offset,
            nbytes=nbytes,
            target=np.concatenate([f.target for f in found]),
        )
        return pieces, self.blocks_of(run, offset, offset + nbytes, self.manifest.runs)

    def blocks_of(self, run: Ints, low: Ints, high: Ints, runs: RunTable) -> Blocks:
        """Return the blocks that hold the raw bytes `low` to `high` of the given runs."""
        shift = runs.block_log2[run]
        first = self.run_block0[run] + (low >> shift)
        stop = self.run_block0[run] + ((high - 1) >> shift) + 1
        number = union(first, stop)
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


def _wanted(wants: Ints, tensor: Ints, shape: Ints, boxes: Mapping[int, Box]) -> Rows:
    """Return wants as regions of tensors with the given shapes."""
    origin, extent = np.zeros((len(shape), len(wants)), dtype=np.int64), shape.take(tensor, axis=1)
    given = [(at, boxes[want]) for at, want in enumerate(wants.tolist()) if want in boxes]
    if given:
        rows = [at for at, _ in given]
        origin[:, rows] = np.array([box.origin for _, box in given], dtype=np.int64).T
        extent[:, rows] = np.array([box.shape for _, box in given], dtype=np.int64).T
    return Rows(
        tensor=tensor,
        origin=origin,
        extent=extent,
        start=np.zeros_like(tensor),
        count=np.prod(extent, axis=0, dtype=np.int64),
    )


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
    covered = Region(box=region.box, start=region.start + first, count=len(elements))
    copied = 0
    for part, flat in covered.boxes():
        numel = 1
        taken: list[slice] = []
        given: list[slice] = []
        for a, n, b, m in zip(part.origin, part.shape, wanted.origin, wanted.shape, strict=True):
            low, stop = max(a, b), min(a + n, b + m)
            taken.append(slice(low - a, stop - a))
            given.append(slice(low - b, stop - b))
            numel *= max(stop - low, 0)
        if numel:
            at = flat - covered.start
            source = elements[at : at + part.numel].reshape(part.shape)
            out[tuple(given)] = source[tuple(taken)]
            copied += numel
    return copied
