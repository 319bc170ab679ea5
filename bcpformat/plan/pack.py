"""Where pieces of raw bytes go: runs, blocks and files (spec 9, and its note on the writer).

A *piece* is a chunk, a per-rank value or an object: contiguous raw bytes with an item size.  A
piece of 1 MiB or more gets a run of its own; smaller ones are packed by item into runs that come
after all own runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bcpformat.model.limits import ALIGNMENT_BYTES, CHUNK_ALIGNMENT_BYTES
from bcpformat.model.manifest import Ints

OWN_RUN_BYTES = 2**20
PACKED_RUN_BYTES = 2**26
LARGE_RUN_BYTES = 2**24
SMALL_BLOCK_LOG2 = 18
LARGE_BLOCK_LOG2 = 20
FILE_BYTES = 2**34


@dataclass(frozen=True, slots=True)
class Packing:
    """The place of every piece.

    Attributes:
        run: Row of each piece's run, shape `(pieces,)`.
        offset: First byte of each piece in the raw bytes of its run, shape `(pieces,)`.
        run_raw: Raw bytes of each run, shape `(runs,)`.
        run_item: Item size of each run in bytes, shape `(runs,)`.
        run_block_log2: Base-2 logarithm of each run's block size, shape `(runs,)`.
        run_file: File of each run, ascending from 0, shape `(runs,)`.
    """

    run: Ints
    offset: Ints
    run_raw: Ints
    run_item: Ints
    run_block_log2: Ints
    run_file: Ints


def aligned(value: int, alignment: int) -> int:
    """Return `value` rounded up to a multiple of `alignment`, a power of two."""
    return (value + alignment - 1) & -alignment


def pack(nbytes: Ints, item: Ints, *, block_log2: Ints | None = None) -> Packing:
    """Return the place of every piece.

    Args:
        nbytes: Raw bytes of each piece, at least 1, shape `(pieces,)`.
        item: Item size of each piece, shape `(pieces,)`.
        block_log2: Base-2 logarithm of the block size that each piece asks for, 0 where it does
            not, shape `(pieces,)`; a piece that asks has a run of its own, whatever its size.
    """
    asked = np.zeros(len(nbytes), dtype=np.int64) if block_log2 is None else block_log2
    is_own = (nbytes >= OWN_RUN_BYTES) | (asked > 0)
    own = np.flatnonzero(is_own)
    run = np.zeros(len(nbytes), dtype=np.int64)
    offset = np.zeros(len(nbytes), dtype=np.int64)
    run[own] = np.arange(len(own))
    run_raw: list[int] = nbytes[own].tolist()
    run_item: list[int] = item[own].tolist()
    for size in (8, 4, 2, 1):
        small = np.flatnonzero(~is_own & (item == size))
        padded = (nbytes[small] + CHUNK_ALIGNMENT_BYTES - 1) & -CHUNK_ALIGNMENT_BYTES
        ends = np.cumsum(padded)
        first = 0
        while first < len(small):
            base = int(ends[first] - padded[first])
            last = int(np.searchsorted(ends, base + PACKED_RUN_BYTES, side="right"))
            rows = small[first:last]
            run[rows] = len(run_raw)
            offset[rows] = ends[first:last] - padded[first:last] - base
            run_raw.append(int(offset[rows[-1]] + nbytes[rows[-1]]))
            run_item.append(size)
            first = last
    raw = np.array(run_raw, dtype=np.int64)
    run_block_log2 = np.where(raw < LARGE_RUN_BYTES, SMALL_BLOCK_LOG2, LARGE_BLOCK_LOG2)
    run_block_log2[: len(own)] = np.where(asked > 0, asked, run_block_log2[run])[own]
    return Packing(
        run=run,
        offset=offset,
        run_raw=raw,
        run_item=np.array(run_item, dtype=np.int64),
        run_block_log2=run_block_log2,
        run_file=_files(raw),
    )


def _files(raw: Ints) -> Ints:
    """Return the file of each run: a file closes before it would pass 16 GiB."""
    padded = (raw + ALIGNMENT_BYTES - 1) & -ALIGNMENT_BYTES
    ends = np.cumsum(padded)
    files = np.zeros(len(raw), dtype=np.int64)
    first, number = 0, 0
    while first < len(raw):
        base = int(ends[first] - padded[first])
        last = int(np.searchsorted(ends, base + FILE_BYTES - ALIGNMENT_BYTES, side="right"))
        last = max(last, first + 1)
        files[first:last] = number
        first, number = last, number + 1
    return files
