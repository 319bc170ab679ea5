"""The save of a simulated job: the plans of all ranks, and the merge of their part records.

Every step is that of a save, in its order, in one process.  Part records are made one at a time
and forgotten; a temporary file holds them encoded, so that the merge can be run once for its time
and once for its memory.
"""

from __future__ import annotations

import gc
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from bcpformat.cli.bench_report import Say
from bcpformat.cli.simulate_mesh import spread_ranks
from bcpformat.cli.simulate_part import ATTEMPT_ID, simulated_part
from bcpformat.cli.simulate_state import STEP, Job, encoded
from bcpformat.codec.digest import document_digest
from bcpformat.engine.collector import paused_collector
from bcpformat.engine.merge import Merger
from bcpformat.engine.part import decode_part, encode_part
from bcpformat.engine.state_record import KnownStates
from bcpformat.errors import error_for
from bcpformat.model.checks import check_manifest, used_features
from bcpformat.model.limits import DEFAULT_LIMITS, DOCUMENT_DEPTH
from bcpformat.model.manifest import MANIFEST_KEY, Ints, Manifest, Writer
from bcpformat.plan.assign import Assignment, assign, bytes_per_rank
from bcpformat.plan.layout import Layout, layout_from_columns, layout_of
from bcpformat.plan.tiles import Tile
from bcpformat.wire import Kind, decode_header, decode_root, encode_manifest
from bcpformat.wire.mp import decode, encode

_Result = TypeVar("_Result")

SAMPLED_RANKS = 32
"""Ranks whose plan is timed."""

_EVERY = 256
"""Ranks between two words on what is going on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What all ranks store.

    Attributes:
        assignments: By rank.
        stored: Raw bytes that each rank stores of tensors, shape `(ranks,)`.
        layout_bytes: Bytes of all layouts, as they go to the lead.
        lead_seconds: What the lead needs to decode all layouts and to assign.
    """

    assignments: Sequence[Assignment]
    stored: Ints
    layout_bytes: int
    lead_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A manifest, and what it took.

    Attributes:
        document: The manifest.
        raw_bytes: Raw bytes of its root and sections.
        chunks: Chunks.
        runs: Runs.
        files: Data files.
        tensors: Tensors.
        stored_bytes: Raw bytes that all ranks stored.
        part_bytes: Bytes of all part records.
        merge_seconds: From the first record to the manifest in memory.
        merge_peak_bytes: The most memory that Python and numpy had at a time in the merge, by
            tracemalloc; None if it was not measured.
        check_seconds: Checking every rule.
        encode_seconds: Encoding.
    """

    document: bytes
    raw_bytes: int
    chunks: int
    runs: int
    files: int
    tensors: int
    stored_bytes: int
    part_bytes: int
    merge_seconds: float
    merge_peak_bytes: int | None
    check_seconds: float
    encode_seconds: float


def plan(job: Job, say: Say) -> Planned:
    """Return what all ranks of a job store."""
    layouts: list[Layout] = []
    seconds = 0.0
    nbytes = 0
    for rank in range(len(job.mesh)):
        if not rank % _EVERY:
            say(f"layout of rank {rank} of {len(job.mesh)}")
        data = _encoded_layout(layout_of(job.encoded(rank)))
        nbytes += len(data)
        start = time.process_time()
        columns = decode(data, max_depth=DOCUMENT_DEPTH, where="a layout")
        layouts.append(layout_from_columns(columns))
        seconds += time.process_time() - start
    say(f"assigning the pieces of {len(layouts)} ranks")
    start = time.process_time()
    assignments = assign(layouts)
    seconds += time.process_time() - start
    return Planned(
        assignments=assignments,
        stored=bytes_per_rank(layouts, assignments),
        layout_bytes=nbytes,
        lead_seconds=seconds,
    )


def _encoded_layout(layout: Layout) -> bytes:
    data = encode(layout.to_columns(), max_depth=DOCUMENT_DEPTH, where="a layout")
    document_digest(data)  # a rank looks whether it has a plan for it
    return data


def rank_seconds(job: Job, planned: Planned, *, tile: Tile) -> list[float]:
    """Return what some ranks need from their state to their part record, but for the data.

    That is everything a rank does for the first save with a layout, ahead of the lead's answer
    and after it.
    """
    seconds = []
    for rank in spread_ranks(job.mesh, SAMPLED_RANKS):
        value = job.state(rank)
        start = time.process_time()
        state = encoded(value)
        layout = layout_of(state)
        _encoded_layout(layout)
        encode_part(simulated_part(rank, state, layout, planned.assignments[rank], tile=tile))
        seconds.append(time.process_time() - start)
    return seconds


def save(job: Job, planned: Planned, say: Say, *, tile: Tile, trace: bool) -> Saved:
    """Return the manifest of a save.

    Args:
        job: The job.
        planned: What its ranks store.
        say: Shows what is going on.
        tile: How chunks are cut for reads of columns.
        trace: Whether to measure the memory of the merge.
    """
    with tempfile.TemporaryFile() as file:
        lengths = []
        for record in _records(job, planned, say, tile):
            file.write(record)
            lengths.append(len(record))

        def records() -> Iterator[bytes]:
            file.seek(0)
            for rank, nbytes in enumerate(lengths):
                if not rank % _EVERY:
                    say(f"merging rank {rank} of {len(lengths)}")
                yield file.read(nbytes)

        if trace:
            say("measuring the memory of the merge")
        peak_bytes = _peak_bytes(lambda: _merged(job, records())) if trace else None
        (manifest, stored_bytes), merge_seconds = _timed(lambda: _merged(job, records()))
    say("checking and encoding the manifest")
    _, check_seconds = _timed(lambda: _check(manifest))
    document, encode_seconds = _timed(lambda: encode_manifest(manifest, codec="zstd"))
    root = decode_root(document, key=MANIFEST_KEY, limits=DEFAULT_LIMITS)
    header = decode_header(document, key=MANIFEST_KEY, expect=Kind.MANIFEST)
    return Saved(
        document=document,
        raw_bytes=header.root_raw_bytes + sum(row.raw_bytes for row in root.sections),
        chunks=len(manifest.chunks),
        runs=len(manifest.runs),
        files=len(manifest.files),
        tensors=len(manifest.tensors),
        stored_bytes=stored_bytes,
        part_bytes=sum(lengths),
        merge_seconds=merge_seconds,
        merge_peak_bytes=peak_bytes,
        check_seconds=check_seconds,
        encode_seconds=encode_seconds,
    )


def _records(job: Job, planned: Planned, say: Say, tile: Tile) -> Iterator[bytes]:
    """Yield the part records of all ranks, by rank."""
    for rank, assignment in enumerate(planned.assignments):
        if not rank % _EVERY:
            say(f"part record of rank {rank} of {len(job.mesh)}")
        state = job.encoded(rank)
        yield encode_part(simulated_part(rank, state, layout_of(state), assignment, tile=tile))


def _merged(job: Job, records: Iterator[bytes]) -> tuple[Manifest, int]:
    """Return the manifest of some records, and the raw bytes of all that was stored."""
    merger = Merger(attempt_id=ATTEMPT_ID, size=len(job.mesh), disagree="error")
    known = KnownStates()
    for rank, record in enumerate(records):
        merger.add(decode_part(record, where=f"the part record of rank {rank}", known=known))
    merged = merger.finish()
    manifest = replace(
        merged,
        writer=Writer(name="bcpformat", version="simulated"),
        require=used_features(merged),
        step=STEP,
    )
    return manifest, merger.raw_bytes


def _check(manifest: Manifest) -> None:
    for problem in check_manifest(manifest, limits=DEFAULT_LIMITS):
        raise error_for(problem)


def _timed(act: Callable[[], _Result]) -> tuple[_Result, float]:
    gc.collect()
    with paused_collector():
        start = time.process_time()
        result = act()
        return result, time.process_time() - start


def _peak_bytes(act: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        with paused_collector():
            act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
