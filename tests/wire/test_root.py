"""The root and its list of sections: one fault at a time (spec 5.1, 7.1, 15)."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
import zstandard

from bcpformat.errors import (
    ChecksumError,
    ErrorCode,
    FormatError,
    LimitError,
    UnsupportedError,
)
from bcpformat.model.limits import DEFAULT_LIMITS, Limits
from bcpformat.wire import (
    Header,
    Kind,
    Root,
    check_manifest_length,
    decode_manifest,
    decode_root,
    encode_header,
)
from tests.wire.manifests import DIGEST, ID, STATE, digest128, file_of, root_values, section_row

STATE_ROW = section_row("state", STATE)
FILES = b"\x90"


def decode(data: bytes, *, limits: Limits = DEFAULT_LIMITS) -> Root:
    return decode_root(data, key="manifest.bcp", limits=limits)


def code_of(data: bytes, *, limits: Limits = DEFAULT_LIMITS) -> ErrorCode:
    with pytest.raises(FormatError) as caught:
        decode(data, limits=limits)
    return caught.value.code


def root_with(**changes: Any) -> bytes:
    return file_of(root_values([STATE_ROW], **changes), STATE)


def sections(*rows: Any, minor: int = 0) -> bytes:
    return file_of(root_values(rows), minor=minor)


def test_a_root_says_what_its_document_says() -> None:
    raw = root_values(
        [STATE_ROW],
        ext={"org.example": 1},
        optional=["a", "b"],
        require=["subbyte"],
        step=7,
        user={"k": [True]},
    )
    data = file_of(raw, STATE)

    root = decode(data)

    assert (root.attempt_id, root.minor, root.created_us, root.step) == (ID, 0, 1, 7)
    assert (root.writer.name, root.writer.version, root.digest) == ("t", "1", "xxh3-64")
    assert (root.require, root.optional) == (("subbyte",), ("a", "b"))
    assert (root.user, root.extra) == ({"k": [True]}, {"ext": {"org.example": 1}})
    assert root.nbytes == len(data)
    (state,) = root.of_kind("state")
    assert data[state.position_bytes : state.end_bytes] == STATE
    assert root.rows("state") == 1
    assert root.of_kind("files") == ()


def test_the_root_alone_is_enough() -> None:
    data = root_with()

    assert decode(data[: -len(STATE)]) == decode(data)
    assert code_of(data[: -len(STATE) - 1]) is ErrorCode.TRUNCATED


def test_the_length_of_the_file_is_held_against_the_root() -> None:
    root = decode(root_with())

    check_manifest_length(root, root.nbytes, key="k")
    for nbytes, code in (
        (root.nbytes - 1, ErrorCode.TRUNCATED),
        (root.nbytes + 1, ErrorCode.LENGTH),
    ):
        with pytest.raises(FormatError, match=f"{root.nbytes} bytes, found {nbytes}") as caught:
            check_manifest_length(root, nbytes, key="k")
        assert caught.value.code is code


def compressed(raw: bytes, frame: bytes, raw_bytes: int) -> bytes:
    header = Header(
        kind=Kind.MANIFEST,
        attempt_id=ID,
        root_stored_bytes=len(frame),
        root_raw_bytes=raw_bytes,
    )
    return encode_header(header) + frame + digest128(frame) + STATE


def test_a_compressed_root_is_one_frame_of_its_raw_length() -> None:
    raw = msgpack.packb(root_values([STATE_ROW], user={"pad": "x" * 500}))
    frame = zstandard.compress(raw)

    assert decode(compressed(raw, frame, len(raw))).user == {"pad": "x" * 500}
    for bad, raw_bytes in (
        (frame, len(raw) + 1),
        (frame + b"\0", len(raw)),
        (frame + frame, 2 * len(raw)),
        (b"\x50\x2a\x4d\x18\0\0\0\0" + frame, len(raw)),
        (raw[:-1], len(raw)),
        (frame[:-1], len(raw)),
    ):
        assert code_of(compressed(raw, bad, raw_bytes)) is ErrorCode.MANIFEST_ENCODING


def test_the_digest_of_the_root_is_checked_before_it_is_decoded() -> None:
    data = bytearray(file_of(b"\xc1"))
    assert code_of(bytes(data)) is ErrorCode.MP_TYPE

    data[-1] ^= 1
    with pytest.raises(ChecksumError) as caught:
        decode(bytes(data))
    assert caught.value.code is ErrorCode.MANIFEST_CHECKSUM


def test_the_digest_is_the_low_half_first() -> None:
    data = bytearray(root_with())
    end = len(data) - len(STATE)
    data[end - 16 : end] = data[end - 16 : end][::-1]

    assert code_of(bytes(data)) is ErrorCode.MANIFEST_CHECKSUM


def test_a_root_above_the_limit_is_refused_before_it_is_read() -> None:
    header = Header(
        kind=Kind.MANIFEST, attempt_id=ID, root_stored_bytes=1, root_raw_bytes=2**64 - 1
    )

    with pytest.raises(LimitError):
        decode(encode_header(header))


def test_the_id_of_the_root_is_that_of_the_header() -> None:
    assert code_of(root_with(id=DIGEST)) is ErrorCode.ID


@pytest.mark.parametrize(
    "key", ["created", "digest", "id", "optional", "require", "sections", "writer"]
)
def test_a_missing_key_is_refused(key: str) -> None:
    assert code_of(root_with(**{key: None})) is ErrorCode.KEY_MISSING


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"created": True}, ErrorCode.TYPE),
        ({"created": "1"}, ErrorCode.TYPE),
        ({"digest": b"xxh3-64"}, ErrorCode.TYPE),
        ({"ext": []}, ErrorCode.TYPE),
        ({"id": "0123456789abcdef"}, ErrorCode.TYPE),
        ({"id": bytes(15)}, ErrorCode.RANGE),
        ({"id": bytes(17)}, ErrorCode.RANGE),
        ({"optional": "a"}, ErrorCode.TYPE),
        ({"optional": [1]}, ErrorCode.TYPE),
        ({"optional": ["a", "a"]}, ErrorCode.ORDER),
        ({"require": {}}, ErrorCode.TYPE),
        ({"require": ["subbyte", b"x"]}, ErrorCode.TYPE),
        ({"require": ["subbyte", "planes-zstd"]}, ErrorCode.ORDER),
        ({"require": ["subbyte", "subbyte"]}, ErrorCode.ORDER),
        ({"require": ["from-the-future"]}, ErrorCode.FEATURE),
        ({"digest": "xxh3-128"}, ErrorCode.DIGEST),
        ({"sections": {}}, ErrorCode.TYPE),
        ({"step": False}, ErrorCode.TYPE),
        ({"user": [1]}, ErrorCode.TYPE),
        ({"user": {"a": None}}, ErrorCode.MP_TYPE),
        ({"user": {"a": float("nan")}}, ErrorCode.MP_TYPE),
        ({"writer": "t"}, ErrorCode.TYPE),
        ({"writer": {"name": "t"}}, ErrorCode.KEY_MISSING),
        ({"writer": {"name": "t", "version": 1}}, ErrorCode.TYPE),
        ({"writer": {"name": "t", "site": "x", "version": "1"}}, ErrorCode.KEY_UNKNOWN),
        ({"zzz": 1}, ErrorCode.KEY_UNKNOWN),
    ],
)
def test_a_key_out_of_its_rule_is_refused(changes: dict[str, Any], code: ErrorCode) -> None:
    assert code_of(root_with(**changes)) is code


@pytest.mark.parametrize(
    ("root", "code"),
    [
        ([], ErrorCode.TYPE),
        (1, ErrorCode.TYPE),
        (b"\x82\xa2id\x01\xa7created\x01", ErrorCode.MP_NONCANONICAL),
        (b"\x81\xa7created\x01\x01", ErrorCode.MP_MALFORMED),
        (b"\x91" * 17 + b"\x01", ErrorCode.DEPTH),
    ],
)
def test_a_root_that_is_no_map_of_the_profile_is_refused(root: object, code: ErrorCode) -> None:
    assert code_of(file_of(root)) is code


def test_an_unknown_required_feature_is_unsupported_and_an_optional_one_is_ignored() -> None:
    with pytest.raises(UnsupportedError, match="from-the-future"):
        decode(root_with(require=["from-the-future"]))

    assert decode(root_with(optional=["from-the-future"])).optional == ("from-the-future",)


def test_unknown_keys_of_a_newer_minor_are_kept() -> None:
    writer = {"name": "t", "site": "x", "version": "1"}
    root = decode(file_of(root_values([STATE_ROW], later=[1], ext={}, writer=writer), minor=1))

    assert root.extra == {"ext": {}, "later": [1]}
    assert root.minor == 1


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({}, ErrorCode.TYPE),
        (STATE_ROW[:6], ErrorCode.RANGE),
        ([*STATE_ROW, 0], ErrorCode.RANGE),
        ([b"state", *STATE_ROW[1:]], ErrorCode.TYPE),
        (["state", False, *STATE_ROW[2:]], ErrorCode.TYPE),
        (["state", 0, True, *STATE_ROW[3:]], ErrorCode.TYPE),
        (["state", 0, 1, 0, *STATE_ROW[4:]], ErrorCode.TYPE),
        ([*STATE_ROW[:6], "0123456789abcdef"], ErrorCode.TYPE),
        ([*STATE_ROW[:6], bytes(8)], ErrorCode.RANGE),
        (["state", 0, 1, "gzip", *STATE_ROW[4:]], ErrorCode.CODEC),
        (["state", 0, 1, "none", 2, 3, DIGEST], ErrorCode.MANIFEST_ENCODING),
        (["state", 0, 1, "none", 3, 2, DIGEST], ErrorCode.MANIFEST_ENCODING),
        (["state", 0, 1, "zstd", 2, 2, DIGEST], ErrorCode.MANIFEST_ENCODING),
        (["state", 0, 1, "zstd", 3, 2, DIGEST], ErrorCode.MANIFEST_ENCODING),
        (["state", 0, 1, "zstd", 2**53 - 2, 2**53 - 1, DIGEST], ErrorCode.LIMIT),
    ],
)
def test_a_section_row_out_of_its_rule_is_refused(row: Any, code: ErrorCode) -> None:
    assert code_of(sections(row)) is code


def row(kind: str, first: int, rows: int) -> list[Any]:
    return section_row(kind, STATE, first=first, rows=rows)


FULL = 2**15


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row("files", 0, 1)],
        [row("state", 0, 2)],
        [row("state", 1, 1)],
        [row("state", 0, 0)],
        [row("state", 0, 1), row("state", 0, 1)],
        [row("state", 0, 1), row("files", 0, 1)],
        [row("tensors", 0, 1), row("files", 0, 1), STATE_ROW],
        [row("files", 0, 1), row("files", 1, 1), STATE_ROW],
        [row("files", 0, 1), row("files", 0, 0), STATE_ROW],
        [row("tensors", 1, 1), STATE_ROW],
        [row("tensors", 0, 0), STATE_ROW],
        [row("runs", 0, 0), STATE_ROW],
        [row("runs", 1, 1), STATE_ROW],
        [row("runs", 0, FULL + 1), STATE_ROW],
        [row("runs", 0, FULL - 1), row("runs", FULL - 1, 1), STATE_ROW],
        [row("runs", 0, FULL), row("runs", 0, 1), STATE_ROW],
        [row("runs", 0, FULL), row("runs", FULL, 0), STATE_ROW],
        [row("runs", FULL, FULL), row("runs", 0, FULL), STATE_ROW],
        [row("runs", 0, FULL), row("chunks", 0, 1), row("runs", FULL, 1), STATE_ROW],
        [STATE_ROW, row("objects", 0, 1), row("per_rank", 0, 1)],
        [row("parity", 0, 1), STATE_ROW],
    ],
)
def test_a_list_of_sections_out_of_its_rule_is_refused(rows: list[Any]) -> None:
    assert code_of(sections(*rows)) is ErrorCode.SECTION


def test_sections_in_their_order_are_accepted() -> None:
    rows = [
        row("files", 0, 40_000),
        row("tensors", 0, 40_000),
        row("runs", 0, FULL),
        row("chunks", 0, FULL),
        row("chunks", FULL, FULL),
        row("chunks", 2 * FULL, 1),
        STATE_ROW,
        row("per_rank", 0, 1),
        row("objects", 0, 3),
    ]

    root = decode(sections(*rows))

    assert [section.kind for section in root.sections] == [values[0] for values in rows]
    assert root.rows("chunks") == 2 * FULL + 1


def test_a_section_kind_of_a_newer_minor_is_ignored_wherever_it_stands() -> None:
    unknown = section_row("parity", b"\xc1\xc1", first=9, rows=0)
    root = root_values([unknown, STATE_ROW, unknown])
    data = file_of(root, b"\xc1\xc1", STATE, b"\xc1\xc1", minor=1)

    manifest = decode_manifest(data, key="k", limits=DEFAULT_LIMITS)

    assert manifest.state == [6]
    assert manifest.minor == 1
