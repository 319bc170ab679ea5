"""Blocks: codecs by name and code, raw where nothing is won, and use from several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.codec.block import BlockEncoder, Codec, decode_block
from bcpformat.codec.views import KEPT_SCRATCH_BYTES, Scratch
from bcpformat.errors import ErrorCode, FormatError, InvalidArgumentError

NOISE = np.random.default_rng(11).bytes(4096)


@pytest.mark.parametrize(
    ("code", "name"), [(0, "raw"), (1, "zstd"), (2, "planes-zstd")], ids=["raw", "zstd", "planes"]
)
def test_codecs_have_their_code_and_name_of_the_registry(code: int, name: str) -> None:
    assert Codec(code).registry_name == name
    assert Codec.from_name(name) == code


@pytest.mark.parametrize("name", ["lz4", "RAW", "planes_zstd", ""])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="'planes-zstd'"):
        Codec.from_name(name)


@pytest.mark.parametrize("item", [0, 3, 16])
@pytest.mark.parametrize("codec", Codec)
def test_an_item_the_format_lacks_is_refused(codec: Codec, item: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"got {item}"):
        BlockEncoder(codec, item=item)


def test_planes_of_an_item_of_one_byte_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="got 1"):
        BlockEncoder(Codec.PLANES_ZSTD, item=1)


@pytest.mark.parametrize("codec", Codec)
@given(data=st.data())
def test_stored_bytes_are_never_more_than_raw_and_decode_to_it(
    codec: Codec, data: st.DataObject
) -> None:
    pattern = data.draw(st.binary(min_size=1, max_size=40))
    raw = (pattern * data.draw(st.integers(0, 100)) * 8)[:4096]
    raw = raw[: len(raw) // 8 * 8]
    stored = BlockEncoder(codec, item=8).encode(raw)
    out = np.full(len(raw), 0xAA, np.uint8)
    decode_block(stored, out, codec=codec, item=8)

    assert len(stored) <= len(raw)
    assert out.tobytes() == raw


@pytest.mark.parametrize("codec", Codec)
def test_a_block_that_does_not_shrink_is_the_callers_own_bytes(codec: Codec) -> None:
    raw = np.frombuffer(NOISE, np.uint8)
    stored = BlockEncoder(codec, item=4).encode(raw)

    assert np.shares_memory(np.frombuffer(stored, np.uint8), raw)
    assert len(stored) == len(raw)


@pytest.mark.parametrize("codec", Codec)
def test_a_block_as_long_as_its_raw_bytes_is_raw_even_if_it_looks_encoded(codec: Codec) -> None:
    stored = zstandard.compress(bytes(10_000))
    out = np.empty(len(stored), np.uint8)
    decode_block(stored, out, codec=codec, item=1)

    assert out.tobytes() == stored


def test_a_zstd_block_is_one_stock_frame_of_the_level_asked_for() -> None:
    raw = b"".join(b"%d, " % (i * i) for i in range(3000))
    stored = BlockEncoder(Codec.ZSTD, item=1, level=9).encode(raw)

    assert stored == zstandard.ZstdCompressor(level=9).compress(raw)


@pytest.mark.parametrize("codec", Codec)
def test_more_stored_than_raw_bytes_are_refused(codec: Codec) -> None:
    with pytest.raises(FormatError, match="4096 stored bytes for 4088 raw bytes") as caught:
        decode_block(NOISE, np.empty(4088, np.uint8), codec=codec, item=2)

    assert caught.value.code is ErrorCode.BLOCK_ENCODING


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("stored", [b"", NOISE[:100]], ids=["nothing", "noise"])
def test_fewer_stored_bytes_that_are_no_encoding_are_refused(codec: Codec, stored: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        decode_block(stored, np.empty(4096, np.uint8), codec=codec, item=2)

    assert caught.value.code is ErrorCode.BLOCK_ENCODING


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.PLANES_ZSTD])
def test_encoded_blocks_stay_as_they_are_when_the_encoder_goes_on(codec: Codec) -> None:
    encoder = BlockEncoder(codec, item=4)
    first = encoder.encode(np.arange(2000, dtype="<u4"))
    before = bytes(first)
    encoder.encode(np.arange(7, 2007, dtype="<u4"))

    assert first == before


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.PLANES_ZSTD])
def test_threads_decode_at_the_same_time(codec: Codec) -> None:
    raws = [np.arange(i, i + 30_000, dtype="<u4").view(np.uint8) for i in range(16)]
    encoder = BlockEncoder(codec, item=4)
    stored = [bytes(encoder.encode(raw)) for raw in raws]

    def decode(data: bytes) -> bytes:
        out = np.empty(120_000, np.uint8)
        decode_block(data, out, codec=codec, item=4)
        return out.tobytes()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(decode, stored)) == [raw.tobytes() for raw in raws]


def test_scratch_keeps_the_memory_of_usual_blocks_only() -> None:
    scratch = Scratch()
    kept = scratch.take(KEPT_SCRATCH_BYTES)
    large = scratch.take(KEPT_SCRATCH_BYTES + 1)

    assert np.shares_memory(scratch.take(100), kept)
    assert not np.shares_memory(scratch.take(100), large)
