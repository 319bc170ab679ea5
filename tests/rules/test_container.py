"""Headers and the outer form of a manifest (spec 2, 5, 5.1)."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

import bcpformat
from tests.oracle.make_checkpoint import xxh64, xxh128
from tests.rules.build import (
    EARLIER,
    RANKS,
    Draft,
    Header,
    base,
    compressed,
)
from tests.rules.verdicts import (
    OPTIONS,
    accept,
    find_only_by_validation,
    problems,
    read_code,
    refuse,
    refuse_to_open,
    store_of,
)

MANIFEST = "manifest.bcp"

HEADER_FAULTS: list[tuple[str, str, Callable[[Header], None]]] = [
    ("magic", "E_MAGIC", lambda h: setattr(h, "magic", b"\x89BCP\n\n\x1a\n")),
    ("checksum", "E_HEADER_CHECKSUM", lambda h: setattr(h, "checksum", bytes(8))),
    ("major 0", "E_VERSION", lambda h: setattr(h, "major", 0)),
    ("major 2", "E_VERSION", lambda h: setattr(h, "major", 2)),
    ("kind 0", "E_KIND", lambda h: setattr(h, "kind", 0)),
    ("part record", "E_KIND", lambda h: setattr(h, "kind", 3)),
    ("kind of the other", "E_KIND", lambda h: setattr(h, "kind", 3 - h.kind)),
    ("flags", "E_RESERVED", lambda h: setattr(h, "flags", 1)),
    ("reserved", "E_RESERVED", lambda h: setattr(h, "reserved", 2**63)),
]
FAULTS = pytest.mark.parametrize(
    ("code", "change"),
    [fault[1:] for fault in HEADER_FAULTS],
    ids=[fault[0] for fault in HEADER_FAULTS],
)


@FAULTS
def test_a_fault_in_the_header_of_a_manifest_has_its_code(
    code: str, change: Callable[[Header], None]
) -> None:
    """BCP-HDR-001, BCP-HDR-002, BCP-HDR-003: one fault in a manifest's header."""
    draft = base()
    change(draft.header)

    refuse_to_open(draft, code)


@FAULTS
def test_a_fault_in_the_header_of_a_data_file_is_found_by_validation(
    code: str, change: Callable[[Header], None]
) -> None:
    """BCP-HDR-001, BCP-HDR-002, BCP-HDR-003, BCP-DAT-009: readers may leave it unread."""
    draft = base()
    change(draft.data["a.bcd"].header)

    find_only_by_validation(draft, code)


def test_of_several_faults_in_a_header_the_first_of_the_order_counts() -> None:
    """BCP-HDR-001: the order is that of the rule."""
    draft = base()
    header = draft.header
    header.magic, header.checksum, header.major = bytes(8), bytes(8), 2
    header.kind, header.flags, header.stored = 2, 1, 2**40
    repairs: list[tuple[str, str, object]] = [
        ("E_MAGIC", "magic", Header(kind=1).magic),
        ("E_HEADER_CHECKSUM", "checksum", None),
        ("E_VERSION", "major", 1),
        ("E_KIND", "kind", 1),
        ("E_RESERVED", "flags", 0),
        ("E_LENGTH", "stored", 0),
    ]
    for code, name, right in repairs:
        refuse(draft, code)
        setattr(header, name, right)

    accept(draft)


@pytest.mark.parametrize("nbytes", [0, 8, 63])
def test_a_file_too_short_for_a_header_is_truncated(nbytes: int) -> None:
    """BCP-HDR-001: the length comes before the magic."""
    objects = base().encoded()

    refuse_to_open(objects | {MANIFEST: bytes(nbytes)}, "E_TRUNCATED")


def test_another_major_is_refused_with_both_versions_in_the_message() -> None:
    """BCP-HDR-002: the message names the version found and the one that the reader has."""
    draft = base()
    draft.header.major, draft.header.minor = 7, 3

    with pytest.raises(bcpformat.UnsupportedError, match=r"7\.3.* 1\.0"):
        bcpformat.open(store_of(draft), options=OPTIONS)


@pytest.mark.parametrize("minor", [1, 65535])
def test_the_minor_of_a_data_file_has_no_meaning(minor: int) -> None:
    """BCP-HDR-004: only the manifest's minor counts."""
    draft = base()
    draft.data["a.bcd"].header.minor = minor

    accept(draft)


@pytest.mark.parametrize("name", ["stored", "raw"])
def test_a_data_file_has_no_root(name: str) -> None:
    """BCP-HDR-004: both lengths are zero in a data file."""
    draft = base()
    setattr(draft.data["a.bcd"].header, name, 1)

    find_only_by_validation(draft, "E_LENGTH")


@pytest.mark.parametrize("position", [64, 1000, 4095])
def test_bytes_after_the_header_of_a_data_file_are_zero(position: int) -> None:
    """BCP-HDR-004, BCP-DAT-004: up to byte 4095."""
    draft = base()
    draft.data["a.bcd"].parts[position] = b"\1"

    find_only_by_validation(draft, "E_PADDING")


@pytest.mark.parametrize(("stored", "raw"), [(0, 0), (0, 5), (6, 5), (2**64 - 1, 5)])
def test_lengths_of_a_root_that_cannot_be_are_refused(stored: int, raw: int) -> None:
    """BCP-HDR-005: at least 1, and stored not above raw."""
    parts = base().parts()
    length = len(parts.root_raw())
    # These are added to what is there.
    parts.header.stored, parts.header.raw = stored - length, raw - length

    refuse_to_open(parts, "E_LENGTH")


# ---- byte order --------------------------------------------------------------------------------


def test_numbers_of_a_header_are_little_endian() -> None:
    """BCP-CNV-001: the same header in the other order is another version."""
    objects = base().encoded()
    manifest = bytearray(objects[MANIFEST])
    manifest[8:10] = b"\0\1"
    manifest[56:64] = xxh64(bytes(manifest[:56]))

    accept(objects)
    refuse(objects | {MANIFEST: bytes(manifest)}, "E_VERSION")


def test_digests_are_little_endian() -> None:
    """BCP-CNV-001: digests in the order that libraries print are wrong."""
    header, root, table, block = base(), base().parts(), base(), base()
    header.header.checksum = xxh64(header.parts().manifest()[:56])[::-1]
    root.root_digest = xxh128(root.root_raw())[::-1]
    table.files[0]["digest"] = xxh128(table.data["a.bcd"].table_bytes())[::-1]
    block.data["a.bcd"].digests[0] = block.data["a.bcd"].digests[0][::-1]

    refuse(header, "E_HEADER_CHECKSUM")
    refuse(root, "E_MANIFEST_CHECKSUM")
    refuse(table, "E_TABLE_CHECKSUM")
    refuse(block, "E_BLOCK_CHECKSUM")


def test_values_of_columns_are_little_endian() -> None:
    """BCP-CNV-001: a column in the other order has other values."""
    parts = base().parts()
    section = parts.of("per_rank")
    values = [len(value) for value in RANKS.values()]
    section.raw = section.raw.replace(struct.pack("<2Q", *values), struct.pack(">2Q", *values))

    refuse_to_open(parts, "E_RANGE")


# ---- the manifest ------------------------------------------------------------------------------


def test_the_root_and_every_section_may_be_compressed() -> None:
    """BCP-MAN-001, BCP-MAN-010: each is one frame, shorter than it."""
    draft = base()
    draft.root["user"] = {"pad": "a" * 200}
    draft.tensors[0]["user"] = {"pad": "a" * 200}
    parts = draft.parts()
    section = parts.of("tensors")
    section.codec, section.stored = "zstd", compressed(section.raw)
    parts.root_stored = compressed(parts.root_raw())

    accept(parts)


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame + b"\0",
        lambda frame: frame[:-1],
        lambda frame: b"\x50\x2a\x4d\x18\0\0\0\0" + frame,
        lambda frame: bytes(len(frame)),
    ],
    ids=["trailing byte", "cut", "skippable frame", "no frame"],
)
def test_a_shorter_root_that_is_not_one_frame_is_refused(
    change: Callable[[bytes], bytes],
) -> None:
    """BCP-MAN-001: with two lengths, it is exactly one frame."""
    draft = base()
    draft.root["user"] = {"pad": "a" * 2000}
    parts = draft.parts()
    parts.root_stored = change(compressed(parts.root_raw()))

    refuse_to_open(parts, "E_MANIFEST_ENCODING")


@pytest.mark.parametrize("error", [-1, 1])
def test_a_root_that_decodes_to_another_length_is_refused(error: int) -> None:
    """BCP-MAN-001: the raw length is that of the header."""
    draft = base()
    draft.root["user"] = {"pad": "a" * 2000}
    parts = draft.parts()
    parts.root_stored = compressed(parts.root_raw())
    parts.header.raw = error

    refuse_to_open(parts, "E_MANIFEST_ENCODING")


def test_the_digest_of_the_root_is_checked_before_it_is_decoded() -> None:
    """BCP-MAN-002: a root that is no document either has a wrong digest first."""
    right, wrong = base().parts(), base().parts()
    wrong.root_digest = bytes(16)
    undecodable = base().parts()
    undecodable.root_stored, undecodable.root_digest = b"\xc1" * 40, bytes(16)

    accept(right)
    refuse_to_open(wrong, "E_MANIFEST_CHECKSUM")
    refuse_to_open(undecodable, "E_MANIFEST_CHECKSUM")


def test_a_manifest_ends_with_its_last_section() -> None:
    """BCP-MAN-003: shorter is truncated, longer is another length."""
    objects = base().encoded()
    manifest = objects[MANIFEST]

    refuse_to_open(objects | {MANIFEST: manifest[:-1]}, "E_TRUNCATED")
    refuse_to_open(objects | {MANIFEST: manifest + b"\0"}, "E_LENGTH")


@pytest.mark.parametrize("nbytes", [64, 65, 300])
def test_a_manifest_that_ends_in_its_root_is_truncated(nbytes: int) -> None:
    """BCP-MAN-003: the same for the root."""
    objects = base().encoded()

    refuse_to_open(objects | {MANIFEST: objects[MANIFEST][:nbytes]}, "E_TRUNCATED")


def test_sections_lie_back_to_back() -> None:
    """BCP-MAN-003: a byte between two sections moves the others out of their place."""
    parts = base().parts()
    section = parts.of("files")
    section.stored = section.raw + b"\0"
    section.wrong = {4: len(section.raw), 6: xxh128(section.raw)}
    last = parts.sections[-1]
    last.stored, last.wrong = last.raw[:-1], {4: len(last.raw), 6: xxh128(last.raw)}

    assert read_code(parts) == "E_MANIFEST_CHECKSUM"


def test_sections_lie_in_the_order_of_the_list() -> None:
    """BCP-MAN-003: two sections that changed places have each other's bytes."""
    parts = base().parts()
    rows = [section.row() for section in parts.sections]
    parts.sections[0], parts.sections[1] = parts.sections[1], parts.sections[0]
    parts.root = {"sections": rows, **base().root}

    assert read_code(parts) == "E_MANIFEST_CHECKSUM"
    assert problems(parts) == ["E_MANIFEST_CHECKSUM"]


def test_the_attempt_id_of_the_header_is_that_of_the_root() -> None:
    """BCP-MAN-004: or the manifest is put together from two."""
    draft: Draft = base()
    draft.header.attempt = EARLIER

    refuse_to_open(draft, "E_ID")
