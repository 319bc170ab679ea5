"""Columns: sections that are maps from name to packed integers (spec 7.4).

Values become int64 columns of the whole table, filled group by group, so that decoding a table
takes its own memory and that of one group.  A column that no group has takes none, and rules are
checked while the values of a group are in the caches of the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

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

ReadSection: TypeAlias = Callable[[SectionRow], Buffer]
"""Returns the raw bytes of a section, verified."""


@dataclass(frozen=True, slots=True)
class Column:
    """What the spec says of one column.

    Attributes:
        code: Type of its packed values, little-endian.
        default: What an absent column stands for: one value, or the name of a required column
            that stands before it and has the same ones; None if the caller has to say.
        required: Whether the default is no legal value.
        legal: The legal values; None if all that fit are.
        illegal: Code of the error for others.
    """

    code: str
    default: int | str | None = 0
    required: bool = False
    legal: range | tuple[int, ...] | None = None
    illegal: ErrorCode = ErrorCode.RANGE


_FROM_1 = range(1, MAX_INTEGER + 1)

RUN_COLUMNS = {
    "block": Column("<u1", 20, legal=range(MIN_BLOCK_LOG2, MAX_BLOCK_LOG2 + 1)),
    "block0": Column("<u4"),
    "codec": Column("<u1", legal=tuple(map(int, Codec)), illegal=ErrorCode.CODEC),
    "file": Column("<u4"),
    "item": Column("<u1", 1, legal=(1, 2, 4, 8)),
    "position": Column("<u8", 4096),
    "raw": Column("<u8", required=True, legal=_FROM_1),
    "stored": Column("<u8", "raw", legal=_FROM_1),
}
PER_RANK_COLUMNS = {
    "nbytes": Column("<u8", required=True, legal=_FROM_1),
    "offset": Column("<u8"),
    "path": Column("<u4"),
    "rank": Column("<u4"),
    "run": Column("<u4"),
}
_RUN_KEY = ("file", "position")
_PER_RANK_KEY = ("path", "rank")


class ColumnTable:
    r"""The columns of a table, filled from one section after the other.

    Example:
        >>> table = ColumnTable({"offset": Column("<u8"), "run": Column("<u4")}, {"run": 2})
        >>> raw = b"\x81\xa3run\xc4\x04\x07\x00\x00\x00"
        >>> table.read(raw, {"offset": slice(2), "run": slice(1, 2)}, where="chunks", minor=0)
        {'run': array([7])}
        >>> table.get("run"), table.get("offset")
        (array([0, 7]), None)
    """

    def __init__(self, columns: Mapping[str, Column], lengths: Mapping[str, int]) -> None:
        """Make a table without values.

        Args:
            columns: Name to what the spec says of it.
            lengths: Name to the number of values in all sections, bounded by the caller.
        """
        self._columns = columns
        self._lengths = lengths
        self._values: dict[str, Ints] = {}

    def read(
        self, raw: Buffer, spans: Mapping[str, slice], *, where: str, minor: int
    ) -> dict[str, Ints]:
        """Take the columns of the next section and return them, as views of the table's.

        Args:
            raw: The section, decoded.
            spans: Name to where its values go, right behind those of the last section.
            where: The section, for messages.
            minor: Minor version of the file; unknown columns of a newer one are left out.

        Raises:
            FormatError: ``E_MP_...``, ``E_DEPTH``, ``E_TYPE``, ``E_KEY_UNKNOWN``, ``E_COLUMN``,
                ``E_RANGE`` or ``E_CODEC``.
        """
        # A handful of values in many bytes, so the careful way is the fast one, too.
        document: Any = walk(raw, max_depth=DOCUMENT_DEPTH, where=where, views=True)
        require_type(document, dict, where)
        for name, column in self._columns.items():
            if column.required and name not in document:
                text = f"column {name!r} is missing; its default {column.default} is no legal value"
                raise fault(ErrorCode.COLUMN, where, text)
        found = {}
        for name, packed in document.items():
            if name not in self._columns:
                if minor > MINOR:  # BCP-VER-001
                    continue
                raise fault(ErrorCode.KEY_UNKNOWN, where, f"unknown column {name[:80]!r}")
            found[name] = self._take(name, packed, spans[name], f"{where} column {name!r}")
        for name in self._values.keys() - found.keys():
            default = self._default(name, spans[name])
            if default is not None:
                self._values[name][spans[name]] = default
        return found

    def get(self, name: str) -> Ints | None:
        """Return a column, shape `(length,)`; None if no section had it.

        Where a section lacked a column without a default, its values are unspecified.
        """
        return self._values.get(name)

    def column(self, name: str) -> Ints:
        """Return a column that has a default, shape `(length,)`.

        One that no section had takes no memory: it is another column, or one number, read-only,
        that all rows share.
        """
        if name in self._values:
            return self._values[name]
        default = self._columns[name].default
        if isinstance(default, str):
            return self.column(default)
        assert default is not None
        number = np.int64(default).tobytes()
        return np.ndarray(self._lengths[name], np.int64, number, strides=(0,))

    def _take(self, name: str, packed: Any, span: slice, where: str) -> Ints:
        # Any: the type is checked first.
        require_type(packed, memoryview, where)
        dtype = np.dtype(self._columns[name].code)
        expected = span.stop - span.start
        if len(packed) != expected * dtype.itemsize:  # BCP-COL-002
            text = f"expected {expected} values of {dtype.itemsize} bytes"
            raise fault(ErrorCode.COLUMN, where, f"{text}, found {len(packed)} bytes")
        if name not in self._values:
            self._values[name] = np.empty(self._lengths[name], np.int64)
            before = slice(span.start)
            default = self._default(name, before)
            if default is not None:
                self._values[name][before] = default
        values = self._values[name][span]
        narrow = np.frombuffer(packed, dtype)
        values[:] = narrow
        # Checked where they are now: packed values begin at any byte, which makes wide ones slow.
        unsigned = values.view(np.uint64)
        if unsigned.max(initial=0) > MAX_INTEGER:  # BCP-COL-003
            row = int(np.argmax(unsigned > MAX_INTEGER))
            raise fault(ErrorCode.RANGE, where, f"value {row} is {unsigned[row]}, above 2^53-1")
        if is_default(values, self._default(name, span)):
            raise default_fault(where)
        check_legal(narrow if dtype.itemsize == 1 else values, self._columns[name], where)
        return values

    def _default(self, name: str, span: slice) -> Ints | int | None:
        """Return the defaults of some values of a column."""
        default = self._columns[name].default
        return self.column(default)[span] if isinstance(default, str) else default


def is_default(values: Ints, default: Ints | int | None) -> bool:
    """Return whether values are their defaults: one for each, one for all, or none."""
    if default is None:
        return False
    # Most columns differ at once.
    first = default if isinstance(default, int) else default[:1]
    return bool((values[:1] == first).all() and (values == default).all())


def check_legal(values: Ints, column: Column, where: str) -> None:
    """Raise for the first value of a column that is not legal.

    Args:
        values: Some values.
        column: What the spec says of them.
        where: What they are, for messages.
    """
    match column.legal:
        case None:
            return
        case range() as legal:
            low, high = values.min(initial=legal.start), values.max(initial=legal.start)
            if legal.start <= low and high < legal.stop:
                return
            bad = (values < legal.start) | (values >= legal.stop)
            words = f"{legal.start} to {legal.stop - 1}"
        case legal:
            bad = np.ones(len(values), np.bool_)
            for value in legal:
                bad &= values != value
            words = f"one of {', '.join(map(str, legal))}"
    if bad.any():
        row = int(np.argmax(bad))
        raise fault(column.illegal, f"{where} value {row}", f"must be {words}, found {values[row]}")


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
        FormatError: A value is not legal.
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
        check_legal(column, columns[name], f"{where} column {name!r}")
        document[name] = column.astype(dtype).tobytes()
    return encode(document, max_depth=DOCUMENT_DEPTH, where=where)


def encode_runs(runs: RunTable) -> list[bytes]:
    """Return the sections of the runs, one for each group.

    Raises:
        FormatError: The rows break a rule of the section.
        InvalidArgumentError: A value does not fit its column (``E_NO_FORM``), or a column has
            another length than the first.
    """
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
    return _write_table(table, RUN_COLUMNS, _RUN_KEY, "runs")


def decode_runs(groups: Sequence[SectionRow], read: ReadSection, *, minor: int) -> RunTable:
    """Return the runs of some groups, one after the other.

    Args:
        groups: Sections of kind ``runs``, ascending.
        read: Gives the raw bytes of each, verified.
        minor: Minor version of the file.

    Raises:
        FormatError: A section breaks a rule.
    """
    table = _read_table(groups, read, RUN_COLUMNS, _RUN_KEY, minor)
    return RunTable(
        file=table["file"],
        position=table["position"],
        raw=table["raw"],
        stored=table["stored"],
        codec=table["codec"],
        item=table["item"],
        block_log2=table["block"],
        block0=table["block0"],
    )


def encode_per_rank(values: PerRankTable) -> list[bytes]:
    """Return the sections of the per-rank values, one for each group.

    Raises:
        FormatError: The rows break a rule of the section.
        InvalidArgumentError: A value does not fit its column (``E_NO_FORM``).
    """
    table = {name: getattr(values, name) for name in PER_RANK_COLUMNS}
    return _write_table(table, PER_RANK_COLUMNS, _PER_RANK_KEY, "per_rank")


def decode_per_rank(groups: Sequence[SectionRow], read: ReadSection, *, minor: int) -> PerRankTable:
    """Return the per-rank values of some groups, one after the other; as `decode_runs`."""
    return PerRankTable(**_read_table(groups, read, PER_RANK_COLUMNS, _PER_RANK_KEY, minor))


def _read_table(
    groups: Sequence[SectionRow],
    read: ReadSection,
    columns: Mapping[str, Column],
    key: tuple[str, str],
    minor: int,
) -> dict[str, Ints]:
    """Return all columns of some groups, whose rows ascend by two of them."""
    total = sum(group.rows for group in groups)
    table = ColumnTable(columns, dict.fromkeys(columns, total))
    start = 0
    for group in groups:
        rows = slice(start, start + group.rows)
        table.read(read(group), dict.fromkeys(columns, rows), where=str(group), minor=minor)
        overlap = slice(max(start - 1, 0), rows.stop)
        first, second = (table.column(name)[overlap] for name in key)
        _check_ascend(first, second, key, str(group))
        start = rows.stop
    return {name: table.column(name) for name in columns}


def _write_table(
    table: Mapping[str, Ints], columns: Mapping[str, Column], key: tuple[str, str], where: str
) -> list[bytes]:
    """Return one section for each group; the rows ascend by the two columns of the key."""
    length = len(next(iter(table.values())))
    for name, column in table.items():
        if column.shape != (length,):
            text = f"{where} column {name!r} must have shape ({length},), got {column.shape}"
            raise InvalidArgumentError(text)
    sections = []
    for rows in groups_of(length):
        values = {}
        for name, about in columns.items():
            default = about.default
            expected = table[default][rows] if isinstance(default, str) else default
            if about.required or not is_default(table[name][rows], expected):
                values[name] = table[name][rows]
        place = f"{where} from row {rows.start}"
        sections.append(write_columns(values, columns, where=place))
        overlap = slice(max(rows.start - 1, 0), rows.stop)
        _check_ascend(table[key[0]][overlap], table[key[1]][overlap], key, place)
    return sections


def _check_ascend(first: Ints, second: Ints, key: tuple[str, str], where: str) -> None:
    """Raise ``E_ORDER`` unless rows ascend by two columns without equal ones (BCP-COL-004)."""
    tied = first[1:] == first[:-1]
    bad = (first[1:] < first[:-1]) | (tied & (second[1:] <= second[:-1]))
    if bad.any():
        row = int(np.argmax(bad)) + 1
        text = (
            f"rows must ascend by {key[0]}, then {key[1]}: "
            f"({first[row]}, {second[row]}) after ({first[row - 1]}, {second[row - 1]})"
        )
        raise fault(ErrorCode.ORDER, where, text)
