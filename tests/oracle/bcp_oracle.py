"""A decoder of bcpformat 1.0, written from the specification alone: slow, whole, obvious.

It checks what stands between stored bytes and elements: headers, digests, encodings, extents and
coverage.  The form of documents and rows, the order of rows, the state and limits are not checked.
"""

import struct

import msgpack
import xxhash
import zstandard

NAMES = {  # spec 8.1: the data types by their bits
    2: "int2 uint2",
    4: "int4 uint4 float4_e2m1fn",
    6: "float6_e2m3fn float6_e3m2fn",
    8: "bool int8 uint8 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu",
    16: "int16 uint16 float16 bfloat16",
    32: "int32 uint32 float32 complex32",
    64: "int64 uint64 float64 complex64",
    128: "complex128",
}
BITS = {name: bits for bits, names in NAMES.items() for name in names.split()}
KINDS = ["files", "tensors", "runs", "chunks", "state", "per_rank", "objects"]
U8, U32 = ["codec", "item", "block"], ["file", "block0", "path", "rank", "run"]  # spec 7.4


def check(where, **rules):
    """Refuse with the code of the first rule that does not hold."""
    for code, holds in rules.items():
        if not holds:
            raise ValueError(code, f"{code} at {where}")


def xxh128(data):  # spec 2: the low half first, both little-endian
    return xxhash.xxh3_128_digest(data)[::-1]


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
    try:
        frame = zstandard.get_frame_parameters(data)
        legal = frame.content_size == nbytes and frame.window_size <= 2**27 and not data[4] & 3
        check("a frame", **{code: legal})
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(code, str(error)) from error


def document(data, at, stored, raw, digest, coded):  # spec 5.1 and 6: the root or a section
    body = data[at : at + stored]
    check(at, E_TRUNCATED=len(body) == stored, E_MANIFEST_CHECKSUM=xxh128(body) == digest)
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
        check(kind, E_SECTION=kind in KINDS and first == 32768 * len(found[kind]))
        found[kind].append((rows, document(data, at, stored, raw, digest, codec == "zstd")))
        at += stored
    check(path, E_LENGTH=at == len(data))
    return root, found


def column(table, name, usual):  # spec 7.4; `usual` has the default of each value
    form = f"<{len(usual)}{'B' if name in U8 else 'I' if name in U32 else 'Q'}"
    data = table.get(name, struct.pack(form, *usual))
    check(name, E_COLUMN=len(data) == struct.calcsize(form))
    return struct.unpack(form, data)


def rows_of(count, table, **defaults):  # a default is one value, or one for each row
    usual = {k: [v] * count if type(v) is int else v for k, v in defaults.items()}
    columns = [column(table, name, usual[name]) for name in usual]
    return [dict(zip(usual, row, strict=True)) for row in zip(*columns, strict=True)]


def chunks_of(count, table, tensors):  # spec 7.4 and 8.2; `tensors` has the tensor of each row
    dims = [dim for tensor in tensors for dim in tensor["shape"]]
    origins, extents = column(table, "origin", [0] * len(dims)), column(table, "extent", dims)
    axes = zip(dims, origins, extents, strict=True)
    boxes = [[next(axes) for _ in tensor["shape"]] for tensor in tensors]
    sizes = [product([extent for _, _, extent in box]) for box in boxes]
    chunks = rows_of(count, table, start=0, count=sizes, run=0, offset=0)
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


def decode(stored, nbytes, run):  # spec 9
    if len(stored) == nbytes or run["codec"] == 1:
        return stored if len(stored) == nbytes else unzstd(stored, nbytes, "E_BLOCK_ENCODING")
    k = run["item"]
    m, at, out = nbytes // k, 4 * k, bytearray(nbytes)
    lengths = struct.unpack(f"<{k}I", stored[:at].ljust(at, b"\0"))
    check("planes", E_BLOCK_ENCODING=at + sum(lengths) == len(stored))
    for plane, length in enumerate(lengths):
        part, at = stored[at : at + length], at + length
        out[k - 1 - plane :: k] = part if length == m else unzstd(part, m, "E_BLOCK_ENCODING")
    return bytes(out)


def read_data(prefix, row, runs):  # spec 5.2: adds its raw bytes to each run of a file
    name, table, blocks, unused = row["name"], row["table"], row["blocks"], row.get("unused", [])
    check(name, E_FILE_NAME="/" not in name and name.endswith(".bcd"))
    data, attempt, _, _ = read_file(f"{prefix}/data/{name}", 2)
    coded = row.get("lengths", False)
    end = table + blocks * (12 if coded else 8)
    check(name, E_TRUNCATED=len(data) >= end, E_FILE_LENGTH=len(data) == end)
    check(name, E_ID=attempt == row["attempt"], E_TABLE_CHECKSUM=xxh128(data[table:]) == row["digest"])
    check(name, E_TABLE=coded == any(run["codec"] for run in runs) or unused)
    parts = [(table, end - table), *((run["position"], run["stored"]) for run in runs)]
    check(name, E_ALIGN=not any(position % 4096 for position, _ in parts))
    tile(name, data, 64, 4096, [*parts, *zip(unused[::2], unused[1::2], strict=True)])
