"""The sections of a manifest that somebody asks for, fetched and decoded (BCP-MAN-012)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from bcpformat.engine.load import ManifestBytes
from bcpformat.errors import ErrorCode, Problem, error_for
from bcpformat.model.checks import check_names, check_references, check_regions, check_tensors
from bcpformat.model.excerpt import take_chunks, take_runs
from bcpformat.model.limits import GROUP_ROWS, Limits
from bcpformat.model.manifest import (
    MANIFEST_KEY,
    ChunkTable,
    FileRow,
    Ints,
    Node,
    ObjectRow,
    PerRankTable,
    RunTable,
    TensorTable,
    ints,
)
from bcpformat.plan.ranges import expand
from bcpformat.wire import SectionRow, Sections

Table = TypeVar("Table", RunTable, ChunkTable)


@dataclass(frozen=True, slots=True)
class Head:
    """The sections that every read needs."""

    files: Sequence[FileRow]
    tensors: TensorTable


@dataclass(frozen=True, slots=True)
class Tree:
    """The state, and what only it refers to."""

    state: Node
    per_rank: PerRankTable
    objects: Sequence[ObjectRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """All chunks of some tensors.

    Attributes:
        tensors: All tensors; others than those have no chunks.
        rows: Row in the manifest of each chunk, ascending.
        table: The chunks.
    """

    tensors: TensorTable
    rows: Ints
    table: ChunkTable

    def near(self, chunks: Ints) -> Chunks:
        """Return some of the chunks, by their positions, ascending."""
        counts = self.tensors.chunks
        owner = np.repeat(np.arange(len(counts)), counts)
        kept = np.bincount(owner[chunks], minlength=len(counts))
        return Chunks(
            tensors=replace(self.tensors, chunks=ints(kept)),
            rows=self.rows[chunks],
            table=take_chunks(self.table, chunks, _ndim(self.tensors)[owner]),
        )


@dataclass(frozen=True, slots=True)
class _Groups(Generic[Table]):
    """Decoded groups of one kind: their numbers, ascending, and their rows."""

    numbers: Ints
    table: Table

    def places(self, rows: Ints) -> Ints:
        """Return where rows of the manifest are; all groups but the last are full."""
        return np.searchsorted(self.numbers, rows // GROUP_ROWS) * GROUP_ROWS + rows % GROUP_ROWS


class SectionReader:
    """Decodes the sections of one manifest; of chunks and runs those that were asked for last stay.

    Rules that need no run are checked here.  Every method raises `FormatError` for the first one
    that is broken.

    Attributes:
        root: What the root says.
    """

    def __init__(self, found: ManifestBytes, *, limits: Limits) -> None:
        self.root = found.root
        self._bytes = found
        self._sections = Sections(self.root, found.section, key=MANIFEST_KEY, limits=limits)
        self._rows = {kind: self.root.of_kind(kind) for kind in ("runs", "chunks")}
        self._asked: set[SectionRow] = set()
        self._runs: _Groups[RunTable] | None = None
        self._chunks: _Groups[ChunkTable] | None = None

    @property
    def asked_share(self) -> float:
        """The share of all groups that has been asked for, 0 to 1."""
        return len(self._asked) / max(1, sum(map(len, self._rows.values())))

    def head(self) -> Head:
        """Return files and tensors."""
        self._bytes.load([*self.root.of_kind("files"), *self.root.of_kind("tensors")])
        tensors = self._sections.tensors()
        head = Head(self._sections.files(), tensors)
        raise_first(check_tensors(tensors, self.root.require))
        return head

    def tree(self, tensors: TensorTable) -> Tree:
        """Return the state, and what only it refers to."""
        rows = {kind: self.root.of_kind(kind) for kind in ("state", "per_rank", "objects")}
        self._bytes.load([row for found in rows.values() for row in found])
        state = self._sections.state()
        per_rank = self._sections.per_rank(rows["per_rank"])
        objects = self._sections.objects()
        raise_first(check_names(tensors, objects))
        raise_first(check_references(state, tensors, objects, per_rank))
        return Tree(state, per_rank, objects)

    def chunks(self, tensors: TensorTable, wanted: Ints) -> Chunks:
        """Return all chunks of some tensors, which tile them.

        Args:
            tensors: All tensors.
            wanted: Rows of some, ascending without duplicates.
        """
        stop = np.cumsum(tensors.chunks)
        rows = expand((stop - tensors.chunks)[wanted], tensors.chunks[wanted])[1]
        numbers = np.unique(rows // GROUP_ROWS)
        found = self._chunks
        if found is None or not np.array_equal(found.numbers, numbers):
            groups = self._groups("chunks", numbers)
            found = _Groups(numbers, self._sections.chunks(groups, tensors=tensors))
            self._chunks = found
        table = found.table
        if len(rows) < len(table):
            sizes = ints([self._rows["chunks"][number].rows for number in numbers.tolist()])
            owner = np.searchsorted(stop, expand(numbers * GROUP_ROWS, sizes)[1], side="right")
            table = take_chunks(table, found.places(rows), _ndim(tensors)[owner])
        counts = np.zeros_like(tensors.chunks)
        counts[wanted] = tensors.chunks[wanted]
        chunks = Chunks(tensors=replace(tensors, chunks=counts), rows=rows, table=table)
        raise_first(check_regions(chunks.tensors, chunks.table, wanted))
        return chunks

    def runs(self, run: Ints, place: Callable[[int], str]) -> tuple[Ints, RunTable]:
        """Return the rows of the runs that are referred to, ascending, and those runs.

        Args:
            run: Rows of runs, as the manifest says, in any order.
            place: Gives words for what it says one of them of, by position.
        """
        used = np.unique(run)
        total = self.root.rows("runs")
        if len(used) and used[-1] >= total:
            at = int(np.argmax(run >= total))
            text = f"run {int(run[at])} does not exist"
            raise error_for(Problem(code=ErrorCode.INDEX, where=place(at), message=text))
        numbers = np.unique(used // GROUP_ROWS)
        found = self._runs
        if found is None or not np.array_equal(found.numbers, numbers):
            found = _Groups(numbers, self._sections.runs(self._groups("runs", numbers)))
            self._runs = found
        return used, take_runs(found.table, found.places(used))

    def forget(self) -> None:
        """Release the memory of chunks and runs."""
        self._runs = self._chunks = None

    def _groups(self, kind: str, numbers: Ints) -> list[SectionRow]:
        """Return groups of a kind, fetched."""
        groups = [self._rows[kind][number] for number in numbers.tolist()]
        self._asked.update(groups)
        self._bytes.load(groups)
        return groups


def raise_first(problems: Sequence[Problem]) -> None:
    """Raise the first of some problems, if there is one."""
    for problem in problems:
        raise error_for(problem)


def _ndim(tensors: TensorTable) -> Ints:
    return np.fromiter(map(len, tensors.shapes), np.int64, len(tensors))
