"""The content of per-rank values, and of objects that stand for values of the state (spec 10)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

import numpy as np

from bcpformat.engine.read import TensorReader
from bcpformat.errors import ErrorCode, FormatError, Problem
from bcpformat.model import nodes
from bcpformat.model.manifest import Node, ints
from bcpformat.model.state_decode import check_per_rank_value
from bcpformat.wire import decode_document

_BATCH_BYTES = 2**24
"""Per-rank values are read so many bytes at a time, a larger one alone."""


def check_values(reader: TensorReader, damaged: Container[str]) -> list[Problem]:
    """Return what is wrong with the values that lie in data files.

    Args:
        reader: Of a manifest that `check_manifest` found nothing wrong with.
        damaged: Names of what cannot be read, which is not tried again.
    """
    return [*_per_rank_problems(reader, damaged), *_object_problems(reader, damaged)]


def _per_rank_problems(reader: TensorReader, damaged: Container[str]) -> Iterator[Problem]:
    table = reader.manifest.per_rank
    names = [
        f"per-rank value {path} of rank {rank}"
        for path, rank in zip(table.path.tolist(), table.rank.tolist(), strict=True)
    ]
    rows = np.array([row for row, name in enumerate(names) if name not in damaged], np.int64)
    batch = np.cumsum(table.nbytes[rows]) // _BATCH_BYTES
    for part in np.split(rows, np.flatnonzero(np.diff(batch)) + 1):
        try:
            columns = table.run[part], table.offset[part], table.nbytes[part]
            found = reader.read_ranges(*columns)
        except FormatError as error:
            yield Problem(code=error.code, where=names[int(part[0])], message=error.message)
            continue
        for row, data in zip(part.tolist(), found, strict=True):
            for problem in _document_problems(data.tobytes(), names[row]):
                where = f"{names[row]}, {problem.where}" if problem.where else names[row]
                yield Problem(code=problem.code, where=where, message=problem.message)


def _document_problems(data: bytes, name: str) -> list[Problem]:
    try:
        root = decode_document(data, where=name)
    except FormatError as error:
        return [Problem(code=error.code, where="", message=error.message)]
    return check_per_rank_value(root)


def _object_problems(reader: TensorReader, damaged: Container[str]) -> Iterator[Problem]:
    checks: dict[int, Callable[[bytes], object]] = {
        nodes.OBJECT_STR: _read_text,
        nodes.OBJECT_INT: nodes.big_int,
    }
    for kind, row in _objects(reader.manifest.state):
        found = reader.manifest.objects[row]
        if found.name in damaged or kind not in checks:
            continue
        try:
            columns = ints([found.run]), ints([found.offset_bytes]), ints([found.nbytes])
            (data,) = reader.read_ranges(*columns)
            checks[kind](data.tobytes())
        except FormatError as error:
            yield Problem(code=error.code, where=f"object {found.name!r}", message=error.message)


def _read_text(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        text = f"the str is not UTF-8: {error.reason} at byte {error.start}"
        raise FormatError(text, code=ErrorCode.STATE) from error


def _objects(root: Node) -> Iterator[tuple[int, int]]:
    """Yield kind of value and row of every object that a state refers to."""
    pending = [root]
    while pending:
        node = pending.pop()
        if type(node) is not list:
            continue
        if node[0] == nodes.OBJECT:
            yield nodes.read_object(node)
        else:
            pending += (child for child in node if type(child) is list)
