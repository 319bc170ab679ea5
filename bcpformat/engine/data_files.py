"""Data files of one rank: pieces packed into runs, runs into files, all durable."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import numpy as np

from bcpformat.codec.block import Codec
from bcpformat.engine.encode import FileEncoder, FilePlan, RunFiller, Sources
from bcpformat.engine.options import WriteOptions
from bcpformat.errors import BcpError
from bcpformat.model.manifest import DATA_PREFIX, FileRow, Ints, RunTable, ints
from bcpformat.model.progress import Progress
from bcpformat.plan.pack import Packing, pack
from bcpformat.storage.store import Store


@dataclass(frozen=True, slots=True)
class DataFiles:
    """What was written.

    Attributes:
        packing: The place of every piece.
        files: The files, by ascending name.
        runs: Their runs.
    """

    packing: Packing
    files: Sequence[FileRow]
    runs: RunTable


def write_data_files(
    store: Store,
    pieces: Sources,
    item: Ints,
    *,
    attempt_id: bytes,
    label: str,
    options: WriteOptions,
    progress: Progress,
    undo: ExitStack,
    block_log2: Ints | None = None,
) -> DataFiles:
    """Write pieces to as many files as they need, and return when their content is durable.

    Args:
        store: Where the checkpoint's prefix is.
        pieces: The pieces.
        item: Item size of each in bytes, shape `(pieces,)`.
        attempt_id: 16 bytes.
        label: Sets the files apart from those of other ranks; files sort by it.
        options: How to write.
        progress: Called with numbers of raw bytes as they are done, from any thread.
        undo: Gets what removes the files again.
        block_log2: See `plan.pack.pack`.
    """
    packing = pack(pieces.nbytes, item, block_log2=block_log2)
    codecs = _codecs(packing, options)
    contents = RunFiller(pieces, packing)
    plans = _file_plans(packing, codecs, f"{attempt_id.hex()}-{label}", attempt_id, options)
    written = []
    for plan in plans:
        encoder = FileEncoder(store, plan, contents, threads=options.threads, progress=progress)
        undo.callback(_discard, store, plan.key)
        written.append(encoder.write())
    store.sync()
    none = [ints([])]
    return DataFiles(
        packing=packing,
        files=[
            FileRow(
                name=plan.key.removeprefix(DATA_PREFIX),
                attempt_id=attempt_id,
                table_bytes=file.table_bytes,
                blocks=file.blocks,
                digest=file.digest,
                lengths=file.lengths,
            )
            for plan, file in zip(plans, written, strict=True)
        ],
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
    )


def _discard(store: Store, key: str) -> None:
    with suppress(BcpError):
        store.delete(key)


def _codecs(packing: Packing, options: WriteOptions) -> Ints:
    """Return the codec of every run; one-byte items have no planes to split."""
    codec = Codec.from_name(options.codec)
    if codec is Codec.PLANES_ZSTD:
        return np.where(packing.run_item == 1, np.int64(Codec.ZSTD), np.int64(codec))
    return np.full(len(packing.run_raw), int(codec), dtype=np.int64)


def _file_plans(
    packing: Packing, codecs: Ints, stem: str, attempt_id: bytes, options: WriteOptions
) -> list[FilePlan]:
    count = int(packing.run_file[-1]) + 1 if len(packing.run_file) else 0
    bounds = np.searchsorted(packing.run_file, np.arange(count + 1)).tolist()
    return [
        FilePlan(
            key=f"{DATA_PREFIX}{stem}-{number:06d}.bcd",
            attempt_id=attempt_id,
            runs=(bounds[number], bounds[number + 1]),
            codecs=codecs,
            level=options.level,
        )
        for number in range(count)
    ]
