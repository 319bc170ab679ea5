"""Pieces of tensors as any framework may give them: `Shard`, `Shards`, and their adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import index
from typing import Any, Never

import numpy as np
import numpy.typing as npt

from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.leaves import LeafAdapter, TensorLeaf
from bcpformat.model.region import Box, Region


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """The piece of a tensor that this process holds: a box, or a flat range of a box's elements.

    Attributes:
        data: Its elements: a torch tensor or numpy array, of the box's shape, or 1-d for a flat
            range.  It may have no elements: then this process holds nothing of the tensor.
        global_shape: Shape of the whole tensor, in elements.
        origin: First element of the box, in tensor coordinates.
        shape: Shape of the box; by default that of `data`, with `flat` the whole tensor if
            `origin` is zero.
        flat: Start and length of a range of the row-major elements of the box.
        padded: Whether `data` may reach beyond the tensor, as a vocabulary does that was rounded up
            to a multiple of the ranks.  What lies beyond is not written; a read sets it to zero.

    Raises:
        InvalidArgumentError: The parts do not agree.

    Example:
        >>> Shard(np.zeros((2, 3)), global_shape=(4, 3), origin=(2, 0)).region.box.shape
        (2, 3)
        >>> Shard(np.zeros(5), global_shape=(4, 3), origin=(0, 0), flat=(7, 5)).region.count
        5
    """

    data: Any  # Any: a tensor of any library
    global_shape: tuple[int, ...]
    origin: tuple[int, ...]
    shape: tuple[int, ...] | None = None
    flat: tuple[int, int] | None = None
    padded: bool = False

    def __init__(
        self,
        data: Any,  # Any: as above
        *,
        global_shape: Sequence[int],
        origin: Sequence[int],
        shape: Sequence[int] | None = None,
        flat: tuple[int, int] | None = None,
        padded: bool = False,
    ) -> None:
        self._set("data", data)
        self._set("global_shape", _extents("global_shape", global_shape))
        self._set("origin", _extents("origin", origin))
        self._set("shape", None if shape is None else _extents("shape", shape))
        self._set("flat", None if flat is None else _extents("flat", flat))
        self._set("padded", padded)
        if self.flat is not None and len(self.flat) != 2:
            _refuse(f"flat must be (start, length), got {flat!r}")
        if padded and (shape is not None or flat is not None):
            _refuse("padded goes with data of the box's shape; give neither shape nor flat")
        if len(self.origin) != len(self.global_shape):
            _refuse(f"origin {self.origin} must have the axes of {self._of}")
        self._check()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check(self) -> None:
        """Refuse parts that do not agree; nothing is assumed about `data` but its shape."""
        box = self.box_shape
        if len(box) != len(self.global_shape):
            _refuse(f"shape {box} must have the axes of {self._of}")
        ends = zip(self.origin, box, self.global_shape, strict=True)
        if not self.padded and any(first + extent > whole for first, extent, whole in ends):
            _refuse(f"the box at {self.origin} of shape {box} does not lie within {self._of}")
        held = _shape_of(self.held)
        if self.flat is None:
            if held != box:
                _refuse(f"data has shape {held}, the box has {box}")
            return
        start, length = self.flat
        if held != (length,):
            _refuse(f"data has shape {held}, the flat range has ({length},)")
        if start + length > prod(box):
            text = f"flat range {start} to {start + length} passes the {prod(box)} elements of "
            _refuse(f"{text}the box of shape {box}")

    @property
    def _of(self) -> str:
        return f"global_shape {self.global_shape}"

    @property
    def box_shape(self) -> tuple[int, ...]:
        """Shape of the box.

        Raises:
            InvalidArgumentError: A flat range in a box that is not at zero needs a shape.
        """
        if self.shape is not None:
            return self.shape
        if self.flat is None:
            data = _shape_of(self.data)
            return self._clipped(data) if self.padded else data
        if any(self.origin):
            _refuse(f"a flat range in a box at {self.origin} needs the shape of that box")
        return self.global_shape

    def _clipped(self, data: tuple[int, ...]) -> tuple[int, ...]:
        if len(data) != len(self.global_shape):
            _refuse(f"data of shape {data} must have the axes of {self._of}")
        ends = zip(data, self.origin, self.global_shape, strict=True)
        return tuple(max(0, min(extent, whole - first)) for extent, first, whole in ends)

    @property
    def held(self) -> Any:  # Any: as `data`
        """`data` without padding."""
        if not self.padded:
            return self.data
        return self.data[tuple(slice(extent) for extent in self.box_shape)]

    @property
    def region(self) -> Region:
        """The region that `data` holds, in tensor coordinates."""
        shape = self.box_shape
        ends = zip(self.origin, self.global_shape, strict=True)
        origin = tuple(min(first, whole) for first, whole in ends)
        box = Box(origin=origin, shape=shape)
        start, count = self.flat if self.flat is not None else (0, box.numel)
        return Region(box=box, start=start, count=count)


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """The pieces that this process holds of one tensor.

    Attributes:
        pieces: At least one; all of one global shape, data type and library.
        segments: Name, axis, origin and extent of each part of a fused tensor, as advice for
            whoever looks at the checkpoint.

    Raises:
        InvalidArgumentError: There is none, or they differ in global shape.
    """

    pieces: tuple[Shard, ...]
    segments: tuple[tuple[str, int, int, int], ...] = ()

    def __init__(
        self, pieces: Sequence[Shard], *, segments: Sequence[tuple[str, int, int, int]] = ()
    ) -> None:
        object.__setattr__(self, "pieces", tuple(pieces))
        numbers = [(n, index(axis), index(first), index(size)) for n, axis, first, size in segments]
        object.__setattr__(self, "segments", tuple(numbers))
        if not self.pieces or not all(type(p) is Shard for p in self.pieces):
            _refuse("Shards needs a sequence of at least one Shard")
        shapes = {p.global_shape for p in self.pieces}
        if len(shapes) > 1:
            _refuse(f"the pieces of one tensor have one global shape, got {sorted(shapes)}")


def pieces_of(value: object) -> tuple[Shard, ...]:
    """Return the pieces of a `Shard` or of `Shards`."""
    if type(value) is Shards:
        return value.pieces
    assert type(value) is Shard
    return (value,)


class ShardAdapter:
    """Shows `Shard` and `Shards` to the core, by the adapters of what they hold."""

    def __init__(self, inner: Mapping[type, LeafAdapter]) -> None:
        self._inner = inner

    def describe(self, value: object, path: Callable[[], str]) -> TensorLeaf:
        """Return what the core must know of the pieces (see `LeafAdapter.describe`).

        Raises:
            InvalidArgumentError: The data has no form, or the pieces differ in data type.
        """
        pieces = pieces_of(value)
        leaves = [self._describe(piece, path) for piece in pieces]
        first = leaves[0]
        for leaf in leaves[1:]:
            if (leaf.dtype, leaf.flags) != (first.dtype, first.flags):
                text = f"{path()!r}: pieces of {first.dtype} and {leaf.dtype}, or of two kinds"
                raise InvalidArgumentError(text, code=ErrorCode.NO_FORM)
        regions = tuple(p.region for p in pieces)
        held = [i for i, region in enumerate(regions) if region.count]
        if len({regions[i] for i in held}) != len(held):
            text = f"{path()!r}: two pieces of the same region; a rank gives each element once"
            raise InvalidArgumentError(text, code=ErrorCode.NO_FORM)
        keys = tuple((leaves[i].alias_key, regions[i]) for i in held)
        return TensorLeaf(
            dtype=first.dtype,
            shape=pieces[0].global_shape,
            flags=first.flags,
            alias_key=(pieces[0].global_shape, keys) if keys else None,
            value=[leaves[i] for i in held],
            adapter=self,
            regions=tuple(regions[i] for i in held),
            segments=value.segments if type(value) is Shards else (),
        )

    def _describe(self, piece: Shard, path: Callable[[], str]) -> TensorLeaf:
        data = piece.held
        adapter = self._inner.get(type(data))
        if adapter is None:
            text = f"{path()!r}: a Shard of a {type(data).__name__} has no form; "
            text += "its data must be a torch tensor or a numpy array"
            raise InvalidArgumentError(text, code=ErrorCode.NO_FORM)
        leaf = adapter.describe(data, path)
        if leaf.shape != _shape_of(data):
            text = f"{path()!r}: a Shard of elements in pairs has no form"
            raise InvalidArgumentError(text, code=ErrorCode.NO_FORM)
        return leaf

    def array(self, leaf: TensorLeaf) -> npt.NDArray[np.generic]:
        """Return the elements of a value of one rank alone, which must be whole.

        Raises:
            InvalidArgumentError: A piece of a tensor has no form within a per-rank value.
        """
        held = leaf.value
        assert isinstance(held, list)
        whole = Region.whole(Box.whole(leaf.shape))
        if leaf.regions != (whole,):
            text = "a Shard that is not the whole tensor has no form within a per-rank value"
            raise InvalidArgumentError(text, code=ErrorCode.NO_FORM)
        inner: TensorLeaf = held[0]
        return inner.adapter.array(inner)

    def pieces(self, leaf: TensorLeaf) -> Sequence[npt.NDArray[np.generic]]:
        """Return the elements of each region (see `LeafAdapter.pieces`)."""
        held = leaf.value
        assert isinstance(held, list) and leaf.regions is not None
        arrays = [inner.adapter.array(inner) for inner in held]
        return [
            # a flat range may be all of its box; packed elements have no shape
            array.reshape(region.box.shape)
            if region.is_whole and inner.shape == array.shape
            else array
            for array, region, inner in zip(arrays, leaf.regions, held, strict=True)
        ]


def _shape_of(data: Any) -> tuple[int, ...]:  # Any: as in Shard
    shape = getattr(data, "shape", None)
    if shape is None:
        _refuse(f"the data of a Shard must be a torch tensor or a numpy array, got {type(data)}")
    return tuple(int(extent) for extent in shape)


def _extents(what: str, values: Sequence[int]) -> tuple[int, ...]:
    try:
        found = tuple(index(v) for v in values)
    except TypeError:
        _refuse(f"{what} must be integers, got {values!r:.200}")
    if any(v < 0 for v in found):
        _refuse(f"{what} must not be negative, got {found}")
    return found


def _refuse(text: str) -> Never:
    raise InvalidArgumentError(text)
