"""Distributed tensors of torch (DTensor) as leaves and as destinations.

Importing this imports `torch.distributed.tensor`; `loaded_framework` does it only where that is
loaded already.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from bcpformat.api.framework import Cast, Target, TargetPart, may_cast, unfit
from bcpformat.api.overlap import memory_at
from bcpformat.engine.memory import address_of
from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.dtypes import DType
from bcpformat.model.leaves import FLAG_PARAMETER, FLAG_REQUIRES_GRAD, TensorLeaf
from bcpformat.model.region import Box
from bcpformat.torch.dtypes import DTYPE_NAMES, PAIR_DTYPE, TORCH_DTYPES
from bcpformat.torch.framework import (
    COMPLEX,
    FRAMEWORK,
    destination_refusal,
    empty_on_host,
    like_template,
    materialized,
    meta_tie,
    opaque_view,
)
from bcpformat.torch.placements import NOTHING, Held, MeshLayout, Order, Split, held

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_LAYOUTS = 4096
"""Layouts kept: a model has a few hundred shapes."""


@dataclass(slots=True, eq=False)
class LocalPart:
    """What a leaf carries: a distributed tensor, its local tensor, and where that lies in it."""

    tensor: DTensor
    local: torch.Tensor
    held: Held


class DTensorAdapter:
    """Shows what this rank holds of a distributed tensor to the core (see `LeafAdapter`)."""

    def describe(self, value: object, path: Callable[[], str]) -> TensorLeaf:
        """Return what the core must know of a distributed tensor.

        A rank outside its mesh holds nothing.  Waits for a local tensor that is still on its way.

        Raises:
            InvalidArgumentError: It waits for a reduction, the local tensor does not have the
                shape that its placements give, or the local tensor itself has no form
                (`E_NO_FORM`).
        """
        assert isinstance(value, DTensor)
        try:
            local = _local_of(value)
            here = _held_by(value, local)
            dtype = _dtype_of(local)
        except InvalidArgumentError as error:
            text = f"{path()!r}: {error.message}; save its .full_tensor() instead"
            raise InvalidArgumentError(text, code=ErrorCode.NO_FORM) from error
        if local.is_meta:
            text = f"{path()!r}: a DTensor on the meta device holds no elements"
            raise InvalidArgumentError(text, code=ErrorCode.NO_FORM)
        if here.boxes and not local.data_ptr():
            text = f"{path()!r}: the storage of a DTensor was freed, or is out of reach"
            raise InvalidArgumentError(text, code=ErrorCode.NO_FORM)
        flags = FLAG_PARAMETER if isinstance(value, torch.nn.Parameter) else 0
        if value.requires_grad:
            flags |= FLAG_REQUIRES_GRAD
        shape = tuple(value.shape)
        return TensorLeaf(
            dtype=dtype,
            shape=shape,
            flags=flags,
            alias_key=None if 0 in shape else _alias_key(shape, local, here),
            value=LocalPart(value, local, here),
            adapter=self,
            regions=here.regions,
            is_trusted=True,
        )

    def array(self, leaf: TensorLeaf) -> npt.NDArray[np.generic]:
        """Return the elements of a distributed tensor that this rank holds whole.

        Raises:
            InvalidArgumentError: It holds a part: that has no form within a per-rank value.
        """
        if 0 in leaf.shape:
            return np.empty(leaf.shape, DType.named(leaf.dtype).opaque)
        regions = leaf.regions or ()
        if len(regions) != 1 or regions[0].box.shape != leaf.shape:
            text = f"a part of a DTensor of shape {leaf.shape} has no form within a per-rank "
            text += "value; save its .to_local() or .full_tensor() instead"
            raise InvalidArgumentError(text, code=ErrorCode.NO_FORM)
        return self.pieces(leaf)[0]

    def pieces(self, leaf: TensorLeaf) -> Sequence[npt.NDArray[np.generic]]:
        """Return the elements of each region, as views of the local tensor in host memory."""
        part = leaf.value
        assert isinstance(part, LocalPart)
        if not part.held.boxes:
            return []
        host = materialized(part.local.detach()).cpu()
        return _views(opaque_view(host, DType.named(leaf.dtype)), part.held)


def _local_of(value: DTensor) -> torch.Tensor:
    """Return the local tensor, complete.

    Raises:
        InvalidArgumentError: It is no plain tensor: its elements mean more than they say.
    """
    local = value._local_tensor
    if type(local) in _PLAIN:
        return local
    if type(local) is AsyncCollectiveTensor:
        arrived: torch.Tensor = local.trigger_wait()  # type: ignore[no-untyped-call]  # of torch
        return arrived
    kind = type(local)
    text = f"a DTensor whose local tensor is a {kind.__module__}.{kind.__qualname__}"
    raise InvalidArgumentError(text, code=ErrorCode.NO_FORM)


def _dtype_of(local: torch.Tensor) -> str:
    """Return the registry's name of a local tensor's data type.

    Raises:
        InvalidArgumentError: There is none, or the tensor is not strided.
    """
    name = DTYPE_NAMES.get(local.dtype)
    if name is None or local.dtype is PAIR_DTYPE:
        raise InvalidArgumentError(f"a DTensor of {local.dtype}", code=ErrorCode.NO_FORM)
    if local.layout is not torch.strided:
        text = f"a DTensor whose local tensor has layout {local.layout}"
        raise InvalidArgumentError(text, code=ErrorCode.NO_FORM)
    return name


def _held_by(value: DTensor, local: torch.Tensor) -> Held:
    """Return what this rank holds of a distributed tensor.

    Raises:
        InvalidArgumentError: It cannot be known (see `held`), or is a part of a reduction.
    """
    spec = value._spec
    mesh = spec.mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return NOTHING
    # an older torch has neither attribute: there a factor always is an order
    as_order = getattr(spec, "use_strided_shard_as_shard_order", True)
    order = getattr(spec, "shard_order", None)
    return _held_for(
        tuple(value.shape),
        tuple(mesh.shape),
        tuple(coordinate),
        spec.placements,
        order,
        bool(as_order),
        tuple(local.shape),
    )


@lru_cache(maxsize=_LAYOUTS)
def _held_for(
    shape: tuple[int, ...],
    mesh: tuple[int, ...],
    coordinate: tuple[int, ...],
    placements: tuple[Placement, ...],
    order: Any,  # Any: a tuple of pairs of a type of torch, or None
    as_order: bool,  # noqa: FBT001  # positional arguments make a cheaper key
    local_shape: tuple[int, ...],
) -> Held:
    splits = tuple(_split_of(placement, len(shape)) for placement in placements)
    has_factor = any(split.factor > 1 for split in splits)
    stated = _other_order(order)
    if stated is not None and has_factor:
        text = f"a DTensor with placements {list(placements)} and the order {stated}"
        raise InvalidArgumentError(text, code=ErrorCode.NO_FORM)
    layout = MeshLayout(
        shape=shape,
        mesh=mesh,
        coordinate=coordinate,
        splits=splits,
        order=stated,
        from_view=has_factor and not as_order,
    )
    try:
        return held(layout, local_shape)
    except InvalidArgumentError as error:
        text = f"a DTensor of {error.message}"
        raise InvalidArgumentError(text, code=ErrorCode.NO_FORM) from error


def _split_of(placement: Placement, ndim: int) -> Split:
    """Return what a placement of torch says.

    Raises:
        InvalidArgumentError: The tensor is not there yet, or the kind of placement is unknown.
    """
    kind = type(placement)
    if kind is Replicate:
        return Split(None)
    if kind is Shard or kind is _StridedShard:
        assert isinstance(placement, (Shard, _StridedShard))
        axis = placement.dim + ndim if placement.dim < 0 else placement.dim
        return Split(axis, factor=int(getattr(placement, "split_factor", 1)))
    if placement.is_partial():
        text = f"a DTensor with the placement {placement!r} holds its share of a reduction that "
        text += "was not done (.redistribute(placements=[Replicate(), ...]) does it)"
    else:
        text = f"a DTensor with the placement {placement!r}, which is not known"
    raise InvalidArgumentError(text, code=ErrorCode.NO_FORM)


def _other_order(order: Any) -> Order | None:  # Any: as in `_held_for`
    """Return the order in which mesh axes split, if it is not from left to right."""
    if order is None:
        return None
    stated = tuple((int(axis), tuple(int(m) for m in mesh_axes)) for axis, mesh_axes in order)
    return stated if any(list(axes) != sorted(axes) for _, axes in stated) else None


def _alias_key(shape: tuple[int, ...], local: torch.Tensor, here: Held) -> Hashable:
    """Return what tied tensors have in common, also on a rank that holds none of their elements."""
    if not here.boxes:
        storage = local.untyped_storage()._cdata  # without elements there is no address
        return "DTensor", storage, local.storage_offset(), local.dtype, shape
    strides = None if local.is_contiguous() else local.stride()
    bits = local.is_neg() or (local.dtype in COMPLEX and local.is_conj())
    return local.data_ptr(), local.dtype, shape, here.shape, here.origins, strides, bits


def _views(array: npt.NDArray[np.generic], here: Held) -> list[npt.NDArray[np.generic]]:
    """Return the elements of each box as views; an index of no axes would copy."""
    return [array[place] if place else array for place in here.slices]


def dtensor_target(value: object, cast: Cast, saved: DType) -> Target:
    """Return where the elements that this rank holds of a distributed tensor are to be written."""
    assert isinstance(value, DTensor)
    shape = tuple(value.shape)
    try:
        local = _local_of(value)
        name = _dtype_of(local)
        here = _held_by(value, local)
    except InvalidArgumentError as error:
        refusal = f"{error.message}; read into a plain tensor and distribute that"
        return unfit(str(value.dtype), shape, refusal)
    unfilled = destination_refusal(local, name, cast, saved)
    if unfilled is not None or not may_cast(saved.name, name, cast=cast):
        return unfit(name, shape, unfilled)
    if not local.is_meta:
        return _local_target(shape, local, here, cast, saved)
    made = _empty_on(value.device_mesh.device_type, local)
    target = _local_target(shape, made, here, cast, saved)
    # only so the new one has the whole layout; it is what torch does itself
    distributed = DTensor(made, value._spec, requires_grad=False)  # type: ignore[no-untyped-call]
    return replace(target, value=like_template(distributed, value), tie=meta_tie(local))


def _empty_on(device_type: str, local: torch.Tensor) -> torch.Tensor:
    if device_type == "cpu":
        return empty_on_host(local.dtype, tuple(local.shape))
    return torch.empty(tuple(local.shape), dtype=local.dtype, device=device_type)


def _local_target(
    shape: tuple[int, ...], local: torch.Tensor, here: Held, cast: Cast, saved: DType
) -> Target:
    """Return the target that fills a local tensor, in place or by a copy in host memory."""
    if here.shape == shape and len(here.boxes) == 1:
        return FRAMEWORK.target(local, cast, saved)
    name = DTYPE_NAMES[local.dtype]
    if not here.boxes:
        return Target(dtype=name, shape=shape, address=0, strided=None, after=None, parts=())
    if name == saved.name and local.is_cpu and not local.is_neg() and not local.is_conj():
        if len(here.boxes) == 1 and local.is_contiguous():
            parts: tuple[TargetPart, ...] = (TargetPart(here.boxes[0], local.data_ptr(), None),)
        else:
            views = _views(opaque_view(local.detach(), saved), here)
            parts = tuple(_part(box, view) for box, view in zip(here.boxes, views, strict=True))
        return Target(
            dtype=name, shape=shape, address=0, strided=None, after=None, owner=local, parts=parts
        )
    host = empty_on_host(TORCH_DTYPES[saved.name], tuple(local.shape))

    def after() -> None:
        with torch.no_grad():
            local.copy_(host)

    size = local.element_size()
    strides = [size * stride for stride in local.stride()]
    own = memory_at(local.data_ptr(), shape=local.shape, strides=strides, size=size)
    staged = zip(here.boxes, _views(opaque_view(host, saved), here), _views(own, here), strict=True)
    return Target(
        dtype=name,
        shape=shape,
        address=0,
        strided=None,
        after=after,
        owner=host,
        parts=tuple(replace(_part(box, view), memory=memory) for box, view, memory in staged),
    )


def _part(box: Box, view: npt.NDArray[np.generic]) -> TargetPart:
    if view.flags.c_contiguous:
        return TargetPart(box, address_of(view), None)
    return TargetPart(box, 0, view, memory=view)


def _direct(value: object, dtype: str, shape: tuple[int, ...]) -> int:
    return 0 if type(value) is DTensor else FRAMEWORK.direct(value, dtype, shape)


def _target(value: object, cast: Cast, saved: DType) -> Target:
    find = dtensor_target if type(value) is DTensor else FRAMEWORK.target
    return find(value, cast, saved)


WITH_DTENSOR = replace(
    FRAMEWORK,
    adapters={**FRAMEWORK.adapters, DTensor: DTensorAdapter()},
    direct=_direct,
    target=_target,
)
"""What torch contributes where DTensor is loaded."""
