"""The sections of chunks, next to the tensors they belong to: one fault at a time (spec 7.4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.errors import ErrorCode, FormatError
from bcpformat.model.limits import DEFAULT_LIMITS, GROUP_ROWS
from bcpformat.model.manifest import ChunkTable, Manifest, TensorTable, ints
from bcpformat.wire import decode_manifest, encode_manifest
from bcpformat.wire.layout import Layout
from tests.wire.manifests import (
    STATE,
    empty_manifest,
    file_of,
    manifest_with,
    packed,
    root_values,
    section_row,
)


def decode(data: bytes) -> Manifest:
    return decode_manifest(data, key="manifest.bcp", limits=DEFAULT_LIMITS)


def code_of(data: bytes) -> ErrorCode:
    with pytest.raises(FormatError) as caught:
        decode(data)
    return caught.value.code


SHAPES: dict[str, list[int]] = {"a": [2, 3], "b": [], "c": [5], "d": [0, 4]}
CHUNKS: dict[str, list[int]] = {
    "origin": [0, 0, 0, 1, 0, 3],
    "extent": [2, 1, 2, 2, 3, 2],
}


def chunks_with(counts: Mapping[str, int], rows: int, minor: int = 0, **changes: Any) -> bytes:
    tensors = [
        {"chunks": counts[name], "dtype": "bool", "name": name, "shape": shape}
        if name in counts
        else {"dtype": "bool", "name": name, "shape": shape}
        for name, shape in SHAPES.items()
    ]
    raw = [msgpack.packb(tensors), msgpack.packb(packed(CHUNKS | changes)), STATE]
    root = root_values(
        [
            section_row("tensors", raw[0], rows=4),
            section_row("chunks", raw[1], rows=rows),
            section_row("state", raw[2]),
        ]
    )
    return file_of(root, *raw, minor=minor)


TWO = {"a": 2, "c": 2}
"""Rows: two of a, one of b, two of c, none of d."""


def test_vectors_have_as_many_values_as_the_tensor_of_their_row_has_axes() -> None:
    chunks = decode(chunks_with(TWO, 5)).chunks

    assert chunks.origin is not None
    assert chunks.origin.tolist() == CHUNKS["origin"]
    assert chunks.run.tolist() == [0] * 5


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"origin": None}, ErrorCode.ORDER),
        ({"origin": [0] * 6}, ErrorCode.COLUMN),
        ({"origin": [0, 1, 0, 0, 0, 3]}, ErrorCode.ORDER),
        ({"origin": [1, 0, 0, 1, 0, 3]}, ErrorCode.ORDER),
        ({"origin": [0, 0, 0, 0, 0, 3]}, ErrorCode.ORDER),
        ({"origin": [0, 0, 0, 1, 3, 0]}, ErrorCode.ORDER),
        ({"origin": [0, 0, 0, 1, 0]}, ErrorCode.COLUMN),
        ({"origin": [0, 0, 0, 1, 0, 3, 0]}, ErrorCode.COLUMN),
        ({"origin": [0, 0, 0, 1, 0, 2**53]}, ErrorCode.RANGE),
        ({"extent": [2, 3, 2, 3, 5, 5]}, ErrorCode.COLUMN),
        ({"extent": [2, 3, 2, 3, 5]}, ErrorCode.COLUMN),
        ({"extent": [2, 3, 2, 3, 5, 2**64 - 1]}, ErrorCode.RANGE),
        ({"count": [2, 4, 1, 3, 2]}, ErrorCode.COLUMN),
        ({"count": [6, 6, 1, 5, 5], "extent": None}, ErrorCode.COLUMN),
        ({"origin": [0, 0, 0, 0, 0, 3], "start": [1, 1, 0, 0, 0]}, ErrorCode.ORDER),
        ({"origin": [0, 0, 0, 0, 0, 3], "start": [2, 1, 0, 0, 0]}, ErrorCode.ORDER),
        ({"start": [0] * 5}, ErrorCode.COLUMN),
        ({"start": [0] * 4}, ErrorCode.COLUMN),
        ({"run": [0] * 5}, ErrorCode.COLUMN),
        ({"run": bytes(40)}, ErrorCode.COLUMN),
        ({"offset": [0] * 5}, ErrorCode.COLUMN),
        ({"offset": [0, 0, 0, 0, 2**53]}, ErrorCode.RANGE),
        ({"stored": bytes(40)}, ErrorCode.KEY_UNKNOWN),
    ],
)
def test_a_chunks_column_out_of_its_rule_is_refused(
    changes: dict[str, Any], code: ErrorCode
) -> None:
    assert code_of(chunks_with(TWO, 5, **changes)) is code


@pytest.mark.parametrize(
    "changes",
    [
        {"extent": None},
        {"extent": [2, 3, 2, 3, 5, 4]},
        {"extent": [0, 0, 0, 0, 0, 0]},
        {"count": [2, 4, 1, 3, 1]},
        {"count": [6, 6, 1, 5, 4], "extent": None},
        {"count": [0, 0, 0, 0, 0]},
        {"origin": [0, 0, 0, 0, 0, 3], "start": [0, 1, 0, 0, 0]},
        {"origin": None, "start": [0, 1, 0, 0, 1]},
    ],
)
def test_a_chunks_column_that_says_something_is_accepted(changes: dict[str, Any]) -> None:
    assert len(decode(chunks_with(TWO, 5, **changes)).chunks) == 5


def test_a_count_is_held_against_the_exact_product_of_the_extents() -> None:
    """2^32 * 2^32 and 2^27 * 2^27 * 2^10 wrap to 0, which is no default."""
    for extent in ([2**32, 2**32, 1, 1], [2**52, 2**52, 1, 1]):
        wrapping = chunks_with(
            {"a": 2}, 4, count=[0, 1, 1, 0], extent=[*extent, 0], origin=[0, 0, 0, 1, 0]
        )

        found = decode(wrapping).chunks

        assert found.count is not None
        assert found.count.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(("counts", "rows"), [(TWO, 4), (TWO, 6), ({}, 5), ({"a": 2**53 - 1}, 5)])
def test_the_chunks_of_all_tensors_must_add_up_to_the_rows(
    counts: dict[str, int], rows: int
) -> None:
    assert code_of(chunks_with(counts, rows)) is ErrorCode.COLUMN


def test_the_sum_of_chunks_cannot_wrap() -> None:
    names = [f"{number:04d}" for number in range(2**11)]
    tensors = [
        {
            "chunks": 2**53 - 1 if name != names[-1] else 2**11,
            "dtype": "bool",
            "name": name,
            "shape": [],
        }
        for name in names
    ]

    assert code_of(manifest_with("tensors", tensors, len(names))) is ErrorCode.COLUMN


def flat(starts: list[int], *, shape: tuple[int, ...] = ()) -> Manifest:
    rows = len(starts)
    return dataclasses.replace(
        empty_manifest(),
        tensors=TensorTable(names=("w",), dtypes=("bool",), shapes=(shape,), chunks=ints([rows])),
        chunks=ChunkTable(run=ints([0] * rows), offset=ints([0] * rows), start=ints(starts)),
    )


def test_the_order_holds_across_groups() -> None:
    starts = list(range(GROUP_ROWS + 1))
    assert decode(encode_manifest(flat(starts), codec="none")).chunks.start is not None

    starts[-1] = GROUP_ROWS - 1
    with pytest.raises(FormatError) as caught:
        encode_manifest(flat(starts), codec="none")
    assert caught.value.code is ErrorCode.ORDER

    last = np.array([GROUP_ROWS - 1], "<u8").tobytes()
    good = np.arange(GROUP_ROWS, dtype="<u8").tobytes()
    groups = [msgpack.packb({"start": good}), msgpack.packb({"start": last})]
    tensors = msgpack.packb([{"chunks": GROUP_ROWS + 1, "dtype": "bool", "name": "w", "shape": []}])
    rows = [
        section_row("tensors", tensors),
        section_row("chunks", groups[0], rows=GROUP_ROWS),
        section_row("chunks", groups[1], first=GROUP_ROWS),
        section_row("state", STATE),
    ]
    assert code_of(file_of(root_values(rows), tensors, *groups, STATE)) is ErrorCode.ORDER


@pytest.mark.parametrize("said", [0, -1])
@pytest.mark.parametrize("names", [{"extent"}, {"count"}, {"extent", "count"}])
def test_extents_and_counts_that_one_group_has_follow_from_the_shape_in_the_other(
    names: set[str], said: int
) -> None:
    rows = GROUP_ROWS + 1
    manifest = flat(list(range(rows)), shape=(5, 3))
    extent, count = np.tile([5, 3], rows), np.full(rows, 15)
    extent[said], count[said] = 2, 1
    columns = {
        "extent": extent if "extent" in names else None,
        "count": count if "count" in names else None,
    }
    chunks = dataclasses.replace(manifest.chunks, **columns)

    found = decode(encode_manifest(dataclasses.replace(manifest, chunks=chunks), codec="none"))

    for name, values in columns.items():
        assert np.array_equal(getattr(found.chunks, name), values), name


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8), st.data())
def test_rows_are_given_to_their_tensors(
    tensors: list[tuple[int, int]], data: st.DataObject
) -> None:
    table = TensorTable(
        names=tuple(map(str, range(len(tensors)))),
        dtypes=("bool",) * len(tensors),
        shapes=tuple((number + 2,) * ndim for number, (ndim, _) in enumerate(tensors)),
        chunks=ints([chunks for _, chunks in tensors]),
    )
    owners = [number for number, (_, chunks) in enumerate(tensors) for _ in range(chunks)]
    first = data.draw(st.integers(0, len(owners)))
    stop = data.draw(st.integers(first, len(owners)))
    mine = owners[first:stop]
    layout = Layout(table)

    values = layout.values_before(stop) - layout.values_before(first)

    assert values == sum(tensors[owner][0] for owner in mine)
    if mine:
        rows = layout.rows(first, stop - first)
        assert rows.tensor.tolist() == mine
        assert rows.shapes().tolist() == [n for owner in mine for n in table.shapes[owner]]
        assert rows.elements(None).tolist() == [int(np.prod(table.shapes[owner])) for owner in mine]
