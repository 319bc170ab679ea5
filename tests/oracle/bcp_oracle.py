"""A second reader of bcpformat 1.0, written from the specification alone: slow, whole, obvious."""

import math
import re
import stat
import struct
import tomllib
from collections import defaultdict, namedtuple
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import msgpack
import xxhash
import zstandard

MAX, GROUP, LIMIT_BYTES = 2**53 - 1, 32768, 1 << 30
REGISTRY = Path(__file__).resolve().parents[2] / "spec" / "registry" / "dtypes.toml"
DTYPES = {row["name"]: row for row in tomllib.loads(REGISTRY.read_text())["dtype"]}
KINDS = ["files", "tensors", "runs", "chunks", "state", "per_rank", "objects"]
B, S, I, L = bytes, str, int, list
LEAVES = {0: [I, I], 1: [], 2: [I], 3: [B], 4: [B], 5: [B], 12: [B], 13: [B], 15: [S], 16: [S]}
LEAVES |= {17: [S, B], 18: [I, I], 19: [I], 21: [I, S, L, B]}
SIZES = {4: 8, 5: 16}
Run = namedtuple("Run", "file position raw stored codec item block block0")


class Refused(ValueError):
    """A checkpoint that breaks a rule; the arguments are the code and the message."""


def need(condition, code, message):
    if not condition:
        raise Refused(code, message)


def ascending(keys, code, what):  # code points and UTF-8 bytes sort alike
    need(all(a < b for a, b in pairwise(keys)), code, f"{what} must ascend without duplicates")


def read_file(path, absent):  # spec 4
    need(path.exists() or path.is_symlink(), absent, f"{path} does not exist")
    links = path.parent.name == "data" and path.parent.is_symlink()
    regular = stat.S_ISREG(path.lstat().st_mode) and not links
    need(regular, "E_FILE_TYPE", f"{path} is not a regular file")
    return path.read_bytes()


def read_header(data, kind):  # spec 5
    need(len(data) >= 64, "E_TRUNCATED", f"expected a header of 64 bytes, found {len(data)}")
    magic, *half, attempt, stored, raw, reserved, check = struct.unpack("<8s4H16s4Q", data[:64])
    need(magic == b"\x89BCP\r\n\x1a\n", "E_MAGIC", "not a file of this format")
    need(check == xxhash.xxh3_64_intdigest(data[:56]), "E_HEADER_CHECKSUM", "damaged header")
    need(half[0] == 1, "E_VERSION", f"this reader knows major version 1, the file has {half[0]}")
    need(half[2] == kind, "E_KIND", f"expected kind {kind}, found {half[2]}")
    need(half[3] == reserved == 0, "E_RESERVED", "flags and reserved bytes must be zero")
    legal = 1 <= stored <= raw if kind == 1 else stored == raw == 0
    need(legal, "E_LENGTH", f"stored length {stored}, raw length {raw}")
    return half[1], attempt, stored, raw


def digest(data, expected, code, what):  # spec 2: XXH3-128, low half first, both little-endian
    need(xxhash.xxh3_128_digest(data)[::-1] == expected, code, f"{what} does not match its digest")


def unzstd(data, nbytes, code):  # spec 9.2; RFC 8878, 3.1.1.1
    need(len(data) >= 9 and data[:4] == b"\x28\xb5\x2f\xfd", code, "not a zstd frame")
    width, single, forbidden = data[4] >> 6, data[4] >> 5 & 1, data[4] & 0b1011
    need(not forbidden and (single or width), code, "dictionary, reserved bit or no content size")
    at = 5 if single else 6
    size = int.from_bytes(data[at : at + (1 << width)], "little") + 256 * (width == 1)
    window = size if single else (8 + (data[5] & 7)) << (7 + (data[5] >> 3))
    need(size == nbytes, code, f"expected a content size of {nbytes}, found {size}")
    need(window <= 1 << 27, code, f"window of {window} bytes")
    try:
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Refused(code, f"zstd: {error}") from error


def document(data, depth):  # spec 6
    def check(value, left):
        if type(value) is dict:
            need(all(type(key) is str for key in value), "E_MP_TYPE", "map keys must be str")
            ascending(value, "E_MP_NONCANONICAL", "map keys")
        if type(value) in (list, dict):
            need(left, "E_DEPTH", f"nested deeper than {depth}")
            for item in value.values() if type(value) is dict else value:
                check(item, left - 1)
        elif type(value) not in (bool, str, bytes):
            need(type(value) is int and 0 <= value <= MAX, "E_MP_TYPE", f"{value!r}")

    try:
        value = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError) as error:  # TypeError: an array or a map as a key
        code = "E_MP_TYPE" if type(error) is TypeError else "E_MP_MALFORMED"
        raise Refused(code, f"msgpack: {error}") from error
    check(value, depth)
    need(msgpack.packb(value) == data, "E_MP_NONCANONICAL", "not in the one allowed form")
    return value


def fields(value, minor, needed, **optional):  # spec 7.1, 7.2, 15; a type has no default
    need(type(value) is dict, "E_TYPE", "a row must be a map")
    need(needed.keys() <= value.keys(), "E_KEY_MISSING", f"{needed.keys() - value.keys()}")
    for key, default in (needed | optional).items():
        kind = default if type(default) is type else type(default)
        need(type(value.get(key, kind())) is kind, "E_TYPE", key)
        need(key not in value or value[key] != default, "E_MP_NONCANONICAL", f"{key} is default")
    need(minor or value.keys() <= (needed | optional).keys(), "E_KEY_UNKNOWN", f"{value.keys()}")
    return SimpleNamespace(**(optional | value))


def column(table, count, name, code, default):  # spec 7.4; default: one value, or one for each
    need(type(table) is dict, "E_TYPE", "columns must be a map")
    default = default if type(default) is list else [default] * count
    data = table.pop(name, None)
    need(data is None or type(data) is bytes, "E_TYPE", name)
    exact = data is None or len(data) == len(default) * struct.calcsize("<" + code)
    need(exact, "E_COLUMN", f"{name} must have {len(default)} values")
    values = default if data is None else [*struct.unpack(f"<{len(default)}{code}", data)]
    need(data is None or values != default, "E_COLUMN", f"{name} holds only defaults")
    need(max(values, default=0) <= MAX, "E_RANGE", name)
    return values


def segment(key, tuple_=False):  # spec 11
    if type(key) is str:
        odd = "%/\x7f," if tuple_ else "%/\x7f"
        return "".join(f"%{ord(c):02X}" if c in odd or c < " " else c for c in key) or "%e"
    if type(key) is bool:
        return "%t" if key else "%f"
    need(type(key) is list and key[:1] in ([2], [3], [9]), "E_STATE", f"{key!r} as a key")
    if key[0] == 9:
        return "%(" + ",".join(segment(part, True) for part in key[1:]) + "%)"
    walk(key, "", None)
    return f"%i{key[1] if key[0] == 2 else int.from_bytes(key[1], 'little', signed=True)}"


def walk(node, path, seen):  # spec 10; seen: code -> [(row, path)], None in a per-rank value
    code, rest = (0, [node, 0]) if type(node) is int else (None, [])
    if type(node) is list and node and type(node[0]) is int:
        code, rest = node[0], node[1:]
    if code is None:
        return need(type(node) in (bool, str, bytes), "E_STATE", f"{node!r} is no node")
    if code in LEAVES:
        need([type(item) for item in rest] == LEAVES[code], "E_STATE", f"form of {node!r}")
    place = (code == 21) == (seen is None) if code in (0, 18, 19, 21) else True
    need(place, "E_STATE", f"kind {code} in this place")
    if code in (0, 18, 19):
        seen[code].append((rest[1] if code == 18 else rest[0], path))
        need(type(node) is int or code or 1 <= rest[1] <= 7, "E_STATE", "flags of a tensor")
