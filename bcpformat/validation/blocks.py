"""Full validation of one data file: every block, every byte of padding, every gap."""

from __future__ import annotations

from threading import Lock

import numpy as np

from bcpformat.engine.memory import Bytes
from bcpformat.engine.read import TensorReader
from bcpformat.errors import ErrorCode, FormatError, Problem
from bcpformat.model.dtypes import DType
from bcpformat.model.limits import ALIGNMENT_BYTES
from bcpformat.model.manifest import Ints, Manifest, ints
from bcpformat.model.progress import Progress
from bcpformat.plan.resolve import Blocks, Pieces
from bcpformat.plan.tasks import Task, TaskPlan


def check_blocks(
    reader: TensorReader, number: int, progress: Progress
) -> tuple[list[Problem], int]:
    """Return the problems of a file's content, and the bytes checked."""
    rows = reader.files.runs(number)
    manifest = reader.manifest
    run = np.arange(rows.start, rows.stop, dtype=np.int64)
    low = np.zeros(len(run), dtype=np.int64)
    blocks = reader.index.blocks_of(run, low, manifest.runs.raw[rows], manifest.runs)
    none = ints([])
    pieces = Pieces(chunk=none, want=none, run=none, offset=none, nbytes=none, target=none)
    plan = reader.plan(pieces, blocks)
    holes = _Holes(manifest, reader)
    lock = Lock()
    found: list[tuple[int, Problem]] = []

    def work(task: Task, stored: Bytes, raw: Bytes) -> None:
        results = _check_task(reader, task, plan, blocks, stored, raw, holes)
        with lock:
            found.extend(results)
        progress(task.stop - task.start)

    reader.for_each_task(plan, work)
    found.sort(key=lambda entry: entry[0])
    problems = [problem for _, problem in found]
    return problems + _check_padding(reader, number), int(plan.stored.sum())


def _check_task(
    reader: TensorReader,
    task: Task,
    plan: TaskPlan,
    blocks: Blocks,
    stored: Bytes,
    raw: Bytes,
    holes: _Holes,
) -> list[tuple[int, Problem]]:
    """Check all blocks of a task, whatever happens to the others."""
    results = []

    def note(row: int, code: ErrorCode, message: str) -> None:
        run, index = int(blocks.run[row]), int(blocks.index[row])
        key = reader.files.key(task.file)
        text = message.removeprefix(f"{key}: ")
        names = tuple(reader.tenants(run, index))
        problem = Problem(code=code, where=key, message=text, damages=names)
        results.append((int(blocks.number[row]), problem))

    reader.read_stored(task, stored)
    judged: set[int] = set()  # rows already judged
    if task.encoded:
        for row in range(*task.blocks):
            try:
                reader.decode(row, task, plan, blocks, stored, raw)
            except FormatError as error:
                judged.add(row)
                note(row, error.code, error.message)
    filled = raw if task.encoded else stored
    for bad in reader.bad_blocks(task, plan, blocks, filled):
        if bad.row not in judged:
            judged.add(bad.row)
            note(bad.row, bad.error.code, bad.error.message)
    for row in range(*task.blocks):
        if row in judged:
            continue
        at = int(plan.raw_at[row])
        where = holes.nonzero(
            int(blocks.run[row]),
            int(blocks.index[row]),
            filled[at : at + int(blocks.raw[row])],
        )
        if where is not None:
            note(row, ErrorCode.PADDING, where)
    return results


class _Holes:
    """The gaps between the contents of runs, and the unused bits of sub-byte chunks."""

    def __init__(self, manifest: Manifest, reader: TensorReader) -> None:
        self._manifest = manifest
        contents = reader.contents
        self._contents = contents
        self._tails = self._tail_masks(reader)[contents.item]

    def _tail_masks(self, reader: TensorReader) -> Ints:
        """Return for each content the bits of its last byte that must be zero."""
        manifest, geometry = self._manifest, reader.index.geometry
        bits = np.array([DType.named(n).bits for n in manifest.tensors.dtypes], dtype=np.int64)
        used = (geometry.count * bits[geometry.tensor] % 8) if len(bits) else geometry.count
        masks = np.where(used == 0, 0, 0xFF & ~((1 << used) - 1))
        rest = len(manifest.per_rank) + len(manifest.objects)
        return np.concatenate((masks, np.zeros(rest, dtype=np.int64)))

    def nonzero(self, run: int, index: int, data: Bytes) -> str | None:
        """Return words for the first byte of a block that must be zero and is not."""
        low = index << int(self._manifest.runs.block_log2[run])
        high = low + len(data)
        rows = self._contents.rows(run)
        ends = np.append(self._contents.start[rows], int(self._manifest.runs.raw[run]))
        stop = np.append(0, self._contents.stop[rows])
        tails = np.append(0, self._tails[rows])
        near = np.flatnonzero((ends > low) & (stop <= high))
        for a, b, mask in zip(
            stop[near].tolist(), ends[near].tolist(), tails[near].tolist(), strict=True
        ):
            if mask and low < a <= high and int(data[a - 1 - low]) & mask:
                return f"unused bits of the last byte before offset {a} of run {run} are not zero"
            if a < b and data[max(a, low) - low : min(b, high) - low].any():
                return f"gap bytes from offset {a} of run {run} are not all zero"
        return None


def _check_padding(reader: TensorReader, number: int) -> list[Problem]:
    """Check the zeros between runs and before the block table."""
    manifest, key = reader.manifest, reader.files.key(number)
    rows = reader.files.runs(number)
    row = manifest.files[number]
    used = [
        (p, p + s)
        for p, s in zip(
            manifest.runs.position[rows].tolist(), manifest.runs.stored[rows].tolist(), strict=True
        )
    ]
    used += [(p, p + n) for p, n in row.unused]
    used.sort()
    stops = [ALIGNMENT_BYTES, *(stop for _, stop in used)]
    starts = [*(start for start, _ in used), row.table_bytes]
    problems = []
    for stop, start in zip(stops, starts, strict=True):
        begin = stop - stop % ALIGNMENT_BYTES
        if start > stop and reader.files.read(number, begin, start - begin)[stop - begin :].any():
            text = f"padding from byte {stop} to {start} is not all zero"
            problems.append(Problem(code=ErrorCode.PADDING, where=key, message=text))
    return problems
