"""From a store to a checked manifest."""

from __future__ import annotations

from bcpformat.errors import ErrorCode, ObjectNotFoundError, error_for
from bcpformat.model.checks import check_manifest
from bcpformat.model.limits import Limits
from bcpformat.model.manifest import MANIFEST_KEY, Manifest
from bcpformat.storage.store import Store
from bcpformat.wire import decode_manifest

FIRST_REQUEST_BYTES = 2**20


def read_manifest_bytes(store: Store) -> bytes:
    """Return the whole manifest, in one request if it has less than 1 MiB.

    Raises:
        ObjectNotFoundError: There is none: code ``E_NOT_COMMITTED``.
    """
    try:
        head = store.read(MANIFEST_KEY, nbytes=FIRST_REQUEST_BYTES)
        if len(head) < FIRST_REQUEST_BYTES:
            return head
        return head + store.read(MANIFEST_KEY, offset_bytes=len(head))
    except ObjectNotFoundError as error:
        raise ObjectNotFoundError(
            f"{store.describe()} holds no {MANIFEST_KEY}: it is not a checkpoint, "
            "or its save did not commit",
            key=MANIFEST_KEY,
            code=ErrorCode.NOT_COMMITTED,
        ) from error


def load_manifest(store: Store, *, limits: Limits) -> Manifest:
    """Return the manifest, decoded and checked by every rule that needs no data file.

    Raises:
        ObjectNotFoundError: There is none.
        FormatError: It is damaged, or breaks a rule; the code says which.
    """
    manifest = decode_manifest(read_manifest_bytes(store), key=MANIFEST_KEY, limits=limits)
    for problem in check_manifest(manifest, limits=limits):
        raise error_for(problem)
    return manifest
