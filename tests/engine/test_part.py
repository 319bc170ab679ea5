"""A part record says the same to another process, and nothing at all if it is damaged."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.codec.digest import document_digest
from bcpformat.codec.zstd import decompress_frame
from bcpformat.engine.part import Part, ReplicaChecks, decode_part, encode_part
from bcpformat.engine.state_record import KnownStates, encode_state_record, state_digest
from bcpformat.errors import ErrorCode, FormatError, LimitError
from bcpformat.model.leaves import PerRank
from bcpformat.model.limits import Limits
from bcpformat.model.manifest import FileRow, ints
from bcpformat.model.rank_state import RankState
from bcpformat.wire.mp import decode, encode
from tests.engine.parts import Piece, Rank, part_of


def same(a: Any, b: Any) -> bool:
    """Return whether two values, of parts or in them, are equal, arrays included."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def full() -> Part:
    """A part with something of everything."""
    value = {
        "a": np.zeros((4, 6), np.float32),
        "b": np.zeros(7, np.int8),
        "none": np.zeros((0, 3)),
        "scalar": np.zeros(()),
        "r": PerRank([1, np.zeros(3)]),
        "o": b"o" * 70_000,
        "p": "p" * 70_000,
        "lr": -0.0,
    }
    value["tied"] = value["a"]
    checks = ReplicaChecks(
        group=ints([5, 0]), digest=ints([-1, 3]), tensor=ints([0, 1]), origin=ints([2, 0, 0])
    )
    pieces = [
        Piece("a", (0, 3), (4, 3), 2, 5),
        Piece("a", (0, 0), (4, 3), 0, 12),
        Piece("b", (0,), (7,), 0, 7),
        Piece("scalar", (), (), 0, 1),
    ]
    extra = {1: {"user": {"k": [1, b"x", {"deep": True}]}, "segments": [["q", 0, 0, 4]]}}
    return part_of(3, Rank(value, pieces, ["o"], checks), extra=extra)


RECORD = encode_part(full())


def read(record: bytes, **options: Any) -> Part:
    return decode_part(record, where="rank 3", **options)


def raw_of(record: bytes) -> bytes:
    """The document of a record, as anybody could decode it."""
    nbytes, stored = int.from_bytes(record[:8], "little"), record[24:]
    return stored if nbytes == len(stored) else decompress_frame(stored, raw_bytes=nbytes)


def changed(key: str, value: Any) -> bytes:
    """A record of which one value is another, with digests and all."""
    document: Any = decode(raw_of(RECORD), max_depth=16, where="")
    assert key in document
    return sealed(encode({**document, key: value}, max_depth=16, where=""))


def sealed(raw: bytes) -> bytes:
    return len(raw).to_bytes(8, "little") + document_digest(raw) + raw


def test_a_part_comes_back_with_all_that_it_says() -> None:
    part = full()

    back = read(encode_part(part))

    assert same(replace(back, state=part.state), part)
    assert same(replace(back.state, digest=b""), replace(part.state, digest=b""))
    assert back.state.digest == state_digest(part.state)


def test_a_part_of_a_rank_that_stores_nothing_comes_back() -> None:
    part = part_of(0, Rank({"w": np.zeros(3)}, pieces=[]))

    assert same(read(encode_part(part)), part) and part.files == []


def test_columns_that_are_absent_stay_absent() -> None:
    part = part_of(0, Rank({"w": np.zeros(3)}, with_columns=False))

    back = read(encode_part(part)).chunks

    assert (back.origin, back.extent, back.start, back.count) == (None,) * 4


def test_a_large_record_is_compressed_and_a_small_one_is_as_it_is() -> None:
    part = part_of(0, Rank({f"w{n}": np.zeros(n) for n in range(1, 999)}))

    record = encode_part(part)

    assert len(record) < int.from_bytes(record[:8], "little") / 4
    assert same(read(record), part)
    assert same(read(sealed(raw_of(record))), part)


def test_equal_states_are_decoded_once() -> None:
    known = KnownStates()

    states = [read(RECORD, known=known).state for _ in range(2)]

    assert states[0] is states[1]


def test_the_oldest_of_too_many_states_is_forgotten() -> None:
    known = KnownStates(most=2)
    parts = [read(encode_part(part_of(0, Rank({"n": n}))), known=known) for n in range(3)]

    assert known.find(parts[0].state.digest) is None
    assert known.find(parts[2].state.digest) is parts[2].state


@given(st.integers(0, len(RECORD) - 1))
def test_a_record_that_is_cut_is_refused(length: int) -> None:
    with pytest.raises(FormatError, match="rank 3"):
        read(RECORD[:length])


@given(st.integers(0, len(RECORD) - 1), st.integers(1, 255))
def test_a_record_with_another_byte_is_refused(position: int, flip: int) -> None:
    damaged = bytearray(RECORD)
    damaged[position] ^= flip

    with pytest.raises(FormatError):
        read(bytes(damaged))


@given(st.data())
def test_a_document_with_any_other_byte_is_refused_or_read(data: st.DataObject) -> None:
    """No crash, whatever the bytes say; a record with a good digest may say other things."""
    raw = bytearray(raw_of(RECORD))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        part = read(sealed(bytes(raw)))
    except FormatError:
        return
    assert isinstance(part, Part)


def test_a_record_above_the_limit_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(LimitError, match="the limit is 64"):
        read(RECORD, limits=Limits(section_bytes=64))


def test_a_record_of_another_version_is_refused() -> None:
    with pytest.raises(FormatError, match="one version of bcpformat") as caught:
        read(changed("version", 2))

    assert caught.value.code is ErrorCode.VERSION


DOCUMENT: Any = decode(raw_of(RECORD), max_depth=16, where="")
COLUMNS = np.frombuffer(DOCUMENT["columns"], "<i8")
COUNTS: list[int] = DOCUMENT["counts"]


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("attempt", b"short", ErrorCode.RANGE),
        ("rank", b"3", ErrorCode.TYPE),
        ("counts", [1] * 22, ErrorCode.COLUMN),
        ("counts", [*COUNTS[:-1], COUNTS[-1] + 1], ErrorCode.COLUMN),
        ("counts", [0, COUNTS[0] + COUNTS[1] - 1, *COUNTS[2:]], ErrorCode.COLUMN),
        ("counts", [COUNTS[0] - 1, COUNTS[1] + 1, *COUNTS[2:]], ErrorCode.COLUMN),
        ("columns", COLUMNS.tobytes()[:-8], ErrorCode.COLUMN),
        ("columns", (COLUMNS - 1).tobytes(), ErrorCode.RANGE),
        ("columns", (COLUMNS | 2**53).tobytes(), ErrorCode.RANGE),
        ("columns", np.full_like(COLUMNS, 2**52).tobytes(), ErrorCode.INDEX),
        ("digests", bytes(8), ErrorCode.COLUMN),
        ("digests", bytes(17), None),
        ("files", b"\x90", ErrorCode.INDEX),
        ("files", b"\xc0", ErrorCode.MP_TYPE),
        ("state", b"\x80", ErrorCode.KEY_MISSING),
    ],
)
def test_a_record_that_does_not_fit_itself_is_refused(
    key: str, value: Any, code: ErrorCode | None
) -> None:
    if code is None:  # a rest of less than one digest says nothing
        assert len(read(changed(key, value)).checks) == 2
        return
    with pytest.raises(FormatError) as caught:
        read(changed(key, value))

    assert caught.value.code is code


STATE: Any = decode(encode_state_record(full().state), max_depth=18, where="")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("aliases", [[0, ["tied", 1]]]),
        ("aliases", [[0, ["tied", []]]]),
        ("aliases", [[0, "tied"]]),
        ("aliases", [[9, ["tied"]]]),
        ("aliases", [["tied"]]),
        ("aliases", [[]]),
        ("aliases", []),
        ("dtype", b"\x09" * len(STATE["names"])),
        ("dtype", b""),
        ("dtypes", []),
        ("extra", [[0]]),
        ("extra", [[0, 1]]),
        ("extra", [[0, {}, {}]]),
        ("names", [*STATE["names"][:2][::-1], *STATE["names"][2:]]),
        ("names", STATE["names"][:-1]),
        ("ndim", b"\x21" * len(STATE["names"])),
        ("ndim", b"\x00" * len(STATE["names"])),
        ("objects", []),
        ("objects", [["o", 1, "digest"]]),
        ("objects", [["o", 1]]),
        ("objects", [["o", 1, b"", b""]]),
        ("per_rank", 0),
        ("per_rank", 2),
        ("shape", b"\xff" * len(STATE["shape"])),
        ("state", b"\x00"),
        ("state", b"\x80"),
    ],
)
def test_a_state_that_breaks_a_rule_is_refused(key: str, value: Any) -> None:
    assert key in STATE
    with pytest.raises(FormatError, match="rank 3"):
        read(changed("state", encode({**STATE, key: value}, max_depth=18, where="")))


def test_names_that_do_not_ascend_are_refused() -> None:
    state = RankState(
        root=[6, "b", 0, "a", 1], names=["b", "a"], dtypes=["int8"] * 2, shapes=[(), ()]
    )
    with pytest.raises(FormatError, match="found 'a' after 'b'"):
        read(changed("state", encode_state_record(state)))


def test_files_of_a_record_keep_all_their_keys() -> None:
    part = part_of(0, Rank({"w": np.zeros(3)}))
    (file,) = part.files
    file = replace(file, lengths=True, extra={"ext": {"com.example": 1}})

    assert read(encode_part(replace(part, files=[file]))).files == (file,)
    assert isinstance(file, FileRow)
