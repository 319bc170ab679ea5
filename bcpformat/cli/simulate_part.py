"""Part records of simulated ranks: what a rank says it wrote, without having written it.

Pieces are gathered and packed as a save does.  Only the last step is made here: where raw runs
lie in their files is known before they are written.  Digests of block tables are made up.
"""

from __future__ import annotations

import numpy as np

from bcpformat.codec.block import Codec
from bcpformat.codec.digest import document_digest
from bcpformat.engine.data_files import DataFiles
from bcpformat.engine.gather import gather, held_pieces
from bcpformat.engine.part import Part
from bcpformat.engine.part_rows import part_of, replica_checks
from bcpformat.engine.replicas import replica_digests
from bcpformat.model.limits import ALIGNMENT_BYTES
from bcpformat.model.manifest import FileRow, RunTable
from bcpformat.model.state import EncodedState
from bcpformat.plan.assign import Assignment
from bcpformat.plan.layout import Layout
from bcpformat.plan.pack import Packing, pack
from bcpformat.plan.tiles import Tile

ATTEMPT_ID = bytes(range(16))
"""That of every simulated save."""


def simulated_part(
    rank: int, state: EncodedState, layout: Layout, assignment: Assignment, *, tile: Tile
) -> Part:
    """Return what a rank would have written.

    Args:
        rank: The rank.
        state: Its state.
        layout: That of the state.
        assignment: What it stores, and which replicas it digests.
        tile: How chunks are cut for reads of columns.
    """
    gathered = gather(state, assignment, tile)
    packing = pack(gathered.sources.nbytes, gathered.item, block_log2=gathered.block_log2)
    replicas = held_pieces(state, assignment.check_piece)
    digests = replica_digests(replicas, seed=ATTEMPT_ID, replicas="sample")
    return part_of(
        state,
        gathered,
        _data_files(rank, packing),
        replica_checks(layout, assignment, digests),
        rank=rank,
        number=rank,
        attempt_id=ATTEMPT_ID,
    )


def _data_files(rank: int, packing: Packing) -> DataFiles:
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
    runs = RunTable(
        file=file,
        position=ALIGNMENT_BYTES + nbytes[:-1] - nbytes[heads][file],
        raw=raw,
        stored=raw,
        codec=np.full(len(raw), int(Codec.RAW), dtype=np.int64),
        item=packing.run_item,
        block_log2=log2,
        block0=counts[:-1] - counts[heads][file],
    )
    return DataFiles(packing=packing, files=files, runs=runs)
