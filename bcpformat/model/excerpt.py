"""Some rows of a manifest, as a manifest of their own (BCP-MAN-012)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bcpformat.model.manifest import ChunkTable, Ints, Manifest, PerRankTable, RunTable, ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A manifest with those chunks, runs and per-rank values only that a read needs.

    Attributes:
        manifest: Files and tensors are all there and keep their rows, or no tensors where none
            is needed.  Chunks, runs, per-rank values and objects are numbered anew, and the number
            of chunks of each tensor is that of those which are there.  The state is left out.
        chunks: Row in the whole manifest of each chunk, ascending; None: all are there.
        runs: Likewise of each run.
        per_rank: Likewise of each per-rank value.
    """

    manifest: Manifest
    chunks: Ints | None = None
    runs: Ints | None = None
    per_rank: Ints | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all rows are there, so that rules about what is absent can be checked."""
        return self.chunks is None and self.runs is None and self.per_rank is None

    def chunk(self, row: int) -> int:
        """Return the row of a chunk in the whole manifest."""
        return row if self.chunks is None else int(self.chunks[row])

    def run(self, row: int) -> int:
        """Return the row of a run in the whole manifest."""
        return row if self.runs is None else int(self.runs[row])

    def rank_value(self, row: int) -> int:
        """Return the row of a per-rank value in the whole manifest."""
        return row if self.per_rank is None else int(self.per_rank[row])


def take_runs(runs: RunTable, rows: Ints) -> RunTable:
    """Return some runs, copied."""
    return RunTable(
        file=runs.file[rows],
        position=runs.position[rows],
        raw=runs.raw[rows],
        stored=runs.stored[rows],
        codec=runs.codec[rows],
        item=runs.item[rows],
        block_log2=runs.block_log2[rows],
        block0=runs.block0[rows],
    )


def take_per_rank(values: PerRankTable, rows: Ints) -> PerRankTable:
    """Return some per-rank values, copied."""
    return PerRankTable(
        path=values.path[rows],
        rank=values.rank[rows],
        run=values.run[rows],
        offset=values.offset[rows],
        nbytes=values.nbytes[rows],
    )


def take_chunks(chunks: ChunkTable, rows: Ints, ndim: Ints) -> ChunkTable:
    """Return some chunks, copied.

    Args:
        chunks: Any chunks.
        rows: Which to take, ascending.
        ndim: Axes of each of `chunks`.
    """
    taken = np.zeros(len(chunks), dtype=np.bool_)
    taken[rows] = True
    axes = np.flatnonzero(np.repeat(taken, ndim))

    def column(values: Ints | None, where: Ints) -> Ints | None:
        return None if values is None else values[where]

    return ChunkTable(
        run=chunks.run[rows],
        offset=chunks.offset[rows],
        origin=column(chunks.origin, axes),
        extent=column(chunks.extent, axes),
        start=column(chunks.start, rows),
        count=column(chunks.count, rows),
    )


def empty_runs() -> RunTable:
    """Return a table without rows."""
    none = ints([])
    return RunTable(
        file=none,
        position=none,
        raw=none,
        stored=none,
        codec=none,
        item=none,
        block_log2=none,
        block0=none,
    )
