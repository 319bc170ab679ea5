"""What lies where in the raw bytes of runs: chunks, per-rank values and objects, by offset."""

from __future__ import annotations

import numpy as np

from bcpformat.model.geometry import ChunkGeometry
from bcpformat.model.manifest import Ints, Manifest


class RunContents:
    """Everything that has bytes in runs, ordered by run and offset; columns of equal length.

    Attributes:
        run: Row of the run.
        start: First byte in the raw bytes of the run.
        stop: End of it.
        item: Which: the row of a chunk; after all of those, of a per-rank value; then of an object.
    """

    def __init__(self, manifest: Manifest, geometry: ChunkGeometry) -> None:
        self._manifest = manifest
        self._tensor = geometry.tensor
        chunks, ranks = manifest.chunks, manifest.per_rank
        objects = np.array(
            [(o.run, o.offset_bytes, o.nbytes) for o in manifest.objects], dtype=np.int64
        ).reshape(-1, 3)
        run = np.concatenate((chunks.run, ranks.run, objects[:, 0]))
        start = np.concatenate((chunks.offset, ranks.offset, objects[:, 1]))
        nbytes = np.concatenate((geometry.nbytes, ranks.nbytes, objects[:, 2]))
        self.item: Ints = np.lexsort((start, run))
        self.run: Ints = run[self.item]
        self.start: Ints = start[self.item]
        self.stop: Ints = self.start + nbytes[self.item]

    def rows(self, run: int) -> slice:
        """Return the rows of one run."""
        first, stop = np.searchsorted(self.run, (run, run + 1)).tolist()
        return slice(first, stop)

    def names(self, run: int, low: int, high: int) -> list[str]:
        """Return the names of what has bytes in the raw bytes `low` to `high` of a run."""
        rows = self.rows(run)
        # contents do not overlap, so their ends ascend as their starts do
        first = rows.start + int(np.searchsorted(self.stop[rows], low, side="right"))
        stop = rows.start + int(np.searchsorted(self.start[rows], high))
        return list(dict.fromkeys(map(self._name, self.item[first:stop].tolist())))

    def _name(self, item: int) -> str:
        manifest = self._manifest
        if item < len(manifest.chunks):
            return manifest.tensors.names[int(self._tensor[item])]
        item -= len(manifest.chunks)
        if item < len(manifest.per_rank):
            ranks = manifest.per_rank
            return f"per-rank value {int(ranks.path[item])} of rank {int(ranks.rank[item])}"
        return manifest.objects[item - len(manifest.per_rank)].name
