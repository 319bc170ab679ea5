"""The sections runs, chunks and per_rank: one fault at a time (spec 7.4)."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import numpy as np
import pytest

from bcpformat.errors import BcpError, ErrorCode, FormatError, InvalidArgumentError
from bcpformat.model.limits import DEFAULT_LIMITS, GROUP_ROWS
from bcpformat.model.manifest import Manifest, RunTable
from bcpformat.wire import decode_manifest, encode_manifest
from tests.wire.manifests import (
    STATE,
    empty_manifest,
    file_of,
    manifest_with,
    packed,
    root_values,
    section_row,
    small_manifest,
)

RUNS: dict[str, list[int]] = {"position": [4096, 8192], "raw": [1, 2]}
PER_RANK: dict[str, list[int]] = {"nbytes": [5, 6], "rank": [0, 1]}


def decode(data: bytes) -> Manifest:
    return decode_manifest(data, key="manifest.bcp", limits=DEFAULT_LIMITS)


def code_of(data: bytes) -> ErrorCode:
    with pytest.raises(FormatError) as caught:
        decode(data)
    return caught.value.code


def runs_with(minor: int = 0, **changes: Any) -> bytes:
    return manifest_with("runs", packed(RUNS | changes), 2, minor=minor)


def per_rank_with(**changes: Any) -> bytes:
    return manifest_with("per_rank", packed(PER_RANK | changes), 2)


def test_absent_columns_of_runs_have_their_defaults() -> None:
    runs = decode(runs_with()).runs

    assert runs.file.tolist() == [0, 0]
    assert runs.stored.tolist() == [1, 2]
    assert runs.codec.tolist() == [0, 0]
    assert runs.item.tolist() == [1, 1]
    assert runs.block_log2.tolist() == [20, 20]
    assert runs.block0.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"position": None}, ErrorCode.ORDER),
        ({"position": [4096, 4096]}, ErrorCode.COLUMN),
        ({"position": [8192, 4096]}, ErrorCode.ORDER),
        ({"position": [8192, 8192]}, ErrorCode.ORDER),
        ({"file": [1, 0]}, ErrorCode.ORDER),
        ({"file": [0, 0]}, ErrorCode.COLUMN),
        ({"raw": None}, ErrorCode.COLUMN),
        ({"raw": [0, 0]}, ErrorCode.COLUMN),
        ({"raw": [1, 0]}, ErrorCode.RANGE),
        ({"raw": [1, 2**53]}, ErrorCode.RANGE),
        ({"raw": [1, 2**64 - 1]}, ErrorCode.RANGE),
        ({"raw": [1]}, ErrorCode.COLUMN),
        ({"raw": [1, 2, 3]}, ErrorCode.COLUMN),
        ({"raw": bytes(15)}, ErrorCode.COLUMN),
        ({"raw": "0123456789abcdef"}, ErrorCode.TYPE),
        ({"raw": 1}, ErrorCode.TYPE),
        ({"stored": [1, 2]}, ErrorCode.COLUMN),
        ({"stored": [1, 2**53]}, ErrorCode.RANGE),
        ({"block": [20, 20]}, ErrorCode.COLUMN),
        ({"block": [20, 11]}, ErrorCode.RANGE),
        ({"block": [31, 20]}, ErrorCode.RANGE),
        ({"block": b"\x0c\x0c\0\0\0\0\0\0"}, ErrorCode.COLUMN),
        ({"block0": [0, 0]}, ErrorCode.COLUMN),
        ({"codec": [0, 0]}, ErrorCode.COLUMN),
        ({"codec": [0, 3]}, ErrorCode.CODEC),
        ({"item": [1, 1]}, ErrorCode.COLUMN),
        ({"item": [1, 0]}, ErrorCode.RANGE),
        ({"item": [1, 3]}, ErrorCode.RANGE),
        ({"item": [16, 1]}, ErrorCode.RANGE),
        ({"zzz": b"\1\1"}, ErrorCode.KEY_UNKNOWN),
    ],
)
def test_a_runs_column_out_of_its_rule_is_refused(changes: dict[str, Any], code: ErrorCode) -> None:
    assert code_of(runs_with(**changes)) is code


@pytest.mark.parametrize(
    "changes",
    [
        {"block": [12, 30]},
        {"codec": [1, 2]},
        {"file": [0, 2**32 - 1]},
        {"item": [2, 8]},
        {"stored": [1, 1]},
        {"file": [0, 1], "position": [8192, 4096]},
    ],
)
def test_a_runs_column_within_its_rule_is_accepted(changes: dict[str, Any]) -> None:
    assert len(decode(runs_with(**changes)).runs) == 2


def test_unknown_columns_of_a_newer_minor_are_ignored() -> None:
    assert len(decode(runs_with(zzz=b"\1", minor=1)).runs) == 2


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"nbytes": None}, ErrorCode.COLUMN),
        ({"nbytes": [5, 0]}, ErrorCode.RANGE),
        ({"nbytes": [2**53, 1]}, ErrorCode.RANGE),
        ({"rank": None}, ErrorCode.ORDER),
        ({"rank": [1, 0]}, ErrorCode.ORDER),
        ({"rank": [1, 1]}, ErrorCode.ORDER),
        ({"path": [1, 0]}, ErrorCode.ORDER),
        ({"run": [0, 0]}, ErrorCode.COLUMN),
        ({"run": bytes(16)}, ErrorCode.COLUMN),
        ({"offset": [0, 0]}, ErrorCode.COLUMN),
        ({"offset": [0, 2**53]}, ErrorCode.RANGE),
        ({"count": b""}, ErrorCode.KEY_UNKNOWN),
    ],
)
def test_a_per_rank_column_out_of_its_rule_is_refused(
    changes: dict[str, Any], code: ErrorCode
) -> None:
    assert code_of(per_rank_with(**changes)) is code


def test_per_rank_values_ascend_by_path_then_rank() -> None:
    ranks = decode(per_rank_with(path=[0, 1], rank=[7, 0])).per_rank

    assert ranks.path.tolist() == [0, 1]
    assert ranks.rank.tolist() == [7, 0]


@pytest.mark.parametrize("kind", ["runs", "chunks", "per_rank"])
def test_a_columns_section_that_is_no_map_of_the_profile_is_refused(kind: str) -> None:
    def with_section(raw: bytes) -> bytes:
        tensors = msgpack.packb([{"dtype": "bool", "name": "w", "shape": []}])
        parts = [("tensors", tensors), (kind, raw), ("state", STATE)]
        if kind == "per_rank":
            parts.append(parts.pop(1))
        if kind != "chunks":
            parts = [part for part in parts if part[0] != "tensors"]
        return file_of(root_values([section_row(*part) for part in parts]), *(p[1] for p in parts))

    assert code_of(with_section(b"\x90")) is ErrorCode.TYPE
    assert code_of(with_section(b"\x81\xa3raw\xc0")) is ErrorCode.MP_TYPE
    assert code_of(with_section(b"\x81\xa3raw\xc6\xff\xff\xff\xff")) is ErrorCode.MP_MALFORMED
    assert code_of(with_section(b"\x82\xa3run\x01\xa3raw\x01")) is ErrorCode.MP_NONCANONICAL


def test_a_column_that_no_section_has_takes_no_memory() -> None:
    found = decode(runs_with())

    for column in (found.runs.file, found.runs.codec, found.chunks.run, found.chunks.offset):
        assert column.strides == (0,)
        assert not column.flags.writeable
    assert np.shares_memory(found.runs.stored, found.runs.raw)


ROWS = 2 * GROUP_ROWS + 1
RAMP = np.arange(ROWS)
DEFAULTS = {
    "runs": {
        "file": 0 * RAMP,
        "position": 4096 * RAMP,
        "raw": RAMP + 9,
        "stored": RAMP + 9,
        "codec": 0 * RAMP,
        "item": 0 * RAMP + 1,
        "block_log2": 0 * RAMP + 20,
        "block0": 0 * RAMP,
    },
    "per_rank": {
        "path": 0 * RAMP,
        "rank": RAMP,
        "run": 0 * RAMP,
        "offset": 0 * RAMP,
        "nbytes": RAMP + 9,
    },
}


@pytest.mark.parametrize(
    ("table", "column", "value", "row"),
    [
        ("runs", "file", 7, -1),
        ("per_rank", "path", 7, -1),
        *(
            (table, column, value, row)
            for table, column, value in (
                ("runs", "block_log2", 12),
                ("runs", "block0", 7),
                ("runs", "codec", 1),
                ("runs", "item", 4),
                ("runs", "stored", 1),
                ("per_rank", "offset", 64),
                ("per_rank", "run", 7),
            )
            for row in (0, GROUP_ROWS, -1)
        ),
    ],
)
def test_a_column_that_one_group_has_is_the_default_in_the_others(
    table: str, column: str, value: int, row: int
) -> None:
    columns = {name: values.copy() for name, values in DEFAULTS[table].items()}
    columns[column][row] = value
    kind = type(getattr(empty_manifest(), table))
    manifest = dataclasses.replace(empty_manifest(), **{table: kind(**columns)})

    found = getattr(decode(encode_manifest(manifest, codec="none")), table)

    for name, values in columns.items():
        assert np.array_equal(getattr(found, name), values), name


def test_columns_that_repeat_shrink_by_far() -> None:
    file, row = RAMP // 1000, RAMP % 1000
    same = {"position": 4096 + 2**20 * row, "raw": 0 * RAMP + 2**20, "stored": 0 * RAMP + 2**20}
    runs = RunTable(**DEFAULTS["runs"] | same | {"file": file, "block0": 4 * row})
    manifest = dataclasses.replace(empty_manifest(), runs=runs)

    stored, raw = (len(encode_manifest(manifest, codec=codec)) for codec in ("zstd", "none"))

    assert stored * 100 < raw


@pytest.mark.parametrize("table", ["runs", "per_rank"])
def test_rows_of_many_groups_are_there_and_back(table: str) -> None:
    manifest = small_manifest()
    rows = GROUP_ROWS + 3
    columns = {
        field.name: np.ones(rows, np.int64)
        for field in dataclasses.fields(getattr(manifest, table))
    }
    for name, values in {"position": np.arange(rows), "rank": np.arange(rows)}.items():
        if name in columns:
            columns[name] = values
    if table == "runs":
        columns["block_log2"] = np.full(rows, 20)
    manifest = dataclasses.replace(
        empty_manifest(), **{table: type(getattr(manifest, table))(**columns)}
    )

    found = getattr(decode(encode_manifest(manifest, codec="zstd")), table)

    for name, values in columns.items():
        assert getattr(found, name).tolist() == values.tolist(), name


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("runs", "position", -1),
        ("runs", "position", 2**53),
        ("runs", "file", 2**32),
        ("chunks", "run", 2**32),
        ("chunks", "offset", -1),
        ("per_rank", "rank", 2**32),
        ("per_rank", "nbytes", 2**53),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_not_written(
    table: str, column: str, value: int
) -> None:
    manifest = small_manifest()
    rows = getattr(manifest, table)
    values = getattr(rows, column).copy()
    values[0 if value < 0 else -1] = value
    changed = dataclasses.replace(
        manifest, **{table: dataclasses.replace(rows, **{column: values})}
    )

    with pytest.raises(InvalidArgumentError, match=column) as caught:
        encode_manifest(changed, codec="none")

    assert caught.value.code is ErrorCode.NO_FORM


@pytest.mark.parametrize(
    ("table", "column", "value", "code"),
    [
        ("runs", "item", 3, ErrorCode.RANGE),
        ("runs", "codec", 9, ErrorCode.CODEC),
        ("runs", "raw", 0, ErrorCode.RANGE),
        ("per_rank", "nbytes", 0, ErrorCode.RANGE),
    ],
)
def test_a_row_that_breaks_a_rule_is_not_written(
    table: str, column: str, value: int, code: ErrorCode
) -> None:
    manifest = small_manifest()
    rows = getattr(manifest, table)
    values = getattr(rows, column).copy()
    values[-1] = value
    changed = dataclasses.replace(
        manifest, **{table: dataclasses.replace(rows, **{column: values})}
    )

    with pytest.raises(BcpError) as caught:
        encode_manifest(changed, codec="none")

    assert caught.value.code is code
