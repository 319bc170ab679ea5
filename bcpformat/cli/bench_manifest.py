"""Group `manifest`: a manifest of very many chunks, from memory to bytes and back."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from statistics import median

import numpy as np

from bcpformat.cli.bench_measure import Setup, spread
from bcpformat.cli.bench_report import Goal, Row, Table, at_most
from bcpformat.errors import error_for
from bcpformat.model.checks import check_manifest
from bcpformat.model.limits import ALIGNMENT_BYTES, DEFAULT_LIMITS
from bcpformat.model.manifest import (
    MANIFEST_KEY,
    ChunkTable,
    FileRow,
    Ints,
    Manifest,
    Node,
    RunTable,
    TensorTable,
    Writer,
    empty_per_rank,
    ints,
)
from bcpformat.wire import decode_manifest, encode_manifest

DECODE_SECONDS = 0.1
CHECK_SECONDS = 1.0
MEMORY_RATIO = 4.0

_ATTEMPT = bytes(range(16))
_CHUNK_SHAPE = (64, 8192)
_CHUNK_BYTES = 2**20
_GRID_COLUMNS = 25


def manifest_group(setup: Setup) -> list[Table]:
    """Measure encoding, decoding and checking, with one run per chunk and with one per rank."""
    num_tensors = max(1, round(setup.sizes.chunks**0.5))
    num_ranks = max(_GRID_COLUMNS, num_tensors // _GRID_COLUMNS * _GRID_COLUMNS)
    return [
        _measured(setup, name, words, manifest)
        for name, words, manifest in (
            ("manifest-packed", "one run per rank", packed_manifest(num_tensors, num_ranks)),
            ("manifest-own-runs", "one run per chunk", own_runs_manifest(num_tensors, num_ranks)),
        )
    ]


def _measured(setup: Setup, name: str, words: str, manifest: Manifest) -> Table:
    document = encode_manifest(manifest, codec="zstd")
    raw_bytes = len(encode_manifest(manifest, codec="none"))

    def decode() -> Manifest:
        return decode_manifest(document, key=MANIFEST_KEY, limits=DEFAULT_LIMITS)

    def check() -> None:
        for problem in check_manifest(manifest, limits=DEFAULT_LIMITS):
            raise error_for(problem)

    steps: list[tuple[str, Callable[[], object], float | None]] = [
        ("encode", lambda: encode_manifest(manifest, codec="zstd"), None),
        ("decode", decode, DECODE_SECONDS),
        ("check, every rule", check, CHECK_SECONDS),
    ]
    cpu: list[list[float]] = [[] for _ in steps]
    wall: list[list[float]] = [[] for _ in steps]
    for number in range(setup.rounds + 1):
        for index, (step, run, _) in enumerate(steps):
            setup.say(f"{name}: {step}, round {number} of {setup.rounds}")
            gc.collect()
            start, start_cpu = time.perf_counter(), time.process_time()
            run()
            cpu[index].append(time.process_time() - start_cpu)
            wall[index].append(time.perf_counter() - start)
    rows = [
        _row(step, cpu[index], wall[index], bound) for index, (step, _, bound) in enumerate(steps)
    ]
    setup.say(f"{name}: memory")
    rows.append(_memory_row(decode, document, raw_bytes))
    title = (
        f"manifest: {len(manifest.chunks)} chunks of {len(manifest.tensors)} tensors, {words}; "
        f"{raw_bytes / 1e6:.1f} MB raw, {len(document) / 1e6:.1f} MB stored"
    )
    columns = ("case", "CPU s", "min-max", "wall s", "first CPU s", "bytes", "x raw")
    notes = [
        "decode verifies every section's digest; goals are judged by CPU time",
        "memory: the peak while the document is decoded and checked, the document included",
    ]
    return Table(name=name, title=title, columns=columns, rows=rows, notes=notes)


def _row(step: str, cpu: list[float], wall: list[float], bound: float | None) -> Row:
    seconds = median(cpu[1:])
    goal: Goal | None = None if bound is None else at_most(seconds, bound, f"{bound} s")
    cells = (
        step,
        f"{seconds:.3f}",
        spread(cpu[1:], 3),
        f"{median(wall[1:]):.3f}",
        f"{cpu[0]:.3f}",
        "",
        "",
    )
    data = {
        "case": step,
        "fsync": False,
        "verifies": step != "encode",
        "first_cpu_seconds": cpu[0],
        "cpu_seconds": cpu[1:],
        "wall_seconds": wall[1:],
        "median_cpu_seconds": seconds,
        "median_wall_seconds": median(wall[1:]),
    }
    return Row(cells=cells, data=data, goal=goal)


def _memory_row(decode: Callable[[], Manifest], document: bytes, raw_bytes: int) -> Row:
    gc.collect()
    tracemalloc.start()
    try:
        check_manifest(decode(), limits=DEFAULT_LIMITS)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    peak_bytes += len(document)
    ratio = peak_bytes / raw_bytes
    data = {
        "case": "peak memory",
        "fsync": False,
        "verifies": True,
        "peak_bytes": peak_bytes,
        "raw_bytes": raw_bytes,
        "stored_bytes": len(document),
        "ratio": ratio,
    }
    goal = at_most(ratio, MEMORY_RATIO, f"{MEMORY_RATIO}x raw")
    cells = ("peak memory", "", "", "", "", str(peak_bytes), f"{ratio:.2f}")
    return Row(cells=cells, data=data, goal=goal)


def packed_manifest(num_tensors: int, num_ranks: int) -> Manifest:
    """Return a manifest where every rank has one run that holds its chunk of every tensor.

    Args:
        num_tensors: Tensors, at least 1.
        num_ranks: Data files, a multiple of 25: the chunks of a tensor form a grid of 25 columns.
    """
    chunk = np.arange(num_tensors * num_ranks, dtype=np.int64)
    raw_bytes = num_tensors * _CHUNK_BYTES
    same = np.ones(num_ranks, dtype=np.int64)
    runs = RunTable(
        file=np.arange(num_ranks, dtype=np.int64),
        position=ALIGNMENT_BYTES * same,
        raw=raw_bytes * same,
        stored=raw_bytes * same,
        codec=0 * same,
        item=2 * same,
        block_log2=20 * same,
        block0=0 * same,
    )
    return _manifest(
        num_tensors,
        num_ranks,
        runs,
        run=chunk % num_ranks,
        offset=chunk // num_ranks * _CHUNK_BYTES,
        blocks=num_tensors,
    )


def own_runs_manifest(num_tensors: int, num_ranks: int) -> Manifest:
    """Return a manifest where every chunk has a run; arguments as in `packed_manifest`."""
    row = np.arange(num_tensors * num_ranks, dtype=np.int64)
    in_file = row % num_tensors
    same = np.ones(len(row), dtype=np.int64)
    runs = RunTable(
        file=row // num_tensors,
        position=ALIGNMENT_BYTES + in_file * _CHUNK_BYTES,
        raw=_CHUNK_BYTES * same,
        stored=_CHUNK_BYTES * same,
        codec=0 * same,
        item=2 * same,
        block_log2=18 * same,
        block0=4 * in_file,
    )
    return _manifest(
        num_tensors,
        num_ranks,
        runs,
        run=row % num_ranks * num_tensors + row // num_ranks,
        offset=0 * same,
        blocks=4 * num_tensors,
    )


def _manifest(
    num_tensors: int, num_ranks: int, runs: RunTable, *, run: Ints, offset: Ints, blocks: int
) -> Manifest:
    height, width = _CHUNK_SHAPE
    place = np.arange(num_ranks, dtype=np.int64)
    corner = np.stack((place // _GRID_COLUMNS * height, place % _GRID_COLUMNS * width), axis=1)
    names = [f"layers.{number:06d}.weight" for number in range(num_tensors)]
    state: list[Node] = [6]
    for number, name in enumerate(names):
        state += [name, number]
    return Manifest(
        attempt_id=_ATTEMPT,
        created_us=0,
        writer=Writer(name="bcpformat", version="bench"),
        require=(),
        files=[
            FileRow(
                name=f"{_ATTEMPT.hex()}-{rank:06d}-000000.bcd",
                attempt_id=_ATTEMPT,
                table_bytes=ALIGNMENT_BYTES + num_tensors * _CHUNK_BYTES,
                blocks=blocks,
                digest=bytes(16),
            )
            for rank in range(num_ranks)
        ],
        tensors=TensorTable(
            names=names,
            dtypes=["bfloat16"] * num_tensors,
            shapes=[(num_ranks // _GRID_COLUMNS * height, _GRID_COLUMNS * width)] * num_tensors,
            chunks=ints([num_ranks] * num_tensors),
        ),
        runs=runs,
        chunks=ChunkTable(
            run=run,
            offset=offset,
            origin=np.tile(corner.reshape(-1), num_tensors),
            extent=np.tile(ints(_CHUNK_SHAPE), num_tensors * num_ranks),
        ),
        state=state,
        per_rank=empty_per_rank(),
    )
