"""From the part records of all ranks to a committed checkpoint, or to none (spec 14)."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Literal

import numpy as np

from bcpformat.engine.data_files import write_data_files
from bcpformat.engine.encode import Sources
from bcpformat.engine.meeting import Meeting
from bcpformat.engine.memory import address_of
from bcpformat.engine.merge import Merger, StoredValues
from bcpformat.engine.options import WriteOptions
from bcpformat.engine.part import Part, decode_part, encode_part
from bcpformat.engine.state_record import KnownStates
from bcpformat.errors import (
    BcpError,
    CommitError,
    CoordinationError,
    ErrorCode,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    error_for,
)
from bcpformat.model.checks import check_manifest, used_features
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.model.manifest import MANIFEST_KEY, Manifest, Writer, ints
from bcpformat.model.progress import silent
from bcpformat.storage.store import Store
from bcpformat.wire import (
    Kind,
    decode_header,
    decode_root,
    encode_document,
    encode_manifest,
)

SECTION_CODEC: Final[Literal["zstd"]] = "zstd"
LEAD = 0
"""The rank that merges and publishes."""


def commit(
    store: Store,
    meeting: Meeting,
    part: Part | None,
    *,
    step: int | None,
    options: WriteOptions,
    undo: ExitStack,
) -> int:
    """Publish what all ranks wrote, once all have; return the bytes of the manifest.

    No collective is used, so that it may run on any thread.

    Args:
        store: Where the checkpoint's prefix is.
        meeting: That of the ranks.
        part: This rank's part record; None if it has failed, and said so.
        step: The training step.
        options: How to write.
        undo: What removes this rank's data files.  It is empty from the moment on that they may be
            committed, whatever ends the wait for that, and has them again where it is certain that
            they were not.

    Raises:
        BcpError: A rank failed: all ranks raise its error, and nothing is published.
        CoordinationError: A rank did not come: nothing is published.
        CommitError: Another save won (``E_EXISTS``), or the outcome is unknown (``E_UNCERTAIN``).
    """
    if meeting.size == 1:
        assert part is not None
        merger = _merger(meeting, options)
        merger.add(part)
        document = _document(merger.finish(), step, options)
        _put(store, document, meeting.id, undo)
        return len(document)
    if meeting.rank != LEAD:
        return _follow(store, meeting, part, undo)
    try:
        if part is not None:
            meeting.put("part", LEAD, encode_part(part))
        document = _document(_merged(store, meeting, options, undo), step, options)
    except BaseException as error:
        meeting.announce(error)
        _forget_part(meeting)
        raise
    try:
        _put(store, document, meeting.id, undo)
    except BaseException as error:
        meeting.announce(error if isinstance(error, BcpError) else _unknown(type(error).__name__))
        raise
    meeting.announce(str(len(document)).encode())
    return len(document)


def _merged(store: Store, meeting: Meeting, options: WriteOptions, undo: ExitStack) -> Manifest:
    """Wait for the part records of all ranks, and merge them as they come."""
    merger = _merger(meeting, options)
    known = KnownStates()
    for rank, record in meeting.take_all("part"):
        where = f"the part record of rank {rank}"
        merger.add(decode_part(record, where=where, known=known))
    undeclared = merger.undeclared()
    if not len(undeclared):
        return merger.finish()
    documents = [encode_document(node) for node in undeclared.values]
    data = [np.frombuffer(documents[i], dtype=np.uint8) for i in undeclared.value.tolist()]
    pieces = Sources(
        address=ints([address_of(d) for d in data]),
        nbytes=ints([len(d) for d in data]),
        strided={},
        owners=data,
    )
    written = write_data_files(
        store,
        pieces,
        np.ones(len(data), dtype=np.int64),
        attempt_id=meeting.id,
        label="merged",
        options=options,
        progress=silent,
        undo=undo,
    )
    stored = StoredValues(
        files=written.files,
        runs=written.runs,
        run=written.packing.run,
        offset=written.packing.offset,
        nbytes=pieces.nbytes,
    )
    return merger.finish(stored=stored)


def _follow(store: Store, meeting: Meeting, part: Part | None, undo: ExitStack) -> int:
    """Hand a part over and wait for what the lead says; if it says nothing, look at the store."""
    removal = ExitStack()
    if part is not None:
        try:
            record = encode_part(part)
        except BaseException as error:
            meeting.fail("part", meeting.rank, error)
            raise
        removal = undo.pop_all()
        meeting.put("part", meeting.rank, record)
    try:
        return int(meeting.outcome(LEAD))
    except BcpError as error:
        if error.rank is not None:  # the lead did say it
            if not _may_be_committed(error):
                undo.enter_context(removal)
            _forget_part(meeting)
            raise
        if part is None:  # nothing is committed without it
            raise
        if published_id(store) == meeting.id:
            with store.open_reader(MANIFEST_KEY, direct=False) as reader:
                return reader.nbytes
        raise _unknown(error.message) from error


def _forget_part(meeting: Meeting) -> None:
    """Remove this rank's part, which the lead may not have come to."""
    with suppress(CoordinationError):
        meeting.forget("part", meeting.rank)


def _may_be_committed(error: BcpError) -> bool:
    return isinstance(error, CommitError) and error.published is None


def _unknown(why: str) -> CommitError:
    text = f"whether the checkpoint was committed is unknown: {why}"
    return CommitError(text, published=None, code=ErrorCode.UNCERTAIN)


def _merger(meeting: Meeting, options: WriteOptions) -> Merger:
    return Merger(attempt_id=meeting.id, size=meeting.size, disagree=options.disagree)


def _document(merged: Manifest, step: int | None, options: WriteOptions) -> bytes:
    """Check a manifest and return it as it is published."""
    manifest = _described(merged, step, options)
    for problem in check_manifest(manifest, limits=DEFAULT_LIMITS):
        raise error_for(problem)  # BCP-WRT-006
    document = encode_manifest(manifest, codec=SECTION_CODEC)
    # What any reader may refuse is not written (BCP-LIM-004).
    decode_root(document, key=MANIFEST_KEY, limits=DEFAULT_LIMITS)
    return document


def _described(manifest: Manifest, step: int | None, options: WriteOptions) -> Manifest:
    """Return the manifest with what the caller says of it, and the features it uses."""
    return replace(
        manifest,
        created_us=time.time_ns() // 1000,
        writer=Writer(name="bcpformat", version=_version()),
        require=used_features(manifest),
        step=step,
        user=dict(options.user),
    )


def _put(store: Store, document: bytes, attempt_id: bytes, undo: ExitStack) -> None:
    """Publish a manifest; what it names is removed only if it certainly was not published."""
    removal = undo.pop_all()
    try:
        _put_or_find_out(store, document, attempt_id)
    except (CommitError, StorageError) as error:
        if not _may_be_committed(error):
            undo.enter_context(removal)
        raise


def _put_or_find_out(store: Store, document: bytes, attempt_id: bytes) -> None:
    """Publish a manifest, and find out what happened if the store cannot say (BCP-WRT-005)."""
    try:
        store.put_if_absent(MANIFEST_KEY, document)
    except ObjectExistsError as error:
        if published_id(store) == attempt_id:
            return
        text = "another save committed a checkpoint here first"
        raise CommitError(text, published=False, code=ErrorCode.EXISTS) from error
    except StorageError as error:
        found = published_id(store)
        if found is None:
            raise
        if found not in (attempt_id, b""):
            text = "another save committed a checkpoint here first"
            raise CommitError(text, published=False, code=ErrorCode.EXISTS) from error
        if error.code is ErrorCode.UNCERTAIN or found == b"":
            raise _unknown(error.message) from error


def published_id(store: Store) -> bytes | None:
    """Return the attempt id of the manifest there is, None without one, b"" if unreadable."""
    try:
        head = store.read(MANIFEST_KEY, nbytes=64)
        return decode_header(head, key=MANIFEST_KEY, expect=Kind.MANIFEST).attempt_id
    except ObjectNotFoundError:
        return None
    except BcpError:
        return b""


def _version() -> str:
    try:
        return version("bcpformat")
    except PackageNotFoundError:
        return "unknown"
