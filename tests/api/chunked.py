"""Checkpoints whose tensors are cut into many chunks, written by parts of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bcpformat import Store
from bcpformat.codec.block import Codec
from bcpformat.engine.encode import FileEncoder, FilePlan, RunFiller, Sources
from bcpformat.engine.memory import address_of
from bcpformat.model.checks import check_manifest, used_features
from bcpformat.model.dtypes import DType, pack_subbyte
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.model.manifest import (
    MANIFEST_KEY,
    ChunkTable,
    FileRow,
    Manifest,
    RunTable,
    TensorTable,
    Writer,
    empty_per_rank,
    ints,
)
from bcpformat.model.region import Region
from bcpformat.plan.pack import pack
from bcpformat.wire import encode_manifest

ATTEMPT = bytes(range(16))
KEY = "data/a.bcd"


def chunk_bytes(array: np.ndarray, region: Region) -> np.ndarray:
    """The packed raw bytes of one region of an array, as a stranger would store them."""
    box = tuple(slice(o, o + n) for o, n in zip(region.box.origin, region.box.shape, strict=True))
    flat = np.ascontiguousarray(array[box]).reshape(-1)
    part = flat[region.start : region.start + region.count]
    bits = DType.from_numpy(array.dtype).bits
    if bits < 8:
        return pack_subbyte(part.view(np.uint8), bits=bits)
    return np.frombuffer(part.tobytes(), np.uint8)


def write_chunked(
    store: Store,
    arrays: Mapping[str, np.ndarray],
    regions: Mapping[str, Sequence[Region]],
    *,
    codec: str = "raw",
    block_log2: int = 12,
) -> Manifest:
    """Write arrays cut into the given regions, in one data file; return the manifest."""
    names = sorted(arrays)
    dtypes = [DType.from_numpy(arrays[n].dtype) for n in names]
    chunks = [
        (chunk_bytes(arrays[name], region), dtype.item, region)
        for name, dtype in zip(names, dtypes, strict=True)
        for region in sorted(regions[name], key=lambda r: (r.box.origin, r.start))
    ]
    data = [c[0] for c in chunks]
    nbytes = ints([len(d) for d in data])
    packing = pack(nbytes, ints([c[1] for c in chunks]))
    packing = replace(packing, run_block_log2=np.full_like(packing.run_raw, block_log2))
    pieces = Sources(
        address=ints([address_of(d) for d in data]), nbytes=nbytes, strided={}, owners=data
    )
    code = Codec.from_name(codec)
    codecs = np.full(len(packing.run_raw), int(code), np.int64)
    if code is Codec.PLANES_ZSTD:
        codecs[packing.run_item == 1] = int(Codec.ZSTD)
    files, position, stored, block0 = [], ints([]), ints([]), ints([])
    if chunks:
        plan = FilePlan(
            key=KEY, attempt_id=ATTEMPT, runs=(0, len(packing.run_raw)), codecs=codecs, level=1
        )
        contents = RunFiller(pieces, packing)
        written = FileEncoder(store, plan, contents, threads=2, progress=lambda _: None).write()
        position, stored, block0 = written.position, written.stored, written.block0
        files = [
            FileRow(
                name="a.bcd",
                attempt_id=ATTEMPT,
                table_bytes=written.table_bytes,
                blocks=written.blocks,
                digest=written.digest,
                lengths=written.lengths,
            )
        ]
    manifest = Manifest(
        attempt_id=ATTEMPT,
        created_us=0,
        writer=Writer(name="test", version="0"),
        require=(),
        files=files,
        tensors=TensorTable(
            names=names,
            dtypes=[d.name for d in dtypes],
            shapes=[arrays[n].shape for n in names],
            chunks=ints([len(regions[n]) for n in names]),
        ),
        runs=RunTable(
            file=packing.run_file,
            position=position,
            raw=packing.run_raw,
            stored=stored,
            codec=codecs,
            item=packing.run_item,
            block_log2=packing.run_block_log2,
            block0=block0,
        ),
        chunks=ChunkTable(
            run=packing.run,
            offset=packing.offset,
            origin=ints([v for c in chunks for v in c[2].box.origin]),
            extent=ints([v for c in chunks for v in c[2].box.shape]),
            start=ints([c[2].start for c in chunks]),
            count=ints([c[2].count for c in chunks]),
        ),
        state=[6, *(v for i, n in enumerate(names) for v in (n, [0, i, 1]))],
        per_rank=empty_per_rank(),
    )
    manifest = replace(manifest, require=used_features(manifest))
    assert check_manifest(manifest, limits=DEFAULT_LIMITS) == []
    store.put_if_absent(MANIFEST_KEY, encode_manifest(manifest, codec="zstd"))
    return manifest
