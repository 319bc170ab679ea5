"""Whole manifests: there and back, damage, and what decoding costs (spec 5.1, 7, 13)."""

from __future__ import annotations

import dataclasses
import time
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.errors import BcpError, ErrorCode, FormatError, InvalidArgumentError
from bcpformat.model.limits import DEFAULT_LIMITS, GROUP_ROWS, Limits
from bcpformat.model.manifest import ChunkTable, Ints, Manifest, TensorTable, ints
from bcpformat.wire import (
    Kind,
    SectionRow,
    Sections,
    decode_header,
    decode_manifest,
    decode_root,
    encode_manifest,
    root_extent,
)
from tests.wire.manifests import (
    DIGEST,
    empty_manifest,
    file_of,
    manifest_with,
    manifests,
    plain,
    root_values,
    section_row,
    small_manifest,
)


def decode(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Manifest:
    return decode_manifest(data, key="manifest.bcp", limits=limits)


def code_of(data: bytes, limits: Limits = DEFAULT_LIMITS) -> ErrorCode:
    with pytest.raises(FormatError) as caught:
        decode(data, limits)
    return caught.value.code


@pytest.mark.slow
@given(manifests(), st.sampled_from(["none", "zstd"]))
def test_a_manifest_is_decoded_to_what_was_encoded(manifest: Manifest, codec: Any) -> None:
    data = encode_manifest(manifest, codec=codec)

    found = decode(data)

    assert plain(found) == plain(manifest)
    assert encode_manifest(found, codec=codec) == data


@pytest.mark.parametrize("make", [small_manifest, empty_manifest])
def test_the_small_manifests_are_decoded_to_what_was_encoded(make: Any) -> None:
    assert plain(decode(encode_manifest(make(), codec="none"))) == plain(make())


def test_a_view_of_a_manifest_is_decoded_like_its_bytes() -> None:
    data = encode_manifest(small_manifest(), codec="zstd")

    found = decode_manifest(memoryview(data), key="k", limits=DEFAULT_LIMITS)

    assert plain(found) == plain(small_manifest())


def test_a_section_is_compressed_only_if_that_makes_it_shorter() -> None:
    manifest = dataclasses.replace(small_manifest(), state=[6, *(["k" * 50, False] * 50)])

    data = encode_manifest(manifest, codec="zstd")

    root = decode_root(data, key="k", limits=DEFAULT_LIMITS)
    codecs = {row.kind: row.codec for row in root.sections}
    assert codecs["state"] == "zstd"
    assert codecs["objects"] == "none"
    assert plain(decode(data)) == plain(manifest)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_manifest_cut_anywhere_is_truncated(codec: Any) -> None:
    data = encode_manifest(small_manifest(), codec=codec)

    for nbytes in range(len(data)):
        assert code_of(data[:nbytes]) is ErrorCode.TRUNCATED


def test_a_flip_in_any_byte_is_found() -> None:
    data = bytearray(encode_manifest(small_manifest(), codec="zstd"))

    for position in range(len(data)):
        data[position] ^= 1 << position % 8
        expected = ErrorCode.MAGIC if position < 8 else ErrorCode.HEADER_CHECKSUM
        if position >= 64:
            expected = ErrorCode.MANIFEST_CHECKSUM
        assert code_of(bytes(data)) is expected
        data[position] ^= 1 << position % 8


@pytest.mark.slow
@given(st.data())
def test_damage_under_right_digests_is_refused_or_read_as_something_canonical(
    data: st.DataObject,
) -> None:
    """Every section and the root, changed anywhere, under digests that fit."""
    intact = encode_manifest(small_manifest(), codec="none")
    root = decode_root(intact, key="k", limits=DEFAULT_LIMITS)
    parts = {row.kind: intact[row.position_bytes : row.end_bytes] for row in root.sections}
    kind = data.draw(st.sampled_from([*parts]))
    raw = bytearray(parts[kind])
    for _ in range(data.draw(st.integers(1, 2))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    parts[kind] = bytes(raw)
    rows = {row.kind: row.rows for row in root.sections}
    sections = [section_row(k, part, rows=rows[k]) for k, part in parts.items()]
    changed = file_of(root_values(sections), *parts.values())

    try:
        found = decode(changed)
    except FormatError:
        return
    assert decode(encode_manifest(found, codec="none")) is not None


def test_bytes_after_the_last_section_are_refused() -> None:
    data = encode_manifest(small_manifest(), codec="none")

    assert code_of(data + b"\0") is ErrorCode.LENGTH


def many_chunks(count: int, *, tensors: int) -> tuple[TensorTable, ChunkTable]:
    """Return 2-d tensors cut into grids of 20 columns, with all columns that boxes need."""
    each = count // tensors
    row, col = np.divmod(np.arange(each), 20)
    table = TensorTable(
        names=tuple(f"layers.{i:05d}.weight" for i in range(tensors)),
        dtypes=("bfloat16",) * tensors,
        shapes=((each // 20 * 128, 20 * 256),) * tensors,
        chunks=np.full(tensors, each),
    )
    rng = np.random.default_rng(0)
    chunks = ChunkTable(
        run=np.sort(rng.integers(0, 20_000, count)),
        offset=rng.integers(0, 2**20, count) * 64,
        origin=np.tile(np.stack([row * 128, col * 256], axis=1).reshape(-1), tensors),
        extent=np.tile(np.array([128, 256]), count),
    )
    return table, chunks


def with_chunks(tensors: TensorTable, chunks: ChunkTable) -> Manifest:
    return dataclasses.replace(empty_manifest(), tensors=tensors, chunks=chunks)


def test_chunks_cost_little_more_than_their_columns() -> None:
    manifest = with_chunks(*many_chunks(200_000, tensors=50))
    data = encode_manifest(manifest, codec="zstd")
    root = decode_root(data, key="k", limits=DEFAULT_LIMITS)
    raw_bytes = sum(row.raw_bytes for row in root.sections)
    tracemalloc.start()
    begin = time.perf_counter()

    found = decode(data)

    assert time.perf_counter() - begin < 1  # 0.02 s without tracing
    assert tracemalloc.get_traced_memory()[1] < 2 * raw_bytes
    tracemalloc.stop()
    assert plain(found) == plain(manifest)


def flat_chunks(rows: int, **columns: Ints) -> Manifest:
    """Return one 1-d tensor with chunks at the origins 0, 2, 4, ... of extent 2."""
    tensors = TensorTable(
        names=("w",), dtypes=("bool",), shapes=((2 * rows,),), chunks=ints([rows])
    )
    base = {
        "run": ints(np.zeros(rows)),
        "offset": ints(np.zeros(rows)),
        "origin": np.arange(rows) * 2,
    }
    return with_chunks(tensors, ChunkTable(**{**base, **columns}))


ROWS = 2 * GROUP_ROWS + 5


@pytest.mark.parametrize("group", [0, 1, 2])
@pytest.mark.parametrize("name", ["extent", "count", "start", "offset", "run"])
def test_a_column_that_one_group_has_is_filled_with_defaults_in_the_others(
    name: str, group: int
) -> None:
    default = {"extent": 2 * ROWS, "count": 2 * ROWS}.get(name, 0)
    values = np.full(ROWS, default)
    values[group * GROUP_ROWS + 3] = 7
    manifest = flat_chunks(ROWS, **{name: values})

    data = encode_manifest(manifest, codec="none")

    assert plain(decode(data)) == plain(manifest)
    root = decode_root(data, key="k", limits=DEFAULT_LIMITS)
    assert [row.rows for row in root.of_kind("chunks")] == [GROUP_ROWS, GROUP_ROWS, 5]
    sizes = [row.raw_bytes for row in root.of_kind("chunks")]
    plain_sizes = [
        row.raw_bytes
        for row in decode_root(
            encode_manifest(flat_chunks(ROWS), codec="none"), key="k", limits=DEFAULT_LIMITS
        ).of_kind("chunks")
    ]
    assert [a > b for a, b in zip(sizes, plain_sizes, strict=True)] == [
        number == group for number in range(3)
    ]


@pytest.mark.parametrize("name", ["extent", "count"])
def test_a_column_that_differs_from_its_default_in_the_last_row_only_is_kept(name: str) -> None:
    values = np.full(1000, 2000)
    values[-1] = 7
    manifest = flat_chunks(1000, **{name: values})

    assert plain(decode(encode_manifest(manifest, codec="none"))) == plain(manifest)


def test_counts_default_to_the_extents_of_their_own_group() -> None:
    extent = np.full(ROWS, 2)
    count = np.full(ROWS, 2)
    count[-1] = 1
    manifest = flat_chunks(ROWS, extent=extent, count=count)

    assert plain(decode(encode_manifest(manifest, codec="none"))) == plain(manifest)


def test_columns_that_say_nothing_are_left_out() -> None:
    rows = 10
    silent = flat_chunks(
        rows,
        extent=np.full(rows, 2 * rows),
        count=np.full(rows, 2 * rows),
        start=np.zeros(rows, np.int64),
    )

    data = encode_manifest(silent, codec="none")

    assert data == encode_manifest(flat_chunks(rows), codec="none")
    found = decode(data).chunks
    assert found.extent is None
    assert found.count is None
    assert found.start is None


def test_a_reader_decodes_only_the_groups_it_asks_for() -> None:
    extent = np.full(ROWS, 2)
    manifest = flat_chunks(ROWS, extent=extent)
    data = encode_manifest(manifest, codec="zstd")
    header = decode_header(data, key="k", expect=Kind.MANIFEST)
    root = decode_root(data[: root_extent(header)], key="k", limits=DEFAULT_LIMITS)
    fetched = []

    def fetch(row: SectionRow) -> bytes:
        fetched.append((row.kind, row.first))
        return data[row.position_bytes : row.end_bytes]

    sections = Sections(root, fetch, key="k", limits=DEFAULT_LIMITS)
    tensors = sections.tensors()
    first, _, last = root.of_kind("chunks")
    found = sections.chunks([first, last], tensors=tensors)

    assert fetched == [("tensors", 0), ("chunks", 0), ("chunks", 2 * GROUP_ROWS)]
    expected = np.concatenate([np.arange(GROUP_ROWS), np.arange(2 * GROUP_ROWS, ROWS)]) * 2
    assert found.origin is not None
    assert found.origin.tolist() == expected.tolist()
    assert len(found) == GROUP_ROWS + 5


def test_a_section_of_another_length_than_its_row_is_truncated() -> None:
    data = encode_manifest(small_manifest(), codec="none")
    root = decode_root(data, key="k", limits=DEFAULT_LIMITS)
    sections = Sections(root, lambda _: b"\x90", key="k", limits=DEFAULT_LIMITS)

    with pytest.raises(FormatError) as caught:
        sections.files()

    assert caught.value.code is ErrorCode.TRUNCATED


@pytest.mark.parametrize("kind", ["files", "tensors", "objects"])
def test_another_number_of_rows_than_the_root_says_is_refused(kind: str) -> None:
    assert code_of(manifest_with(kind, [], 1)) is ErrorCode.SECTION


def test_a_frame_that_does_not_decode_is_a_wrong_encoding() -> None:
    raw = b"\x92\x08\xc2"
    row = ["state", 0, 1, "zstd", len(raw), 100, section_row("state", raw)[-1]]

    assert code_of(file_of(root_values([row]), raw)) is ErrorCode.MANIFEST_ENCODING


@pytest.mark.parametrize(
    "limits",
    [
        Limits(root_bytes=100),
        Limits(section_bytes=100),
        Limits(files=1),
        Limits(chunks=2),
        Limits(chunks=1),
    ],
)
def test_what_is_above_a_limit_is_refused(limits: Limits) -> None:
    assert code_of(encode_manifest(small_manifest(), codec="none"), limits) is ErrorCode.LIMIT


def test_a_claim_of_many_axes_is_refused_before_it_is_allocated() -> None:
    """Few bytes may announce many rows; each would get 32 origins."""
    shape = (1,) * 31 + (2**20,)
    tensor = {"chunks": 2**20, "dtype": "bool", "name": "w", "shape": list(shape)}
    raw = msgpack.packb([tensor])
    groups = [section_row("chunks", b"\x80", first=n * 2**15, rows=2**15) for n in range(32)]
    state = b"\x91\x06"
    rows = [section_row("tensors", raw), *groups, section_row("state", state)]
    data = file_of(root_values(rows), raw, b"\x80" * 32, state)

    assert code_of(data, Limits(section_bytes=2**27)) is ErrorCode.LIMIT
    assert code_of(data) is ErrorCode.ORDER


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"attempt_id": DIGEST}, ErrorCode.EXTENT_HOLE),
        ({"require": ("zzz",)}, ErrorCode.FEATURE),
        ({"require": ("subbyte", "planes-zstd")}, ErrorCode.ORDER),
        ({"digest": "md5"}, ErrorCode.DIGEST),
        ({"extra": {"later": 1}}, ErrorCode.KEY_UNKNOWN),
        ({"user": {"x": None}}, ErrorCode.NO_FORM),
        ({"step": -1}, ErrorCode.NO_FORM),
        ({"state": [8, 1.5]}, ErrorCode.NO_FORM),
    ],
)
def test_a_manifest_that_breaks_a_rule_is_not_written(
    changes: dict[str, Any], code: ErrorCode
) -> None:
    manifest = dataclasses.replace(small_manifest(), **changes)

    with pytest.raises(BcpError) as caught:
        encode_manifest(manifest, codec="none")

    assert caught.value.code is code


def test_a_column_of_another_length_is_not_written() -> None:
    manifest = small_manifest()
    for table, column in (("runs", "stored"), ("chunks", "run"), ("chunks", "origin")):
        old = getattr(manifest, table)
        for size in (len(getattr(old, column)) + 1, len(getattr(old, column)) - 1):
            new = dataclasses.replace(old, **{column: ints([1] * size)})

            with pytest.raises((InvalidArgumentError, FormatError)):
                encode_manifest(dataclasses.replace(manifest, **{table: new}), codec="none")
