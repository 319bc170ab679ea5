"""A decoder of bcpformat 1.0, written from the specification alone: slow, whole, obvious.

It checks what stands between stored bytes and elements: headers, digests, encodings, extents and
coverage, not the form of rows, names or the state.  A refusal is an exception, most with a code.
"""

import struct

import msgpack
import xxhash
import zstandard

NAMES = (  # spec 8.1
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 bfloat16 "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu complex32 complex64 "
    "complex128 int2 uint2 int4 uint4 float4_e2m1fn float6_e2m3fn float6_e3m2fn"
)
BITS = {n: int(n.split("_")[0].strip("abcdefghijklmnopqrstuvwxyz") or 8) for n in NAMES.split()}
KINDS = ["files", "tensors", "runs", "chunks", "state", "per_rank", "objects"]
U8, U32 = ["codec", "item", "block"], ["file", "block0", "path", "rank", "run"]  # spec 7.4


def check(where, **rules):  # refuse with the code of the first rule that does not hold
    for code, holds in rules.items():
        if not holds:
            raise ValueError(code, f"{code} at {where}")


def product(numbers):
    return numbers[0] * product(numbers[1:]) if numbers else 1


def read_file(path, kind):  # spec 5
    with open(path, "rb") as file:
        data = file.read()
    check(path, E_TRUNCATED=len(data) >= 64, E_MAGIC=data[:8] == b"\x89BCP\r\n\x1a\n")
    *half, attempt, stored, raw, zero, digest = struct.unpack("<4H16s4Q", data[8:64])
    check(path, E_HEADER_CHECKSUM=digest == xxhash.xxh3_64_intdigest(data[:56]))
    check(path, E_VERSION=half[0] == 1, E_KIND=half[2] == kind, E_RESERVED=half[3] == zero == 0)
    check(path, E_LENGTH=1 <= stored <= raw if kind == 1 else stored == raw == 0)
    return data, attempt, stored, raw


def unzstd(data, nbytes, code):  # spec 9.2; data[4] & 3 announces a dictionary id
    frame = zstandard.get_frame_parameters(data)
    legal = frame.content_size == nbytes and frame.window_size <= 2**27 and not data[4] & 3
    check("a frame", **{code: legal})
    return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)


def document(data, at, stored, raw, digest, coded):  # spec 5.1 and 6: the root or a section
    body = data[at : at + stored]
    same = xxhash.xxh3_128_digest(body) == digest[::-1]  # spec 2: the low half first
    check(at, E_TRUNCATED=len(body) == stored, E_MANIFEST_CHECKSUM=same)
    check(at, E_MANIFEST_ENCODING=stored < raw if coded else stored == raw)
    body = unzstd(body, raw, "E_MANIFEST_ENCODING") if coded else body
    value = msgpack.unpackb(body, object_pairs_hook=lambda pairs: dict(sorted(pairs)))
    check(at, E_MP_NONCANONICAL=msgpack.packb(value) == body)
    return value


def read_manifest(path):  # spec 7.1: the root, and for each kind its sections as (rows, value)
    data, attempt, stored, raw = read_file(path, 1)
    at, found = 80 + stored, {kind: [] for kind in KINDS}
    root = document(data, 64, stored, raw, data[at - 16 : at], stored != raw)
    check(path, E_FEATURE={*root["require"]} <= {"planes-zstd", "subbyte"})
    check(path, E_DIGEST=root["digest"] == "xxh3-64", E_ID=root["id"] == attempt)
    for kind, first, rows, codec, stored, raw, digest in root["sections"]:
        check(kind, E_SECTION=first == 32768 * len(found[kind]), E_CODEC=codec in ("none", "zstd"))
        found[kind].append((rows, document(data, at, stored, raw, digest, codec == "zstd")))
        at += stored
    check(path, E_LENGTH=at == len(data))
    return root, found


def column(table, name, usual):  # spec 7.4; `usual` has the default of each value
    form = f"<{len(usual)}{'B' if name in U8 else 'I' if name in U32 else 'Q'}"
    data = table.get(name, struct.pack(form, *usual))
    check(name, E_COLUMN=len(data) == struct.calcsize(form))
    return struct.unpack(form, data)


def rows_of(rows, table, **defaults):  # a default is one value, or one for each row
    usual = {k: [v] * rows if type(v) is int else v for k, v in defaults.items()}
    columns = [column(table, name, usual[name]) for name in usual]
    return [dict(zip(usual, row, strict=True)) for row in zip(*columns, strict=True)]


def chunks_of(rows, table, tensors):  # spec 7.4 and 8.2; `tensors` has the tensor of each row
    dims = [dim for tensor in tensors for dim in tensor["shape"]]
    origins, extents = column(table, "origin", [0] * len(dims)), column(table, "extent", dims)
    axes = zip(dims, origins, extents, strict=True)
    boxes = [[next(axes) for _ in tensor["shape"]] for tensor in tensors]
    sizes = [product([extent for _, _, extent in box]) for box in boxes]
    chunks = rows_of(rows, table, start=0, count=sizes, run=0, offset=0)
    for tensor, box, size, chunk in zip(tensors, boxes, sizes, chunks, strict=True):
        inside = all(1 <= extent <= dim - first for dim, first, extent in box)
        check(chunk, E_BOUNDS=inside and 1 <= chunk["count"] <= size - chunk["start"])
        nbytes = -(-chunk["count"] * BITS[tensor["dtype"]] // 8)
        yield chunk | {"tensor": tensor["name"], "box": box, "nbytes": nbytes}


def tile(where, data, at, gap, parts):  # the parts (position, size), and zeros between them
    for position, nbytes in [*sorted(parts), (len(data), 0)]:
        check(where, E_EXTENT_BOUNDS=position + nbytes <= len(data))
        check(where, E_EXTENT_OVERLAP=position >= at, E_EXTENT_HOLE=position - at < gap)
        check(where, E_PADDING=not any(data[at:position]))
        at = position + nbytes


def decode(stored, nbytes, codec, k):  # spec 9
    shorter = len(stored) < nbytes and codec in (1, 2)
    check("a block", E_TABLE=shorter or len(stored) == nbytes)
    if not shorter or codec == 1:
        return unzstd(stored, nbytes, "E_BLOCK_ENCODING") if shorter else stored
    m, at, out = nbytes // k, 4 * k, bytearray(nbytes)
    lengths = struct.unpack(f"<{k}I", stored[:at])
    check("planes", E_BLOCK_ENCODING=max(lengths) <= m and at + sum(lengths) == len(stored))
    for plane, length in enumerate(lengths):
        part, at = stored[at : at + length], at + length
        out[k - 1 - plane :: k] = part if length == m else unzstd(part, m, "E_BLOCK_ENCODING")
    return bytes(out)


def read_data(prefix, row, runs):  # spec 5.2: gives each run of a file its raw bytes
    name, table, blocks, coded = row["name"], row["table"], row["blocks"], row["lengths"]
    check(name, E_FILE_NAME="/" not in name and name.endswith(".bcd"))
    data, attempt, _, _ = read_file(f"{prefix}/data/{name}", 2)
    end = table + blocks * (12 if coded else 8)
    check(name, E_TRUNCATED=len(data) >= end, E_FILE_LENGTH=len(data) == end)
    same = xxhash.xxh3_128_digest(data[table:]) == row["digest"][::-1]
    check(name, E_ID=attempt == row["attempt"], E_TABLE_CHECKSUM=same)
    parts = [(table, end - table), *((run["position"], run["stored"]) for run in runs)]
    check(name, E_ALIGN=not any(position % 4096 for position, _ in parts))
    parts += zip(row["unused"][::2], row["unused"][1::2], strict=True)
    tile(name, data, 64, 4096, parts)  # the rest of the header is zeros, too
    digests, block = struct.unpack_from(f"<{blocks}Q", data, table), 0
    lengths = struct.unpack(f"<{blocks}I", data[table + 8 * blocks :]) if coded else None
    for run in runs:
        check(run, E_TABLE=run["block0"] == block or row["unused"])
        at, run["data"], block = run["position"], b"", run["block0"]
        while len(run["data"]) < run["raw"]:
            nbytes = min(1 << run["block"], run["raw"] - len(run["data"]))
            stored = lengths[block] if coded else nbytes
            part = decode(data[at : at + stored], nbytes, run["codec"], run["item"])
            check(run, E_BLOCK_CHECKSUM=xxhash.xxh3_64_intdigest(part) == digests[block])
            run["data"], at, block = run["data"] + part, at + stored, block + 1
        check(run, E_TABLE=at == run["position"] + run["stored"])
    check(name, E_TABLE=block == blocks or row["unused"])


def assemble(tensor, chunks):  # spec 8: each element once; elements as text, lowest bit first
    bits, out = BITS[tensor["dtype"]], {}
    for chunk in (chunk for chunk in chunks if chunk["tensor"] == tensor["name"]):
        stream = "".join(f"{byte:08b}"[::-1] for byte in chunk["data"])
        check(tensor, E_PADDING="1" not in stream[chunk["count"] * bits :])
        for i in range(chunk["count"]):
            place, stride, rest = 0, 1, chunk["start"] + i
            for dim, first, extent in reversed(chunk["box"]):  # the last axis is the fastest
                rest, position = divmod(rest, extent)
                place, stride = place + stride * (first + position), stride * dim
            check(tensor, E_COVERAGE=place not in out)
            out[place] = stream[i * bits : (i + 1) * bits]
    check(tensor, E_COVERAGE=len(out) == product(tensor["shape"]))
    stream = "".join(out[place] for place in sorted(out))
    data = bytes(int(stream[i : i + 8][::-1], 2) for i in range(0, len(stream), 8))
    return tensor["dtype"], tuple(tensor["shape"]), data


def read_checkpoint(path):
    """Return all that the checkpoint under the prefix `path` holds, or refuse it."""
    root, found = read_manifest(f"{path}/manifest.bcp")
    kinds, runs, chunks, ranks = ("files", "tensors", "objects"), [], [], []
    files, tensors, objects = ([row for _, part in found[kind] for row in part] for kind in kinds)
    for count, table in found["runs"]:
        known = {"file": 0, "position": 4096, "raw": 0, "stored": column(table, "raw", [0] * count)}
        runs += rows_of(count, table, **known, codec=0, item=1, block=20, block0=0)
    for count, table in found["per_rank"]:
        ranks += rows_of(count, table, path=0, rank=0, run=0, offset=0, nbytes=0)
    owners = [row for row in tensors for _ in range(row.get("chunks", int(0 not in row["shape"])))]
    for count, table in found["chunks"]:
        chunks += chunks_of(count, table, owners[len(chunks) : len(chunks) + count])
    usual = {"attempt": root["id"], "kind": "data", "lengths": False, "unused": []}
    for index, row in enumerate(usual | row for row in files):
        if row["kind"] == "data":  # others are ignored
            read_data(path, row, [run for run in runs if run["file"] == index])
    for index, run in enumerate(runs):
        mine = [use for use in [*chunks, *ranks, *objects] if use["run"] == index]
        check(run, E_EXTENT_HOLE=mine, E_ALIGN=not any(use["offset"] % 64 for use in mine))
        tile(run, run["data"], 0, 64, [(use["offset"], use["nbytes"]) for use in mine])
        for use in mine:
            use["data"] = run["data"][use["offset"] : use["offset"] + use["nbytes"]]
    top = {"step": root.get("step"), "user": root.get("user", {}), "state": found["state"][0][1]}
    return top | {
        "tensors": {row["name"]: assemble(row, chunks) for row in tensors},
        "aliases": {alias: row["name"] for row in tensors for alias in row.get("aliases", [])},
        "objects": {row["name"]: row["data"] for row in objects},
        "per_rank": {(row["path"], row["rank"]): row["data"] for row in ranks},
    }
