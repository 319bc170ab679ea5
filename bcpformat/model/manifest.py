"""The manifest in memory: what the bytes of a checkpoint mean (spec 7).

Rows that may count millions are columns (numpy arrays), never objects.  Nobody writes to a column
of a manifest that was read: it may be one number that takes no memory, or share that of another
column.  The state tree stays in its wire form, nested lists of plain values, until somebody asks
for the values (`model.state`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Node: TypeAlias = "int | bool | str | bytes | list[Node]"
"""A node of the state tree (spec 10)."""

Value: TypeAlias = "int | bool | str | bytes | list[Value] | dict[str, Value]"
"""Any value of the msgpack profile, as in `user` and `ext`."""

Ints: TypeAlias = npt.NDArray[np.int64]

MANIFEST_KEY = "manifest.bcp"
DATA_PREFIX = "data/"
DEFAULT_MEDIA = "application/octet-stream"
"""The media type of an object that states none (spec 7.5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """One data file (spec 7.2).

    Attributes:
        name: File name below ``data/``.
        attempt_id: 16 bytes, the attempt id in the file's header.
        table_bytes: Position of the block table, in bytes.
        blocks: Blocks in the table.
        digest: 16 bytes, XXH3-128 of the table.
        lengths: Whether stored lengths follow the digests.
        kind: ``"data"``, or a kind that this version ignores.
        unused: Ranges ``(position, nbytes)`` that this checkpoint does not use.
        extra: Other keys of the row as read: ``ext``, and those of a newer minor.
    """

    name: str
    attempt_id: bytes
    table_bytes: int
    blocks: int
    digest: bytes
    lengths: bool = False
    kind: str = "data"
    unused: tuple[tuple[int, int], ...] = ()
    extra: Mapping[str, Value] = field(default_factory=dict)

    @property
    def table_nbytes(self) -> int:
        """Size of the block table, in bytes."""
        return self.blocks * (12 if self.lengths else 8)

    @property
    def nbytes(self) -> int:
        """Size of the whole file, in bytes."""
        return self.table_bytes + self.table_nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTable:
    """All tensors, by ascending name (spec 7.3); parallel sequences, one entry a tensor.

    Attributes:
        names: Names, ascending by their UTF-8 bytes.
        dtypes: Registry names.
        shapes: Global shapes.
        chunks: Number of chunk rows of each, shape ``(len(names),)``.
        aliases: Row to its other names, in state order; only rows that have some.
        extra: Row to its other keys as read (``segments``, ``user``, ``ext``, newer ones).
    """

    names: Sequence[str]
    dtypes: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    chunks: Ints
    aliases: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    extra: Mapping[int, Mapping[str, Value]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """All runs, by file and position (spec 7.4); every column has shape ``(rows,)``.

    Attributes:
        file: Row of the data file.
        position: First byte in the file.
        raw: Raw bytes.
        stored: Stored bytes.
        codec: Codec code of the registry.
        item: Item size in bytes, 1, 2, 4 or 8.
        block_log2: Base-2 logarithm of the block size in bytes.
        block0: First block in the file's block table.
    """

    file: Ints
    position: Ints
    raw: Ints
    stored: Ints
    codec: Ints
    item: Ints
    block_log2: Ints
    block0: Ints

    def __len__(self) -> int:
        return len(self.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTable:
    """All chunks, by tensor, origin and start (spec 7.4).

    Attributes:
        run: Row of the run, shape ``(rows,)``.
        offset: First byte in the raw bytes of the run, shape ``(rows,)``.
        origin: Box origins, the rows' axes one after the other (each row has as many values as
            its tensor has axes), in tensor coordinates; None if all are zero.
        extent: Box extents, laid out the same; None if all boxes span their tensor.
        start: First element of the flat range, shape ``(rows,)``; None if all are zero.
        count: Elements of the flat range, shape ``(rows,)``; None if all ranges span their box.
    """

    run: Ints
    offset: Ints
    origin: Ints | None = None
    extent: Ints | None = None
    start: Ints | None = None
    count: Ints | None = None

    def __len__(self) -> int:
        return len(self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerRankTable:
    """All per-rank values, by path and rank (spec 7.4); every column has shape ``(rows,)``.

    Attributes:
        path: Ordinal of the per-rank node in the state tree.
        rank: Rank that held the value.
        run: Row of the run.
        offset: First byte in the raw bytes of the run.
        nbytes: Length of the encoded value.
    """

    path: Ints
    rank: Ints
    run: Ints
    offset: Ints
    nbytes: Ints

    def __len__(self) -> int:
        return len(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRow:
    """One opaque object (spec 7.5).

    Attributes:
        name: Its name: the path of the state node that refers to it.
        run: Row of the run.
        offset_bytes: First byte in the raw bytes of the run.
        nbytes: Length.
        media: Media type; never decoded by it.
    """

    name: str
    run: int
    offset_bytes: int
    nbytes: int
    media: str = DEFAULT_MEDIA


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Who wrote a checkpoint; advisory."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything a manifest says (spec 7).

    Attributes:
        attempt_id: 16 bytes.
        minor: Minor version of the header.
        created_us: Microseconds since 1970-01-01T00:00:00Z.
        writer: Who wrote it.
        require: Features a reader must know, ascending.
        optional: Features a reader may ignore, ascending.
        step: Training step, None if not given.
        user: The user's own metadata.
        files: Data files, by ascending name.
        tensors: Tensors, by ascending name.
        runs: Runs.
        chunks: Chunks.
        state: The node at the top of the state tree.
        per_rank: Per-rank values.
        objects: Opaque objects, by ascending name.
        digest: Name of the block digest.
        extra: Other keys of the root as read: ``ext``, and those of a newer minor.
    """

    attempt_id: bytes
    created_us: int
    writer: Writer
    require: tuple[str, ...]
    files: Sequence[FileRow]
    tensors: TensorTable
    runs: RunTable
    chunks: ChunkTable
    state: Node
    per_rank: PerRankTable
    objects: Sequence[ObjectRow] = ()
    optional: tuple[str, ...] = ()
    step: int | None = None
    user: Mapping[str, Value] = field(default_factory=dict)
    minor: int = 0
    digest: str = "xxh3-64"
    extra: Mapping[str, Value] = field(default_factory=dict)


def ints(values: Sequence[int] | npt.NDArray[np.generic]) -> Ints:
    """Return `values` as a column, without a copy where it is one already."""
    return np.asarray(values, dtype=np.int64)


def empty_per_rank() -> PerRankTable:
    """Return a table without rows."""
    none = ints([])
    return PerRankTable(path=none, rank=none, run=none, offset=none, nbytes=none)
