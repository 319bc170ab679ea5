"""From the leaves of a state to the chunks that this process stores, and where their bytes are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from types import EllipsisType

import numpy as np
import numpy.typing as npt

from bcpformat.engine.encode import Sources
from bcpformat.engine.memory import address_of
from bcpformat.model.dtypes import DTYPES
from bcpformat.model.leaves import TensorLeaf
from bcpformat.model.manifest import Ints, ints
from bcpformat.model.region import Box, Region
from bcpformat.model.state import EncodedState
from bcpformat.plan.assign import Assignment
from bcpformat.plan.tiles import Tile, tile_boxes, tile_grid
from bcpformat.wire import encode_document


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a process stores: chunks, then per-rank values, then objects.

    Attributes:
        sources: Where their bytes are.
        item: Item size of each, in bytes.
        tensor: Row of each chunk's tensor, ascending, shape `(chunks,)`.
        regions: Region of each chunk; None if all chunks are whole tensors.
        block_log2: Base-2 logarithm of the block size that each piece asks for, 0 where it does
            not; None if none does.
        objects: Rows of the state's objects that are stored here.
    """

    sources: Sources
    item: Ints
    tensor: Ints
    regions: Sequence[Region] | None
    block_log2: Ints | None
    objects: Sequence[int]


def gather(state: EncodedState, assignment: Assignment | None, tile: Tile) -> Gathered:
    """Find the bytes of everything this process stores.

    Nothing is copied that lies contiguous in host memory.

    Args:
        state: The state.
        assignment: Which parts of its pieces it stores; None: all of all.
        tile: How chunks are cut for reads of columns.
    """
    found = _Pieces()
    shares = None if assignment is None else _shares(assignment)
    piece = 0
    for row, leaf in enumerate(state.leaves):
        regions = leaf.regions
        if regions is None and shares is None and not tile:
            found.add_whole(row, leaf)
            continue
        held = regions if regions is not None else _whole(leaf)
        parts = [
            (k, part)
            for k, region in enumerate(held)
            for part in ([(0, region.count)] if shares is None else shares.get(piece + k, ()))
        ]
        piece += len(held)
        is_whole = regions is None and not tile
        if is_whole and parts == [(k, (0, region.count)) for k, region in enumerate(held)]:
            found.add_whole(row, leaf)
        elif parts:
            arrays = leaf.adapter.pieces(leaf)
            for k, part in parts:
                found.add_part(row, leaf, held[k], arrays[k], part, tile)
    for _, node in state.per_rank:
        found.add_bytes(encode_document(node))
    objects = [i for i in range(len(state.objects)) if shares is None or piece + i in shares]
    for i in objects:
        found.add_bytes(state.objects[i][1])
    return found.finish(state, objects)


def held_pieces(state: EncodedState, wanted: Ints) -> Sources:
    """Return some of the pieces that this process holds, whether it stores them or not.

    Args:
        state: The state.
        wanted: Numbers of pieces, ascending: those of all tensors in order.
    """
    found = _Pieces()
    bounds = np.cumsum([0, *(_held(leaf) for leaf in state.leaves)])
    rows = np.searchsorted(bounds, wanted, side="right") - 1
    for row in np.unique(rows).tolist():
        leaf = state.leaves[row]
        if leaf.regions is None:
            found.add_whole(row, leaf)
            continue
        arrays = leaf.adapter.pieces(leaf)
        for k in (wanted[rows == row] - bounds[row]).tolist():
            region = leaf.regions[k]
            found.add_part(row, leaf, region, arrays[k], (0, region.count), tile=False)
    return found.finish(state, []).sources


def _held(leaf: TensorLeaf) -> int:
    return len(leaf.regions) if leaf.regions is not None else int(0 not in leaf.shape)


def _whole(leaf: TensorLeaf) -> tuple[Region, ...]:
    region = Region.whole(Box.whole(leaf.shape))
    return (region,) if region.count else ()


def _shares(assignment: Assignment) -> dict[int, list[tuple[int, int]]]:
    shares: dict[int, list[tuple[int, int]]] = {}
    columns = (assignment.piece, assignment.low, assignment.high)
    for piece, low, high in zip(*(c.tolist() for c in columns), strict=True):
        shares.setdefault(piece, []).append((low, high))
    return shares


@dataclass(slots=True)
class _Pieces:
    """Columns as they grow."""

    address: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    item: list[int] = field(default_factory=list)
    tensor: list[int] = field(default_factory=list)
    strided: dict[int, npt.NDArray[np.generic]] = field(default_factory=dict)
    owners: list[object] = field(default_factory=list)
    regions: dict[int, Region] = field(default_factory=dict)
    block_log2: dict[int, int] = field(default_factory=dict)

    def add_whole(self, row: int, leaf: TensorLeaf) -> None:
        """Add a whole tensor as one chunk, if it has elements."""
        dtype = DTYPES[leaf.dtype]
        nbytes = (prod(leaf.shape) * dtype.bits + 7) // 8
        if not nbytes:
            return
        place = leaf.address
        if place is None:
            place = self._place(leaf.adapter.array(leaf))
        self._add(row, place, nbytes, dtype.item)

    def add_part(
        self,
        row: int,
        leaf: TensorLeaf,
        region: Region,
        array: npt.NDArray[np.generic],
        part: tuple[int, int],
        tile: Tile,
    ) -> None:
        """Add a part of a piece, given in the piece's own elements."""
        dtype = DTYPES[leaf.dtype]
        for taken, elements, block_log2 in _cut(region, array, part, tile, bits=dtype.bits):
            self.regions[len(self.tensor)] = taken
            if block_log2:
                self.block_log2[len(self.tensor)] = block_log2
            self._add(row, self._place(elements), dtype.nbytes_of(taken.count), dtype.item)

    def add_bytes(self, data: bytes) -> None:
        """Add a per-rank value or an object."""
        array = np.frombuffer(data, dtype=np.uint8)
        self.address.append(self._place(array))
        self.nbytes.append(len(array))
        self.item.append(1)

    def _add(self, row: int, place: int, nbytes: int, item: int) -> None:
        self.tensor.append(row)
        self.address.append(place)
        self.nbytes.append(nbytes)
        self.item.append(item)

    def _place(self, array: npt.NDArray[np.generic]) -> int:
        """Return the address of the next piece's elements, 0 if they are strided."""
        self.owners.append(array)
        if array.flags.c_contiguous:
            return address_of(array)
        self.strided[len(self.address)] = array
        return 0

    def finish(self, state: EncodedState, objects: Sequence[int]) -> Gathered:
        """Return the columns."""
        self.owners.append(state)
        regions: list[Region] | None = None
        if self.regions:
            shapes = [leaf.shape for leaf in state.leaves]
            regions = [
                self.regions.get(i) or Region.whole(Box.whole(shapes[row]))
                for i, row in enumerate(self.tensor)
            ]
        sources = Sources(
            address=ints(self.address),
            nbytes=ints(self.nbytes),
            strided=self.strided,
            owners=self.owners,
        )
        return Gathered(
            sources=sources,
            item=ints(self.item),
            tensor=ints(self.tensor),
            regions=regions,
            block_log2=self._asked_blocks(),
            objects=objects,
        )

    def _asked_blocks(self) -> Ints | None:
        if not self.block_log2:
            return None
        asked = np.zeros(len(self.address), dtype=np.int64)
        asked[list(self.block_log2)] = list(self.block_log2.values())
        return asked


def _cut(
    region: Region, array: npt.NDArray[np.generic], part: tuple[int, int], tile: Tile, *, bits: int
) -> Iterator[tuple[Region, npt.NDArray[np.generic], int]]:
    """Yield the chunks of a part of a piece, their elements, and the block size they ask for."""
    low, high = part
    if bits < 8:  # packed; never divided
        yield region, array, 0
        return
    if not region.is_whole:
        start = region.start + low
        yield Region(box=region.box, start=start, count=high - low), array[low:high], 0
        return
    box = region.box
    axis = next((a for a, extent in enumerate(box.shape) if extent != 1), None)
    if axis is not None and high - low < region.count:
        unit = region.count // box.shape[axis]
        first, rows = low // unit, (high - low) // unit
        origin = (*box.origin[:axis], box.origin[axis] + first, *box.origin[axis + 1 :])
        box = Box(origin=origin, shape=(*box.shape[:axis], rows, *box.shape[axis + 1 :]))
        array = array[(slice(None),) * axis + (slice(first, first + rows),)]
    grid = tile_grid(box.shape, tile, bits=bits)
    for inner in tile_boxes(box, tile, bits=bits):
        # with "...", as an index of no axes alone would copy
        index: tuple[slice | EllipsisType, ...] = (
            *(
                slice(a - b, a - b + n)
                for a, b, n in zip(inner.origin, box.origin, inner.shape, strict=True)
            ),
            ...,
        )
        yield Region.whole(inner), array[index], 0 if grid is None else grid.block_log2
