"""Data files and their block tables: opened when needed, verified once (spec 5.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import numpy.typing as npt

from bcpformat.codec.digest import document_digest
from bcpformat.engine.memory import Bytes
from bcpformat.errors import ChecksumError, ErrorCode, FormatError, LimitError
from bcpformat.model.checks import CODEC_RAW
from bcpformat.model.geometry import block_counts
from bcpformat.model.limits import Limits
from bcpformat.model.manifest import DATA_PREFIX, Ints, Manifest
from bcpformat.plan.pack import aligned
from bcpformat.storage.buffers import AlignedBuffer
from bcpformat.storage.store import ObjectReader, Store

DIRECT_BYTES = 2**26
"""Data files from this size on are read past the page cache."""


@dataclass(frozen=True, slots=True)
class BlockTable:
    """A verified block table.

    Attributes:
        digests: XXH3-64 of each block's raw bytes, shape `(blocks,)`.
        lengths: Stored length of each block, shape `(blocks,)`; None if no run is encoded.
        ends: Sum of the stored lengths up to and with each block; None without lengths.
    """

    digests: npt.NDArray[np.uint64]
    lengths: Ints | None
    ends: Ints | None


@dataclass(frozen=True, slots=True)
class _Opened:
    """Open files, and the block tables that have their digest, by row of the file."""

    lock: Lock = field(default_factory=Lock)
    readers: dict[int, ObjectReader] = field(default_factory=dict)
    tables: dict[int, BlockTable] = field(default_factory=dict)


class DataFiles:
    """The data files of one checkpoint; every method may be called from any thread."""

    def __init__(
        self, store: Store, manifest: Manifest, *, limits: Limits, opened: _Opened | None = None
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._limits = limits
        self._opened = _Opened() if opened is None else opened
        self._checked: set[int] = set()  # files whose table agrees with the runs
        self._bounds = np.searchsorted(manifest.runs.file, np.arange(len(manifest.files) + 1))

    def with_runs(self, manifest: Manifest) -> DataFiles:
        """Return the same files, opened once for both, with other runs of the same manifest."""
        return DataFiles(self._store, manifest, limits=self._limits, opened=self._opened)

    def key(self, file: int) -> str:
        """Return the key of a file's object."""
        return DATA_PREFIX + self._manifest.files[file].name

    def runs(self, file: int) -> slice:
        """Return the rows of a file's runs."""
        return slice(int(self._bounds[file]), int(self._bounds[file + 1]))

    def reader(self, file: int) -> ObjectReader:
        """Return the opened file, its length checked.

        Raises:
            ObjectNotFoundError: It is missing.
            FormatError: It is shorter (``E_TRUNCATED``) or longer (``E_FILE_LENGTH``) than its row.
        """
        with self._opened.lock:
            reader = self._opened.readers.get(file)
            if reader is None:
                reader = self._open(file)
                self._opened.readers[file] = reader
            return reader

    def _open(self, file: int) -> ObjectReader:
        row = self._manifest.files[file]
        reader = self._store.open_reader(self.key(file), direct=row.nbytes >= DIRECT_BYTES)
        if reader.nbytes != row.nbytes:
            reader.close()
            code = ErrorCode.TRUNCATED if reader.nbytes < row.nbytes else ErrorCode.FILE_LENGTH
            text = f"{self.key(file)}: expected {row.nbytes} bytes, found {reader.nbytes}"
            raise FormatError(text, code=code)
        return reader

    def read(self, file: int, offset_bytes: int, nbytes: int) -> Bytes:
        """Return bytes of a file, read through the handle that was checked (BCP-SEC-003).

        Args:
            file: Row of the file.
            offset_bytes: A multiple of 4096.
            nbytes: At least 1; the file is long enough, as its length was compared with its row.

        Raises:
            FormatError: The file has been cut short since it was opened (``E_TRUNCATED``).
        """
        reader = self.reader(file)
        buffer = AlignedBuffer(aligned(nbytes, reader.alignment)).array
        reader.read_into(offset_bytes, buffer)
        return buffer[:nbytes]

    def table(self, file: int) -> BlockTable:
        """Return a file's block table, verified.

        Raises:
            ChecksumError: Its digest differs from the file row's (``E_TABLE_CHECKSUM``).
            FormatError: Its stored lengths break a rule (``E_TABLE``).
            LimitError: It is larger than the limit (``E_LIMIT``).
        """
        with self._opened.lock:
            table = self._opened.tables.get(file)
        if table is None:
            table = self._read_table(file)
            with self._opened.lock:
                self._opened.tables[file] = table
        if file not in self._checked:
            self._check_lengths(file, table)
            self._checked.add(file)
        return table

    def _read_table(self, file: int) -> BlockTable:
        row = self._manifest.files[file]
        key = self.key(file)
        if row.table_nbytes > self._limits.table_bytes:
            text = f"{key}: block table of {row.table_nbytes} bytes, the limit is "
            raise LimitError(text + str(self._limits.table_bytes), code=ErrorCode.LIMIT)
        data = self.read(file, row.table_bytes, row.table_nbytes)
        found = document_digest(data)
        if found != row.digest:
            text = f"{key}: digest of the block table is {found.hex()}, the manifest says "
            raise ChecksumError(text + row.digest.hex(), code=ErrorCode.TABLE_CHECKSUM)
        digests = np.frombuffer(data, dtype="<u8", count=row.blocks)
        if not row.lengths:
            return BlockTable(digests=digests, lengths=None, ends=None)
        lengths = np.frombuffer(data, dtype="<u4", offset=8 * row.blocks).astype(np.int64)
        return BlockTable(digests=digests, lengths=lengths, ends=np.cumsum(lengths))

    def _check_lengths(self, file: int, table: BlockTable) -> None:
        """Check BCP-DAT-006 for every run of a file."""
        lengths, ends = table.lengths, table.ends
        if lengths is None or ends is None:
            return
        runs, rows = self._manifest.runs, self.runs(file)
        counts = block_counts(runs)[rows]
        first = runs.block0[rows]
        stop = first + counts
        stored = ends[stop - 1] - ends[first] + lengths[first]
        run = np.repeat(np.arange(len(counts)), counts)
        index = np.arange(len(run)) - (np.cumsum(counts) - counts)[run]
        log2 = runs.block_log2[rows][run]
        raw = np.minimum(np.int64(1) << log2, runs.raw[rows][run] - (index << log2))
        mine = lengths[first[run] + index]
        exact = runs.codec[rows][run] == CODEC_RAW
        bad = (mine > raw) | (exact & (mine != raw))
        # those of blocks that no run uses have no raw length to compare with
        if bad.any() or (lengths < 1).any() or (stored != runs.stored[rows]).any():
            text = f"{self.key(file)}: stored lengths of blocks do not agree with its runs"
            raise FormatError(text, code=ErrorCode.TABLE)

    def close(self) -> None:
        """Close all files."""
        with self._opened.lock:
            for reader in self._opened.readers.values():
                reader.close()
            self._opened.readers.clear()
