"""Two checkpoints compared name by name, whatever their layouts, a few MiB at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isnan, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from bcpformat.api.load import StateBuilder
from bcpformat.api.opened import Checkpoint, TensorView
from bcpformat.api.selection import Filter, name_filter
from bcpformat.interop.slices import row_major_indexes
from bcpformat.interop.state_items import Item, state_items, value_text
from bcpformat.model.dtypes import DType
from bcpformat.model.manifest import ints
from bcpformat.model.progress import Progress

SLICE_ELEMENTS = 2**21

Array = npt.NDArray[Any]  # Any: the scalar type is the tensor's


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDifference:
    """How one tensor differs.

    Attributes:
        name: Its name in both checkpoints.
        dtypes: Data type in A and in B.
        shapes: Shape in A and in B.
        elements: Elements of one of them.
        differing: Elements of other value; NaN equals NaN, -0.0 equals 0.0.  None if the shapes
            differ.
        differing_bits: Elements of other bits; None if shapes or data types differ.
        max_abs: Largest absolute difference of two values, NaN if a number meets a NaN only; None
            if the shapes differ.
        nan_mismatches: Elements that are NaN in one of them.
    """

    name: str
    dtypes: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    elements: int
    differing: int | None = None
    differing_bits: int | None = None
    max_abs: float | int | None = None
    nan_mismatches: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueDifference:
    """A value, or the kind of a container, that differs: in words."""

    name: str
    a: str
    b: str


@dataclass(slots=True, kw_only=True)
class Comparison:
    """What two checkpoints do not share.

    Attributes:
        only_a: Names that B lacks, in A's state order.
        only_b: Names that A lacks, in B's state order.
        tensors: Tensors that differ.
        values: Values that differ.
        compared: Names that both have.
    """

    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)
    tensors: list[TensorDifference] = field(default_factory=list)
    values: list[ValueDifference] = field(default_factory=list)
    compared: int = 0

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.only_a or self.only_b or self.tensors or self.values)


def compare(a: Checkpoint, b: Checkpoint, *, chosen: Filter, progress: Progress) -> Comparison:
    """Return how two checkpoints differ.

    Compared are tensors, plain values, per-rank values and kinds of containers.  Not compared
    are step, metadata, ties, the library of a leaf and everything about the layout.

    Args:
        a: One.
        b: The other.
        chosen: Names to look at.
        progress: Called with numbers of bytes of A as they are compared.

    Raises:
        FormatError: Something does not verify.
    """
    take = name_filter(chosen)
    items_a = {i.name: i for i in state_items(a.manifest.state) if take(i.name) or not i.depth}
    items_b = {i.name: i for i in state_items(b.manifest.state) if take(i.name) or not i.depth}
    found = Comparison(
        only_a=[n for n in _leaves(items_a) if n not in items_b],
        only_b=[n for n in _leaves(items_b) if n not in items_a],
    )
    known: dict[tuple[int, int], TensorDifference | None] = {}
    for name, item in items_a.items():
        other = items_b.get(name)
        if other is None:
            continue
        found.compared += not item.is_container
        if item.kind == other.kind == "tensor":
            pair = (item.index, other.index)
            if pair not in known:
                known[pair] = compare_tensors(a[name], b[name], progress=progress)
            difference = known[pair]
            if difference is not None:
                found.tensors.append(replace(difference, name=name))
        else:
            value = _compare_values(a, item, b, other)
            if value is not None:
                found.values.append(value)
    return found


def _leaves(items: dict[str, Item]) -> list[str]:
    """Return the names of leaves and of empty containers."""
    return [n for n, i in items.items() if not (i.is_container and i.children)]


def compare_tensors(a: TensorView, b: TensorView, *, progress: Progress) -> TensorDifference | None:
    """Return how two tensors differ, None if they have the same type, shape and bits."""
    same_dtype = a.dtype == b.dtype
    if a.shape != b.shape:
        return TensorDifference(
            name=a.name,
            dtypes=(a.dtype, b.dtype),
            shapes=(a.shape, b.shape),
            elements=prod(a.shape),
        )
    counts = _Counts()
    for index in row_major_indexes(a.shape, max_elements=SLICE_ELEMENTS):
        left, right = (a[index], b[index]) if index else (a.read(), b.read())
        counts.add(left, right, DType.named(a.dtype), DType.named(b.dtype))
        progress(left.nbytes)
    if same_dtype and not counts.bits:
        return None
    return TensorDifference(
        name=a.name,
        dtypes=(a.dtype, b.dtype),
        shapes=(a.shape, b.shape),
        elements=prod(a.shape),
        differing=counts.values,
        differing_bits=counts.bits if same_dtype else None,
        max_abs=counts.max_abs,
        nan_mismatches=counts.nan,
    )


@dataclass(slots=True)
class _Counts:
    """Sums over the slices of two tensors."""

    bits: int = 0
    values: int = 0
    nan: int = 0
    max_abs: float | int = 0

    def add(self, left: Array, right: Array, a: DType, b: DType) -> None:
        """Count the differences of two slices of one shape."""
        left, right = left.reshape(-1), right.reshape(-1)
        if a == b:
            unequal = _bits_differ(left, right)
            if not unequal.any():
                return
            self.bits += int(unequal.sum())
            left, right = left[unequal], right[unequal]
            if a.kind in ("int", "uint"):
                self._add_integers(_integers(left, a), _integers(right, b))
                return
        self._add_floats(_floats(left, a), _floats(right, b))

    def _add_integers(self, left: Array, right: Array) -> None:
        """Count whole numbers without loss; all of them differ."""
        self.values += left.size
        larger, smaller = np.maximum(left, right), np.minimum(left, right)
        # Modulo 2^64 the difference is right, also where it does not fit the signed type.
        gap = larger.astype(np.uint64) - smaller.astype(np.uint64)
        self.max_abs = max(self.max_abs, int(gap.max()))

    def _add_floats(self, left: Array, right: Array) -> None:
        nan_left, nan_right = np.isnan(left), np.isnan(right)
        unequal = (left != right) & ~(nan_left & nan_right)
        self.values += int(unequal.sum())
        self.nan += int((nan_left ^ nan_right).sum())
        numbers = unequal & ~(nan_left | nan_right)
        if numbers.any():
            with np.errstate(over="ignore", invalid="ignore"):
                gap = float(np.abs(left[numbers] - right[numbers]).max())
            self.max_abs = gap if isnan(self.max_abs) else max(self.max_abs, gap)
        elif unequal.any() and not self.max_abs:
            self.max_abs = float("nan")


def _bits_differ(left: Array, right: Array) -> npt.NDArray[np.bool_]:
    size = left.dtype.itemsize
    kind = np.dtype(f"<u{min(size, 8)}")
    words = (left.view(kind) != right.view(kind)).reshape(left.size, -1)
    differ: npt.NDArray[np.bool_] = words.any(axis=1)
    return differ


def _integers(array: Array, dtype: DType) -> Array:
    return array.astype(np.uint64 if dtype.kind == "uint" else np.int64)


def _floats(array: Array, dtype: DType) -> Array:
    """Return elements of any data type as float64 or complex128."""
    if dtype.name == "complex32":
        parts = array.view(np.float16).reshape(-1, 2).astype(np.float64)
        return np.ascontiguousarray(parts).view(np.complex128).reshape(-1)
    return array.astype(np.complex128 if dtype.kind == "complex" else np.float64)


def _compare_values(
    a: Checkpoint, left: Item, b: Checkpoint, right: Item
) -> ValueDifference | None:
    """Return how two items that are not both tensors differ, None if they do not."""
    if left.kind != right.kind or left.registered != right.registered:
        return ValueDifference(name=left.name, a=_words(left), b=_words(right))
    if left.is_container:
        return None
    if left.kind == "per-rank":
        return _compare_per_rank(a, left, b, right)
    if left.index >= 0 or right.index >= 0:
        values = [_stored_value(c, i) for c, i in ((a, left), (b, right))]
        if values[0] == values[1]:
            return None
        sizes = [f"{i.kind} of {len(v)} bytes" for i, v in zip((left, right), values, strict=True)]
        return ValueDifference(name=left.name, a=sizes[0], b=sizes[1])
    if left.node == right.node:
        return None
    return ValueDifference(name=left.name, a=_words(left), b=_words(right))


def _stored_value(checkpoint: Checkpoint, item: Item) -> bytes:
    if item.index >= 0:
        return StateBuilder(checkpoint.reader, as_numpy=True).read_object(item.index)
    node = item.node[1] if isinstance(item.node, list) else item.node
    if isinstance(node, str):
        return node.encode()
    return node if isinstance(node, bytes) else b""


def _compare_per_rank(
    a: Checkpoint, left: Item, b: Checkpoint, right: Item
) -> ValueDifference | None:
    found = [_per_rank(c, i.index) for c, i in ((a, left), (b, right))]
    if found[0] == found[1]:
        return None
    ranks = sorted({*found[0], *found[1]})
    differing = [r for r in ranks if found[0].get(r) != found[1].get(r)]
    shown = ", ".join(map(str, differing[:8])) + (", ..." if len(differing) > 8 else "")
    return ValueDifference(
        name=left.name,
        a=f"values of {len(found[0])} ranks; those of ranks {shown} differ",
        b=f"values of {len(found[1])} ranks",
    )


def _per_rank(checkpoint: Checkpoint, path: int) -> dict[int, bytes]:
    """Return rank to the bytes of its value; equal values have equal bytes (spec 6)."""
    table = checkpoint.manifest.per_rank
    rows = ints(np.flatnonzero(table.path == path))
    documents = checkpoint.reader.read_per_rank(rows)
    ranks = table.rank[rows].tolist()
    return {rank: data.tobytes() for rank, data in zip(ranks, documents, strict=True)}


def _words(item: Item) -> str:
    kind = f"{item.registered} ({item.kind})" if item.registered else item.kind
    return f"{kind} {value_text(item.node)}".rstrip()
