"""Scenarios of many ranks, in one process; each test carries its scenario's number."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

import bcpformat
from bcpformat import MemoryStore, Shard
from bcpformat.engine.coordinator import Coordinator
from bcpformat.engine.merge import Merger
from bcpformat.engine.part import Part, decode_part, encode_part
from bcpformat.engine.state_record import KnownStates
from bcpformat.model.checks import check_manifest
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.model.manifest import ChunkTable, FileRow, RunTable, empty_per_rank, ints
from bcpformat.model.nodes import DICT
from bcpformat.model.rank_state import RankState
from bcpformat.plan.assign import Assignment, assign
from bcpformat.plan.layout import Layout
from bcpformat.plan.pack import pack
from bcpformat.testing.ranks import Ranks
from bcpformat.wire import encode_manifest

ATTEMPT = bytes(16)
COLUMNS = 256


def row_layout(state: RankState, rank: int) -> Layout:
    """Return a layout of matrices that have one row for each rank."""
    tensors = len(state.names)
    count = np.full(tensors, COLUMNS)
    return Layout(
        names=state.names,
        dtypes=state.dtypes,
        shapes=state.shapes,
        trusted=np.ones(tensors, dtype=np.bool_),
        tensor=np.arange(tensors),
        origin=np.tile(ints([rank, 0]), tensors),
        extent=np.tile(ints([1, COLUMNS]), tensors),
        start=np.zeros(tensors, dtype=np.int64),
        count=count,
        nbytes=4 * count,
    )


def part_records(
    state: RankState, layouts: list[Layout], assignments: list[Assignment]
) -> Iterator[bytes]:
    for rank, (layout, found) in enumerate(zip(layouts, assignments, strict=True)):
        packing = pack(layout.nbytes[found.piece], np.full(len(found.piece), 4))
        (raw,) = packing.run_raw.tolist()
        file = FileRow(
            name=f"{rank:06d}.bcd",
            attempt_id=ATTEMPT,
            table_bytes=4096 + (raw + 4095 & -4096),
            blocks=-(-raw // 2**18),
            digest=bytes(16),
        )
        part = Part(
            rank=rank,
            attempt_id=ATTEMPT,
            state=state,
            files=[file],
            runs=RunTable(
                file=ints([0]),
                position=ints([4096]),
                raw=ints([raw]),
                stored=ints([raw]),
                codec=ints([0]),
                item=ints([4]),
                block_log2=packing.run_block_log2,
                block0=ints([0]),
            ),
            chunk_tensor=layout.tensor[found.piece],
            chunks=ChunkTable(
                run=packing.run,
                offset=packing.offset,
                origin=layout.origin,
                extent=layout.extent,
            ),
            per_rank=empty_per_rank(),
            raw_bytes=raw,
        )
        yield encode_part(part)


def seconds_to_plan(ranks: int, tensors: int) -> float:
    """Return the processor time of planning, merging, checking and encoding a save."""
    names = [f"layers.{number:04d}.weight" for number in range(tensors)]
    state = RankState(
        root=[DICT, *(part for row, name in enumerate(names) for part in (name, row))],
        names=names,
        dtypes=["float32"] * tensors,
        shapes=[(ranks, COLUMNS)] * tensors,
    )
    layouts = [row_layout(state, rank) for rank in range(ranks)]
    start = time.process_time()

    merger = Merger(attempt_id=ATTEMPT, size=ranks, disagree="error")
    known = KnownStates()
    for record in part_records(state, layouts, assign(layouts)):
        merger.add(decode_part(record, where="a record", known=known))
    manifest = merger.finish()
    problems = check_manifest(manifest, limits=DEFAULT_LIMITS)
    document = encode_manifest(manifest, codec="zstd")

    seconds = time.process_time() - start
    assert problems == []
    assert len(manifest.chunks) == ranks * tensors
    assert len(document) < 8 * ranks * tensors
    return seconds


@pytest.mark.slow
def test_t39_a_plan_of_2048_ranks_and_1024_tensors_takes_seconds_and_grows_with_the_ranks() -> None:
    half = seconds_to_plan(1024, 1024)
    whole = seconds_to_plan(2048, 1024)

    assert whole < 60
    assert whole < 3.5 * half


@pytest.mark.slow
def test_t56_of_64_ranks_only_a_save_of_another_layout_sends_plans() -> None:
    ranks, store = Ranks(64), MemoryStore()
    rows = np.zeros((192, 3), dtype=np.float32)
    plan_bytes = []
    for number, width in enumerate((5, 5, 6)):
        place = store.child(str(number))

        def act(end: Coordinator, place: bcpformat.Store = place, width: int = width) -> bytes:
            low = 3 * end.rank
            shard = Shard(rows[low : low + 3], global_shape=rows.shape, origin=(low, 0))
            own = np.zeros(width if end.rank == 63 else 5)
            return bcpformat.write(place, {"w": shard, f"b{end.rank}": own}, group=end).attempt_id

        (save,) = set(ranks.run(act))
        plan_bytes.append(
            [ranks.put_bytes(f"{save.hex()}/{kind}/") for kind in ("layout", "assignment", "part")]
        )
    first, unchanged, changed = plan_bytes

    assert min(first) > 0
    assert unchanged[:2] == [0, 0] and unchanged[2] > 0
    assert changed[0] >= first[0] and changed[1] >= first[1]
    assert ranks.totals == 3
