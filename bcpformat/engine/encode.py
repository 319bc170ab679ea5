"""From pieces of memory to data files: fill, hash while hot, encode, write, make durable.

A file is cut into units of about 8 MiB of consecutive blocks.  Workers fill a warm, aligned
buffer with a unit, hash its blocks and either write it where it belongs (raw: every position is
known) or encode it; encoded units are laid back to back by the calling thread, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from threading import local
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from bcpformat.codec.block import BlockEncoder, Codec
from bcpformat.codec.digest import block_digest, document_digest
from bcpformat.engine.memory import Bytes, address_of, copy
from bcpformat.model.limits import ALIGNMENT_BYTES
from bcpformat.model.manifest import Ints
from bcpformat.model.progress import Progress
from bcpformat.model.region import flat_range_boxes
from bcpformat.plan.pack import Packing, aligned
from bcpformat.storage.buffers import AlignedBuffer, BufferPool, get_pool
from bcpformat.storage.store import ObjectWriter, Store
from bcpformat.wire.container import data_file_head

UNIT_BYTES = 2**23
HOT_BYTES = 2**20
"""Small blocks are filled so many bytes at a time, and hashed while those are in the cache."""

"""Called with numbers of raw bytes as they are done, from any thread."""

_Layout: TypeAlias = tuple[Ints, Ints, npt.NDArray[np.uint32] | None, int]
"""Positions and stored bytes of the runs, stored lengths of the blocks, position of the table."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the raw bytes of pieces are in this process's memory.

    Attributes:
        address: First byte of each piece, 0 for one in `strided`, shape `(pieces,)`.
        nbytes: Raw bytes of each piece, shape `(pieces,)`.
        strided: Piece to its elements where they are not contiguous.
        owners: Whatever keeps the memory alive.
    """

    address: Ints
    nbytes: Ints
    strided: Mapping[int, npt.NDArray[np.generic]]
    owners: Sequence[object]


@dataclass(frozen=True, slots=True)
class FilePlan:
    """One data file to write.

    Attributes:
        key: Its key in the store.
        attempt_id: 16 bytes.
        runs: Range `(first, stop)` of rows of the packing's runs.
        codecs: Codec code of each run of the packing, shape `(runs,)`.
        level: zstd level.
    """

    key: str
    attempt_id: bytes
    runs: tuple[int, int]
    codecs: Ints
    level: int


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What was written; columns have one entry for each run of the file.

    Attributes:
        position: First byte of each run.
        stored: Stored bytes of each run.
        block0: First block of each run.
        blocks: Blocks of the file.
        table_bytes: Position of the block table.
        digest: XXH3-128 of the table, 16 bytes.
        lengths: Whether stored lengths follow the digests.
    """

    position: Ints
    stored: Ints
    block0: Ints
    blocks: int
    table_bytes: int
    digest: bytes
    lengths: bool


@dataclass(frozen=True, slots=True)
class Unit:
    """Consecutive blocks of one or several runs, written together.

    Attributes:
        parts: Triples of a run's row, its first raw byte and a number of raw bytes.
        first_block: Position of the first block in the file's table.
        start: First byte in the file if every run is raw.
        nbytes: Bytes in the file if every run is raw, a multiple of 4096.
    """

    parts: tuple[tuple[int, int, int], ...]
    first_block: int
    start: int
    nbytes: int


class RunFiller:
    """The pieces of every run, by offset."""

    __slots__ = ("bounds", "offset", "order", "packing", "pieces")

    def __init__(self, pieces: Sources, packing: Packing) -> None:
        self.pieces = pieces
        self.packing = packing
        self.order = np.lexsort((packing.offset, packing.run))
        run = packing.run[self.order]
        self.offset = packing.offset[self.order]
        self.bounds = np.searchsorted(run, np.arange(len(packing.run_raw) + 1))

    def fill(self, run: int, low: int, high: int, out: Bytes) -> None:
        """Copy the raw bytes `low` to `high` of a run to the start of `out`, gaps as zeros."""
        first, stop = int(self.bounds[run]), int(self.bounds[run + 1])
        offsets = self.offset[first:stop]
        if stop - first == 1:
            copy_piece(self.pieces, int(self.order[first]), low, high, out)
            return
        out[: high - low] = 0
        begin = max(0, int(np.searchsorted(offsets, low, side="right")) - 1)
        end = int(np.searchsorted(offsets, high))
        rows = self.order[first + begin : first + end]
        base = address_of(out) - low
        strided = self.pieces.strided
        for piece, offset, address, nbytes in zip(
            rows.tolist(),
            offsets[begin:end].tolist(),
            self.pieces.address[rows].tolist(),
            self.pieces.nbytes[rows].tolist(),
            strict=True,
        ):
            if low <= offset and offset + nbytes <= high and not (strided and piece in strided):
                copy(base + offset, address, nbytes)
            else:
                a, b = max(low, offset), min(high, offset + nbytes)
                if a < b:
                    copy_piece(self.pieces, piece, a - offset, b - offset, out[a - low : b - low])


def copy_piece(pieces: Sources, piece: int, low: int, high: int, out: Bytes) -> None:
    """Copy the raw bytes `low` to `high` of a piece to the start of `out`."""
    elements = pieces.strided.get(piece)
    if elements is None:
        copy(address_of(out), int(pieces.address[piece]) + low, high - low)
        return
    size = elements.dtype.itemsize
    start, stop = low // size, -(-high // size)
    for box, flat in flat_range_boxes(elements.shape, start, stop):
        index = tuple(slice(o, o + n) for o, n in zip(box.origin, box.shape, strict=True))
        at = (flat - start) * size
        part = out[at : at + box.numel * size]
        part.view(elements.dtype).reshape(box.shape)[...] = elements[index]


def file_units(packing: Packing, runs: tuple[int, int]) -> Iterator[Unit]:
    """Yield the units of a file, in order, as if every run were raw."""
    position, block = ALIGNMENT_BYTES, 0
    parts: list[tuple[int, int, int]] = []
    start, first, filled = position, 0, 0
    for run in range(*runs):
        raw = int(packing.run_raw[run])
        block_bytes = 1 << int(packing.run_block_log2[run])
        low = 0
        while low < raw:
            room = max(block_bytes, (UNIT_BYTES - filled) // block_bytes * block_bytes)
            if parts and filled + min(room, raw - low) > UNIT_BYTES:
                yield Unit(tuple(parts), first, start, aligned(filled, ALIGNMENT_BYTES))
                parts, start, first, filled = [], position, block, 0
                continue
            nbytes = min(room, raw - low)
            parts.append((run, low, nbytes))
            low += nbytes
            block += -(-nbytes // block_bytes)
            filled += aligned(nbytes, ALIGNMENT_BYTES)
            position += aligned(nbytes, ALIGNMENT_BYTES)
    yield Unit(tuple(parts), first, start, aligned(filled, ALIGNMENT_BYTES))


class FileEncoder:
    """Writes one data file."""

    def __init__(
        self,
        store: Store,
        plan: FilePlan,
        contents: RunFiller,
        *,
        threads: int,
        progress: Progress,
    ) -> None:
        self._plan = plan
        self._contents = contents
        self._packing = contents.packing
        self._threads = threads
        self._progress = progress
        self._store = store
        first, stop = plan.runs
        raw = self._packing.run_raw[first:stop]
        counts = ((raw - 1) >> self._packing.run_block_log2[first:stop]) + 1
        self._block0 = np.cumsum(counts) - counts
        self._blocks = int(counts.sum())
        self._digests = np.zeros(self._blocks, dtype="<u8")
        self._encoders = _PerThread()

    def write(self) -> WrittenFile:
        """Write, and return when the file's content is durable."""
        first, stop = self._plan.runs
        raw = self._packing.run_raw[first:stop]
        encoded = bool((self._plan.codecs[first:stop] != Codec.RAW).any())
        hint = int(raw.sum()) + ALIGNMENT_BYTES
        with ExitStack() as stack:
            writer = stack.enter_context(self._store.create(self._plan.key, nbytes_hint=hint))
            pool = get_pool(self._threads + 1, UNIT_BYTES)
            executor = ThreadPoolExecutor(self._threads, thread_name_prefix="bcp-write")
            stack.callback(executor.shutdown, cancel_futures=True)
            with pool.borrow() as buffer:
                head = buffer.array[:ALIGNMENT_BYTES]
                head[:] = np.frombuffer(data_file_head(self._plan.attempt_id), dtype=np.uint8)
                writer.write_at(0, head)
            write = self._write_encoded if encoded else self._write_raw
            return self._finish(writer, pool, *write(writer, executor, pool))

    def _write_raw(
        self, writer: ObjectWriter, executor: ThreadPoolExecutor, pool: BufferPool
    ) -> _Layout:
        def work(unit: Unit) -> None:
            with pool.borrow() as buffer:
                self._fill(unit, buffer.array)
                writer.write_at(unit.start, buffer.array[: unit.nbytes])
            self._progress(sum(nbytes for _, _, nbytes in unit.parts))

        units = file_units(self._packing, self._plan.runs)
        for _ in _ordered(executor, work, units, ahead=2 * self._threads):
            pass
        first, stop = self._plan.runs
        raw = self._packing.run_raw[first:stop]
        padded = (raw + ALIGNMENT_BYTES - 1) & -ALIGNMENT_BYTES
        ends = ALIGNMENT_BYTES + np.cumsum(padded)
        return ends - padded, raw, None, int(ends[-1])

    def _fill(self, unit: Unit, out: Bytes) -> None:
        """Fill a buffer with a unit as it lies in a raw file, hash its blocks."""
        at, block = 0, unit.first_block
        for run, low, nbytes in unit.parts:
            block_bytes = 1 << int(self._packing.run_block_log2[run])
            step = max(block_bytes, HOT_BYTES)
            for begin in range(low, low + nbytes, step):
                size = min(step, low + nbytes - begin)
                part = out[at : at + size]
                self._contents.fill(run, begin, begin + size, part)
                for first in range(0, size, block_bytes):
                    self._digests[block] = block_digest(part[first : first + block_bytes])
                    block += 1
                end = aligned(at + size, ALIGNMENT_BYTES)
                out[at + size : end] = 0
                at = end

    def _write_encoded(
        self, writer: ObjectWriter, executor: ThreadPoolExecutor, pool: BufferPool
    ) -> _Layout:
        first, stop = self._plan.runs
        lengths = np.zeros(self._blocks, dtype="<u4")
        positions = np.zeros(stop - first, dtype=np.int64)
        stored = np.zeros(stop - first, dtype=np.int64)

        def work(unit: Unit) -> tuple[Unit, list[bytes]]:
            with pool.borrow() as buffer:
                self._fill(unit, buffer.array)
                return unit, self._encode(unit, buffer.array)

        with AlignedBuffer(UNIT_BYTES) as buffer:
            sink = _AlignedOutput(writer, buffer)
            units = file_units(self._packing, self._plan.runs)
            for unit, blocks in _ordered(executor, work, units, ahead=self._threads):
                block = unit.first_block
                results = iter(blocks)
                for run, low, nbytes in unit.parts:
                    if low == 0:
                        sink.align()
                        positions[run - first] = sink.position
                    count = -(-nbytes // (1 << int(self._packing.run_block_log2[run])))
                    for data in islice(results, count):
                        lengths[block] = len(data)
                        stored[run - first] += len(data)
                        sink.append(data)
                        block += 1
                self._progress(sum(nbytes for _, _, nbytes in unit.parts))
            sink.align()
            sink.flush()
            return positions, stored, lengths, sink.position

    def _encode(self, unit: Unit, filled: Bytes) -> list[bytes]:
        at = 0
        out = []
        for run, _, nbytes in unit.parts:
            codec = Codec(int(self._plan.codecs[run]))
            encoder = self._encoder(codec, int(self._packing.run_item[run]))
            block_bytes = 1 << int(self._packing.run_block_log2[run])
            for begin in range(0, nbytes, block_bytes):
                size = min(block_bytes, nbytes - begin)
                out.append(bytes(encoder.encode(filled[at : at + size])))
                at += aligned(size, ALIGNMENT_BYTES)
        return out

    def _encoder(self, codec: Codec, item: int) -> BlockEncoder:
        made = self._encoders.made
        if (codec, item) not in made:
            made[codec, item] = BlockEncoder(codec, item=item, level=self._plan.level)
        return made[codec, item]

    def _finish(
        self,
        writer: ObjectWriter,
        pool: BufferPool,
        position: Ints,
        stored: Ints,
        lengths: npt.NDArray[np.uint32] | None,
        table_bytes: int,
    ) -> WrittenFile:
        table = self._digests.tobytes() + (lengths.tobytes() if lengths is not None else b"")
        with pool.borrow() as buffer:
            sink = _AlignedOutput(writer, buffer, position=table_bytes)
            sink.append(table)
            sink.align()
            sink.flush()
        writer.finish(table_bytes + len(table))
        return WrittenFile(
            position=position,
            stored=stored,
            block0=self._block0,
            blocks=self._blocks,
            table_bytes=table_bytes,
            digest=document_digest(table),
            lengths=lengths is not None,
        )


class _PerThread(local):
    """The encoders of one thread, by codec and item size."""

    def __init__(self) -> None:
        self.made: dict[tuple[Codec, int], BlockEncoder] = {}


class _AlignedOutput:
    """Bytes in order, written in aligned pieces through one buffer."""

    def __init__(
        self, writer: ObjectWriter, buffer: AlignedBuffer, *, position: int = ALIGNMENT_BYTES
    ) -> None:
        self._writer = writer
        self._buffer = buffer.array
        self._start = position
        self._filled = 0

    @property
    def position(self) -> int:
        return self._start + self._filled

    def append(self, data: bytes) -> None:
        source = np.frombuffer(data, dtype=np.uint8)
        at = 0
        while at < len(source):
            room = min(len(source) - at, len(self._buffer) - self._filled)
            self._buffer[self._filled : self._filled + room] = source[at : at + room]
            self._filled += room
            at += room
            if self._filled == len(self._buffer):
                self.flush()

    def align(self) -> None:
        end = aligned(self._filled, ALIGNMENT_BYTES)
        self._buffer[self._filled : end] = 0
        self._filled = end

    def flush(self) -> None:
        if self._filled:
            self._writer.write_at(self._start, self._buffer[: self._filled])
            self._start += self._filled
            self._filled = 0


def _ordered(
    executor: ThreadPoolExecutor,
    work: Callable[[Unit], T],
    units: Iterator[Unit],
    *,
    ahead: int,
) -> Iterator[T]:
    """Yield the results of `work` in order, at most `ahead` units begun before their turn."""
    pending: deque[Future[T]] = deque(executor.submit(work, unit) for unit in islice(units, ahead))
    try:
        while pending:
            result = pending.popleft().result()
            for unit in islice(units, 1):
                pending.append(executor.submit(work, unit))
            yield result
    finally:
        for future in pending:
            future.cancel()
