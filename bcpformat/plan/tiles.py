"""Chunks cut for reads of columns (``WriteOptions(tile=...)``, pure).

The rows of a whole chunk lie one after the other, so whoever wants some columns reads all of it.
Tiles are chunks of fewer columns.  Two things decide how much a read takes that nobody wants: to
its left and right the rest of a tile, above and below it the rest of a block of every tile.  So
few wide tiles suit reads of rows, many narrow ones suit reads of columns, and small blocks suit
both, but each block costs a digest and a call.

With ``tile=True`` a tile has all rows.  Of the widths and block sizes with which each of 2 to 8
ranks that share the rows or the columns reads at most `GOAL` times what it wants, those of the
largest blocks are taken; matrices of 32 MiB and more with rows of 3 KiB and more have some.  This
counts on a run of its own for every tile, so that a block begins with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bcpformat.model.manifest import Ints
from bcpformat.model.region import Box

Tile: TypeAlias = "bool | tuple[int, ...]"
"""Whether to cut tiles; or their extents on the last axes, in elements, whole on the others."""

Floats: TypeAlias = npt.NDArray[np.float64]

GOAL = 1.25
SHARERS = (2, 3, 4, 5, 6, 7, 8)
MAX_TILES = 64
"""Of a tensor, with ``tile=True``."""

TILED_BYTES = 2**20
"""Smaller pieces are not cut."""
TILE_BYTES = 2**18
"""The least bytes of a tile, but for the last ones on an axis."""
ROW_BYTES = 64
"""The least bytes of a row of a tile: copying narrower ones out of a tensor is slow."""

BLOCK_LOG2 = (18, 17, 16, 15, 14)


@dataclass(frozen=True, slots=True, kw_only=True)
class TileGrid:
    """How a box is cut into tiles.

    Attributes:
        extent: Extent of a tile on each axis; the last tile on an axis may have less.
        block_log2: Base-2 logarithm of the block size of the runs that hold the tiles.

    Example:
        >>> tile_grid((8192, 8192), (2048, 1024), bits=32)
        TileGrid(extent=(2048, 1024), block_log2=18)
    """

    extent: tuple[int, ...]
    block_log2: int


def tile_grid(shape: tuple[int, ...], tile: Tile, *, bits: int) -> TileGrid | None:
    """Return how a box is cut, None if it stays whole.

    A box below `TILED_BYTES`, with fewer than two axes of extent above 1, or of a sub-byte type
    stays whole.

    Args:
        shape: Extents of the box, at least 1.
        tile: True chooses the tiles.  A tuple is cut to the axes there are, the last of it being
            that of the last axis; a tile below `TILE_BYTES` grows along the first axes.
        bits: Bits of an element.
    """
    nbytes = prod(shape) * bits // 8
    if not tile or bits < 8 or nbytes < TILED_BYTES or sum(n > 1 for n in shape) < 2:
        return None
    if isinstance(tile, bool):
        return _columns(shape, bits // 8)
    wanted = tile[-len(shape) :]
    extent = [*shape[: len(shape) - len(wanted)]]
    extent += [min(n, whole) for n, whole in zip(wanted, shape[len(extent) :], strict=True)]
    for axis, whole in enumerate(shape):
        times = -(-TILE_BYTES // (prod(extent) * bits // 8))
        extent[axis] = min(extent[axis] * times, whole)
    if tuple(extent) == shape:
        return None
    fits = [log2 for log2 in BLOCK_LOG2 if 4 << log2 <= prod(extent) * bits // 8]
    return TileGrid(extent=tuple(extent), block_log2=fits[0])


def tile_boxes(box: Box, tile: Tile, *, bits: int) -> list[Box]:
    """Return the tiles of a box in the order in which they are stored; the box if it stays whole.

    Tiles of the same columns follow one another, row after row, so that a read of columns is one
    stretch of the file.

    Args:
        box: In tensor coordinates.
        tile: As in `tile_grid`.
        bits: Bits of an element.
    """
    grid = tile_grid(box.shape, tile, bits=bits)
    if grid is None:
        return [box]
    order = [*range(box.ndim - 2), box.ndim - 1, box.ndim - 2]
    boxes = []
    for begins in product(*(range(0, box.shape[axis], grid.extent[axis]) for axis in order)):
        begin = dict(zip(order, begins, strict=True))
        origin = tuple(box.origin[axis] + begin[axis] for axis in range(box.ndim))
        shape = tuple(
            min(grid.extent[axis], box.shape[axis] - begin[axis]) for axis in range(box.ndim)
        )
        boxes.append(Box(origin=origin, shape=shape))
    return boxes


# ---- tile=True ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrix:
    """A box as matrices of equal shape, one after the other.

    Attributes:
        slabs: Matrices.
        rows: Rows of each.
        columns: Columns of each.
        size: Bytes of an entry.
    """

    slabs: int
    rows: int
    columns: int
    size: int


@lru_cache(maxsize=4096)
def _columns(shape: tuple[int, ...], size: int) -> TileGrid | None:
    """Return tiles that have all rows of a box and some of its columns; None if none would help.

    The columns are the last axis and the rows the one before it.  If that makes matrices below
    `TILED_BYTES`, as for kernels of convolutions, they are the first axes.  Axes of extent 1 are
    passed over.
    """
    axes = [axis for axis, extent in enumerate(shape) if extent > 1]
    row, column = axes[-2:]
    if prod(shape[row:]) * size < TILED_BYTES:
        row, column = axes[:2]
    matrix = _Matrix(
        slabs=prod(shape[:row]),
        rows=shape[row],
        columns=shape[column],
        size=prod(shape[column + 1 :]) * size,
    )
    widths = _widths(matrix)
    if not len(widths):
        return None
    for log2 in BLOCK_LOG2:
        worst, mean = _amplification(matrix, widths, 1 << log2)
        good = worst <= GOAL
        if good.any():
            mean = np.where(good, mean, np.inf)
            break
    # Small matrices have no good width; the smallest blocks serve them best.
    width = int(widths[np.argmin(mean)])
    extent = (*shape[:column], width, *shape[column + 1 :])
    return TileGrid(extent=extent, block_log2=log2)


def _widths(matrix: _Matrix) -> Ints:
    """Return the widths that tiles may have, in columns, descending."""
    tiles = np.arange(2, MAX_TILES + 1)
    widths = np.unique(-(-matrix.columns // tiles))[::-1]
    row_bytes = widths * matrix.size
    height = matrix.slabs * matrix.rows
    return widths[(row_bytes >= ROW_BYTES) & (height * row_bytes >= TILE_BYTES)]


def _amplification(matrix: _Matrix, widths: Ints, block: int) -> tuple[Floats, Floats]:
    """Return how many times the bytes they want are read by sharers of columns and of rows.

    Args:
        matrix: The matrices.
        widths: Widths of tiles, shape `(widths,)`.
        block: Bytes of a block.

    Returns:
        The worst and the mean over all sharers, shape `(widths,)` each.
    """
    width = widths[:, np.newaxis]
    first, stop = _shares(matrix.columns)
    left, right = first // width * width, np.minimum(-(-stop // width) * width, matrix.columns)
    by_columns = (right - left) / (stop - first)
    first, stop = _shares(matrix.rows)
    tiles, rest = np.divmod(matrix.columns, width)
    read = tiles * _stretch(matrix, width, first, stop, block)
    read = read + _stretch(matrix, rest, first, stop, block)
    by_rows = read / ((stop - first) * matrix.columns * matrix.size)
    both = np.concatenate((by_columns, by_rows), axis=1)
    return both.max(axis=1), both.mean(axis=1)


def _shares(extent: int) -> tuple[Ints, Ints]:
    """Return first and last positions of what each sharer of an axis wants, for all `SHARERS`."""
    parts = [
        (low, min(low + step, extent))
        for sharers in SHARERS
        for step in [-(-extent // sharers)]
        for low in range(0, extent, step)
    ]
    first, stop = np.array(parts, dtype=np.int64).T
    return first, stop


def _stretch(matrix: _Matrix, width: Ints, first: Ints, stop: Ints, block: int) -> Ints:
    """Return the bytes of blocks that hold some rows of a tile, for each of its matrices."""
    row = width * matrix.size
    low, high = first * row, stop * row
    if matrix.slabs > 1:  # blocks begin anywhere in most matrices
        worst: Ints = np.where(row > 0, (np.maximum(high - low - 2, 0) // block + 2) * block, 0)
        return worst
    end: Ints = np.minimum(-(-high // block) * block, matrix.rows * row)
    return end - low // block * block
