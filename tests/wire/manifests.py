"""Random manifests, an equality for them, and manifests put together from raw sections.

The random ones keep every rule of a single section; rules between sections are of no concern
here, so offsets, runs and regions are arbitrary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import numpy as np
import xxhash
from hypothesis import strategies as st

from bcpformat.model.limits import MAX_INTEGER
from bcpformat.model.manifest import (
    ChunkTable,
    FileRow,
    Ints,
    Manifest,
    ObjectRow,
    PerRankTable,
    RunTable,
    TensorTable,
    Value,
    Writer,
    empty_per_rank,
    ints,
)
from bcpformat.wire.container import Header, Kind, encode_header

ID = bytes(range(16))
DIGEST = bytes(range(100, 116))

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6)
INTEGERS = st.one_of(
    st.sampled_from([0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, MAX_INTEGER]),
    st.integers(0, MAX_INTEGER),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(INTEGERS, st.booleans(), TEXT, st.binary(max_size=40)),
    lambda inner: st.one_of(st.lists(inner, max_size=18), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=25,
)
MAPS = st.dictionaries(TEXT, VALUES, min_size=1, max_size=2)


def plain(value: object) -> object:
    """Return a model value as nested plain values that `==` compares; types count."""
    if isinstance(value, np.ndarray):
        return ("column", str(value.dtype), value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return (type(value).__name__, value)


def column(draw: st.DrawFn, count: int, largest: int = MAX_INTEGER, least: int = 0) -> Ints:
    values = st.one_of(st.integers(least, min(least + 2, largest)), st.integers(least, largest))
    return ints(draw(st.lists(values, min_size=count, max_size=count)))


@st.composite
def file_rows(draw: st.DrawFn, extra: Sequence[str]) -> FileRow:
    other = draw(st.booleans())
    positions = sorted(draw(st.sets(INTEGERS, max_size=3))) if other else []
    return FileRow(
        name=draw(st.from_regex(r"[a-z0-9][a-z0-9-]{0,4}\.bcd", fullmatch=True)),
        attempt_id=DIGEST if other else ID,
        table_bytes=draw(INTEGERS),
        blocks=draw(INTEGERS),
        digest=draw(st.binary(min_size=16, max_size=16)),
        lengths=draw(st.booleans()),
        kind=draw(st.sampled_from(["data", "parity"])),
        unused=tuple((position, max(1, draw(INTEGERS))) for position in positions),
        extra=draw(extras(extra)),
    )


def extras(keys: Sequence[str]) -> st.SearchStrategy[dict[str, Value]]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(keys, MAPS))


@st.composite
def tensor_tables(draw: st.DrawFn, extra: Sequence[str]) -> TensorTable:
    names = sorted(draw(st.sets(NAMES, max_size=5)))
    rows = range(len(names))
    dtypes = st.sampled_from(["float32", "bool", "int4", "complex128", "float8_e4m3fn"])
    shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
    segment = st.tuples(NAMES, INTEGERS, INTEGERS, INTEGERS).map(list)
    segments = st.lists(segment, min_size=1, max_size=2)
    others = st.fixed_dictionaries({}, optional={"segments": segments})
    kept = {row: draw(extras(extra)) | draw(others) for row in rows}
    aliases = {row: tuple(draw(st.lists(NAMES, max_size=2))) for row in rows}
    return TensorTable(
        names=tuple(names),
        dtypes=tuple(draw(dtypes) for _ in rows),
        shapes=tuple(draw(shapes) for _ in rows),
        chunks=ints([draw(st.integers(0, 3)) for _ in rows]),
        aliases={row: found for row, found in aliases.items() if found},
        extra={row: found for row, found in kept.items() if found},
    )


@st.composite
def chunk_tables(draw: st.DrawFn, tensors: TensorTable) -> ChunkTable:
    origin: list[int] = []
    start: list[int] = []
    shapes: list[int] = []
    for shape, count in zip(tensors.shapes, tensors.chunks.tolist(), strict=True):
        vector = st.tuples(*[st.integers(0, 2)] * len(shape), st.integers(0, 9))
        keys = sorted(draw(st.sets(vector, min_size=count, max_size=count)))
        for *first, last in keys:
            origin += first
            start.append(last)
            shapes += shape
    rows = len(start)
    extent = ints(shapes) if draw(st.booleans()) else column(draw, len(shapes))
    elements = []
    at = 0
    for shape, count in zip(tensors.shapes, tensors.chunks.tolist(), strict=True):
        for _ in range(count):
            product = 1
            for value in extent[at : at + len(shape)].tolist():
                product *= value
            elements.append(product)
            at += len(shape)
    count_column = column(draw, rows)
    return ChunkTable(
        run=column(draw, rows, 2**32 - 1),
        offset=column(draw, rows),
        origin=ints(origin) if any(origin) else None,
        extent=None if extent.tolist() == shapes else extent,
        start=ints(start) if any(start) else None,
        count=None if count_column.tolist() == elements else count_column,
    )


def _ascending_pairs(draw: st.DrawFn, largest: int) -> list[tuple[int, int]]:
    pair = st.tuples(st.integers(0, 2), st.integers(0, largest))
    return sorted(draw(st.sets(pair, max_size=5)))


@st.composite
def run_tables(draw: st.DrawFn) -> RunTable:
    pairs = _ascending_pairs(draw, MAX_INTEGER)
    rows = len(pairs)
    raw = column(draw, rows, least=1)
    return RunTable(
        file=ints([file for file, _ in pairs]),
        position=ints([position for _, position in pairs]),
        raw=raw,
        stored=raw if draw(st.booleans()) else column(draw, rows, least=1),
        codec=column(draw, rows, 2),
        item=ints([draw(st.sampled_from([1, 2, 4, 8])) for _ in range(rows)]),
        block_log2=column(draw, rows, 30, 12),
        block0=column(draw, rows, 2**32 - 1),
    )


@st.composite
def per_rank_tables(draw: st.DrawFn) -> PerRankTable:
    pairs = _ascending_pairs(draw, 2**32 - 1)
    rows = len(pairs)
    return PerRankTable(
        path=ints([path for path, _ in pairs]),
        rank=ints([rank for _, rank in pairs]),
        run=column(draw, rows, 2**32 - 1),
        offset=column(draw, rows),
        nbytes=column(draw, rows, least=1),
    )


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Manifests of this minor version and, with unknown keys, of a newer one."""
    minor = draw(st.sampled_from([0, 0, 0, 1, 65535]))
    extra = ["ext", "later"] if minor else ["ext"]
    tensors = draw(tensor_tables([*extra, "user"]))
    objects = st.builds(
        ObjectRow,
        name=NAMES,
        run=INTEGERS,
        offset_bytes=INTEGERS,
        nbytes=st.integers(1, MAX_INTEGER),
        media=st.sampled_from(["application/octet-stream", "text/plain", ""]),
    )
    features = st.sets(st.sampled_from(["planes-zstd", "subbyte"]))
    return Manifest(
        attempt_id=ID,
        minor=minor,
        created_us=draw(INTEGERS),
        writer=Writer(name=draw(TEXT), version=draw(TEXT)),
        require=tuple(sorted(draw(features))),
        optional=tuple(sorted(draw(st.sets(TEXT, max_size=2)))),
        step=draw(st.none() | INTEGERS),
        user=draw(st.just({}) | MAPS),
        extra=draw(extras(extra)),
        files=_by_name(draw(st.lists(file_rows(extra), max_size=3))),
        tensors=tensors,
        runs=draw(run_tables()),
        chunks=draw(chunk_tables(tensors)),
        state=draw(VALUES),
        per_rank=draw(per_rank_tables()),
        objects=_by_name(draw(st.lists(objects, max_size=3))),
    )


def _by_name(rows: Sequence[Any]) -> tuple[Any, ...]:
    unique = {row.name: row for row in rows}
    return tuple(unique[name] for name in sorted(unique))


def small_manifest() -> Manifest:
    """Return a manifest with one or two rows in every section."""
    return Manifest(
        attempt_id=ID,
        created_us=1_700_000_000_000_000,
        writer=Writer(name="tests", version="1"),
        require=("subbyte",),
        step=7,
        user={"note": "small"},
        files=(
            FileRow(name="a.bcd", attempt_id=ID, table_bytes=8192, blocks=2, digest=DIGEST),
            FileRow(
                name="b.bcd",
                attempt_id=DIGEST,
                table_bytes=8192,
                blocks=1,
                digest=DIGEST,
                lengths=True,
                unused=((4096, 10),),
            ),
        ),
        tensors=TensorTable(
            names=("b", "w"),
            dtypes=("int4", "float32"),
            shapes=((), (2, 3)),
            chunks=ints([1, 2]),
            aliases={1: ("tied",)},
        ),
        runs=RunTable(
            file=ints([0, 1]),
            position=ints([4096, 4096]),
            raw=ints([24, 100]),
            stored=ints([24, 50]),
            codec=ints([0, 1]),
            item=ints([4, 1]),
            block_log2=ints([20, 12]),
            block0=ints([0, 1]),
        ),
        chunks=ChunkTable(
            run=ints([1, 0, 0]),
            offset=ints([0, 0, 64]),
            origin=ints([0, 0, 1, 0]),
            extent=ints([1, 3, 1, 3]),
        ),
        state=[6, "w", 1, "b", 0, "r", [19, 0]],
        per_rank=PerRankTable(
            path=ints([0, 0]),
            rank=ints([0, 1]),
            run=ints([1, 1]),
            offset=ints([0, 64]),
            nbytes=ints([5, 5]),
        ),
        objects=(ObjectRow(name="o", run=1, offset_bytes=0, nbytes=5),),
    )


def empty_manifest() -> Manifest:
    """Return a manifest with no rows but the state."""
    none = ints([])
    return Manifest(
        attempt_id=ID,
        created_us=0,
        writer=Writer(name="", version=""),
        require=(),
        files=(),
        tensors=TensorTable(names=(), dtypes=(), shapes=(), chunks=none),
        runs=RunTable(
            file=none,
            position=none,
            raw=none,
            stored=none,
            codec=none,
            item=none,
            block_log2=none,
            block0=none,
        ),
        chunks=ChunkTable(run=none, offset=none),
        state=[6],
        per_rank=empty_per_rank(),
    )


def digest128(data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(data)[::-1]


def section_row(kind: str, raw: bytes, *, first: int = 0, rows: int = 1) -> list[Any]:
    return [kind, first, rows, "none", len(raw), len(raw), digest128(raw)]


def root_values(sections: Sequence[Any], /, **changes: Any) -> dict[str, Any]:
    """Return a valid root with changes; a change to None leaves the key out."""
    values = {
        "created": 1,
        "digest": "xxh3-64",
        "id": ID,
        "optional": [],
        "require": [],
        "sections": list(sections),
        "writer": {"name": "t", "version": "1"},
    } | changes
    return {key: values[key] for key in sorted(values) if values[key] is not None}


def file_of(root: object, *sections: bytes, minor: int = 0) -> bytes:
    """Return a manifest file around a root, which need not be one, and raw sections."""
    stored = root if isinstance(root, bytes) else msgpack.packb(root)
    header = Header(
        kind=Kind.MANIFEST,
        attempt_id=ID,
        minor=minor,
        root_stored_bytes=len(stored),
        root_raw_bytes=len(stored),
    )
    return encode_header(header) + stored + digest128(stored) + b"".join(sections)


STATE = b"\x91\x06"


def manifest_with(kind: str, rows: object, count: int, *, minor: int = 0) -> bytes:
    """Return a manifest with one section of a kind next to the state."""
    raw = rows if isinstance(rows, bytes) else msgpack.packb(rows)
    parts = [(kind, section_row(kind, raw, rows=count), raw)]
    parts.append(("state", section_row("state", STATE), STATE))
    order = ["files", "tensors", "runs", "chunks", "state", "per_rank", "objects"]
    parts.sort(key=lambda part: order.index(part[0]))
    root = root_values([row for _, row, _ in parts])
    return file_of(root, *(data for _, _, data in parts), minor=minor)


COLUMN_CODES = {
    **dict.fromkeys(("block", "codec", "item"), "<u1"),
    **dict.fromkeys(("block0", "file", "path", "rank", "run"), "<u4"),
    **dict.fromkeys(("nbytes", "offset", "position", "raw", "stored"), "<u8"),
    **dict.fromkeys(("count", "extent", "origin", "start"), "<u8"),
}


def packed(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns with their lists packed, without those that are None."""
    return {
        name: np.array(values, COLUMN_CODES[name]).tobytes() if type(values) is list else values
        for name, values in sorted(columns.items())
        if values is not None
    }
