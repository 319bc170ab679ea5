"""Every field outside of documents set to extreme values: headers, block tables and columns.

Also the order of sections, with their bytes.  See `extremes` for what the functions return.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import fields as fields_of
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import msgpack

from tests.hostile.extremes import (
    EXTREMES,
    INTEGERS,
    STRANGERS,
    Changes,
    Fields,
    changed,
    with_section,
)
from tests.oracle.make_checkpoint import shorter
from tests.rules.build import (
    CHUNK_COLUMNS,
    PER_RANK_COLUMNS,
    RUN_COLUMNS,
    Draft,
    Header,
    Objects,
    Row,
    Section,
)

NBYTES = {"B": 1, "H": 2, "I": 4, "Q": 8}


def integers(value: int, code: str, *, step: int = 1) -> list[int]:
    """Return other integers of a width: extremes, and those near a value."""
    bits = 8 * NBYTES[code]
    near = {value - 1, value + 1, value - step, value + step, 2 * value}
    found = {*INTEGERS, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2**bits - 1, *near}
    return sorted(n for n in found - {value} if 0 <= n < 2**bits)


# ---- headers, block tables, the list of sections -----------------------------------------------

HEADER_CODES = {"major": "H", "minor": "H", "kind": "H", "flags": "H"} | dict.fromkeys(
    ("stored", "raw", "reserved"), "Q"
)


def of_headers(draft: Draft) -> Fields:
    """Return the changes of every field of the manifest's header and of those of data files."""
    parts = draft.parts()
    raw = len(parts.root_raw())
    frame = shorter(parts.root_raw())

    def manifest(name: str) -> Changes:
        for root_stored in (None, frame):
            stored = raw if root_stored is None else len(root_stored)
            for what, header in _headers(replace(parts.header, stored=stored, raw=raw), name):
                # `Parts` adds the true lengths to those of the header
                header.stored, header.raw = header.stored - stored, header.raw - raw
                made = replace(parts, root_stored=root_stored, header=header)
                yield f"{what}, root of {stored} bytes", made.objects()

    def data(name: str) -> Changes:
        for file, content in draft.data.items():
            for what, header in _headers(content.header, name):
                encoded = header.encoded() + parts.data[file][64:]
                yield f"{file} {what}", replace(parts, data=parts.data | {file: encoded}).objects()

    names = [field.name for field in fields_of(Header)]
    found: Fields = {f"manifest header.{name}": partial(manifest, name) for name in names}
    return found | {f"data header.{name}": partial(data, name) for name in names}


def _headers(header: Header, name: str) -> Iterator[tuple[str, Header]]:
    value = getattr(header, name)
    size = 16 if name == "attempt" else 8
    others: list[Any] = [
        bytes(size),
        b"\xff" * size,
        b"PK\3\4".ljust(size),
        bytes(range(1, size + 1)),
    ]
    if name in HEADER_CODES:
        others = [*integers(value, HEADER_CODES[name])]
    for other in others:
        yield f"{name} = {other!r}", replace(header, **{name: other})


def of_block_tables(draft: Draft) -> Fields:
    """Return the changes of every value of every block table, whose digest fits it."""

    def changes(name: str) -> Changes:
        for file, content in draft.data.items():
            for at, value in enumerate(getattr(content, name) or ()):
                others = integers(value, "I") if name == "lengths" else [bytes(8), b"\xff" * 8]
                for other in others:
                    made = deepcopy(draft)
                    getattr(made.data[file], name)[at] = other
                    yield f"{file} {name}[{at}] = {other!r}", made.encoded()

    return {f"block table {name}": partial(changes, name) for name in ("digests", "lengths")}


def of_section_list(draft: Draft) -> Fields:
    """Return the changes of the list of sections, whose bytes are in its order."""
    parts = draft.parts()
    sections = parts.sections

    def changes() -> Changes:
        for at, section in enumerate(sections):
            rest = [*sections[:at], *sections[at + 1 :]]
            before, after = sections[: at + 1], sections[at + 1 :]
            lists = {"removed": rest, "twice": [*before, section, *after]}
            lists["goes on"] = [*before, replace(section, first=section.rows), *after]
            lists["renamed"] = [*before[:-1], replace(section, kind=f"{section.kind}s"), *after]
            for place in range(len(sections)):
                if place != at:
                    lists[f"moved to {place}"] = [*rest[:place], section, *rest[place:]]
            for what, made in lists.items():
                yield f"{section.kind} {what}", replace(parts, sections=made).objects()

    return {"sections": changes}


def of_unknown_section(draft: Draft) -> Fields:
    """Return the changes that add a section of a kind that only a newer minor version has."""
    draft.header.minor = 1
    parts = draft.parts()

    def changes() -> Changes:
        for place in (0, 4, len(parts.sections)):
            for value in EXTREMES:
                for field in (1, 2):  # first row, rows
                    made = Section("zebra", 0, 1, b"any bytes", wrong={field: value})
                    sections = [*parts.sections[:place], made, *parts.sections[place:]]
                    what = f"place {place}, value {field} = {value!r:.50}"
                    yield what, replace(parts, sections=sections).objects()

    return {"unknown section": changes}


# ---- columns -----------------------------------------------------------------------------------

COLUMNS = {"runs": RUN_COLUMNS, "chunks": CHUNK_COLUMNS, "per_rank": PER_RANK_COLUMNS}
STEPS = {"position": 4096, "stored": 4096, "offset": 64, "raw": 64, "nbytes": 64}
"""Column to what its values, or their sums, are multiples of."""


ABOVE = "above 2^53-1"
"""End of the names of columns whose values are set to more than any number may be."""


def of_cells(draft: Draft) -> Fields:
    """Return the changes of every value of every column; one that says nothing is left out."""

    def changes(kind: str, column: str, *, above: bool) -> Changes:
        code, step = COLUMNS[kind][column][0], STEPS.get(column, 1)

        def others(value: int, step: int) -> list[int]:
            found = integers(value, code, step=step)
            return [other for other in found if (other >= 2**53) == above]

        for number, row in enumerate(getattr(draft, kind)):
            value = row[column]
            if not isinstance(value, list):
                for other in others(value, step):
                    yield from made(kind, number, {column: other})
                continue
            for axis, old in enumerate(value):
                for other in others(old, 1):
                    new = [*value[:axis], other, *value[axis + 1 :]]
                    yield from made(kind, number, {column: new})

    def made(kind: str, number: int, change: Row) -> Changes:
        yield f"{kind}[{number}] {change}", encoded(kind, number, change)
        # what was a default stays one, so that its column stays absent
        more: Row = {}
        if "extent" in change and all(c["count"] == prod(c["extent"]) for c in draft.chunks):
            more = {"count": prod(change["extent"]) % 2**64}
        if "raw" in change and draft.runs[number]["stored"] == draft.runs[number]["raw"]:
            more = {"stored": change["raw"]}
        if more:
            yield f"{kind}[{number}] {change | more}", encoded(kind, number, change | more)

    def encoded(kind: str, number: int, change: Row) -> Objects:
        rows = getattr(draft, kind)
        new = [row | change if at == number else row for at, row in enumerate(rows)]
        return replace(draft, **{kind: new}).encoded()

    found: Fields = {}
    for kind, known in COLUMNS.items():
        for column, (code, _) in known.items() if getattr(draft, kind) else ():
            found[f"{kind}.{column}"] = partial(changes, kind, column, above=False)
            if code == "Q":
                name = f"{kind}.{column} {ABOVE}"
                found[name] = partial(changes, kind, column, above=True)
    return found


def of_columns(draft: Draft) -> Fields:
    """Return the changes of whole columns, also of those that are not there, and of their map."""
    parts = draft.parts()

    def whole(kind: str, document: Row) -> Changes:
        for what, made in changed(document, (), STRANGERS):
            yield what, with_section(parts, kind, made)

    def changes(kind: str, column: str, document: Row) -> Changes:
        code, default = COLUMNS[kind][column]
        rows = getattr(draft, kind)
        written = _flat(row[column] for row in rows)
        values = {
            "written out": written,
            "all default": _flat(_default(row, default) for row in rows),
            "all zero": [0] * len(written),
            "all one": [1] * len(written),
            "all largest": [2 ** (8 * NBYTES[code]) - 1] * len(written),
            "backwards": written[::-1],
            "doubled": written * 2,
            "one less": written[:-1],
            "one more": [*written, 0],
        }
        columns: dict[str, Any] = {
            what: struct.pack(f"<{len(numbers)}{code}", *numbers)
            for what, numbers in values.items()
        }
        for other in {"B", "I", "Q"} - {code}:
            numbers = [n % 256 for n in written]
            columns[f"as {other}"] = struct.pack(f"<{len(written)}{other}", *numbers)
        columns["big-endian"] = struct.pack(f">{len(written)}{code}", *written)
        columns |= {repr(value)[:50]: value for value in (*EXTREMES, *STRANGERS)}
        for what, data in columns.items():
            if data != document.get(column):
                yield what, with_section(parts, kind, {**document, column: data})
        if column in document:
            rest = {name: data for name, data in document.items() if name != column}
            yield "removed", with_section(parts, kind, rest)

    found: Fields = {}
    for kind, known in COLUMNS.items():
        if getattr(draft, kind):
            document = msgpack.unpackb(parts.of(kind).raw)
            found[f"{kind} columns"] = partial(whole, kind, document)
            for column in known:
                found[f"{kind} column {column}"] = partial(changes, kind, column, document)
    return found


def _default(row: Row, default: int | str) -> Any:
    """Return what an absent column stands for in a row."""
    match default:
        case "elements":
            return prod(row["extent"])
        case "zeros":
            return [0] * len(row["shape"])
        case str():
            return row[default]
    return default


def _flat(values: Iterable[Any]) -> list[int]:
    return [n for value in values for n in (value if isinstance(value, list) else [value])]
