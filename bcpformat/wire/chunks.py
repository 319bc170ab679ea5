"""The chunks of all tensors as columns (spec 7.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.limits import Limits
from bcpformat.model.manifest import ChunkTable, Ints, TensorTable
from bcpformat.wire.columns import (
    Column,
    ColumnTable,
    ReadSection,
    default_fault,
    groups_of,
    write_columns,
)
from bcpformat.wire.layout import ChunkRows, Layout
from bcpformat.wire.schema import fault
from bcpformat.wire.sections import SectionRow

COLUMNS = {
    "count": Column("<u8", None),
    "extent": Column("<u8", None),
    "offset": Column("<u8"),
    "origin": Column("<u8"),
    "run": Column("<u4"),
    "start": Column("<u8"),
}
_PER_AXIS = frozenset({"extent", "origin"})


def check_chunk_rows(tensors: TensorTable, rows: int) -> None:
    """Raise ``E_COLUMN`` unless the tensors have `rows` chunk rows together (BCP-COL-007)."""
    expected = sum(tensors.chunks.tolist())
    if rows != expected:
        text = f"the tensors have {expected} chunks, the sections have {rows} rows"
        raise fault(ErrorCode.COLUMN, "chunks", text)


def encode_chunks(chunks: ChunkTable, tensors: TensorTable) -> list[bytes]:
    """Return the sections of the chunks, one for each group.

    Args:
        chunks: The rows.
        tensors: All tensors.

    Raises:
        FormatError: The rows break a rule of the section.
        InvalidArgumentError: A value does not fit its column (``E_NO_FORM``), or a column has
            another length than the tensors ask for.
    """
    check_chunk_rows(tensors, len(chunks))
    layout = Layout(tensors)
    table = {name: getattr(chunks, name) for name in COLUMNS}
    for name, column in table.items():
        expected = layout.values_before(len(chunks)) if name in _PER_AXIS else len(chunks)
        if column is not None and column.shape != (expected,):
            text = f"chunks column {name!r} must have shape ({expected},), got {column.shape}"
            raise InvalidArgumentError(text)
    last: tuple[int, ...] = ()
    sections = []
    for group in groups_of(len(chunks)):
        rows = layout.rows(group.start, group.stop - group.start)
        axes = slice(layout.values_before(group.start), layout.values_before(group.stop))
        values = {
            name: column[axes if name in _PER_AXIS else group]
            for name, column in table.items()
            if column is not None
        }
        last = _require_order(rows, values, last)
        said = {n: column for n, column in values.items() if not _is_default(n, rows, values)}
        sections.append(write_columns(said, COLUMNS, where=f"chunks from row {group.start}"))
    return sections


def decode_chunks(
    groups: Sequence[SectionRow],
    read: ReadSection,
    *,
    tensors: TensorTable,
    minor: int,
    limits: Limits,
) -> ChunkTable:
    """Return the chunks of some groups, one after the other.

    Args:
        groups: Sections of kind ``chunks``, ascending.
        read: Gives the raw bytes of each, verified.
        tensors: All tensors.
        minor: Minor version of the file.
        limits: A column with values per axis takes at most `section_bytes`.

    Raises:
        FormatError: A section breaks a rule.
        LimitError: A column is too large.

    Preconditions:
        `check_chunk_rows` has passed.
    """
    layout = Layout(tensors)
    spans = [
        (layout.values_before(group.first), layout.values_before(group.first + group.rows))
        for group in groups
    ]
    totals = {
        name: sum(end - begin for begin, end in spans)
        if name in _PER_AXIS
        else sum(group.rows for group in groups)
        for name in COLUMNS
    }
    if totals["origin"] * 8 > limits.section_bytes:
        text = f"origins of {totals['origin']} axes, the limit is {limits.section_bytes} bytes"
        raise fault(ErrorCode.LIMIT, "chunks", text)
    table = ColumnTable(COLUMNS, totals)
    silent: dict[str, list[tuple[SectionRow, slice, slice]]] = {"extent": [], "count": []}
    last: tuple[int, ...] = ()
    row = value = 0
    for group, (begin, end) in zip(groups, spans, strict=True):
        rows = layout.rows(group.first, group.rows)
        at, axes = slice(row, row + group.rows), slice(value, value + end - begin)
        row, value = at.stop, axes.stop
        places = {name: axes if name in _PER_AXIS else at for name in COLUMNS}
        found = table.read(read(group), places, where=str(group), minor=minor)
        for name in silent.keys() & found.keys():
            if _is_default(name, rows, found):
                raise default_fault(f"{group} column {name!r}")
        last = _require_order(rows, found, last)
        for name in silent.keys() - found.keys():
            silent[name].append((group, at, axes))
    # Groups without these columns say something of their own where another group has them.
    extent, count = table.get("extent"), table.get("count")
    if extent is not None:
        for group, _, axes in silent["extent"]:
            extent[axes] = layout.rows(group.first, group.rows).shapes()
    if count is not None:
        for group, at, axes in silent["count"]:
            boxes = None if extent is None else extent[axes]
            count[at] = layout.rows(group.first, group.rows).elements(boxes)
    return ChunkTable(
        run=table.column("run"),
        offset=table.column("offset"),
        origin=table.get("origin"),
        extent=extent,
        start=table.get("start"),
        count=count,
    )


def _is_default(name: str, rows: ChunkRows, values: Mapping[str, Ints]) -> bool:
    """Return whether a column of some rows says nothing (BCP-COL-001)."""
    if name == "extent":
        return rows.spans(values["extent"])
    if name == "count":
        return rows.fills(values["count"], values.get("extent"))
    return not values[name].any()


def _require_order(
    rows: ChunkRows, values: Mapping[str, Ints], last: tuple[int, ...]
) -> tuple[int, ...]:
    """Raise ``E_ORDER`` unless rows ascend, after the key `last`; return the key of the last."""
    origin, start = values.get("origin"), values.get("start")
    if rows.key(0, origin, start) <= last:
        text = "chunks must ascend by tensor, origin and start, without equal ones"
        raise fault(ErrorCode.ORDER, f"chunks row {rows.first}", text)
    rows.require_order(origin, start)
    return rows.key(-1, origin, start)
