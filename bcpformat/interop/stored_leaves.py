"""Leaves whose elements lie in a file: of another format, or of another checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bcpformat.model.dtypes import DType
from bcpformat.model.leaves import TensorLeaf

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor as another file holds it.

    Attributes:
        dtype: Registry name of its data type.
        shape: Shape in elements.
        load: Returns its elements as one chunk stores them (row-major, packed), 1-d.
    """

    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], Bytes]


class StoredAdapter:
    """Shows stored tensors to the core; the same object twice is an alias (see `LeafAdapter`)."""

    def describe(self, value: object, path: Callable[[], str]) -> TensorLeaf:
        """Return what the core must know of a tensor; its flags say a torch tensor."""
        assert isinstance(value, StoredTensor), path()
        alias = None if 0 in value.shape else ("stored", id(value))
        return TensorLeaf(value.dtype, value.shape, 0, alias, value, self)

    def array(self, leaf: TensorLeaf) -> npt.NDArray[np.generic]:
        """Return the elements of a tensor as bits."""
        assert isinstance(leaf.value, StoredTensor)
        data = leaf.value.load()
        dtype = DType.named(leaf.dtype)
        if dtype.bits < 8:
            return data
        return data.view(dtype.opaque).reshape(leaf.shape)

    def pieces(self, leaf: TensorLeaf) -> Sequence[npt.NDArray[np.generic]]:
        """Return the elements of a tensor, which is one piece (see `LeafAdapter.pieces`)."""
        return [self.array(leaf)]
