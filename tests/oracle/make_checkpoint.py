"""A tiny writer of bcpformat 1.0 that makes checkpoints by hand, from the specification alone.

`SAMPLES` maps a name to a function that returns a `Sample`: the files of one checkpoint and what a
reader must find in them.  The parts (`Run`, `Sample`, `build`) let a test make a faulty one.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import msgpack
import xxhash
import zstandard

ATTEMPT = bytes(range(16))
RAW, ZSTD, PLANES = 0, 1, 2


def xxh128(data: bytes) -> bytes:
    """Return the XXH3-128 of `data`, the low half first, both halves little-endian (spec 2)."""
    number = xxhash.xxh3_128_intdigest(data)
    return struct.pack("<QQ", number & (2**64 - 1), number >> 64)


def xxh64(data: bytes) -> bytes:
    """Return the XXH3-64 of `data`, little-endian (spec 2)."""
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(data))


def header(*, kind: int, stored: int, raw: int) -> bytes:
    """Return the 64 bytes of a file's header (spec 5)."""
    body = b"\x89BCP\r\n\x1a\n" + struct.pack("<4H", 1, 0, kind, 0) + ATTEMPT
    body += struct.pack("<3Q", stored, raw, 0)
    return body + xxh64(body)


def shorter(raw: bytes) -> bytes:
    """Return `raw` as a zstd frame if that is shorter, else as it is."""
    packed = zstandard.ZstdCompressor(write_content_size=True).compress(raw)
    return packed if len(packed) < len(raw) else raw


def padded(data: bytes, size: int) -> bytes:
    """Return `data` with zeros up to the next multiple of `size` bytes."""
    return data + bytes(-len(data) % size)


@dataclass(frozen=True, slots=True)
class Run:
    """A run to be written: the raw bytes of its chunks, one piece each."""

    pieces: list[bytes]
    codec: int = RAW
    item: int = 1
    block: int = 20

    @property
    def offsets(self) -> list[int]:
        """The first byte of each piece in the raw bytes of the run."""
        return [0, *accumulate(len(padded(piece, 64)) for piece in self.pieces)][:-1]

    @property
    def raw(self) -> bytes:
        """The raw bytes: every piece begins at a multiple of 64."""
        return b"".join(padded(piece, 64) for piece in self.pieces[:-1]) + self.pieces[-1]

    def blocks(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the raw and the stored bytes of each block."""
        raw, size = self.raw, 1 << self.block
        for begin in range(0, len(raw), size):
            block = raw[begin : begin + size]
            yield block, self.encode(block)

    def encode(self, block: bytes) -> bytes:
        """Return the stored bytes of a block (spec 9)."""
        if self.codec == RAW:
            return block
        if self.codec == ZSTD:
            return shorter(block)
        planes = [shorter(block[self.item - 1 - i :: self.item]) for i in range(self.item)]
        lengths = struct.pack(f"<{self.item}I", *map(len, planes))
        packed = lengths + b"".join(planes)
        return packed if len(packed) < len(block) else block


@dataclass(frozen=True, slots=True)
class Content:
    """What a checkpoint is to hold.

    Attributes:
        files: for each data file, its runs.
        tensors: rows of the section, `chunks` given where it is not the default.
        chunks: (tensor, origin, extent, start, count, run, piece), in row order.
        objects: (name, run, piece).
        per_rank: (path, rank, run, piece).
        state: the root node.
        root: more keys of the root.
    """

    state: object
    files: dict[str, list[Run]] = field(default_factory=dict)
    tensors: list[dict[str, object]] = field(default_factory=list)
    chunks: list[tuple[int, list[int], list[int], int, int, int, int]] = field(default_factory=list)
    objects: list[tuple[str, int, int]] = field(default_factory=list)
    per_rank: list[tuple[int, int, int, int]] = field(default_factory=list)
    root: dict[str, object] = field(default_factory=dict)


def data_file(runs: list[Run]) -> tuple[bytes, dict[str, object], list[dict[str, int]]]:
    """Return the bytes of a data file, its file row without a name and its run rows (spec 5.2)."""
    data = padded(header(kind=2, stored=0, raw=0), 4096)
    digests, lengths, rows = b"", [], []
    for run in runs:
        row = {"position": len(data), "block0": len(lengths), "raw": len(run.raw)}
        stored = b""
        for block, encoded in run.blocks():
            digests += xxh64(block)
            lengths.append(len(encoded))
            stored += encoded
        rows.append(row | {"stored": len(stored), "codec": run.codec, "item": run.item})
        rows[-1]["block"] = run.block
        data = padded(data + stored, 4096)
    coded = any(run.codec != RAW for run in runs)
    table = digests + (struct.pack(f"<{len(lengths)}I", *lengths) if coded else b"")
    file_row: dict[str, object] = {"blocks": len(lengths), "digest": xxh128(table)}
    file_row["table"] = len(data)
    return data + table, file_row | ({"lengths": True} if coded else {}), rows


def columns(**known: tuple[str, list[int], list[int]]) -> dict[str, bytes]:
    """Return the columns, from (type, values, defaults), that do not hold only defaults."""
    return {
        name: struct.pack(f"<{len(values)}{code}", *values)
        for name, (code, values, defaults) in sorted(known.items())
        if values != defaults
    }


def plain(value: object) -> object:
    """Return a document's value with the keys of every map in order (spec 6)."""
    if isinstance(value, dict):
        return {key: plain(value[key]) for key in sorted(value)}
    return [plain(item) for item in value] if isinstance(value, list) else value


def manifest(root: dict[str, object], sections: list[tuple[str, int, object]]) -> bytes:
    """Return the manifest with these sections: kind, rows and value (spec 5.1)."""
    rows, bodies = [], b""
    for kind, count, value in sections:
        raw = msgpack.packb(plain(value))
        stored = shorter(raw)
        codec = "none" if stored is raw else "zstd"
        rows.append([kind, 0, count, codec, len(stored), len(raw), xxh128(stored)])
        bodies += stored
    raw = msgpack.packb(plain(root | {"sections": rows}))
    stored = shorter(raw)
    return header(kind=1, stored=len(stored), raw=len(raw)) + stored + xxh128(stored) + bodies


def build(content: Content) -> dict[str, bytes]:
    """Return the files of a checkpoint by their keys below the prefix."""
    files: dict[str, bytes] = {}
    file_rows: list[dict[str, object]] = []
    runs: list[Run] = []
    run_rows: list[dict[str, int]] = []
    for index, name in enumerate(sorted(content.files)):
        files[f"data/{name}"], row, rows = data_file(content.files[name])
        file_rows.append(row | {"name": name})
        run_rows += [row | {"file": index} for row in rows]
        runs += content.files[name]
    sections: list[tuple[str, int, object]] = [
        ("files", len(file_rows), file_rows),
        ("tensors", len(content.tensors), content.tensors),
        ("runs", len(runs), run_columns(run_rows)),
        ("chunks", len(content.chunks), chunk_columns(content, runs)),
        ("state", 1, content.state),
        ("per_rank", len(content.per_rank), rank_columns(content, runs)),
        ("objects", len(content.objects), object_rows(content, runs)),
    ]
    root: dict[str, object] = {
        "created": 1_700_000_000_000_000,
        "digest": "xxh3-64",
        "id": ATTEMPT,
        "optional": [],
        "require": ["planes-zstd"] if any(run.codec == PLANES for run in runs) else [],
        "writer": {"name": "make_checkpoint", "version": "0"},
    }
    present = [section for section in sections if section[1]]
    return files | {"manifest.bcp": manifest(root | content.root, present)}


def run_columns(rows: list[dict[str, int]]) -> dict[str, bytes]:
    """Return the section `runs`."""
    values = {name: [row[name] for row in rows] for name in (rows[0] if rows else {})}
    kinds = {"block": ("B", 20), "block0": ("I", 0), "codec": ("B", 0), "file": ("I", 0)}
    kinds |= {"item": ("B", 1), "position": ("Q", 4096), "raw": ("Q", 0)}
    known = {
        name: (code, values.get(name, []), [default] * len(rows))
        for name, (code, default) in kinds.items()
    }
    return columns(**known, stored=("Q", values.get("stored", []), values.get("raw", [])))


def chunk_columns(content: Content, runs: list[Run]) -> dict[str, bytes]:
    """Return the section `chunks`."""
    zeros = [0] * len(content.chunks)
    shapes = [dim for row in content.chunks for dim in content.tensors[row[0]]["shape"]]
    origins = [value for row in content.chunks for value in row[1]]
    whole = []
    for row in content.chunks:
        elements = 1
        for dim in row[2]:
            elements *= dim
        whole.append(elements)
    return columns(
        origin=("Q", origins, [0] * len(origins)),
        extent=("Q", [value for row in content.chunks for value in row[2]], shapes),
        start=("Q", [row[3] for row in content.chunks], zeros),
        count=("Q", [row[4] for row in content.chunks], whole),
        run=("I", [row[5] for row in content.chunks], zeros),
        offset=("Q", [runs[row[5]].offsets[row[6]] for row in content.chunks], zeros),
    )


def rank_columns(content: Content, runs: list[Run]) -> dict[str, bytes]:
    """Return the section `per_rank`."""
    rows, zeros = content.per_rank, [0] * len(content.per_rank)
    return columns(
        path=("I", [row[0] for row in rows], zeros),
        rank=("I", [row[1] for row in rows], zeros),
        run=("I", [row[2] for row in rows], zeros),
        offset=("Q", [runs[run].offsets[piece] for _, _, run, piece in rows], zeros),
        nbytes=("Q", [len(runs[run].pieces[piece]) for _, _, run, piece in rows], zeros),
    )


def object_rows(content: Content, runs: list[Run]) -> list[dict[str, object]]:
    """Return the section `objects`."""
    return [
        {"name": name, "run": run, "offset": runs[run].offsets[piece]}
        | {"nbytes": len(runs[run].pieces[piece])}
        for name, run, piece in content.objects
    ]


def segment(key: object, inside: str = "") -> str:
    """Return the segment of a name for a key (spec 11); `inside` holds "," within a tuple."""
    if isinstance(key, bool):
        return "%t" if key else "%f"
    if isinstance(key, str):
        special = "%/\x7f" + inside
        escaped = (f"%{ord(c):02X}" if c in special or c < " " else c for c in key)
        return "".join(escaped) or "%e"
    assert isinstance(key, list)
    if key[0] == 9:
        return "%(" + ",".join(segment(part, ",") for part in key[1:]) + "%)"
    return f"%i{key[1] if key[0] == 2 else int.from_bytes(key[1], 'little', signed=True)}"


def references(node: object, path: str = "") -> Iterator[tuple[int, int, str]]:
    """Yield (kind, row, name) of the nodes that refer to rows, in state order (spec 10 and 11).

    The kinds are 0 for a tensor, 18 for an object, 19 for a per-rank value.
    """

    def below(part: str) -> str:
        return f"{path}/{part}" if path else part

    if isinstance(node, int) and not isinstance(node, bool):
        yield 0, node, path
    if not isinstance(node, list):
        return
    code, *rest = node
    if code in (0, 18, 19):
        yield code, rest[1] if code == 18 else rest[0], path
    if code == 7:
        yield from references(rest.pop(0), below("%m"))
    if code in (6, 7):
        for key, value in zip(rest[::2], rest[1::2], strict=True):
            yield from references(value, below(segment(key)))
    if code in (8, 9):
        for position, value in enumerate(rest):
            yield from references(value, below(str(position)))
    if code == 20:
        yield from references(rest[1], path)


def write(prefix: Path, files: dict[str, bytes]) -> Path:
    """Write the files below `prefix` and return it."""
    for key, data in files.items():
        (prefix / key).parent.mkdir(parents=True, exist_ok=True)
        (prefix / key).write_bytes(data)
    return prefix


@dataclass(frozen=True, slots=True)
class Sample:
    """A checkpoint by its content, and what `read_checkpoint` must return of it."""

    content: Content
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    per_rank: dict[tuple[int, int], bytes] = field(default_factory=dict)


def floats(count: int) -> bytes:
    """Return float32 elements whose high bytes repeat and whose low bytes do not."""
    noise = xxhash.xxh3_64_intdigest
    return b"".join(
        struct.pack("<I", 0x3F800000 | noise(i.to_bytes(4, "little")) & 0xFFFF)
        for i in range(count)
    )


def one_raw() -> Sample:
    """Return one tensor in one chunk in one raw run: every default applies."""
    raw = struct.pack("<6h", 1, -2, 3, -4, 5, -6)
    row: dict[str, object] = {"name": "w", "dtype": "int16", "shape": [2, 3]}
    content = Content(
        state=[6, "w", 0],
        files={"a.bcd": [Run([raw], item=2)]},
        tensors=[row],
        chunks=[(0, [0, 0], [2, 3], 0, 6, 0, 0)],
        root={"step": 7, "user": {"note": "hand-made"}},
    )
    return Sample(content, {"w": ("int16", (2, 3), raw)})


def zstd_run() -> Sample:
    """Return a tensor in a zstd run of three blocks: one raw, one packed, one short."""
    noise = b"".join(xxh64(bytes([i // 256, i % 256])) for i in range(512))
    raw = noise + bytes(4096) + b"tail" * 64
    content = Content(
        state=[8, 0],
        files={"z.bcd": [Run([raw], codec=ZSTD, block=12)]},
        tensors=[{"name": "0", "dtype": "uint8", "shape": [len(raw)]}],
        chunks=[(0, [0], [len(raw)], 0, len(raw), 0, 0)],
    )
    return Sample(content, {"0": ("uint8", (len(raw),), raw)})


def planes_run() -> Sample:
    """Return a tensor in a planes-zstd run in which some planes stay raw."""
    raw = floats(2500)
    content = Content(
        state=0,
        files={"p.bcd": [Run([raw], codec=PLANES, item=4, block=12)]},
        tensors=[{"name": "", "dtype": "float32", "shape": [2500]}],
        chunks=[(0, [0], [2500], 0, 2500, 0, 0)],
    )
    return Sample(content, {"": ("float32", (2500,), raw)})


def boxes_and_ranges() -> Sample:
    """Return a 4 x 5 tensor cut into a box of columns and two flat ranges of the other box."""
    whole = bytes(range(20))
    left = b"".join(whole[5 * row : 5 * row + 2] for row in range(4))
    right = b"".join(whole[5 * row + 2 : 5 * row + 5] for row in range(4))
    content = Content(
        state=[6, "m", 0],
        files={"a.bcd": [Run([left, right[:7]])], "b.bcd": [Run([right[7:]], codec=ZSTD)]},
        tensors=[{"name": "m", "dtype": "int8", "shape": [4, 5], "chunks": 3}],
        chunks=[
            (0, [0, 0], [4, 2], 0, 8, 0, 0),
            (0, [0, 2], [4, 3], 0, 7, 0, 1),
            (0, [0, 2], [4, 3], 7, 5, 1, 0),
        ],
    )
    return Sample(content, {"m": ("int8", (4, 5), whole)})


def packed_chunks() -> Sample:
    """Return small tensors in one run, a 0-d and an empty one among them."""
    content = Content(
        state=[6, "a", 0, "b", 1, "none", 2],
        files={"a.bcd": [Run([b"\1\0\0\0" * 3, b"\2\0\0\0"], item=4)]},
        tensors=[
            {"name": "a", "dtype": "int32", "shape": [3]},
            {"name": "b", "dtype": "int32", "shape": []},
            {"name": "none", "dtype": "int32", "shape": [0, 9]},
        ],
        chunks=[(0, [0], [3], 0, 3, 0, 0), (1, [], [], 0, 1, 0, 1)],
    )
    tensors = {"a": ("int32", (3,), b"\1\0\0\0" * 3), "b": ("int32", (), b"\2\0\0\0")}
    return Sample(content, tensors | {"none": ("int32", (0, 9), b"")})


def sub_byte() -> Sample:
    """Return 6-bit and 4-bit elements, the second tensor in two chunks that end inside a byte."""
    six = sum(value << 6 * i for i, value in enumerate([1, 2, 3, 4, 5])).to_bytes(4, "little")
    content = Content(
        state=[9, 0, 1],
        files={"s.bcd": [Run([six, b"\x21\x03", b"\x54"])]},
        tensors=[
            {"name": "0", "dtype": "float6_e2m3fn", "shape": [5]},
            {"name": "1", "dtype": "uint4", "shape": [5], "chunks": 2},
        ],
        chunks=[
            (0, [0], [5], 0, 5, 0, 0),
            (1, [0], [3], 0, 3, 0, 1),
            (1, [3], [2], 0, 2, 0, 2),
        ],
        root={"require": ["subbyte"]},
    )
    four = ("uint4", (5,), b"\x21\x43\x05")
    return Sample(content, {"0": ("float6_e2m3fn", (5,), six), "1": four})


def others() -> Sample:
    """Return an object, a per-rank value of two ranks and a tensor with two names."""
    text, ranks = b"x" * 100, [msgpack.packb([2, 5]), msgpack.packb([4, bytes(8)])]
    content = Content(
        state=[6, "t", 0, "log", [18, 0, 0], "again", [0, 0, 4], "rng", [19, 0]],
        files={"o.bcd": [Run([b"\1", text, *ranks])]},
        tensors=[{"name": "t", "aliases": ["again"], "dtype": "bool", "shape": [1]}],
        chunks=[(0, [0], [1], 0, 1, 0, 0)],
        objects=[("log", 0, 1)],
        per_rank=[(0, 0, 0, 2), (0, 3, 0, 3)],
    )
    per_rank = {(0, 0): ranks[0], (0, 3): ranks[1]}
    tensors = {"t": ("bool", (1,), b"\1")}
    return Sample(content, tensors, {"again": "t"}, {"log": text}, per_rank)


def nothing() -> Sample:
    """Return a checkpoint without a tensor or a data file."""
    return Sample(Content(state=[1]))


SAMPLES: dict[str, Callable[[], Sample]] = {
    sample.__name__: sample
    for sample in (
        one_raw, zstd_run, planes_run, boxes_and_ranges, packed_chunks, sub_byte, others, nothing
    )
}  # fmt: skip
