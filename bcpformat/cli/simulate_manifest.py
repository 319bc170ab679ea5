"""The part of a manifest that some tensors need, fetched section by section (spec 13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bcpformat.engine.load import FIRST_REQUEST_BYTES
from bcpformat.model.limits import DEFAULT_LIMITS, GROUP_ROWS
from bcpformat.model.manifest import MANIFEST_KEY, ChunkTable, Ints, Manifest, RunTable
from bcpformat.plan.ranges import expand
from bcpformat.storage import Store
from bcpformat.wire import SectionRow, Sections, decode_root


def manifest_part(store: Store, names: Sequence[str]) -> Manifest:
    """Return a manifest that has the chunks and runs of some tensors only; runs are renumbered."""
    head = memoryview(store.read(MANIFEST_KEY, nbytes=FIRST_REQUEST_BYTES))
    root = decode_root(head, key=MANIFEST_KEY, limits=DEFAULT_LIMITS)

    def fetch(row: SectionRow) -> bytes | memoryview:
        if row.end_bytes <= len(head):
            return head[row.position_bytes : row.end_bytes]
        return store.read(MANIFEST_KEY, offset_bytes=row.position_bytes, nbytes=row.stored_bytes)

    sections = Sections(root, fetch, key=MANIFEST_KEY, limits=DEFAULT_LIMITS)
    tensors = sections.tensors()
    numbers = {name: row for row, name in enumerate(tensors.names)}
    wanted = np.array(sorted(numbers[name] for name in names), dtype=np.int64)
    before = np.cumsum(tensors.chunks) - tensors.chunks
    rows = expand(before[wanted], tensors.chunks[wanted])[1]
    groups = np.unique(rows // GROUP_ROWS)
    kept = [root.of_kind("chunks")[g] for g in groups.tolist()]
    found = sections.chunks(kept, tensors=tensors)
    ndim = np.fromiter(map(len, tensors.shapes), np.int64, len(tensors))
    tensor = np.repeat(np.arange(len(tensors)), tensors.chunks)
    every = np.concatenate([np.arange(g.first, g.first + g.rows) for g in kept])
    axes = ndim[tensor[every]]
    at = np.searchsorted(every, rows)
    values = expand((np.cumsum(axes) - axes)[at], axes[at])[1]
    runs, run = _runs(sections, root.of_kind("runs"), found.run[at])
    chunks = ChunkTable(
        run=run,
        offset=found.offset[at],
        origin=None if found.origin is None else found.origin[values],
        extent=None if found.extent is None else found.extent[values],
    )
    counts = np.zeros_like(tensors.chunks)
    counts[wanted] = tensors.chunks[wanted]
    return Manifest(
        attempt_id=root.attempt_id,
        created_us=root.created_us,
        writer=root.writer,
        require=root.require,
        files=sections.files(),
        tensors=replace(tensors, chunks=counts),
        runs=runs,
        chunks=chunks,
        state=sections.state(),
        per_rank=sections.per_rank(root.of_kind("per_rank")),
    )


def _runs(sections: Sections, groups: Sequence[SectionRow], wanted: Ints) -> tuple[RunTable, Ints]:
    rows, number = np.unique(wanted, return_inverse=True)
    kept = [groups[g] for g in np.unique(rows // GROUP_ROWS).tolist()]
    found = sections.runs(kept)
    every = np.concatenate([np.arange(g.first, g.first + g.rows) for g in kept])
    at = np.searchsorted(every, rows)
    names = RunTable.__slots__
    return RunTable(**{name: getattr(found, name)[at] for name in names}), number
