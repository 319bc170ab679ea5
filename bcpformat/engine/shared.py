"""Reads of several ranks that fetch once what more than one of them needs.

All ranks tell each other which blocks they need (`plan.sharing`), and then do rounds: each fetches
its units of the round, verifies and decodes them, and gives their raw bytes to whoever needs them
too; the takers compare the digests again.  Last, each reads what it alone needs.

A rank that fails still comes to the next exchange, as the others would wait for it, and gives each
rank a part of another size than that expects.  So all stop after the same exchange: it with its
error, the others with a `StoppedError`, and `Meeting.settle` gives all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

import numpy as np

from bcpformat.engine.checkpoint_reader import CheckpointReader
from bcpformat.engine.meeting import Meeting, StoppedError
from bcpformat.engine.memory import Bytes, address_of
from bcpformat.engine.read import READ_BYTES, TensorReader
from bcpformat.engine.sink import Destinations, Sink
from bcpformat.errors import CoordinationError
from bcpformat.model.manifest import Ints, ints
from bcpformat.model.progress import Progress
from bcpformat.model.region import Box
from bcpformat.plan.resolve import Blocks, Pieces
from bcpformat.plan.sharing import (
    ROUND_BYTES,
    UNIT_BYTES,
    Bools,
    Needs,
    Portions,
    Units,
    cut_pieces,
    needs_of,
    share,
)
from bcpformat.plan.tasks import Task, TaskPlan, cut_tasks

_FAILED = np.zeros(1, dtype=np.uint8)
_NOTHING = np.zeros(0, dtype=np.uint8)
_ROW_BYTES = 32  # a range of `Needs`


class ReadTensors(Protocol):
    """Fills every destination, or raises, as `CheckpointReader.read_tensors`."""

    def __call__(
        self, tensors: Ints, boxes: Mapping[int, Box], out: Destinations, *, progress: Progress
    ) -> None:
        """Read."""
        ...


@contextmanager
def reads_together(
    reader: CheckpointReader,
    meeting: Meeting | None,
    *,
    unit_bytes: int = UNIT_BYTES,
    round_bytes: int = ROUND_BYTES,
) -> Iterator[ReadTensors]:
    """Give the function that reads tensors, to be called once.

    Where ranks share what they read, every rank enters this and either calls it or leaves with an
    error.

    Args:
        reader: Of the checkpoint.
        meeting: That of the ranks which read together; None: this one alone.
        unit_bytes: See `plan.sharing`.
        round_bytes: See `plan.sharing`.
    """
    if meeting is None or not reader.is_shared:
        yield reader.read_tensors
        return
    read = _SharedRead(reader, meeting, unit_bytes, round_bytes)
    try:
        yield read
    except BaseException:
        if not read.has_met:
            with suppress(CoordinationError):  # its own error says more
                meeting.exchange([_FAILED] * meeting.size)
        raise


class _SharedRead:
    """One read of tensors by one of several ranks that share what they fetch.

    Attributes:
        has_met: Whether this rank has come to the first exchange.
    """

    def __init__(
        self, reader: CheckpointReader, meeting: Meeting, unit_bytes: int, round_bytes: int
    ) -> None:
        self.has_met = False
        self._reader = reader
        self._meeting = meeting
        self._unit_bytes = unit_bytes
        self._round_bytes = round_bytes

    def __call__(
        self, tensors: Ints, boxes: Mapping[int, Box], out: Destinations, *, progress: Progress
    ) -> None:
        """Fill every destination, or raise; an error before the first exchange is the caller's."""
        meeting = self._meeting
        reader = self._reader.reader_for(tensors, boxes)
        pieces, blocks = reader.index.resolve(tensors, boxes)
        sink = Sink(reader.index, tensors, boxes, pieces, out)
        number = _numbers(reader, blocks)
        mine = _encode(self._needs(reader, blocks, number))
        self.has_met = True
        found = meeting.exchange([mine] * meeting.size)
        failed = [rank for rank, part in enumerate(found) if len(part) % _ROW_BYTES]
        if failed:
            raise StoppedError(failed)
        failure: BaseException | None = None
        try:
            units = share(
                [_decode(part) for part in found],
                unit_bytes=self._unit_bytes,
                round_bytes=self._round_bytes,
            )
            rounds = _Rounds(reader, meeting, units, pieces, blocks, number, sink, progress)
        except BaseException as error:  # noqa: BLE001  # raised after the sum
            failure = error
        if int(meeting.total(ints([failure is not None]))[0]):
            raise failure or StoppedError()
        for this in range(units.rounds):
            given: list[Bytes] = []
            if failure is None:
                try:
                    given = rounds.fetch(this)
                except BaseException as error:  # noqa: BLE001  # raised after the exchange
                    failure = error
            taken = meeting.exchange(given or rounds.markers(this))
            if failure is not None:
                raise failure
            failed = rounds.failed(this, taken)
            if failed:
                raise StoppedError(failed)
            try:
                rounds.place(this, taken)
            except BaseException as error:  # noqa: BLE001  # raised after the next exchange
                failure = error
        if failure is not None:
            raise failure
        rounds.read_own()
        sink.finish()

    def _needs(self, reader: TensorReader, blocks: Blocks, number: Ints) -> Needs:
        """Return what this rank needs; loads the block tables, as the stored bytes count."""
        order = np.argsort(number)
        none = ints([])
        nothing = Pieces(none, none, none, none, none, none)
        return needs_of(
            number[order],
            blocks.index[order],
            reader.manifest.runs.block_log2[blocks.run[order]],
            stored=reader.plan(nothing, blocks).stored[order],
            raw=blocks.raw[order],
            unit_bytes=self._unit_bytes,
        )


class _Rounds:
    """What one rank fetches, gives, takes and places in each round."""

    def __init__(
        self,
        reader: TensorReader,
        meeting: Meeting,
        units: Units,
        pieces: Pieces,
        blocks: Blocks,
        number: Ints,
        sink: Sink,
        progress: Progress,
    ) -> None:
        self._reader = reader
        self._rank = meeting.rank
        self._size = size = meeting.size
        self._is_needed = units.is_needed
        self._sink = sink
        self._progress = progress
        unit = units.find(number)
        group = np.zeros_like(number)  # of own blocks; others: one for each round and source
        in_unit = unit >= 0
        row = unit[in_unit]
        group[in_unit] = 1 + units.round[row] * size + units.source[row]
        self._portions = cut_pieces(pieces, blocks, group, runs=reader.manifest.runs)
        order = np.argsort(group, kind="stable")
        self._blocks = Blocks(
            run=blocks.run[order],
            index=blocks.index[order],
            raw=blocks.raw[order],
            table=blocks.table[order],
            number=blocks.number[order],
        )
        self._unit = unit[order]
        groups = np.arange(2 + units.rounds * size)
        self._block_bounds = np.searchsorted(group[order], groups)
        self._piece_bounds = np.searchsorted(self._portions.group, groups)

    def fetch(self, this: int) -> list[Bytes]:
        """Fetch this rank's units of a round, and place them; return each rank's part of them."""
        rows, blocks, portions = self._group(this, self._rank)
        held = sum(int(self._group(this, rank)[1].raw.sum()) for rank in range(self._size))
        self._reader.check_budget(held)
        stop = np.cumsum(blocks.raw)
        start = stop - blocks.raw
        data = np.empty(int(blocks.raw.sum()), dtype=np.uint8)
        self._read(blocks, portions, data, start)
        parts: dict[bytes, Bytes] = {}
        given: list[Bytes] = []
        for rank in range(self._size):
            is_given = self._given(rows, rank)
            key = is_given.tobytes()
            if key not in parts:
                taken = np.flatnonzero(is_given).tolist()
                cuts = [data[start[b] : stop[b]] for b in taken]
                parts[key] = data if len(cuts) == len(start) else np.concatenate([_NOTHING, *cuts])
            given.append(parts[key])
        return given

    def markers(self, this: int) -> list[Bytes]:
        """Return parts that tell every rank that this one has failed."""
        rows, blocks, _ = self._group(this, self._rank)
        expected = [int(blocks.raw[self._given(rows, r)].sum()) for r in range(self._size)]
        return [_NOTHING if nbytes else _FAILED for nbytes in expected]

    def failed(self, this: int, taken: Sequence[Bytes]) -> list[int]:
        """Return the ranks whose parts are not what they should be."""
        others = [rank for rank in range(self._size) if rank != self._rank]
        return [r for r in others if len(taken[r]) != int(self._group(this, r)[1].raw.sum())]

    def place(self, this: int, taken: Sequence[Bytes]) -> None:
        """Verify and place what the others gave."""
        for rank, data in enumerate(taken):
            if rank == self._rank or not len(data):
                continue
            _, blocks, portions = self._group(this, rank)
            plan = cut_tasks(
                portions.pieces,
                blocks,
                runs=self._reader.manifest.runs,
                position=np.cumsum(blocks.raw) - blocks.raw,
                stored=blocks.raw,
                task_bytes=READ_BYTES,
            )
            for task in plan.tasks:
                filled = data[task.start : task.stop]
                try:
                    self._reader.verify(task, plan, blocks, filled)
                except BaseException as error:
                    error.add_note(f"as rank {rank} gave it to rank {self._rank}")
                    raise
                self._place(task, plan, portions, filled)

    def read_own(self) -> None:
        """Read what no other rank needs."""
        rows = slice(0, int(self._block_bounds[1]))
        self._read(self._take(rows), self._portions.take(slice(0, int(self._piece_bounds[1]))))

    def _read(
        self, blocks: Blocks, portions: Portions, data: Bytes = _NOTHING, start: Ints | None = None
    ) -> None:
        """Fetch blocks and place them; keep each in `data` too, from its `start` on."""
        plan = self._reader.plan(portions.pieces, blocks)
        if not plan.tasks:
            return

        def work(task: Task, stored: Bytes, raw: Bytes) -> None:
            filled = self._reader.fetch(task, plan, blocks, stored, raw)
            self._place(task, plan, portions, filled)
            if start is None:
                return
            rows = slice(*task.blocks)
            columns = (start[rows], plan.raw_at[rows], blocks.raw[rows])
            for to, at, nbytes in zip(*(c.tolist() for c in columns), strict=True):
                data[to : to + nbytes] = filled[at : at + nbytes]

        self._reader.for_each_task(plan, work)

    def _place(self, task: Task, plan: TaskPlan, portions: Portions, filled: Bytes) -> None:
        rows = slice(*task.pairs)
        piece = portions.owner[plan.piece[rows]]
        skip = portions.skip[plan.piece[rows]] + plan.skip[rows]
        source = address_of(filled) + plan.source[rows]
        columns = (piece, source, skip, plan.nbytes[rows])
        placed = [
            self._sink.place(*row) for row in zip(*(c.tolist() for c in columns), strict=True)
        ]
        self._sink.count(piece, placed)
        self._progress(sum(placed))

    def _given(self, rows: slice, rank: int) -> Bools:
        """Return which of this rank's blocks another needs; none of them are given to itself."""
        is_needed: Bools = self._is_needed[rank, self._unit[rows]] & (rank != self._rank)
        return is_needed

    def _group(self, this: int, source: int) -> tuple[slice, Blocks, Portions]:
        """Return the blocks that a rank fetches in a round, as far as this one needs them."""
        at = 1 + this * self._size + source
        rows = slice(int(self._block_bounds[at]), int(self._block_bounds[at + 1]))
        pieces = slice(int(self._piece_bounds[at]), int(self._piece_bounds[at + 1]))
        return rows, self._take(rows), self._portions.take(pieces)

    def _take(self, rows: slice) -> Blocks:
        b = self._blocks
        return Blocks(
            run=b.run[rows],
            index=b.index[rows],
            raw=b.raw[rows],
            table=b.table[rows],
            number=b.number[rows],
        )


def _numbers(reader: TensorReader, blocks: Blocks) -> Ints:
    """Return numbers of blocks that are the same on every rank, whatever its excerpt lacks."""
    counts = ints([file.blocks for file in reader.manifest.files])
    base = np.cumsum(counts) - counts
    return base[reader.manifest.runs.file[blocks.run]] + blocks.table


def _encode(needs: Needs) -> Bytes:
    rows = np.stack((needs.first, needs.stop, needs.stored, needs.raw))
    return np.ascontiguousarray(rows, dtype="<i8").reshape(-1).view(np.uint8)


def _decode(data: Bytes) -> Needs:
    first, stop, stored, raw = np.frombuffer(data.tobytes(), dtype="<i8").reshape(4, -1)
    return Needs(first=first, stop=stop, stored=stored, raw=raw)
