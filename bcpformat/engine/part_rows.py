"""What one rank wrote, in the rows of a part record (pure)."""

from __future__ import annotations

import numpy as np

from bcpformat.codec.digest import document_digest
from bcpformat.engine.data_files import DataFiles
from bcpformat.engine.gather import Gathered
from bcpformat.engine.part import Part, ReplicaChecks, StoredObjects
from bcpformat.model.manifest import ChunkTable, Ints, PerRankTable, ints
from bcpformat.model.rank_state import ObjectRef, RankState
from bcpformat.model.region import Region
from bcpformat.model.state import EncodedState
from bcpformat.plan.assign import Assignment
from bcpformat.plan.layout import Layout, axis_starts
from bcpformat.plan.pack import Packing


def part_of(
    state: EncodedState,
    gathered: Gathered,
    written: DataFiles,
    checks: ReplicaChecks,
    *,
    rank: int,
    number: int,
    attempt_id: bytes,
) -> Part:
    """Return what a rank says of its share of a save.

    Args:
        state: The rank's state.
        gathered: What it stores of that.
        written: Where that lies.
        checks: Digests of its replicas.
        rank: The rank.
        number: The number under which its per-rank values go.
        attempt_id: 16 bytes.
    """
    packing = written.packing
    first = len(gathered.tensor)
    last = first + len(state.per_rank)
    order, chunks = _chunks(state, gathered, packing)
    return Part(
        rank=rank,
        attempt_id=attempt_id,
        files=written.files,
        runs=written.runs,
        chunk_tensor=gathered.tensor if order is None else gathered.tensor[order],
        chunks=chunks,
        state=RankState(
            root=state.root,
            names=state.names,
            dtypes=[leaf.dtype for leaf in state.leaves],
            shapes=[leaf.shape for leaf in state.leaves],
            aliases=state.aliases,
            extra={
                row: {"segments": [list(segment) for segment in leaf.segments]}
                for row, leaf in enumerate(state.leaves)
                if leaf.segments
            },
            objects=[
                ObjectRef(name=name, nbytes=len(data), digest=document_digest(data))
                for name, data in state.objects
            ],
            per_rank=len(state.per_rank),
        ),
        per_rank=PerRankTable(
            path=np.arange(len(state.per_rank), dtype=np.int64),
            rank=np.full(len(state.per_rank), number, dtype=np.int64),
            run=packing.run[first:last],
            offset=packing.offset[first:last],
            nbytes=gathered.sources.nbytes[first:last],
        ),
        objects=StoredObjects(
            object=ints(gathered.objects), run=packing.run[last:], offset=packing.offset[last:]
        ),
        checks=checks,
        raw_bytes=int(gathered.sources.nbytes.sum()),
    )


def replica_checks(layout: Layout, assignment: Assignment, digests: Ints) -> ReplicaChecks:
    """Return what is to be compared with other ranks.

    Args:
        layout: What the rank holds.
        assignment: Which of it is compared.
        digests: Those of the compared pieces, shape `(checks,)`.
    """
    piece = assignment.check_piece
    ndims = np.fromiter(map(len, layout.shapes), np.int64, len(layout.shapes))
    axes = axis_starts(ndims[layout.tensor])
    origins = [layout.origin[axes[p] : axes[p + 1]] for p in piece.tolist()]
    return ReplicaChecks(
        group=assignment.check_group,
        digest=digests,
        tensor=layout.tensor[piece],
        origin=np.concatenate([ints([]), *origins]),
    )


def _chunks(
    state: EncodedState, gathered: Gathered, packing: Packing
) -> tuple[Ints | None, ChunkTable]:
    """Return the chunk rows by tensor, origin and start, and the order of chunks that makes them.

    Columns whose values are all the default are left out.
    """
    rows = len(gathered.tensor)
    run, offset = packing.run[:rows], packing.offset[:rows]
    regions = gathered.regions
    if regions is None:
        return None, ChunkTable(run=run, offset=offset)
    tensor = gathered.tensor.tolist()

    def key(i: int) -> tuple[int, tuple[int, ...], int]:
        return tensor[i], regions[i].box.origin, regions[i].start

    order = sorted(range(rows), key=key)
    sorted_regions = [regions[i] for i in order]
    shapes = [state.leaves[tensor[i]].shape for i in order]
    return ints(order), ChunkTable(
        run=run[order], offset=offset[order], **_region_columns(sorted_regions, shapes)
    )


def _region_columns(regions: list[Region], shapes: list[tuple[int, ...]]) -> dict[str, Ints]:
    boxes = [r.box for r in regions]
    columns = {
        "origin": ints([o for b in boxes for o in b.origin]),
        "extent": ints([e for b in boxes for e in b.shape]),
        "start": ints([r.start for r in regions]),
        "count": ints([r.count for r in regions]),
    }
    if not columns["origin"].any():
        del columns["origin"]
    if all(b.shape == shape for b, shape in zip(boxes, shapes, strict=True)):
        del columns["extent"]
    if not columns["start"].any():
        del columns["start"]
    if all(r.is_whole for r in regions):
        del columns["count"]
    return columns
