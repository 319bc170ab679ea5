"""The header that every file of a checkpoint begins with (spec 5)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from bcpformat.codec.digest import block_digest
from bcpformat.errors import BcpError, ErrorCode, InvalidArgumentError, Problem, error_for
from bcpformat.model.limits import ALIGNMENT_BYTES

MAGIC = b"\x89BCP\r\n\x1a\n"
MAJOR = 1
MINOR = 0
"""The minor version that this package writes, and the newest that it knows."""

HEADER_BYTES = 64
ID_BYTES = 16

_FIELDS = struct.Struct("<8sHHHH16sQQQ")
_CHECKSUM = struct.Struct("<Q")


class Kind(IntEnum):
    """What a file is."""

    MANIFEST = 1
    DATA = 2
    PART = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The fields of a header that differ between files.

    Attributes:
        kind: What the file is.
        attempt_id: 16 bytes.
        minor: Minor version of the format.
        root_stored_bytes: Length of the root as stored, in bytes; 0 but in a manifest.
        root_raw_bytes: Length of the root decoded, in bytes; 0 but in a manifest.

    Raises:
        InvalidArgumentError: A field has no place in the header, or the lengths break
            BCP-HDR-004 or BCP-HDR-005.

    Example:
        >>> len(encode_header(Header(kind=Kind.DATA, attempt_id=bytes(16))))
        64
    """

    kind: Kind
    attempt_id: bytes
    minor: int = MINOR
    root_stored_bytes: int = 0
    root_raw_bytes: int = 0

    def __post_init__(self) -> None:
        if len(self.attempt_id) != ID_BYTES:
            text = f"attempt_id must have {ID_BYTES} bytes, got {len(self.attempt_id)}"
            raise InvalidArgumentError(text)
        if not 0 <= self.minor < 2**16:
            raise InvalidArgumentError(f"minor must be in 0 to 65535, got {self.minor}")
        fault = _length_fault(self.kind, self.root_stored_bytes, self.root_raw_bytes)
        if fault:
            raise InvalidArgumentError(fault)


def encode_header(header: Header) -> bytes:
    """Return the 64 bytes of a header."""
    fields = _FIELDS.pack(
        MAGIC,
        MAJOR,
        header.minor,
        header.kind,
        0,
        header.attempt_id,
        header.root_stored_bytes,
        header.root_raw_bytes,
        0,
    )
    return fields + _CHECKSUM.pack(block_digest(fields))


def decode_header(data: bytes | memoryview, *, key: str, expect: Kind) -> Header:
    """Return the header of a file (BCP-HDR-001).

    Args:
        data: The file, or the first bytes of it.
        key: The file's key, for messages.
        expect: What the file must be.

    Raises:
        FormatError: The first rule that the header breaks, in the order of the spec:
            ``E_TRUNCATED``, ``E_MAGIC``, ``E_HEADER_CHECKSUM``, ``E_VERSION``, ``E_KIND``,
            ``E_RESERVED``, ``E_LENGTH``.
    """

    def error(code: ErrorCode, at: int, text: str) -> BcpError:
        return error_for(Problem(code=code, where=f"{key} at byte {at}", message=text))

    head = bytes(data[:HEADER_BYTES])
    if len(head) < HEADER_BYTES:
        text = f"the header has {HEADER_BYTES} bytes, found {len(head)}"
        raise error(ErrorCode.TRUNCATED, 0, text)
    magic, major, minor, kind, flags, attempt_id, stored, raw, reserved = _FIELDS.unpack_from(head)
    if magic != MAGIC:
        raise error(ErrorCode.MAGIC, 0, f"expected {MAGIC.hex(' ')}, found {magic.hex(' ')}")
    (found,) = _CHECKSUM.unpack_from(head, _FIELDS.size)
    expected = block_digest(head[: _FIELDS.size])
    if found != expected:
        text = f"header checksum is {found:016x}, its fields have {expected:016x}"
        raise error(ErrorCode.HEADER_CHECKSUM, _FIELDS.size, text)
    if major != MAJOR:
        text = f"written as version {major}.{minor}, this reader knows {MAJOR}.{MINOR}"
        raise error(ErrorCode.VERSION, 8, text)
    if kind != expect:
        text = f"expected kind {expect.value} ({expect.name.lower()}), found {kind}"
        raise error(ErrorCode.KIND, 12, text)
    if flags or reserved:
        text = f"flags and reserved bytes must be 0, found {flags} and {reserved}"
        raise error(ErrorCode.RESERVED, 14, text)
    fault = _length_fault(expect, stored, raw)
    if fault:
        raise error(ErrorCode.LENGTH, 32, fault)
    return Header(
        kind=expect,
        attempt_id=attempt_id,
        minor=minor,
        root_stored_bytes=stored,
        root_raw_bytes=raw,
    )


def data_file_head(attempt_id: bytes) -> bytes:
    """Return the first 4096 bytes of a data file: its header and zeros (BCP-HDR-004)."""
    header = encode_header(Header(kind=Kind.DATA, attempt_id=attempt_id))
    return header.ljust(ALIGNMENT_BYTES, b"\0")


def _length_fault(kind: Kind, stored: int, raw: int) -> str | None:
    """Return what is wrong with the lengths of a root (BCP-HDR-004, BCP-HDR-005), if anything."""
    if kind is Kind.MANIFEST:
        good = 1 <= stored <= raw < 2**64
        rule = "at least 1, stored not above raw"
    else:
        good = stored == raw == 0
        rule = "0, as this is no manifest"
    return None if good else f"root lengths must be {rule}, found {stored} stored and {raw} raw"
