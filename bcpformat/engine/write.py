"""One save of one process: plan, data files, manifest, commit (spec 14)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from math import prod
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from bcpformat.codec.block import Codec
from bcpformat.engine.encode import FileEncoder, FilePlan, RunFiller, Sources, WrittenFile
from bcpformat.engine.memory import address_of
from bcpformat.engine.options import WriteOptions
from bcpformat.errors import (
    BcpError,
    CommitError,
    ErrorCode,
    InvalidArgumentError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    error_for,
)
from bcpformat.model.checks import check_manifest, used_features
from bcpformat.model.dtypes import DTYPES
from bcpformat.model.limits import DEFAULT_LIMITS, MAX_INTEGER
from bcpformat.model.manifest import (
    DATA_PREFIX,
    MANIFEST_KEY,
    ChunkTable,
    FileRow,
    Ints,
    Manifest,
    ObjectRow,
    PerRankTable,
    RunTable,
    TensorTable,
    Writer,
    ints,
)
from bcpformat.model.state import EncodedState
from bcpformat.plan.pack import Packing, pack
from bcpformat.storage.store import Store
from bcpformat.wire import (
    Kind,
    check_user,
    decode_header,
    decode_root,
    encode_document,
    encode_manifest,
)

Progress: TypeAlias = Callable[[int], None]
SECTION_CODEC: Literal["zstd"] = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """What a save wrote.

    Attributes:
        attempt_id: 16 bytes.
        raw_bytes: Raw bytes of all pieces.
        stored_bytes: Bytes of all runs as stored.
        manifest_bytes: Bytes of the manifest.
        files: Keys of the data files.
    """

    attempt_id: bytes
    raw_bytes: int
    stored_bytes: int
    manifest_bytes: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Gathered:
    """The pieces of a state: first those of tensors, then per-rank values, then objects."""

    pieces: Sources
    item: Ints
    chunks: Ints  # chunk rows of each tensor


def save(
    store: Store,
    state: EncodedState,
    *,
    step: int | None,
    rank: int,
    options: WriteOptions,
    progress: Progress,
) -> WriteReport:
    """Write a checkpoint and return when it is committed and durable.

    Args:
        store: Where its prefix is.
        state: The state, encoded.
        step: The training step.
        rank: This process's rank, for its per-rank values.
        options: How to write.
        progress: Called with numbers of raw bytes as they are done, from any thread.

    Raises:
        ObjectExistsError: A checkpoint is there already; nothing is ever overwritten.
        CommitError: The data is written but the manifest could not be published.
        StorageError: The store failed; nothing was published.
    """
    step = _checked_step(step)
    check_user(options.user)
    _refuse_existing(store)
    attempt_id = os.urandom(16)
    gathered = _gather(state)
    packing = pack(gathered.pieces.nbytes, gathered.item)
    codecs = _codecs(packing, options)
    contents = RunFiller(gathered.pieces, packing)
    keys, written = [], []
    with ExitStack() as undo:
        for plan in _file_plans(packing, codecs, attempt_id, rank, options):
            encoder = FileEncoder(store, plan, contents, threads=options.threads, progress=progress)
            undo.callback(_discard, store, plan.key)
            written.append(encoder.write())
            keys.append(plan.key)
        store.sync()
        manifest = _manifest(state, gathered, packing, codecs, written, keys, attempt_id, rank)
        manifest = _described(manifest, step, options)
        for problem in check_manifest(manifest, limits=DEFAULT_LIMITS):
            raise error_for(problem)  # BCP-WRT-006
        document = encode_manifest(manifest, codec=SECTION_CODEC)
        # What any reader may refuse is not written (BCP-LIM-004).
        decode_root(document, key=MANIFEST_KEY, limits=DEFAULT_LIMITS)
        try:
            _publish(store, document, attempt_id)
        except CommitError as error:
            if error.published is None:
                undo.pop_all()
            raise
        undo.pop_all()
    return WriteReport(
        attempt_id=attempt_id,
        raw_bytes=int(gathered.pieces.nbytes.sum()),
        stored_bytes=int(manifest.runs.stored.sum()),
        manifest_bytes=len(document),
        files=tuple(keys),
    )


def _checked_step(step: object) -> int | None:
    """Return a step as an int, those of numpy too.

    Raises:
        InvalidArgumentError: It is no integer of the format, or a bool.
    """
    if step is None:
        return None
    if not isinstance(step, (int, np.integer)) or isinstance(step, bool):
        raise InvalidArgumentError(f"step must be an integer or None, got {step!r:.200}")
    if not 0 <= step <= MAX_INTEGER:
        raise InvalidArgumentError(f"step must be 0 to 2^53-1, got {step}")
    return int(step)


def _refuse_existing(store: Store) -> None:
    with suppress(ObjectNotFoundError):
        store.read(MANIFEST_KEY, nbytes=1)
        raise ObjectExistsError(
            f"{store.describe()} holds a checkpoint already and nothing is ever overwritten; "
            "write to another location, or delete that checkpoint first",
            key=MANIFEST_KEY,
        )


def _discard(store: Store, key: str) -> None:
    with suppress(BcpError):
        store.delete(key)


def _publish(store: Store, document: bytes, attempt_id: bytes) -> None:
    """Publish the manifest, and find out what happened if the store cannot say (BCP-WRT-005)."""
    try:
        store.put_if_absent(MANIFEST_KEY, document)
    except ObjectExistsError as error:
        if _published_id(store) == attempt_id:
            return
        text = "another save committed a checkpoint here first"
        raise CommitError(text, published=False, code=ErrorCode.EXISTS) from error
    except StorageError as error:
        found = _published_id(store)
        if found is None:
            raise
        if found not in (attempt_id, b""):
            text = "another save committed a checkpoint here first"
            raise CommitError(text, published=False, code=ErrorCode.EXISTS) from error
        if error.code is ErrorCode.UNCERTAIN or found == b"":
            text = f"whether the checkpoint was committed is unknown: {error}"
            raise CommitError(text, published=None, code=ErrorCode.UNCERTAIN) from error


def _published_id(store: Store) -> bytes | None:
    """Return the attempt id of the manifest there is, None without one, b"" if unreadable."""
    try:
        head = store.read(MANIFEST_KEY, nbytes=64)
        return decode_header(head, key=MANIFEST_KEY, expect=Kind.MANIFEST).attempt_id
    except ObjectNotFoundError:
        return None
    except BcpError:
        return b""


def _gather(state: EncodedState) -> _Gathered:
    """Find the bytes of every piece; no tensor is copied that lies contiguous in host memory."""
    address: list[int] = []
    nbytes: list[int] = []
    item: list[int] = []
    chunks: list[int] = []
    strided: dict[int, npt.NDArray[np.generic]] = {}
    owners: list[object] = []
    for leaf in state.leaves:
        dtype = DTYPES[leaf.dtype]
        size = (prod(leaf.shape) * dtype.bits + 7) // 8
        chunks.append(1 if size else 0)
        if not size:
            continue
        place = leaf.address
        if place is None:
            array = leaf.adapter.array(leaf)
            owners.append(array)
            if array.flags.c_contiguous:
                place = address_of(array)
            else:
                strided[len(address)] = array
                place = 0
        address.append(place)
        nbytes.append(size)
        item.append(dtype.item)
    documents = [encode_document(node) for _, node in state.per_rank]
    for data in [*documents, *(data for _, data in state.objects)]:
        array = np.frombuffer(data, dtype=np.uint8)
        owners.append(array)
        address.append(address_of(array))
        nbytes.append(len(array))
        item.append(1)
    owners.append(state)
    pieces = Sources(address=ints(address), nbytes=ints(nbytes), strided=strided, owners=owners)
    return _Gathered(pieces=pieces, item=ints(item), chunks=ints(chunks))


def _codecs(packing: Packing, options: WriteOptions) -> Ints:
    """Return the codec of every run; one-byte items have no planes to split."""
    codec = Codec.from_name(options.codec)
    if codec is Codec.PLANES_ZSTD:
        return np.where(packing.run_item == 1, np.int64(Codec.ZSTD), np.int64(codec))
    return np.full(len(packing.run_raw), int(codec), dtype=np.int64)


def _file_plans(
    packing: Packing, codecs: Ints, attempt_id: bytes, rank: int, options: WriteOptions
) -> list[FilePlan]:
    count = int(packing.run_file[-1]) + 1 if len(packing.run_file) else 0
    bounds = np.searchsorted(packing.run_file, np.arange(count + 1)).tolist()
    return [
        FilePlan(
            key=f"{DATA_PREFIX}{attempt_id.hex()}-{rank:06d}-{number:06d}.bcd",
            attempt_id=attempt_id,
            runs=(bounds[number], bounds[number + 1]),
            codecs=codecs,
            level=options.level,
        )
        for number in range(count)
    ]


def _manifest(
    state: EncodedState,
    gathered: _Gathered,
    packing: Packing,
    codecs: Ints,
    written: Sequence[WrittenFile],
    keys: Sequence[str],
    attempt_id: bytes,
    rank: int,
) -> Manifest:
    none = [ints([])]
    tensors = int(gathered.chunks.sum())
    ranks = tensors + len(state.per_rank)
    return Manifest(
        attempt_id=attempt_id,
        created_us=time.time_ns() // 1000,
        writer=Writer(name="bcpformat", version=_version()),
        require=(),
        files=[
            FileRow(
                name=key.removeprefix(DATA_PREFIX),
                attempt_id=attempt_id,
                table_bytes=file.table_bytes,
                blocks=file.blocks,
                digest=file.digest,
                lengths=file.lengths,
            )
            for key, file in zip(keys, written, strict=True)
        ],
        tensors=TensorTable(
            names=state.names,
            dtypes=[leaf.dtype for leaf in state.leaves],
            shapes=[leaf.shape for leaf in state.leaves],
            chunks=gathered.chunks,
            aliases=state.aliases,
        ),
        runs=RunTable(
            file=packing.run_file,
            position=np.concatenate([f.position for f in written] or none),
            raw=packing.run_raw,
            stored=np.concatenate([f.stored for f in written] or none),
            codec=codecs,
            item=packing.run_item,
            block_log2=packing.run_block_log2,
            block0=np.concatenate([f.block0 for f in written] or none),
        ),
        chunks=ChunkTable(run=packing.run[:tensors], offset=packing.offset[:tensors]),
        state=state.root,
        per_rank=PerRankTable(
            path=np.arange(len(state.per_rank), dtype=np.int64),
            rank=np.full(len(state.per_rank), rank, dtype=np.int64),
            run=packing.run[tensors:ranks],
            offset=packing.offset[tensors:ranks],
            nbytes=gathered.pieces.nbytes[tensors:ranks],
        ),
        objects=[
            ObjectRow(
                name=name,
                run=int(packing.run[ranks + i]),
                offset_bytes=int(packing.offset[ranks + i]),
                nbytes=len(data),
            )
            for i, (name, data) in enumerate(state.objects)
        ],
    )


def _described(manifest: Manifest, step: int | None, options: WriteOptions) -> Manifest:
    """Return the manifest with what the caller says of it, and the features it uses."""
    return replace(manifest, require=used_features(manifest), step=step, user=dict(options.user))


def _version() -> str:
    try:
        return version("bcpformat")
    except PackageNotFoundError:
        return "unknown"
