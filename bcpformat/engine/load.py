"""From a store to a checked manifest."""

from __future__ import annotations

from bcpformat.errors import ErrorCode, ObjectNotFoundError, error_for
from bcpformat.model.checks import check_manifest
from bcpformat.model.limits import Limits
from bcpformat.model.manifest import MANIFEST_KEY, Manifest
from bcpformat.storage.store import ObjectReader, Store
from bcpformat.wire import (
    Kind,
    check_manifest_length,
    decode_header,
    decode_manifest,
    decode_root,
    root_extent,
)

FIRST_REQUEST_BYTES = 2**20


def read_manifest_bytes(store: Store, *, limits: Limits) -> bytes:
    """Return the whole manifest, in one request if it has less than 1 MiB.

    A larger one is opened once more and read through that handle alone, after its root has said
    how long it may be: its length alone may be anything.

    Raises:
        ObjectNotFoundError: There is none: code ``E_NOT_COMMITTED``.
        FormatError: The root of a larger one breaks a rule.
    """
    try:
        head = store.read(MANIFEST_KEY, nbytes=FIRST_REQUEST_BYTES)
        if len(head) < FIRST_REQUEST_BYTES:
            return head
        with store.open_reader(MANIFEST_KEY, direct=False) as reader:
            return _read_large(reader, limits)
    except ObjectNotFoundError as error:
        raise ObjectNotFoundError(
            f"{store.describe()} holds no {MANIFEST_KEY}: it is not a checkpoint, "
            "or its save did not commit",
            key=MANIFEST_KEY,
            code=ErrorCode.NOT_COMMITTED,
        ) from error


def _read_large(reader: ObjectReader, limits: Limits) -> bytes:
    head = _start(reader, FIRST_REQUEST_BYTES)
    header = decode_header(head, key=MANIFEST_KEY, expect=Kind.MANIFEST)
    extent = root_extent(header)
    if extent > len(head) and header.root_raw_bytes <= limits.root_bytes:
        head = _start(reader, extent)
    root = decode_root(head, key=MANIFEST_KEY, limits=limits)
    check_manifest_length(root, reader.nbytes, key=MANIFEST_KEY)
    return _start(reader, root.nbytes)


def _start(reader: ObjectReader, nbytes: int) -> bytes:
    data = bytearray(min(nbytes, reader.nbytes))
    reader.read_into(0, data)
    return bytes(data)


def load_manifest(store: Store, *, limits: Limits) -> Manifest:
    """Return the manifest, decoded and checked by every rule that needs no data file.

    Raises:
        ObjectNotFoundError: There is none.
        FormatError: It is damaged, or breaks a rule; the code says which.
    """
    manifest = decode_manifest(
        read_manifest_bytes(store, limits=limits), key=MANIFEST_KEY, limits=limits
    )
    for problem in check_manifest(manifest, limits=limits):
        raise error_for(problem)
    return manifest
