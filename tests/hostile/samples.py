"""Small valid checkpoints that together have every field of the format.

Each is a `Draft`, put together by hand without the package.
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack

from tests.oracle.make_checkpoint import PLANES, ZSTD, Run, xxh64
from tests.rules.build import BLOB, EARLIER, ONES, RANKS, Draft, Row, pack, root

TEXT = b"text" * 9
RANK = pack([8, [2, 1]])
WORDS = b"".join(xxh64(bytes([n // 256, n % 256])) for n in range(512))
LONGS = WORDS + bytes(4096) + b"tail" * 64
"""Elements of int64 in blocks of 4 KiB: one that stays raw, one that gets shorter, a short one."""


def layout() -> Draft:
    """Return one with something of everything but nodes: kinds of runs, chunks, files and rows.

    The tensor ``w`` lies in two files as a box and two flat ranges; the third file is one of an
    earlier attempt, of which a run and some bytes are not used.
    """
    nodes: dict[str, Any] = {"blob": [18, 1, 0], "e": [0, 0, 1], "p": 1, "q": 2, "rank": [19, 0]}
    nodes |= {"ranks": [8, [19, 1]], "s": [0, 3, 2], "t": 4, "text": [18, 0, 1], "u": 4, "w": 5}
    draft = Draft(state=_dict(nodes), root=root())
    draft.root["require"] = ["planes-zstd", "subbyte"]
    w = struct.pack("<24f", *range(24))
    left = b"".join(w[24 * row : 24 * row + 8] for row in range(4))
    right = b"".join(w[24 * row + 8 : 24 * row + 24] for row in range(4))
    s = struct.pack("<f", 0.5)
    packed = [b"\x21\x43\x05", RANKS[0], RANKS[3], RANK, BLOB, TEXT]
    draft.add_file("a.bcd", [Run([left, right[:28], s], item=4, block=12), Run(packed)])
    draft.add_file(
        "b.bcd",
        [
            Run([LONGS], codec=ZSTD, item=8, block=12),
            Run([ONES[:4096]], codec=PLANES, item=2, block=12),
        ],
    )
    _add_earlier_file(draft, Run([right[28:]], item=4))
    draft.files[0]["ext"] = {"com.example.host": "h"}
    draft.tensors = [
        {"name": "e", "dtype": "bool", "shape": [0, 3]},
        {"name": "p", "dtype": "bfloat16", "shape": [2048]},
        {"name": "q", "dtype": "uint4", "shape": [5]},
        {"name": "s", "dtype": "float32", "shape": []},
        {"name": "t", "dtype": "int64", "shape": [4, 264], "aliases": ["u"]},
        {"name": "w", "dtype": "float32", "shape": [4, 6], "chunks": 3},
    ]
    draft.add_chunk(1, run=3)
    draft.add_chunk(2, run=1)
    draft.add_chunk(3, run=0, offset=128)
    draft.add_chunk(4, run=2)
    draft.add_chunk(5, run=0, extent=[4, 2])
    draft.add_chunk(5, run=0, origin=[0, 2], extent=[4, 4], count=7, offset=64)
    draft.add_chunk(5, run=4, origin=[0, 2], extent=[4, 4], start=7, count=9)
    for number, (path, rank, data) in enumerate([(0, 0, RANKS[0]), (0, 3, RANKS[3]), (1, 1, RANK)]):
        row = {"path": path, "rank": rank, "run": 1, "offset": 64 * (number + 1)}
        draft.per_rank.append(row | {"nbytes": len(data)})
    draft.objects = [{"name": "blob", "run": 1, "offset": 256, "nbytes": len(BLOB)}]
    draft.objects += [{"name": "text", "run": 1, "offset": 384, "nbytes": len(TEXT)}]
    return draft


def _add_earlier_file(draft: Draft, run: Run) -> None:
    """Add a file of an earlier attempt that had another run, and bytes behind the last run."""
    whole = Draft(state=None)
    whole.add_file("c.bcd", [Run([WORDS]), run], attempt=EARLIER)
    unused, used = whole.runs
    end = used["position"] + used["stored"]
    whole.data["c.bcd"].parts[end + 10] = b"\xee" * 100
    ranges = [unused["position"], unused["stored"], end + 10, 100]
    draft.data["c.bcd"] = whole.data["c.bcd"]
    draft.runs.append(used | {"file": len(draft.files)})
    draft.files.append(whole.files[0] | {"unused": ranges})


def boxes() -> Draft:
    """Return one whose chunks are boxes, so that most columns are absent, and with all of a row."""
    draft = Draft(state=[6, "b", 0, "e", 1, "n", 2, "q", 3, "tied", 0], root=root())
    draft.root["require"] = ["subbyte"]
    pieces = [bytes([16 * number + at for at in range(4)]) for number in range(4)]
    draft.add_file("a.bcd", [Run([*pieces, b"n" * 100, b"\x21\x43\x05"])])
    draft.tensors = [
        {"name": "b", "dtype": "uint8", "shape": [4, 4], "chunks": 4, "aliases": ["tied"]},
        {"name": "e", "dtype": "int64", "shape": [0, 3]},
        {"name": "n", "dtype": "int8", "shape": [100]},
        {"name": "q", "dtype": "uint4", "shape": [5]},
    ]
    draft.tensors[2] |= {"segments": [["gate", 0, 0, 50]], "user": {"lr": "high"}}
    draft.tensors[2] |= {"ext": {"com.example.note": True}}
    for number, origin in enumerate([[0, 0], [0, 2], [2, 0], [2, 2]]):
        draft.add_chunk(0, run=0, origin=origin, extent=[2, 2], offset=64 * number)
    draft.add_chunk(2, run=0, offset=256)
    draft.add_chunk(3, run=0, offset=384)
    return draft


def smallest() -> Draft:
    """Return one with a single tensor, all of whose columns are defaults but two."""
    draft = Draft(state=0, root=root())
    del draft.root["step"]
    draft.add_file("a.bcd", [Run([b"\x01\x02\x03"])])
    draft.tensors = [{"name": "", "dtype": "uint8", "shape": [3]}]
    draft.add_chunk(0, run=0)
    return draft


# ---- nodes -------------------------------------------------------------------------------------

F64 = struct.Struct("<d").pack
ELEMENTS = sorted([True, b"e", [1], [4, F64(0.5)], [9, "e", [2, 5]]], key=msgpack.packb)
VALUES: dict[str, Any] = {
    "false": False,
    "true": True,
    "str": "s",
    "bytes": b"b",
    "none": [1],
    "int": [2, 5],
    "big int": [3, b"\xff"],
    "float": [4, F64(1.5)],
    "complex": [5, F64(1) + F64(-2)],
    "dict": [6, "k", True, [3, b"\xfe"], [8], [9, "t", [2, 7]], [1]],
    "ordered dict": [7, [6, "", [6, "version", [2, 1]]], "k", True],
    "list": [8, [2, 1], [8]],
    "tuple": [9, [2, 2], [9]],
    "set": [10, *ELEMENTS],
    "frozenset": [11, [11, [2, 1]], "e"],
    "bytearray": [12, b"ba"],
    "bytesio": [13, b"io"],
    "size": [14, 2, 3],
    "dtype": [15, "bfloat16"],
    "device": [16, "cuda:0"],
    "scalar": [17, "int16", b"\x01\x02"],
    "user": [20, "com.example.t", [8, [2, 1]]],
}
"""A node of each kind that refers to nothing, by what it is."""

REFERENCES: dict[str, Any] = {
    "tensor": 1,
    "flagged": [0, 0, 6],
    "again": [0, 1, 1],
    "object 0": [18, 0, 0],
    "object 1": [18, 1, 1],
    "object 2": [18, 2, 2],
    "object 3": [18, 3, 3],
    "object 4": [18, 4, 4],
    "rank": [19, 0],
}
INLINE: dict[str, Any] = {
    "inline": [21, 0, "float32", [2], struct.pack("<2f", 1, 2)],
    "inline uint4": [21, 1, "uint4", [3], b"\x21\x03"],
}
OBJECTS = [b"text", b"bytes", b"array", b"io", b"\0" * 7 + b"\x01"]


def values() -> Draft:
    """Return one of nothing but a state, with a node of every kind that refers to nothing."""
    return Draft(state=_dict(VALUES), root=root())


def references() -> Draft:
    """Return one whose state has a node of every kind that refers to rows, and all of a root."""
    draft = Draft(state=_dict(REFERENCES), root=root() | {"optional": ["com.example.later"]})
    draft.root |= {"ext": {"com.example.mesh": {"axes": [2]}}, "user": {"run": [True]}}
    rank = pack([2, 1])
    draft.add_file("a.bcd", [Run([b"\x01\x02", b"\x03\x04", rank, *OBJECTS])])
    draft.tensors = [
        {"name": "flagged", "dtype": "int8", "shape": [2]},
        {"name": "tensor", "dtype": "int8", "shape": [2], "aliases": ["again"]},
    ]
    draft.add_chunk(0, run=0)
    draft.add_chunk(1, run=0, offset=64)
    draft.per_rank = [{"path": 0, "rank": 0, "run": 0, "offset": 128, "nbytes": len(rank)}]
    for number, data in enumerate(OBJECTS):
        row: Row = {"name": f"object {number}", "run": 0, "offset": 64 * (number + 3)}
        draft.objects.append(row | {"nbytes": len(data)})
    draft.objects[0]["media"] = "text/plain"
    return draft


def of_ranks(documents: list[bytes]) -> Draft:
    """Return one with nothing but a per-rank value, the documents those of ranks 0, 1, ..."""
    draft = Draft(state=[6, "r", [19, 0]], root=root())
    run = Run(documents)
    draft.add_file("a.bcd", [run])
    for rank, (offset, data) in enumerate(zip(run.offsets, documents, strict=True)):
        row = {"path": 0, "rank": rank, "run": 0, "offset": offset}
        draft.per_rank.append(row | {"nbytes": len(data)})
    return draft


def ranks() -> Draft:
    """Return one whose per-rank value has a node of every kind that may be there."""
    return of_ranks([pack(RANK_STATE)])


def _dict(values: dict[str, Any]) -> list[Any]:
    return [6, *(part for pair in values.items() for part in pair)]


RANK_STATE = _dict(
    {"dict": [6, [2, 7], [8]], "tuple": [9, [4, F64(0.5)]], "set": [10, [2, 1]]} | INLINE
)
