"""What the rows of a manifest mean in elements, bytes and blocks (spec 7, 8, 9)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from bcpformat.model.dtypes import DType
from bcpformat.model.manifest import Ints, Manifest, RunTable, TensorTable


@dataclass(frozen=True, slots=True)
class ChunkGeometry:
    """What the chunk rows of a manifest mean in elements and bytes; arrays of shape `(rows,)`.

    Attributes:
        tensor: Row of the tensor each chunk belongs to.
        count: Elements.
        nbytes: Raw bytes.
        item: Item size of the tensor's data type, in bytes.
    """

    tensor: Ints
    count: Ints
    nbytes: Ints
    item: Ints


def tensor_dtypes(tensors: TensorTable) -> tuple[list[DType], Ints]:
    """Return the distinct data types of the table and each tensor's position in them."""
    names = sorted(set(tensors.dtypes))
    positions = {name: position for position, name in enumerate(names)}
    kinds = np.fromiter(
        map(positions.__getitem__, tensors.dtypes), dtype=np.int64, count=len(tensors)
    )
    return [DType.named(name) for name in names], kinds


def tensor_nbytes(tensors: TensorTable) -> Ints:
    """Return the raw bytes of each tensor as one chunk, shape `(tensors,)`."""
    dtypes, kinds = tensor_dtypes(tensors)
    if not dtypes:
        return kinds
    bits = np.array([d.bits for d in dtypes], dtype=np.int64)[kinds]
    return (tensor_numels(tensors) * bits + 7) // 8


def tensor_numels(tensors: TensorTable) -> Ints:
    """Return the number of elements of each tensor, shape `(tensors,)`."""
    return np.fromiter(map(prod, tensors.shapes), dtype=np.int64, count=len(tensors))


def axis_rows(tensors: TensorTable) -> Ints:
    """Return where each chunk row's axes begin in `origin` and `extent`, shape `(rows + 1,)`."""
    ndims = np.fromiter(map(len, tensors.shapes), dtype=np.int64, count=len(tensors))
    starts = np.zeros(int(tensors.chunks.sum()) + 1, dtype=np.int64)
    np.cumsum(np.repeat(ndims, tensors.chunks), out=starts[1:])
    return starts


def chunk_geometry(manifest: Manifest) -> ChunkGeometry:
    """Return sizes of all chunks.

    Preconditions: each tensor's chunk count adds up to the chunk rows (wire), and extents are
    within the shapes where they are given, so that no product wraps (coverage).
    """
    tensors, chunks = manifest.tensors, manifest.chunks
    dtypes, kinds = tensor_dtypes(tensors)
    bits = np.array([d.bits for d in dtypes], dtype=np.int64)[kinds] if dtypes else kinds
    items = np.array([d.item for d in dtypes], dtype=np.int64)[kinds] if dtypes else kinds
    tensor = np.repeat(np.arange(len(tensors), dtype=np.int64), tensors.chunks)
    if chunks.count is not None:
        count = chunks.count
    elif chunks.extent is not None:
        count = _products(chunks.extent, axis_rows(tensors))
    else:
        count = tensor_numels(tensors)[tensor]
    chunk_bits = bits[tensor]
    # count * bits / 8 <= 2^53 (BCP-CNV-003), so count * bits stays below 2^56
    return ChunkGeometry(
        tensor=tensor, count=count, nbytes=(count * chunk_bits + 7) // 8, item=items[tensor]
    )


def block_counts(runs: RunTable) -> Ints:
    """Return the number of blocks of each run, shape `(rows,)`."""
    return ((runs.raw - 1) >> runs.block_log2) + 1


def _products(values: Ints, starts: Ints) -> Ints:
    """Return the product of each row's axes (1 for a row without axes)."""
    rows = len(starts) - 1
    out = np.ones(rows, dtype=np.int64)
    filled = starts[1:] > starts[:-1]
    if filled.any():
        out[filled] = np.multiply.reduceat(values, starts[:-1][filled])
    return out
