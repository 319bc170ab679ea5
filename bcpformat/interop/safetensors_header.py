"""The header of a safetensors file: a strict parser that trusts nothing, and its reverse.

A file is a u64 (little-endian) length, that many bytes of JSON, then the data.  The JSON maps names
to ``dtype``, ``shape`` and ``data_offsets``, and ``__metadata__`` to texts.  Data must be covered
without overlap and without a hole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Never

from bcpformat.errors import (
    ErrorCode,
    FormatError,
    InvalidArgumentError,
    LimitError,
    UnsupportedError,
)
from bcpformat.model.dtypes import DType
from bcpformat.model.limits import MAX_INTEGER, MAX_NAME_BYTES, MAX_NDIM

MAX_HEADER_BYTES = 100_000_000
METADATA_KEY = "__metadata__"

DTYPES = {
    "BOOL": "bool",
    "F4": "float4_e2m1fn",
    "I8": "int8",
    "U8": "uint8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
"""safetensors name to registry name.  ``F6_*`` are not here: nothing says how their bits lie."""

NAMES = {registry: name for name, registry in DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor of a file.

    Attributes:
        name: Its name.
        dtype: Registry name of its data type.
        shape: Shape in elements.
        start_bytes: First byte, from the start of the data.
        nbytes: Bytes of its elements.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start_bytes: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a header says.

    Attributes:
        entries: All tensors, by position in the data.
        metadata: The file's own texts.
        data_bytes: Size of the data.
    """

    entries: Sequence[Entry]
    metadata: Mapping[str, str]
    data_bytes: int


def parse_length(data: bytes, *, file_bytes: int, where: str) -> int:
    """Return the length of the JSON from the first 8 bytes of a file.

    Raises:
        FormatError: The file is too short (`E_TRUNCATED`).
        LimitError: The header is longer than 100 MB.
    """
    if len(data) < 8:
        _fail(where, f"expected a length of 8 bytes, found {len(data)}", ErrorCode.TRUNCATED)
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER_BYTES:
        text = f"{where}: header of {length} bytes, the limit is {MAX_HEADER_BYTES}"
        raise LimitError(text, code=ErrorCode.LIMIT)
    if 8 + length > file_bytes:
        text = f"header of {length} bytes in a file of {file_bytes}"
        _fail(where, text, ErrorCode.TRUNCATED)
    return length


def parse_header(data: bytes, *, data_bytes: int, where: str) -> Header:
    """Return what the JSON of a header says, checked in full.

    Args:
        data: The JSON.
        data_bytes: Bytes that follow it in the file.
        where: The file, for messages.

    Raises:
        FormatError: It breaks a rule; the code says which.
        UnsupportedError: A data type has no form in a checkpoint (`E_DTYPE`).
    """
    document = _parse_json(data, where)
    metadata = document.pop(METADATA_KEY, {})
    if not isinstance(metadata, dict):
        _fail(where, f"{METADATA_KEY} is not a map", ErrorCode.TYPE)
    for key, value in metadata.items():
        if not isinstance(value, str):
            _fail(where, f"{METADATA_KEY}[{key!r:.80}] is not a text", ErrorCode.TYPE)
        _check_text(key, where)
        _check_text(value, where)
    entries = [_entry(name, row, where) for name, row in document.items()]
    entries.sort(key=lambda e: (e.start_bytes, e.nbytes))
    position = 0
    for entry in entries:
        if entry.start_bytes != position:
            hole = entry.start_bytes > position
            text = f"{entry.name!r:.200} begins at {entry.start_bytes}, expected {position}"
            _fail(where, text, ErrorCode.EXTENT_HOLE if hole else ErrorCode.EXTENT_OVERLAP)
        position += entry.nbytes
    if position != data_bytes:
        code = ErrorCode.TRUNCATED if position > data_bytes else ErrorCode.EXTENT_HOLE
        _fail(where, f"tensors take {position} bytes of data, found {data_bytes}", code)
    return Header(entries=entries, metadata=metadata, data_bytes=data_bytes)


def build_header(entries: Sequence[Entry], metadata: Mapping[str, str]) -> bytes:
    """Return length and JSON, padded so that the data begins at a multiple of 8."""
    document: dict[str, object] = {}
    if metadata:
        document[METADATA_KEY] = dict(metadata)
    for entry in entries:
        document[entry.name] = {
            "dtype": NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [entry.start_bytes, entry.start_bytes + entry.nbytes],
        }
    data = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    data += b" " * (-len(data) % 8)
    if len(data) > MAX_HEADER_BYTES:
        text = f"a header of {len(data)} bytes, safetensors allows {MAX_HEADER_BYTES}; "
        raise InvalidArgumentError(text + "write several files with a smaller shard size")
    return len(data).to_bytes(8, "little") + data


def check_exportable(name: str, dtype: str) -> None:
    """Refuse a tensor that a safetensors file cannot hold.

    Raises:
        InvalidArgumentError: Its data type or its name has no form there (`E_NO_FORM`).
    """
    if dtype not in NAMES:
        raise InvalidArgumentError(
            f"{name!r}: safetensors has no type for {dtype}; leave it out with --names, "
            "or extract it as .npy",
            code=ErrorCode.NO_FORM,
        )
    if name == METADATA_KEY:
        raise InvalidArgumentError(
            f"a tensor named {name!r} has no form in safetensors", code=ErrorCode.NO_FORM
        )


def _parse_json(data: bytes, where: str) -> dict[str, object]:
    if not data.startswith(b"{"):
        _fail(
            where, f"expected a header that begins with '{{', found {data[:8]!r}", ErrorCode.MAGIC
        )
    try:
        # A text that begins with a brace is a map or an error.
        document: dict[str, object] = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        text = f"{where}: the header is not JSON as safetensors has it: {reason:.300}"
        raise FormatError(text, code=ErrorCode.TYPE) from error
    return document


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one map")
    return found


def _no_constant(text: str) -> Never:
    raise ValueError(f"{text} is not JSON")


def _entry(name: str, row: object, where: str) -> Entry:
    _check_text(name, where)
    place = f"{where}: tensor {name!r:.200}"
    if len(name) > MAX_NAME_BYTES:
        _fail(place, f"a name of {len(name)} characters", ErrorCode.NAME)
    if not isinstance(row, dict):
        _fail(place, "its row is not a map", ErrorCode.TYPE)
    for key in ("dtype", "shape", "data_offsets"):
        if key not in row:
            _fail(place, f"{key!r} is missing", ErrorCode.KEY_MISSING)
    if len(row) != 3:
        unknown = sorted(set(row) - {"dtype", "shape", "data_offsets"})
        _fail(place, f"unknown keys {unknown!r:.200}", ErrorCode.KEY_UNKNOWN)
    shape = _integers(row["shape"], place, "shape")
    offsets = _integers(row["data_offsets"], place, "data_offsets")
    if len(shape) > MAX_NDIM:
        _fail(place, f"{len(shape)} axes, the limit is {MAX_NDIM}", ErrorCode.RANGE)
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        _fail(place, f"data_offsets {offsets} are not a begin and an end", ErrorCode.RANGE)
    if not isinstance(row["dtype"], str) or row["dtype"] not in DTYPES:
        text = f"{place}: dtype {row['dtype']!r:.80} is not supported"
        raise UnsupportedError(text, code=ErrorCode.DTYPE)
    dtype = DType.named(DTYPES[row["dtype"]])
    elements = prod(shape)
    if prod(max(extent, 1) for extent in shape) > MAX_INTEGER:
        _fail(place, f"shape {shape} has more than 2^53-1 elements", ErrorCode.OVERFLOW)
    if elements * dtype.bits % 8:
        _fail(place, f"{elements} elements of {dtype.bits} bits do not fill bytes", ErrorCode.RANGE)
    nbytes = elements * dtype.bits // 8
    if offsets[1] - offsets[0] != nbytes:
        text = f"{dtype.name} of shape {shape} takes {nbytes} bytes, data_offsets span "
        _fail(place, text + str(offsets[1] - offsets[0]), ErrorCode.RAW_LENGTH)
    return Entry(name=name, dtype=dtype.name, shape=shape, start_bytes=offsets[0], nbytes=nbytes)


def _integers(value: object, where: str, key: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        _fail(where, f"{key} is not a list", ErrorCode.TYPE)
    for number in value:
        if type(number) is not int:
            _fail(where, f"{key} holds {number!r:.80}, which is no integer", ErrorCode.TYPE)
        if not 0 <= number <= MAX_INTEGER:
            text = f"{key} holds {number!r:.30}, not an integer from 0 to 2^53-1"
            _fail(where, text, ErrorCode.OVERFLOW)
    return tuple(value)


def _check_text(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        message = f"{where}: {text!r:.80} holds a surrogate, which UTF-8 does not have"
        raise FormatError(message, code=ErrorCode.NAME) from error


def _fail(where: str, message: str, code: ErrorCode) -> Never:
    raise FormatError(f"{where}: {message}", code=code)
