"""Manifests whose chunks lie in several data files (for tests of pictures)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from bcpformat.model.manifest import ChunkTable, Manifest, ints
from bcpformat.model.region import Box, Region
from tests.plan.layouts import Saved, in_own_runs


def grid(shape: tuple[int, ...], parts: tuple[int, ...]) -> list[Region]:
    """Cut a shape into equal boxes."""
    step = tuple(n // p for n, p in zip(shape, parts, strict=True))
    return [
        Region.whole(
            Box(origin=tuple(i * n for i, n in zip(at, step, strict=True)), shape=step),
        )
        for at in product(*map(range, parts))
    ]


def with_files(manifest: Manifest, file: Sequence[int]) -> Manifest:
    """Give each run a data file."""
    row = manifest.files[0]
    files = [
        replace(row, name=f"{n:06}.bcd", table_bytes=4096 * (n + 1)) for n in range(max(file) + 1)
    ]
    return replace(manifest, files=files, runs=replace(manifest.runs, file=ints(file)))


def cut_matrix(rows: int, columns: int, *, files: int) -> Manifest:
    """Return a matrix with a chunk for every element, and files in turn."""
    one = in_own_runs([Saved("uint8", (rows, columns), [Region.whole(Box.whole((rows, columns)))])])
    number = rows * columns
    place = np.stack(np.divmod(np.arange(number), columns), axis=1)
    runs = one.runs
    manifest = replace(
        one,
        tensors=replace(one.tensors, chunks=ints([number])),
        chunks=ChunkTable(
            run=np.arange(number) % files,
            offset=np.zeros(number, dtype=np.int64),
            origin=place.reshape(-1),
            extent=np.ones(2 * number, dtype=np.int64),
        ),
        runs=type(runs)(**{name: np.repeat(getattr(runs, name), files) for name in runs.__slots__}),
    )
    return with_files(manifest, range(files))
