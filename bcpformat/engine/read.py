"""From data files to destinations: read, verify, decode, copy (spec 13, steps 6 and 7)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from threading import Event, Lock

import numpy as np

from bcpformat.codec.block import Codec, decode_block
from bcpformat.codec.digest import block_digest
from bcpformat.engine.contents import RunContents
from bcpformat.engine.memory import Bytes, address_of, copy
from bcpformat.engine.options import ReadOptions
from bcpformat.engine.sink import Destinations, Sink
from bcpformat.engine.tables import DataFiles
from bcpformat.errors import (
    BcpError,
    ChecksumError,
    ErrorCode,
    FormatError,
    LimitError,
)
from bcpformat.model.excerpt import Excerpt
from bcpformat.model.limits import ALIGNMENT_BYTES
from bcpformat.model.manifest import Ints, Manifest
from bcpformat.model.progress import Progress, silent
from bcpformat.model.region import Box
from bcpformat.plan.pack import aligned
from bcpformat.plan.resolve import Blocks, ChunkIndex, Pieces
from bcpformat.plan.tasks import Task, TaskPlan, cut_tasks
from bcpformat.storage.buffers import AlignedBuffer, get_pool
from bcpformat.storage.store import Store

BUFFER_BYTES = 2**23
READ_BYTES = BUFFER_BYTES - 2**20 - 2 * ALIGNMENT_BYTES
"""A read ends with the block that passes this, so that blocks up to 1 MiB fit the buffer."""


@dataclass(frozen=True, slots=True)
class BadBlock:
    """A block that does not verify: its row of `Blocks`, and why."""

    row: int
    error: BcpError


class TensorReader:
    """Reads parts of one checkpoint; safe to call from several threads.

    Attributes:
        manifest: All rows of its manifest, or those of an excerpt.
        files: Its data files.
        index: Its chunks.
    """

    def __init__(
        self,
        store: Store,
        manifest: Manifest | Excerpt,
        options: ReadOptions,
        *,
        files: DataFiles | None = None,
    ) -> None:
        """Make a reader; it opens files when it needs them.

        Args:
            store: Where the checkpoint is.
            manifest: What is read, checked.
            options: How.
            files: Files of the same checkpoint, to be opened once for this reader and others.
        """
        self._excerpt = manifest if isinstance(manifest, Excerpt) else Excerpt(manifest=manifest)
        self.manifest = self._excerpt.manifest
        if files is None:
            self.files = DataFiles(store, self.manifest, limits=options.limits)
        else:
            self.files = files.with_runs(self.manifest)
        self.index = ChunkIndex(self.manifest)
        self._options = options

    @cached_property
    def contents(self) -> RunContents:
        """What lies where in the runs: for messages and full validation."""
        return RunContents(self.manifest, self.index.geometry)

    def close(self) -> None:
        """Close the data files."""
        self.files.close()

    def read_tensors(
        self,
        tensors: Ints,
        boxes: Mapping[int, Box],
        out: Destinations,
        *,
        progress: Progress,
    ) -> None:
        """Fill every destination, or raise.

        Args:
            tensors: Row of each want's tensor, shape `(wants,)`.
            boxes: Want to its box; wants without one take the whole tensor.
            out: The destinations.
            progress: Called with numbers of bytes as they are done, from any thread.

        Raises:
            FormatError: Something does not verify; destinations may have changed.
            StorageError: The store failed.
        """
        pieces, blocks = self.index.resolve(tensors, boxes)
        sink = Sink(self.index, tensors, boxes, pieces, out)
        self._run(pieces, blocks, sink.place, sink.count, progress)
        sink.finish()

    def read_ranges(self, run: Ints, offset: Ints, nbytes: Ints) -> list[Bytes]:
        """Return raw bytes of runs, one array for each row, verified."""
        self.check_budget(int(nbytes.sum()))
        out = [np.empty(n, dtype=np.uint8) for n in nbytes.tolist()]
        address = [address_of(a) for a in out]
        rows = np.arange(len(out), dtype=np.int64)
        pieces = Pieces(
            chunk=rows,
            want=rows,
            run=run,
            offset=offset,
            nbytes=nbytes,
            target=np.zeros(len(out), dtype=np.int64),
        )
        blocks = self.index.blocks_of(run, offset, offset + nbytes, self.manifest.runs)

        def place(piece: int, source: int, skip: int, count: int) -> int:
            copy(address[piece] + skip, source, count)
            return count

        self._run(pieces, blocks, place, lambda _pieces, _placed: None, silent)
        return out

    def check_budget(self, nbytes: int) -> None:
        """Raise before an allocation that the budget does not allow.

        Raises:
            LimitError: Code ``E_BUDGET``.
        """
        check_budget(nbytes, self._options)

    def plan(self, pieces: Pieces, blocks: Blocks) -> TaskPlan:
        """Return the reads that fetch the given blocks; loads the block tables they need."""
        runs = self.manifest.runs
        within = runs.position[blocks.run] + (blocks.index << runs.block_log2[blocks.run])
        position, stored = within, blocks.raw.copy()
        file = runs.file[blocks.run]
        for number in np.unique(file).tolist():
            table = self.files.table(number)
            if table.lengths is None or table.ends is None:
                continue
            rows = np.flatnonzero(file == number)
            run, at = blocks.run[rows], blocks.table[rows]
            first = runs.block0[run]
            before = table.ends[at] - table.lengths[at]
            base = table.ends[first] - table.lengths[first]
            stored[rows] = table.lengths[at]
            position[rows] = runs.position[run] + before - base
        return cut_tasks(
            pieces, blocks, runs=runs, position=position, stored=stored, task_bytes=READ_BYTES
        )

    def _run(
        self,
        pieces: Pieces,
        blocks: Blocks,
        place: Callable[[int, int, int, int], int],
        count: Callable[[Ints, list[int]], None],
        progress: Progress,
    ) -> None:
        """Do all reads.

        Args:
            pieces: What is wanted.
            blocks: The blocks it needs.
            place: Gets a piece, an address, bytes to skip and a number of bytes; returns how many
                bytes of the destination it wrote.
            count: Gets pieces and what `place` returned for each, once a task is done.
            progress: Called with numbers of bytes as they are done.
        """
        plan = self.plan(pieces, blocks)
        if not plan.tasks:
            return
        columns = (plan.piece, plan.source, plan.skip, plan.nbytes)

        def work(task: Task, stored: Bytes, raw: Bytes) -> None:
            filled = self.fetch(task, plan, blocks, stored, raw)
            base = address_of(filled)
            rows = slice(*task.pairs)
            placed = [
                place(piece, base + source, skip, nbytes)
                for piece, source, skip, nbytes in zip(
                    *(c[rows].tolist() for c in columns), strict=True
                )
            ]
            count(plan.piece[rows], placed)
            progress(sum(placed))

        self.for_each_task(plan, work)

    def for_each_task(self, plan: TaskPlan, work: Callable[[Task, Bytes, Bytes], None]) -> None:
        """Call `work` for every task with two buffers that hold it, on several threads."""
        threads = min(self._options.threads, len(plan.tasks))
        size = max(max(task.raw_nbytes, task.stop - task.start) for task in plan.tasks)
        size = aligned(size, ALIGNMENT_BYTES)
        self.check_budget(2 * threads * size)
        tasks = iter(plan.tasks)
        lock = Lock()
        failed = Event()

        def next_task() -> Task | None:
            with lock:
                return None if failed.is_set() else next(tasks, None)

        half = max(size, BUFFER_BYTES)

        def loop() -> None:
            # one buffer for both halves: a thread that waits for a second one could wait for ever
            with _buffer(threads, 2 * half) as buffer:
                stored, raw = buffer.array[:half], buffer.array[half:]
                try:
                    while (task := next_task()) is not None:
                        work(task, stored, raw)
                except BaseException:
                    failed.set()  # the others begin nothing more
                    raise

        if threads == 1:
            loop()
            return
        with ThreadPoolExecutor(threads, "bcp-read") as executor:
            futures = [executor.submit(loop) for _ in range(threads)]
            for future in futures:
                future.result()

    def fetch(self, task: Task, plan: TaskPlan, blocks: Blocks, stored: Bytes, raw: Bytes) -> Bytes:
        """Return the buffer that holds the task's raw bytes, verified.

        Raises:
            ChecksumError: A block's digest differs (``E_BLOCK_CHECKSUM``).
            FormatError: A block does not decode (``E_BLOCK_ENCODING``), or the file ends early.
        """
        filled = self._load(task, plan, blocks, stored, raw)
        self.verify(task, plan, blocks, filled)
        return filled

    def verify(self, task: Task, plan: TaskPlan, blocks: Blocks, filled: Bytes) -> None:
        """Compare the digests of a task's blocks with its raw bytes, if the options say so.

        Raises:
            ChecksumError: A block's digest differs (``E_BLOCK_CHECKSUM``).
        """
        if self._options.verify:
            for bad in self.bad_blocks(task, plan, blocks, filled):
                raise bad.error

    def _load(self, task: Task, plan: TaskPlan, blocks: Blocks, stored: Bytes, raw: Bytes) -> Bytes:
        self.read_stored(task, stored)
        if not task.encoded:
            return stored
        for row in range(*task.blocks):
            self.decode(row, task, plan, blocks, stored, raw)
        return raw

    def read_stored(self, task: Task, stored: Bytes) -> None:
        """Read the stored bytes of a task to the start of a buffer."""
        reader = self.files.reader(task.file)
        stop = aligned(task.stop, reader.alignment)
        reader.read_into(task.start, stored[: stop - task.start])

    def decode(
        self, row: int, task: Task, plan: TaskPlan, blocks: Blocks, stored: Bytes, raw: Bytes
    ) -> None:
        """Decode one block of a task to its place in the raw buffer."""
        at = int(plan.position[row]) - task.start
        to = int(plan.raw_at[row])
        run = int(blocks.run[row])
        try:
            decode_block(
                stored[at : at + int(plan.stored[row])],
                raw[to : to + int(blocks.raw[row])],
                codec=Codec(int(self.manifest.runs.codec[run])),
                item=int(self.manifest.runs.item[run]),
            )
        except FormatError as error:
            text = f"{self.where(row, blocks)}: {error.message}"
            raise FormatError(text, code=error.code) from error

    def bad_blocks(
        self, task: Task, plan: TaskPlan, blocks: Blocks, filled: Bytes
    ) -> Iterator[BadBlock]:
        """Yield the blocks of a task whose raw bytes do not have their digest."""
        rows = slice(*task.blocks)
        expected = self.files.table(task.file).digests[blocks.table[rows]].tolist()
        starts = plan.raw_at[rows].tolist()
        sizes = blocks.raw[rows].tolist()
        for row, (at, size, digest) in enumerate(zip(starts, sizes, expected, strict=True)):
            found = block_digest(filled[at : at + size])
            if found != digest:
                number = task.blocks[0] + row
                text = (
                    f"{self.where(number, blocks)}: digest {found:016x}, "
                    f"the block table says {digest:016x}"
                )
                error = ChecksumError(text, code=ErrorCode.BLOCK_CHECKSUM)
                yield BadBlock(number, error)

    def where(self, row: int, blocks: Blocks) -> str:
        """Return words for the place of a block: file, position and the tensors in it."""
        run, index = int(blocks.run[row]), int(blocks.index[row])
        names = self.tenants(run, index)
        shown = ", ".join(repr(n) for n in names[:3]) + (", ..." if len(names) > 3 else "")
        file = int(self.manifest.runs.file[run])
        place = f"block {index} of run {self._excerpt.run(run)}"
        return f"{self.files.key(file)}: {place} (holds {shown})"

    def tenants(self, run: int, index: int) -> list[str]:
        """Return the names of what has bytes in a block: tensors, objects, per-rank values."""
        log2 = int(self.manifest.runs.block_log2[run])
        low, high = index << log2, (index + 1) << log2
        return self.contents.names(run, low, high)


def check_budget(nbytes: int, options: ReadOptions) -> None:
    """Raise before an allocation that the budget does not allow.

    Raises:
        LimitError: Code ``E_BUDGET``.
    """
    budget = options.budget_bytes
    if budget is None:
        budget = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if nbytes > budget:
        text = f"needs {nbytes} bytes, the budget is {budget}; read less or raise budget_bytes"
        raise LimitError(text, code=ErrorCode.BUDGET)


def _buffer(threads: int, nbytes: int) -> AbstractContextManager[AlignedBuffer]:
    """Return a warm buffer of the usual size, or for blocks above 1 MiB one that is freed again."""
    if nbytes == 2 * BUFFER_BYTES:
        return get_pool(threads, nbytes).borrow()
    return AlignedBuffer(nbytes)
