"""numpy arrays as leaves, and values of single ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.dtypes import DTYPES, DType, pack_subbyte
from bcpformat.model.leaves import FLAG_NUMPY, NumpyAdapter, PerRank, PerRankValues, TensorLeaf

ADAPTER = NumpyAdapter()
WHOLE = [dtype for dtype in DTYPES.values() if dtype.bits >= 8]
SUBBYTE = [dtype for dtype in DTYPES.values() if dtype.bits < 8]


def leaf_of(array: npt.NDArray[Any]) -> TensorLeaf:
    return ADAPTER.describe(array, lambda: "a/b")


def random_elements(dtype: DType, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    count = int(np.prod(shape)) * dtype.numpy.itemsize
    bits = np.random.default_rng(7).integers(0, 256, count, dtype=np.uint8)
    return bits.view(dtype.numpy).reshape(shape)


@pytest.mark.parametrize("dtype", WHOLE, ids=lambda d: d.name)
def test_the_elements_of_an_array_are_shown_as_bits(dtype: DType) -> None:
    array = random_elements(dtype, (3, 4))

    leaf = leaf_of(array)

    assert (leaf.dtype, leaf.shape, leaf.flags) == (dtype.name, (3, 4), FLAG_NUMPY)
    assert leaf.address == array.ctypes.data
    shown = ADAPTER.array(leaf)
    assert shown.dtype == dtype.opaque and shown.tobytes() == array.tobytes()
    assert np.shares_memory(shown, array)


@pytest.mark.parametrize("dtype", SUBBYTE, ids=lambda d: d.name)
def test_the_elements_of_a_subbyte_array_are_packed(dtype: DType) -> None:
    array = random_elements(dtype, (3, 5))[:, ::2]

    leaf = leaf_of(array)

    assert (leaf.dtype, leaf.shape, leaf.address) == (dtype.name, (3, 3), None)
    expected = pack_subbyte(np.ascontiguousarray(array).view(np.uint8), dtype.bits)
    assert ADAPTER.array(leaf).tolist() == expected.tolist()


@pytest.mark.parametrize("code", [">i2", ">u8", ">f4", ">f8", ">c8", ">c16"])
def test_a_big_endian_array_is_swapped_bit_by_bit(code: str) -> None:
    little = random_elements(DType.from_numpy(np.dtype(code)), (5,))
    array = little.byteswap().view(code)

    leaf = leaf_of(array)

    assert leaf.address is None and ADAPTER.array(leaf).tobytes() == little.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype="i4").reshape(3, 4).T,
        np.arange(12, dtype="i4")[::-2],
        np.broadcast_to(np.float32(1), (3, 2)),
        np.asfortranarray(np.arange(6, dtype="c16").reshape(2, 3)),
    ],
)
def test_an_array_that_is_not_contiguous_is_shown_as_a_view(array: npt.NDArray[Any]) -> None:
    leaf = leaf_of(array)

    shown = ADAPTER.array(leaf)

    assert leaf.address is None and np.shares_memory(shown, array)
    assert shown.shape == array.shape and shown.tobytes() == array.tobytes()


def test_an_array_of_no_axes_and_an_array_of_no_elements_are_leaves() -> None:
    scalar, empty = leaf_of(np.array(1.5)), leaf_of(np.zeros((3, 0, 2), np.int8))

    assert (scalar.shape, empty.shape) == ((), (3, 0, 2))
    assert ADAPTER.array(empty).size == 0 and empty.address is None


def test_a_memory_map_is_a_leaf(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "m", np.uint16, "w+", shape=(4,))
    mapped[:] = [1, 2, 3, 4]

    shown = ADAPTER.array(leaf_of(mapped))

    assert type(shown) is np.ndarray and shown.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "array",
    [
        np.array([None]),
        np.array(["text"]),
        np.array(["2000-01-01"], "M8[D]"),
        np.zeros(2, [("a", "f4")]),
        np.zeros(2, np.longdouble),
    ],
    ids=lambda a: str(a.dtype),
)
def test_an_array_of_a_type_that_the_registry_lacks_is_refused_by_path(
    array: npt.NDArray[Any],
) -> None:
    with pytest.raises(InvalidArgumentError, match="'a/b'") as caught:
        leaf_of(array)

    assert caught.value.code is ErrorCode.NO_FORM


def test_views_of_the_same_elements_are_aliases() -> None:
    base = np.arange(10.0)

    assert leaf_of(base[2:6]).alias_key == leaf_of(base[2:6]).alias_key
    assert leaf_of(base[::2]).alias_key == leaf_of(base[::2]).alias_key


@pytest.mark.parametrize(
    "other",
    [
        lambda a: a[1:],
        lambda a: a[:3],
        lambda a: a.reshape(2, 2),
        lambda a: a.view("i4"),
        lambda a: a.view(">f4"),
        lambda a: a.copy(),
    ],
)
def test_views_that_differ_in_any_way_are_no_aliases(other: Any) -> None:
    base = np.arange(4, dtype="<f4")

    assert leaf_of(base).alias_key != leaf_of(other(base)).alias_key


def test_views_of_equal_shape_and_start_but_other_strides_are_no_aliases() -> None:
    base = np.arange(16.0).reshape(4, 4)

    assert leaf_of(base[:, 0]).alias_key != leaf_of(base[0]).alias_key


def test_arrays_without_elements_are_no_aliases() -> None:
    assert leaf_of(np.zeros((0, 2))).alias_key is None


@given(st.integers(0, 2**32 - 1))
def test_every_bit_pattern_of_a_float_survives(bits: int) -> None:
    array = np.array([bits], "<u4")

    assert ADAPTER.array(leaf_of(array.view("<f4"))).tolist() == [bits]


def test_bits_of_ml_dtypes_survive() -> None:
    array = np.arange(65536, dtype=np.uint16).view(ml_dtypes.bfloat16)

    assert ADAPTER.array(leaf_of(array)).tolist() == list(range(65536))


def test_a_per_rank_value_is_marked_and_does_not_change() -> None:
    marked = PerRank([1])

    assert marked == PerRank([1])
    with pytest.raises(AttributeError):
        marked.value = 2  # type: ignore[misc]


def test_the_values_of_all_ranks_are_a_mapping_of_their_own() -> None:
    source: dict[int, object] = {0: "a", 3: "b"}
    values = PerRankValues(source)
    source.clear()

    assert dict(values) == {0: "a", 3: "b"} and len(values) == 2 and values[3] == "b"
    assert repr(values) == "PerRankValues({0: 'a', 3: 'b'})"
