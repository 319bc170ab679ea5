"""The table of data types, look-ups, and packing of sub-byte elements."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.errors import ErrorCode, InvalidArgumentError, UnsupportedError
from bcpformat.model.dtypes import (
    DTYPES,
    DType,
    dtype_from_name,
    pack_subbyte,
    unpack_subbyte,
)

REGISTRY = Path(__file__).resolve().parents[2] / "spec" / "registry" / "dtypes.toml"
ALL = list(DTYPES.values())


def registry_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = tomllib.loads(REGISTRY.read_text(encoding="utf-8"))["dtype"]
    return rows


def numpy_of(text: str) -> np.dtype[Any]:
    package, _, name = text.rpartition(".")
    return np.dtype(getattr(ml_dtypes, name)) if package == "ml_dtypes" else np.dtype(text)


def bit_by_bit(values: list[int], bits: int) -> bytes:
    stream: int = sum((value & (2**bits - 1)) << (i * bits) for i, value in enumerate(values))
    return stream.to_bytes((len(values) * bits + 7) // 8, "little")


SUBBYTE = st.tuples(st.sampled_from([2, 4, 6]), st.lists(st.integers(0, 255), max_size=30))


def test_the_table_is_that_of_the_registry() -> None:
    table = [(d.name, d.bits, d.item, d.feature, d.numpy) for d in ALL]

    assert table == [
        (row["name"], row["bits"], row["item"], row.get("feature"), numpy_of(row["numpy"]))
        for row in registry_rows()
    ]


def test_every_row_of_the_registry_has_notes_and_no_unknown_key() -> None:
    known = {"name", "bits", "item", "feature", "numpy", "notes"}

    assert all(row["notes"] and row.keys() <= known for row in registry_rows())


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_a_type_is_found_by_its_name(dtype: DType) -> None:
    assert DType.named(dtype.name) is dtype_from_name(dtype.name) is dtype


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_a_type_is_found_by_its_numpy_type(dtype: DType) -> None:
    assert DType.from_numpy(dtype.numpy) is dtype


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_a_type_is_found_by_its_big_endian_numpy_type(dtype: DType) -> None:
    assert DType.from_numpy(dtype.numpy.newbyteorder(">")) is dtype


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_the_opaque_type_is_as_wide_as_the_numpy_type(dtype: DType) -> None:
    assert dtype.opaque.itemsize == dtype.numpy.itemsize == max(1, dtype.bits // 8)
    assert dtype.opaque.kind in "uV"


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_the_kind_follows_from_the_name(dtype: DType) -> None:
    stem = dtype.name.split("_")[0].rstrip("0123456789")

    assert dtype.kind == {"bfloat": "float"}.get(stem, stem)


@pytest.mark.parametrize("code", ["q", "l", "Q", "L", "b", "p"])
def test_numpy_types_of_other_c_names_are_found_by_their_width(code: str) -> None:
    assert DType.from_numpy(np.dtype(code)).numpy == np.dtype(code)


@pytest.mark.skipif(not hasattr(ml_dtypes, "complex32"), reason="an older ml_dtypes")
def test_complex32_of_ml_dtypes_is_found() -> None:
    assert DType.from_numpy(np.dtype(ml_dtypes.complex32)).name == "complex32"


@pytest.mark.parametrize(
    "dtype",
    ["O", "U3", "S4", "M8[s]", "m8[ns]", "V2", "V8", [("a", "<f4")], ("<f4", (2,)), ml_dtypes.int1],
    ids=str,
)
def test_numpy_types_without_a_form_are_refused(dtype: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        DType.from_numpy(np.dtype(dtype))

    assert caught.value.code is ErrorCode.NO_FORM


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("bf16", "bfloat16"),
        ("torch.half", "float16"),
        ("F8_E4M3", "float8_e4m3fn"),
        ("float8_e5m2fnu", "float8_e5m2fnuz"),
        ("Float32", "float32"),
    ],
)
def test_an_unknown_name_is_refused_with_the_near_one(name: str, near: str) -> None:
    with pytest.raises(UnsupportedError, match=f"mean '{near}'") as caught:
        DType.named(name)

    assert caught.value.code is ErrorCode.DTYPE


def test_a_name_near_no_other_is_refused_without_a_hint() -> None:
    with pytest.raises(UnsupportedError, match=r"'quaternion' is not in the registry \[E_DTYPE\]$"):
        DType.named("quaternion")


@given(st.sampled_from(ALL), st.integers(0, 2**53))
def test_bytes_of_a_chunk_are_its_bits_rounded_up(dtype: DType, numel: int) -> None:
    nbytes = dtype.nbytes_of(numel)

    assert nbytes * 8 - 7 <= numel * dtype.bits <= nbytes * 8


@given(SUBBYTE)
def test_packing_is_one_bit_stream_from_the_least_significant_bit(
    case: tuple[int, list[int]],
) -> None:
    bits, values = case

    packed = pack_subbyte(np.array(values, np.uint8), bits)

    assert packed.tobytes() == bit_by_bit(values, bits)


@given(SUBBYTE)
def test_unpacking_restores_the_low_bits_of_each_element(case: tuple[int, list[int]]) -> None:
    bits, values = case
    packed = np.frombuffer(bit_by_bit(values, bits), np.uint8)

    unpacked = unpack_subbyte(packed, bits, len(values))

    assert unpacked.tolist() == [value % 2**bits for value in values]


def test_unpacking_ignores_the_unused_high_bits() -> None:
    assert unpack_subbyte(np.array([0xF1], np.uint8), 4, 1).tolist() == [1]


def test_elements_of_any_shape_pack_in_row_major_order() -> None:
    columns = np.array([[1, 3], [2, 4]], np.uint8).T

    assert pack_subbyte(columns, 4).tolist() == [0x21, 0x43]


@pytest.mark.parametrize("dtype", [d for d in ALL if d.feature], ids=lambda d: d.name)
def test_every_sub_byte_element_of_ml_dtypes_survives_packing(dtype: DType) -> None:
    elements = np.arange(2**dtype.bits, dtype=np.uint8).view(dtype.numpy)

    packed = pack_subbyte(elements.view(np.uint8), dtype.bits)

    restored = unpack_subbyte(packed, dtype.bits, elements.size).view(dtype.numpy)
    assert restored.astype(np.float64).tolist() == elements.astype(np.float64).tolist()


@pytest.mark.parametrize("bits", [0, 1, 3, 8])
def test_widths_without_a_type_are_not_packed(bits: int) -> None:
    with pytest.raises(InvalidArgumentError, match="2, 4 or 6"):
        pack_subbyte(np.zeros(1, np.uint8), bits)


def test_packed_bytes_of_another_length_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="3 elements of 4 bits take 2 bytes, got 3"):
        unpack_subbyte(np.zeros(3, np.uint8), 4, 3)


@pytest.mark.parametrize("bits", [2, 4, 6])
def test_packed_elements_lie_without_gaps_in_memory(bits: int) -> None:
    packed = pack_subbyte(np.arange(9, dtype=np.uint8) % 4, bits)

    assert packed.flags.c_contiguous
