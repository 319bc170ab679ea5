"""The sections that are arrays of maps: files, tensors, objects (spec 7.2, 7.3, 7.5).

A writer's rows pass the same rules as those of a file, before they are encoded (BCP-WRT-006).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from math import prod
from typing import TypeAlias

import numpy as np

from bcpformat.errors import ErrorCode, UnsupportedError
from bcpformat.model.dtypes import DType, dtype_from_name
from bcpformat.model.limits import DOCUMENT_DEPTH, MAX_INTEGER, MAX_NAME_BYTES, MAX_NDIM
from bcpformat.model.manifest import DEFAULT_MEDIA, FileRow, ObjectRow, TensorTable, Value, ints
from bcpformat.wire.container import ID_BYTES
from bcpformat.wire.mp import decode, encode
from bcpformat.wire.schema import Field, Rows, fault, read_rows, require_ascending, require_type
from bcpformat.wire.sections import Buffer

_Row: TypeAlias = dict[str, Value]

_INTEGER = Field(value_type=int, needed=True)
_TEXT = Field(value_type=str, needed=True)
_MAP = Field(value_type=dict, default={})
_SIXTEEN = range(16, 17)

_FILE_FIELDS = {
    "attempt": Field(value_type=bytes, lengths=range(ID_BYTES, ID_BYTES + 1)),
    "blocks": _INTEGER,
    "digest": Field(value_type=bytes, needed=True, lengths=_SIXTEEN),
    "ext": _MAP,
    "kind": Field(value_type=str, default="data"),
    "lengths": Field(value_type=bool, default=False),
    "name": _TEXT,
    "table": _INTEGER,
    "unused": Field(value_type=list, default=[], item_type=int),
}
_TENSOR_FIELDS = {
    "aliases": Field(value_type=list, default=[], item_type=str),
    "chunks": Field(value_type=int),
    "dtype": _TEXT,
    "ext": _MAP,
    "name": _TEXT,
    "segments": Field(value_type=list, default=[], item_type=list),
    "shape": Field(value_type=list, needed=True, lengths=range(MAX_NDIM + 1), item_type=int),
    "user": _MAP,
}
_TENSOR_EXTRA = ("ext", "segments", "user")
_OBJECT_FIELDS = {
    "media": Field(value_type=str, default=DEFAULT_MEDIA),
    "name": _TEXT,
    "nbytes": Field(value_type=int, needed=True, least=1),
    "offset": _INTEGER,
    "run": _INTEGER,
}

_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,95}\.bcd")
_SHOWN = 120
"""Characters of a text from a file that a message shows; more than any data type's name has."""

_CONTROLS = bytes([*range(0x20), 0x7F])


def encode_files(files: Sequence[FileRow], *, attempt_id: bytes, minor: int) -> bytes:
    """Return the section of some data files.

    Args:
        files: The rows.
        attempt_id: The attempt id of the root.
        minor: Minor version of the file.

    Raises:
        FormatError: The rows break a rule of the section.
        InvalidArgumentError: A value has no form in a document.
    """
    rows: list[Value] = []
    for file in files:
        row: _Row = {
            **file.extra,
            "attempt": file.attempt_id,
            "blocks": file.blocks,
            "digest": file.digest,
            "kind": file.kind,
            "lengths": file.lengths,
            "name": file.name,
            "table": file.table_bytes,
            "unused": [*chain(*file.unused)],
        }
        defaults = {"attempt": attempt_id, "kind": "data", "lengths": False, "unused": []}
        rows.append({k: row[k] for k in sorted(row) if k not in defaults or row[k] != defaults[k]})
    document = encode(rows, max_depth=DOCUMENT_DEPTH, where="files")
    _files(rows, attempt_id=attempt_id, minor=minor)
    return document


def decode_files(raw: Buffer, *, attempt_id: bytes, minor: int) -> tuple[FileRow, ...]:
    """Return the data files of a section (spec 7.2).

    Args:
        raw: The section, decoded.
        attempt_id: The attempt id of the root.
        minor: Minor version of the file.

    Raises:
        FormatError: The section breaks a rule.
    """
    value = decode(raw, max_depth=DOCUMENT_DEPTH, where="files")
    return _files(value, attempt_id=attempt_id, minor=minor)


def _files(value: Value, *, attempt_id: bytes, minor: int) -> tuple[FileRow, ...]:
    rows = read_rows(value, _FILE_FIELDS, where="files", minor=minor)
    needed, given = rows.needed, rows.given
    for number, attempt in given["attempt"].items():
        if attempt == attempt_id:
            raise _default_fault("files", number, "attempt", attempt.hex())
    for number, unused in given["unused"].items():
        if len(unused) % 2:
            text = f"positions and sizes alternate, found {len(unused)} values"
            raise fault(ErrorCode.RANGE, f"files row {number} key 'unused'", text)
        if 0 in unused[1::2]:  # BCP-MAN-021
            text = "a range that is unused has at least 1 byte"
            raise fault(ErrorCode.RANGE, f"files row {number} key 'unused'", text)
    for number, name in enumerate(needed["name"]):
        if not _FILE_NAME.fullmatch(name):  # BCP-FIL-002
            text = f"file name {name[:_SHOWN]!r} must match {_FILE_NAME.pattern}"
            raise fault(ErrorCode.FILE_NAME, f"files row {number}", text)
    require_ascending(needed["name"], "files")
    for number, unused in given["unused"].items():
        place = f"files row {number} key 'unused'"
        if not _ascends(unused[::2]):
            raise fault(ErrorCode.ORDER, place, "positions must ascend")
        if number not in given["attempt"]:  # BCP-MAN-016
            text = "ranges are unused, but the file is of the attempt that wrote the checkpoint"
            raise fault(ErrorCode.EXTENT_HOLE, place, text)
    return tuple(
        FileRow(
            name=name,
            attempt_id=given["attempt"].get(number, attempt_id),
            table_bytes=needed["table"][number],
            blocks=needed["blocks"][number],
            digest=needed["digest"][number],
            lengths=given["lengths"].get(number, False),
            kind=given["kind"].get(number, "data"),
            unused=_pairs(given["unused"].get(number, ())),
            extra=_extra(rows, number, ("ext",)),
        )
        for number, name in enumerate(needed["name"])
    )


def encode_tensors(tensors: TensorTable, *, minor: int) -> bytes:
    """Return the section of some tensors.

    Args:
        tensors: The rows.
        minor: Minor version of the file.

    Raises:
        FormatError: The rows break a rule of the section.
        InvalidArgumentError: A value has no form in a document.
    """
    rows: list[Value] = []
    columns = (tensors.names, tensors.dtypes, tensors.shapes, tensors.chunks.tolist())
    for number, (name, dtype, shape, chunks) in enumerate(zip(*columns, strict=True)):
        # Keys in their order, so that the common row needs no sorting.
        row: _Row = {}
        if number in tensors.aliases:
            row["aliases"] = list(tensors.aliases[number])
        if chunks != _default_chunks(shape):
            row["chunks"] = chunks
        row["dtype"] = dtype
        row["name"] = name
        row["shape"] = list(shape)
        if number in tensors.extra:
            row = dict(sorted({**tensors.extra[number], **row}.items()))
        rows.append(row)
    document = encode(rows, max_depth=DOCUMENT_DEPTH, where="tensors")
    _tensors(rows, minor=minor)
    return document


def decode_tensors(raw: Buffer, *, minor: int) -> TensorTable:
    """Return the tensors of a section (spec 7.3).

    Args:
        raw: The section, decoded.
        minor: Minor version of the file.

    Raises:
        FormatError: The section breaks a rule.
    """
    return _tensors(decode(raw, max_depth=DOCUMENT_DEPTH, where="tensors"), minor=minor)


def _tensors(value: Value, *, minor: int) -> TensorTable:
    rows = read_rows(value, _TENSOR_FIELDS, where="tensors", minor=minor)
    needed, given = rows.needed, rows.given
    names, dtypes = tuple(needed["name"]), tuple(needed["dtype"])
    shapes = tuple(map(tuple, needed["shape"]))
    chunks = np.ones(len(shapes), np.int64)
    if 0 in chain.from_iterable(shapes):
        chunks[:] = list(map(_default_chunks, shapes))
    if given["chunks"]:
        numbers, counts = ints(list(given["chunks"])), ints(list(given["chunks"].values()))
        same = chunks[numbers] == counts
        if same.any():
            index = int(np.argmax(same))
            raise _default_fault("tensors", int(numbers[index]), "chunks", counts[index])
        chunks[numbers] = counts
    for number, segments in given["segments"].items():
        _check_segments(segments, f"tensors row {number} key 'segments'")
    aliases = given["aliases"]
    # The order is that of spec 13, step 5: names, data types, overflow, order.
    _check_names(names, "tensors")
    _check_names(list(chain(*aliases.values())), "tensors key 'aliases'")
    _check_elements(names, dtypes, shapes)
    require_ascending(names, "tensors")
    with_extra = set(rows.unknown).union(*(given[key] for key in _TENSOR_EXTRA))
    return TensorTable(
        names=names,
        dtypes=dtypes,
        shapes=shapes,
        chunks=chunks,
        aliases={number: tuple(others) for number, others in aliases.items()},
        extra={number: _extra(rows, number, _TENSOR_EXTRA) for number in sorted(with_extra)},
    )


def encode_objects(objects: Sequence[ObjectRow], *, minor: int) -> bytes:
    """Return the section of some objects.

    Args:
        objects: The rows.
        minor: Minor version of the file.

    Raises:
        FormatError: The rows break a rule of the section.
        InvalidArgumentError: A value has no form in a document.
    """
    rows: list[Value] = []
    for item in objects:
        row: _Row = {"media": item.media, "name": item.name, "nbytes": item.nbytes}
        row |= {"offset": item.offset_bytes, "run": item.run}
        if item.media == _OBJECT_FIELDS["media"].default:
            del row["media"]
        rows.append(row)
    document = encode(rows, max_depth=DOCUMENT_DEPTH, where="objects")
    _objects(rows, minor=minor)
    return document


def decode_objects(raw: Buffer, *, minor: int) -> tuple[ObjectRow, ...]:
    """Return the objects of a section (spec 7.5).

    Args:
        raw: The section, decoded.
        minor: Minor version of the file.

    Raises:
        FormatError: The section breaks a rule.
    """
    return _objects(decode(raw, max_depth=DOCUMENT_DEPTH, where="objects"), minor=minor)


def _objects(value: Value, *, minor: int) -> tuple[ObjectRow, ...]:
    rows = read_rows(value, _OBJECT_FIELDS, where="objects", minor=minor)
    needed, media = rows.needed, rows.given["media"]
    _check_names(needed["name"], "objects")
    require_ascending(needed["name"], "objects")
    return tuple(
        ObjectRow(
            name=name,
            run=needed["run"][number],
            offset_bytes=needed["offset"][number],
            nbytes=needed["nbytes"][number],
            media=media.get(number, DEFAULT_MEDIA),
        )
        for number, name in enumerate(needed["name"])
    )


def _default_chunks(shape: Sequence[int]) -> int:
    return 0 if 0 in shape else 1


def _default_fault(where: str, number: int, key: str, value: object) -> Exception:
    text = f"{value} is the default, so the key must be absent"
    return fault(ErrorCode.MP_NONCANONICAL, f"{where} row {number} key {key!r}", text)


def _extra(rows: Rows, number: int, keys: Iterable[str]) -> Mapping[str, Value]:
    """Return what a row keeps as read: those of `keys` that it has, and unknown ones."""
    known = {key: rows.given[key][number] for key in keys if number in rows.given[key]}
    return {**known, **rows.unknown.get(number, {})}


def _pairs(values: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(zip(values[::2], values[1::2], strict=True))


def _ascends(values: Sequence[int]) -> bool:
    return all(before < after for before, after in pairwise(values))


def _check_segments(segments: Sequence[list[Value]], where: str) -> None:
    for segment in segments:
        if len(segment) != 4:
            text = f"a segment has 4 values, found {len(segment)}"
            raise fault(ErrorCode.RANGE, where, text)
        for value, expected in zip(segment, (str, int, int, int), strict=True):
            require_type(value, expected, where)


def _check_names(names: Sequence[str], where: str) -> None:
    """Raise ``E_NAME`` for the first name that breaks BCP-MAN-020."""
    encoded = "".join(names).encode()
    longest = max(map(len, names), default=0)
    if len(encoded.translate(None, _CONTROLS)) == len(encoded) and 4 * longest <= MAX_NAME_BYTES:
        return
    for name in names:
        nbytes = len(name.encode())
        if nbytes > MAX_NAME_BYTES:
            text = (
                f"a name has at most {MAX_NAME_BYTES} bytes, found {nbytes}: {name[:_SHOWN]!r}..."
            )
            raise fault(ErrorCode.NAME, where, text)
        if len(name.encode().translate(None, _CONTROLS)) < nbytes:
            text = f"name {name[:_SHOWN]!r} has a control character; names escape them"
            raise fault(ErrorCode.NAME, where, text)


def _check_elements(
    names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> None:
    """Raise for the first unknown data type (BCP-MAN-019), then for overflow (BCP-CNV-003)."""
    known: dict[str, DType] = {}
    for name in dict.fromkeys(dtypes):
        try:
            known[name] = dtype_from_name(name[:_SHOWN])
        except UnsupportedError as error:
            where = f"tensor {names[dtypes.index(name)][:_SHOWN]!r}"
            raise fault(error.code, where, error.message) from error
    for dtype, shape in dict.fromkeys(zip(dtypes, shapes, strict=True)):
        elements = prod(extent or 1 for extent in shape)
        if elements > MAX_INTEGER or elements * known[dtype].bits > 8 * MAX_INTEGER:
            row = list(zip(dtypes, shapes, strict=True)).index((dtype, shape))
            text = f"shape {list(shape)} of {dtype} has more than 2^53-1 elements or bytes"
            raise fault(ErrorCode.OVERFLOW, f"tensor {names[row][:_SHOWN]!r}", text)
