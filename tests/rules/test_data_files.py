"""Data files: where runs and the block table lie, and what the table says (spec 5.2)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import bcpformat
from tests.oracle.make_checkpoint import Run, xxh64, xxh128
from tests.rules.build import (
    ATTEMPT,
    EARLIER,
    EXPECTED,
    FLOATS,
    Draft,
    base,
    root,
)
from tests.rules.samples import linked, single
from tests.rules.verdicts import (
    OPTIONS,
    accept,
    find_only_by_validation,
    problems,
    read,
    read_code,
    refuse,
    refuse_to_open,
    store_of,
)

NOISE = random.Random(1).randbytes(4096 + 4096 + 100)
"""Three blocks of 4096 bytes that no codec makes shorter."""


def move(draft: Draft, name: str, before: int, after: int) -> None:
    """Move a part of a data file."""
    parts = draft.data[name].parts
    parts[after] = parts.pop(before)


def two(first: bytes, second: bytes) -> Draft:
    """Return a checkpoint of two tensors of int8 in runs of their own."""
    draft = Draft(state=[9, 0, 1], root=root())
    draft.add_file("t.bcd", [Run([first]), Run([second])])
    draft.tensors = [
        {"name": str(number), "dtype": "int8", "shape": [len(data)]}
        for number, data in enumerate((first, second))
    ]
    draft.add_chunk(0, run=0)
    draft.add_chunk(1, run=1)
    return draft


# ---- positions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [1, 8, 64])
def test_a_run_begins_at_a_multiple_of_4096(shift: int) -> None:
    """BCP-DAT-001: E_ALIGN."""
    draft = base()
    move(draft, "a.bcd", 8192, 8192 + shift)
    draft.runs[1]["position"] += shift

    refuse_to_open(draft, "E_ALIGN")


def test_a_block_table_begins_at_a_multiple_of_4096() -> None:
    """BCP-DAT-001: E_ALIGN."""
    draft = base()
    draft.data["a.bcd"].table += 8
    draft.files[0]["table"] += 8

    refuse_to_open(draft, "E_ALIGN")


@pytest.mark.parametrize("position", [0, 64])
def test_a_run_begins_after_the_header(position: int) -> None:
    """BCP-DAT-001, BCP-DAT-002: it overlaps the header's page as well."""
    draft = base()
    draft.runs[0]["position"] = position

    assert read_code(draft) in ("E_ALIGN", "E_EXTENT_OVERLAP")
    assert set(problems(draft)) == {"E_ALIGN", "E_EXTENT_OVERLAP"}


@pytest.mark.parametrize("nbytes", [1, 4095, 4096, 4097, 8192])
def test_gaps_of_up_to_4095_bytes_are_allowed(nbytes: int) -> None:
    """BCP-DAT-001, BCP-DAT-002: runs at the next multiple of 4096."""
    first, second = b"\1" * nbytes, b"\2" * nbytes

    accept(two(first, second), (("int8", (nbytes,), first), ("int8", (nbytes,), second)))


def test_runs_do_not_overlap() -> None:
    """BCP-DAT-002: E_EXTENT_OVERLAP, though both hold what they should."""
    draft = two(bytes(5000), bytes(100))
    draft.runs[1]["position"] = 8192

    refuse_to_open(draft, "E_EXTENT_OVERLAP")


def test_a_run_does_not_overlap_the_block_table() -> None:
    """BCP-DAT-002: E_EXTENT_OVERLAP."""
    draft = two(bytes(100), bytes(5000))
    draft.files[0]["table"] = draft.data["t.bcd"].table = 12288

    refuse_to_open(draft, "E_EXTENT_OVERLAP")


@pytest.mark.parametrize("place", ["first run", "second run", "table"])
def test_a_gap_of_4096_bytes_belongs_to_nothing(place: str) -> None:
    """BCP-DAT-002: E_EXTENT_HOLE before a run, between runs and before the table."""
    draft = base()
    file = draft.data["a.bcd"]
    if place == "first run":
        move(draft, "a.bcd", 8192, 12288)
        move(draft, "a.bcd", 4096, 8192)
        draft.runs[0]["position"], draft.runs[1]["position"] = 8192, 12288
    elif place == "second run":
        move(draft, "a.bcd", 8192, 12288)
        draft.runs[1]["position"] = 12288
    file.table = draft.files[0]["table"] = 16384

    refuse_to_open(draft, "E_EXTENT_HOLE")


def test_an_unused_range_does_not_overlap_a_run() -> None:
    """BCP-DAT-002: E_EXTENT_OVERLAP; its last byte is the run's first."""
    draft = linked()
    ranges = draft.files[1]["unused"]
    ranges[1] = draft.runs[2]["position"] + 1 - ranges[0]

    refuse_to_open(draft, "E_EXTENT_OVERLAP")


def test_an_unused_range_does_not_overlap_the_block_table() -> None:
    """BCP-DAT-002: E_EXTENT_OVERLAP."""
    draft = linked()
    ranges = draft.files[1]["unused"]
    ranges[3] = draft.files[1]["table"] + 1 - ranges[2]

    refuse_to_open(draft, "E_EXTENT_OVERLAP")


def test_what_is_neither_used_nor_called_unused_is_a_hole() -> None:
    """BCP-DAT-002: E_EXTENT_HOLE in a file of an earlier attempt, too."""
    draft = linked()
    draft.files[1]["unused"] = draft.files[1]["unused"][2:]

    refuse_to_open(draft, "E_EXTENT_HOLE")


@pytest.mark.parametrize("cut", [1, 23, 5000])
def test_a_data_file_that_is_shorter_is_truncated(cut: int) -> None:
    """BCP-DAT-003: E_TRUNCATED."""
    objects = base().encoded()

    refuse(objects | {"data/a.bcd": objects["data/a.bcd"][:-cut]}, "E_TRUNCATED")


@pytest.mark.parametrize("tail", [b"\0", bytes(4096)])
def test_a_data_file_that_is_longer_has_another_length(tail: bytes) -> None:
    """BCP-DAT-003: E_FILE_LENGTH."""
    objects = base().encoded()

    refuse(objects | {"data/a.bcd": objects["data/a.bcd"] + tail}, "E_FILE_LENGTH")


@pytest.mark.parametrize("position", [4096 + 76, 8191, 8192 + 228, 12287])
def test_bytes_between_runs_and_before_the_table_are_zero(position: int) -> None:
    """BCP-DAT-004: E_PADDING, by full validation only."""
    draft = base()
    draft.data["a.bcd"].parts[position] = b"\1"

    find_only_by_validation(draft, "E_PADDING")


def test_padding_is_checked_by_full_validation_only() -> None:
    """BCP-DAT-004: the level *manifest* reads no data."""
    draft = base()
    draft.data["a.bcd"].parts[8191] = b"\1"

    assert bcpformat.validate(store_of(draft), level="manifest", options=OPTIONS).ok


def test_bytes_beside_an_unused_range_are_zero() -> None:
    """BCP-DAT-004: E_PADDING before it and behind it; within it anything may lie."""
    for step in (-1, 100):
        draft = linked()
        position = draft.files[1]["unused"][2] + step
        draft.data["b.bcd"].parts[position] = b"\1"

        find_only_by_validation(draft, "E_PADDING")


# ---- the block table ---------------------------------------------------------------------------


def test_a_block_table_has_the_digest_of_its_row() -> None:
    """BCP-DAT-005: E_TABLE_CHECKSUM for another table, and for another row."""
    table, row = base(), base()
    objects = table.encoded()
    flipped = objects["data/a.bcd"][:-1] + bytes([objects["data/a.bcd"][-1] ^ 1])
    row.files[0]["digest"] = xxh128(b"")

    refuse(objects | {"data/a.bcd": flipped}, "E_TABLE_CHECKSUM")
    refuse(row, "E_TABLE_CHECKSUM")


def test_digests_of_blocks_are_those_of_raw_bytes_in_file_order() -> None:
    """BCP-DAT-005: neither the digests of stored bytes, nor in another order."""
    stored, swapped = base(), base()
    file = stored.data["b.bcd"]
    file.digests[0] = xxh64(file.parts[4096][: file.lengths[0]] if file.lengths else b"")
    digests = swapped.data["b.bcd"].digests
    digests[2], digests[1] = digests[1], digests[2]

    refuse(stored, "E_BLOCK_CHECKSUM")
    refuse(swapped, "E_BLOCK_CHECKSUM")


def noisy(lengths: list[int]) -> Draft:
    """Return a checkpoint of a run of zstd whose blocks are stored raw, with other lengths."""
    run = Run([NOISE], codec=1, block=12)
    draft = single("int8", [len(NOISE)], [NOISE], run=run)
    draft.data["t.bcd"].lengths = lengths
    return draft


def test_stored_lengths_add_up_to_that_of_the_run() -> None:
    """BCP-DAT-006: E_TABLE."""
    accept(noisy([4096, 4096, 100]), {"t": ("int8", (8292,), NOISE)})

    refuse(noisy([4095, 4096, 100]), "E_TABLE")


@pytest.mark.parametrize(
    "lengths", [[4095, 4096, 101], [4097, 4095, 100], [4096, 4196, 0], [0, 4096, 4196]]
)
def test_a_stored_length_is_at_least_1_and_at_most_that_of_the_raw_block(
    lengths: list[int],
) -> None:
    """BCP-DAT-006: E_TABLE, though the sum is right."""
    refuse(noisy(lengths), "E_TABLE")


@pytest.mark.parametrize("lengths", [[38, 0, 17, 46], [19, 36, 0, 46], [55, 0, 0, 46]])
def test_no_block_is_stored_in_no_bytes(lengths: list[int]) -> None:
    """BCP-DAT-006: E_TABLE."""
    draft = base()
    file = draft.data["b.bcd"]
    assert file.lengths is not None
    assert (sum(file.lengths), len(file.lengths)) == (sum(lengths), len(lengths))
    file.lengths = lengths

    refuse(draft, "E_TABLE")


def test_no_block_is_stored_in_no_bytes_though_it_is_unused() -> None:
    """BCP-DAT-006: E_TABLE."""
    draft = linked()
    lengths = draft.data["b.bcd"].lengths
    assert lengths is not None
    lengths[0] = 0

    refuse(draft, "E_TABLE")


def test_blocks_of_a_raw_run_have_their_raw_length() -> None:
    """BCP-DAT-006: E_TABLE; the file has lengths for the sake of another run."""
    draft = two(NOISE, bytes(5000))
    data = Draft(state=None)
    data.add_file("t.bcd", [Run([NOISE], block=12), Run([bytes(5000)], codec=1)])
    draft.data, draft.runs, draft.files = data.data, data.runs, data.files
    accept(draft, (("int8", (8292,), NOISE), ("int8", (5000,), bytes(5000))))

    lengths = draft.data["t.bcd"].lengths
    assert lengths is not None
    lengths[:3] = [4095, 4096, 101]
    refuse(draft, "E_TABLE")


def test_a_file_with_an_encoded_run_has_lengths() -> None:
    """BCP-DAT-007: E_TABLE."""
    draft = base()
    del draft.files[1]["lengths"]
    draft.data["b.bcd"].lengths = None

    refuse_to_open(draft, "E_TABLE")


def test_a_file_without_an_encoded_run_has_no_lengths() -> None:
    """BCP-DAT-007: E_TABLE."""
    draft = base()
    draft.files[0]["lengths"] = True
    draft.data["a.bcd"].lengths = [76, 228]

    refuse_to_open(draft, "E_TABLE")


def test_a_file_whose_encoded_run_is_unused_may_have_lengths() -> None:
    """BCP-DAT-007: only then."""
    draft = two(b"", FLOATS)
    draft.state, draft.tensors = 0, [{"name": "", "dtype": "int8", "shape": [24]}]
    data = Draft(state=None)
    runs = [Run([bytes(5000)], codec=1), Run([FLOATS])]
    data.add_file("t.bcd", runs, attempt=EARLIER)
    unused, used = data.runs
    draft.data, draft.runs, draft.chunks = data.data, [used], []
    draft.files = [data.files[0] | {"unused": [4096, unused["stored"]]}]
    draft.add_chunk(0, run=0)
    accept(draft, ("int8", (24,), FLOATS))

    del draft.files[0]["lengths"]
    draft.data["t.bcd"].lengths = None
    accept(draft, ("int8", (24,), FLOATS))


def _overlapping(draft: Draft) -> None:
    draft.runs[1]["block0"] = 0


def _descending(draft: Draft) -> None:
    draft.runs[0]["block0"], draft.runs[1]["block0"] = 1, 0
    draft.data["a.bcd"].digests.reverse()


def _gap_between(draft: Draft) -> None:
    draft.runs[1]["block0"] = 2
    draft.data["a.bcd"].digests.insert(1, bytes(8))
    draft.files[0]["blocks"] = 3


def _gap_before(draft: Draft) -> None:
    draft.runs[0]["block0"], draft.runs[1]["block0"] = 1, 2
    draft.data["a.bcd"].digests.insert(0, bytes(8))
    draft.files[0]["blocks"] = 3


def _gap_after(draft: Draft) -> None:
    draft.data["a.bcd"].digests.append(bytes(8))
    draft.files[0]["blocks"] = 3


def _too_few(draft: Draft) -> None:
    draft.data["a.bcd"].digests.pop()
    draft.files[0]["blocks"] = 1


@pytest.mark.parametrize(
    "change", [_overlapping, _descending, _gap_between, _gap_before, _gap_after, _too_few]
)
def test_block_ranges_of_runs_cover_the_table(change: Callable[[Draft], None]) -> None:
    """BCP-DAT-008: E_TABLE."""
    draft = base()
    change(draft)

    refuse_to_open(draft, "E_TABLE")


@pytest.mark.parametrize("first", [0, 1, 3, 5])
def test_block_ranges_ascend_within_the_table_though_some_are_unused(first: int) -> None:
    """BCP-DAT-008: E_TABLE for a run whose blocks are those of another, or none."""
    draft = linked()
    assert [row["block0"] for row in draft.runs[2:]] == [1, 4]
    draft.runs[3]["block0"] = first

    refuse_to_open(draft, "E_TABLE")


# ---- headers -----------------------------------------------------------------------------------


def test_a_data_file_has_the_attempt_id_of_its_row() -> None:
    """BCP-DAT-009: E_ID, by validation; the row's default is the id of the root."""
    header, row = base(), base()
    header.data["a.bcd"].header.attempt = EARLIER
    row.files[0]["attempt"] = EARLIER

    find_only_by_validation(header, "E_ID")
    find_only_by_validation(row, "E_ID")


def test_the_header_of_a_linked_file_has_the_id_of_its_row_and_not_of_the_root() -> None:
    """BCP-DAT-009: E_ID if it is that of the root."""
    right, wrong = linked(), linked()
    wrong.data["b.bcd"].header.attempt = ATTEMPT

    accept(right)
    find_only_by_validation(wrong, "E_ID")


def test_headers_are_checked_at_both_levels() -> None:
    """BCP-DAT-009: a validator always does."""
    draft = base()
    draft.data["a.bcd"].header.attempt = EARLIER

    report = bcpformat.validate(store_of(draft), level="manifest", options=OPTIONS)
    assert [problem.code.value for problem in report.problems] == ["E_ID"]


def test_a_reader_uses_the_table_and_not_the_header() -> None:
    """BCP-DAT-009: a header of zeros is a problem, but no wrong value."""
    objects = base().encoded()
    damaged = objects | {"data/a.bcd": bytes(64) + objects["data/a.bcd"][64:]}

    assert read(damaged) == EXPECTED
    assert problems(damaged) == ["E_MAGIC"]
