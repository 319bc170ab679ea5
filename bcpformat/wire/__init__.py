"""Bytes to model and back: container, msgpack profile, sections (spec 5, 6, 7)."""

from bcpformat.wire.container import (
    HEADER_BYTES,
    Header,
    Kind,
    data_file_head,
    decode_header,
    encode_header,
)
from bcpformat.wire.manifest import (
    Sections,
    decode_document,
    decode_manifest,
    encode_document,
    encode_manifest,
    manifest_of,
)
from bcpformat.wire.root import (
    Root,
    check_manifest_length,
    check_user,
    decode_root,
    root_extent,
)
from bcpformat.wire.sections import SectionRow, decode_section

__all__ = [
    "HEADER_BYTES",
    "Header",
    "Kind",
    "Root",
    "SectionRow",
    "Sections",
    "check_manifest_length",
    "check_user",
    "data_file_head",
    "decode_document",
    "decode_header",
    "decode_manifest",
    "decode_root",
    "decode_section",
    "encode_document",
    "encode_header",
    "encode_manifest",
    "manifest_of",
    "root_extent",
]
