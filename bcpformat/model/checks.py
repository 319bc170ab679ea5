"""Rules that tie the sections of a manifest together (spec 7, 8, 9, 10, 15).

Every check is pure, vectorised over the columns, and returns what it finds.  Rules about one
section alone are checked by `wire` when it decodes that section.  The order of the checks is the
order of the reader's steps: later ones rely on what earlier ones proved, so a group that finds a
problem ends the list.

A reader of a part checks an excerpt by every rule but those about what is absent: that no byte and
no block of a file, and no byte of a run, belongs to nothing (BCP-RDR-003).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from bcpformat.errors import ErrorCode, Problem
from bcpformat.model.coverage import check_tilings
from bcpformat.model.dtypes import DType
from bcpformat.model.excerpt import Excerpt
from bcpformat.model.geometry import block_counts, chunk_geometry
from bcpformat.model.limits import ALIGNMENT_BYTES, CHUNK_ALIGNMENT_BYTES, Limits
from bcpformat.model.manifest import (
    ChunkTable,
    Ints,
    Manifest,
    Node,
    ObjectRow,
    PerRankTable,
    RunTable,
    TensorTable,
    ints,
)
from bcpformat.model.state_decode import check_state

CODEC_RAW = 0
CODEC_PLANES = 2
CODEC_FEATURES = {0: None, 1: None, CODEC_PLANES: "planes-zstd"}
"""Codec code of the registry to the feature it needs."""
KNOWN_FEATURES = frozenset({"planes-zstd", "subbyte"})


def used_features(manifest: Manifest) -> tuple[str, ...]:
    """Return the features that the content of a manifest uses, ascending (BCP-WRT-009)."""
    return tuple(sorted(_codec_features(manifest.runs) | _dtype_features(manifest.tensors)))


def _codec_features(runs: RunTable) -> set[str]:
    return {
        feature
        for code, feature in CODEC_FEATURES.items()
        if feature is not None and (runs.codec == code).any()
    }


def _dtype_features(tensors: TensorTable) -> set[str]:
    found = (DType.named(name).feature for name in set(tensors.dtypes))
    return {feature for feature in found if feature is not None}


def check_manifest(manifest: Manifest, *, limits: Limits) -> list[Problem]:
    """Return every problem found in a decoded manifest, none if it is valid.

    Args:
        manifest: A manifest whose sections passed their own rules.
        limits: Bounds on counts.
    """
    whole = Excerpt(manifest=manifest)
    groups: Iterable[list[Problem]] = (
        _check_counts(manifest, limits) + check_names(manifest.tensors, manifest.objects),
        _check_features(manifest),
        _check_runs(whole),
        check_regions(manifest.tensors, manifest.chunks, np.arange(len(manifest.tensors))),
    )
    for problems in groups:
        if problems:
            return problems
    found = _check_run_contents(whole)
    found += check_references(manifest.state, manifest.tensors, manifest.objects, manifest.per_rank)
    return found


def check_excerpt(excerpt: Excerpt) -> list[Problem]:
    """Return every problem of the chunks, runs and values of an excerpt, none if it is valid.

    Args:
        excerpt: Part of a manifest whose sections passed their own rules.

    Preconditions: the regions of its chunks passed `check_regions`.
    """
    used = _codec_features(excerpt.manifest.runs)
    problems = _undeclared(used, excerpt.manifest.require)
    return problems or _check_runs(excerpt) or _check_run_contents(excerpt)


def check_tensors(tensors: TensorTable, require: Sequence[str]) -> list[Problem]:
    """Return the problems of the tensors of a manifest of which no other rows are known.

    Args:
        tensors: All tensors.
        require: The features that the root requires.
    """
    used = _dtype_features(tensors)
    known = KNOWN_FEATURES - {*CODEC_FEATURES.values()}
    problems = check_names(tensors, ()) or _undeclared(used, require)
    return problems + _unused(used, {*require} & known)


def check_names(tensors: TensorTable, objects: Sequence[ObjectRow]) -> list[Problem]:
    """Return a problem unless the names of tensors, aliases and objects differ (BCP-MAN-018)."""
    count = len(tensors) + sum(map(len, tensors.aliases.values())) + len(objects)
    distinct = set(tensors.names)
    distinct.update(*tensors.aliases.values())
    distinct.update(o.name for o in objects)
    if len(distinct) == count:
        return []
    text = f"{count} names of tensors, aliases and objects, only {len(distinct)} differ"
    return [_problem(ErrorCode.NAME, "tensors", text)]


def check_references(
    state: Node, tensors: TensorTable, objects: Sequence[ObjectRow], per_rank: PerRankTable
) -> list[Problem]:
    """Return the problems of a state tree, and of what it and the other sections refer to."""
    found = check_state(
        state,
        names=tensors.names,
        aliases=tensors.aliases,
        object_names=[o.name for o in objects],
        per_rank_paths=int(per_rank.path.max()) + 1 if len(per_rank) else 0,
    )
    return found + _check_per_rank_paths(per_rank)


def check_regions(tensors: TensorTable, chunks: ChunkTable, rows: Ints) -> list[Problem]:
    """Return for each tensor the first rule that its regions break (spec 8.2).

    Args:
        tensors: All tensors.
        chunks: All chunks of some of them.
        rows: Those, ascending.
    """
    found = check_tilings(
        shapes=[tensors.shapes[row] for row in rows.tolist()],
        chunk_counts=tensors.chunks[rows],
        origin_values=chunks.origin,
        extent_values=chunks.extent,
        starts=chunks.start,
        counts=chunks.count,
    )
    return [_problem(p.code, f"tensor {tensors.names[rows[i]]!r}", p.message) for i, p in found]


def _problem(code: ErrorCode, where: str, message: str) -> Problem:
    return Problem(code=code, where=where, message=message)


def _check_counts(manifest: Manifest, limits: Limits) -> list[Problem]:
    rows = max(len(manifest.chunks), len(manifest.runs), len(manifest.per_rank))
    problems = []
    if len(manifest.files) > limits.files:
        text = f"{len(manifest.files)} data files, the limit is {limits.files}"
        problems.append(_problem(ErrorCode.LIMIT, "files", text))
    if rows > limits.chunks:
        text = f"{rows} rows in one section kind, the limit is {limits.chunks}"
        problems.append(_problem(ErrorCode.LIMIT, "chunks", text))
    return problems


def _check_features(manifest: Manifest) -> list[Problem]:
    used = set(used_features(manifest))
    known = {*manifest.require} & KNOWN_FEATURES
    return _undeclared(used, manifest.require) + _unused(used, known)


def _undeclared(used: set[str], require: Sequence[str]) -> list[Problem]:
    return [
        _problem(ErrorCode.FEATURE, "root", f"feature {name!r} is used but not in require")
        for name in sorted(used.difference(require))
    ]


def _unused(used: set[str], declared: set[str]) -> list[Problem]:
    return [
        _problem(ErrorCode.FEATURE, "root", f"feature {name!r} is in require but not used")
        for name in sorted(declared - used)
    ]


def _first(mask: npt.NDArray[np.bool_]) -> int:
    return int(np.argmax(mask))


def _check_runs(excerpt: Excerpt) -> list[Problem]:
    runs, files = excerpt.manifest.runs, excerpt.manifest.files
    problems: list[Problem] = []

    def rule(bad: npt.NDArray[np.bool_], code: ErrorCode, text: str) -> None:
        if bad.any():
            row = _first(bad)
            values = {
                name: int(getattr(runs, name)[row])
                for name in ("file", "position", "raw", "stored", "codec", "item", "block0")
            }
            problems.append(_problem(code, f"runs row {excerpt.run(row)}", text.format(**values)))

    rule(runs.file >= len(files), ErrorCode.INDEX, "file {file} does not exist")
    if problems:
        return problems
    rule(runs.raw < 1, ErrorCode.RANGE, "raw must be at least 1, got {raw}")
    rule(runs.stored < 1, ErrorCode.RANGE, "stored must be at least 1, got {stored}")
    raw = runs.codec == CODEC_RAW
    rule(
        (raw & (runs.stored != runs.raw)) | (runs.stored > runs.raw),
        ErrorCode.RAW_LENGTH,
        "{stored} stored bytes for {raw} raw bytes with codec {codec}",
    )
    rule(
        runs.raw % np.maximum(runs.item, 1) != 0,
        ErrorCode.RAW_LENGTH,
        "raw {raw} is not a multiple of item {item}",
    )
    rule(
        (runs.codec == CODEC_PLANES) & (runs.item == 1),
        ErrorCode.CODEC,
        "codec planes-zstd needs item 2, 4 or 8, got {item}",
    )
    rule(
        (runs.position < ALIGNMENT_BYTES) | (runs.position % ALIGNMENT_BYTES != 0),
        ErrorCode.ALIGN,
        "position {position} is not a multiple of 4096 at or after 4096",
    )
    counts = block_counts(runs)
    bounds = np.searchsorted(runs.file, np.arange(len(files) + 1))
    for index in range(len(files)) if excerpt.is_whole else np.unique(runs.file).tolist():
        rows, row = slice(int(bounds[index]), int(bounds[index + 1])), files[index]
        problems += _check_file(excerpt, index, rows, counts[rows])
        if row.kind != "data":  # BCP-MAN-015: nothing else is known about it
            continue
        if row.table_bytes % ALIGNMENT_BYTES or row.table_bytes < ALIGNMENT_BYTES:
            text = f"block table at {row.table_bytes}, not a multiple of 4096 at or after 4096"
            problems.append(_problem(ErrorCode.ALIGN, f"file {row.name!r}", text))
    return problems


def _check_file(excerpt: Excerpt, index: int, rows: slice, counts: Ints) -> list[Problem]:
    manifest, row = excerpt.manifest, excerpt.manifest.files[index]
    runs, is_full = manifest.runs, excerpt.is_whole and not row.unused
    where = f"file {row.name!r}"
    has_runs = rows.stop > rows.start
    if row.kind != "data":
        text = f"runs lie in a file of kind {row.kind!r}"
        return [_problem(ErrorCode.INDEX, where, text)] if has_runs else []
    if not has_runs:
        return [_problem(ErrorCode.INDEX, where, "no run lies in this data file")]
    problems = []
    encoded = bool((runs.codec[rows] != CODEC_RAW).any())
    if encoded > row.lengths or (encoded < row.lengths and is_full):  # BCP-DAT-007
        text = f"lengths is {row.lengths}, encoded runs: {encoded}"
        problems.append(_problem(ErrorCode.TABLE, where, text))
    if row.unused and row.attempt_id == manifest.attempt_id:
        text = "unused ranges in a file of this attempt"
        problems.append(_problem(ErrorCode.EXTENT_HOLE, where, text))
    begin = runs.position[rows]
    end = begin + runs.stored[rows]
    if row.unused:
        spare = np.array(row.unused, dtype=np.int64).reshape(-1, 2)
        begin = np.concatenate((begin, spare[:, 0]))
        end = np.concatenate((end, spare[:, 0] + spare[:, 1]))
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], end[order]
    gaps = np.append(begin, row.table_bytes) - np.concatenate(([ALIGNMENT_BYTES], end))
    if (gaps < 0).any():
        at = int(np.append(begin, row.table_bytes)[_first(gaps < 0)])
        text = f"ranges overlap at position {at}"
        problems.append(_problem(ErrorCode.EXTENT_OVERLAP, where, text))
    elif excerpt.is_whole and (gaps >= ALIGNMENT_BYTES).any():
        at = int(np.append(begin, row.table_bytes)[_first(gaps >= ALIGNMENT_BYTES)])
        text = f"4096 bytes or more before position {at} belong to nothing"
        problems.append(_problem(ErrorCode.EXTENT_HOLE, where, text))
    first = runs.block0[rows]
    last = first + counts
    steps = np.append(first, row.blocks) - np.concatenate(([0], last))
    if (steps < 0).any() or (is_full and (steps != 0).any()):  # BCP-DAT-008
        text = f"block ranges of its runs do not partition its {row.blocks} blocks"
        problems.append(_problem(ErrorCode.TABLE, where, text))
    return problems


def _check_run_contents(excerpt: Excerpt) -> list[Problem]:
    """Check chunks, per-rank values and objects within the raw bytes of their runs (spec 9)."""
    manifest = excerpt.manifest
    geometry = chunk_geometry(manifest)
    chunks, ranks, objects, runs = (
        manifest.chunks,
        manifest.per_rank,
        manifest.objects,
        manifest.runs,
    )
    run = _joined(chunks.run, ranks.run, ints([o.run for o in objects]))
    offset = _joined(chunks.offset, ranks.offset, ints([o.offset_bytes for o in objects]))
    nbytes = _joined(geometry.nbytes, ranks.nbytes, ints([o.nbytes for o in objects]))
    item = _joined(geometry.item, np.ones(len(ranks) + len(objects), dtype=np.int64))

    def where(row: int) -> str:
        if row < len(chunks):
            name = manifest.tensors.names[int(geometry.tensor[row])]
            return f"chunk {excerpt.chunk(row)} of tensor {name!r}"
        row -= len(chunks)
        if row < len(ranks):
            return f"per-rank value {excerpt.rank_value(row)}"
        return f"object {objects[row - len(ranks)].name!r}"

    bad = run >= len(runs)
    if bad.any():
        row = _first(bad)
        return [_problem(ErrorCode.INDEX, where(row), f"run {int(run[row])} does not exist")]
    problems = []
    for mask, code, text in (
        (nbytes < 1, ErrorCode.RANGE, "no bytes"),
        (offset % CHUNK_ALIGNMENT_BYTES != 0, ErrorCode.ALIGN, "offset not a multiple of 64"),
        (runs.item[run] != item, ErrorCode.ITEM, "item of the run is not that of its data type"),
        (offset + nbytes > runs.raw[run], ErrorCode.EXTENT_BOUNDS, "ends beyond its run"),
    ):
        if mask.any():
            row = _first(mask)
            place = f"offset {int(offset[row])}, {int(nbytes[row])} bytes, "
            place += f"run {excerpt.run(int(run[row]))}"
            problems.append(_problem(code, where(row), f"{text} ({place})"))
    if problems:
        return problems
    return _check_gaps(excerpt, run, offset, nbytes)


def _joined(*columns: Ints) -> Ints:
    """Return columns one after the other, without a copy where only one has rows."""
    filled = [column for column in columns if len(column)]
    return filled[0] if len(filled) == 1 else np.concatenate(columns)


def _check_gaps(excerpt: Excerpt, run: Ints, offset: Ints, nbytes: Ints) -> list[Problem]:
    """Check that the contents of every run neither overlap nor leave 64 bytes unused."""
    runs = excerpt.manifest.runs
    ascending = bool(
        ((run[1:] > run[:-1]) | ((run[1:] == run[:-1]) & (offset[1:] >= offset[:-1]))).all()
    )
    if not ascending:
        order = np.lexsort((offset, run))
        run, offset, nbytes = run[order], offset[order], nbytes[order]
    if len(runs) and len(run):
        first = np.append(True, run[1:] != run[:-1])
        last = np.append(first[1:], True)
        before = offset - np.where(first, 0, np.roll(offset + nbytes, 1))
        after = np.where(last, runs.raw[run] - offset - nbytes, 0)
        for mask, code, text in (
            (before < 0, ErrorCode.EXTENT_OVERLAP, "its contents overlap at offset"),
            (before >= CHUNK_ALIGNMENT_BYTES, ErrorCode.EXTENT_HOLE, "64 unused bytes before"),
            (after >= CHUNK_ALIGNMENT_BYTES, ErrorCode.EXTENT_HOLE, "64 unused bytes after"),
        ):
            if mask.any() and (code is ErrorCode.EXTENT_OVERLAP or excerpt.is_whole):
                row = _first(mask)
                where = f"run {excerpt.run(int(run[row]))}"
                return [_problem(code, where, f"{text} {int(offset[row])}")]
    occupied = np.zeros(len(runs), dtype=np.bool_)
    occupied[run] = True
    if excerpt.is_whole and not occupied.all():
        row = _first(~occupied)
        return [_problem(ErrorCode.EXTENT_HOLE, f"run {row}", "holds nothing")]
    return []


def _check_per_rank_paths(values: PerRankTable) -> list[Problem]:
    """Check that the ordinals 0 to the largest all have rows (BCP-COL-005)."""
    # their paths ascend (BCP-COL-004)
    if (np.diff(values.path, prepend=-1) > 1).any():
        text = "a per-rank node of the state has no row"
        return [_problem(ErrorCode.STATE, "per_rank", text)]
    return []
