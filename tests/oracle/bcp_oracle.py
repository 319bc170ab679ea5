"""A second reader of bcpformat 1.0, written from the specification alone: slow, whole, obvious.

It checks all that stands between stored bytes and elements.  It does not check types and defaults
of keys, names, nodes of the state, the order of chunks, overflow, depth and the number of splits.
"""

import itertools
import math
import re
import struct
import tomllib
from collections import namedtuple
from pathlib import Path

import msgpack
import xxhash
import zstandard

REGISTRY = Path(__file__).resolve().parents[2] / "spec" / "registry" / "dtypes.toml"
DTYPES = {row["name"]: row for row in tomllib.loads(REGISTRY.read_text())["dtype"]}
KINDS = ["files", "tensors", "runs", "chunks", "state", "per_rank", "objects"]
U8, U32, U64 = ("B", 0), ("I", 0), ("Q", 0)  # the type and the default of most columns
RUN = {"file": U32, "position": ("Q", 4096), "raw": U64, "stored": ("Q", lambda got: got["raw"])}
RUN |= {"codec": U8, "item": ("B", 1), "block": ("B", 20), "block0": U32}
RANK = {"path": U32, "rank": U32, "run": U32, "offset": U64, "nbytes": U64}
Run = namedtuple("Run", RUN)


def check(where, **rules):
    """Refuse with the code of the first rule that does not hold."""
    for code, holds in rules.items():
        if not holds:
            raise ValueError(code, f"{code} at {where}")


def xxh128(data):  # spec 2: the low half first, both little-endian
    return xxhash.xxh3_128_digest(data)[::-1]


def read_file(path, kind):  # spec 4 and 5
    links = path.is_symlink() or (kind == 2 and path.parent.is_symlink())
    absent = "E_NOT_COMMITTED" if kind == 1 else "E_FILE_MISSING"
    check(path, **{absent: path.exists() or links}, E_FILE_TYPE=path.is_file() and not links)
    data = path.read_bytes()
    check(path, E_TRUNCATED=len(data) >= 64, E_MAGIC=data[:8] == b"\x89BCP\r\n\x1a\n")
    *half, attempt, stored, raw, zero, digest = struct.unpack("<4H16s4Q", data[8:64])
    check(path, E_HEADER_CHECKSUM=digest == xxhash.xxh3_64_intdigest(data[:56]))
    check(path, E_VERSION=half[0] == 1, E_KIND=half[2] == kind, E_RESERVED=half[3] == zero == 0)
    check(path, E_LENGTH=1 <= stored <= raw if kind == 1 else stored == raw == 0)
    return data, attempt, stored, raw


def unzstd(data, nbytes, code):  # spec 9.2; data[4] & 3 announces a dictionary id
    try:
        frame = zstandard.get_frame_parameters(data)
        legal = frame.content_size == nbytes and frame.window_size <= 2**27 and not data[4] & 3
        check("zstd header", **{code: legal})
        raw = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(code, str(error)) from error
    check("zstd frame", **{code: len(raw) == nbytes})
    return raw


def document(data):  # spec 6: encoding the value, its keys sorted, gives the same bytes
    def legal(value):
        if type(value) in (list, dict):
            return all(map(legal, value.values() if type(value) is dict else value))
        check(repr(value), E_RANGE=type(value) is not int or value < 2**53)
        return type(value) in (bool, str, bytes) or (type(value) is int and value >= 0)

    try:
        value = msgpack.unpackb(data, object_pairs_hook=lambda pairs: dict(sorted(pairs)))
    except (ValueError, TypeError) as error:
        raise ValueError("E_MP_MALFORMED", str(error)) from error
    check("document", E_MP_TYPE=legal(value), E_MP_NONCANONICAL=msgpack.packb(value) == data)
    return value


def columns(count, table, known):  # spec 7.4; a list of defaults has one for each value
    check([*table], E_KEY_UNKNOWN=set(table) <= set(known))
    got = {}
    for name, (code, default) in known.items():
        value = default(got) if callable(default) else default
        usual = value if type(value) is list else [value] * count
        data = table.get(name, struct.pack(f"<{len(usual)}{code}", *usual))
        check(name, E_COLUMN=len(data) == len(usual) * struct.calcsize("<" + code))
        got[name] = [*struct.unpack(f"<{len(usual)}{code}", data)]
        check(name, E_COLUMN=(name in table) == (got[name] != usual))
        check(name, E_RANGE=max(got[name], default=0) < 2**53)
    return got


def tile(where, data, at, gap, parts):  # the parts (position, size), and zeros between them
    for position, nbytes in [*sorted(parts), (len(data), 0)]:
        check(where, E_EXTENT_BOUNDS=position + nbytes <= len(data))
        check(where, E_EXTENT_OVERLAP=position >= at, E_EXTENT_HOLE=position - at < gap)
        check(where, E_PADDING=not any(data[at:position]))
        at = position + nbytes


def decode(stored, nbytes, run):  # spec 9
    if len(stored) == nbytes or run.codec == 1:
        return stored if len(stored) == nbytes else unzstd(stored, nbytes, "E_BLOCK_ENCODING")
    k, m, at, out = run.item, nbytes // run.item, 4 * run.item, bytearray(nbytes)
    lengths = struct.unpack(f"<{k}I", stored[:at].ljust(at, b"\0"))
    check("planes", E_BLOCK_ENCODING=at + sum(lengths) == len(stored))
    for plane, length in enumerate(lengths):
        part, at = stored[at : at + length], at + length
        out[k - 1 - plane :: k] = part if length == m else unzstd(part, m, "E_BLOCK_ENCODING")
    return bytes(out)


def read_data(prefix, row, runs):  # spec 5.2: the raw bytes of each run of a file
    name, table, blocks, unused = row["name"], row["table"], row["blocks"], row["unused"]
    check(name, E_FILE_NAME=re.fullmatch(r"[a-z0-9][a-z0-9-]{0,95}\.bcd", name))
    data, attempt, _, _ = read_file(prefix / "data" / name, 2)
    end = table + blocks * (12 if row["lengths"] else 8)
    check(name, E_TRUNCATED=len(data) >= end, E_FILE_LENGTH=len(data) == end)
    digest, coded = xxh128(data[table:]), any(run.codec for run in runs)
    check(name, E_ID=attempt == row["attempt"], E_TABLE_CHECKSUM=digest == row["digest"])
    check(name, E_TABLE=row["lengths"] == coded or unused, E_PADDING=not any(data[64:4096]))
    parts = [(table, end - table), *((run.position, run.stored) for run in runs)]
    check(name, E_ALIGN=not any(position % 4096 for position, _ in parts))
    tile(name, data, 4096, 4096, [*parts, *zip(unused[::2], unused[1::2], strict=True)])
    digests = struct.unpack_from(f"<{blocks}Q", data, table)
    tail = data[table + 8 * blocks :]
    lengths = struct.unpack(f"<{blocks}I", tail) if row["lengths"] else ()
    block = 0
    for run in runs:
        at, raw, last = run.position, b"", run.block0 + -(-run.raw >> run.block)
        check(run, E_TABLE=block == run.block0 or (unused and block < run.block0))
        check(run, E_TABLE=last <= blocks)
        for block in range(run.block0, last):
            nbytes = min(1 << run.block, run.raw - len(raw))
            stored = lengths[block] if lengths else nbytes
            check(run, E_TABLE=1 <= stored <= nbytes and (run.codec or stored == nbytes))
            part = decode(data[at : at + stored], nbytes, run)
            check(run, E_BLOCK_CHECKSUM=xxhash.xxh3_64_intdigest(part) == digests[block])
            raw, at = raw + part, at + stored
        check(run, E_TABLE=at == run.position + run.stored)
        block = last
        yield raw
    check(name, E_TABLE=unused or block == blocks)


def assemble(tensor, chunks, raws):  # spec 8.2, element by element; sub-byte ones as text of bits
    bits, out = DTYPES[tensor["dtype"]]["bits"], {}
    width = bits if bits < 8 else bits // 8
    for box, start, count, run, offset in chunks:
        raw = raws[run][offset : offset + math.ceil(count * bits / 8)]
        raw = "".join(f"{byte:08b}"[::-1] for byte in raw) if bits < 8 else raw
        check(tensor, E_PADDING=bits >= 8 or "1" not in raw[count * width :])
        places = itertools.product(*(range(first, first + extent) for first, extent in box))
        for i, place in enumerate(itertools.islice(places, start, start + count)):
            check(tensor, E_COVERAGE=place not in out)
            out[place] = raw[i * width : (i + 1) * width]
    check(tensor, E_COVERAGE=len(out) == math.prod(tensor["shape"]))
    if bits >= 8:
        return b"".join(out[place] for place in sorted(out))  # sorted places are row-major
    text = "".join(out[place] for place in sorted(out))
    return bytes(int(text[i : i + 8][::-1], 2) for i in range(0, len(text), 8))


def read_manifest(path):  # spec 5.1 and 7.1: the root, and [(rows, value)] of the sections by kind
    data, attempt, stored, raw = read_file(path, 1)

    def part(at, stored, raw, digest, coded):
        body = data[at : at + stored]
        check(at, E_TRUNCATED=len(body) == stored, E_MANIFEST_CHECKSUM=xxh128(body) == digest)
        check(at, E_MANIFEST_ENCODING=stored < raw if coded else stored == raw)
        return document(unzstd(body, raw, "E_MANIFEST_ENCODING") if coded else body)

    at, found = 80 + stored, {kind: [] for kind in KINDS}
    root = part(64, stored, raw, data[at - 16 : at], stored != raw)
    check(path, E_FEATURE={*root["require"]} <= {"planes-zstd", "subbyte"})
    check(path, E_DIGEST=root["digest"] == "xxh3-64", E_ID=root["id"] == attempt)
    kinds = [KINDS.index(row[0]) for row in root["sections"]]
    check(path, E_SECTION=kinds == sorted(kinds) and kinds.count(KINDS.index("state")) == 1)
    for kind, first, rows, codec, stored, raw, digest in root["sections"]:
        before = sum(count for count, _ in found[kind])  # all groups but the last are full
        check(kind, E_SECTION=first == 32768 * len(found[kind]) == before and rows >= 1)
        check(kind, E_CODEC=codec in ("none", "zstd"))
        found[kind].append((rows, part(at, stored, raw, digest, codec == "zstd")))
        at += stored
    check(path, E_LENGTH=at == len(data))
    return root, found


def read_chunks(rows, table, tensors):  # spec 7.4: (box, start, count, run, offset) of each row
    dims = [dim for tensor in tensors for dim in tensor["shape"]]

    def boxes(got):
        pairs = iter(zip(got["origin"], got["extent"], strict=True))
        return [[next(pairs) for _ in tensor["shape"]] for tensor in tensors]

    def sizes(got):
        return [math.prod(extent for _, extent in box) for box in boxes(got)]

    known = {"origin": ("Q", [0] * len(dims)), "extent": ("Q", dims), "start": U64}
    got = columns(rows, table, known | {"count": ("Q", sizes), "run": U32, "offset": U64})
    for pair, dim in zip(itertools.chain(*boxes(got)), dims, strict=True):
        check("chunks", E_BOUNDS=pair[1] >= 1 and sum(pair) <= dim)
    for start, count, size in zip(got["start"], got["count"], sizes(got), strict=True):
        check("chunks", E_BOUNDS=1 <= count <= size - start)
    return zip(boxes(got), *(got[k] for k in ("start", "count", "run", "offset")), strict=True)


def read_checkpoint(path):
    """Return all that the checkpoint under the prefix `path` holds, or refuse it."""
    try:
        return read_all(Path(path), *read_manifest(Path(path) / "manifest.bcp"))
    except (AttributeError, LookupError, TypeError, struct.error) as error:
        raise ValueError("E_TYPE", f"not of the form that it must have: {error!r}") from error


def read_all(prefix, root, found):
    runs = [run for part in found["runs"] for run in map(Run, *columns(*part, RUN).values())]
    ranks = [
        row
        for part in found["per_rank"]
        for row in zip(*columns(*part, RANK).values(), strict=True)
    ]
    files, tensors, objects = (
        [row for _, rows in found[kind] for row in rows] for kind in ("files", "tensors", "objects")
    )
    for kind, rows in (("files", files), ("tensors", tensors), ("objects", objects)):
        names = [row["name"] for row in rows]  # str sorts by code points, so like its UTF-8 bytes
        check(kind, E_ORDER=names == sorted(set(names)))
        check(kind, E_SECTION=len(rows) == sum(count for count, _ in found[kind]))
    check("tensors", E_DTYPE=all(tensor["dtype"] in DTYPES for tensor in tensors))
    owners = [t for t in tensors for _ in range(t.get("chunks", int(0 not in t["shape"])))]
    check("chunks", E_COLUMN=len(owners) == sum(count for count, _ in found["chunks"]))
    chunks = {tensor["name"]: [] for tensor in tensors}
    uses = [(row["run"], row["offset"], row["nbytes"], 1) for row in objects]
    uses += [(run, offset, nbytes, 1) for _, _, run, offset, nbytes in ranks]
    for count, table in found["chunks"]:
        mine, owners = owners[:count], owners[count:]
        for tensor, chunk in zip(mine, read_chunks(count, table, mine), strict=True):
            dtype, (_, _, elements, run, offset) = DTYPES[tensor["dtype"]], chunk
            chunks[tensor["name"]].append(chunk)
            uses.append((run, offset, math.ceil(elements * dtype["bits"] / 8), dtype["item"]))
    features = {DTYPES[tensor["dtype"]].get("feature") for tensor in tensors}
    features |= {"planes-zstd" for run in runs if run.codec == 2}
    check("root", E_FEATURE=root["require"] == sorted(features - {None}))
    places = [(run.file, run.position) for run in runs]
    check("runs", E_ORDER=places == sorted(set(places)))
    for run in runs:
        check(run, E_INDEX=run.file < len(files), E_CODEC=run.codec < 2 + (run.item > 1))
        check(run, E_RANGE=run.item in (1, 2, 4, 8) and 12 <= run.block <= 30)
        check(run, E_RAW_LENGTH=1 <= run.stored <= run.raw and run.raw % run.item == 0)
    check("uses", E_INDEX=all(use[0] < len(runs) for use in uses))
    raws = []
    for index, row in enumerate(files):
        file = {"attempt": root["id"], "kind": "data", "lengths": False, "unused": []} | row
        if file["kind"] == "data":
            raws += read_data(prefix, file, [run for run in runs if run.file == index])
    for index, (run, raw) in enumerate(zip(runs, raws, strict=True)):
        mine = [use[1:] for use in uses if use[0] == index]
        check(run, E_EXTENT_HOLE=mine, E_ITEM=all(item == run.item for _, _, item in mine))
        check(run, E_ALIGN=all(offset % 64 == 0 for offset, _, _ in mine))
        tile(run, raw, 0, 64, [(offset, nbytes) for offset, nbytes, _ in mine])

    def cut(run, offset, nbytes):
        return raws[run][offset : offset + nbytes]

    return {
        "step": root.get("step"),
        "user": root.get("user", {}),
        "tensors": {
            t["name"]: (t["dtype"], tuple(t["shape"]), assemble(t, chunks[t["name"]], raws))
            for t in tensors
        },
        "aliases": {alias: t["name"] for t in tensors for alias in t.get("aliases", [])},
        "objects": {o["name"]: cut(o["run"], o["offset"], o["nbytes"]) for o in objects},
        "per_rank": {(path, rank): cut(*place) for path, rank, *place in ranks},
        "state": found["state"][0][1],
    }
