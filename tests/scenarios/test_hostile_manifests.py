"""Manifests that somebody made to harm a reader, and positions that need 64 bits."""

from __future__ import annotations

import os
import pickle
import struct
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bcpformat
from bcpformat import ErrorCode, LocalStore, MemoryStore
from bcpformat.codec.digest import block_digest, document_digest
from bcpformat.model.manifest import DATA_PREFIX, MANIFEST_KEY, FileRow, Manifest, ints
from bcpformat.model.nodes import int_bytes
from bcpformat.wire import data_file_head, encode_manifest
from tests.rules_state.hostile import (
    OPTIONS,
    Document,
    manifest_of,
    objects_of,
    store_of,
    with_documents,
    with_manifest,
    with_state,
    written,
)

STATE = {"w": np.arange(64, dtype=np.float32), "r": bcpformat.PerRank(1), "o": "x" * 70_000}
MAX_SECONDS = 1.0
MAX_BYTES = 2**26


def sections(change: Callable[[dict[str, Any]], None]) -> MemoryStore:
    return with_documents(written(STATE), lambda _root, found: change(found))


def column(kind: str, name: str, code: str, *values: int) -> MemoryStore:
    def change(found: dict[str, Any]) -> None:
        needed = {"runs": "raw", "per_rank": "nbytes"}.get(kind)
        count = len(found[kind][needed]) // 8 if needed else 1
        found[kind][name] = struct.pack(f"<{count}{code}", *(values * count)[:count])

    return sections(change)


def row(kind: str, **values: Any) -> MemoryStore:
    return sections(lambda found: found[kind][0].update(values))


def document(kind: str, data: bytes) -> MemoryStore:
    return sections(lambda found: found.update({kind: Document(data)}))


def claim(kind: str, place: int, value: Any) -> MemoryStore:
    def change(rows: dict[str, list[Any]]) -> None:
        rows[kind][place] = value

    return with_documents(written(STATE), lambda *_: None, rows=change)


def in_place_of_the_manifest(data: bytes) -> MemoryStore:
    return store_of({**objects_of(written(STATE)), MANIFEST_KEY: data})


def far(m: Manifest) -> Manifest:
    """Let the run and the table of the file lie 2^40 bytes behind its end, without a hole."""
    runs = replace(m.runs, raw=m.runs.raw + 2**40, stored=m.runs.stored + 2**40)
    (file,) = m.files
    blocks = int((((runs.raw - 1) >> runs.block_log2) + 1).sum())
    table = int(runs.position[-1] + runs.raw[-1] + 4095) // 4096 * 4096
    return replace(m, runs=runs, files=[replace(file, blocks=blocks, table_bytes=table)])


DEEP = b"\x91" * 10_000 + b"\xc3"
BOMB = pickle.dumps({"state": list(range(1000))})

HOSTILE: dict[str, tuple[Callable[[], MemoryStore], set[ErrorCode]]] = {
    "position beyond the file": (
        lambda: column("runs", "position", "Q", 4096, 2**40),
        {ErrorCode.EXTENT_OVERLAP},
    ),
    "offset beyond the run": (
        lambda: column("chunks", "offset", "Q", 2**40),
        {ErrorCode.EXTENT_BOUNDS},
    ),
    "an offset that wraps": (
        lambda: column("chunks", "offset", "Q", 2**64 - 64),
        {ErrorCode.RANGE},
    ),
    "a table behind the end of the file": (
        lambda: row("files", table=2**40),
        {ErrorCode.EXTENT_HOLE},
    ),
    "more blocks than the file has": (
        lambda: row("files", blocks=2**40),
        {ErrorCode.TABLE, ErrorCode.LIMIT},
    ),
    "a shape whose product wraps": (
        lambda: row("tensors", shape=[2**52, 4, 0]),
        {ErrorCode.OVERFLOW},
    ),
    "a dimension of 2^62": (
        lambda: row("tensors", shape=[2**62, 4, 0]),
        {ErrorCode.RANGE},
    ),
    "a tensor of 2^52 bytes": (
        lambda: row("tensors", shape=[2**50]),
        {ErrorCode.EXTENT_BOUNDS},
    ),
    "2^52 chunks": (lambda: row("tensors", chunks=2**52), {ErrorCode.COLUMN}),
    "10,000 arrays in each other": (lambda: document("state", DEEP), {ErrorCode.DEPTH}),
    "10,000 maps in each other": (
        lambda: document("tensors", b"\x81\xa1a" * 10_000 + b"\xc3"),
        {ErrorCode.DEPTH},
    ),
    "10,000 arrays in the user's metadata": (
        lambda: with_documents(
            written(STATE), lambda root, _: root.update(user={"a": _deep_list(300)})
        ),
        {ErrorCode.DEPTH},
    ),
    "an array of 2^32-1": (
        lambda: document("state", b"\xdd\xff\xff\xff\xff"),
        {ErrorCode.MP_MALFORMED},
    ),
    "arrays of 2^32-1 in each other": (
        lambda: document("state", b"\xdd\xff\xff\xff\xff" * 100),
        {ErrorCode.MP_MALFORMED, ErrorCode.DEPTH},
    ),
    "a map of 2^32-1": (
        lambda: document("tensors", b"\xdf\xff\xff\xff\xff"),
        {ErrorCode.MP_MALFORMED},
    ),
    "bytes of 2^32-1": (
        lambda: document("state", b"\xc6\xff\xff\xff\xff"),
        {ErrorCode.MP_MALFORMED},
    ),
    "a section of 2^40 raw bytes": (
        lambda: with_documents(
            written(STATE), lambda *_: None, rows=lambda r: _zstd(r["state"], 2**40)
        ),
        {ErrorCode.LIMIT},
    ),
    "a section of 2^31 raw bytes": (
        lambda: with_documents(
            written(STATE), lambda *_: None, rows=lambda r: _zstd(r["state"], 2**31)
        ),
        {ErrorCode.MANIFEST_ENCODING, ErrorCode.LIMIT},
    ),
    "a section of 2^40 stored bytes": (
        lambda: with_documents(
            written(STATE), lambda *_: None, rows=lambda r: _length(r["state"], 2**40)
        ),
        {ErrorCode.LIMIT, ErrorCode.TRUNCATED},
    ),
    "2^40 files": (lambda: claim("files", 2, 2**40), {ErrorCode.LIMIT}),
    "2^40 runs": (lambda: claim("runs", 2, 2**40), {ErrorCode.SECTION}),
    "an object of 2^40 bytes": (
        lambda: row("objects", nbytes=2**40),
        {ErrorCode.EXTENT_BOUNDS},
    ),
    "a run of 2^40 bytes": (
        lambda: with_manifest(written({"w": STATE["w"]}), far),
        {ErrorCode.EXTENT_HOLE, ErrorCode.TRUNCATED},
    ),
    "an unknown codec": (lambda: column("runs", "codec", "B", 99), {ErrorCode.CODEC}),
    "an unknown codec of a section": (
        lambda: claim("state", 3, "lz4"),
        {ErrorCode.CODEC},
    ),
    "an unknown data type": (lambda: row("tensors", dtype="float128"), {ErrorCode.DTYPE}),
    "a pickle": (lambda: in_place_of_the_manifest(BOMB), {ErrorCode.MAGIC}),
    "a short pickle": (lambda: in_place_of_the_manifest(BOMB[:20]), {ErrorCode.TRUNCATED}),
    "a pickle in place of the state": (
        lambda: document("state", BOMB),
        {ErrorCode.MP_MALFORMED, ErrorCode.MP_TYPE, ErrorCode.MP_NONCANONICAL},
    ),
    "a zip file": (lambda: in_place_of_the_manifest(b"PK\x03\x04" + bytes(99)), {ErrorCode.MAGIC}),
    "nothing": (lambda: in_place_of_the_manifest(b""), {ErrorCode.TRUNCATED}),
}


def _deep_list(depth: int) -> Any:
    value: Any = True
    for _ in range(depth):
        value = [value]
    return value


def _zstd(section: list[Any], raw: int) -> None:
    section[3], section[5] = "zstd", raw


def _length(section: list[Any], nbytes: int) -> None:
    section[4] = section[5] = nbytes


@pytest.mark.parametrize("name", HOSTILE)
def test_t37_a_hostile_manifest_is_refused_fast_and_in_little_memory(name: str) -> None:
    """BCP-RDR-002, BCP-LIM-002, BCP-CNV-003, BCP-MSG-008."""
    make, codes = HOSTILE[name]
    store = make()
    bcpformat.read(written({"warm": 1}), as_numpy=True)

    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises(bcpformat.BcpError) as caught:
        bcpformat.read(store, as_numpy=True, options=OPTIONS)
    seconds = time.perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert caught.value.code in codes
    assert seconds < MAX_SECONDS
    assert peak < MAX_BYTES
    report = bcpformat.validate(store, options=OPTIONS)
    assert caught.value.code in [p.code for p in report.problems]


def test_t37_keys_of_one_hash_are_refused_before_they_take_time_with_the_square() -> None:
    """BCP-RDR-002: ints that a dict of Python cannot tell apart by their hashes; they are valid."""
    keys = [[3, int_bytes(k * (2**61 - 1))] for k in range(2**22, 2**22 + 3000)]
    store = with_state(written({"n": 1}), [6, *(part for key in keys for part in (key, True))])

    with pytest.raises(bcpformat.LimitError) as caught:
        bcpformat.read(store, as_numpy=True, options=OPTIONS)
    report = bcpformat.validate(store, options=OPTIONS)

    assert caught.value.code is ErrorCode.LIMIT
    assert report.problems == ()


# ---- positions that need 64 bits ---------------------------------------------------------------


def sparse_file(path: Path, attempt: bytes, parts: dict[int, bytes]) -> None:
    """Write a data file that is a hole but for its header and some parts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(data_file_head(attempt))
        for position, data in parts.items():
            file.seek(position)
            file.write(data)
    if os.stat(path).st_blocks * 512 > 2**30:
        pytest.skip("this file system has no sparse files")


def put_manifest(location: Path, manifest: Manifest) -> None:
    LocalStore(location).put_if_absent(MANIFEST_KEY, encode_manifest(manifest, codec="zstd"))


def test_t50_a_run_above_4_gib_is_read_exactly(tmp_path: Path) -> None:
    """The file is one of an earlier attempt, of which only the end is used."""
    w = np.arange(2**17, dtype=np.int64)
    manifest = manifest_of(written({"w": w}))
    position = 2**33 + 4096
    blocks = [w.tobytes()[low : low + 2**18] for low in range(0, w.nbytes, 2**18)]
    table = np.array([block_digest(block) for block in blocks], "<u8").tobytes()
    earlier = bytes(range(16))
    file = FileRow(
        name="a.bcd",
        attempt_id=earlier,
        table_bytes=position + w.nbytes,
        blocks=len(blocks),
        digest=document_digest(table),
        unused=((4096, position - 4096),),
    )
    runs = replace(manifest.runs, position=ints([position]), block_log2=ints([18]))
    sparse_file(
        tmp_path / DATA_PREFIX / "a.bcd",
        earlier,
        {position: w.tobytes(), file.table_bytes: table},
    )

    put_manifest(tmp_path, replace(manifest, files=[file], runs=runs))

    assert bcpformat.read(tmp_path, as_numpy=True)["w"].tobytes() == w.tobytes()
    with bcpformat.open(tmp_path) as ckpt:
        assert ckpt["w"][70_000:70_003].tolist() == [70_000, 70_001, 70_002]
        assert ckpt["w"].mmap()[-1] == 2**17 - 1
    assert bcpformat.validate(tmp_path).problems == ()


def test_t50_an_element_above_4_gib_in_its_tensor_is_read_exactly(tmp_path: Path) -> None:
    """One chunk of a little more than 4 GiB, zeros but for its end."""
    end = np.arange(2**20 + 5, dtype=np.uint32).astype(np.uint8)
    count = 2**32 + len(end)
    manifest = manifest_of(written({"w": np.zeros(2**20, np.uint8)}))
    zero = block_digest(bytes(2**20))
    digests = [zero] * 2**12
    digests += [block_digest(end[low : low + 2**20].tobytes()) for low in (0, 2**20)]
    table = np.array(digests, "<u8").tobytes()
    table_bytes = (4096 + count + 4095) // 4096 * 4096
    (file,) = manifest.files
    file = replace(
        file, blocks=len(digests), table_bytes=table_bytes, digest=document_digest(table)
    )
    whole = ints([count])
    runs = replace(manifest.runs, raw=whole, stored=whole, block_log2=ints([20]))
    tensors = replace(manifest.tensors, shapes=[(count,)])
    sparse_file(
        tmp_path / DATA_PREFIX / file.name,
        manifest.attempt_id,
        {4096 + 2**32: end.tobytes(), table_bytes: table},
    )

    put_manifest(tmp_path, replace(manifest, files=[file], runs=runs, tensors=tensors))

    with bcpformat.open(tmp_path) as ckpt:
        w = ckpt["w"]
        assert w[2**32 - 3 : 2**32 + 4].tolist() == [0, 0, 0, 0, 1, 2, 3]
        assert w[2**32 :].tobytes() == end.tobytes()
        assert w[-1] == end[-1]
    assert bcpformat.validate(tmp_path, level="manifest").problems == ()


@pytest.mark.parametrize(
    ("kind", "name"),
    [("runs", "position"), ("runs", "stored"), ("chunks", "offset"), ("per_rank", "offset")],
)
@pytest.mark.parametrize("value", [2**53, 2**63, 2**64 - 4096])
def test_t50_a_position_above_2_to_53_is_refused(kind: str, name: str, value: int) -> None:
    """BCP-COL-003, BCP-CNV-002."""
    with pytest.raises(bcpformat.FormatError) as caught:
        bcpformat.read(column(kind, name, "Q", value))

    assert caught.value.code is ErrorCode.RANGE


def test_t50_the_largest_position_is_a_number_like_any_other() -> None:
    """BCP-CNV-002: it is refused for what is not there."""
    with pytest.raises(bcpformat.FormatError) as caught:
        bcpformat.read(column("runs", "position", "Q", 4096, 2**53 - 4096))

    assert caught.value.code is ErrorCode.EXTENT_OVERLAP
