"""Reads one checkpoint, and of a large manifest only what those reads need."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

import numpy as np

from bcpformat.engine.memory import Bytes
from bcpformat.engine.options import ReadOptions
from bcpformat.engine.partial import ManifestReader
from bcpformat.engine.read import TensorReader, check_budget
from bcpformat.engine.sink import Destinations
from bcpformat.engine.tables import DataFiles
from bcpformat.model.excerpt import Excerpt
from bcpformat.model.manifest import Ints, ints
from bcpformat.model.progress import Progress
from bcpformat.model.region import Box
from bcpformat.storage.store import Store


class CheckpointReader:
    """Reads parts of one checkpoint by their rows in its manifest.

    Thread safety: everything may be called from any thread.

    Attributes:
        manifest: What the manifest says, read as far as somebody asks.
    """

    def __init__(self, store: Store, options: ReadOptions) -> None:
        """Do the first request.

        Raises:
            ObjectNotFoundError: There is no manifest: code ``E_NOT_COMMITTED``.
            FormatError: It is damaged, or breaks a rule.
        """
        self.manifest = ManifestReader(store, limits=options.limits)
        self._store = store
        self._options = options
        self._lock = Lock()
        self._whole: TensorReader | None = None
        self._files: DataFiles | None = None

    @property
    def is_shared(self) -> bool:
        """Whether ranks that read together fetch once what several of them need."""
        return self._options.shared

    def whole(self) -> TensorReader:
        """Return the reader of all tensors; what of the manifest is not in memory is read.

        Raises:
            FormatError: Something of the manifest is damaged, or breaks a rule.
        """
        excerpt = Excerpt(manifest=self.manifest.whole())
        with self._lock:
            if self._whole is None:
                self._whole = self._reader(excerpt)
            return self._whole

    def reader_for(self, tensors: Ints, boxes: Mapping[int, Box]) -> TensorReader:
        """Return a reader for some wants, whose manifest may lack what they do not need.

        Args:
            tensors: Row of each want's tensor, shape `(wants,)`.
            boxes: Want to its box in tensor coordinates; wants without one take all elements.

        Returns:
            It is closed by `close` of this reader, as all use the same open files.

        Raises:
            FormatError: What it needs of the manifest is damaged, or breaks a rule.
        """
        excerpt = self.manifest.excerpt(tensors, boxes)
        return self.whole() if excerpt.is_whole else self._locked_reader(excerpt)

    def read_tensors(
        self,
        tensors: Ints,
        boxes: Mapping[int, Box],
        out: Destinations,
        *,
        progress: Progress,
    ) -> None:
        """Fill every destination, or raise; as `TensorReader.read_tensors`."""
        reader = self.reader_for(tensors, boxes)
        reader.read_tensors(tensors, boxes, out, progress=progress)

    def read_per_rank(self, rows: Ints) -> list[Bytes]:
        """Return the documents of some rows of the per-rank values, verified, in this order."""
        if self.manifest.is_whole:
            table = self.manifest.per_rank
            return self.whole().read_ranges(table.run[rows], table.offset[rows], table.nbytes[rows])
        own, place = np.unique(rows, return_inverse=True)
        excerpt = self.manifest.values(per_rank=own, objects=ints([]))
        found = excerpt.manifest.per_rank
        reader = self._locked_reader(excerpt)
        return reader.read_ranges(found.run[place], found.offset[place], found.nbytes[place])

    def read_object(self, row: int) -> Bytes:
        """Return the bytes of a row of the objects, verified."""
        if self.manifest.is_whole:
            reader, item = self.whole(), self.manifest.objects[row]
        else:
            excerpt = self.manifest.values(per_rank=ints([]), objects=ints([row]))
            reader, (item,) = self._locked_reader(excerpt), excerpt.manifest.objects
        (data,) = reader.read_ranges(
            ints([item.run]), ints([item.offset_bytes]), ints([item.nbytes])
        )
        return data

    def check_budget(self, nbytes: int) -> None:
        """Raise before an allocation that the budget does not allow.

        Raises:
            LimitError: Code ``E_BUDGET``.
        """
        check_budget(nbytes, self._options)

    def close(self) -> None:
        """Close the manifest and the data files; a second call does nothing."""
        self.manifest.close()
        with self._lock:
            if self._files is not None:
                self._files.close()

    def _locked_reader(self, excerpt: Excerpt) -> TensorReader:
        with self._lock:
            return self._reader(excerpt)

    def _reader(self, excerpt: Excerpt) -> TensorReader:
        reader = TensorReader(self._store, excerpt, self._options, files=self._files)
        self._files = reader.files
        return reader
