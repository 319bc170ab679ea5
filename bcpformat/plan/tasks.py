"""From needed blocks to contiguous reads, each paired with the pieces it serves (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bcpformat.model.limits import ALIGNMENT_BYTES
from bcpformat.model.manifest import Ints, RunTable
from bcpformat.plan.ranges import expand
from bcpformat.plan.resolve import Blocks, Pieces


@dataclass(frozen=True, slots=True)
class Task:
    """One contiguous read from one data file, and what to do with it.

    Attributes:
        file: Row of the file.
        start: First byte to read, a multiple of 4096.
        stop: End of the bytes needed (the read itself may end at the next multiple of 4096).
        blocks: Range `(first, stop)` of rows of `Blocks`.
        encoded: Whether a block must be decoded.
        raw_nbytes: Bytes of the decoded blocks, each at its place of `TaskPlan.raw_at`.
        pairs: Range `(first, stop)` of rows of the pair columns.
    """

    file: int
    start: int
    stop: int
    blocks: tuple[int, int]
    encoded: bool
    raw_nbytes: int
    pairs: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """All reads, and all pairs of a read and a piece.

    Attributes:
        tasks: The reads, in file order.
        position: First stored byte of each block in its file, shape `(blocks,)`.
        stored: Stored bytes of each block, shape `(blocks,)`.
        raw_at: First byte of each block's raw bytes in the buffer of its task, `(blocks,)`.
        piece: Piece of each pair, shape `(pairs,)`.
        source: First byte in the task's raw buffer, shape `(pairs,)`.
        skip: Bytes of the piece that come before it, shape `(pairs,)`.
        nbytes: Bytes, shape `(pairs,)`.
    """

    tasks: Sequence[Task]
    position: Ints
    stored: Ints
    raw_at: Ints
    piece: Ints
    source: Ints
    skip: Ints
    nbytes: Ints


def cut_tasks(
    pieces: Pieces,
    blocks: Blocks,
    *,
    runs: RunTable,
    position: Ints,
    stored: Ints,
    task_bytes: int,
) -> TaskPlan:
    """Return contiguous reads of about `task_bytes`, each paired with the pieces it serves.

    Args:
        pieces: Pieces whose bytes lie in `blocks`, or none.
        blocks: Needed blocks, ascending.
        runs: The runs.
        position: First stored byte of each block in its file, shape `(blocks,)`.
        stored: Stored bytes of each block, shape `(blocks,)`.
        task_bytes: A read ends after the block that passes this size, stored or raw.
    """
    rows = len(blocks.number)
    if not rows:
        none = blocks.number
        return TaskPlan([], none, none, none, none, none, none, none)
    file = runs.file[blocks.run]
    begin = position & -ALIGNMENT_BYTES
    joined = np.zeros(rows, dtype=np.bool_)
    joined[1:] = (
        (file[1:] == file[:-1])
        & (np.diff(blocks.number) == 1)
        & (position[1:] - (position[:-1] + stored[:-1]) < ALIGNMENT_BYTES)
    )
    heads = np.flatnonzero(~joined)
    sizes = np.diff(np.append(heads, rows))
    window = (position - np.repeat(begin[heads], sizes)) // task_bytes
    padded = (blocks.raw + ALIGNMENT_BYTES - 1) & -ALIGNMENT_BYTES
    ends = np.cumsum(padded)
    raw_window = (ends - padded - np.repeat((ends - padded)[heads], sizes)) // task_bytes
    cut = ~joined
    cut[1:] |= (window[1:] != window[:-1]) | (raw_window[1:] != raw_window[:-1])
    first = np.flatnonzero(cut)
    stop = np.append(first[1:], rows)
    task_of_block = np.cumsum(cut) - 1
    encoded = np.bitwise_or.reduceat(stored != blocks.raw, first)
    in_place = position - np.repeat(begin[first], stop - first)
    base = np.repeat(ends[first] - padded[first], stop - first)
    raw_at = np.where(np.repeat(encoded, stop - first), ends - padded - base, in_place)
    pairs = _pair(pieces, blocks, runs, task_of_block, first, stop, raw_at)
    bounds = np.searchsorted(pairs.task, np.arange(len(first) + 1))
    tasks = [
        Task(
            file=int(file[f]),
            start=int(begin[f]),
            stop=int(position[s - 1] + stored[s - 1]),
            blocks=(f, s),
            encoded=bool(encoded[t]),
            raw_nbytes=int(raw_at[s - 1] + padded[s - 1]),
            pairs=(int(bounds[t]), int(bounds[t + 1])),
        )
        for t, (f, s) in enumerate(zip(first.tolist(), stop.tolist(), strict=True))
    ]
    return TaskPlan(
        tasks=tasks,
        position=position,
        stored=stored,
        raw_at=raw_at,
        piece=pairs.piece,
        source=pairs.source,
        skip=pairs.skip,
        nbytes=pairs.nbytes,
    )


@dataclass(frozen=True, slots=True)
class _Pairs:
    task: Ints
    piece: Ints
    source: Ints
    skip: Ints
    nbytes: Ints


def _pair(
    pieces: Pieces,
    blocks: Blocks,
    runs: RunTable,
    task_of_block: Ints,
    first: Ints,
    stop: Ints,
    raw_at: Ints,
) -> _Pairs:
    """Return for every task the pieces that have bytes in it, by ascending task.

    All blocks of a piece are needed and follow one another, so that it has bytes in every task
    from that of its first block to that of its last.
    """
    head = np.zeros(len(runs), dtype=np.int64)  # number of the first block of each run
    head[blocks.run] = blocks.number - blocks.index
    low = head[pieces.run] + (pieces.offset >> runs.block_log2[pieces.run])
    last = pieces.offset + pieces.nbytes - 1
    high = head[pieces.run] + (last >> runs.block_log2[pieces.run])
    row_low = np.searchsorted(blocks.number, low)
    row_high = np.searchsorted(blocks.number, high)
    task_low, task_high = task_of_block[row_low], task_of_block[row_high]
    piece, task = expand(task_low, task_high - task_low + 1)
    order = np.argsort(task, kind="stable")
    piece, task = piece[order], task[order]
    row = np.maximum(first[task], row_low[piece])
    row_last = np.minimum(stop[task] - 1, row_high[piece])
    log2 = runs.block_log2[blocks.run[row]]
    byte_low = blocks.index[row] << log2
    begin = np.maximum(pieces.offset[piece], byte_low)
    end = np.minimum(last[piece] + 1, (blocks.index[row_last] + 1) << log2)
    return _Pairs(
        task=task,
        piece=piece,
        source=raw_at[row] + begin - byte_low,
        skip=begin - pieces.offset[piece],
        nbytes=end - begin,
    )
