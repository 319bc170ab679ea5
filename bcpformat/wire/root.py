"""The root of a manifest: everything but the sections' contents (spec 5.1, 7.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bcpformat.codec.digest import DOCUMENT_DIGEST_BYTES, document_digest
from bcpformat.errors import ErrorCode
from bcpformat.model.checks import KNOWN_FEATURES
from bcpformat.model.limits import DOCUMENT_DEPTH, Limits
from bcpformat.model.manifest import Manifest, Value, Writer
from bcpformat.wire.container import (
    HEADER_BYTES,
    ID_BYTES,
    Header,
    Kind,
    decode_header,
    encode_header,
)
from bcpformat.wire.mp import decode, encode
from bcpformat.wire.schema import Field, fault, read_map, require_ascending
from bcpformat.wire.sections import (
    Buffer,
    Codec,
    SectionRow,
    check_digest,
    pack_document,
    read_section_rows,
    unpack_frame,
)

BLOCK_DIGEST = "xxh3-64"

_FIELDS = {
    "created": Field(value_type=int, needed=True),
    "digest": Field(value_type=str, needed=True),
    "ext": Field(value_type=dict),
    "id": Field(value_type=bytes, needed=True, lengths=range(ID_BYTES, ID_BYTES + 1)),
    "optional": Field(value_type=list, needed=True, item_type=str),
    "require": Field(value_type=list, needed=True, item_type=str),
    "sections": Field(value_type=list, needed=True),
    "step": Field(value_type=int),
    "user": Field(value_type=dict),
    "writer": Field(value_type=dict, needed=True),
}
_WRITER_FIELDS = {
    "name": Field(value_type=str, needed=True),
    "version": Field(value_type=str, needed=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """What the root of a manifest says.

    Attributes:
        minor: Minor version of the header.
        attempt_id: 16 bytes.
        created_us: Microseconds since 1970-01-01T00:00:00Z.
        writer: Who wrote it.
        digest: Name of the block digest.
        require: Features a reader must know, ascending.
        optional: Features a reader may ignore, ascending.
        step: Training step, None if not given.
        user: The user's own metadata.
        extra: Other keys as read: ``ext``, and those of a newer minor.
        sections: In the order of the file.
        nbytes: Length of the whole manifest, in bytes.
    """

    minor: int
    attempt_id: bytes
    created_us: int
    writer: Writer
    digest: str
    require: tuple[str, ...]
    optional: tuple[str, ...]
    step: int | None
    user: Mapping[str, Value]
    extra: Mapping[str, Value]
    sections: tuple[SectionRow, ...]
    nbytes: int

    def of_kind(self, kind: str) -> tuple[SectionRow, ...]:
        """Return the sections of a kind, ascending by first row; none if it has no rows."""
        return tuple(row for row in self.sections if row.kind == kind)

    def rows(self, kind: str) -> int:
        """Return the number of rows of a kind."""
        return sum(row.rows for row in self.of_kind(kind))


def root_extent(header: Header) -> int:
    """Return how many bytes of a manifest its header, root and the root's digest take."""
    return HEADER_BYTES + header.root_stored_bytes + DOCUMENT_DIGEST_BYTES


def encode_root(manifest: Manifest, sections: list[Value], *, codec: Codec) -> bytes:
    """Return the first bytes of a manifest: header, root, digest of the root.

    Args:
        manifest: The manifest.
        sections: The rows of its sections.
        codec: Whether the root may be compressed.

    Raises:
        FormatError: The root breaks a rule.
        InvalidArgumentError: A value has no form in a document (``E_NO_FORM``).
    """
    writer: Value = {"name": manifest.writer.name, "version": manifest.writer.version}
    document: dict[str, Value] = {
        **manifest.extra,
        "created": manifest.created_us,
        "digest": manifest.digest,
        "id": manifest.attempt_id,
        "optional": list(manifest.optional),
        "require": list(manifest.require),
        "sections": sections,
        "writer": writer,
    }
    if manifest.step is not None:
        document["step"] = manifest.step
    if manifest.user:
        document["user"] = dict(manifest.user)
    raw = encode(document, max_depth=DOCUMENT_DEPTH, where="root")
    _read(document, minor=manifest.minor, position_bytes=0)
    stored = pack_document(raw, codec=codec)
    header = Header(
        kind=Kind.MANIFEST,
        attempt_id=manifest.attempt_id,
        minor=manifest.minor,
        root_stored_bytes=len(stored),
        root_raw_bytes=len(raw),
    )
    return encode_header(header) + stored + document_digest(stored)


def decode_root(data: Buffer, *, key: str, limits: Limits) -> Root:
    """Return the root of a manifest (spec 13, steps 2 and 3, but for the file's length).

    Args:
        data: The manifest, or its first `root_extent` bytes at least.
        key: The manifest's key, for messages.
        limits: Bounds on what the root announces.

    Raises:
        FormatError: The header or the root breaks a rule; ``E_TRUNCATED`` if `data` ends before
            the root does.
        LimitError: The root or what it announces is above a limit.
    """
    header = decode_header(data, key=key, expect=Kind.MANIFEST)
    where = f"{key} root"
    if header.root_raw_bytes > limits.root_bytes:
        text = f"{header.root_raw_bytes} bytes, the limit is {limits.root_bytes}"
        raise fault(ErrorCode.LIMIT, where, text)
    extent = root_extent(header)
    if len(data) < extent:
        text = f"header, root and digest have {extent} bytes, found {len(data)}"
        raise fault(ErrorCode.TRUNCATED, where, text)
    view = memoryview(data)
    stored = view[HEADER_BYTES : extent - DOCUMENT_DIGEST_BYTES]
    check_digest(stored, bytes(view[extent - DOCUMENT_DIGEST_BYTES : extent]), where=where)
    if header.root_stored_bytes == header.root_raw_bytes:
        raw = bytes(stored)
    else:
        raw = unpack_frame(stored, raw_bytes=header.root_raw_bytes, where=where)
    document = decode(raw, max_depth=DOCUMENT_DEPTH, where=where)
    root = _read(document, minor=header.minor, position_bytes=extent)
    if root.attempt_id != header.attempt_id:  # BCP-MAN-004
        text = f"id is {root.attempt_id.hex()}, that of the header {header.attempt_id.hex()}"
        raise fault(ErrorCode.ID, where, text)
    _check_limits(root, limits, where)
    return root


def check_manifest_length(root: Root, nbytes: int, *, key: str) -> None:
    """Raise unless a manifest has the length that its root says (BCP-MAN-003).

    Raises:
        FormatError: ``E_TRUNCATED`` or ``E_LENGTH``.
    """
    if nbytes != root.nbytes:
        code = ErrorCode.TRUNCATED if nbytes < root.nbytes else ErrorCode.LENGTH
        raise fault(code, key, f"expected {root.nbytes} bytes, found {nbytes}")


def _read(document: Value, *, minor: int, position_bytes: int) -> Root:
    """Return what a document says; every rule of the root but those about other bytes."""
    rows = read_map(document, _FIELDS, where="root", minor=minor)
    needed = {key: values[0] for key, values in rows.needed.items()}
    given = {key: values[0] for key, values in rows.given.items() if values}
    writer = read_map(needed["writer"], _WRITER_FIELDS, where="root key 'writer'", minor=minor)
    for key in ("require", "optional"):
        require_ascending(needed[key], f"root key {key!r}")
    both = sorted(set(needed["require"]).intersection(needed["optional"]))
    if both:  # BCP-MAN-006
        text = f"feature {both[0][:80]!r} is in 'require' and in 'optional'"
        raise fault(ErrorCode.ORDER, "root", text)
    for feature in needed["require"]:
        if feature not in KNOWN_FEATURES:  # BCP-MAN-007
            text = f"feature {feature[:80]!r} is required, this reader has {sorted(KNOWN_FEATURES)}"
            raise fault(ErrorCode.FEATURE, "root key 'require'", text)
    if needed["digest"] != BLOCK_DIGEST:
        text = f"digest must be {BLOCK_DIGEST!r}, found {needed['digest'][:80]!r}"
        raise fault(ErrorCode.DIGEST, "root key 'digest'", text)
    sections = read_section_rows(needed["sections"], position_bytes=position_bytes, minor=minor)
    extra = {"ext": given["ext"]} if "ext" in given else {}
    return Root(
        minor=minor,
        attempt_id=needed["id"],
        created_us=needed["created"],
        writer=Writer(name=writer.needed["name"][0], version=writer.needed["version"][0]),
        digest=needed["digest"],
        require=tuple(needed["require"]),
        optional=tuple(needed["optional"]),
        step=given.get("step"),
        user=given.get("user", {}),
        extra={**extra, **rows.unknown.get(0, {})},
        sections=sections,
        nbytes=sections[-1].end_bytes,
    )


def check_user(user: Mapping[str, Value]) -> None:
    """Raise what `encode_manifest` would raise for the user's metadata, before data is written.

    Raises:
        InvalidArgumentError: A value has no form in a document (``E_NO_FORM``).
    """
    encode(dict(user), max_depth=DOCUMENT_DEPTH - 1, where="user")


def _raw_bytes(root: Root, kinds: set[str]) -> int:
    return sum(r.raw_bytes for r in root.sections if r.kind in kinds)


def _check_limits(root: Root, limits: Limits, where: str) -> None:
    """Raise ``E_LIMIT`` before anything is allocated for the sections (BCP-MAN-011)."""
    for what, found, limit in (
        ("raw bytes of sections", sum(r.raw_bytes for r in root.sections), limits.section_bytes),
        ("raw bytes of the state", _raw_bytes(root, {"state"}), limits.state_bytes),
        (
            "raw bytes of files, tensors and objects",
            _raw_bytes(root, {"files", "tensors", "objects"}),
            limits.row_bytes,
        ),
        ("data files", root.rows("files"), limits.files),
        ("runs", root.rows("runs"), limits.chunks),
        ("chunks", root.rows("chunks"), limits.chunks),
        ("per-rank values", root.rows("per_rank"), limits.chunks),
    ):
        if found > limit:
            raise fault(ErrorCode.LIMIT, where, f"{found} {what}, the limit is {limit}")
