"""Runs: blocks, lengths, and what lies in them (spec 9)."""

from __future__ import annotations

import random

import pytest
import zstandard

import bcpformat
from bcpformat import ReadOptions
from tests.oracle.make_checkpoint import Run
from tests.rules.build import BLOB, EXPECTED, FLOATS, RANKS, Draft, base, compressed, root
from tests.rules.samples import encoded, single
from tests.rules.verdicts import (
    OPTIONS,
    accept,
    find_only_by_validation,
    read,
    refuse,
    refuse_to_open,
    store_of,
)


def test_a_run_is_cut_into_blocks_and_the_last_may_be_shorter() -> None:
    """BCP-RUN-001: each is read, verified and decoded alone."""
    draft = base()
    assert draft.files[1]["blocks"] == 4
    draft.data["b.bcd"].digests[0] = bytes(8)
    with bcpformat.open(store_of(draft), options=OPTIONS) as checkpoint:
        assert checkpoint["z"][4096:].tobytes() == bytes(4196)

    refuse(draft, "E_BLOCK_CHECKSUM")


def test_blocks_are_encoded_on_their_own() -> None:
    """BCP-RUN-001: one frame over two blocks is no encoding of either."""
    raw = bytes(8192)
    frame = compressed(raw)
    draft = single("int8", [8192], [raw], run=Run([raw], codec=1, block=12))
    file, row = draft.data["t.bcd"], draft.runs[0]
    file.parts[4096], row["stored"] = frame, len(frame)
    file.lengths = [len(frame) - 4, 4]

    refuse(draft, "E_BLOCK_ENCODING")


def test_stored_blocks_lie_back_to_back() -> None:
    """BCP-RUN-001: a byte between two of them is in none, so the lengths do not add up."""
    draft = base()
    file = draft.data["b.bcd"]
    stored = file.parts[4096]
    file.parts[4096] = stored[:19] + b"\0" + stored[19:]
    draft.runs[2]["stored"] += 1

    refuse(draft, "E_TABLE")


def test_a_block_that_no_codec_makes_shorter_is_stored_raw() -> None:
    """BCP-RUN-002: in a run of another codec, beside one that is encoded."""
    noise = random.Random(1).randbytes(4096)
    raw = noise + bytes(4096)
    run = Run([raw], codec=1, block=12)
    draft = single("int8", [8192], [raw], run=run)
    assert draft.data["t.bcd"].lengths == [4096, 19]

    accept(draft, {"t": ("int8", (8192,), raw)})


def test_a_block_of_its_raw_length_is_not_decoded() -> None:
    """BCP-RUN-002: though it is a frame, it has the digest of other bytes."""
    same = next(
        raw
        for count in range(200)
        if len(raw := b"a" * count + random.Random(2).randbytes(20)) == len(_frame(raw))
    )

    accept(encoded(same, same), {"t": ("int8", (len(same),), same)})
    refuse(encoded(_frame(same), same), "E_BLOCK_CHECKSUM")


def _frame(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(raw)


def test_an_encoded_block_that_is_longer_is_refused() -> None:
    """BCP-RUN-002, BCP-RUN-003: E_RAW_LENGTH, as the run is longer than its raw bytes."""
    raw = random.Random(3).randbytes(40)

    refuse_to_open(encoded(_frame(raw), raw), "E_RAW_LENGTH")


@pytest.mark.parametrize("change", [-1, 1])
def test_a_raw_run_is_stored_in_its_raw_length(change: int) -> None:
    """BCP-RUN-003: E_RAW_LENGTH."""
    draft = base()
    draft.runs[1]["stored"] += change

    refuse_to_open(draft, "E_RAW_LENGTH")


def test_the_raw_length_of_a_run_is_a_multiple_of_its_item() -> None:
    """BCP-RUN-004: E_RAW_LENGTH; what is too much would be a gap."""
    draft = base()
    data = Draft(state=None)
    runs = [Run([FLOATS[:12], FLOATS[12:] + b"\0"], item=4), Run([RANKS[0], RANKS[3], BLOB])]
    data.add_file("a.bcd", runs)
    draft.data["a.bcd"], draft.runs[:2] = data.data["a.bcd"], data.runs

    refuse_to_open(draft, "E_RAW_LENGTH")


@pytest.mark.parametrize("item", [2, 4, 8])
def test_gaps_may_make_a_run_a_multiple_of_its_item(item: int) -> None:
    """BCP-RUN-004, BCP-RUN-005: a valid case with a gap behind the last piece."""
    dtype = {2: "bfloat16", 4: "float32", 8: "int64"}[item]
    piece = bytes(range(item))
    draft = single(dtype, [1], [piece], run=Run([piece + bytes(7 * item)], item=item))

    accept(draft, {"t": (dtype, (1,), piece)})


# ---- what lies in a run ------------------------------------------------------------------------


def pieces(*sizes: int) -> Draft:
    """Return a checkpoint of tensors of int8 in one run, each at the next multiple of 64."""
    draft = Draft(state=[9, *range(len(sizes))], root=root())
    run = Run([bytes([number + 1]) * size for number, size in enumerate(sizes)])
    draft.add_file("t.bcd", [run])
    draft.tensors = [
        {"name": str(number), "dtype": "int8", "shape": [size]} for number, size in enumerate(sizes)
    ]
    for number, offset in enumerate(run.offsets):
        draft.add_chunk(number, run=0, offset=offset)
    return draft


@pytest.mark.parametrize("sizes", [(1, 1), (63, 64, 65), (64, 64), (65, 1, 128)])
def test_pieces_lie_at_multiples_of_64(sizes: tuple[int, ...]) -> None:
    """BCP-RUN-005: with gaps of up to 63 bytes."""
    expected = tuple(
        ("int8", (size,), bytes([number + 1]) * size) for number, size in enumerate(sizes)
    )

    accept(pieces(*sizes), expected)


def test_pieces_may_lie_in_any_order() -> None:
    """BCP-RUN-005: what counts is the order of offsets."""
    draft = pieces(3, 3)
    draft.chunks[0]["offset"], draft.chunks[1]["offset"] = 64, 0

    accept(draft, (("int8", (3,), b"\2" * 3), ("int8", (3,), b"\1" * 3)))


@pytest.mark.parametrize(("rows", "number"), [("chunks", 2), ("per_rank", 1), ("objects", 0)])
@pytest.mark.parametrize("shift", [1, 32, 63])
def test_an_offset_is_a_multiple_of_64(rows: str, number: int, shift: int) -> None:
    """BCP-RUN-005: E_ALIGN for chunks, per-rank values and objects."""
    draft = base()
    row = getattr(draft, rows)[number]
    row["offset"] -= shift

    refuse_to_open(draft, "E_ALIGN")


@pytest.mark.parametrize(("rows", "number"), [("chunks", 2), ("objects", 0)])
@pytest.mark.parametrize("shift", [64, 2**52])
def test_a_piece_ends_within_its_run(rows: str, number: int, shift: int) -> None:
    """BCP-RUN-005: E_EXTENT_BOUNDS."""
    draft = base()
    getattr(draft, rows)[number]["offset"] += shift

    refuse_to_open(draft, "E_EXTENT_BOUNDS")


def test_a_piece_that_ends_a_byte_behind_its_run_is_refused() -> None:
    """BCP-RUN-005: E_EXTENT_BOUNDS."""
    draft = base()
    draft.objects[0]["nbytes"] += 1

    refuse_to_open(draft, "E_EXTENT_BOUNDS")


def test_pieces_do_not_overlap() -> None:
    """BCP-RUN-005: E_EXTENT_OVERLAP by one byte, by all bytes, and between kinds."""
    byte = pieces(64, 64)
    byte.tensors[0]["shape"] = byte.chunks[0]["shape"] = byte.chunks[0]["extent"] = [65]
    byte.chunks[0]["count"] = 65
    whole = pieces(3, 3)
    whole.chunks[1]["offset"] = 0
    value = base()
    value.per_rank[1]["nbytes"] = 65

    refuse_to_open(byte, "E_EXTENT_OVERLAP")
    refuse_to_open(whole, "E_EXTENT_OVERLAP")
    refuse_to_open(value, "E_EXTENT_OVERLAP")


def holed(before: int, between: int, after: int) -> Draft:
    """Return a checkpoint of two pieces of 64 bytes with gaps."""
    draft = pieces(64, 64)
    raw = bytes(before) + b"\1" * 64 + bytes(between) + b"\2" * 64 + bytes(after)
    data = Draft(state=None)
    data.add_file("t.bcd", [Run([raw])])
    draft.data, draft.runs, draft.files = data.data, data.runs, data.files
    draft.chunks[0]["offset"], draft.chunks[1]["offset"] = before, before + 64 + between
    return draft


@pytest.mark.parametrize("gaps", [(64, 0, 0), (0, 64, 0), (0, 0, 64), (0, 0, 2**13)])
def test_a_gap_of_64_bytes_belongs_to_nothing(gaps: tuple[int, int, int]) -> None:
    """BCP-RUN-005: E_EXTENT_HOLE before, between and after pieces."""
    accept(holed(0, 0, 63), (("int8", (64,), b"\1" * 64), ("int8", (64,), b"\2" * 64)))

    refuse_to_open(holed(*gaps), "E_EXTENT_HOLE")


def test_a_run_holds_something() -> None:
    """BCP-RUN-005: E_EXTENT_HOLE."""
    draft = base()
    draft.add_file("c.bcd", [Run([b"\1" * 10])])

    refuse_to_open(draft, "E_EXTENT_HOLE")


@pytest.mark.parametrize(
    ("run", "at"), [(0, 12), (0, 63), (1, len(RANKS[0])), (1, 127)], ids=["w", "w", "rank", "rank"]
)
def test_bytes_between_pieces_are_zero(run: int, at: int) -> None:
    """BCP-RUN-006: E_PADDING, by full validation only."""
    draft = base()
    contents = [[FLOATS[:12], FLOATS[12:]], [RANKS[0], RANKS[3], BLOB]]
    raw = bytearray(Run(contents[run]).raw)
    assert raw[at] == 0
    raw[at] = 1
    runs = [Run(contents[0], item=4), Run(contents[1])]
    runs[run] = Run([bytes(raw)], item=runs[run].item)
    data = Draft(state=None)
    data.add_file("a.bcd", runs)
    draft.data["a.bcd"] = data.data["a.bcd"]

    find_only_by_validation(draft, "E_PADDING")


def test_bytes_behind_the_last_piece_are_zero() -> None:
    """BCP-RUN-006: E_PADDING, also in a run that is encoded, and in a block of gaps alone."""
    piece = bytes(4096)
    for tail in (b"\0" * 9 + b"\1", b"\1" + b"\0" * 9):
        run = Run([piece + tail], codec=1, block=12)
        draft = single("int8", [4096], [piece], run=run)

        assert read(draft) == {"t": ("int8", (4096,), piece)}
        report = bcpformat.validate(store_of(draft), options=OPTIONS)
        assert [problem.code.value for problem in report.problems] == ["E_PADDING"]


@pytest.mark.parametrize("item", [1, 2, 8])
def test_a_run_has_the_item_of_the_data_type_of_its_chunks(item: int) -> None:
    """BCP-RUN-007: E_ITEM."""
    piece = bytes(8)

    refuse_to_open(single("float32", [2], [piece], run=Run([piece], item=item)), "E_ITEM")


def test_an_element_of_a_complex_type_is_two_items() -> None:
    """BCP-RUN-007: the item is that of the registry, not the size of an element."""
    piece = bytes(range(16))
    right = single("complex64", [2], [piece], run=Run([piece], item=4))

    accept(right, {"t": ("complex64", (2,), piece)})
    refuse_to_open(single("complex64", [2], [piece], run=Run([piece], item=8)), "E_ITEM")


def with_item(draft: Draft) -> Draft:
    """Return a draft whose last run has item 4."""
    draft.runs[-1]["item"] = 4
    return draft


def test_a_run_that_holds_a_value_or_an_object_has_item_1() -> None:
    """BCP-RUN-007: E_ITEM, also if a chunk lies beside it."""
    thing = Draft(state=[1], root=root())
    thing.add_file("t.bcd", [Run([BLOB])])
    thing.objects = [{"name": "o", "run": 0, "offset": 0, "nbytes": 100}]
    value = Draft(state=[19, 0], root=root())
    value.add_file("t.bcd", [Run([b"\xa3abc"])])
    value.per_rank = [{"path": 0, "rank": 0, "run": 0, "offset": 0, "nbytes": 4}]
    beside = single("float32", [6], [FLOATS], run=Run([FLOATS, BLOB], item=4))
    beside.objects = [{"name": "o", "run": 0, "offset": 64, "nbytes": 100}]
    accept(thing, None)
    accept(value, {0: "abc"})

    for draft in (with_item(thing), with_item(value), beside):
        refuse_to_open(draft, "E_ITEM")


# ---- digests -----------------------------------------------------------------------------------


def _flip(draft: Draft, name: str, position: int, at: int) -> Draft:
    data = bytearray(draft.data[name].parts[position])
    data[at] ^= 1
    draft.data[name].parts[position] = bytes(data)
    return draft


@pytest.mark.parametrize("at", [0, 11, 64, 75])
def test_the_digest_of_a_block_is_verified(at: int) -> None:
    """BCP-RUN-008: E_BLOCK_CHECKSUM for a flip in any piece."""
    refuse(_flip(base(), "a.bcd", 4096, at), "E_BLOCK_CHECKSUM")


def test_a_block_is_verified_as_a_whole() -> None:
    """BCP-RUN-008: a flip in the other chunk of the block, or in a gap, counts as well."""
    for at in (0, 30):
        store = store_of(_flip(base(), "a.bcd", 4096, at))
        with (
            bcpformat.open(store, options=OPTIONS) as checkpoint,
            pytest.raises(bcpformat.ChecksumError),
        ):
            checkpoint["w"][1]


def test_bytes_are_returned_unverified_only_if_the_caller_asks_for_it() -> None:
    """BCP-RUN-008: with `verify=False`."""
    draft = _flip(base(), "a.bcd", 4096, 0)
    flipped = bytes([FLOATS[0] ^ 1]) + FLOATS[1:]

    found = read(draft, options=ReadOptions(threads=1, verify=False))
    assert found == EXPECTED | {"w": ("float32", (2, 3), flipped)}
