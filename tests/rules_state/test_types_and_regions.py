"""Data types and regions (spec 8), on real checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bcpformat
from bcpformat import ErrorCode, MemoryStore
from bcpformat.engine.options import CodecName
from bcpformat.model.manifest import ChunkTable, Manifest, ints
from tests.rules_state.hostile import (
    accepted,
    data_key,
    found_by_validation,
    manifest_of,
    read,
    refused,
    with_data,
    with_documents,
    with_manifest,
    written,
)

W = np.arange(64, dtype=np.float32).reshape(4, 16)


def stored_bytes(store: MemoryStore) -> bytes:
    """Return the stored bytes of the first chunk, which is raw."""
    manifest = manifest_of(store)
    position = int(manifest.runs.position[0] + manifest.chunks.offset[0])
    raw = int(manifest.runs.raw[0])
    return store.read(data_key(store), offset_bytes=position, nbytes=raw)


# ---- data types --------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["raw", "zstd", "planes-zstd"])
def test_every_bit_pattern_is_preserved(codec: CodecName) -> None:
    """BCP-DTY-001: NaN payloads, signalling ones too, and negative zero."""
    bits = np.arange(2**16, dtype=np.uint16)
    odd = np.array([0x7FF0000000000001, 0xFFF8DEADBEEF0000, 1 << 63, 0], np.uint64)
    state = {"half": bits.view(np.float16), "double": odd.view(np.float64)}

    back = accepted(written(state, codec=codec))

    assert back["half"].view(np.uint16).tobytes() == bits.tobytes()
    assert back["double"].view(np.uint64).tobytes() == odd.tobytes()


@pytest.mark.parametrize(
    ("array", "stored"),
    [
        (np.array([1, -2], "<i4"), "01000000 feffffff"),
        (np.array([1, -2], ">i4"), "01000000 feffffff"),
        (np.array([1 + 2j], "<c8"), "0000803f 00000040"),
        (np.array([1 + 2j], ">c8"), "0000803f 00000040"),
        (np.array([[1, 2], [3, 4]], np.uint16).T, "0100 0300 0200 0400"),
        (np.array([True, False]), "01 00"),
    ],
)
def test_elements_are_stored_little_endian_one_after_the_other(
    array: np.ndarray[Any, Any], stored: str
) -> None:
    """BCP-DTY-002: complex elements as real part, then imaginary part."""
    assert stored_bytes(written({"w": array})) == bytes.fromhex(stored)


@pytest.mark.parametrize(
    ("dtype", "values", "stored"),
    [
        ("uint4", [1, 2, 3], "21 03"),
        ("uint2", [1, 2, 3, 0, 1], "39 01"),
        ("float6_e2m3fn", [0, 0, 0], "00 00 00"),
    ],
)
def test_sub_byte_elements_are_one_bit_stream(dtype: str, values: list[int], stored: str) -> None:
    """BCP-DTY-003, BCP-DTY-004: from bit 0 on, in as few bytes as possible."""
    array = np.array(values, np.uint8).view(getattr(ml_dtypes, dtype))
    store = written({"w": array})

    assert stored_bytes(store) == bytes.fromhex(stored)
    assert accepted(store)["w"].tobytes() == array.tobytes()


def test_unused_bits_that_are_not_zero_are_found_by_full_validation() -> None:
    """BCP-DTY-003: of the last byte of three elements of four bits, the upper half."""
    store = written({"w": np.array([1, 2, 3], np.uint8).view(ml_dtypes.uint4)})
    position = int(manifest_of(store).runs.position[0])

    def change(data: bytearray) -> None:
        data[position + 1] |= 0x10

    assert found_by_validation(with_data(store, lambda _: None)) == []
    assert found_by_validation(with_data(store, change)) == [ErrorCode.PADDING]


def test_a_chunk_of_more_bytes_than_its_run_is_refused() -> None:
    """BCP-DTY-004: four elements of four bits fit in two bytes, five do not."""
    store = written({"w": np.array([1, 2, 3], np.uint8).view(ml_dtypes.uint4)})

    def shaped(count: int) -> MemoryStore:
        return with_manifest(
            store, lambda m: replace(m, tensors=replace(m.tensors, shapes=[(count,)]))
        )

    assert read(shaped(4))["w"].view(np.uint8).tolist() == [1, 2, 3, 0]
    assert refused(shaped(5)) is ErrorCode.EXTENT_BOUNDS


def test_a_sub_byte_tensor_without_its_feature_is_refused() -> None:
    """BCP-DTY-005."""
    store = written({"w": np.array([1, 2], np.uint8).view(ml_dtypes.uint4)})

    assert manifest_of(store).require == ("subbyte",)
    assert refused(with_manifest(store, lambda m: replace(m, require=()))) is ErrorCode.FEATURE


def test_an_inline_tensor_of_a_sub_byte_type_needs_no_feature() -> None:
    """BCP-DTY-005: the feature is about the section `tensors`."""
    value = np.array([1, 2, 3], np.uint8).view(ml_dtypes.uint4)
    store = written({"r": bcpformat.PerRank(value)})

    back = accepted(store)

    assert manifest_of(store).require == ()
    assert back["r"][0].tobytes() == value.tobytes()


# ---- regions -----------------------------------------------------------------------------------


def cut(
    *boxes: tuple[tuple[int, ...], tuple[int, ...]],
    offsets: tuple[int, ...] = (0, 128),
    ranges: tuple[tuple[int, int], ...] | None = None,
) -> MemoryStore:
    """Return a checkpoint of `W` as two chunks of 128 bytes each.

    Args:
        boxes: Origin and extent of each chunk.
        offsets: Their places in the run.
        ranges: Start and count of each, if not all of the box.
    """

    def change(m: Manifest) -> Manifest:
        chunks = ChunkTable(
            run=ints([0] * len(boxes)),
            offset=ints(offsets),
            origin=ints([n for origin, _ in boxes for n in origin]),
            extent=ints([n for _, extent in boxes for n in extent]),
            start=ints([start for start, _ in ranges]) if ranges else None,
            count=ints([count for _, count in ranges]) if ranges else None,
        )
        tensors = replace(m.tensors, chunks=ints([len(boxes)]))
        return replace(m, tensors=tensors, chunks=chunks)

    return with_manifest(written({"w": W}), change)


TOP, BOTTOM = ((0, 0), (2, 16)), ((2, 0), (2, 16))
WHOLE = ((0, 0), (4, 16))


def test_two_boxes_that_tile_a_tensor_are_read() -> None:
    """BCP-REG-001, BCP-REG-003."""
    assert accepted(cut(TOP, BOTTOM))["w"].tolist() == W.tolist()


def test_two_flat_ranges_that_tile_a_box_are_read() -> None:
    """BCP-REG-002, BCP-REG-003: they end within a row."""
    found = cut(WHOLE, WHOLE, ranges=((0, 21), (21, 43)))
    assert refused(found) is ErrorCode.EXTENT_BOUNDS  # their bytes do not fit: geometry does

    assert accepted(cut(WHOLE, WHOLE, ranges=((0, 32), (32, 32))))["w"].tolist() == W.tolist()


@pytest.mark.parametrize(
    "second",
    [((2, 0), (2, 0)), ((2, 0), (0, 16)), ((2, 0), (3, 16)), ((3, 0), (2, 16)), ((2, 1), (2, 16))],
)
def test_a_box_that_is_empty_or_leaves_its_tensor_is_refused(second: Any) -> None:
    """BCP-REG-001."""
    assert refused(cut(TOP, second)) is ErrorCode.BOUNDS


@pytest.mark.parametrize("second", [(32, 0), (32, 33), (64, 1)])
def test_a_flat_range_that_is_empty_or_leaves_its_box_is_refused(second: tuple[int, int]) -> None:
    """BCP-REG-002."""
    assert refused(cut(WHOLE, WHOLE, ranges=((0, 32), second))) is ErrorCode.BOUNDS


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (TOP, ((1, 0), (2, 16))),  # a gap and an overlap of equal size
        (TOP, ((2, 0), (1, 16))),  # a gap
        (TOP, ((1, 0), (3, 16))),  # an overlap
        (((0, 0), (2, 16)), ((0, 8), (4, 8))),
    ],
)
def test_regions_that_do_not_tile_their_tensor_are_refused(first: Any, second: Any) -> None:
    """BCP-REG-003: a gap and an overlap of equal size do not cancel."""
    assert refused(cut(first, second)) is ErrorCode.COVERAGE


def test_a_flat_range_that_overlaps_another_is_refused() -> None:
    """BCP-REG-003."""
    assert refused(cut(WHOLE, WHOLE, ranges=((0, 33), (32, 32)))) is ErrorCode.COVERAGE


def test_a_tensor_without_elements_has_no_chunk() -> None:
    """BCP-REG-004."""
    store = written({"a": np.zeros((0, 3), np.float32), "w": W})

    def change(m: Manifest) -> Manifest:
        chunks = ChunkTable(run=ints([0, 0]), offset=ints([0, 0]))
        return replace(m, tensors=replace(m.tensors, chunks=ints([1, 1])), chunks=chunks)

    assert accepted(store)["a"].shape == (0, 3)
    assert refused(with_manifest(store, change)) is ErrorCode.COVERAGE


def test_a_tensor_with_elements_has_a_chunk() -> None:
    """BCP-REG-003."""
    store = written({"a": np.zeros(3, np.float32), "w": W})

    def change(m: Manifest) -> Manifest:
        chunks = ChunkTable(run=ints([0]), offset=ints([64]))
        return replace(m, tensors=replace(m.tensors, chunks=ints([0, 1])), chunks=chunks)

    assert refused(with_manifest(store, change)) is ErrorCode.COVERAGE


def split(axes: int) -> MemoryStore:
    """Return a tensor of so many axes of 2, cut behind its first element, which splits them all."""
    rest = 2**axes - 1
    store = written({"a": np.zeros(1, np.uint8), "b": np.arange(rest, dtype=np.uint8)})

    def change(_root: dict[str, Any], sections: dict[str, Any]) -> None:
        sections["tensors"] = [{"chunks": 2, "dtype": "uint8", "name": "a", "shape": [2] * axes}]
        sections["state"] = [6, "a", [0, 0, 1]]
        sections["chunks"]["start"] = np.array([0, 1], "<u8").tobytes()
        sections["chunks"]["count"] = np.array([1, rest], "<u8").tobytes()

    return with_documents(store, change)


def test_a_tensor_is_split_on_8_axes_and_no_more() -> None:
    """BCP-REG-005."""
    back = accepted(split(8))

    assert back["a"].reshape(-1).tolist() == [0, *range(255)]
    assert refused(split(9)) is ErrorCode.LIMIT


def test_equal_tensors_are_stored_once_and_padding_not_at_all() -> None:
    """BCP-REG-006: one process holds replicas as names of one tensor; its padding is no element."""
    buffer = np.arange(100.0)
    parameter = buffer[:90]
    store = MemoryStore()

    report = bcpformat.write(store, {"a": parameter, "again": parameter})

    assert report.raw_bytes == parameter.nbytes
    assert len(manifest_of(store).chunks) == 1
