"""Real checkpoints with one thing changed under right digests, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np

import bcpformat
from bcpformat import ErrorCode, Limits, MemoryStore, ReadOptions, WriteOptions
from bcpformat.codec.digest import block_digest, document_digest
from bcpformat.engine.options import CodecName
from bcpformat.model.checks import CODEC_RAW
from bcpformat.model.manifest import MANIFEST_KEY, Manifest, Value
from bcpformat.wire import (
    HEADER_BYTES,
    Header,
    Kind,
    decode_header,
    decode_manifest,
    encode_header,
    encode_manifest,
)


class Document(bytes):
    """A section or root as bytes, which need not be a document."""


OPTIONS = ReadOptions(threads=1, budget_bytes=2**27)
LISTS = ("files", "tensors", "objects")
"""Kinds of sections that are arrays of maps."""


def written(
    state: object,
    *,
    codec: CodecName = "raw",
    step: int | None = None,
    user: dict[str, Value] | None = None,
) -> MemoryStore:
    """Return a store with a valid checkpoint."""
    store = MemoryStore()
    options = WriteOptions(codec=codec, threads=1, user=user or {})
    bcpformat.write(store, state, step=step, options=options)
    return store


def objects_of(store: bcpformat.Store) -> dict[str, bytes]:
    """Return every object of a store by key."""
    return {info.key: store.read(info.key) for info in store.list()}


def store_of(objects: dict[str, bytes]) -> MemoryStore:
    """Return a store with these objects."""
    store = MemoryStore()
    for key, data in objects.items():
        store.put_if_absent(key, data)
    return store


def manifest_of(store: bcpformat.Store) -> Manifest:
    """Return the manifest, decoded by the rules of single sections."""
    return decode_manifest(store.read(MANIFEST_KEY), key=MANIFEST_KEY, limits=Limits())


def data_key(store: bcpformat.Store) -> str:
    """Return the key of the only data file."""
    (key,) = (info.key for info in store.list("data/"))
    return key


def with_manifest(store: bcpformat.Store, change: Callable[[Manifest], Manifest]) -> MemoryStore:
    """Return a copy whose manifest is changed as the model."""
    document = encode_manifest(change(manifest_of(store)), codec="none")
    return store_of({**objects_of(store), MANIFEST_KEY: document})


def with_documents(
    store: bcpformat.Store,
    change: Callable[[dict[str, Any], dict[str, Any]], None],
    *,
    minor: int = 0,
    rows: Callable[[dict[str, list[Any]]], None] = lambda _: None,
) -> MemoryStore:
    """Return a copy whose manifest is changed as plain documents, by no rule at all.

    Args:
        store: A valid checkpoint.
        change: Gets the root without its sections, and the documents of the sections by kind
            (a kind has one section), and changes them in place.
        minor: Minor version of the new manifest.
        rows: Gets the rows of the new sections by kind, and changes them in place.
    """
    data = encode_manifest(manifest_of(store), codec="none")
    header = decode_header(data, key=MANIFEST_KEY, expect=Kind.MANIFEST)
    at = HEADER_BYTES + header.root_stored_bytes
    root = unpacked(data[HEADER_BYTES:at])
    at += 16
    sections = {}
    counts = {}
    for kind, _, count, _, nbytes, _, _ in root.pop("sections"):
        counts[kind] = count
        sections[kind] = unpacked(data[at : at + nbytes])
        at += nbytes
    change(root, sections)
    counts |= {k: len(d) for k, d in sections.items() if k in LISTS and type(d) is list}
    raw = {kind: packed(value) for kind, value in sections.items()}
    made = {
        kind: [kind, 0, counts.get(kind, 1), "none", len(d), len(d), document_digest(d)]
        for kind, d in raw.items()
    }
    rows(made)
    stored = packed({**root, "sections": list(made.values())})
    document = _assembled(header, stored, minor) + b"".join(raw.values())
    return store_of({**objects_of(store), MANIFEST_KEY: document})


def _assembled(header: Header, stored: bytes, minor: int) -> bytes:
    head = Header(
        kind=Kind.MANIFEST,
        attempt_id=header.attempt_id,
        minor=minor,
        root_stored_bytes=len(stored),
        root_raw_bytes=len(stored),
    )
    return encode_header(head) + stored + document_digest(stored)


def with_state(store: bcpformat.Store, node: Any) -> MemoryStore:
    """Return a copy with another node at the top of its state."""

    def change(_root: dict[str, Any], sections: dict[str, Any]) -> None:
        sections["state"] = node

    return with_documents(store, change)


def with_data(store: bcpformat.Store, change: Callable[[bytearray], None]) -> MemoryStore:
    """Return a copy whose only data file is changed, with the digests of what it holds then.

    Preconditions: all runs are raw.
    """
    key = data_key(store)
    data = bytearray(store.read(key))
    change(data)
    manifest = manifest_of(store)
    (row,) = manifest.files
    runs = manifest.runs
    assert not row.lengths and (runs.codec == CODEC_RAW).all()
    digests = []
    columns = (runs.position.tolist(), runs.raw.tolist(), runs.block_log2.tolist())
    for position, raw, log2 in zip(*columns, strict=True):
        for low in range(0, raw, 1 << log2):
            block = data[position + low : position + min(low + (1 << log2), raw)]
            digests.append(block_digest(bytes(block)))
    table = np.array(digests, dtype="<u8").tobytes()
    data[row.table_bytes :] = table
    mended = replace(manifest, files=[replace(row, digest=document_digest(table))])
    document = encode_manifest(mended, codec="none")
    return store_of({**objects_of(store), key: bytes(data), MANIFEST_KEY: document})


def packed(value: Any) -> bytes:
    """Return a plain value in the form of the profile; a surrogate becomes a byte of no UTF-8."""
    if isinstance(value, Document):
        return bytes(value)
    return bytes(msgpack.packb(_ordered(value), unicode_errors="surrogateescape"))


def unpacked(data: bytes) -> Any:
    """Return the plain value of a document."""
    return msgpack.unpackb(data)


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_ordered(item) for item in value]
    return value


def read(store: bcpformat.Store) -> Any:
    """Return the whole state with numpy arrays."""
    return bcpformat.read(store, as_numpy=True, options=OPTIONS)


def accepted(store: bcpformat.Store) -> Any:
    """Return the state of a checkpoint that is read and passes full validation."""
    state = read(store)
    report = bcpformat.validate(store, options=OPTIONS)
    assert report.problems == ()
    return state


def refused(store: bcpformat.Store) -> ErrorCode:
    """Return the code under which a checkpoint is refused by a reader and by the validator."""
    try:
        read(store)
    except bcpformat.BcpError as error:
        code = error.code
    else:
        raise AssertionError("the checkpoint was read")
    report = bcpformat.validate(store, options=OPTIONS)
    assert code in [p.code for p in report.problems], report.problems
    return code


def found_by_validation(store: bcpformat.Store) -> list[ErrorCode]:
    """Return the codes of what full validation finds."""
    return [p.code for p in bcpformat.validate(store, options=OPTIONS).problems]
