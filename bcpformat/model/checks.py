"""Rules that tie the sections of a manifest together (spec 7, 8, 9, 10, 15).

Every check is pure, vectorised over the columns, and returns what it finds.  Rules about one
section alone are checked by `wire` when it decodes that section.  The order of the checks is the
order of the reader's steps: later ones rely on what earlier ones proved, so a group that finds a
problem ends the list.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from bcpformat.errors import ErrorCode, Problem
from bcpformat.model.coverage import check_tilings
from bcpformat.model.dtypes import DType
from bcpformat.model.limits import ALIGNMENT_BYTES, CHUNK_ALIGNMENT_BYTES, Limits
from bcpformat.model.manifest import Ints, Manifest, RunTable, TensorTable, ints
from bcpformat.model.state_decode import check_state

CODEC_RAW = 0
CODEC_PLANES = 2
CODEC_FEATURES = {0: None, 1: None, CODEC_PLANES: "planes-zstd"}
"""Codec code of the registry to the feature it needs."""
KNOWN_FEATURES = frozenset({"planes-zstd", "subbyte"})


@dataclass(frozen=True, slots=True)
class ChunkGeometry:
    """What the chunk rows of a manifest mean in elements and bytes; arrays of shape `(rows,)`.

    Attributes:
        tensor: Row of the tensor each chunk belongs to.
        count: Elements.
        nbytes: Raw bytes.
        item: Item size of the tensor's data type, in bytes.
    """

    tensor: Ints
    count: Ints
    nbytes: Ints
    item: Ints


def tensor_dtypes(tensors: TensorTable) -> tuple[list[DType], Ints]:
    """Return the distinct data types of the table and each tensor's position in them."""
    names = sorted(set(tensors.dtypes))
    positions = {name: position for position, name in enumerate(names)}
    kinds = np.fromiter(
        map(positions.__getitem__, tensors.dtypes), dtype=np.int64, count=len(tensors)
    )
    return [DType.named(name) for name in names], kinds


def tensor_nbytes(tensors: TensorTable) -> Ints:
    """Return the raw bytes of each tensor as one chunk, shape `(tensors,)`."""
    dtypes, kinds = tensor_dtypes(tensors)
    if not dtypes:
        return kinds
    bits = np.array([d.bits for d in dtypes], dtype=np.int64)[kinds]
    return (tensor_numels(tensors) * bits + 7) // 8


def tensor_numels(tensors: TensorTable) -> Ints:
    """Return the number of elements of each tensor, shape `(tensors,)`."""
    return np.fromiter(map(prod, tensors.shapes), dtype=np.int64, count=len(tensors))


def axis_rows(tensors: TensorTable) -> Ints:
    """Return where each chunk row's axes begin in `origin` and `extent`, shape `(rows + 1,)`."""
    ndims = np.fromiter(map(len, tensors.shapes), dtype=np.int64, count=len(tensors))
    starts = np.zeros(int(tensors.chunks.sum()) + 1, dtype=np.int64)
    np.cumsum(np.repeat(ndims, tensors.chunks), out=starts[1:])
    return starts


def chunk_geometry(manifest: Manifest) -> ChunkGeometry:
    """Return sizes of all chunks.

    Preconditions: each tensor's chunk count adds up to the chunk rows (wire), and extents are
    within the shapes where they are given, so that no product wraps (coverage).
    """
    tensors, chunks = manifest.tensors, manifest.chunks
    dtypes, kinds = tensor_dtypes(tensors)
    bits = np.array([d.bits for d in dtypes], dtype=np.int64)[kinds] if dtypes else kinds
    items = np.array([d.item for d in dtypes], dtype=np.int64)[kinds] if dtypes else kinds
    tensor = np.repeat(np.arange(len(tensors), dtype=np.int64), tensors.chunks)
    if chunks.count is not None:
        count = chunks.count
    elif chunks.extent is not None:
        count = _products(chunks.extent, axis_rows(tensors))
    else:
        count = tensor_numels(tensors)[tensor]
    chunk_bits = bits[tensor]
    # count * bits / 8 <= 2^53 (BCP-CNV-003), so count * bits stays below 2^56
    return ChunkGeometry(
        tensor=tensor, count=count, nbytes=(count * chunk_bits + 7) // 8, item=items[tensor]
    )


def used_features(manifest: Manifest) -> tuple[str, ...]:
    """Return the features that the content of a manifest uses, ascending (BCP-WRT-009)."""
    used = {
        feature
        for code, feature in CODEC_FEATURES.items()
        if feature is not None and (manifest.runs.codec == code).any()
    }
    used |= {
        feature
        for name in set(manifest.tensors.dtypes)
        if (feature := DType.named(name).feature) is not None
    }
    return tuple(sorted(used))


def check_manifest(manifest: Manifest, *, limits: Limits) -> list[Problem]:
    """Return every problem found in a decoded manifest, none if it is valid.

    Args:
        manifest: A manifest whose sections passed their own rules.
        limits: Bounds on counts.
    """
    groups: Iterable[tuple[Problem, ...] | list[Problem]] = (
        _check_counts(manifest, limits),
        _check_features(manifest),
        _check_runs(manifest),
        _check_tilings(manifest),
    )
    for problems in groups:
        if problems:
            return list(problems)
    found = _check_run_contents(manifest)
    found += check_state(
        manifest.state,
        names=manifest.tensors.names,
        aliases=manifest.tensors.aliases,
        object_names=[o.name for o in manifest.objects],
        per_rank_paths=int(manifest.per_rank.path.max()) + 1 if len(manifest.per_rank) else 0,
    )
    found += _check_per_rank_paths(manifest)
    return found


def _products(values: Ints, starts: Ints) -> Ints:
    """Return the product of each row's axes (1 for a row without axes)."""
    rows = len(starts) - 1
    out = np.ones(rows, dtype=np.int64)
    filled = starts[1:] > starts[:-1]
    if filled.any():
        out[filled] = np.multiply.reduceat(values, starts[:-1][filled])
    return out


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
    names = len(manifest.tensors) + sum(map(len, manifest.tensors.aliases.values()))
    names += len(manifest.objects)
    distinct = set(manifest.tensors.names)
    distinct.update(*manifest.tensors.aliases.values())
    distinct.update(o.name for o in manifest.objects)
    if len(distinct) != names:  # BCP-MAN-018
        text = f"{names} names of tensors, aliases and objects, only {len(distinct)} differ"
        problems.append(_problem(ErrorCode.NAME, "tensors", text))
    return problems


def _check_features(manifest: Manifest) -> list[Problem]:
    used = set(used_features(manifest))
    declared = set(manifest.require)
    problems = [
        _problem(ErrorCode.FEATURE, "root", f"feature {name!r} is used but not in require")
        for name in sorted(used - declared)
    ]
    problems += [
        _problem(ErrorCode.FEATURE, "root", f"feature {name!r} is in require but not used")
        for name in sorted((declared - used) & KNOWN_FEATURES)
    ]
    return problems


def block_counts(runs: RunTable) -> Ints:
    """Return the number of blocks of each run, shape `(rows,)`."""
    return ((runs.raw - 1) >> runs.block_log2) + 1


def _first(mask: npt.NDArray[np.bool_]) -> int:
    return int(np.argmax(mask))


def _check_runs(manifest: Manifest) -> list[Problem]:
    runs, files = manifest.runs, manifest.files
    problems: list[Problem] = []

    def rule(bad: npt.NDArray[np.bool_], code: ErrorCode, text: str) -> None:
        if bad.any():
            row = _first(bad)
            values = {
                name: int(getattr(runs, name)[row])
                for name in ("file", "position", "raw", "stored", "codec", "item", "block0")
            }
            problems.append(_problem(code, f"runs row {row}", text.format(**values)))

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
    for index, row in enumerate(files):
        rows = slice(int(bounds[index]), int(bounds[index + 1]))
        problems += _check_file(manifest, index, rows, counts[rows])
        if row.kind != "data":  # BCP-MAN-015: nothing else is known about it
            continue
        if row.table_bytes % ALIGNMENT_BYTES or row.table_bytes < ALIGNMENT_BYTES:
            text = f"block table at {row.table_bytes}, not a multiple of 4096 at or after 4096"
            problems.append(_problem(ErrorCode.ALIGN, f"file {row.name!r}", text))
    return problems


def _check_file(manifest: Manifest, index: int, rows: slice, counts: Ints) -> list[Problem]:
    row, runs = manifest.files[index], manifest.runs
    where = f"file {row.name!r}"
    has_runs = rows.stop > rows.start
    if row.kind != "data":
        text = f"runs lie in a file of kind {row.kind!r}"
        return [_problem(ErrorCode.INDEX, where, text)] if has_runs else []
    if not has_runs:
        return [_problem(ErrorCode.INDEX, where, "no run lies in this data file")]
    problems = []
    encoded = bool((runs.codec[rows] != CODEC_RAW).any())
    if encoded > row.lengths or (encoded < row.lengths and not row.unused):  # BCP-DAT-007
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
    elif (gaps >= ALIGNMENT_BYTES).any():
        at = int(np.append(begin, row.table_bytes)[_first(gaps >= ALIGNMENT_BYTES)])
        text = f"4096 bytes or more before position {at} belong to nothing"
        problems.append(_problem(ErrorCode.EXTENT_HOLE, where, text))
    first = runs.block0[rows]
    last = first + counts
    steps = np.append(first, row.blocks) - np.concatenate(([0], last))
    if (steps < 0).any() or (not row.unused and (steps != 0).any()):  # BCP-DAT-008
        text = f"block ranges of its runs do not partition its {row.blocks} blocks"
        problems.append(_problem(ErrorCode.TABLE, where, text))
    return problems


def _check_tilings(manifest: Manifest) -> list[Problem]:
    tensors, chunks = manifest.tensors, manifest.chunks
    found = check_tilings(
        shapes=tensors.shapes,
        chunk_counts=tensors.chunks,
        origin_values=chunks.origin,
        extent_values=chunks.extent,
        starts=chunks.start,
        counts=chunks.count,
    )
    return [_problem(p.code, f"tensor {tensors.names[index]!r}", p.message) for index, p in found]


def _check_run_contents(manifest: Manifest) -> list[Problem]:
    """Check chunks, per-rank values and objects within the raw bytes of their runs (spec 9)."""
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
            return f"chunk {row} of tensor {name!r}"
        row -= len(chunks)
        if row < len(ranks):
            return f"per-rank value {row}"
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
            place = f"offset {int(offset[row])}, {int(nbytes[row])} bytes, run {int(run[row])}"
            problems.append(_problem(code, where(row), f"{text} ({place})"))
    if problems:
        return problems
    return _check_gaps(runs, run, offset, nbytes)


def _joined(*columns: Ints) -> Ints:
    """Return columns one after the other, without a copy where only one has rows."""
    filled = [column for column in columns if len(column)]
    return filled[0] if len(filled) == 1 else np.concatenate(columns)


def _check_gaps(runs: RunTable, run: Ints, offset: Ints, nbytes: Ints) -> list[Problem]:
    """Check that the contents of every run neither overlap nor leave 64 bytes unused."""
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
            if mask.any():
                row = _first(mask)
                return [_problem(code, f"run {int(run[row])}", f"{text} {int(offset[row])}")]
    occupied = np.zeros(len(runs), dtype=np.bool_)
    occupied[run] = True
    if not occupied.all():
        row = _first(~occupied)
        return [_problem(ErrorCode.EXTENT_HOLE, f"run {row}", "holds nothing")]
    return []


def _check_per_rank_paths(manifest: Manifest) -> list[Problem]:
    """Check that the ordinals 0 to the largest all have rows (BCP-COL-005)."""
    paths = manifest.per_rank.path  # ascending (BCP-COL-004)
    if (np.diff(paths, prepend=-1) > 1).any():
        text = "a per-rank node of the state has no row"
        return [_problem(ErrorCode.STATE, "per_rank", text)]
    return []
