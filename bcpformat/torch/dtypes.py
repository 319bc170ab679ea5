"""torch data types and the registry's names for them."""

from __future__ import annotations

import torch

DTYPE_NAMES: dict[torch.dtype, str] = {
    getattr(torch, name): registry
    for name, registry in (
        ("bool", "bool"),
        ("int8", "int8"),
        ("int16", "int16"),
        ("int32", "int32"),
        ("int64", "int64"),
        ("uint8", "uint8"),
        ("uint16", "uint16"),
        ("uint32", "uint32"),
        ("uint64", "uint64"),
        ("float16", "float16"),
        ("float32", "float32"),
        ("float64", "float64"),
        ("bfloat16", "bfloat16"),
        ("float8_e4m3fn", "float8_e4m3fn"),
        ("float8_e5m2", "float8_e5m2"),
        ("float8_e4m3fnuz", "float8_e4m3fnuz"),
        ("float8_e5m2fnuz", "float8_e5m2fnuz"),
        ("float8_e8m0fnu", "float8_e8m0fnu"),
        ("float4_e2m1fn_x2", "float4_e2m1fn"),
        ("complex32", "complex32"),
        ("complex64", "complex64"),
        ("complex128", "complex128"),
    )
    if hasattr(torch, name)
}
"""torch type to registry name; a type that this torch does not have is left out."""

TORCH_DTYPES: dict[str, torch.dtype] = {name: dtype for dtype, name in DTYPE_NAMES.items()}

PAIR_DTYPE: torch.dtype | None = getattr(torch, "float4_e2m1fn_x2", None)
"""Holds two 4-bit elements in one: its last axis counts pairs."""

OPAQUE: dict[int, torch.dtype] = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
}
"""Element size in bytes to the type used to show elements to numpy as bits."""


def logical_shape(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, ...]:
    """Return the shape in elements of the registry's type."""
    if dtype is PAIR_DTYPE:
        return (*shape[:-1], 2 * shape[-1]) if shape else (2,)
    return shape
