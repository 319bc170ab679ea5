"""Checkpoints of one tensor, of one block, and of a file that an earlier attempt has written."""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.make_checkpoint import PLANES, ZSTD, Run, padded, xxh64
from tests.rules.build import EARLIER, ONES, ZEROS, Draft, Header, Row, base, root


def single(
    dtype: str, shape: Sequence[int], pieces: Sequence[bytes], *, run: Run | None = None
) -> Draft:
    """Return a checkpoint of the tensor ``t`` alone, one chunk for each piece of axis 0.

    Args:
        dtype: Its data type.
        shape: Its shape; axis 0 is cut evenly.
        pieces: The elements of each chunk.
        run: The run that holds the pieces, in their order, if it is none of codec raw.
    """
    draft = Draft(state=[6, "t", 0], root=root())
    items = {"int8": 1, "uint4": 1, "bfloat16": 2, "float32": 4, "int64": 8}
    draft.add_file("t.bcd", [run or Run(list(pieces), item=items[dtype])])
    draft.tensors = [{"name": "t", "dtype": dtype, "shape": list(shape)}]
    if len(pieces) > 1:
        draft.tensors[0]["chunks"] = len(pieces)
    offset = 0
    for number, piece in enumerate(pieces):
        region: Row = {}
        if len(pieces) > 1:
            rows = shape[0] // len(pieces)
            region = {"origin": [number * rows, *[0] * (len(shape) - 1)]}
            region["extent"] = [rows, *shape[1:]]
        draft.add_chunk(0, run=0, offset=offset, **region)
        offset += len(padded(piece, 64))
    return draft


def encoded(stored: bytes, raw: bytes, *, codec: int = ZSTD, item: int = 1) -> Draft:
    """Return a checkpoint of one tensor in one block, with these bytes as stored."""
    dtype = {1: "int8", 2: "bfloat16", 4: "float32", 8: "int64"}[item]
    run = Run([raw], codec=codec, item=item, block=13)
    draft = single(dtype, [len(raw) // item], [raw], run=run)
    file = draft.data["t.bcd"]
    table = 4096 + len(padded(stored, 4096))
    file.parts, file.lengths, file.table = {4096: stored}, [len(stored)], table
    file.header, file.digests = Header(kind=2), [xxh64(raw)]
    draft.runs[0]["stored"], draft.files[0]["table"] = len(stored), table
    if codec == PLANES:
        draft.root["require"] = ["planes-zstd"]
    return draft


def linked() -> Draft:
    """Return `base()` whose second file is of an earlier attempt, with parts that are not used.

    Its first run and its block are no longer used, nor are 100 bytes behind the last run.
    """
    draft = base()
    noise = bytes(range(256)) * 20
    whole = Draft(state=None)
    runs = [Run([noise]), Run([ZEROS], codec=ZSTD, block=12)]
    runs.append(Run([ONES], codec=PLANES, item=2, block=13))
    whole.add_file("b.bcd", runs, attempt=EARLIER)
    unused, *used = whole.runs
    table = whole.data["b.bcd"].table
    end = used[-1]["position"] + used[-1]["stored"]
    whole.data["b.bcd"].parts[end + 10] = b"\xee" * 100
    draft.data["b.bcd"] = whole.data["b.bcd"]
    ranges = [unused["position"], unused["stored"], end + 10, 100]
    draft.files[1] = whole.files[0] | {"unused": ranges, "table": table}
    draft.runs[2:] = [row | {"file": 1} for row in used]
    return draft
