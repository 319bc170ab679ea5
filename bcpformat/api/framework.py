"""What an array library contributes: leaves, destinations, results, extra node kinds.

numpy is always there.  torch is a second one, loaded by its module's name and only when this
process has imported torch or a caller asks for torch tensors.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from bcpformat.api.overlap import Memory, is_folded
from bcpformat.engine.coordinator import Coordinator
from bcpformat.engine.memory import address_of
from bcpformat.model.dtypes import DTYPES, DType, unpack_subbyte
from bcpformat.model.leaves import LeafAdapter, NumpyAdapter
from bcpformat.model.manifest import Node
from bcpformat.model.region import Box

Cast: TypeAlias = bool | Literal["any"]
"""False: no conversion; True: between floats, between complex types, and to a wider type of the
same kind; "any": every conversion that does not drop an imaginary part."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """A new array for a whole tensor.

    Attributes:
        value: The array, its elements not yet set.
        address: Its first byte; contiguous; sub-byte elements packed.
        after: Called once its bytes are there; returns the array to hand out, if not `value`.
    """

    value: Any  # Any: the array type of a library the core does not know
    address: int
    after: Callable[[], Any] | None = None


@dataclass(frozen=True, slots=True)
class TargetPart:
    """Where some elements of a tensor are to be written.

    Attributes:
        box: The elements, in tensor coordinates; at least one.
        address: First byte of contiguous memory for them, row-major, sub-byte ones packed; 0 if
            there is none.
        strided: Where they go as opaque elements of the shape of the box, if not contiguous.
        memory: The leaf's own memory where that is not what `address` says (see `overlap`).
    """

    box: Box
    address: int
    strided: npt.NDArray[np.generic] | None
    memory: Memory | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the elements of one template leaf are to be written.

    Attributes:
        dtype: Registry name of its elements, or the library's own where that has none.
        shape: Global shape in elements.
        address: First byte of contiguous memory, 0 if there is none.
        strided: Its elements as opaque ones, where they are not contiguous.
        after: Called when all bytes are there: conversion, copy to a device.
        refusal: Why it cannot be a destination; None if it can.
        owner: Keeps the memory at `address` alive.
        memory: The leaf's own memory where that is not what `address` says (see `overlap`).
        parts: The pieces that this process wants, if not the whole tensor as one; they stand for
            `address`, `strided` and `memory`.  Empty: it wants nothing.
        value: What replaces the leaf in its container when all bytes are there; None: the leaf
            itself is filled.
        tie: Equal for leaves that share what they stand for: they get one `value`.
    """

    dtype: str
    shape: tuple[int, ...]
    address: int
    strided: npt.NDArray[np.generic] | None
    after: Callable[[], None] | None
    refusal: str | None = None
    owner: object = None
    memory: Memory | None = None
    parts: tuple[TargetPart, ...] | None = None
    value: object | None = None
    tie: Hashable | None = None


def unfit(dtype: str, shape: tuple[int, ...], refusal: str | None) -> Target:
    """Return the target of a leaf that cannot be filled; without a refusal for its data type."""
    return Target(dtype=dtype, shape=shape, address=0, strided=None, after=None, refusal=refusal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One array library.

    Attributes:
        name: Its name.
        adapters: Exact type of a leaf to its adapter.
        encoders: Exact type of a value to the function that makes its node.
        builders: Kind code of a node to the function that makes its value.
        allocate: Makes an array of a data type and shape.
        finish: Makes the leaf of a new array and the leaf's flags.
        direct: Returns the address of a template leaf that is contiguous host memory of a data type
            and shape, else 0: what most leaves are, decided quickly.
        target: Describes a template leaf as a destination for elements of a saved data type.
        coordinator: Returns this process's end of a process group of the library, ``"auto"`` for
            the default one; None if there is no such group.  The number is how many seconds to
            wait for the other ranks, if they have not met before.
    """

    name: str
    adapters: Mapping[type, LeafAdapter]
    encoders: Mapping[type, Callable[[Any], Node]] = field(default_factory=dict)
    builders: Mapping[int, Callable[..., Any]] = field(default_factory=dict)
    allocate: Callable[[DType, tuple[int, ...]], Allocated]
    finish: Callable[[Any, int], Any]
    direct: Callable[[object, str, tuple[int, ...]], int]
    target: Callable[[object, Cast, DType], Target]
    coordinator: Callable[[object, float], Coordinator | None] = lambda _group, _timeout_s: None


def _numpy_allocate(dtype: DType, shape: tuple[int, ...]) -> Allocated:
    array = np.empty(shape, dtype=dtype.numpy)
    if dtype.bits >= 8:
        return Allocated(value=array, address=address_of(array))
    packed = np.empty(dtype.nbytes_of(array.size), dtype=np.uint8)

    def after() -> npt.NDArray[np.generic]:
        elements = unpack_subbyte(packed, bits=dtype.bits, numel=array.size)
        return elements.view(dtype.numpy).reshape(shape)

    return Allocated(value=array, address=address_of(packed), after=after)


def _numpy_direct(value: object, dtype: str, shape: tuple[int, ...]) -> int:
    assert isinstance(value, np.ndarray)
    flags = value.flags
    known = DTYPES[dtype]
    if value.dtype == known.numpy and known.bits >= 8 and value.shape == shape:
        return address_of(value) if flags.c_contiguous and flags.writeable else 0
    return 0


def _numpy_target(value: object, cast: Cast, saved: DType) -> Target:
    assert isinstance(value, np.ndarray)
    name = _numpy_name(value.dtype)
    shape = tuple(value.shape)
    refusal = _numpy_refusal(value, name, cast, saved)
    if refusal is not None or not may_cast(saved.name, name, cast=cast):
        return unfit(name, shape, refusal)
    native = value.dtype.newbyteorder("<") == value.dtype
    if name == saved.name and native and saved.bits >= 8:
        if value.flags.c_contiguous:
            place = address_of(value)
            return Target(dtype=name, shape=shape, address=place, strided=None, after=None)
        view = value.view(saved.opaque)
        return Target(dtype=name, shape=shape, address=0, strided=view, after=None, memory=view)
    made = _numpy_allocate(saved, shape)

    def after() -> None:
        source = made.after() if made.after is not None else made.value
        value[...] = source if name == saved.name else source.astype(value.dtype)

    return Target(
        dtype=name,
        shape=shape,
        address=made.address,
        strided=None,
        after=after,
        owner=made,
        memory=value,
    )


def _numpy_refusal(
    value: npt.NDArray[np.generic], name: str, cast: Cast, saved: DType
) -> str | None:
    if is_folded(value.shape, value.strides, size=value.itemsize):
        return "its elements share memory with one another"
    if not value.flags.writeable:
        return "it is read-only"
    if cast and name != saved.name and "complex32" in (name, saved.name):
        return "numpy converts nothing from or to complex32"
    return None


def may_cast(saved: str, wanted: str, *, cast: Cast) -> bool:
    """Return whether elements of a saved data type may go to a wanted one.

    The imaginary part of a complex number is never dropped, whatever `cast` says.

    Args:
        saved: Registry name of the saved data type.
        wanted: That of the destination, or the library's own name for one the registry lacks.
        cast: What the caller allows.
    """
    if saved == wanted:
        return True
    source, target = DTYPES[saved], DTYPES.get(wanted)
    if not cast or target is None or (source.kind == "complex" and target.kind != "complex"):
        return False
    if cast == "any":
        return True
    if source.kind != target.kind:
        return False
    return source.kind in ("float", "complex") or target.bits >= source.bits


def _numpy_name(dtype: np.dtype[Any]) -> str:  # Any: the scalar type is not known before run time
    try:
        return DType.from_numpy(dtype).name
    except ValueError:
        return str(dtype)


NUMPY = Framework(
    name="numpy",
    adapters={np.ndarray: NumpyAdapter(), np.memmap: NumpyAdapter()},
    allocate=_numpy_allocate,
    finish=lambda value, _flags: value,
    direct=_numpy_direct,
    target=_numpy_target,
)


def frameworks() -> list[Framework]:
    """Return numpy, torch if this process has imported it, and what takes pieces of arrays."""
    from bcpformat.api.shard_targets import shard_framework  # it needs the types above

    libraries = [NUMPY, load_torch()] if "torch" in sys.modules else [NUMPY]
    return [*libraries, shard_framework(libraries)]


def torch_installed() -> bool:
    """Return whether torch could be imported."""
    return "torch" in sys.modules or importlib.util.find_spec("torch") is not None


def load_torch() -> Framework:
    """Import torch and return what it contributes."""
    found: Framework = importlib.import_module("bcpformat.torch").loaded_framework()
    return found
