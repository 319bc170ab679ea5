"""Which rank stores which piece of a state that several ranks hold (pure).

A piece that one rank holds is stored by it.  Equal pieces of several ranks are *replicas*: one
holder stores them, and `balance` decides which where they are large.  Replicas are found by sorting
columns and comparing neighbours, so that nothing is made for each piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from bcpformat.errors import DisagreementError, ErrorCode, Problem
from bcpformat.model.manifest import Ints
from bcpformat.plan.balance import LARGE_PIECE_BYTES, Pieces, balance
from bcpformat.plan.layout import OBJECT, Layout, axis_starts, bits_of

MAX_PROBLEMS = 100

_Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one rank stores, and which of its replicas are to be compared.

    Attributes:
        piece: Piece of the rank's layout, ascending, shape `(shares,)`.
        low: First element of the share, in the piece's own row-major elements; a share of a box is
            whole slabs of the first axis with an extent other than 1, shape `(shares,)`.
        high: The position after its last element, shape `(shares,)`.
        check_piece: Pieces that other holders must hold equal, ascending, shape `(checks,)`.
        check_group: Number of each one's group of replicas, the same on all holders, shape
            `(checks,)`.
    """

    piece: Ints
    low: Ints
    high: Ints
    check_piece: Ints
    check_group: Ints


def assign(layouts: Sequence[Layout]) -> list[Assignment]:
    """Return what each rank stores: every region once, by a rank that holds it.

    Equal layouts give equal assignments, whatever the process.  Small replicas go to the lowest
    rank that holds them; large ones where the ranks become most equal (see `balance`).  A region
    that lies within a larger one of another rank is no replica; checks of coverage refuse it.

    Args:
        layouts: That of every rank, by rank.

    Returns:
        An assignment for every rank, by rank.

    Raises:
        DisagreementError: Ranks have different shapes or data types for one name.
    """
    if not layouts:
        return []
    table = _tensor_table(layouts)
    rows = _rows(layouts, table)
    groups = _group(rows)
    stored = _stored(rows, groups, ranks=len(layouts))
    return _by_rank(rows, stored, _checked(rows, groups), ranks=len(layouts))


def bytes_per_rank(layouts: Sequence[Layout], assignments: Sequence[Assignment]) -> Ints:
    """Return the raw bytes that each rank stores, shape `(ranks,)`."""
    total = np.zeros(len(layouts), dtype=np.int64)
    for rank, (layout, found) in enumerate(zip(layouts, assignments, strict=True)):
        count, nbytes = layout.count[found.piece], layout.nbytes[found.piece]
        elements = found.high - found.low
        # A share of a part has whole bytes an element: sub-byte pieces are never split.
        total[rank] = np.where(elements == count, nbytes, elements * (nbytes // count)).sum()
    return total


# ---- tensors -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TensorTable:
    """The tensors of all ranks; they are numbered as they are met.

    Attributes:
        rows: For each rank the number of each tensor of its layout.
        ndim: Axes of each tensor, shape `(tensors,)`.
        divisible: Whether pieces of each may be split: not those of sub-byte types, whose parts
            need not end at bytes, nor objects; shape `(tensors,)`.
    """

    rows: list[Ints]
    ndim: Ints
    divisible: _Bools


def _tensor_table(layouts: Sequence[Layout]) -> _TensorTable:
    numbers: dict[str, int] = {}
    dtypes: list[str] = []
    shapes: list[tuple[int, ...]] = []
    rows: list[Ints] = []
    agreed = True
    for layout in layouts:
        known = len(numbers)
        found = [numbers.setdefault(name, len(numbers)) for name in layout.names]
        if len(numbers) > known:
            new = [row for row, number in enumerate(found) if number >= known]
            dtypes += [layout.dtypes[row] for row in new]
            shapes += [layout.shapes[row] for row in new]
        agreed &= list(layout.dtypes) == [dtypes[number] for number in found]
        agreed &= list(layout.shapes) == [shapes[number] for number in found]
        rows.append(np.array(found, dtype=np.int64))
    if not agreed:
        _refuse_variants(layouts)
    return _TensorTable(
        rows=rows,
        ndim=np.array([len(shape) for shape in shapes], dtype=np.int64),
        divisible=np.array([d != OBJECT and bits_of(d) >= 8 for d in dtypes], dtype=np.bool_),
    )


def _refuse_variants(layouts: Sequence[Layout]) -> None:
    """Raise for the tensors that ranks have different shapes or data types for."""
    variants: dict[str, dict[str, list[int]]] = {}
    for rank, layout in enumerate(layouts):
        for name, shape, dtype in zip(layout.names, layout.shapes, layout.dtypes, strict=True):
            variants.setdefault(name, {}).setdefault(f"{shape} {dtype}", []).append(rank)
    clashes = {name: found for name, found in sorted(variants.items()) if len(found) > 1}
    problems = [
        Problem(code=ErrorCode.DISAGREE, where=repr(name), message=_variants_text(found))
        for name, found in list(clashes.items())[:MAX_PROBLEMS]
    ]
    first = problems[0]
    text = f"ranks disagree about {len(clashes)} tensors; {first.where}: {first.message}"
    raise DisagreementError(text, problems=problems)


def _variants_text(found: dict[str, list[int]]) -> str:
    text = ", ".join(f"rank {ranks[0]} has {what}" for what, ranks in found.items())
    ranks = sum(map(len, found.values()))
    if ranks > len(found):
        counts = " and ".join(str(len(ranks)) for ranks in found.values())
        text += f" (of {ranks} ranks {counts} have the one and the other)"
    return text


# ---- pieces ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rows:
    """The pieces of all ranks, by rank; columns have shape `(rows,)`.

    Attributes:
        rank: Rank that holds it.
        piece: Row in the layout of that rank.
        tensor: Number of the tensor.
        trusted: Whether that rank trusts replicas of it.
        start: First element of the flat range.
        count: Elements of the flat range.
        nbytes: Raw bytes.
        divisible: Whether it may be split.
        axes: Where each row's axes begin in `origin` and `extent`, shape `(rows + 1,)`.
        origin: Box origins, one after the other.
        extent: Box extents, laid out the same.
    """

    rank: Ints
    piece: Ints
    tensor: Ints
    trusted: _Bools
    start: Ints
    count: Ints
    nbytes: Ints
    divisible: _Bools
    axes: Ints
    origin: Ints
    extent: Ints

    def boxes(self, rows: Ints, ndim: int) -> tuple[Ints, Ints]:
        """Return origins and extents of rows of `ndim` axes, shape `(ndim, rows)` each."""
        at = self.axes[:-1][rows] + np.arange(ndim, dtype=np.int64)[:, np.newaxis]
        return self.origin[at], self.extent[at]


def _rows(layouts: Sequence[Layout], table: _TensorTable) -> _Rows:
    sizes = np.array([len(layout) for layout in layouts], dtype=np.int64)
    rank = np.repeat(np.arange(len(layouts), dtype=np.int64), sizes)
    tensor = np.concatenate(
        [numbers[layout.tensor] for numbers, layout in zip(table.rows, layouts, strict=True)]
    )
    before = np.cumsum(sizes) - sizes
    return _Rows(
        rank=rank,
        piece=np.arange(len(rank), dtype=np.int64) - before[rank],
        tensor=tensor,
        trusted=np.concatenate([layout.trusted[layout.tensor] for layout in layouts]),
        start=np.concatenate([layout.start for layout in layouts]),
        count=np.concatenate([layout.count for layout in layouts]),
        nbytes=np.concatenate([layout.nbytes for layout in layouts]),
        divisible=table.divisible[tensor],
        axes=axis_starts(table.ndim[tensor]),
        origin=np.concatenate([layout.origin for layout in layouts]),
        extent=np.concatenate([layout.extent for layout in layouts]),
    )


@dataclass(frozen=True, slots=True)
class _Groups:
    """Rows of equal tensor and region, group after group, each by rank, then piece.

    Attributes:
        order: The rows, shape `(rows,)`.
        first: Position in `order` of each group's first row, shape `(groups + 1,)`.
        slab: Elements of one step on the axis along which the pieces of each group may be split;
            0 where they may not, shape `(groups,)`.
    """

    order: Ints
    first: Ints
    slab: Ints

    def __len__(self) -> int:
        return len(self.slab)

    def numbers(self) -> Ints:
        """Return the number of the group of each position in `order`."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.first))


def _group(rows: _Rows) -> _Groups:
    ndim = np.diff(rows.axes)
    orders, heads, slabs = [], [], []
    for axes in np.unique(ndim).tolist():
        members = np.flatnonzero(ndim == axes)
        order, is_head = _sorted_by_region(rows, members, axes)
        orders.append(order)
        heads.append(is_head)
        slabs.append(_slab(rows, order[is_head], axes))
    if not orders:
        none = np.zeros(0, dtype=np.int64)
        return _Groups(order=none, first=np.zeros(1, dtype=np.int64), slab=none)
    first = np.append(np.flatnonzero(np.concatenate(heads)), len(ndim))
    return _Groups(order=np.concatenate(orders), first=first, slab=np.concatenate(slabs))


def _sorted_by_region(rows: _Rows, members: Ints, ndim: int) -> tuple[Ints, _Bools]:
    """Return rows of `ndim` axes sorted by tensor and region, and which differ from the one before.

    The sort is stable: equal regions stay by rank, then piece.
    """
    origin, extent = rows.boxes(members, ndim)
    columns = [rows.tensor[members], *origin, *extent, rows.start[members], rows.count[members]]
    columns = [c for c in columns if (c != c[0]).any()]
    # lexsort needs a key, and sorts by the last one first.
    order = np.lexsort(columns[::-1]) if columns else np.arange(len(members), dtype=np.int64)
    is_head = np.zeros(len(members), dtype=np.bool_)
    is_head[0] = True
    for column in columns:
        values = column[order]
        is_head[1:] |= values[1:] != values[:-1]
    return members[order], is_head


def _slab(rows: _Rows, members: Ints, ndim: int) -> Ints:
    """Return elements of a step along which pieces may be split, 0 where they may not."""
    _, extent = rows.boxes(members, ndim)
    numel = np.multiply.reduce(extent, axis=0, initial=1)
    whole = (rows.start[members] == 0) & (rows.count[members] == numel)
    steps = np.ones(len(members), dtype=np.int64)
    for axis in range(ndim - 1, -1, -1):
        steps = np.where(extent[axis] != 1, extent[axis], steps)
    slab = np.where(whole, numel // steps, 1)
    return np.where(rows.divisible[members], slab, 0)


# ---- shares ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stored:
    """What is stored of which row; columns have shape `(shares,)`.

    Attributes:
        row: Row of the piece.
        low: First element.
        high: The position after the last element.
    """

    row: Ints
    low: Ints
    high: Ints


def _stored(rows: _Rows, groups: _Groups, *, ranks: int) -> _Stored:
    """Return what is stored: every group once."""
    number = groups.numbers()
    rank = rows.rank[groups.order]
    # A rank that holds a region twice counts once.
    counts = np.ones(len(rank), dtype=np.bool_)
    counts[1:] = (rank[1:] != rank[:-1]) | (number[1:] != number[:-1])
    holder = groups.order[counts]
    bounds = axis_starts(np.bincount(number[counts], minlength=len(groups)))
    head = groups.order[groups.first[:-1]]  # of the lowest rank
    is_large = (np.diff(bounds) > 1) & (rows.nbytes[head] >= LARGE_PIECE_BYTES)
    alone = head[~is_large]
    load = np.zeros(ranks, dtype=np.int64)
    np.add.at(load, rows.rank[alone], rows.nbytes[alone])
    large = np.flatnonzero(is_large)
    first, stop = bounds[large], bounds[large + 1]
    pieces = Pieces(
        nbytes=rows.nbytes[head[large]],
        count=rows.count[head[large]],
        slab=groups.slab[large],
        holders=[
            rows.rank[holder[a:b]] for a, b in zip(first.tolist(), stop.tolist(), strict=True)
        ],
    )
    shares = balance(pieces, load)
    return _Stored(
        row=np.concatenate((alone, holder[first[shares.piece] + shares.holder])),
        low=np.concatenate((np.zeros_like(alone), shares.low)),
        high=np.concatenate((rows.count[alone], shares.high)),
    )


def _checked(rows: _Rows, groups: _Groups) -> tuple[Ints, Ints]:
    """Return the rows that must equal others, ascending, and the number of each one's group."""
    number = groups.numbers()
    trusted = np.ones(int(rows.tensor.max(initial=-1)) + 1, dtype=np.bool_)
    trusted[rows.tensor[~rows.trusted]] = False
    head = groups.order[groups.first[:-1]]
    is_checked = (np.diff(groups.first) > 1) & ~trusted[rows.tensor[head]]
    kept = is_checked[number]
    row, group = groups.order[kept], (np.cumsum(is_checked) - 1)[number[kept]]
    order = np.argsort(row)
    return row[order], group[order]


def _by_rank(
    rows: _Rows, stored: _Stored, checked: tuple[Ints, Ints], *, ranks: int
) -> list[Assignment]:
    """Return columns over all ranks as those of each; rows ascend by rank, then piece."""
    order = np.lexsort((stored.low, stored.row))
    row, low, high = stored.row[order], stored.low[order], stored.high[order]
    check_row, group = checked
    numbers = np.arange(ranks + 1, dtype=np.int64)
    bounds = np.searchsorted(rows.rank[row], numbers).tolist()
    check_bounds = np.searchsorted(rows.rank[check_row], numbers).tolist()
    piece, check_piece = rows.piece[row], rows.piece[check_row]
    return [
        Assignment(
            piece=piece[a:b],
            low=low[a:b],
            high=high[a:b],
            check_piece=check_piece[c:d],
            check_group=group[c:d],
        )
        for (a, b), (c, d) in zip(pairwise(bounds), pairwise(check_bounds), strict=True)
    ]
