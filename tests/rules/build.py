"""A valid checkpoint as plain values, to be changed in one place and then serialised by hand.

`base()` holds something of everything: a tensor in two chunks, an object, per-rank values, and
runs of every codec.  A test changes one thing; `Draft.parts` and `Parts.objects` then make rows,
columns, digests and lengths that fit what is there, so that the change is the only fault.
Nothing here uses the package.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from math import prod
from typing import Any

import msgpack

from tests.oracle.make_checkpoint import (
    PLANES,
    RAW,
    ZSTD,
    Run,
    padded,
    plain,
    shorter,
    xxh64,
    xxh128,
)

ATTEMPT = bytes(range(16))
EARLIER = bytes(range(100, 116))
"""The attempt id of files that an earlier save of the same run of training has written."""

MANIFEST_KEY = "manifest.bcp"
PAGE = 4096

# Any: rows and documents are whatever a test puts there, right or wrong.
Row = dict[str, Any]
Objects = dict[str, bytes]


def pack(value: object) -> bytes:
    """Return a value as a document, the keys of its maps in order."""
    return bytes(msgpack.packb(plain(value), use_bin_type=True))


@dataclass(slots=True)
class Header:
    """The fields of a file's header; a `checksum` of None is the right one."""

    kind: int
    attempt: bytes = ATTEMPT
    magic: bytes = b"\x89BCP\r\n\x1a\n"
    major: int = 1
    minor: int = 0
    flags: int = 0
    stored: int = 0
    raw: int = 0
    reserved: int = 0
    checksum: bytes | None = None

    def encoded(self) -> bytes:
        """Return the 64 bytes."""
        body = self.magic + struct.pack("<4H", self.major, self.minor, self.kind, self.flags)
        body += self.attempt + struct.pack("<3Q", self.stored, self.raw, self.reserved)
        return body + (xxh64(body) if self.checksum is None else self.checksum)


@dataclass(slots=True)
class DataFile:
    """The content of a data file.

    Attributes:
        header: Its header.
        parts: Position to bytes: the stored bytes of runs, or whatever else lies there.
        digests: The digest of each block.
        lengths: The stored length of each block, None for a table without lengths.
        table: Position of the block table.
    """

    header: Header
    parts: dict[int, bytes]
    digests: list[bytes]
    lengths: list[int] | None
    table: int

    def table_bytes(self) -> bytes:
        """Return the block table."""
        lengths = self.lengths or []
        return b"".join(self.digests) + struct.pack(f"<{len(lengths)}I", *lengths)

    def encoded(self) -> bytes:
        """Return the whole file."""
        out = bytearray(self.table)
        for position, data in {0: self.header.encoded(), **self.parts}.items():
            out[position : position + len(data)] = data
        return bytes(out) + self.table_bytes()


@dataclass(slots=True)
class Section:
    """One section; `wrong` replaces values of its row in the root, by their place."""

    kind: str
    first: int
    rows: int
    raw: bytes
    codec: str = "none"
    stored: bytes | None = None
    wrong: dict[int, Any] = field(default_factory=dict)

    def stored_bytes(self) -> bytes:
        """Return the bytes in the manifest."""
        return self.raw if self.stored is None else self.stored

    def row(self) -> list[Any]:
        """Return the row of the root."""
        stored = self.stored_bytes()
        row = [self.kind, self.first, self.rows, self.codec, len(stored), len(self.raw)]
        row.append(xxh128(stored))
        return [self.wrong.get(place, value) for place, value in enumerate(row)]


@dataclass(slots=True)
class Parts:
    """A checkpoint whose sections are bytes.

    Attributes:
        header: The manifest's header; its lengths are added to those of the root.
        root: The root without its sections, or all of it as a document.
        sections: The sections.
        root_stored: How the root is stored, None for raw.
        root_digest: The digest of the stored root, None for the right one.
        data: The data files by name.
        tail: Bytes after the last section.
    """

    header: Header
    root: Row | bytes
    sections: list[Section]
    data: dict[str, bytes]
    root_stored: bytes | None = None
    root_digest: bytes | None = None
    tail: bytes = b""

    def of(self, kind: str) -> Section:
        """Return the section of a kind."""
        return next(section for section in self.sections if section.kind == kind)

    def root_raw(self) -> bytes:
        """Return the root as a document."""
        if isinstance(self.root, bytes):
            return self.root
        return pack({"sections": [section.row() for section in self.sections], **self.root})

    def manifest(self) -> bytes:
        """Return the manifest."""
        raw = self.root_raw()
        stored = raw if self.root_stored is None else self.root_stored
        header = self.header
        lengths = (header.stored, header.raw)
        header.stored, header.raw = lengths[0] + len(stored), lengths[1] + len(raw)
        head = header.encoded()
        header.stored, header.raw = lengths
        digest = xxh128(stored) if self.root_digest is None else self.root_digest
        sections = b"".join(section.stored_bytes() for section in self.sections)
        return head + stored + digest + sections + self.tail

    def objects(self) -> Objects:
        """Return the objects of the checkpoint by key."""
        files = {f"data/{name}": data for name, data in self.data.items()}
        return {MANIFEST_KEY: self.manifest(), **files}


RUN_COLUMNS: Mapping[str, tuple[str, int | str]] = {
    "block": ("B", 20),
    "block0": ("I", 0),
    "codec": ("B", 0),
    "file": ("I", 0),
    "item": ("B", 1),
    "position": ("Q", 4096),
    "raw": ("Q", 0),
    "stored": ("Q", "raw"),
}
"""Column to the type of its values and its default: a number, or the column that has the same."""

CHUNK_COLUMNS: Mapping[str, tuple[str, int | str]] = {
    "count": ("Q", "elements"),
    "extent": ("Q", "shape"),
    "offset": ("Q", 0),
    "origin": ("Q", "zeros"),
    "run": ("I", 0),
    "start": ("Q", 0),
}
PER_RANK_COLUMNS: Mapping[str, tuple[str, int | str]] = {
    "nbytes": ("Q", 0),
    "offset": ("Q", 0),
    "path": ("I", 0),
    "rank": ("I", 0),
    "run": ("I", 0),
}


def columns(rows: Sequence[Row], kinds: Mapping[str, tuple[str, int | str]]) -> dict[str, bytes]:
    """Return the columns of some rows, without those that say nothing."""
    found = {}
    for name, (code, default) in kinds.items():
        values = _flat(row[name] for row in rows)
        usual = _flat(row[default] if isinstance(default, str) else default for row in rows)
        if values != usual:
            found[name] = struct.pack(f"<{len(values)}{code}", *values)
    return found


def _flat(values: Any) -> list[int]:
    return [n for value in values for n in (value if isinstance(value, list) else [value])]


@dataclass(slots=True)
class Draft:
    """A checkpoint as plain values; rows are maps from key or column to value.

    The file rows are those of `data`, in its order; one without `digest` gets the digest of its
    table, and a key whose value is None is left out.  A chunk row also has `tensor` and `shape`.
    """

    state: Any
    header: Header = field(default_factory=lambda: Header(kind=1))
    root: Row = field(default_factory=dict)
    files: list[Row] = field(default_factory=list)
    tensors: list[Row] = field(default_factory=list)
    runs: list[Row] = field(default_factory=list)
    chunks: list[Row] = field(default_factory=list)
    per_rank: list[Row] = field(default_factory=list)
    objects: list[Row] = field(default_factory=list)
    data: dict[str, DataFile] = field(default_factory=dict)

    def add_file(self, name: str, runs: Sequence[Run], *, attempt: bytes = ATTEMPT) -> None:
        """Add a data file of some runs: its content, its row and their rows."""
        parts: dict[int, bytes] = {}
        digests: list[bytes] = []
        lengths: list[int] = []
        position = PAGE
        for run in runs:
            first = len(lengths)
            stored = b""
            for block, encoded in run.blocks():
                digests.append(xxh64(block))
                lengths.append(len(encoded))
                stored += encoded
            row = {"file": len(self.files), "position": position, "block0": first}
            row |= {"raw": len(run.raw), "stored": len(stored), "codec": run.codec}
            self.runs.append(row | {"item": run.item, "block": run.block})
            parts[position] = stored
            position += len(padded(stored, PAGE))
        encoded_runs = any(run.codec != RAW for run in runs)
        file_row: Row = {"name": name, "table": position, "blocks": len(digests)}
        if encoded_runs:
            file_row["lengths"] = True
        if attempt != ATTEMPT:
            file_row["attempt"] = attempt
        self.files.append(file_row)
        header = Header(kind=2, attempt=attempt)
        self.data[name] = DataFile(
            header, parts, digests, lengths if encoded_runs else None, position
        )

    def add_chunk(self, tensor: int, *, run: int, offset: int = 0, **region: Any) -> None:
        """Add a chunk; what `region` does not say of origin, extent, start, count is all."""
        shape = list(self.tensors[tensor]["shape"])
        row: Row = {"tensor": tensor, "shape": shape, "run": run, "offset": offset, "start": 0}
        row |= {"origin": [0] * len(shape), "extent": shape}
        row |= region
        self.chunks.append({"count": prod(row["extent"]), **row})

    def parts(self) -> Parts:
        """Return the checkpoint with its sections as bytes."""
        contents: list[tuple[str, Sequence[Any], Callable[[], object]]] = [
            ("files", self.files, self._file_rows),
            ("tensors", self.tensors, lambda: self.tensors),
            ("runs", self.runs, lambda: columns(self.runs, RUN_COLUMNS)),
            ("chunks", self.chunks, self._chunk_columns),
            ("state", [self.state], lambda: self.state),
            ("per_rank", self.per_rank, lambda: columns(self.per_rank, PER_RANK_COLUMNS)),
            ("objects", self.objects, lambda: self.objects),
        ]
        sections = [
            Section(kind, 0, len(rows), pack(value())) for kind, rows, value in contents if rows
        ]
        data = {name: file.encoded() for name, file in self.data.items()}
        return Parts(self.header, self.root, sections, data)

    def _file_rows(self) -> list[Row]:
        digests: list[Row] = [{"digest": xxh128(file.table_bytes())} for file in self.data.values()]
        none: Row = {}
        rows = [digest | row for digest, row in zip_longest(digests, self.files, fillvalue=none)]
        return [{k: value for k, value in row.items() if value is not None} for row in rows]

    def _chunk_columns(self) -> dict[str, bytes]:
        rows = []
        for row in self.chunks:
            shape = row["shape"]
            usual = {"elements": prod(row["extent"]), "shape": shape, "zeros": [0] * len(shape)}
            rows.append(row | usual)
        return columns(rows, CHUNK_COLUMNS)

    def first(self, where: str) -> Row:
        """Return the root, the writer in it, or the first row of a section of rows."""
        if where == "root":
            return self.root
        row: Row = self.root["writer"] if where == "writer" else getattr(self, where)[0]
        return row

    def encoded(self) -> Objects:
        """Return the objects of the checkpoint by key."""
        return self.parts().objects()


def root() -> Row:
    """Return a root without sections."""
    return {
        "created": 1_700_000_000_000_000,
        "digest": "xxh3-64",
        "id": ATTEMPT,
        "optional": [],
        "require": [],
        "step": 7,
        "writer": {"name": "build", "version": "0"},
    }


FLOATS = struct.pack("<6f", 1, 2, 3, 4, 5, 6)
BLOB = bytes(range(100))
RANKS = {0: pack([2, 5]), 3: pack("three")}
ZEROS = bytes(8292)
ONES = b"\x80\x3f" * 4096
"""1.0 as bfloat16."""

W0, W1, BLOBS, Z, P = 0, 0, 1, 2, 3
"""Rows of the runs of `base()`."""


def base() -> Draft:
    """Return a valid checkpoint with something of everything; `EXPECTED` is its state."""
    draft = Draft(
        state=[6, "blob", [18, 1, 0], "epoch", [2, 3], "p", 0, "rank", [19, 0], "w", 1, "z", 2],
        root=root() | {"require": ["planes-zstd"]},
    )
    draft.add_file(
        "a.bcd",
        [Run([FLOATS[:12], FLOATS[12:]], item=4), Run([RANKS[0], RANKS[3], BLOB])],
    )
    draft.add_file(
        "b.bcd",
        [Run([ZEROS], codec=ZSTD, block=12), Run([ONES], codec=PLANES, item=2, block=13)],
    )
    draft.tensors = [
        {"name": "p", "dtype": "bfloat16", "shape": [4096]},
        {"name": "w", "dtype": "float32", "shape": [2, 3], "chunks": 2},
        {"name": "z", "dtype": "int8", "shape": [8292]},
    ]
    draft.add_chunk(0, run=3)
    draft.add_chunk(1, run=0, extent=[1, 3])
    draft.add_chunk(1, run=0, origin=[1, 0], extent=[1, 3], offset=64)
    draft.add_chunk(2, run=2)
    draft.per_rank = [
        {"path": 0, "rank": 0, "run": 1, "offset": 0, "nbytes": len(RANKS[0])},
        {"path": 0, "rank": 3, "run": 1, "offset": 64, "nbytes": len(RANKS[3])},
    ]
    draft.objects = [{"name": "blob", "run": 1, "offset": 128, "nbytes": len(BLOB)}]
    return draft


EXPECTED = {
    "blob": BLOB,
    "epoch": 3,
    "p": ("bfloat16", (4096,), ONES),
    "rank": {0: 5, 3: "three"},
    "w": ("float32", (2, 3), FLOATS),
    "z": ("int8", (8292,), ZEROS),
}
"""The state of `base()`, tensors as data type, shape and elements."""


def compressed(raw: bytes) -> bytes:
    """Return a frame of some bytes, which must make them shorter."""
    frame = bytes(shorter(raw))
    assert len(frame) < len(raw)
    return frame
