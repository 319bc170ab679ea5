"""`Shard` and `Shards` as destinations: what their arrays want of a tensor.

The library of the data says where its elements go; this says which elements those are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from bcpformat.api.framework import NUMPY, Cast, Framework, Target, TargetPart, may_cast, unfit
from bcpformat.engine.memory import Bytes, address_of, copy
from bcpformat.model.dtypes import DType, pack_subbyte, unpack_subbyte
from bcpformat.model.leaves import LeafAdapter
from bcpformat.model.region import Box
from bcpformat.model.shards import Shard, ShardAdapter, Shards, pieces_of

After = Callable[[], None]


def shard_framework(libraries: Sequence[Framework]) -> Framework:
    """Return what takes pieces of the arrays of some libraries, as leaves and as destinations.

    Args:
        libraries: Those that the data of a `Shard` may be of.

    Example:
        >>> library = shard_framework([NUMPY])
        >>> shard = Shard(np.zeros(5), global_shape=(4, 3), origin=(0, 0), flat=(7, 5))
        >>> target = library.target(shard, False, DType.named("float64"))
        >>> [(part.box.origin, part.box.shape) for part in target.parts]
        [((2, 1), (1, 2)), ((3, 0), (1, 3))]
    """
    owners = {kind: library for library in libraries for kind in library.adapters}
    adapters: dict[type, LeafAdapter] = {
        kind: library.adapters[kind] for kind, library in owners.items()
    }
    adapter = ShardAdapter(adapters)
    return Framework(
        name="shards",
        adapters={Shard: adapter, Shards: adapter},
        allocate=NUMPY.allocate,
        finish=NUMPY.finish,
        direct=lambda _value, _dtype, _shape: 0,
        target=lambda value, cast, saved: shard_target(value, cast, saved, owners),
    )


@dataclass(frozen=True, slots=True)
class _Filled:
    """One piece as a destination."""

    inner: Target
    parts: tuple[TargetPart, ...]
    after: After | None


def shard_target(
    value: object, cast: Cast, saved: DType, owners: Mapping[type, Framework]
) -> Target:
    """Return where the elements of a `Shard` or of `Shards` are to be written.

    Args:
        value: The template leaf.
        cast: What the caller allows.
        saved: Data type of the saved elements.
        owners: Type of the data of a piece to its library.
    """
    pieces = pieces_of(value)
    shape = pieces[0].global_shape
    filled: list[_Filled] = []
    for piece in pieces:
        library = owners.get(type(piece.data))
        if library is None:
            kind = type(piece.data).__name__
            text = f"its data is a {kind}, and must be a torch tensor or a numpy array"
            return unfit(saved.name, shape, text)
        inner = library.target(piece.held, cast, saved)
        refusal = inner.refusal or _refusal(piece, inner, filled)
        if refusal is not None or not may_cast(saved.name, inner.dtype, cast=cast):
            return unfit(inner.dtype, shape, refusal)
        filled.append(_fill(piece, inner, saved))
    afters = [one.after for one in filled if one.after is not None]
    afters += [partial(_clear_padding, piece) for piece in pieces if piece.padded]
    made = _replacement(value, pieces, filled)
    return Target(
        dtype=filled[0].inner.dtype,
        shape=shape,
        address=0,
        strided=None,
        after=(lambda: _call(afters)) if afters else None,
        owner=[one.inner for one in filled],
        parts=tuple(part for one in filled for part in one.parts),
        value=made,
        tie=None if made is None else tuple(one.inner.tie for one in filled),
    )


def _refusal(piece: Shard, inner: Target, before: Sequence[_Filled]) -> str | None:
    """Return why a piece cannot be filled though its data can."""
    if inner.parts is not None:
        return f"its data is a {type(piece.data).__name__}, which is distributed itself"
    if piece.padded and inner.value is not None:
        return "its data has padding, and is on the meta device"
    if inner.shape != tuple(piece.held.shape):
        return f"its data counts several elements of {inner.dtype} as one"
    if before and before[0].inner.dtype != inner.dtype:
        return f"its pieces are of {before[0].inner.dtype} and {inner.dtype}"
    return None


def _fill(piece: Shard, inner: Target, saved: DType) -> _Filled:
    """Return how the boxes of a piece are put into its data."""
    region = piece.region
    if not region.count:
        return _Filled(inner, (), None)
    if piece.flat is None:
        part = TargetPart(region.box, inner.address, inner.strided, memory=inner.memory)
        return _Filled(inner, (part,), inner.after)
    boxes = [(box, flat - region.start) for box, flat in region.boxes()]
    if saved.bits < 8:
        return _fill_packed(boxes, inner, saved)
    size = saved.bits // 8
    parts = tuple(
        TargetPart(
            box,
            inner.address + at * size if inner.address else 0,
            _stretch(inner.strided, at, box),
            memory=_stretch(inner.memory, at, box),
        )
        for box, at in boxes
    )
    return _Filled(inner, parts, inner.after)


def _stretch(
    array: npt.NDArray[np.generic] | None, at: int, box: Box
) -> npt.NDArray[np.generic] | None:
    """Return the elements of a box in 1-d data, as a view of the shape of the box."""
    if array is None:
        return None
    step, size = array.strides[0], box.numel
    strides = [step] * box.ndim
    for axis in range(box.ndim - 1, 0, -1):
        strides[axis - 1] = strides[axis] * box.shape[axis]
    return np.lib.stride_tricks.as_strided(array[at : at + size], box.shape, strides)


def _fill_packed(boxes: Sequence[tuple[Box, int]], inner: Target, saved: DType) -> _Filled:
    """Return how elements smaller than a byte are put into data that has them packed.

    A box that begins within a byte has no address there, so each box gets memory of its own.
    """
    made: list[Bytes] = [np.zeros(saved.nbytes_of(box.numel), np.uint8) for box, _ in boxes]

    def after() -> None:
        elements = np.concatenate(
            [
                unpack_subbyte(packed, bits=saved.bits, numel=box.numel)
                for packed, (box, _) in zip(made, boxes, strict=True)
            ]
        )
        packed = pack_subbyte(elements, bits=saved.bits)
        copy(inner.address, address_of(packed), packed.nbytes)
        if inner.after is not None:
            inner.after()

    parts = tuple(
        TargetPart(box, address_of(packed), None, memory=_stretch(inner.memory, at, box))
        for packed, (box, at) in zip(made, boxes, strict=True)
    )
    return _Filled(replace(inner, owner=(inner.owner, made)), parts, after)


def _replacement(
    value: object, pieces: Sequence[Shard], filled: Sequence[_Filled]
) -> object | None:
    """Return what replaces the leaf if the data of some piece is to be replaced."""
    if all(one.inner.value is None for one in filled):
        return None
    made = [
        Shard(
            one.inner.value if one.inner.value is not None else piece.data,
            global_shape=piece.global_shape,
            origin=piece.origin,
            shape=piece.shape,
            flat=piece.flat,
        )
        for piece, one in zip(pieces, filled, strict=True)
    ]
    return Shards(made) if type(value) is Shards else made[0]


def _clear_padding(piece: Shard) -> None:
    """Set what lies beyond the tensor to zero."""
    data = piece.data.detach() if hasattr(piece.data, "detach") else piece.data
    for axis, kept in enumerate(piece.box_shape):
        data[(slice(None),) * axis + (slice(kept, None),)] = 0


def _call(functions: Sequence[After]) -> None:
    for function in functions:
        function()
