"""Sections of a manifest: their rows in the root, and their bytes as stored (spec 5.1, 7.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from bcpformat.codec.digest import DOCUMENT_DIGEST_BYTES, document_digest
from bcpformat.codec.zstd import compress_frame, decompress_frame
from bcpformat.errors import ErrorCode, FormatError
from bcpformat.model.limits import GROUP_ROWS
from bcpformat.model.manifest import Value
from bcpformat.wire.container import MINOR
from bcpformat.wire.schema import fault, require_type

Buffer: TypeAlias = bytes | memoryview
Codec: TypeAlias = Literal["none", "zstd"]

KINDS = ("files", "tensors", "runs", "chunks", "state", "per_rank", "objects")
"""The kinds of sections, in their order."""

GROUPED_KINDS = frozenset({"runs", "chunks", "per_rank"})
"""Kinds that are cut into groups of 32768 rows."""

_ROW_TYPES = (str, int, int, str, int, int, bytes)

_LEVEL = 3
"""The first level that looks for long matches: columns are rows of 4 or 8 bytes that repeat, which
makes their frames smaller and thrice as fast to decode than those of level 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRow:
    """One section, as the root describes it.

    Attributes:
        kind: One of `KINDS`, or a kind of a newer minor version.
        first: First row, within all rows of the kind.
        rows: Rows.
        codec: ``"none"`` or ``"zstd"``.
        position_bytes: First byte in the manifest.
        stored_bytes: Length in the manifest.
        raw_bytes: Length decoded.
        digest: 16 bytes, XXH3-128 of the stored bytes.
    """

    kind: str
    first: int
    rows: int
    codec: str
    position_bytes: int
    stored_bytes: int
    raw_bytes: int
    digest: bytes

    @property
    def end_bytes(self) -> int:
        """Position after its last byte in the manifest."""
        return self.position_bytes + self.stored_bytes

    def __str__(self) -> str:
        return f"section {self.kind[:80]!r} of {self.rows} rows from {self.first}"


def pack_document(raw: bytes, *, codec: Codec) -> bytes:
    """Return a document as stored: one frame if the codec allows it and makes it shorter."""
    if codec == "zstd":
        frame = compress_frame(raw, level=_LEVEL)
        if len(frame) < len(raw):
            return frame
    return raw


def unpack_frame(stored: Buffer, *, raw_bytes: int, where: str) -> bytes:
    """Return the content of the frame that a root or section is.

    Raises:
        FormatError: It is not one frame of that content (``E_MANIFEST_ENCODING``).
    """
    try:
        return decompress_frame(stored, raw_bytes=raw_bytes)
    except FormatError as error:
        raise fault(ErrorCode.MANIFEST_ENCODING, where, error.message) from error


def check_digest(stored: Buffer, expected: bytes, *, where: str) -> None:
    """Raise ``E_MANIFEST_CHECKSUM`` if stored bytes have another digest."""
    found = document_digest(stored)
    if found != expected:
        text = f"digest of the stored bytes is {found.hex()}, expected {expected.hex()}"
        raise fault(ErrorCode.MANIFEST_CHECKSUM, where, text)


def decode_section(row: SectionRow, stored: Buffer, *, key: str) -> Buffer:
    """Return the raw bytes of a section, verified (BCP-MAN-010, BCP-MAN-011).

    Args:
        row: The section.
        stored: Its bytes in the manifest.
        key: The manifest's key, for messages.

    Returns:
        `stored` itself if the codec is ``none``.

    Raises:
        FormatError: ``E_TRUNCATED``, ``E_MANIFEST_CHECKSUM`` or ``E_MANIFEST_ENCODING``.
    """
    where = f"{key} {row}"
    if len(stored) != row.stored_bytes:
        text = f"expected {row.stored_bytes} bytes, found {len(stored)}"
        raise fault(ErrorCode.TRUNCATED, where, text)
    check_digest(stored, row.digest, where=where)
    if row.codec == "none":
        return stored
    return unpack_frame(stored, raw_bytes=row.raw_bytes, where=where)


def section_values(kind: str, first: int, rows: int, raw: bytes, stored: bytes) -> Value:
    """Return the row of the root for a section."""
    codec = "none" if len(stored) == len(raw) else "zstd"
    return [kind, first, rows, codec, len(stored), len(raw), document_digest(stored)]


def read_section_rows(
    values: Sequence[Value], *, position_bytes: int, minor: int
) -> tuple[SectionRow, ...]:
    """Return the sections that a root lists (BCP-MAN-005, 009, 010).

    Args:
        values: The rows as decoded.
        position_bytes: Position of the first section in the manifest.
        minor: Minor version of the file; unknown kinds of a newer one are kept.

    Raises:
        FormatError: ``E_TYPE``, ``E_RANGE``, ``E_CODEC``, ``E_MANIFEST_ENCODING`` or
            ``E_SECTION``.
    """
    rows: list[SectionRow] = []
    for number, value in enumerate(values):
        row = _read_row(value, position_bytes, f"root section {number}")
        position_bytes = row.end_bytes
        rows.append(row)
    _check_order(rows, minor)
    return tuple(rows)


def _read_row(value: Any, position_bytes: int, where: str) -> SectionRow:
    # Any: the types are checked first.
    require_type(value, list, where)
    if len(value) != len(_ROW_TYPES):
        text = f"a section row has {len(_ROW_TYPES)} values, found {len(value)}"
        raise fault(ErrorCode.RANGE, where, text)
    for item, expected in zip(value, _ROW_TYPES, strict=True):
        require_type(item, expected, where)
    kind, first, rows, codec, stored, raw, digest = value
    if len(digest) != DOCUMENT_DIGEST_BYTES:
        text = f"a digest has {DOCUMENT_DIGEST_BYTES} bytes, found {len(digest)}"
        raise fault(ErrorCode.RANGE, where, text)
    if codec not in ("none", "zstd"):
        raise fault(ErrorCode.CODEC, where, f"codec must be 'none' or 'zstd', found {codec[:80]!r}")
    if stored != raw if codec == "none" else stored >= raw:
        text = f"{stored} stored and {raw} raw bytes do not fit codec {codec!r}"
        raise fault(ErrorCode.MANIFEST_ENCODING, where, text)
    return SectionRow(
        kind=kind,
        first=first,
        rows=rows,
        codec=codec,
        position_bytes=position_bytes,
        stored_bytes=stored,
        raw_bytes=raw,
        digest=digest,
    )


def _check_order(rows: Sequence[SectionRow], minor: int) -> None:
    """Raise ``E_SECTION`` unless kinds, first rows and rows are as BCP-MAN-009 says."""
    by_kind: dict[str, list[SectionRow]] = {kind: [] for kind in KINDS}
    last = 0
    for row in rows:
        if row.kind not in by_kind:
            if minor > MINOR:
                continue
            raise fault(
                ErrorCode.SECTION, "root sections", f"unknown section kind {row.kind[:80]!r}"
            )
        if KINDS.index(row.kind) < last:
            text = f"{row} comes after {KINDS[last]!r}; the order is {', '.join(KINDS)}"
            raise fault(ErrorCode.SECTION, "root sections", text)
        last = KINDS.index(row.kind)
        by_kind[row.kind].append(row)
    for kind, sections in by_kind.items():
        full = GROUP_ROWS if kind in GROUPED_KINDS else sum(row.rows for row in sections)
        for number, row in enumerate(sections):
            is_last = number == len(sections) - 1
            rows_fit = 1 <= row.rows <= full if is_last else row.rows == full
            if row.first != number * full or not rows_fit:
                text = f"{row} is out of its place; it is number {number} of {len(sections)}"
                raise fault(ErrorCode.SECTION, "root sections", text)
    state = by_kind["state"]
    if len(state) != 1 or state[0].rows != 1:
        text = f"expected one section 'state' of one row, found {len(state)}"
        raise fault(ErrorCode.SECTION, "root sections", text)
