"""Validation: all problems of a checkpoint, none raised (spec 13, 20).

Level *manifest* checks the manifest and, of every data file, that it is there, its length, its
header and its block table.  Level *full* also reads every byte: each block's digest, decoding,
padding and gaps, and the values that lie in data files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bcpformat.engine.load import read_manifest_bytes
from bcpformat.engine.options import ReadOptions
from bcpformat.engine.read import TensorReader
from bcpformat.errors import (
    BcpError,
    ErrorCode,
    FormatError,
    ObjectNotFoundError,
    Problem,
    StorageError,
)
from bcpformat.model.checks import check_manifest
from bcpformat.model.limits import ALIGNMENT_BYTES
from bcpformat.model.manifest import DATA_PREFIX, MANIFEST_KEY, Manifest
from bcpformat.model.progress import Progress
from bcpformat.storage.store import Store
from bcpformat.validation.blocks import check_blocks
from bcpformat.validation.values import check_values
from bcpformat.wire import Kind, decode_header, decode_manifest

Level = Literal["manifest", "full"]

CHECKED_CODES = frozenset({ErrorCode.NOT_COMMITTED, ErrorCode.FILE_MISSING, ErrorCode.FILE_TYPE})
"""Storage errors that are findings about the checkpoint, not a failure to check it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What validation found.

    Attributes:
        level: How much was checked.
        problems: Every problem, in the order of the reader's steps.
        unreferenced: Keys of objects that the manifest does not name: left-overs of saves that
            did not commit, or files of others.  They are no problem.
        damaged: Names of tensors, objects and per-rank values that have a bad block.
        checked_bytes: Bytes of data files that were read and verified.

    Example:
        >>> Report(level="full", problems=(), unreferenced=(), damaged=(), checked_bytes=0).ok
        True
    """

    level: Level
    problems: tuple[Problem, ...]
    unreferenced: tuple[str, ...]
    damaged: tuple[str, ...]
    checked_bytes: int

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.problems


def validate_store(
    store: Store, *, level: Level, options: ReadOptions, progress: Progress
) -> Report:
    """Check a checkpoint by every rule of the level.

    Args:
        store: Where its prefix is.
        level: How much to check.
        options: Threads and limits.
        progress: Called with numbers of bytes as they are checked, from any thread.

    Raises:
        StorageError: The store cannot be reached, so nothing can be said.
    """
    listed = store.list()
    try:
        data = read_manifest_bytes(store, limits=options.limits)
        manifest = decode_manifest(data, key=MANIFEST_KEY, limits=options.limits)
    except StorageError as error:
        if error.code not in CHECKED_CODES:
            raise
        return _unreadable(level, error, [i.key for i in listed])
    except FormatError as error:
        return _unreadable(level, error, [i.key for i in listed])
    problems = check_manifest(manifest, limits=options.limits)
    keys = {MANIFEST_KEY, *(DATA_PREFIX + row.name for row in manifest.files)}
    unreferenced = tuple(i.key for i in listed if i.key not in keys)
    if problems:
        return Report(
            level=level,
            problems=tuple(problems),
            unreferenced=unreferenced,
            damaged=(),
            checked_bytes=0,
        )
    reader = TensorReader(store, manifest, options)
    try:
        return _check_files(manifest, reader, level, unreferenced, progress)
    finally:
        reader.close()


def _unreadable(level: Level, error: BcpError, keys: list[str]) -> Report:
    where = "" if isinstance(error, ObjectNotFoundError) else MANIFEST_KEY
    problem = Problem(code=error.code, where=where, message=error.message)
    return Report(
        level=level,
        problems=(problem,),
        unreferenced=tuple(k for k in keys if k != MANIFEST_KEY),
        damaged=(),
        checked_bytes=0,
    )


def _check_files(
    manifest: Manifest,
    reader: TensorReader,
    level: Level,
    unreferenced: tuple[str, ...],
    progress: Progress,
) -> Report:
    problems: list[Problem] = []
    checked = 0
    for number, row in enumerate(manifest.files):
        if row.kind != "data":
            continue
        key = DATA_PREFIX + row.name
        found = _check_head(manifest, reader, number, key)
        if not found and level == "full":
            found, nbytes = check_blocks(reader, number, progress)
            checked += nbytes
        problems += found
    damaged = dict.fromkeys(name for problem in problems for name in problem.damages)
    if level == "full":
        # What lies beside bytes that should be zero can be read all the same (BCP-ERR-004).
        bad = (problem for problem in problems if problem.code is not ErrorCode.PADDING)
        problems += check_values(reader, {name for problem in bad for name in problem.damages})
    return Report(
        level=level,
        problems=tuple(problems),
        unreferenced=unreferenced,
        damaged=tuple(damaged),
        checked_bytes=checked,
    )


def _check_head(manifest: Manifest, reader: TensorReader, number: int, key: str) -> list[Problem]:
    """Check a data file's presence, length, header, the zeros after it, and its table."""

    def problem(code: ErrorCode, message: str) -> list[Problem]:
        names = tuple(_names_in(reader, number))
        text = message.removeprefix(f"{key}: ")
        return [Problem(code=code, where=key, message=text, damages=names)]

    try:
        head = reader.files.read(number, 0, ALIGNMENT_BYTES).tobytes()
        header = decode_header(head, key=key, expect=Kind.DATA)
        if header.attempt_id != manifest.files[number].attempt_id:
            text = f"attempt id {header.attempt_id.hex()} in the header, "
            text += f"{manifest.files[number].attempt_id.hex()} in the manifest"
            return problem(ErrorCode.ID, text)
        if any(head[64:]):
            text = "bytes 64 to 4095 are not all zero"
            return problem(ErrorCode.PADDING, text)
        reader.files.table(number)
    except StorageError as error:
        if error.code not in CHECKED_CODES:
            raise
        return problem(error.code, error.message)
    except FormatError as error:
        return problem(error.code, error.message)
    return []


def _names_in(reader: TensorReader, number: int) -> list[str]:
    """Return the names of whatever has bytes in a data file."""
    manifest, rows = reader.manifest, reader.files.runs(number)
    held = (manifest.chunks.run >= rows.start) & (manifest.chunks.run < rows.stop)
    tensors = np.unique(reader.index.geometry.tensor[held]).tolist()
    names = [manifest.tensors.names[tensor] for tensor in tensors]
    names += [o.name for o in manifest.objects if rows.start <= o.run < rows.stop]
    ranks = manifest.per_rank
    held = (ranks.run >= rows.start) & (ranks.run < rows.stop)
    places = zip(ranks.path[held].tolist(), ranks.rank[held].tolist(), strict=True)
    return names + [f"per-rank value {path} of rank {rank}" for path, rank in places]
