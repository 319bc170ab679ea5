"""Every field of a document set to extreme values, one at a time, under right digests.

The changes of a checkpoint are grouped by field: a function returns a map from the name of a field
to its changes, which are made when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import msgpack

from tests.oracle.bcp_oracle import NAMES
from tests.oracle.make_checkpoint import shorter
from tests.rules.build import Draft, Objects, Parts, Row

# Any: documents hold whatever a test puts there, right or wrong.
Path: TypeAlias = tuple[Any, ...]
Changes: TypeAlias = Iterator[tuple[str, Objects]]
"""What was changed, and the objects of the changed checkpoint."""

Fields: TypeAlias = dict[str, Callable[[], Changes]]


def _deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


INTEGERS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 - 1, 2**53, 2**63, 2**64 - 1)
EXTREMES = (
    *(number for number in INTEGERS if number < 2**53),
    *("", "x" * 70_000),
    *(b"", b"\xff" * 70_000),
    *(True, [], {}, {"a": 0}),
)
"""Values of every type of the profile."""

STRANGERS = (
    *(2**53, 2**63, 2**64 - 1, -1),
    *("no UTF-8 \udcff", None, 1.5, msgpack.ExtType(5, b"x"), _deep(200)),
)
"""Values that no field may have: the profile does not have them."""

OUTSIDE = "outside the profile"
"""End of the names of fields that are set to such values."""

DTYPES = tuple(NAMES.split())
NODE_KINDS = range(23)
LISTS = ("files", "tensors", "objects")
"""Sections whose rows are counted by their document."""


def packed(value: Any) -> bytes:
    """Return a document, in which a surrogate becomes a byte of no UTF-8."""
    return bytes(msgpack.packb(_ordered(value), unicode_errors="surrogateescape"))


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value, key=str)}
    return [_ordered(item) for item in value] if type(value) is list else value


# ---- the values of a document ------------------------------------------------------------------


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every value in a document, its own first."""
    yield path
    items = value.items() if isinstance(value, dict) else ()
    for key, child in enumerate(value) if isinstance(value, list) else items:
        yield from paths(child, (*path, key))


def changed(document: Any, path: Path, more: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield what is changed and the changed document, for every change of the value at a path.

    Args:
        document: It stays as it is.
        path: Keys and positions from the top.
        more: Values to set besides the extremes.
    """
    value = _at(document, path)
    yield from replaced(document, path, (*EXTREMES, *_near(value), *more))
    where = _shown(path)
    if path:
        yield f"{where} removed", _put(document, path[:-1], partial(_without, key=path[-1]))
    if path and isinstance(path[-1], int):
        yield f"{where} twice", _put(document, path[:-1], partial(_twice, at=path[-1]))


def replaced(document: Any, path: Path, values: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the document with other values at a path, each once; see `changed`."""
    seen = {repr(_at(document, path))}
    for other in values:
        if repr(other) not in seen:
            seen.add(repr(other))
            what = f"{_shown(path)} = {other!r:.50}"
            yield what, _put(document, path, lambda _, new=other: new)


def _at(document: Any, path: Path) -> Any:
    for key in path:
        document = document[key]
    return document


def _shown(path: Path) -> str:
    return "".join(f"[{key!r}]" for key in path)


def _near(value: Any) -> list[Any]:
    """Return values of the same type that are almost this one."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value - 1, value + 1, 2 * value]
        case str():
            return [value * 2, value[:-1]]
        case bytes():
            size = len(value)
            return [value * 2, value[:-1], value + b"\0", bytes(size), b"\xff" * size]
        case list():
            return [value * 2, value[::-1], [*value, 0], [*value, *[1] * 40]]
    return [{**value, key: 0} for key in ("", "~", 5)]


def _put(document: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(document)
    copy = document.copy()
    copy[path[0]] = _put(document[path[0]], path[1:], change)
    return copy


def _without(parent: Any, key: Any) -> Any:
    copy = parent.copy()
    del copy[key]
    return copy


def _twice(parent: list[Any], at: int) -> list[Any]:
    return [*parent[: at + 1], *parent[at:]]


def of_document(
    document: Any,
    name: Callable[[Path], str],
    encode: Callable[[Any], Objects],
    more: Callable[[Path], Sequence[Any]] = lambda _: (),
) -> Fields:
    """Return the changes of every value of a document.

    Args:
        document: Its value.
        name: Returns the name of the field that a path leads to, and of the document.
        encode: Returns the checkpoint with a changed document.
        more: Returns further values to set for a path.
    """
    groups: dict[str, list[Path]] = {}
    for path in paths(document):
        groups.setdefault(name(path), []).append(path)

    def changes(group: list[Path]) -> Changes:
        for path in group:
            for what, made in changed(document, path, more(path)):
                yield what, encode(made)

    def strangers() -> Changes:
        # refused before anybody asks for the field, so the ends of a group are enough
        for path in (path for group in groups.values() for path in {group[0], group[-1]}):
            for what, made in replaced(document, path, STRANGERS):
                yield what, encode(made)

    found: Fields = {field: partial(changes, group) for field, group in groups.items()}
    return found | {f"{name(())} {OUTSIDE}": strangers}


# ---- root and sections -------------------------------------------------------------------------

SECTION_ROW = ("kind", "first", "rows", "codec", "stored", "raw", "digest")


def of_root(draft: Draft) -> Fields:
    """Return the changes of every field of a root that has compressed sections."""
    parts = draft.parts()
    for section in parts.sections:
        stored = shorter(section.raw)
        if len(stored) < len(section.raw):
            section.codec, section.stored = "zstd", stored

    def name(path: Path) -> str:
        if path[:1] == ("sections",) and len(path) == 3:
            return f"root.sections[].{SECTION_ROW[path[2]]}"
        return _row_name("root", path)

    def more(path: Path) -> Sequence[Any]:
        return ("none", "zstd") if path[:1] == ("sections",) and path[2:] == (3,) else ()

    def encode(document: Any) -> Objects:
        return replace(parts, root=packed(document)).objects()

    return of_document(msgpack.unpackb(parts.root_raw()), name, encode, more)


def of_rows(draft: Draft, kind: str) -> Fields:
    """Return the changes of every field of a section that is an array of maps."""
    parts = draft.parts()
    document = msgpack.unpackb(parts.of(kind).raw)
    dtypes = DTYPES if kind == "tensors" else ()
    return of_document(
        document,
        partial(_row_name, kind),
        partial(with_section, parts, kind),
        lambda path: dtypes if path[1:] == ("dtype",) else (),
    )


def _row_name(kind: str, path: Path) -> str:
    """Return the name of a field, which is the same for all rows."""
    return kind + "".join("[]" if isinstance(key, int) else f".{key}" for key in path)


def of_state(draft: Draft) -> Fields:
    """Return the changes of every node of a state, one field for each key of its dict."""
    parts = draft.parts()
    return of_node(draft.state, "state", partial(with_section, parts, "state"))


def of_node(document: Any, name: str, encode: Callable[[Any], Objects]) -> Fields:
    """Return the changes of every node below a dict, one field for each of its keys."""

    def below(path: Path) -> str:
        if path[:1] in ((), (0,)):
            return name
        return f"{name} {document[path[0] - (path[0] + 1) % 2]!r}"

    return of_document(
        document, below, encode, lambda path: NODE_KINDS if path[-1:] == (0,) else ()
    )


def with_section(parts: Parts, kind: str, document: Any) -> Objects:
    """Return a checkpoint with another document as a section, whose row in the root fits it."""
    old = parts.of(kind)
    rows = len(document) if isinstance(document, list) and kind in LISTS else old.rows
    new = replace(old, raw=packed(document), rows=rows)
    kept = [new if section is old else section for section in parts.sections]
    return replace(parts, sections=[section for section in kept if section.rows]).objects()


OPTIONAL: Mapping[str, Sequence[str]] = {
    "root": ("ext", "step", "user"),
    "files": ("attempt", "ext", "kind", "lengths", "unused"),
    "tensors": ("aliases", "chunks", "ext", "segments", "user"),
    "objects": ("media",),
}
"""Keys that need not be there."""

DEFAULTS = ("data", "parity", "application/octet-stream")


def of_absent_keys(draft: Draft, *, minor: int = 0) -> Fields:
    """Return the changes that add a key to the root, the writer, or a row.

    Args:
        draft: A valid checkpoint.
        minor: With 0 the keys are those that may be there; with a larger one they are unknown.
    """
    draft.header.minor = minor
    parts = draft.parts()
    found: Fields = {}

    def added(
        rows: list[Row], key: str, encode: Callable[[Any], Objects], values: Sequence[Any]
    ) -> Changes:
        # an unknown key needs to be ignored but once
        for row, old in enumerate(rows[:1] if minor else rows):
            for value in values if key not in old else ():
                made = [*rows[:row], {**old, key: value}, *rows[row + 1 :]]
                yield f"[{row}] = {value!r:.50}", encode(made)

    def with_root(rows: list[Row]) -> Objects:
        return replace(parts, root=packed(rows[0])).objects()

    def with_writer(rows: list[Row]) -> Objects:
        return with_root([root | {"writer": rows[0]}])

    def with_map(kind: str, rows: list[Row]) -> Objects:
        return with_section(parts, kind, rows[0])

    root = msgpack.unpackb(parts.root_raw())
    places: dict[str, tuple[list[Row], Callable[[Any], Objects]]] = {"root": ([root], with_root)}
    if minor:
        places["writer"] = ([root["writer"]], with_writer)
    for section in parts.sections:
        document = msgpack.unpackb(section.raw)
        if section.kind in LISTS:
            places[section.kind] = document, partial(with_section, parts, section.kind)
        elif isinstance(document, dict) and minor:
            places[section.kind] = [document], partial(with_map, section.kind)
    for kind, (rows, encode) in places.items():
        for key in ("~",) if minor else OPTIONAL[kind]:
            name, values = f"{kind}.{key} added", (*EXTREMES, *DEFAULTS)
            found[name] = partial(added, rows, key, encode, values)
            found[f"{name} {OUTSIDE}"] = partial(added, rows, key, encode, STRANGERS)
    return found
