"""Part records: what one rank wrote, on its way to the rank that merges.

A record is one document of the profile, compressed, with a digest.  Numbers lie in one array of
64-bit integers, column after column; what the state says is a document of its own, because that
of most ranks is the same and is decoded once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np

from bcpformat.codec.digest import document_digest
from bcpformat.engine.state_record import (
    KnownStates,
    check_range,
    decode_state_record,
    encode_state_record,
    read_fields,
)
from bcpformat.errors import ErrorCode
from bcpformat.model.limits import DEFAULT_LIMITS, DOCUMENT_DEPTH, Limits
from bcpformat.model.manifest import ChunkTable, FileRow, Ints, PerRankTable, RunTable, Value, ints
from bcpformat.model.rank_state import RankState
from bcpformat.wire.mp import encode
from bcpformat.wire.rows import decode_files, encode_files
from bcpformat.wire.schema import Field, fault
from bcpformat.wire.sections import check_digest, pack_document, unpack_frame

RECORD_VERSION: Final = 1
_HEAD_BYTES = 24
MAX_GROUPS: Final = 2**26
"""Groups of replicas are numbered below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObjects:
    """The objects that a rank stores; every column has shape ``(rows,)``.

    Attributes:
        object: Row in the objects of the rank's state.
        run: Row of the run, in the part.
        offset: First byte in the raw bytes of the run.
    """

    object: Ints = field(default_factory=lambda: ints([]))
    run: Ints = field(default_factory=lambda: ints([]))
    offset: Ints = field(default_factory=lambda: ints([]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChecks:
    """Digests of pieces that other ranks hold too; equal groups must have equal digests.

    Attributes:
        group: Number of the group, the same on all holders and in no other tensor or region,
            below 2^26, shape ``(rows,)``.
        digest: The bits of a 64-bit digest, shape ``(rows,)``.
        tensor: Row of the tensor in the rank's state, shape ``(rows,)``.
        origin: Origin of each piece's box, the rows' axes one after the other.
    """

    group: Ints = field(default_factory=lambda: ints([]))
    digest: Ints = field(default_factory=lambda: ints([]))
    tensor: Ints = field(default_factory=lambda: ints([]))
    origin: Ints = field(default_factory=lambda: ints([]))

    def __len__(self) -> int:
        return len(self.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one rank wrote: its share of a manifest.

    Rows of files, runs, tensors and objects, and ordinals, are those of the part.

    Attributes:
        rank: The rank.
        attempt_id: 16 bytes, that of the save.
        state: What its state says.
        files: Data files that it wrote, by ascending name.
        runs: Their runs.
        chunk_tensor: Row of each chunk's tensor, shape ``(chunks,)``.
        chunks: Its chunks, in any order.
        per_rank: Its per-rank values: `path` is the ordinal in its own state.
        objects: The objects that it stores; other ranks store the others.
        checks: Digests of replicas.
        raw_bytes: Raw bytes of all that it stored.
    """

    rank: int
    attempt_id: bytes
    state: RankState
    files: Sequence[FileRow]
    runs: RunTable
    chunk_tensor: Ints
    chunks: ChunkTable
    per_rank: PerRankTable
    objects: StoredObjects = field(default_factory=StoredObjects)
    checks: ReplicaChecks = field(default_factory=ReplicaChecks)
    raw_bytes: int = 0


# ---- the record --------------------------------------------------------------------------------

_FIELDS = {
    "attempt": Field(value_type=bytes, needed=True, lengths=range(16, 17)),
    "columns": Field(value_type=bytes, needed=True),
    "counts": Field(value_type=list, needed=True, item_type=int),
    "digests": Field(value_type=bytes, needed=True),
    "files": Field(value_type=bytes, needed=True),
    "rank": Field(value_type=int, needed=True),
    "raw_bytes": Field(value_type=int, needed=True),
    "state": Field(value_type=bytes, needed=True),
    "version": Field(value_type=int, needed=True),
}
_TABLES = {
    "runs": tuple(column.name for column in fields(RunTable)),
    "chunks": ("tensor", *(column.name for column in fields(ChunkTable))),
    "per_rank": ("path", "run", "offset", "nbytes"),
    "objects": ("object", "run", "offset"),
    "checks": ("group", "tensor", "origin"),
}
"""Tables and their columns, in the order in which a record has them."""
_OPTIONAL = ("origin", "extent", "start", "count")
_PER_AXIS = ("origin", "extent")


def encode_part(part: Part) -> bytes:
    """Return a part as bytes, for `decode_part` in another process.

    Raises:
        InvalidArgumentError: A value has no form in a document (``E_NO_FORM``).
        FormatError: The rows of its files break a rule.
    """
    columns: list[Ints | None] = [
        part.chunk_tensor
        if name == "tensor" and table == "chunks"
        else getattr(getattr(part, table), name)
        for table, names in _TABLES.items()
        for name in names
    ]
    numbers = np.concatenate([column for column in columns if column is not None])
    document: dict[str, Value] = {
        "attempt": part.attempt_id,
        "columns": numbers.astype("<i8", copy=False).tobytes(),
        # 0 for a column that is absent, else 1 more than its length
        "counts": [0 if column is None else len(column) + 1 for column in columns],
        "digests": part.checks.digest.astype("<i8", copy=False).tobytes(),
        "files": encode_files(part.files, attempt_id=part.attempt_id, minor=0),
        "rank": part.rank,
        "raw_bytes": part.raw_bytes,
        "state": encode_state_record(part.state),
        "version": RECORD_VERSION,
    }
    raw = encode(document, max_depth=DOCUMENT_DEPTH, where="part record")
    stored = pack_document(raw, codec="zstd")
    return len(raw).to_bytes(8, "little") + document_digest(stored) + stored


def decode_part(
    data: bytes, *, where: str, limits: Limits = DEFAULT_LIMITS, known: KnownStates | None = None
) -> Part:
    """Return the part of a record.

    Args:
        data: The record.
        where: Whose it is, for messages.
        limits: Bounds on its size.
        known: States of other records of the save; new ones are added.

    Raises:
        FormatError: These are not the bytes of a part record of this version.
        LimitError: It is too large.
    """
    found = read_fields(_unpack(data, where, limits), _FIELDS, where)
    if found["version"] != RECORD_VERSION:
        text = f"a part record of version {found['version']}, this process has {RECORD_VERSION}"
        text += "; all ranks of a save must run one version of bcpformat"
        raise fault(ErrorCode.VERSION, where, text)
    state = known.find(document_digest(found["state"])) if known is not None else None
    if state is None:
        state = decode_state_record(found["state"], where)
        if known is not None:
            known.keep(state)
    attempt_id = found["attempt"]
    files = decode_files(found["files"], attempt_id=attempt_id, minor=0)
    digests = found["digests"]
    tables = _split(found["columns"], found["counts"], where)
    tables["checks"]["digest"] = np.frombuffer(digests[: len(digests) & -8], dtype="<i8")
    _check_tables(tables, state, len(files), where)
    per_rank = tables["per_rank"]
    per_rank["rank"] = np.full(len(per_rank["path"]), found["rank"], dtype=np.int64)
    return Part(
        rank=found["rank"],
        attempt_id=attempt_id,
        state=state,
        files=files,
        runs=RunTable(**tables["runs"]),
        chunk_tensor=tables["chunks"].pop("tensor"),
        chunks=ChunkTable(**tables["chunks"]),
        per_rank=PerRankTable(**per_rank),
        objects=StoredObjects(**tables["objects"]),
        checks=ReplicaChecks(**tables["checks"]),
        raw_bytes=found["raw_bytes"],
    )


def _unpack(data: bytes, where: str, limits: Limits) -> bytes:
    """Return the document of a record, verified."""
    head, stored = data[:_HEAD_BYTES], data[_HEAD_BYTES:]
    if len(head) < _HEAD_BYTES:
        raise fault(ErrorCode.TRUNCATED, where, f"a part record of {len(data)} bytes")
    check_digest(stored, head[8:], where=where)
    raw_bytes = int.from_bytes(head[:8], "little")
    if raw_bytes > limits.section_bytes:
        text = f"{raw_bytes} raw bytes, the limit is {limits.section_bytes}"
        raise fault(ErrorCode.LIMIT, where, text)
    if raw_bytes == len(stored):
        return stored
    return unpack_frame(stored, raw_bytes=raw_bytes, where=where)


# Any, here and below: a column, or None where it may be absent.
def _split(data: bytes, counts: Sequence[int], where: str) -> dict[str, dict[str, Any]]:
    """Return the columns of all tables."""
    names = [(table, name) for table, names in _TABLES.items() for name in names]
    if len(counts) != len(names) or sum(max(n - 1, 0) for n in counts) * 8 != len(data):
        raise fault(ErrorCode.COLUMN, where, "columns and their lengths do not fit each other")
    numbers = np.frombuffer(data, dtype="<i8")
    check_range(numbers, where)
    tables: dict[str, dict[str, Any]] = {table: {} for table in _TABLES}
    at = 0
    for (table, name), count in zip(names, counts, strict=True):
        if not count and not (table == "chunks" and name in _OPTIONAL):
            raise fault(ErrorCode.COLUMN, where, f"column {name!r} of {table} is missing")
        tables[table][name] = numbers[at : at + count - 1] if count else None
        at += max(count - 1, 0)
    return tables


def _check_tables(
    tables: Mapping[str, Mapping[str, Any]], state: RankState, files: int, where: str
) -> None:
    """Raise for a column of another length than its table's, or a row that does not exist."""
    ndim = np.fromiter(map(len, state.shapes), np.int64, len(state.shapes))
    runs = len(tables["runs"]["file"])
    bounds = {
        ("runs", "file"): files,
        ("chunks", "tensor"): len(ndim),
        ("per_rank", "path"): state.per_rank,
        ("objects", "object"): len(state.objects),
        ("checks", "group"): MAX_GROUPS,
        ("checks", "tensor"): len(ndim),
    }
    for table, columns in tables.items():
        rows = len(next(iter(columns.values())))  # the first is never absent
        for name, column in columns.items():
            if column is None:
                continue
            below = runs if name == "run" else bounds.get((table, name))
            if below is not None and column.max(initial=-1) >= below:
                text = f"{table}: {name} {column.max()} does not exist, there are {below}"
                raise fault(ErrorCode.INDEX, where, text)
            axes = name in _PER_AXIS
            expected = int(ndim[columns["tensor"]].sum()) if axes else rows
            if len(column) != expected:
                text = f"{table}: column {name!r} has {len(column)} values, expected {expected}"
                raise fault(ErrorCode.COLUMN, where, text)
