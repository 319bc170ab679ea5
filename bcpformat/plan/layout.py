"""What one rank holds of a state, in columns: the layout that ranks exchange to plan a save.

A layout has a row for every tensor and object of the rank's state, and a row for every piece of
them that the rank holds.  It depends on nothing but names, shapes and regions, so it is equal from
save to save, and its columns, encoded, are its identity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from math import prod
from typing import Never, TypeAlias

import numpy as np
import numpy.typing as npt

from bcpformat.errors import InvalidArgumentError
from bcpformat.model.dtypes import DTYPES
from bcpformat.model.limits import MAX_INTEGER, MAX_NDIM
from bcpformat.model.manifest import Ints, Value
from bcpformat.model.state import EncodedState

Columns: TypeAlias = dict[str, Value]
"""A layout as plain values: lists of str, and packed little-endian integers."""

Bools: TypeAlias = npt.NDArray[np.bool_]

OBJECT = "object"
"""Stands for the data type of an object: its elements are bytes, and it is never split."""

_LISTS = ("names", "dtypes")
_PACKED = {
    "dtype": "<u1",
    "ndim": "<u1",
    "shape": "<u8",
    "trusted": "<u1",
    "tensor": "<u4",
    "origin": "<u8",
    "extent": "<u8",
    "start": "<u8",
    "count": "<u8",
}
_BITS = {name: dtype.bits for name, dtype in DTYPES.items()} | {OBJECT: 8}
_WRAPS = 2.0**60
"""A product below this in floating point is below 2^63: exact in int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What one rank holds of its state.

    Tensors come first, ascending by name; then objects, each a 1-d tensor of its bytes.

    Attributes:
        names: Names of the tensors.
        dtypes: Registry name of each tensor; `OBJECT` for an object.
        shapes: Global shape of each tensor.
        trusted: Whether nobody need compare replicas of each tensor, shape `(tensors,)`.
        tensor: Row of each piece's tensor, ascending, shape `(pieces,)`.
        origin: Box origins, the pieces' axes one after the other, in tensor coordinates.
        extent: Box extents, laid out the same, at least 1.
        start: First element of the flat range in its box, shape `(pieces,)`.
        count: Elements of the flat range, at least 1, shape `(pieces,)`; a whole box has start 0
            and all its elements.
        nbytes: Raw bytes of each piece, shape `(pieces,)`.
    """

    names: Sequence[str]
    dtypes: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    trusted: Bools
    tensor: Ints
    origin: Ints
    extent: Ints
    start: Ints
    count: Ints
    nbytes: Ints

    def __len__(self) -> int:
        return len(self.tensor)

    def to_columns(self) -> Columns:
        """Return plain values; equal layouts give equal ones."""
        kinds = {name: position for position, name in enumerate(dict.fromkeys(self.dtypes))}
        values = {
            "dtype": [kinds[name] for name in self.dtypes],
            "ndim": [len(shape) for shape in self.shapes],
            "shape": list(chain.from_iterable(self.shapes)),
            "trusted": self.trusted,
            "tensor": self.tensor,
            "origin": self.origin,
            "extent": self.extent,
            "start": self.start,
            "count": self.count,
        }
        columns: Columns = {"names": [*self.names], "dtypes": [*kinds]}
        for name, code in _PACKED.items():
            columns[name] = np.asarray(values[name], dtype=code).tobytes()
        return columns


def layout_of(state: EncodedState) -> Layout:
    """Return what this process holds of a state.

    Pieces go tensor after tensor in the order of their regions, then object after object.
    """
    leaves, objects = state.leaves, state.objects
    dtypes = [leaf.dtype for leaf in leaves] + [OBJECT] * len(objects)
    shapes = [leaf.shape for leaf in leaves] + [(len(data),) for _, data in objects]
    tensor: list[int] = []
    origin: list[int] = []
    extent: list[int] = []
    start: list[int] = []
    count: list[int] = []
    wholes = [leaf.regions for leaf in leaves] + [None] * len(objects)
    for row, (shape, regions) in enumerate(zip(shapes, wholes, strict=True)):
        if regions is None:
            numel = prod(shape)
            if numel:
                tensor.append(row)
                origin += (0,) * len(shape)
                extent += shape
                start.append(0)
                count.append(numel)
            continue
        for region in regions:
            tensor.append(row)
            origin += region.box.origin
            extent += region.box.shape
            start.append(region.start)
            count.append(region.count)
    # The merge of states compares objects by a digest of all their bytes.
    trusted = [leaf.is_trusted for leaf in leaves] + [True] * len(objects)
    tensors = _ints(tensor)
    counts = _ints(count)
    return Layout(
        names=[*state.names, *(name for name, _ in objects)],
        dtypes=dtypes,
        shapes=shapes,
        trusted=np.array(trusted, dtype=np.bool_),
        tensor=tensors,
        origin=_ints(origin),
        extent=_ints(extent),
        start=_ints(start),
        count=counts,
        nbytes=_nbytes(dtypes, tensors, counts),
    )


def layout_from_columns(columns: object) -> Layout:
    """Return the layout of `Layout.to_columns`.

    Args:
        columns: As another rank sent them; anything in them may be wrong.

    Raises:
        InvalidArgumentError: They are no layout.
    """
    lists, packed = _unpacked(columns)
    names, kinds = lists["names"], lists["dtypes"]
    unknown = [name for name in kinds if name not in _BITS]
    if unknown:
        _refuse(f"dtype {unknown[0][:80]!r} is not in the registry")
    for name in ("dtype", "ndim", "trusted"):
        _require_length(packed, name, len(names))
    _require_below(packed, "dtype", len(kinds))
    _require_below(packed, "ndim", MAX_NDIM + 1)
    _require_below(packed, "trusted", 2)
    _require_length(packed, "shape", int(packed["ndim"].sum()))
    _require_below(packed, "tensor", len(names))
    tensor = packed["tensor"]
    if (tensor[1:] < tensor[:-1]).any():
        _refuse("tensor must ascend")
    axes = packed["ndim"][tensor]
    for name, length in (
        ("origin", int(axes.sum())),
        ("extent", int(axes.sum())),
        ("start", len(tensor)),
        ("count", len(tensor)),
    ):
        _require_length(packed, name, length)
    _check_regions(packed, axes)
    dtypes = [kinds[kind] for kind in packed["dtype"].tolist()]
    _check_names(names, dtypes)
    return Layout(
        names=names,
        dtypes=dtypes,
        shapes=_shapes(packed["shape"].tolist(), axis_starts(packed["ndim"]).tolist()),
        trusted=packed["trusted"] == 1,
        tensor=tensor,
        origin=packed["origin"],
        extent=packed["extent"],
        start=packed["start"],
        count=packed["count"],
        nbytes=_nbytes(dtypes, tensor, packed["count"]),
    )


def bits_of(dtype: str) -> int:
    """Return the bits of an element of a registry name, or of `OBJECT`."""
    return _BITS[dtype]


def axis_starts(ndim: Ints) -> Ints:
    """Return where the axes of each row begin in concatenated axes, and where the last end.

    Args:
        ndim: Axes of each row, shape `(rows,)`.

    Returns:
        Shape `(rows + 1,)`.
    """
    starts = np.zeros(len(ndim) + 1, dtype=np.int64)
    np.cumsum(ndim, out=starts[1:])
    return starts


def _nbytes(dtypes: Sequence[str], tensor: Ints, count: Ints) -> Ints:
    """Return the raw bytes of pieces of `count` elements."""
    bits = _ints([_BITS[name] for name in dtypes])
    nbytes: Ints = (count * bits[tensor] + 7) >> 3
    return nbytes


def _shapes(values: Sequence[int], starts: Sequence[int]) -> list[tuple[int, ...]]:
    """Return shapes; equal ones are one object, as a process may hold the layouts of all ranks."""
    seen: dict[tuple[int, ...], tuple[int, ...]] = {}
    found = (tuple(values[a:b]) for a, b in pairwise(starts))
    return [seen.setdefault(shape, shape) for shape in found]


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _unpacked(columns: object) -> tuple[dict[str, list[str]], dict[str, Ints]]:
    """Return the lists and the packed columns, of whatever lengths they have."""
    if not isinstance(columns, Mapping) or set(columns) != {*_LISTS, *_PACKED}:
        _refuse(f"expected the columns {sorted((*_LISTS, *_PACKED))}, found {columns!r:.200}")
    lists: dict[str, list[str]] = {}
    for name in _LISTS:
        found = columns[name]
        if not isinstance(found, list) or not all(type(v) is str for v in found):
            _refuse(f"{name} must be a list of str, found {found!r:.80}")
        lists[name] = found
    packed: dict[str, Ints] = {}
    for name, code in _PACKED.items():
        found = columns[name]
        dtype = np.dtype(code)
        if not isinstance(found, bytes) or len(found) % dtype.itemsize:
            _refuse(f"{name} must be values of {dtype.itemsize} bytes, found {found!r:.80}")
        values = np.frombuffer(found, dtype)
        if values.max(initial=0) > MAX_INTEGER:
            _refuse(f"{name} holds {values.max()}, above 2^53-1")
        packed[name] = values.astype(np.int64)
    return lists, packed


def _check_names(names: Sequence[str], dtypes: Sequence[str]) -> None:
    """Refuse tensors, then objects, that do not ascend by name."""
    keys = zip((dtype == OBJECT for dtype in dtypes), names, strict=True)
    for before, after in pairwise(keys):
        if before >= after:
            text = f"found {after[1][:80]!r} after {before[1][:80]!r}"
            _refuse(f"names must ascend, those of tensors before those of objects; {text}")


def _check_regions(packed: Mapping[str, Ints], axes: Ints) -> None:
    """Refuse pieces that do not lie within their tensors, or have no elements."""
    origin, extent, tensor = packed["origin"], packed["extent"], packed["tensor"]
    first = axis_starts(packed["ndim"])[tensor]
    starts = axis_starts(axes)
    within = np.arange(len(origin), dtype=np.int64) - np.repeat(starts[:-1] - first, axes)
    if (extent < 1).any() or (origin + extent > packed["shape"][within]).any():
        _refuse("a box does not lie within its tensor, or has no elements")
    numel = np.ones(len(tensor), dtype=np.int64)
    filled = axes > 0
    if filled.any():
        begins = starts[:-1][filled]
        with np.errstate(over="ignore"):
            volume = np.multiply.reduceat(extent.astype(np.float64), begins)
        if (volume >= _WRAPS).any():
            _refuse("a box holds more than 2^53-1 elements")
        numel[filled] = np.multiply.reduceat(extent, begins)
    if (numel > MAX_INTEGER).any():
        _refuse("a box holds more than 2^53-1 elements")
    if (packed["count"] < 1).any() or (packed["start"] + packed["count"] > numel).any():
        _refuse("a flat range does not lie within its box, or has no elements")


def _require_length(packed: Mapping[str, Ints], name: str, length: int) -> None:
    if len(packed[name]) != length:
        _refuse(f"{name} must have {length} values, found {len(packed[name])}")


def _require_below(packed: Mapping[str, Ints], name: str, bound: int) -> None:
    if packed[name].max(initial=-1) >= bound:
        _refuse(f"{name} must be below {bound}, found {packed[name].max()}")


def _refuse(text: str) -> Never:
    raise InvalidArgumentError(f"layout of a rank: {text}")
