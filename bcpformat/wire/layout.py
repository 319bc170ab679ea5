"""What the tensors say of chunk rows, which have no tensor column (spec 7.4).

Rows go tensor after tensor, each tensor has its number of them, and each row has one origin and
one extent for every axis of its tensor.  Rules about vectors are checked for all rows of equal
rank at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from bcpformat.errors import ErrorCode
from bcpformat.model.manifest import Ints, TensorTable
from bcpformat.wire.schema import fault

_PROBE_ROWS = 256
_WRAPS = 2.0**60
"""A product that is below this in floating point is below 2^63: exact in int64."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """Those of some rows whose tensors have equally many axes.

    Attributes:
        ndim: Their number of axes.
        rows: Selects them from values per row.
        values: Selects theirs from values per axis.
        tensor: Row of the tensor of each, shape `(rows,)`.
    """

    ndim: int
    rows: slice | npt.NDArray[np.bool_]
    values: slice | npt.NDArray[np.bool_]
    tensor: Ints

    def vectors(self, values: Ints) -> Ints:
        """Return the vectors of these rows, shape `(rows, ndim)`."""
        return values[self.values].reshape(len(self.tensor), self.ndim)


class Layout:
    """Where the chunk rows of each tensor are.

    Preconditions:
        The numbers of rows of all tensors add up to less than 2^53; `check_chunk_rows` sees to it.
    """

    def __init__(self, tensors: TensorTable) -> None:
        count = len(tensors)
        self._ndim = np.fromiter(map(len, tensors.shapes), np.int64, count)
        self._shape = np.fromiter(chain(*tensors.shapes), np.int64, int(self._ndim.sum()))
        self._shape_start = np.cumsum(self._ndim) - self._ndim
        self._ends = np.cumsum(tensors.chunks)
        self._value_ends = np.cumsum(tensors.chunks * self._ndim)

    def values_before(self, row: int) -> int:
        """Return how many values a column with values per axis has before a row."""
        tensor = int(np.searchsorted(self._ends, row, "right"))
        if tensor == len(self._ends):
            return int(self._value_ends[-1]) if tensor else 0
        return int(self._value_ends[tensor] - (self._ends[tensor] - row) * self._ndim[tensor])

    def rows(self, first: int, count: int) -> ChunkRows:
        """Return what the tensors say of `count` rows from the row `first` on."""
        begin, end = np.searchsorted(self._ends, (first, first + count - 1), "right")
        ends = np.minimum(self._ends[begin : end + 1], first + count)
        counts = np.diff(ends, prepend=first)
        tensor = np.repeat(np.arange(begin, end + 1), counts)
        return ChunkRows(first=first, tensor=tensor, layout=self)

    def ndim_of(self, tensor: Ints) -> Ints:
        """Return the number of axes of each of some tensors."""
        return self._ndim.take(tensor)

    def shapes_of(self, tensor: Ints, ndim: int) -> Ints:
        """Return the shapes of some tensors of equal rank, shape `(len(tensor), ndim)`."""
        at: Ints = self._shape_start[tensor][:, np.newaxis] + np.arange(ndim)
        return self._shape.take(at)


class ChunkRows:
    """Some consecutive chunk rows, at least one.

    Attributes:
        first: The first row.
        tensor: Row of the tensor of each, shape `(rows,)`.
        ndim: Axes of each, shape `(rows,)`.
    """

    def __init__(self, *, first: int, tensor: Ints, layout: Layout) -> None:
        self.first = first
        self.tensor = tensor
        self.ndim = layout.ndim_of(tensor)
        self._layout = layout

    def _ranks(self) -> Iterator[_Rank]:
        if self.ndim.min() == self.ndim.max():
            yield _Rank(int(self.ndim[0]), slice(None), slice(None), self.tensor)
            return
        for ndim in np.flatnonzero(np.bincount(self.ndim)).tolist():
            rows = self.ndim == ndim
            yield _Rank(ndim, rows, np.repeat(rows, self.ndim), self.tensor[rows])

    def shapes(self) -> Ints:
        """Return the shapes of the rows' tensors, the axes of all rows one after the other."""
        out = np.empty(int(self.ndim.sum()), np.int64)
        for rank in self._ranks():
            out[rank.values] = self._layout.shapes_of(rank.tensor, rank.ndim).reshape(-1)
        return out

    def elements(self, extent: Ints | None) -> Ints:
        """Return the number of elements of each box.

        That of a box too large for its tensor may wrap; the box is refused later (BCP-REG-001).

        Args:
            extent: Values per axis; None if all boxes span their tensor.
        """
        out = np.empty(len(self.tensor), np.int64)
        for rank in self._ranks():
            vectors = self._boxes(rank, extent, slice(None))
            out[rank.rows] = np.prod(vectors, axis=1, dtype=np.int64)
        return out

    def spans(self, extent: Ints) -> bool:
        """Return whether every extent is its tensor's shape."""
        for rank in self._ranks():
            vectors = rank.vectors(extent)
            # Most columns differ early.
            for part in (slice(_PROBE_ROWS), slice(_PROBE_ROWS, None)):
                shapes = self._layout.shapes_of(rank.tensor[part], rank.ndim)
                if not np.array_equal(vectors[part], shapes):
                    return False
        return True

    def fills(self, count: Ints, extent: Ints | None) -> bool:
        """Return whether every count is the number of elements of its box.

        Args:
            count: Values per row.
            extent: As for `elements`.
        """
        for rank in self._ranks():
            for part in (slice(_PROBE_ROWS), slice(_PROBE_ROWS, None)):
                vectors = self._boxes(rank, extent, part)
                exact = np.prod(vectors, axis=1, dtype=np.float64) < _WRAPS
                elements = np.prod(vectors, axis=1, dtype=np.int64)
                if not (exact & (elements == count[rank.rows][part])).all():
                    return False
        return True

    def require_order(self, origin: Ints | None, start: Ints | None) -> None:
        """Raise ``E_ORDER`` unless rows ascend by tensor, origin and start (BCP-COL-004).

        Args:
            origin: Values per axis; None if all are zero.
            start: Values per row; None if all are zero.
        """
        for rank in self._ranks():
            tied = rank.tensor[1:] == rank.tensor[:-1]
            bad = np.zeros_like(tied)
            if origin is not None:
                vectors = rank.vectors(origin)
                for axis in range(rank.ndim):
                    before, after = vectors[:-1, axis], vectors[1:, axis]
                    bad |= tied & (after < before)
                    tied &= after == before
            if start is not None:
                starts = start[rank.rows]
                tied &= starts[1:] <= starts[:-1]
            bad |= tied
            if bad.any():
                tensor = int(rank.tensor[1:][np.argmax(bad)])
                text = "chunks must ascend by origin, then start, without equal ones"
                raise fault(ErrorCode.ORDER, f"chunks of tensors row {tensor}", text)

    def key(self, row: int, origin: Ints | None, start: Ints | None) -> tuple[int, ...]:
        """Return what sorts the first row (0) or the last (-1)."""
        ndim = int(self.ndim[row])
        vector = [0] * ndim
        if origin is not None:
            vector = (origin[:ndim] if row == 0 else origin[len(origin) - ndim :]).tolist()
        return (int(self.tensor[row]), *vector, 0 if start is None else int(start[row]))

    def _boxes(self, rank: _Rank, extent: Ints | None, part: slice) -> Ints:
        if extent is None:
            return self._layout.shapes_of(rank.tensor[part], rank.ndim)
        return rank.vectors(extent)[part]
