"""Columns: sections that are maps from name to packed integers (spec 7.4).

Values become int64 columns of the whole table, filled group by group, so that decoding a table
takes its own memory and that of one group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bcpformat.codec.block import Codec
from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.limits import (
    DOCUMENT_DEPTH,
    GROUP_ROWS,
    MAX_BLOCK_LOG2,
    MAX_INTEGER,
    MIN_BLOCK_LOG2,
)
from bcpformat.model.manifest import Ints, PerRankTable, RunTable, Value
from bcpformat.wire.container import MINOR
from bcpformat.wire.mp import encode
from bcpformat.wire.schema import fault, require_type
from bcpformat.wire.sections import Buffer, SectionRow
from bcpformat.wire.walk import walk

Bools: TypeAlias = npt.NDArray[np.bool_]

ReadSection: TypeAlias = Callable[[SectionRow], Buffer]
"""Returns the raw bytes of a section, verified."""


@dataclass(frozen=True, slots=True)
class Column:
    """What the spec says of one column.

    Attributes:
        code: Type of its packed values, little-endian.
        default: What an absent column stands for; None if that depends on the row.
        required: Whether the default is no legal value.
    """

    code: str
    default: int | None = 0
    required: bool = False


RUN_COLUMNS = {
    "block": Column("<u1", 20),
    "block0": Column("<u4"),
    "codec": Column("<u1"),
    "file": Column("<u4"),
    "item": Column("<u1", 1),
    "position": Column("<u8", 4096),
    "raw": Column("<u8", required=True),
    "stored": Column("<u8", None),
}
PER_RANK_COLUMNS = {
    "nbytes": Column("<u8", required=True),
    "offset": Column("<u8"),
    "path": Column("<u4"),
    "rank": Column("<u4"),
    "run": Column("<u4"),
}


def read_columns(
    raw: Buffer,
    columns: Mapping[str, Column],
    counts: Mapping[str, int],
    *,
    where: str,
    minor: int,
) -> dict[str, Ints]:
    """Return the columns that a section has; what depends on their rows is left to the caller.

    Args:
        raw: The section, decoded.
        columns: Name to what the spec says of it.
        counts: Name to the number of its values.
        where: The section, for messages.
        minor: Minor version of the file; unknown columns of a newer one are left out.

    Raises:
        FormatError: ``E_MP_...``, ``E_DEPTH``, ``E_TYPE``, ``E_KEY_UNKNOWN``, ``E_COLUMN`` or
            ``E_RANGE``.
    """
    # A handful of values in many bytes, so the careful way is the fast one, too.
    document: Any = walk(raw, max_depth=DOCUMENT_DEPTH, where=where)
    require_type(document, dict, where)
    found = {}
    for name, packed in document.items():
        column = columns.get(name)
        if column is None:
            if minor > MINOR:  # BCP-VER-001
                continue
            raise fault(ErrorCode.KEY_UNKNOWN, where, f"unknown column {name[:80]!r}")
        place = f"{where} column {name!r}"
        require_type(packed, bytes, place)
        dtype = np.dtype(column.code)
        expected = counts[name]
        if len(packed) != expected * dtype.itemsize:  # BCP-COL-002
            text = (
                f"expected {expected} values of {dtype.itemsize} bytes, found {len(packed)} bytes"
            )
            raise fault(ErrorCode.COLUMN, place, text)
        values = np.frombuffer(packed, dtype)
        if values.max(initial=0) > MAX_INTEGER:  # BCP-COL-003
            row = int(np.argmax(values > MAX_INTEGER))
            raise fault(ErrorCode.RANGE, place, f"value {row} is {values[row]}, above 2^53-1")
        if column.default is not None and (values == column.default).all():
            raise default_fault(place)
        found[name] = values.astype(np.int64)
    for name, column in columns.items():
        if column.required and name not in found:
            text = f"column {name!r} is missing; its default {column.default} is no legal value"
            raise fault(ErrorCode.COLUMN, where, text)
    return found


def default_fault(place: str) -> Exception:
    """Return the exception for a column that says nothing (BCP-COL-001)."""
    text = "every value is the default, so the column must be absent"
    return fault(ErrorCode.COLUMN, place, text)


def groups_of(rows: int) -> Iterator[slice]:
    """Yield the rows of each group of a table (BCP-MAN-009)."""
    for first in range(0, rows, GROUP_ROWS):
        yield slice(first, min(first + GROUP_ROWS, rows))


def write_columns(
    values: Mapping[str, Ints], columns: Mapping[str, Column], *, where: str
) -> bytes:
    """Return a section.

    Args:
        values: Name to its values, without columns that say nothing.
        columns: Name to what the spec says of it.
        where: The section, for messages.

    Raises:
        InvalidArgumentError: A value does not fit its column (``E_NO_FORM``).
    """
    document: dict[str, Value] = {}
    for name in sorted(values):
        dtype = np.dtype(columns[name].code)
        largest = min(MAX_INTEGER, 2 ** (8 * dtype.itemsize) - 1)
        column = values[name]
        bad = (column < 0) | (column > largest)
        if bad.any():
            row = int(np.argmax(bad))
            text = f"{where} column {name!r}: value {row} is {column[row]}, not in 0 to {largest}"
            raise InvalidArgumentError(text, code=ErrorCode.NO_FORM)
        document[name] = column.astype(dtype).tobytes()
    return encode(document, max_depth=DOCUMENT_DEPTH, where=where)


def encode_runs(runs: RunTable) -> list[bytes]:
    """Return the sections of the runs, one for each group.

    Raises:
        FormatError: The rows break a rule of the section.
        InvalidArgumentError: A value does not fit its column (``E_NO_FORM``).
    """
    _check_runs(runs)
    table = {
        "block": runs.block_log2,
        "block0": runs.block0,
        "codec": runs.codec,
        "file": runs.file,
        "item": runs.item,
        "position": runs.position,
        "raw": runs.raw,
        "stored": runs.stored,
    }
    return _write_table(table, RUN_COLUMNS, {"stored": runs.raw}, "runs")


def decode_runs(groups: Sequence[SectionRow], read: ReadSection, *, minor: int) -> RunTable:
    """Return the runs of some groups, one after the other.

    Args:
        groups: Sections of kind ``runs``, ascending.
        read: Gives the raw bytes of each, verified.
        minor: Minor version of the file.

    Raises:
        FormatError: A section breaks a rule.
    """
    table = _read_table(groups, read, RUN_COLUMNS, {"stored": "raw"}, minor)
    runs = RunTable(
        file=table["file"],
        position=table["position"],
        raw=table["raw"],
        stored=table["stored"],
        codec=table["codec"],
        item=table["item"],
        block_log2=table["block"],
        block0=table["block0"],
    )
    _check_runs(runs)
    return runs


def encode_per_rank(values: PerRankTable) -> list[bytes]:
    """Return the sections of the per-rank values, one for each group.

    Raises:
        FormatError: The rows break a rule of the section.
        InvalidArgumentError: A value does not fit its column (``E_NO_FORM``).
    """
    _check_per_rank(values)
    table = {name: getattr(values, name) for name in PER_RANK_COLUMNS}
    return _write_table(table, PER_RANK_COLUMNS, {}, "per_rank")


def decode_per_rank(groups: Sequence[SectionRow], read: ReadSection, *, minor: int) -> PerRankTable:
    """Return the per-rank values of some groups, one after the other; as `decode_runs`."""
    table = _read_table(groups, read, PER_RANK_COLUMNS, {}, minor)
    values = PerRankTable(**table)
    _check_per_rank(values)
    return values


def _read_table(
    groups: Sequence[SectionRow],
    read: ReadSection,
    columns: Mapping[str, Column],
    same_as: Mapping[str, str],
    minor: int,
) -> dict[str, Ints]:
    """Return all columns of some groups; one in `same_as` defaults to another column."""
    total = sum(group.rows for group in groups)
    table = {
        name: np.full(total, column.default or 0, np.int64) for name, column in columns.items()
    }
    start = 0
    for group in groups:
        rows = slice(start, start + group.rows)
        start = rows.stop
        counts = dict.fromkeys(columns, group.rows)
        found = read_columns(read(group), columns, counts, where=str(group), minor=minor)
        for name, values in found.items():
            table[name][rows] = values
        for name, other in same_as.items():
            if name not in found:
                table[name][rows] = table[other][rows]
            elif np.array_equal(found[name], found[other]):
                raise default_fault(f"{group} column {name!r}")
    return table


def _write_table(
    table: Mapping[str, Ints],
    columns: Mapping[str, Column],
    defaults: Mapping[str, Ints],
    where: str,
) -> list[bytes]:
    """Return one section for each group; `defaults` has those that depend on the row."""
    length = len(next(iter(table.values())))
    for name, column in table.items():
        if column.shape != (length,):
            text = f"{where} column {name!r} must have shape ({length},), got {column.shape}"
            raise InvalidArgumentError(text)
    sections = []
    for rows in groups_of(length):
        values = {}
        for name, column in table.items():
            default = defaults[name][rows] if name in defaults else columns[name].default
            if (column[rows] != default).any():
                values[name] = column[rows]
        sections.append(write_columns(values, columns, where=f"{where} from row {rows.start}"))
    return sections


def check_rule(bad: Bools, code: ErrorCode, where: str, column: Ints, rule: str) -> None:
    """Raise for the first row of a column that is bad."""
    if bad.any():
        row = int(np.argmax(bad))
        raise fault(code, f"{where} row {row}", f"{rule}, found {column[row]}")


def _check_runs(runs: RunTable) -> None:
    """Raise for the first rule of the section that the rows break (spec 7.4)."""
    check_rule(runs.raw < 1, ErrorCode.RANGE, "runs", runs.raw, "raw must be at least 1")
    check_rule(runs.stored < 1, ErrorCode.RANGE, "runs", runs.stored, "stored must be at least 1")
    bad = ~np.isin(runs.codec, list(Codec))
    check_rule(bad, ErrorCode.CODEC, "runs", runs.codec, "codec must be in the registry")
    bad = ~np.isin(runs.item, (1, 2, 4, 8))
    check_rule(bad, ErrorCode.RANGE, "runs", runs.item, "item must be 1, 2, 4 or 8")
    log2 = runs.block_log2
    bad = (log2 < MIN_BLOCK_LOG2) | (log2 > MAX_BLOCK_LOG2)
    rule = f"block must be {MIN_BLOCK_LOG2} to {MAX_BLOCK_LOG2}"
    check_rule(bad, ErrorCode.RANGE, "runs", log2, rule)
    _check_pairs_ascend(runs.file, runs.position, "runs must ascend by file, then position")


def _check_per_rank(values: PerRankTable) -> None:
    nbytes = values.nbytes
    check_rule(nbytes < 1, ErrorCode.RANGE, "per_rank", nbytes, "nbytes must be at least 1")
    _check_pairs_ascend(values.path, values.rank, "per_rank must ascend by path, then rank")


def _check_pairs_ascend(first: Ints, second: Ints, rule: str) -> None:
    """Raise ``E_ORDER`` unless the rows ascend without equal ones (BCP-COL-004)."""
    tied = first[1:] == first[:-1]
    bad = (first[1:] < first[:-1]) | (tied & (second[1:] <= second[:-1]))
    if bad.any():
        row = int(np.argmax(bad)) + 1
        text = f"{rule}: ({first[row]}, {second[row]}) after ({first[row - 1]}, {second[row - 1]})"
        raise fault(ErrorCode.ORDER, f"row {row}", text)
