"""Valid manifests without data: tensors cut into slabs, one slab of each in every data file."""

from __future__ import annotations

import numpy as np

import bcpformat
from bcpformat import MemoryStore
from bcpformat.engine.partial import ManifestReader
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.model.manifest import (
    MANIFEST_KEY,
    ChunkTable,
    FileRow,
    Manifest,
    Node,
    ObjectRow,
    PerRankTable,
    RunTable,
    TensorTable,
    Writer,
    ints,
)
from bcpformat.model.region import Box
from bcpformat.wire import encode_manifest

ATTEMPT = bytes(range(16))
SLAB = (8, 16)
SLAB_BYTES = 512


def slab_manifest(*, tensors: int, ranks: int) -> Manifest:
    """Return a manifest in which every chunk is a run, and every rank has a value.

    Chunk `r` of tensor `t` is run `t` of file `r`; the last run of each file has the rank's value,
    that of the first file an object too.
    """
    rank, place = np.divmod(np.arange(ranks * (tensors + 1), dtype=np.int64), tensors + 1)
    is_value = place == tensors
    raw = np.where(is_value, np.where(rank == 0, 84, 10), SLAB_BYTES)
    tensor, slab = np.divmod(np.arange(tensors * ranks, dtype=np.int64), ranks)
    names = [f"t{number:05}" for number in range(tensors)]
    state: list[Node] = [6, "object", [18, 1, 0], "rank", [19, 0]]
    for number, name in enumerate(names):
        state += [name, number]
    zeros = np.zeros(ranks, dtype=np.int64)
    return Manifest(
        attempt_id=ATTEMPT,
        created_us=0,
        writer=Writer(name="test", version="0"),
        require=(),
        files=[
            FileRow(
                name=f"{number:06}.bcd",
                attempt_id=ATTEMPT,
                table_bytes=4096 * (tensors + 2),
                blocks=tensors + 1,
                digest=bytes(16),
            )
            for number in range(ranks)
        ],
        tensors=TensorTable(
            names=names,
            dtypes=["float32"] * tensors,
            shapes=[(SLAB[0] * ranks, SLAB[1])] * tensors,
            chunks=ints([ranks] * tensors),
        ),
        runs=RunTable(
            file=rank,
            position=4096 * (place + 1),
            raw=raw,
            stored=raw,
            codec=0 * raw,
            item=np.where(is_value, 1, 4),
            block_log2=np.full_like(raw, 12),
            block0=place,
        ),
        chunks=ChunkTable(
            run=slab * (tensors + 1) + tensor,
            offset=0 * slab,
            origin=np.stack((slab * SLAB[0], 0 * slab), axis=1).reshape(-1),
            extent=np.tile(ints(SLAB), len(slab)),
        ),
        state=state,
        per_rank=PerRankTable(
            path=zeros,
            rank=np.arange(ranks, dtype=np.int64),
            run=np.arange(ranks, dtype=np.int64) * (tensors + 1) + tensors,
            offset=zeros,
            nbytes=zeros + 10,
        ),
        objects=[ObjectRow(name="object", run=tensors, offset_bytes=64, nbytes=20)],
    )


def store_of(manifest: Manifest | bytes) -> MemoryStore:
    """Return a store with a manifest."""
    if isinstance(manifest, Manifest):
        manifest = encode_manifest(manifest, codec="none")
    store = MemoryStore()
    store.put_if_absent(MANIFEST_KEY, manifest)
    return store


def opened(store: bcpformat.Store) -> ManifestReader:
    """Return a reader of a store's manifest."""
    return ManifestReader(store, limits=DEFAULT_LIMITS)


def slabs(*ranks: int) -> dict[int, Box]:
    """Return the boxes of wants that are the slabs of some ranks."""
    return {want: Box(origin=(SLAB[0] * rank, 0), shape=SLAB) for want, rank in enumerate(ranks)}
