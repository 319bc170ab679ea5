"""`Shard` and `Shards` as destinations: every element of a region reaches its place in the data."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.api.framework import Cast, Target, frameworks
from bcpformat.api.overlap import is_folded
from bcpformat.model.dtypes import DType, pack_subbyte
from bcpformat.model.leaves import FLAG_NUMPY
from bcpformat.model.shards import Shard, Shards

Array = np.ndarray[Any, np.dtype[Any]]


def wanted(value: object, *, saved: str = "int32", cast: Cast = False) -> Target:
    for library in frameworks():
        if type(value) in library.adapters:
            return library.target(value, cast, DType.named(saved))
    raise AssertionError("no library takes it")


def numbered(shape: tuple[int, ...], dtype: Any = np.int32) -> Array:
    return np.arange(prod(shape)).reshape(shape).astype(dtype)


def fill(target: Target, whole: Array) -> None:
    """Write the elements that a target wants, as a read does."""
    assert target.refusal is None and target.parts is not None
    dtype = DType.from_numpy(whole.dtype)
    for part in target.parts:
        box = tuple(slice(o, o + e) for o, e in zip(part.box.origin, part.box.shape, strict=True))
        source = np.asarray(whole[box])
        if part.strided is not None:
            part.strided[...] = source.view(dtype.opaque)
            continue
        data = np.ascontiguousarray(source).tobytes()
        if dtype.bits < 8:
            data = pack_subbyte(np.frombuffer(data, np.uint8), dtype.bits).tobytes()
        ctypes.memmove(part.address, data, len(data))
    if target.after is not None:
        target.after()


def taken(shard: Shard, whole: Array) -> Array:
    """Return the elements of a shard's region, in the shape of its data."""
    box = shard.region.box
    area = tuple(slice(o, o + e) for o, e in zip(box.origin, box.shape, strict=True))
    flat = np.asarray(whole[area]).reshape(-1)
    start, count = shard.region.start, shard.region.count
    return flat[start : start + count].reshape(shard.data.shape)


@st.composite
def shards(draw: st.DrawFn) -> Shard:
    """Return a shard of any region, with int32 data of numpy of any strides."""
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))
    origin = tuple(draw(st.integers(0, extent - 1)) for extent in shape)
    box = tuple(draw(st.integers(1, e - o)) for e, o in zip(shape, origin, strict=True))
    flat = None
    held = box
    if draw(st.booleans()):
        start = draw(st.integers(0, prod(box)))
        flat = (start, draw(st.integers(0, prod(box) - start)))
        held = (flat[1],)
    data: Array = np.full(held, -1, np.int32)
    match draw(st.integers(0, 2)):
        case 1 if held:
            data = np.full((*held[:-1], 2 * held[-1]), -1, np.int32)[..., ::2]
        case 2:
            data = np.ascontiguousarray(data.T).T[::-1] if held else data
    return Shard(data, global_shape=shape, origin=origin, shape=box, flat=flat)


@given(shards(), st.sampled_from(["int32", "int64", "other library"]))
def test_every_element_of_a_region_reaches_its_place(shard: Shard, kind: str) -> None:
    whole = numbered(shard.global_shape)
    if kind == "int64":
        shard = Shard(
            shard.data.astype(np.int64),
            global_shape=shard.global_shape,
            origin=shard.origin,
            shape=shard.shape,
            flat=shard.flat,
        )
    elif kind == "other library" and all(stride >= 0 for stride in shard.data.strides):
        shard = Shard(
            torch.from_numpy(shard.data),
            global_shape=shard.global_shape,
            origin=shard.origin,
            shape=shard.shape,
            flat=shard.flat,
        )

    target = wanted(shard, cast=kind == "int64")
    fill(target, whole)

    assert target.shape == shard.global_shape
    assert target.parts is not None
    assert len(target.parts) <= max(1, 2 * len(shard.global_shape) - 1)
    assert np.array_equal(np.asarray(shard.data), taken(shard, whole))


@given(shards())
def test_parts_are_within_the_region_and_know_the_memory_of_the_data(shard: Shard) -> None:
    target = wanted(shard)

    assert target.parts is not None
    assert sum(part.box.numel for part in target.parts) == shard.region.count
    for part in target.parts:
        if part.address:
            first = shard.data.__array_interface__["data"][0]
            assert first <= part.address < first + shard.data.nbytes
        else:
            assert part.memory is not None and np.shares_memory(part.memory, shard.data)
            assert not is_folded(part.memory.shape, part.memory.strides, size=4)


@pytest.mark.parametrize("flat", [(0, 60), (3, 40), (59, 1), (7, 0)])
@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.float4_e2m1fn, ml_dtypes.int2])
def test_elements_smaller_than_a_byte_reach_their_places(flat: tuple[int, int], dtype: Any) -> None:
    whole = (np.arange(60, dtype=np.uint8) % 4).reshape(3, 4, 5)
    whole = whole.astype(np.int8).astype(dtype)
    shard = Shard(np.zeros(flat[1], dtype), global_shape=(3, 4, 5), origin=(0, 0, 0), flat=flat)

    fill(wanted(shard, saved=DType.from_numpy(whole.dtype).name), whole)

    assert shard.data.tobytes() == taken(shard, whole).tobytes()


def test_a_box_of_elements_smaller_than_a_byte_is_filled() -> None:
    whole = (np.arange(12) % 4).reshape(3, 4).astype(np.int8).astype(ml_dtypes.int4)
    shard = Shard(np.zeros((2, 3), ml_dtypes.int4), global_shape=(3, 4), origin=(1, 1))

    fill(wanted(shard, saved="int4"), whole)

    assert shard.data.tobytes() == whole[1:3, 1:4].tobytes()


def test_pieces_of_one_tensor_are_filled_together() -> None:
    whole = numbered((4, 6))
    first = Shard(np.zeros((2, 6), np.int32), global_shape=(4, 6), origin=(0, 0))
    second = Shard(np.zeros(5, np.int32), global_shape=(4, 6), origin=(0, 0), flat=(14, 5))
    nothing = Shard(np.zeros((0, 6), np.int32), global_shape=(4, 6), origin=(4, 0))

    target = wanted(Shards([first, second, nothing]))
    fill(target, whole)

    assert target.parts is not None and len(target.parts) == 3
    assert np.array_equal(first.data, whole[:2])
    assert second.data.tolist() == [14, 15, 16, 17, 18]


def test_a_shard_without_elements_wants_nothing() -> None:
    target = wanted(Shard(np.zeros((0, 3), np.int32), global_shape=(4, 3), origin=(2, 0)))

    assert (target.shape, target.parts, target.refusal) == ((4, 3), (), None)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (np.broadcast_to(np.int32(0), (2, 3)), "share memory"),
        (torch.zeros(1, dtype=torch.int32).expand(2, 3), "share memory"),
        (torch.zeros(2, 3, dtype=torch.int32).to_sparse(), "layout"),
        (np.ma.zeros((2, 3), np.int32), "MaskedArray"),
        (torch.zeros(2, 3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "counts several"),
    ],
)
def test_data_that_cannot_be_filled_is_refused(data: Any, words: str) -> None:
    saved = "float4_e2m1fn" if "counts" in words else "int32"

    target = wanted(Shard(data, global_shape=(4, 3), origin=(0, 0)), saved=saved)

    assert target.refusal is not None and words in target.refusal
    assert target.parts is None


def test_pieces_of_two_data_types_are_refused() -> None:
    pieces = [
        Shard(np.zeros((2, 3), kind), global_shape=(4, 3), origin=(row, 0))
        for row, kind in ((0, np.float32), (2, np.float64))
    ]

    refusal = wanted(Shards(pieces), saved="float32", cast=True).refusal

    assert refusal is not None and "float32 and float64" in refusal


def test_another_data_type_is_no_refusal_but_no_destination_either() -> None:
    target = wanted(Shard(np.zeros((2, 3)), global_shape=(4, 3), origin=(0, 0)))

    assert (target.refusal, target.dtype, target.parts) == (None, "float64", None)


def test_a_shard_on_the_meta_device_is_replaced_by_one_that_holds_elements() -> None:
    whole = numbered((4, 6))
    meta = torch.empty(5, dtype=torch.int32, device="meta")
    real = torch.zeros(2, 6, dtype=torch.int32)
    flat = Shard(meta, global_shape=(4, 6), origin=(0, 0), flat=(14, 5))

    target = wanted(Shards([flat, Shard(real, global_shape=(4, 6), origin=(0, 0))]))
    fill(target, whole)

    made = target.value
    assert type(made) is Shards
    assert made.pieces[0].data.tolist() == [14, 15, 16, 17, 18]
    assert made.pieces[0].region == flat.region
    assert made.pieces[1].data is real and real.tolist() == whole[:2].tolist()
    assert type(wanted(flat).value) is Shard


def test_shards_are_leaves_by_the_adapters_of_their_data() -> None:
    library = frameworks()[-1]
    shard = Shard(np.zeros((2, 3), np.int32), global_shape=(4, 3), origin=(2, 0))

    leaf = library.adapters[Shard].describe(shard, lambda: "w")

    assert (leaf.shape, leaf.regions, leaf.flags) == ((4, 3), (shard.region,), FLAG_NUMPY)
    assert library.direct(shard, "int32", (2, 3)) == 0
