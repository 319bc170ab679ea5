"""From the parts of all ranks to one manifest.

Parts come one by one and are kept as columns; nothing is kept for each chunk but its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bcpformat.engine.chunk_rows import ChunkOrder, fill_counts, fill_extents, sort_chunks
from bcpformat.engine.compare import ReplicaComparison
from bcpformat.engine.gathered import GatheredColumn, Width
from bcpformat.engine.part import Part
from bcpformat.engine.state_record import state_digest
from bcpformat.errors import DisagreementError, ErrorCode, InvalidArgumentError, Problem
from bcpformat.model.disagreement import MOST_PROBLEMS, disagreement
from bcpformat.model.manifest import (
    ChunkTable,
    FileRow,
    Ints,
    Manifest,
    ObjectRow,
    PerRankTable,
    RunTable,
    TensorTable,
    Writer,
    ints,
)
from bcpformat.model.names import shortened
from bcpformat.model.state_merge import (
    Disagree,
    MergedState,
    StateMerger,
    Undeclared,
)

_RUN_WIDTHS: dict[str, Width] = {
    "file": "u4",
    "position": "i8",
    "raw": "i8",
    "stored": "i8",
    "codec": "u1",
    "item": "u1",
    "block_log2": "u1",
    "block0": "u4",
}
_CHUNK_WIDTHS: dict[str, Width] = {
    "run": "u4",
    "offset": "i8",
    "origin": "i8",
    "extent": "i8",
    "start": "i8",
    "count": "i8",
}
_PER_RANK_WIDTHS: dict[str, Width] = {
    "path": "u4",
    "rank": "u4",
    "run": "u4",
    "offset": "i8",
    "nbytes": "i8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredValues:
    """Where one rank has stored the values of `Merger.undeclared`, in their order.

    Attributes:
        files: Data files, by ascending name; no part has them.
        runs: Their runs, by rows of `files`.
        run: Row of each value's run, shape ``(values,)``.
        offset: First byte in the raw bytes of the run, shape ``(values,)``.
        nbytes: Length of each, shape ``(values,)``.
    """

    files: Sequence[FileRow]
    runs: RunTable
    run: Ints
    offset: Ints
    nbytes: Ints


@dataclass(slots=True)
class _Counts:
    """What each part has, one entry a part."""

    rank: list[int] = field(default_factory=list)
    document: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    per_rank: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunOrder:
    """The order of all runs.

    Attributes:
        file: Row of the file of each run, in order.
        order: Row in the order of the parts of each run in order; None if they are in order.
        row: The reverse: row in order of each run in the order of the parts.
    """

    file: Ints
    order: Ints | None
    row: Ints | None


class Merger:
    """Merges the parts of all ranks, which come in ascending order of rank.

    It takes less than twice the memory of the manifest that it returns.

    Attributes:
        raw_bytes: Raw bytes of all that was stored.
    """

    def __init__(self, *, attempt_id: bytes, size: int, disagree: Disagree) -> None:
        """Make a merger.

        Args:
            attempt_id: 16 bytes, that of the save.
            size: Ranks that save.
            disagree: What becomes of plain values of the state that differ.
        """
        self.raw_bytes = 0
        self._attempt_id = attempt_id
        self._size = size
        self._states = StateMerger(disagree=disagree, digest_of=state_digest)
        self._merged: MergedState | None = None
        self._replicas = ReplicaComparison()
        self._counts = _Counts()
        self._files: list[FileRow] = []
        self._runs = {name: GatheredColumn(width) for name, width in _RUN_WIDTHS.items()}
        self._tensor = GatheredColumn("u4")
        self._chunks = {name: GatheredColumn(width) for name, width in _CHUNK_WIDTHS.items()}
        self._per_rank = {name: GatheredColumn(width) for name, width in _PER_RANK_WIDTHS.items()}
        self._objects: list[tuple[int, int, int, int]] = []  # part, object, run, offset
        self._stored: StoredValues | None = None
        self._ndims: dict[int, npt.NDArray[np.uint8]] = {}  # of the tensors of a document

    def add(self, part: Part) -> None:
        """Add the part of a rank above that of every part before.

        Raises:
            InvalidArgumentError: The ranks do not ascend or are not below the size, or the part
                is of another save.
        """
        if part.attempt_id != self._attempt_id:
            text = f"rank {part.rank} wrote for attempt {part.attempt_id.hex()}, this is attempt "
            raise InvalidArgumentError(text + self._attempt_id.hex())
        if part.rank >= self._size:
            raise InvalidArgumentError(f"rank {part.rank} in a save of {self._size} ranks")
        document = self._states.add(part.rank, part.state)
        counts = self._counts
        number = len(counts.rank)
        counts.rank.append(part.rank)
        counts.document.append(document)
        counts.chunks.append(len(part.chunks))
        counts.per_rank.append(len(part.per_rank))
        self._add_files(part.files, part.runs)
        self.raw_bytes += part.raw_bytes
        self._add_chunks(part, document)
        for name, column in self._per_rank.items():
            column.append(getattr(part.per_rank, name), len(part.per_rank))
        stored = (part.objects.object, part.objects.run, part.objects.offset)
        for row, run, offset in zip(*(c.tolist() for c in stored), strict=True):
            self._objects.append((number, row, run, offset))
        self._replicas.add(part)

    def _add_files(self, files: Sequence[FileRow], runs: RunTable) -> None:
        self._counts.files.append(len(files))
        self._counts.runs.append(len(runs))
        self._files += files
        for name, column in self._runs.items():
            column.append(getattr(runs, name), len(runs))

    def _add_chunks(self, part: Part, document: int) -> None:
        chunks, rows = part.chunks, len(part.chunks)
        self._tensor.append(part.chunk_tensor, rows)
        if document not in self._ndims:
            shapes = part.state.shapes
            self._ndims[document] = np.fromiter(map(len, shapes), np.uint8, len(shapes))
        axes = int(self._ndims[document][part.chunk_tensor].sum(dtype=np.int64))
        for name, column in self._chunks.items():
            column.append(getattr(chunks, name), axes if name in ("origin", "extent") else rows)

    def undeclared(self) -> Undeclared:
        """Return the values that differ and are to be stored as per-rank values.

        There are none unless ``disagree="per_rank"``.  All parts have been added.

        Raises:
            DisagreementError: Ranks hold different things where they must hold the same: in their
                states, or as replicas.
        """
        return self._state().undeclared

    def finish(self, *, stored: StoredValues | None = None) -> Manifest:
        """Return the manifest; all parts have been added, and nothing can be done afterwards.

        Args:
            stored: Where the values of `undeclared` are; needed if there are some.

        Returns:
            What the ranks wrote.  When, by whom, its step, features and user data are for the
            caller to say, and whether it breaks a rule for `check_manifest`.

        Raises:
            DisagreementError: As for `undeclared`; or ranks that do not know all names of a
                tensor stored the same elements of it.
            InvalidArgumentError: No rank, or more than one, stored an object; `stored` is missing.
        """
        state = self._state()
        if len(state.undeclared) and stored is None:
            text = f"{len(state.undeclared)} values that differ have to be stored first"
            raise InvalidArgumentError(text)
        if stored is not None:
            self._add_files(stored.files, stored.runs)
            self._stored = stored
        files, file_row = self._merged_files()
        order = self._run_order(file_row)
        tensors, chunks = self._merged_chunks(state, order.row)
        # Last, as a table of runs takes twice the memory of what was gathered.
        runs = self._merged_runs(order)
        return Manifest(
            attempt_id=self._attempt_id,
            created_us=0,
            writer=Writer(name="", version=""),
            require=(),
            files=files,
            tensors=tensors,
            runs=runs,
            chunks=chunks,
            state=state.root,
            per_rank=self._merged_per_rank(state, order.row),
            objects=self._merged_objects(state, order.row),
        )

    def _state(self) -> MergedState:
        if self._merged is None:
            problems = self._replicas.problems()
            try:
                merged = self._states.finish()
            except DisagreementError as error:
                raise disagreement([*error.problems, *problems][:MOST_PROBLEMS]) from None
            if problems:
                raise disagreement(problems)
            self._merged = merged
        return self._merged

    # ---- tables ----------------------------------------------------------------------------

    def _merged_files(self) -> tuple[list[FileRow], Ints]:
        """Return the files by name, and the row of each in the order of the parts."""
        order = sorted(range(len(self._files)), key=lambda row: self._files[row].name)
        row = np.zeros(len(order), dtype=np.int64)
        row[order] = np.arange(len(order))
        return [self._files[number] for number in order], row

    def _run_order(self, file_row: Ints) -> _RunOrder:
        """Return the order of the runs by file and position."""
        counts = self._counts
        file = _taken(self._runs.pop("file")) + _spread(_before(counts.files), counts.runs)
        file = file_row[file]
        if (file[1:] >= file[:-1]).all():
            return _RunOrder(file=file, order=None, row=None)
        position = _taken(self._runs["position"])
        order = np.lexsort((position, file))
        row = np.empty_like(order)
        row[order] = np.arange(len(order))
        self._runs["position"].append(position, len(position))
        return _RunOrder(file=file[order], order=order, row=row)

    def _merged_runs(self, order: _RunOrder) -> RunTable:
        """Return the runs by file and position."""
        table = {name: _taken(self._runs.pop(name)) for name in _RUN_WIDTHS if name != "file"}
        if order.order is not None:
            table = {name: column[order.order] for name, column in table.items()}
        return RunTable(file=order.file, **table)

    def _merged_chunks(
        self, state: MergedState, run_row: Ints | None
    ) -> tuple[TensorTable, ChunkTable]:
        columns, rows = self._chunks, self._counts.chunks
        first = _before([len(found) for found in state.tensor_rows])[self._counts.document]
        tensor = _taken(self._tensor) + _spread(first, rows)
        tensor = np.concatenate(state.tensor_rows, dtype=np.int32, casting="unsafe")[tensor]
        tensors = TensorTable(
            names=state.names,
            dtypes=state.dtypes,
            shapes=state.shapes,
            chunks=np.bincount(tensor, minlength=len(state.names)),
            aliases=state.aliases,
            extra=state.extra,
        )
        origin, start = columns["origin"].take(), columns["start"].take()
        order = sort_chunks(tensor, origin, start, state.shapes, find_repeated=bool(state.aliases))
        self._refuse_repeated(order.repeated, tensor, tensors)
        del tensor
        run = _taken(columns["run"]) + _spread(_before(self._counts.runs), rows)
        run = order.row(run if run_row is None else run_row[run])
        return tensors, _chunk_table(columns, order, run, origin, start, tensors)

    def _refuse_repeated(
        self, repeated: Ints, tensor: npt.NDArray[np.integer], tensors: TensorTable
    ) -> None:
        """Raise if the same elements were stored under two names of a tensor."""
        bounds = np.cumsum(self._counts.chunks)
        problems: dict[int, Problem] = {}
        for row in repeated[:MOST_PROBLEMS].tolist():
            found = int(tensor[row])
            if found in tensors.aliases:
                rank = self._counts.rank[int(np.searchsorted(bounds, row, side="right"))]
                others = ", ".join(map(shortened, tensors.aliases[found]))
                text = f"rank {rank} stored elements that a rank before it stored under another "
                text += f"name; a rank that holds one name of a tensor (also {others}) must hold "
                text += "all of them"
                where = tensors.names[found]
                problems[found] = Problem(code=ErrorCode.DISAGREE, where=where, message=text)
        if problems:
            raise disagreement(list(problems.values()))

    def _merged_per_rank(self, state: MergedState, run_row: Ints | None) -> PerRankTable:
        counts = self._counts
        table = {name: _taken(column) for name, column in self._per_rank.items()}
        first = _before([len(ordinals) for ordinals in state.ordinals])[counts.document]
        ordinal = np.concatenate(state.ordinals)
        table["path"] = ordinal[table["path"] + _spread(first, counts.per_rank)]
        table["run"] = table["run"] + _spread(_before(counts.runs), counts.per_rank)
        if self._stored is not None:
            undeclared, stored = state.undeclared, self._stored
            run = stored.run + (sum(counts.runs) - len(stored.runs))
            more = {"path": undeclared.path, "rank": undeclared.rank, "run": run}
            more |= {"offset": stored.offset, "nbytes": stored.nbytes}
            table = {name: np.concatenate((table[name], more[name])) for name in table}
        if run_row is not None:
            table["run"] = run_row[table["run"]]
        order = np.lexsort((table["rank"], table["path"]))
        return PerRankTable(**{name: column[order] for name, column in table.items()})

    def _merged_objects(self, state: MergedState, run_row: Ints | None) -> list[ObjectRow]:
        counts = self._counts
        first_run = _before(counts.runs).tolist()
        found: dict[int, tuple[ObjectRow, int]] = {}
        for part, local, run, offset in self._objects:
            rank, row = counts.rank[part], int(state.object_rows[counts.document[part]][local])
            ref = state.objects[row]
            if row in found:
                text = f"object {shortened(ref.name)} was stored by rank {found[row][1]} and rank "
                raise InvalidArgumentError(f"{text}{rank}; just one of them may store it")
            at = first_run[part] + run
            at = at if run_row is None else int(run_row[at])
            made = ObjectRow(name=ref.name, run=at, offset_bytes=offset, nbytes=ref.nbytes)
            found[row] = made, rank
        missing = next((row for row in range(len(state.objects)) if row not in found), None)
        if missing is not None:
            name = shortened(state.objects[missing].name)
            raise InvalidArgumentError(f"object {name} was stored by no rank")
        return [found[row][0] for row in range(len(state.objects))]


def _chunk_table(
    columns: dict[str, GatheredColumn],
    order: ChunkOrder,
    run: Ints,
    origin: Ints | None,
    start: Ints | None,
    tensors: TensorTable,
) -> ChunkTable:
    """Return the chunks in order; each column is forgotten when it is done."""
    extent, count = columns["extent"].take(), columns["count"].take()
    if extent is not None:
        extent = order.axes(extent)
        if columns["extent"].has_absent:
            extent = fill_extents(extent, tensors)
    if count is not None:
        count = order.row(count)
        if columns["count"].has_absent:
            count = fill_counts(count, extent, tensors)
    return ChunkTable(
        run=run,
        offset=order.row(_taken(columns["offset"])),
        origin=None if origin is None else order.axes(origin),
        extent=extent,
        start=None if start is None else order.row(start),
        count=count,
    )


def _taken(column: GatheredColumn) -> Ints:
    """Return the values of a column that every part has, if it has rows."""
    values = column.take()
    return ints([]) if values is None else values


def _spread(values: Ints, rows: Sequence[int]) -> Ints:
    """Return the value of each part for every one of its rows; further parts have none."""
    return np.repeat(values[: len(rows)], rows)


def _before(counts: Sequence[int]) -> Ints:
    """Return for each of some groups of rows how many rows come before it."""
    rows = ints(counts)
    return np.cumsum(rows) - rows
