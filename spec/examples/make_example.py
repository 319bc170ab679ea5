"""Make the worked example of the spec (appendix A), from nothing but the text of the spec.

It is written without the reference implementation, as somebody else's writer would be, so that
both can be held against each other.  ``python make_example.py`` writes `minimal/`;
`listings()` returns the annotated bytes that the appendix shows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import msgpack
import xxhash
import zstandard

DIRECTORY = Path(__file__).resolve().parent / "minimal"

ATTEMPT_ID = bytes(range(16))
CREATED_US = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z."""
STEP = 1000
FILE_NAME = f"{ATTEMPT_ID.hex()}-000000-000000.bcd"
VALUES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
"""The elements of tensor ``w`` of shape (2, 3), in row-major order."""

MAGIC = b"\x89BCP\r\n\x1a\n"
MANIFEST, DATA = 1, 2
ALIGNMENT = 4096

Part: TypeAlias = tuple[bytes, str]
"""Some bytes of a file, and what they mean."""


def pack(value: object) -> bytes:
    """Return a value as msgpack; keys of maps must be given in order."""
    return bytes(msgpack.packb(value, use_bin_type=True))


def xxh3_64(data: bytes) -> bytes:
    """Return an XXH3-64 as stored: little-endian."""
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(data))


def xxh3_128(data: bytes) -> bytes:
    """Return an XXH3-128 as stored: low 64 bits little-endian, then high 64 bits."""
    number = xxhash.xxh3_128_intdigest(data)
    return struct.pack("<QQ", number & (2**64 - 1), number >> 64)


def joined(parts: Sequence[Part]) -> bytes:
    """Return the bytes of some parts."""
    return b"".join(data for data, _ in parts)


def header(kind: int, root_stored: int, root_raw: int) -> list[Part]:
    """Return the header of a file (section 5)."""
    name = {MANIFEST: "manifest", DATA: "data file"}[kind]
    parts = [
        (MAGIC, "magic"),
        (struct.pack("<H", 1), "major 1"),
        (struct.pack("<H", 0), "minor 0"),
        (struct.pack("<H", kind), f"kind {kind}: {name}"),
        (struct.pack("<H", 0), "flags"),
        (ATTEMPT_ID, "attempt id"),
        (struct.pack("<Q", root_stored), f"root stored bytes: {root_stored}"),
        (struct.pack("<Q", root_raw), f"root raw bytes: {root_raw}"),
        (bytes(8), "reserved"),
    ]
    return [*parts, (xxh3_64(joined(parts)), "XXH3-64 of bytes 0 to 55")]


def data_file() -> tuple[list[Part], int, bytes]:
    """Return the data file, the position of its block table, and the digest of that table."""
    raw = struct.pack("<6f", *VALUES)
    numbers = ", ".join(f"{value:g}" for value in VALUES)
    parts = header(DATA, 0, 0)
    parts.append((bytes(ALIGNMENT - 64), "zeros to 4096"))
    parts.append((raw, f"run 0, its only block: {numbers}"))
    parts.append((bytes(-len(raw) % ALIGNMENT), "zeros to 8192"))
    table = xxh3_64(raw)
    position = len(joined(parts))
    parts.append((table, "block table: XXH3-64 of block 0"))
    return parts, position, xxh3_128(table)


def sections(table: int, digest: bytes) -> list[tuple[str, int, list[Part]]]:
    """Return kind, rows and content of every section (sections 7.2 to 7.5, and 10)."""
    files = [
        (b"\x91\x84", "files: one row, a map of four keys"),
        (pack("blocks") + pack(1), "blocks: 1"),
        (pack("digest") + pack(digest), "digest: XXH3-128 of the block table"),
        (pack("name") + pack(FILE_NAME), "name"),
        (pack("table") + pack(table), f"table: at {table}"),
    ]
    tensors = [
        (b"\x91\x83", "tensors: one row, a map of three keys"),
        (pack("dtype") + pack("float32"), "dtype: float32"),
        (pack("name") + pack("w"), "name: w"),
        (pack("shape") + pack([2, 3]), "shape: [2, 3]"),
    ]
    runs = [
        (b"\x83", "runs: three columns, the others are defaults"),
        (pack("block") + pack(bytes([18])), "block: 2^18 bytes"),
        (pack("item") + pack(bytes([4])), "item: 4 bytes"),
        (pack("raw") + pack(struct.pack("<Q", 4 * len(VALUES))), "raw: 24 bytes"),
    ]
    chunks = [(b"\x80", "chunks: all columns are defaults")]
    state = [
        (b"\x95\x06", "state: a dict of two keys"),
        (pack("epoch") + pack([2, 3]), "'epoch': int 3"),
        (pack("w") + pack(0), "'w': tensor 0"),
    ]
    return [
        ("files", 1, files),
        ("tensors", 1, tensors),
        ("runs", 1, runs),
        ("chunks", 1, chunks),
        ("state", 1, state),
    ]


def manifest(table: int, digest: bytes) -> list[Part]:
    """Return the manifest (sections 5.1 and 7)."""
    contents = sections(table, digest)
    rows: list[Part] = []
    for kind, count, parts in contents:
        raw = joined(parts)
        row = [kind, 0, count, "none", len(raw), len(raw), xxh3_128(raw)]
        rows.append((pack(row), f"{kind}: first row 0, {count} row, {len(raw)} bytes"))
    root = [
        (b"\x88", "root: a map of eight keys"),
        (pack("created") + pack(CREATED_US), "created: 2026-01-01T00:00:00Z"),
        (pack("digest") + pack("xxh3-64"), "digest: xxh3-64"),
        (pack("id") + pack(ATTEMPT_ID), "id: the attempt id"),
        (pack("optional") + pack([]), "optional: none"),
        (pack("require") + pack([]), "require: none"),
        (pack("sections") + b"\x95", "sections: five"),
        *rows,
        (pack("step") + pack(STEP), f"step: {STEP}"),
        (pack("writer") + pack({"name": "example", "version": "1.0"}), "writer: example 1.0"),
    ]
    stored = joined(root)
    return [
        *header(MANIFEST, len(stored), len(stored)),
        *root,
        (xxh3_128(stored), "XXH3-128 of the root as stored"),
        *(part for _, _, parts in contents for part in parts),
    ]


def files() -> dict[str, list[Part]]:
    """Return the files of the checkpoint by key."""
    data, table, digest = data_file()
    return {"manifest.bcp": manifest(table, digest), f"data/{FILE_NAME}": data}


def frame_of(byte: int, count: int) -> list[Part]:
    """Return a zstd frame of one byte repeated 4,096 to 65,791 times (RFC 8878, 3.1.1)."""
    block = 1 | 1 << 1 | count << 3
    return [
        (b"\x28\xb5\x2f\xfd", "zstd magic"),
        (b"\x60", "single segment, 2 bytes of content size"),
        (struct.pack("<H", count - 256), f"content size: 256 less than {count}"),
        (struct.pack("<I", block)[:3], f"last block: one byte {count} times"),
        (bytes([byte]), f"the byte {byte:02x}"),
    ]


def planes_block() -> list[Part]:
    """Return 4,096 bfloat16 of value 1.0 as a block of planes-zstd (section 9.3)."""
    high, low = frame_of(0x3F, 4096), frame_of(0x80, 4096)
    return [
        (struct.pack("<II", len(joined(high)), len(joined(low))), "stored lengths of the planes"),
        (joined(high), "plane 0, a frame: high bytes, all 3f"),
        (joined(low), "plane 1, a frame: low bytes, all 80"),
    ]


def check() -> None:
    """Check what was put together from parts against the libraries."""
    for _, _, parts in sections(2 * ALIGNMENT, bytes(16)):
        raw = joined(parts)
        if pack(msgpack.unpackb(raw, raw=False)) != raw:
            raise AssertionError(f"not the shortest form: {raw.hex(' ')}")
    if zstandard.decompress(joined(frame_of(0, 4096))) != bytes(4096):
        raise AssertionError("the frame does not decode to 4096 zeros")


def listing(parts: Sequence[Part]) -> str:
    """Return annotated bytes: position, bytes, meaning; a run of zeros takes one line."""
    return "\n".join(_lines(parts))


def _lines(parts: Sequence[Part]) -> Iterator[str]:
    position = 0
    for data, meaning in parts:
        if len(data) > 64 and not any(data):
            yield f"{position:04x}  {f'00 times {len(data)}':<47}  {meaning}"
        else:
            for start in range(0, len(data), 16):
                text = data[start : start + 16].hex(" ")
                note = meaning if start == 0 else ""
                yield f"{position + start:04x}  {text:<47}  {note}".rstrip()
        position += len(data)


def listings() -> dict[str, str]:
    """Return the listings of the appendix by title."""
    made = files()
    return {
        "example-data": listing(made[f"data/{FILE_NAME}"]),
        "example-manifest": listing(made["manifest.bcp"]),
        "example-frame": listing(frame_of(0, 4096)),
        "example-planes": listing(planes_block()),
    }


def main() -> None:
    """Write the files."""
    check()
    for key, parts in files().items():
        path = DIRECTORY / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(joined(parts))


if __name__ == "__main__":
    main()
