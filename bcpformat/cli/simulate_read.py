"""The read of a simulated checkpoint by the ranks of another mesh: what each needs of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median, median_high

import numpy as np

from bcpformat.cli.bench_report import Say
from bcpformat.cli.simulate_mesh import Mesh, spread_ranks
from bcpformat.cli.simulate_state import Job
from bcpformat.engine.collector import paused_collector
from bcpformat.engine.partial import ManifestReader
from bcpformat.engine.read import READ_BYTES
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.model.manifest import MANIFEST_KEY, Ints, TensorTable, ints
from bcpformat.model.region import Box
from bcpformat.model.state import EncodedState
from bcpformat.plan.layout import layout_of
from bcpformat.plan.resolve import ChunkIndex
from bcpformat.plan.tasks import cut_tasks
from bcpformat.storage import MemoryStore, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReading:
    """What one rank needs to read its state.

    Attributes:
        plan_seconds: From opening the manifest to the list of reads.
        manifest_bytes: Bytes of the manifest that it fetched.
        manifest_requests: Requests for them.
        wanted_bytes: Raw bytes of the tensors that it holds.
        block_bytes: Raw bytes of the blocks that have them.
        files: Data files that it reads from.
        reads: Contiguous reads of them.
    """

    plan_seconds: float
    manifest_bytes: int
    manifest_requests: int
    wanted_bytes: int
    block_bytes: int
    files: int
    reads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshReading:
    """What some ranks of a mesh need.

    Attributes:
        mesh: The mesh.
        ranks: One entry for each of them.
    """

    mesh: Mesh
    ranks: tuple[RankReading, ...]

    @property
    def plan_seconds(self) -> float:
        """The median of all."""
        return median(rank.plan_seconds for rank in self.ranks)

    @property
    def manifest_bytes(self) -> int:
        """The median of all, one that a rank has."""
        return median_high(rank.manifest_bytes for rank in self.ranks)

    @property
    def worst_manifest_bytes(self) -> int:
        """The most of all."""
        return max(rank.manifest_bytes for rank in self.ranks)

    @property
    def amplification(self) -> float:
        """Bytes of blocks over wanted bytes, of all together."""
        wanted_bytes = sum(rank.wanted_bytes for rank in self.ranks)
        return sum(rank.block_bytes for rank in self.ranks) / wanted_bytes

    @property
    def worst_amplification(self) -> float:
        """Bytes of blocks over wanted bytes, of the rank where it is most."""
        return max(rank.block_bytes / rank.wanted_bytes for rank in self.ranks)

    def document(self) -> dict[str, object]:
        """Return everything about it for programs; the most of all ranks where nothing is said."""
        return {
            "mesh": str(self.mesh),
            "ranks": len(self.mesh),
            "ranks_that_read": len(self.ranks),
            "read_plan_seconds": self.plan_seconds,
            "read_plan_seconds_worst_rank": max(rank.plan_seconds for rank in self.ranks),
            "manifest_read_bytes_per_rank": self.manifest_bytes,
            "manifest_read_bytes_worst_rank": self.worst_manifest_bytes,
            "manifest_requests": max(rank.manifest_requests for rank in self.ranks),
            "files": max(rank.files for rank in self.ranks),
            "reads": max(rank.reads for rank in self.ranks),
            "wanted_bytes": max(rank.wanted_bytes for rank in self.ranks),
            "read_amplification": self.amplification,
            "read_amplification_worst_rank": self.worst_amplification,
        }


def read(document: bytes, job: Job, *, ranks: int, say: Say) -> MeshReading:
    """Return what some ranks of a job need to read their states from a checkpoint.

    Args:
        document: The manifest of the checkpoint.
        job: The job that reads.
        ranks: How many of its ranks read; they are spread over all.
        say: Shows what is going on.
    """
    store = MemoryStore()
    store.put_if_absent(MANIFEST_KEY, document)
    found = []
    for rank in spread_ranks(job.mesh, ranks):
        say(f"rank {rank} of {job.mesh} plans to read")
        with paused_collector():
            found.append(_reading(store, job.encoded(rank), rank))
    return MeshReading(mesh=job.mesh, ranks=tuple(found))


def _reading(store: Store, state: EncodedState, rank: int) -> RankReading:
    start = time.process_time()
    with ManifestReader(store, limits=DEFAULT_LIMITS) as reader:
        tensors, boxes = _wants(reader.tensors, state)
        manifest = reader.excerpt(tensors, boxes).manifest
        _ = reader.state
        own = np.flatnonzero(reader.per_rank.rank == rank)
        reader.values(per_rank=own, objects=ints([]))
    pieces, blocks = ChunkIndex(manifest).resolve(tensors, boxes)
    runs = manifest.runs
    position = runs.position[blocks.run] + (blocks.index << runs.block_log2[blocks.run])
    tasks = cut_tasks(
        pieces, blocks, runs=runs, position=position, stored=blocks.raw, task_bytes=READ_BYTES
    ).tasks
    return RankReading(
        plan_seconds=time.process_time() - start,
        manifest_bytes=reader.read_bytes,
        manifest_requests=reader.requests,
        wanted_bytes=int(layout_of(state).nbytes.sum()),
        block_bytes=int(blocks.raw.sum()),
        files=len({task.file for task in tasks}),
        reads=len(tasks),
    )


def _wants(table: TensorTable, state: EncodedState) -> tuple[Ints, dict[int, Box]]:
    """Return the row of each wanted tensor, and the box of each that is wanted in part."""
    row_of = {name: row for row, name in enumerate(table.names)}
    rows: list[int] = []
    boxes: dict[int, Box] = {}
    for name, leaf in zip(state.names, state.leaves, strict=True):
        held = [None] if leaf.regions is None else [region.box for region in leaf.regions]
        for box in held:
            if box is not None and box.shape != leaf.shape:
                boxes[len(rows)] = box
            rows.append(row_of[name])
    return ints(rows), boxes
