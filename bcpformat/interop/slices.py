"""Tensors in row-major order, a few MiB at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from bcpformat.api.opened import TensorView
from bcpformat.model.dtypes import DType, pack_subbyte

SLICE_BYTES = 2**25


def row_major_indexes(shape: tuple[int, ...], *, max_elements: int) -> Iterator[tuple[slice, ...]]:
    """Yield indexes that cover a shape in row-major order, each contiguous in it.

    Args:
        shape: Shape in elements.
        max_elements: Elements of one index, at least 1.

    Example:
        >>> [tuple((s.start, s.stop) for s in i) for i in row_major_indexes((3, 2), max_elements=4)]
        [((0, 2),), ((2, 3),)]
    """
    if 0 in shape:
        return
    axis = next((k for k in range(len(shape)) if prod(shape[k + 1 :]) <= max_elements), 0)
    if not shape:
        yield ()
        return
    step = max_elements // prod(shape[axis + 1 :])
    for outer in product(*(range(extent) for extent in shape[:axis])):
        head = tuple(slice(at, at + 1) for at in outer)
        for start in range(0, shape[axis], step):
            yield (*head, slice(start, min(start + step, shape[axis])))


def stored_slices(view: TensorView) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bytes of a tensor as one chunk would store them: row-major, packed.

    A tensor of sub-byte elements comes in one piece.

    Raises:
        FormatError: A block does not verify.
    """
    dtype = DType.named(view.dtype)
    if dtype.bits < 8:
        yield pack_subbyte(view.read().view(np.uint8), dtype.bits)
        return
    for index in row_major_indexes(view.shape, max_elements=max(SLICE_BYTES * 8 // dtype.bits, 1)):
        yield as_bytes(view[index] if index else view.read())


def as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:  # Any: whatever the tensor's is
    """Return the elements of an array as bytes, 1-d, without a copy where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
