"""Tensors that were written in many pieces: boxes and flat ranges, cut anywhere."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bcpformat
from bcpformat import MemoryStore
from bcpformat.model.region import Box, Region
from bcpformat.testing.faulty_store import FaultyStore
from tests.api.chunked import KEY, write_chunked
from tests.api.indices import indices
from tests.plan.layouts import regions

DTYPES = ["uint8", "<u2", "<f4", "<i8", "<c16", "?"]
SUBBYTE = {"int2": 2, "uint4": 4, "float4_e2m1fn": 4, "float6_e2m3fn": 6}
CODECS = ["raw", "zstd", "planes-zstd"]


def filled(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """An array of any bits that the type allows."""
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape, dtype=np.int64))
    if dtype in SUBBYTE:
        bits = rng.integers(0, 2 ** SUBBYTE[dtype], count, dtype=np.uint8)
        return bits.view(getattr(ml_dtypes, dtype)).reshape(shape)
    if dtype == "?":
        return rng.integers(0, 2, count).astype(bool).reshape(shape)
    return np.frombuffer(rng.bytes(count * np.dtype(dtype).itemsize), dtype).reshape(shape)


@st.composite
def layouts(
    draw: st.DrawFn, *, dtypes: list[str]
) -> tuple[dict[str, np.ndarray], dict[str, list[Region]]]:
    """Up to three arrays and regions that tile each."""
    arrays, cuts = {}, {}
    for number in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.integers(0, 6), max_size=3)))
        if shape and draw(st.integers(0, 2)) == 0:
            shape = (shape[0] * 211, *shape[1:])
        name = f"t{number}"
        arrays[name] = filled(shape, draw(st.sampled_from(dtypes)), draw(st.integers(0, 99)))
        cuts[name] = draw(regions(shape))
    return arrays, cuts


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@given(layouts(dtypes=[*DTYPES, *SUBBYTE]), st.sampled_from(CODECS))
@settings(max_examples=50)
def test_a_whole_read_puts_all_pieces_together(
    case: tuple[dict[str, np.ndarray], dict[str, list[Region]]], codec: str
) -> None:
    store = MemoryStore()
    write_chunked(store, *case, codec=codec)

    back = bcpformat.read(store, as_numpy=True)

    for name, array in case[0].items():
        assert equal(array, back[name]), name
    assert bcpformat.validate(store).ok


@given(layouts(dtypes=[*DTYPES, *SUBBYTE]), st.sampled_from(CODECS), st.data())
@settings(max_examples=60)
def test_any_slice_of_any_layout_is_that_of_numpy(
    case: tuple[dict[str, np.ndarray], dict[str, list[Region]]], codec: str, data: st.DataObject
) -> None:
    store = MemoryStore()
    write_chunked(store, *case, codec=codec)
    with bcpformat.open(store) as ckpt:
        for name, array in case[0].items():
            index = data.draw(indices(array.shape))

            found = ckpt[name][index]

            wanted = array[index]
            assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()
            assert np.shape(found) == np.shape(wanted)


@given(layouts(dtypes=[*DTYPES, *SUBBYTE]), st.sampled_from(CODECS), st.integers(0, 4))
@settings(max_examples=60)
def test_any_layout_goes_to_destinations_of_any_strides(
    case: tuple[dict[str, np.ndarray], dict[str, list[Region]]], codec: str, kind: int
) -> None:
    store = MemoryStore()
    write_chunked(store, *case, codec=codec)
    template = {name: strided_like(array, kind) for name, array in case[0].items()}

    bcpformat.read(store, into=template)

    for name, array in case[0].items():
        assert equal(array, np.ascontiguousarray(template[name]).reshape(array.shape)), name


def strided_like(array: np.ndarray, kind: int) -> np.ndarray:
    """A destination of the shape and type of an array: contiguous, transposed, reversed, apart."""
    if kind == 1:
        return np.zeros(array.shape[::-1], array.dtype).T
    if kind == 2 and array.ndim:
        return np.zeros(array.shape, array.dtype)[::-1]
    if kind == 3 and array.ndim:
        return np.zeros((*array.shape[:-1], array.shape[-1] * 3), array.dtype)[..., 1::3]
    if kind == 4 and array.ndim > 1:
        return np.zeros((array.shape[0], 5, *array.shape[1:]), array.dtype)[:, 2]
    return np.zeros(array.shape, array.dtype)


@given(layouts(dtypes=["<f4", "<i8"]))
@settings(max_examples=40)
def test_any_layout_goes_into_transposed_torch_parameters(
    case: tuple[dict[str, np.ndarray], dict[str, list[Region]]],
) -> None:
    store = MemoryStore()
    write_chunked(store, *case)
    template = {
        name: torch.zeros(a.shape[::-1], dtype=torch.float32 if a.dtype == "f4" else torch.int64)
        .permute(tuple(range(a.ndim))[::-1])
        .requires_grad_(a.dtype == "f4")
        for name, a in case[0].items()
    }

    bcpformat.read(store, into=template)

    for name, array in case[0].items():
        assert equal(array, template[name].detach().contiguous().numpy()), name


def test_only_the_blocks_of_a_slice_are_read() -> None:
    shape = (64, 1024)  # a row is one block of 4096 bytes
    array = np.arange(64 * 1024, dtype=np.float32).reshape(shape)
    half = Box(origin=(0, 0), shape=(32, 1024)), Box(origin=(32, 0), shape=(32, 1024))
    store = FaultyStore(MemoryStore())
    write_chunked(store, {"w": array}, {"w": [Region.whole(box) for box in half]})
    with bcpformat.open(store) as ckpt:
        _ = ckpt["w"][0]  # the block table
        before = len(store.operations)

        found = ckpt["w"][31:33, 5:7]

        reads = [o for o in store.operations[before:] if o.op in ("read", "read_into")]
    assert np.array_equal(found, array[31:33, 5:7])
    assert {o.key for o in reads} == {KEY}
    assert sum(o.nbytes for o in reads) == 2 * 4096


@pytest.mark.parametrize("codec", CODECS)
def test_elements_of_sixteen_bytes_cross_no_block_border(codec: str) -> None:
    array = filled((3, 1000), "<c16", 4)
    cuts = [
        Region(box=Box.whole((3, 1000)), start=0, count=255),
        Region(box=Box.whole((3, 1000)), start=255, count=2),
        Region(box=Box.whole((3, 1000)), start=257, count=2743),
    ]
    store = MemoryStore()
    write_chunked(store, {"w": array}, {"w": cuts}, codec=codec)
    template = {"w": np.zeros((1000, 3), np.complex128).T}

    bcpformat.read(store, into=template)

    assert equal(array, np.ascontiguousarray(template["w"]))
    with bcpformat.open(store) as ckpt:
        assert equal(array[:, 100:300:7], np.ascontiguousarray(ckpt["w"][:, 100:300:7]))


def test_damage_names_the_tensor_and_what_may_have_changed() -> None:
    array = np.arange(4096, dtype=np.int64).reshape(64, 64)
    box = Box.whole((64, 64))
    cuts = [Region(box=box, start=0, count=100), Region(box=box, start=100, count=3996)]
    store = MemoryStore()
    write_chunked(store, {"v": array + 1, "w": array}, {"v": cuts, "w": cuts})
    damaged = MemoryStore()
    for info in store.list():
        data = bytearray(store.read(info.key))
        if info.key == KEY:
            data[data.index(np.int64(4095).tobytes(), 4096 + 9 * 4096)] ^= 1
        damaged.put_if_absent(info.key, bytes(data))
    template = {"v": np.zeros((64, 64), np.int64), "w": np.zeros((64, 64), np.int64)}

    with pytest.raises(bcpformat.ChecksumError, match="'w'") as caught:
        bcpformat.read(damaged, into=template)

    assert caught.value.changed == ("v", "w")
    report = bcpformat.validate(damaged)
    assert [p.code for p in report.problems] == [bcpformat.ErrorCode.BLOCK_CHECKSUM]
    assert report.damaged == ("w",)


def test_a_tensor_of_several_chunks_cannot_be_mapped() -> None:
    array = np.zeros((4, 4), np.float32)
    cuts = [Region(box=Box.whole((4, 4)), start=s, count=8) for s in (0, 8)]
    store = MemoryStore()
    write_chunked(store, {"w": array}, {"w": cuts})

    with (
        bcpformat.open(store) as ckpt,
        pytest.raises(bcpformat.InvalidArgumentError, match="several chunks"),
    ):
        ckpt["w"].mmap()
