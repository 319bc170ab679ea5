"""Columns, and numbers that must not wrap (spec 2, 7.4)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from tests.oracle.make_checkpoint import Run
from tests.rules.build import (
    CHUNK_COLUMNS,
    PER_RANK_COLUMNS,
    RUN_COLUMNS,
    Draft,
    Parts,
    Row,
    base,
    pack,
    root,
)
from tests.rules.verdicts import accept, refuse_to_open

LARGEST = 2**53 - 1
COLUMNS = {"runs": RUN_COLUMNS, "chunks": CHUNK_COLUMNS, "per_rank": PER_RANK_COLUMNS}


def varied() -> Draft:
    """Return a valid checkpoint whose runs, chunks and per-rank values have every column."""
    draft = Draft(
        state=[6, "first", [19, 0], "m", 0, "second", [19, 1]],
        root=root(),
    )
    zeros, ones = b"\0" * 8192, b"\1" * 8
    value = pack("value")
    draft.add_file("a.bcd", [Run([ones]), Run([ones[:4], value], block=13)])
    draft.add_file("b.bcd", [Run([zeros], codec=1, item=2, block=12), Run([value])])
    draft.tensors = [{"name": "m", "dtype": "int8", "shape": [4, 5], "chunks": 3}]
    draft.tensors += [{"name": "n", "dtype": "int16", "shape": [4096]}]
    draft.state += ["n", 1]
    draft.add_chunk(0, run=0, extent=[4, 2])
    draft.add_chunk(0, run=1, origin=[0, 2], extent=[4, 3], count=4)
    draft.add_chunk(0, run=4, origin=[0, 2], extent=[4, 3], start=4, count=8, offset=64)
    draft.add_chunk(1, run=2)
    draft.add_file("c.bcd", [Run([value, b"\2" * 8])])
    draft.per_rank = [
        {"path": 0, "rank": 1, "run": 1, "offset": 64, "nbytes": len(value)},
        {"path": 1, "rank": 0, "run": 3, "offset": 0, "nbytes": len(value)},
        {"path": 1, "rank": 7, "run": 4, "offset": 0, "nbytes": len(value)},
    ]
    return draft


VARIED = {
    "first": {1: "value"},
    "m": ("int8", (4, 5), b"\1\1\1\1\1" + b"\1\1\1\2\2" + b"\1\1\2\2\2" * 2),
    "second": {0: "value", 7: "value"},
    "n": ("int16", (4096,), bytes(8192)),
}


def with_columns(draft: Draft, kind: str, **values: Any) -> Parts:
    """Return a checkpoint with other columns; one of None is left out."""
    parts = draft.parts()
    section = parts.of(kind)
    found = {**msgpack.unpackb(section.raw), **values}
    section.raw = pack({name: value for name, value in found.items() if value is not None})
    return parts


def columns_of(draft: Draft, kind: str) -> dict[str, bytes]:
    """Return the columns of a kind."""
    found: dict[str, bytes] = msgpack.unpackb(draft.parts().of(kind).raw)
    return found


ALL = [(kind, name) for kind, names in COLUMNS.items() for name in names]


def test_every_column_is_read() -> None:
    """BCP-COL-001, BCP-COL-002: a valid case that has them all."""
    for kind, names in COLUMNS.items():
        assert columns_of(varied(), kind).keys() == names.keys()

    accept(varied(), VARIED)


def test_no_column_is_read_where_all_values_are_defaults() -> None:
    """BCP-COL-001: a valid case with as few as can be."""
    draft = Draft(state=0, root=root())
    draft.add_file("a.bcd", [Run([b"\1"])])
    draft.tensors = [{"name": "", "dtype": "int8", "shape": []}]
    draft.add_chunk(0, run=0)
    assert columns_of(draft, "runs").keys() == {"raw"}
    assert columns_of(draft, "chunks") == {}

    accept(draft, ("int8", (), b"\1"))


DEFAULTS = {
    ("runs", "block0"): struct.pack("<I", 0),
    ("runs", "codec"): b"\0",
    ("runs", "file"): struct.pack("<I", 0),
    ("runs", "block"): b"\x14",
    ("runs", "item"): b"\1",
    ("runs", "position"): struct.pack("<Q", 4096),
    ("runs", "stored"): struct.pack("<Q", 8),
    ("chunks", "count"): struct.pack("<Q", 8),
    ("chunks", "extent"): struct.pack("<2Q", 4, 2),
    ("chunks", "offset"): struct.pack("<Q", 0),
    ("chunks", "origin"): bytes(16),
    ("chunks", "run"): struct.pack("<I", 0),
    ("chunks", "start"): struct.pack("<Q", 0),
}


@pytest.mark.parametrize(("kind", "name"), DEFAULTS)
def test_a_column_of_defaults_must_be_absent(kind: str, name: str) -> None:
    """BCP-COL-001: E_COLUMN."""
    draft = Draft(state=0, root=root())
    draft.add_file("a.bcd", [Run([b"\1" * 8])])
    draft.tensors = [{"name": "", "dtype": "int8", "shape": [4, 2]}]
    draft.add_chunk(0, run=0)

    refuse_to_open(with_columns(draft, kind, **{name: DEFAULTS[kind, name]}), "E_COLUMN")


@pytest.mark.parametrize("name", ["offset", "path", "rank", "run"])
def test_a_column_of_defaults_must_be_absent_from_per_rank_values(name: str) -> None:
    """BCP-COL-001: E_COLUMN."""
    draft = Draft(state=[19, 0], root=root())
    draft.add_file("a.bcd", [Run([b"\xc3"])])
    draft.per_rank = [{"path": 0, "rank": 0, "run": 0, "offset": 0, "nbytes": 1}]
    accept(draft, {0: True})

    zero = bytes(8 if name == "offset" else 4)
    refuse_to_open(with_columns(draft, "per_rank", **{name: zero}), "E_COLUMN")


@pytest.mark.parametrize(("kind", "name"), [("runs", "raw"), ("per_rank", "nbytes")])
def test_a_column_whose_default_is_not_legal_must_be_present(kind: str, name: str) -> None:
    """BCP-COL-001: E_COLUMN."""
    refuse_to_open(with_columns(varied(), kind, **{name: None}), "E_COLUMN")


@pytest.mark.parametrize(("kind", "name"), ALL)
@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-1], lambda data: data + data[-8:], lambda data: b""],
    ids=["a byte less", "more values", "no values"],
)
def test_a_column_has_a_value_for_each_row(
    kind: str, name: str, change: Callable[[bytes], bytes]
) -> None:
    """BCP-COL-002: E_COLUMN."""
    data = columns_of(varied(), kind)[name]

    refuse_to_open(with_columns(varied(), kind, **{name: change(data)}), "E_COLUMN")


@pytest.mark.parametrize("name", ["origin", "extent"])
def test_a_vector_has_a_value_for_each_axis(name: str) -> None:
    """BCP-COL-002: E_COLUMN for one value a row."""
    draft = varied()
    data = struct.pack("<4Q", 1, 1, 1, 1)

    refuse_to_open(with_columns(draft, "chunks", **{name: data}), "E_COLUMN")


@pytest.mark.parametrize(
    ("kind", "name"), [pair for pair in ALL if COLUMNS[pair[0]][pair[1]][0] == "Q"]
)
@pytest.mark.parametrize("value", [2**53, 2**63, 2**64 - 1])
def test_a_value_is_at_most_the_largest_integer(kind: str, name: str, value: int) -> None:
    """BCP-COL-003, BCP-CNV-002: E_RANGE."""
    data = columns_of(varied(), kind)[name]
    wrong = data[:-8] + struct.pack("<Q", value)

    refuse_to_open(with_columns(varied(), kind, **{name: wrong}), "E_RANGE")


def test_columns_are_a_map_of_bin() -> None:
    """BCP-MAN-005: E_TYPE for anything else."""
    array = varied().parts()
    array.of("runs").raw = b"\x90"

    refuse_to_open(array, "E_TYPE")
    refuse_to_open(with_columns(varied(), "runs", block=[18]), "E_TYPE")
    refuse_to_open(with_columns(varied(), "chunks", run="text"), "E_TYPE")


# ---- order and references ----------------------------------------------------------------------


def _swap_files(draft: Draft) -> None:
    draft.runs[0], draft.runs[2] = draft.runs[2], draft.runs[0]


def _swap_positions(draft: Draft) -> None:
    draft.runs[0], draft.runs[1] = draft.runs[1], draft.runs[0]
    for row in (*draft.chunks, *draft.per_rank):
        row["run"] = {0: 1, 1: 0}.get(row["run"], row["run"])


def _swap_origins(draft: Draft) -> None:
    draft.chunks[0], draft.chunks[1] = draft.chunks[1], draft.chunks[0]


def _swap_starts(draft: Draft) -> None:
    draft.chunks[1], draft.chunks[2] = draft.chunks[2], draft.chunks[1]


def _swap_paths(draft: Draft) -> None:
    draft.per_rank[0], draft.per_rank[1] = draft.per_rank[1], draft.per_rank[0]


def _swap_ranks(draft: Draft) -> None:
    draft.per_rank[1], draft.per_rank[2] = draft.per_rank[2], draft.per_rank[1]


def _same_position(draft: Draft) -> None:
    draft.runs[1]["position"] = draft.runs[0]["position"]


def _same_start(draft: Draft) -> None:
    draft.chunks[2]["start"] = draft.chunks[1]["start"]


def _same_rank(draft: Draft) -> None:
    draft.per_rank[2]["rank"] = draft.per_rank[1]["rank"]


@pytest.mark.parametrize(
    "change",
    [
        _swap_files,
        _swap_positions,
        _swap_origins,
        _swap_starts,
        _swap_paths,
        _swap_ranks,
        _same_position,
        _same_start,
        _same_rank,
    ],
)
def test_rows_ascend_and_no_two_have_equal_keys(change: Callable[[Draft], None]) -> None:
    """BCP-COL-004: E_ORDER."""
    draft = varied()
    change(draft)

    refuse_to_open(draft, "E_ORDER")


@pytest.mark.parametrize(
    ("rows", "column"), [("chunks", "run"), ("per_rank", "run"), ("objects", "run")]
)
@pytest.mark.parametrize("value", [4, 2**32 - 1])
def test_a_run_that_is_referred_to_exists(rows: str, column: str, value: int) -> None:
    """BCP-COL-005: E_INDEX."""
    draft = base()
    getattr(draft, rows)[-1][column] = value

    refuse_to_open(draft, "E_INDEX")


@pytest.mark.parametrize("value", [2, 2**32 - 1])
def test_the_file_of_a_run_exists(value: int) -> None:
    """BCP-COL-005: E_INDEX."""
    draft = base()
    draft.runs[-1]["file"] = value

    refuse_to_open(draft, "E_INDEX")


def test_the_node_of_a_per_rank_value_exists() -> None:
    """BCP-COL-005: E_INDEX."""
    draft = base()
    draft.per_rank[-1]["path"] = 1

    refuse_to_open(draft, "E_INDEX")


@pytest.mark.parametrize("ordinal", [0, 1, 2])
def test_every_per_rank_node_has_a_row(ordinal: int) -> None:
    """BCP-COL-005: E_STATE for a node without one, be it the first, the last or another."""
    draft = base()
    draft.state = [6, *draft.state[1:7], "rank", [8, [19, 0], [19, 1], [19, 2]], "w", 1, "z", 2]
    first, second = draft.per_rank
    left = [path for path in range(3) if path != ordinal]
    first["path"], second["path"], second["rank"] = *left, 0

    refuse_to_open(draft, "E_STATE")


@pytest.mark.parametrize(
    ("column", "value", "code"),
    [
        ("codec", 3, "E_CODEC"),
        ("codec", 255, "E_CODEC"),
        ("item", 0, "E_RANGE"),
        ("item", 3, "E_RANGE"),
        ("item", 16, "E_RANGE"),
        ("block", 11, "E_RANGE"),
        ("block", 31, "E_RANGE"),
        ("block", 0, "E_RANGE"),
        ("block", 255, "E_RANGE"),
    ],
)
def test_codec_item_and_block_size_are_those_of_the_table(
    column: str, value: int, code: str
) -> None:
    """BCP-COL-006: E_CODEC or E_RANGE."""
    draft = base()
    draft.runs[2][column] = value

    refuse_to_open(draft, code)


@pytest.mark.parametrize("block", [12, 30])
def test_the_smallest_and_the_largest_block_size_are_accepted(block: int) -> None:
    """BCP-COL-006: a block of 2^30 bytes may be shorter, as the last one."""
    draft = base()
    draft.runs[1]["block"] = block

    accept(draft)


@pytest.mark.parametrize(("rows", "column"), [("runs", "raw"), ("per_rank", "nbytes")])
def test_lengths_of_runs_and_values_are_at_least_1(rows: str, column: str) -> None:
    """BCP-MAN-005: E_RANGE."""
    draft = base()
    getattr(draft, rows)[0][column] = 0

    refuse_to_open(draft, "E_RANGE")


def test_the_stored_length_of_a_run_is_at_least_1() -> None:
    """BCP-MAN-005: E_RANGE."""
    draft = base()
    draft.runs[2]["stored"] = 0

    refuse_to_open(draft, "E_RANGE")


@pytest.mark.parametrize("chunks", [0, 3, LARGEST])
def test_tensors_have_as_many_chunks_as_there_are_rows(chunks: int) -> None:
    """BCP-COL-007: E_COLUMN."""
    draft = base()
    draft.tensors[1]["chunks"] = chunks

    refuse_to_open(draft, "E_COLUMN")


def test_a_sum_of_chunks_that_wraps_is_none() -> None:
    """BCP-COL-007, BCP-CNV-003: 2^11 times 2^53 is 0 in 64 bits."""
    draft = base()
    tensors: list[Row] = [{"name": f"t{n:04}", "dtype": "int8", "shape": [1]} for n in range(2049)]
    for row in tensors:
        row["chunks"] = LARGEST
    draft.tensors = [*draft.tensors, *tensors]
    draft.tensors.sort(key=lambda row: row["name"])

    refuse_to_open(draft, "E_COLUMN")


# ---- numbers that must not wrap ----------------------------------------------------------------


def empty(dtype: str, shape: list[int]) -> Draft:
    """Return a checkpoint of one tensor without elements."""
    draft = Draft(state=0, root=root())
    draft.tensors = [{"name": "", "dtype": dtype, "shape": shape}]
    if dtype == "uint4":
        draft.root["require"] = ["subbyte"]
    return draft


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("int8", [0, LARGEST]),
        ("int8", [LARGEST, 0]),
        ("uint4", [LARGEST, 0]),
        ("float64", [2**50 - 1, 0]),
        ("int8", [2**26, 0, 2**26]),
        ("int8", [0] * 32),
    ],
)
def test_the_largest_tensors_without_elements_are_opened(dtype: str, shape: list[int]) -> None:
    """BCP-CNV-003: at most 2^53-1 elements and bytes, counting an axis of 0 as 1."""
    draft = empty(dtype, shape)

    accept(draft, (dtype, tuple(shape), b""))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("int8", [0, 2**52, 2]),
        ("int8", [2**52, 2, 0]),
        ("int8", [2**52, 0, 2]),
        ("uint4", [2**52, 0, 2]),
        ("int16", [2**52, 0]),
        ("float64", [0, 2**50]),
        ("complex128", [2**49, 0]),
        ("int8", [2**32, 2**32, 0]),
        ("int8", [0, *[2**52] * 31]),
    ],
)
def test_a_larger_tensor_is_refused_whatever_the_order_of_its_axes(
    dtype: str, shape: list[int]
) -> None:
    """BCP-CNV-003: E_OVERFLOW."""
    refuse_to_open(empty(dtype, shape), "E_OVERFLOW")


def _extent(draft: Draft) -> None:
    draft.chunks[1] |= {"extent": [2**32, 2**32], "count": 3}


def _far_origin(draft: Draft) -> None:
    draft.chunks[2] |= {"origin": [LARGEST, 0]}


def _far_start(draft: Draft) -> None:
    draft.chunks[2] |= {"start": LARGEST, "count": LARGEST}


def _far_offset(draft: Draft) -> None:
    draft.chunks[2] |= {"offset": 2**53 - 64}


def _long_value(draft: Draft) -> None:
    draft.per_rank[1] |= {"nbytes": LARGEST}


def _long_object(draft: Draft) -> None:
    draft.objects[0] |= {"nbytes": LARGEST}


def _far_block(draft: Draft) -> None:
    draft.runs[1] |= {"block0": 2**32 - 1}


def _many_blocks(draft: Draft) -> None:
    draft.files[0] |= {"blocks": LARGEST}


def _far_table(draft: Draft) -> None:
    draft.files[0] |= {"table": 2**53 - 4096}


def _far_position(draft: Draft) -> None:
    draft.runs[1] |= {"position": 2**53 - 4096}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_extent, "E_BOUNDS"),
        (_far_origin, "E_BOUNDS"),
        (_far_start, "E_BOUNDS"),
        (_far_offset, "E_EXTENT_BOUNDS"),
        (_long_value, "E_EXTENT_BOUNDS"),
        (_long_object, "E_EXTENT_BOUNDS"),
        (_far_block, "E_TABLE"),
        (_many_blocks, "E_TABLE"),
        (_far_table, "E_EXTENT_HOLE"),
        (_far_position, "E_EXTENT_OVERLAP"),
    ],
)
def test_sums_and_products_of_large_numbers_do_not_wrap(
    change: Callable[[Draft], None], code: str
) -> None:
    """BCP-CNV-003: each is refused for what it is."""
    draft = base()
    change(draft)

    refuse_to_open(draft, code)
