"""A checkpoint becomes another checkpoint with other options, its state as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from bcpformat.api.load import StateBuilder
from bcpformat.api.opened import Checkpoint
from bcpformat.api.save import Location
from bcpformat.engine.coordinator import SoloCoordinator
from bcpformat.engine.options import WriteOptions
from bcpformat.engine.write import WriteReport, save
from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.interop.slices import as_bytes
from bcpformat.interop.stored_leaves import Bytes, StoredAdapter, StoredTensor
from bcpformat.model.dtypes import DType, pack_subbyte
from bcpformat.model.leaves import TensorLeaf
from bcpformat.model.manifest import DEFAULT_MEDIA, Manifest, Node, ints
from bcpformat.model.progress import Progress
from bcpformat.model.state import EncodedState
from bcpformat.storage import open_store
from bcpformat.wire import decode_document
from bcpformat.wire.container import MINOR


def recode(
    source: Checkpoint,
    destination: Location,
    *,
    step: int | None,
    options: WriteOptions,
    progress: Progress,
) -> WriteReport:
    """Write a checkpoint again: the same state, step and metadata, in one process's layout.

    Every element is verified before it is written.  Tensors that lie raw in one piece are taken
    from a map of their file; the others are held in memory.

    Args:
        source: The checkpoint.
        destination: Where the new one goes.
        step: The new one's step; None keeps the source's.
        options: How to write; ``user`` replaces keys of the source's metadata.
        progress: Called with numbers of bytes as they are done.

    Raises:
        InvalidArgumentError: It has values of several ranks, or extensions that this version
            cannot write (`E_NOT_BUILT`).
        FormatError: Something of the source does not verify.
        ObjectExistsError: There is a checkpoint already.
    """
    manifest = source.manifest
    _refuse_extensions(manifest)
    rank = _only_rank(manifest)
    adapter = StoredAdapter()
    table = manifest.tensors
    leaves = []
    held = 0
    for row, name in enumerate(table.names):
        dtype, shape = table.dtypes[row], tuple(table.shapes[row])
        load = _mapped(source, name)
        if load is None:
            held += DType.named(dtype).nbytes_of(prod(shape))
            load = partial(_decoded, source, name)
        value = StoredTensor(dtype, shape, load)
        leaves.append(TensorLeaf(dtype, shape, 0, None, value, adapter))
    source.reader.check_budget(held)
    encoded = EncodedState(
        root=manifest.state,
        names=list(table.names),
        leaves=leaves,
        aliases={row: tuple(names) for row, names in table.aliases.items()},
        objects=_objects(source),
        per_rank=_per_rank(source),
    )
    options = replace(options, user={**manifest.user, **options.user})
    return save(
        open_store(destination),
        lambda: encoded,
        step=step if step is not None else manifest.step,
        coordinator=SoloCoordinator(),
        rank=rank,
        options=options,
        progress=progress,
    )


def _refuse_extensions(manifest: Manifest) -> None:
    kept = [*manifest.extra, *(k for row in manifest.tensors.extra.values() for k in row)]
    kept += [key for row in manifest.files for key in row.extra]
    kept += [f"optional feature {name}" for name in manifest.optional]
    kept += [f"object of type {o.media}" for o in manifest.objects if o.media != DEFAULT_MEDIA]
    if manifest.minor > MINOR:  # rows and columns that nobody here has seen
        kept.append(f"minor version {manifest.minor}")
    if kept:
        raise InvalidArgumentError(
            f"the checkpoint has {kept[0]!r}, which this version cannot write again",
            code=ErrorCode.NOT_BUILT,
        )


def _only_rank(manifest: Manifest) -> int:
    """Return the rank of all per-rank values, 0 without any."""
    ranks = np.unique(manifest.per_rank.rank).tolist()
    paths = np.unique(manifest.per_rank.path)
    if len(ranks) > 1 or len(paths) != len(manifest.per_rank):
        raise InvalidArgumentError(
            f"the checkpoint has values of {len(ranks)} ranks, and this version writes those of "
            "one process only",
            code=ErrorCode.NOT_BUILT,
        )
    return int(ranks[0]) if ranks else 0


def _mapped(source: Checkpoint, name: str) -> Callable[[], Bytes] | None:
    """Return what verifies a tensor and maps it, None if it cannot be mapped."""
    view = source[name]
    if 0 in view.shape:
        return None
    try:
        array = view.mmap()
    except InvalidArgumentError:
        return None

    def load() -> Bytes:
        view.verify()
        return as_bytes(array)

    return load


def _decoded(source: Checkpoint, name: str) -> Bytes:
    view = source[name]
    bits = DType.named(view.dtype).bits
    array = view.read()
    return pack_subbyte(array.view(np.uint8), bits) if bits < 8 else as_bytes(array)


def _objects(source: Checkpoint) -> list[tuple[str, bytes]]:
    rows = StateBuilder(source.reader, as_numpy=True)
    return [(o.name, rows.read_object(i)) for i, o in enumerate(source.manifest.objects)]


def _per_rank(source: Checkpoint) -> list[tuple[str, Node]]:
    table = source.manifest.per_rank
    if not len(table):
        return []
    order = np.argsort(table.path, kind="stable")
    documents = source.reader.read_per_rank(ints(order))
    return [("", decode_document(d.tobytes(), where="per-rank value")) for d in documents]
