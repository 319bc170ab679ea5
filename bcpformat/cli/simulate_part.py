"""Part records of simulated ranks: what a rank says it wrote, without having written it.

Pieces are gathered and packed as a save does.  Only the last step is made here: where raw runs
lie in their files is known before they are written.  Digests of block tables are made up.
"""

from __future__ import annotations

import numpy as np

from bcpformat.codec.block import Codec
from bcpformat.codec.digest import document_digest
from bcpformat.engine.gather import Gathered, gather, held_pieces
from bcpformat.engine.part import Part, ReplicaChecks, StoredObjects
from bcpformat.engine.replicas import replica_digests
from bcpformat.model.limits import ALIGNMENT_BYTES
from bcpformat.model.manifest import ChunkTable, FileRow, Ints, PerRankTable, RunTable, ints
from bcpformat.model.rank_state import RankState
from bcpformat.model.region import Box
from bcpformat.model.state import EncodedState
from bcpformat.plan.assign import Assignment
from bcpformat.plan.layout import Layout
from bcpformat.plan.pack import Packing, pack
from bcpformat.plan.tiles import Tile

ATTEMPT_ID = bytes(range(16))
"""That of every simulated save."""


def part_of(
    rank: int, state: EncodedState, layout: Layout, assignment: Assignment, *, tile: Tile
) -> Part:
    """Return what a rank would have written.

    Args:
        rank: The rank.
        state: Its state, without objects; pieces are boxes, and replicas that are compared have
            no axes.
        layout: That of the state.
        assignment: What it stores, and which replicas it digests.
        tile: How chunks are cut for reads of columns.
    """
    gathered = gather(state, assignment, tile)
    nbytes = gathered.sources.nbytes
    packing = pack(nbytes, gathered.item, block_log2=gathered.block_log2)
    replicas = held_pieces(state, assignment.check_piece)
    order, chunks = _chunks(state, gathered, packing)
    files, runs = _data_files(rank, packing)
    values = slice(len(order), len(order) + len(state.per_rank))
    return Part(
        rank=rank,
        attempt_id=ATTEMPT_ID,
        state=_said(state),
        files=files,
        runs=runs,
        chunk_tensor=gathered.tensor[order],
        chunks=chunks,
        per_rank=PerRankTable(
            path=np.arange(len(state.per_rank), dtype=np.int64),
            rank=np.full(len(state.per_rank), rank, dtype=np.int64),
            run=packing.run[values],
            offset=packing.offset[values],
            nbytes=nbytes[values],
        ),
        objects=StoredObjects(),
        checks=ReplicaChecks(
            group=assignment.check_group,
            digest=replica_digests(replicas, seed=ATTEMPT_ID, replicas="sample"),
            tensor=layout.tensor[assignment.check_piece],
        ),
        raw_bytes=int(nbytes.sum()),
    )


def _said(state: EncodedState) -> RankState:
    return RankState(
        root=state.root,
        names=state.names,
        dtypes=[leaf.dtype for leaf in state.leaves],
        shapes=[leaf.shape for leaf in state.leaves],
        aliases=state.aliases,
        per_rank=len(state.per_rank),
    )


def _chunks(state: EncodedState, gathered: Gathered, packing: Packing) -> tuple[Ints, ChunkTable]:
    """Return the order of the chunks by tensor and origin, and their rows in it."""
    tensor = gathered.tensor.tolist()
    if gathered.regions is None:
        boxes = [Box.whole(state.leaves[row].shape) for row in tensor]
    else:
        boxes = [region.box for region in gathered.regions]
    order = sorted(range(len(tensor)), key=lambda i: (tensor[i], boxes[i].origin))
    rows = ints(order)
    return rows, ChunkTable(
        run=packing.run[rows],
        offset=packing.offset[rows],
        origin=ints([n for i in order for n in boxes[i].origin]),
        extent=ints([n for i in order for n in boxes[i].shape]),
    )


def _data_files(rank: int, packing: Packing) -> tuple[list[FileRow], RunTable]:
    """Return files of raw runs: each begins at a multiple of 4096, the block table after them."""
    raw, log2, file = packing.run_raw, packing.run_block_log2, packing.run_file
    padded = (raw + ALIGNMENT_BYTES - 1) & -ALIGNMENT_BYTES
    blocks = ((raw - 1) >> log2) + 1
    bounds = np.searchsorted(file, np.arange(int(file.max(initial=-1)) + 2))
    heads, stops = bounds[:-1], bounds[1:]
    nbytes, counts = np.append(0, np.cumsum(padded)), np.append(0, np.cumsum(blocks))
    names = [f"{ATTEMPT_ID.hex()}-{rank:06d}-{number:06d}.bcd" for number in range(len(heads))]
    tables = (ALIGNMENT_BYTES + nbytes[stops] - nbytes[heads]).tolist()
    files = [
        FileRow(
            name=name,
            attempt_id=ATTEMPT_ID,
            table_bytes=table_bytes,
            blocks=count,
            digest=document_digest(name.encode()),
        )
        for name, table_bytes, count in zip(
            names, tables, (counts[stops] - counts[heads]).tolist(), strict=True
        )
    ]
    return files, RunTable(
        file=file,
        position=ALIGNMENT_BYTES + nbytes[:-1] - nbytes[heads][file],
        raw=raw,
        stored=raw,
        codec=np.full(len(raw), int(Codec.RAW), dtype=np.int64),
        item=packing.run_item,
        block_log2=log2,
        block0=counts[:-1] - counts[heads][file],
    )
