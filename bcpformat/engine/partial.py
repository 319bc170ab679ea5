"""A manifest of which a read fetches, decodes and checks what it needs (BCP-MAN-012, BCP-RDR-003).

The first request brings 1 MiB.  A manifest that ends there is decoded at once.  Of a larger one
the files and tensors are decoded first; the state and what belongs to it when somebody asks; and
for some tensors the groups of chunks that hold their rows, then the groups of runs in which those
chunks lie that the read wants.  So one tensor costs three requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import RLock

import numpy as np

from bcpformat.engine.load import ManifestBytes
from bcpformat.engine.section_reader import Head, SectionReader, Tree, raise_first
from bcpformat.errors import FormatError
from bcpformat.model.checks import check_excerpt, check_manifest
from bcpformat.model.closing import Closing
from bcpformat.model.excerpt import Excerpt, empty_runs, take_per_rank
from bcpformat.model.limits import Limits
from bcpformat.model.manifest import (
    MANIFEST_KEY,
    ChunkTable,
    FileRow,
    Ints,
    Manifest,
    Node,
    ObjectRow,
    PerRankTable,
    RunTable,
    TensorTable,
    empty_per_rank,
    ints,
)
from bcpformat.model.nodes import NONE
from bcpformat.model.region import Box
from bcpformat.plan.resolve import ChunkIndex
from bcpformat.storage.store import Store
from bcpformat.wire import Root, decode_manifest, manifest_of

MOST_EXCERPTS = 64
"""After so many, all of a manifest takes less time than more of them."""


class ManifestReader(Closing):
    """The manifest of one checkpoint, of which a large one is read as far as somebody asks.

    Every row that it hands out passed all rules, but for those about what is absent from an
    excerpt.  Every method and property raises `FormatError` for the first rule that is broken, and
    `StateError` for what has not been read when it is closed.

    Thread safety: everything may be called from any thread.

    Attributes:
        root: What the root says.

    Example:
        >>> import bcpformat, numpy
        >>> from bcpformat.model.manifest import ints
        >>> store = bcpformat.MemoryStore()
        >>> report = bcpformat.write(store, {"w": numpy.zeros(3)})
        >>> with ManifestReader(store, limits=bcpformat.Limits()) as reader:
        ...     excerpt = reader.excerpt(ints([0]), {})
        ...     excerpt.manifest.runs.raw.tolist(), reader.requests
        ([24], 1)
    """

    def __init__(self, store: Store, *, limits: Limits) -> None:
        """Do the first request, and decode the root and the sections that every read needs.

        Raises:
            ObjectNotFoundError: There is no manifest: code ``E_NOT_COMMITTED``.
            FormatError: It is damaged, or breaks a rule.
        """
        self._limits = limits
        self._lock = RLock()
        self._excerpts = 0
        self._is_damaged = False
        self._whole: Manifest | None = None
        self._tree: Tree | None = None
        self._bytes = ManifestBytes(store, limits=limits)
        try:
            self.root: Root = self._bytes.root
            self._sections = SectionReader(self._bytes, limits=limits)
            if self._bytes.is_whole:
                whole = self.whole()
                self._head = Head(whole.files, whole.tensors)
            else:
                self._head = self._sections.head()
        except BaseException:
            self.close()
            raise

    @property
    def requests(self) -> int:
        """Reads of the manifest so far."""
        return self._bytes.requests

    @property
    def read_bytes(self) -> int:
        """Bytes of those."""
        return self._bytes.read_bytes

    @property
    def files(self) -> Sequence[FileRow]:
        """All data files."""
        return self._head.files

    @property
    def tensors(self) -> TensorTable:
        """All tensors."""
        return self._head.tensors

    @property
    def state(self) -> Node:
        """The node at the top of the state tree."""
        return self._read_tree().state

    @property
    def per_rank(self) -> PerRankTable:
        """All per-rank values; their runs are rows of the whole manifest."""
        return self._read_tree().per_rank

    @property
    def objects(self) -> Sequence[ObjectRow]:
        """All objects; their runs are rows of the whole manifest."""
        return self._read_tree().objects

    @property
    def is_whole(self) -> bool:
        """Whether everything has been read."""
        return self._whole is not None

    def whole(self) -> Manifest:
        """Return everything that the manifest says; what is not in memory is read."""
        with self._lock:
            if self._whole is None:
                data = self._bytes.whole()
                manifest = decode_manifest(data, key=MANIFEST_KEY, limits=self._limits)
                raise_first(check_manifest(manifest, limits=self._limits))
                self._whole = manifest
                self._sections.forget()
            return self._whole

    def excerpt(self, tensors: Ints, boxes: Mapping[int, Box]) -> Excerpt:
        """Return the chunks that some wants may need, with their runs.

        That is everything, if the manifest is small, if more than half of its chunks are wanted, or
        once more than half of its groups or many excerpts have been asked for; unless something
        else in it is damaged, which does not matter here.

        Args:
            tensors: Row of each want's tensor, shape `(wants,)`.
            boxes: Want to its box in tensor coordinates; wants without one take all elements.

        Preconditions: boxes lie within their tensors.
        """
        with self._lock:
            whole = self._widened(tensors, boxes)
            if whole is not None:
                return Excerpt(manifest=whole)
            found = self._sections.chunks(self.tensors, np.unique(tensors))
            if boxes:
                index = ChunkIndex(self._manifest(found.tensors, chunks=found.table))
                found = found.near(index.near(tensors, boxes))
            run = found.table.run
            used, runs = self._sections.runs(run, lambda at: self._chunk_place(int(found.rows[at])))
            manifest = self._manifest(
                found.tensors,
                chunks=replace(found.table, run=np.searchsorted(used, run)),
                runs=runs,
            )
            return _checked(
                Excerpt(manifest=manifest, chunks=found.rows, runs=used, per_rank=ints([]))
            )

    def values(self, *, per_rank: Ints, objects: Ints) -> Excerpt:
        """Return some per-rank values and objects, with their runs, and no tensors.

        Args:
            per_rank: Rows of the per-rank values, ascending without duplicates.
            objects: Rows of the objects, likewise.

        Returns:
            An excerpt with exactly these values and objects, in this order.
        """
        with self._lock:
            self._excerpts += 1
            values = take_per_rank(self.per_rank, per_rank)
            found = [self.objects[row] for row in objects.tolist()]

            def place(at: int) -> str:
                if at < len(per_rank):
                    return f"per-rank value {int(per_rank[at])}"
                return f"object {found[at - len(per_rank)].name!r}"

            run = np.concatenate((values.run, ints([o.run for o in found])))
            used, runs = self._sections.runs(run, place)
            run = np.searchsorted(used, run)
            rest = run[len(per_rank) :].tolist()
            manifest = self._manifest(
                TensorTable(names=(), dtypes=(), shapes=(), chunks=ints([])),
                runs=runs,
                per_rank=replace(values, run=run[: len(per_rank)]),
                objects=[replace(o, run=row) for o, row in zip(found, rest, strict=True)],
            )
            excerpt = Excerpt(manifest=manifest, chunks=ints([]), runs=used, per_rank=per_rank)
            return _checked(excerpt)

    def close(self) -> None:
        """Close the manifest; what has been read can still be asked for."""
        self._bytes.close()

    def _read_tree(self) -> Tree:
        with self._lock:
            if self._tree is None and self._whole is not None:
                self._tree = Tree(self._whole.state, self._whole.per_rank, self._whole.objects)
            if self._tree is None:
                self._tree = self._sections.tree(self.tensors)
            return self._tree

    def _widened(self, tensors: Ints, boxes: Mapping[int, Box]) -> Manifest | None:
        """Return the whole manifest if it is there, or costs less than more excerpts."""
        self._excerpts += 1
        if self._whole is not None or self._is_damaged:
            return self._whole
        complete = np.ones(len(tensors), dtype=np.bool_)
        complete[list(boxes)] = False
        chunks = int(self.tensors.chunks[np.unique(tensors[complete])].sum())
        if (
            2 * chunks > self.root.rows("chunks")
            or self._sections.asked_share > 0.5
            or self._excerpts > MOST_EXCERPTS
        ):
            try:
                return self.whole()
            except FormatError:
                self._is_damaged = True  # perhaps not where anybody reads
        return None

    def _chunk_place(self, row: int) -> str:
        tensor = int(np.searchsorted(np.cumsum(self.tensors.chunks), row, side="right"))
        return f"chunk {row} of tensor {self.tensors.names[tensor]!r}"

    def _manifest(
        self,
        tensors: TensorTable,
        *,
        chunks: ChunkTable | None = None,
        runs: RunTable | None = None,
        per_rank: PerRankTable | None = None,
        objects: Sequence[ObjectRow] = (),
    ) -> Manifest:
        none = ints([])
        return manifest_of(
            self.root,
            files=self.files,
            tensors=tensors,
            runs=empty_runs() if runs is None else runs,
            chunks=ChunkTable(run=none, offset=none) if chunks is None else chunks,
            state=[NONE],
            per_rank=empty_per_rank() if per_rank is None else per_rank,
            objects=objects,
        )


def _checked(excerpt: Excerpt) -> Excerpt:
    raise_first(check_excerpt(excerpt))
    return excerpt
