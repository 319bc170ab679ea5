"""torch tensors as leaves, as destinations and as results; torch types as nodes of the state."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bcpformat.api.framework import Allocated, Cast, Framework, Target, may_cast, unfit
from bcpformat.api.overlap import is_folded, memory_at
from bcpformat.engine.coordinator import Coordinator
from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.dtypes import DType
from bcpformat.model.leaves import FLAG_PARAMETER, FLAG_REQUIRES_GRAD, TensorLeaf
from bcpformat.model.limits import MAX_INTEGER
from bcpformat.model.nodes import TORCH_DEVICE, TORCH_DTYPE, TORCH_SIZE
from bcpformat.torch.dtypes import (
    DTYPE_NAMES,
    OPAQUE,
    PAIR_DTYPE,
    TORCH_DTYPES,
    logical_shape,
)

_STRIDED = torch.strided
COMPLEX = frozenset({torch.complex32, torch.complex64, torch.complex128})


def _refuse(path: str, what: str) -> InvalidArgumentError:
    text = f"{path!r}: {what} has no form in a checkpoint"
    return InvalidArgumentError(text, code=ErrorCode.NO_FORM)


class TorchAdapter:
    """Shows torch tensors to the core as opaque elements (see `LeafAdapter`)."""

    def describe(self, value: object, path: Callable[[], str]) -> TensorLeaf:
        """Return what the core must know of a tensor.

        Raises:
            InvalidArgumentError: It is sparse, quantized, on the meta device, or of a type that
                the registry lacks.
        """
        assert isinstance(value, torch.Tensor)
        dtype = value.dtype
        name = DTYPE_NAMES.get(dtype)
        if name is None:
            raise _refuse(path(), f"a tensor of {dtype}")
        if value.layout is not _STRIDED:
            text = f"a tensor of layout {value.layout} (save its .to_dense() instead)"
            raise _refuse(path(), text)
        flags = FLAG_PARAMETER if type(value) is not torch.Tensor else 0
        if value.requires_grad:
            flags |= FLAG_REQUIRES_GRAD
        try:
            shape = tuple(value.shape)
            pointer = value.data_ptr()
        except RuntimeError as error:
            raise _refuse(path(), f"a tensor without memory of its own ({error})") from error
        if not pointer and not value.is_meta and value.numel():
            raise _refuse(path(), "a tensor whose storage was freed, or is out of reach,")
        plain = not value.is_neg() and not (dtype in COMPLEX and value.is_conj())
        address: int | None = None
        alias: object = None
        if value.is_contiguous() and plain:
            alias = (pointer, dtype, shape)
            if value.is_cpu:
                address = pointer
        else:
            alias = (pointer, dtype, shape, value.stride(), value.is_neg(), value.is_conj())
        if address is None and value.is_meta:
            raise _refuse(path(), "a tensor on the meta device, which holds no elements,")
        if 0 in shape:
            alias = None
        if dtype is PAIR_DTYPE:
            if not shape:
                raise _refuse(path(), f"a tensor of {dtype} without an axis to count pairs on")
            shape = logical_shape(shape, dtype)
        return TensorLeaf(name, shape, flags, alias, value, self, address)

    def array(self, leaf: TensorLeaf) -> npt.NDArray[np.generic]:
        """Return a tensor's elements as opaque numpy elements in host memory, any strides.

        Sub-byte elements come packed, as bytes.
        """
        tensor = leaf.value
        assert isinstance(tensor, torch.Tensor)
        return opaque_view(materialized(tensor.detach()).cpu(), DType.named(leaf.dtype))

    def pieces(self, leaf: TensorLeaf) -> Sequence[npt.NDArray[np.generic]]:
        """Return the elements of a tensor, which is one piece (see `LeafAdapter.pieces`)."""
        return [self.array(leaf)]


def materialized(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without pending negation or conjugation, made by flipping sign bits.

    torch does it by arithmetic, which may change the bits of a NaN of a narrow type.
    """
    if tensor.is_conj():
        parts = torch.view_as_real(tensor.conj()).clone()  # conj of a pending conj: as stored
        _flip_signs(parts[..., 1])
        return torch.view_as_complex(parts)
    if tensor.is_neg():
        plain = torch._neg_view(tensor).clone()  # the same for negation
        _flip_signs(plain)
        return plain
    return tensor


def _flip_signs(tensor: torch.Tensor) -> None:
    bits = tensor.view(OPAQUE[tensor.element_size()])
    bits.bitwise_xor_(torch.iinfo(bits.dtype).min)


def opaque_view(tensor: torch.Tensor, dtype: DType) -> npt.NDArray[np.generic]:
    """Return the elements of a CPU tensor as bits, sharing its memory."""
    if tensor.dtype is PAIR_DTYPE:
        return tensor.contiguous().view(torch.uint8).numpy().reshape(-1)
    if dtype.bits == 128:
        return tensor.numpy().view(dtype.opaque)
    return tensor.view(OPAQUE[dtype.bits // 8]).numpy().view(dtype.opaque)


def empty_on_host(kind: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a new tensor in host memory, whatever the default device is."""
    if kind is torch.complex32:
        # made as bits: torch warns of every new tensor of this type
        return torch.empty(shape, dtype=torch.int32, device="cpu").view(kind)
    return torch.empty(shape, dtype=kind, device="cpu")


def _allocate(dtype: DType, shape: tuple[int, ...]) -> Allocated:
    kind = TORCH_DTYPES.get(dtype.name)
    if kind is None:
        raise InvalidArgumentError(
            f"torch has no type for {dtype.name}; read it with as_numpy=True",
            code=ErrorCode.NO_FORM,
        )
    if kind is PAIR_DTYPE:
        if not shape or shape[-1] % 2:
            raise InvalidArgumentError(
                f"torch keeps {dtype.name} in pairs, and the last axis of {shape} is odd; "
                "read it with as_numpy=True",
                code=ErrorCode.NO_FORM,
            )
        shape = (*shape[:-1], shape[-1] // 2)
    try:
        tensor = empty_on_host(kind, shape)
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"torch cannot make a tensor of shape {shape}: {error}", code=ErrorCode.BUDGET
        ) from error
    return Allocated(value=tensor, address=tensor.data_ptr())


def _finish(value: Any, flags: int) -> Any:  # Any: a tensor that `_allocate` made
    # a file may ask integers for a gradient, which torch does not give: they have none
    grad = bool(flags & FLAG_REQUIRES_GRAD) and (value.is_floating_point() or value.is_complex())
    if flags & FLAG_PARAMETER:
        return torch.nn.Parameter(value, requires_grad=grad)
    return value.detach().requires_grad_() if grad else value


def _direct(value: object, dtype: str, shape: tuple[int, ...]) -> int:
    """Return the address of a template tensor that can be filled as it lies, else 0."""
    assert isinstance(value, torch.Tensor)
    if (
        value.is_cpu
        and DTYPE_NAMES.get(value.dtype) == dtype
        and tuple(value.shape) == shape
        and value.dtype is not PAIR_DTYPE  # its shape counts pairs
        and value.layout is _STRIDED
        and value.is_contiguous()
        and not value.is_neg()
        and not (value.dtype in COMPLEX and value.is_conj())
    ):
        return value.data_ptr()
    return 0


def _target(value: object, cast: Cast, saved: DType) -> Target:
    """Return where the elements of a template tensor are to be written."""
    assert isinstance(value, torch.Tensor)
    name = DTYPE_NAMES.get(value.dtype, str(value.dtype))
    shape = logical_shape(tuple(value.shape), value.dtype)
    refusal = destination_refusal(value, name, cast, saved)
    if refusal is not None or not may_cast(saved.name, name, cast=cast):
        return unfit(name, shape, refusal)
    if value.is_meta:
        made = empty_on_host(value.dtype, tuple(value.shape))
        target = _target(made, cast, saved)
        return replace(target, value=like_template(made, value), tie=meta_tie(value))
    if name == saved.name and value.is_cpu and not value.is_neg() and not value.is_conj():
        if value.is_contiguous():
            pointer = value.data_ptr()
            return Target(dtype=name, shape=shape, address=pointer, strided=None, after=None)
        if saved.bits >= 8:
            view = opaque_view(value.detach(), saved)
            return Target(dtype=name, shape=shape, address=0, strided=view, after=None, memory=view)
    host = empty_on_host(TORCH_DTYPES[saved.name], tuple(value.shape))

    def after() -> None:
        with torch.no_grad():
            value.copy_(host)

    size = value.element_size()
    strides = [size * stride for stride in value.stride()]
    return Target(
        dtype=name,
        shape=shape,
        address=host.data_ptr(),
        strided=None,
        after=after,
        owner=host,
        memory=memory_at(value.data_ptr(), shape=value.shape, strides=strides, size=size),
    )


def destination_refusal(value: torch.Tensor, name: str, cast: Cast, saved: DType) -> str | None:
    """Return why a template tensor cannot be a destination, None if nothing speaks against it."""
    if value.layout is not _STRIDED:
        return f"its layout is {value.layout}"
    if value.numel() and not value.is_meta and not value.data_ptr():
        return "its storage was freed, or is out of reach"
    if not value.is_contiguous() and is_folded(value.shape, value.stride(), size=1):
        return "its elements share memory with one another"
    if cast and name != saved.name:
        if saved.name not in TORCH_DTYPES:
            return f"torch has no type for {saved.name}"
        if PAIR_DTYPE in (value.dtype, TORCH_DTYPES[saved.name]):
            return "torch converts nothing from or to float4_e2m1fn"
    return None


def like_template(made: torch.Tensor, template: torch.Tensor) -> torch.Tensor:
    """Return a new tensor as a parameter, or asking for a gradient, if the template is."""
    if isinstance(template, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=template.requires_grad)
    return made.requires_grad_() if template.requires_grad else made


def meta_tie(value: torch.Tensor) -> Hashable:
    """Return what two tensors on the meta device have in common if they are tied."""
    storage = value.untyped_storage()._cdata  # such storages have no address
    return storage, value.storage_offset(), value.dtype, tuple(value.shape), value.stride()


def _dtype_named(name: str) -> torch.dtype:
    found = vars(torch).get(name)  # not getattr: that would import modules by their name
    if not isinstance(found, torch.dtype):
        raise InvalidArgumentError(f"torch has no dtype {name!r}", code=ErrorCode.NO_FORM)
    return found


def _checked_extents(size: torch.Size) -> torch.Size:
    if any(not 0 <= extent <= MAX_INTEGER for extent in size):
        text = f"{size} has no form in a checkpoint: extents are 0 to 2^53-1"
        raise InvalidArgumentError(text, code=ErrorCode.NO_FORM)
    return size


def _coordinator(group: object, timeout_s: float) -> Coordinator | None:
    """Return this process's end of a process group, ``"auto"`` for the default one."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    if group == "auto":
        if distributed.get_world_size() == 1:
            return None
        default: Coordinator = _coordinators().coordinator_for(None, timeout_s=timeout_s)
        return default
    none = distributed.GroupMember.NON_GROUP_MEMBER  # an int: what a rank outside the group has
    if isinstance(group, distributed.ProcessGroup) or (type(group) is int and group == none):
        found: Coordinator = _coordinators().coordinator_for(group, timeout_s=timeout_s)
        return found
    return None


def _coordinators() -> Any:  # Any: a module, imported only where there is a process group
    return importlib.import_module("bcpformat.torch.coordinator")


_ADAPTER = TorchAdapter()

FRAMEWORK = Framework(
    name="torch",
    adapters={
        torch.Tensor: _ADAPTER,
        torch.nn.Parameter: _ADAPTER,
    },
    encoders={
        torch.Size: lambda value: [TORCH_SIZE, *_checked_extents(value)],
        torch.dtype: lambda value: [TORCH_DTYPE, str(value).removeprefix("torch.")],
        torch.device: lambda value: [TORCH_DEVICE, str(value)],
    },
    builders={
        TORCH_SIZE: torch.Size,
        TORCH_DTYPE: _dtype_named,
        TORCH_DEVICE: torch.device,
    },
    allocate=_allocate,
    finish=_finish,
    direct=_direct,
    target=_target,
    coordinator=_coordinator,
)


def loaded_framework() -> Framework:
    """Return what torch contributes to this process: with DTensor once its module is loaded.

    DTensor takes long to import, and who has not imported it has none.
    """
    distributed = sys.modules.get("torch.distributed.tensor")
    if getattr(distributed, "DTensor", None) is None:  # not there, or still being imported
        return FRAMEWORK
    from bcpformat.torch.dtensor import WITH_DTENSOR

    return WITH_DTENSOR
