"""Leaves of the state: how a tensor of any library is described, and values of single ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bcpformat.errors import InvalidArgumentError
from bcpformat.model.dtypes import DType, dtype_from_name, pack_subbyte
from bcpformat.model.region import Region

FLAG_NUMPY = 1
"""The leaf is a numpy array (spec 10)."""
FLAG_PARAMETER = 2
"""The leaf is a parameter."""
FLAG_REQUIRES_GRAD = 4
"""The leaf requires a gradient."""
ALL_FLAGS = FLAG_NUMPY | FLAG_PARAMETER | FLAG_REQUIRES_GRAD

# A leaf is made for every tensor of every save: it is mutable because a frozen dataclass takes
# three times as long to make.  Nobody changes one.


@dataclass(slots=True, eq=False)
class TensorLeaf:
    """One tensor of a state.

    Attributes:
        dtype: Name in the registry.
        shape: Global shape in elements of `dtype`.
        flags: Sum of `FLAG_NUMPY`, `FLAG_PARAMETER` and `FLAG_REQUIRES_GRAD`.
        alias_key: Equal for leaves that share storage with equal offset, shape, strides and data
            type (BCP-ALI-001); None for a leaf without elements, which has no alias.
        value: The object in the state; it keeps the memory alive.
        adapter: What can show its elements.
        address: First byte of the elements if they lie in host memory as a chunk of the whole
            tensor would store them (row-major, little-endian, packed); else None, and the
            elements come from ``adapter.array``.
        regions: What this process holds of the tensor, in tensor coordinates, each with elements;
            their elements come from ``adapter.pieces``.  None: all of it, as one box.
        is_trusted: Whether ranks that hold the same region hold equal elements by construction,
            so that nobody need compare them.

    Example:
        >>> leaf = NumpyAdapter().describe(np.zeros((2, 3), np.float16), lambda: "w")
        >>> leaf.dtype, leaf.shape, leaf.flags
        ('float16', (2, 3), 1)
    """

    dtype: str
    shape: tuple[int, ...]
    flags: int
    alias_key: Hashable | None
    value: object
    adapter: LeafAdapter
    address: int | None = None
    regions: tuple[Region, ...] | None = None
    is_trusted: bool = False
    segments: tuple[tuple[str, int, int, int], ...] = ()


class LeafAdapter(Protocol):
    """Shows the tensors of one library to the core."""

    def describe(self, value: object, path: Callable[[], str]) -> TensorLeaf:
        """Return what the core must know of a tensor.

        Args:
            value: Of exactly a type the adapter is registered for.
            path: Makes the name of the leaf, for a refusal.

        Raises:
            InvalidArgumentError: The tensor has no form (`E_NO_FORM`).
        """
        ...

    def array(self, leaf: TensorLeaf) -> npt.NDArray[np.generic]:
        """Return the elements of a leaf without regions as bits in host memory.

        Returns:
            An array of shape ``leaf.shape`` and of the data type's `DType.opaque`, of any strides,
            which shares the leaf's memory where it can; of a sub-byte type the packed elements,
            1-d, uint8 (BCP-DTY-003).
        """
        ...

    def pieces(self, leaf: TensorLeaf) -> Sequence[npt.NDArray[np.generic]]:
        """Return the elements of each of a leaf's regions, in their order, as `array` does.

        Returns:
            For a region that is a whole box an array of the box's shape, for a flat range a 1-d
            array of its elements; of a sub-byte type the packed elements of the region.
        """
        ...


class NumpyAdapter:
    r"""Shows numpy arrays to the core, also those with a type of ml_dtypes.

    Use it for exactly `numpy.ndarray` and `numpy.memmap`: other subclasses (masked arrays,
    matrices) mean more than their elements.

    Example:
        >>> adapter = NumpyAdapter()
        >>> leaf = adapter.describe(np.array([1, 2], ">u2"), lambda: "")
        >>> adapter.array(leaf).tobytes()
        b'\x01\x00\x02\x00'
    """

    def describe(self, value: object, path: Callable[[], str]) -> TensorLeaf:
        """Return what the core must know of an array (see `LeafAdapter.describe`).

        Raises:
            InvalidArgumentError: The registry has no type for its elements: objects, text, dates,
                structures, extended precision (`E_NO_FORM`).
        """
        assert isinstance(value, np.ndarray)
        try:
            dtype = DType.from_numpy(value.dtype)
        except InvalidArgumentError as error:
            text = f"{path()!r}: an array of {error.message}; make it one of numbers or bool"
            raise InvalidArgumentError(text, code=error.code) from None
        contiguous = value.flags.c_contiguous
        swapped = _is_swapped(value.dtype)
        alias: Hashable | None = None
        address: int | None = None
        if value.size:
            pointer = value.ctypes.data
            strides = None if contiguous else value.strides
            alias = (pointer, dtype.name, swapped, value.shape, strides)
            if contiguous and not swapped and dtype.bits >= 8:
                address = pointer
        return TensorLeaf(dtype.name, value.shape, FLAG_NUMPY, alias, value, self, address)

    def array(self, leaf: TensorLeaf) -> npt.NDArray[np.generic]:
        """Return the elements of an array as bits (see `LeafAdapter.array`).

        A big-endian array is swapped, which copies it; a sub-byte array is packed.
        """
        return opaque(np.asarray(leaf.value), dtype_from_name(leaf.dtype))

    def pieces(self, leaf: TensorLeaf) -> Sequence[npt.NDArray[np.generic]]:
        """Return the elements of an array, which is one piece (see `LeafAdapter.pieces`)."""
        return [self.array(leaf)]


def opaque(array: npt.NDArray[np.generic], dtype: DType) -> npt.NDArray[np.generic]:
    """Return the elements of an array as bits, little-endian.

    Args:
        array: Of either byte order.
        dtype: That of its elements.

    Returns:
        An array of ``dtype.opaque``, which shares the memory if it need not be swapped; of a
        sub-byte type the packed elements, 1-d.
    """
    if dtype.bits < 8:
        return pack_subbyte(array.view(np.uint8), dtype.bits)
    if _is_swapped(array.dtype):
        array = array.byteswap()
    return array.view(dtype.opaque)


@dataclass(frozen=True, slots=True)
class PerRank:
    """Marks a value that each rank has its own of, such as the state of a random generator.

    Attributes:
        value: This rank's value: anything that a state may hold, tensors too, but no other
            `PerRank`.  It is stored by value, whole, for each rank.

    Example:
        >>> PerRank({"seed": 7}).value
        {'seed': 7}
    """

    value: Any  # Any: whatever the user's state holds


class PerRankValues(Mapping[int, object]):
    """The values of all ranks at a `PerRank`, by rank: what a whole read returns for it.

    Immutable.  It is not saved again as it is; a rank saves ``PerRank(values[rank])``.

    Example:
        >>> values = PerRankValues({0: "a", 1: "b"})
        >>> values[1], list(values)
        ('b', [0, 1])
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[int, object]) -> None:
        self._values = dict(values)

    def __getitem__(self, rank: int) -> object:
        return self._values[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"PerRankValues({self._values!r})"


_BIG_ENDIAN = frozenset(">" if sys.byteorder == "little" else ">=")


def _is_swapped(dtype: np.dtype[Any]) -> bool:  # Any: the scalar type is known at run time only
    """Return whether elements of a numpy type are big-endian."""
    return dtype.byteorder in _BIG_ENDIAN
