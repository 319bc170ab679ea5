"""Which holder of a large replica stores it, so that ranks store about equally much (pure).

Pieces that the same ranks hold are decided together, those with the fewest holders first: whoever
has more choice fills what they leave.  First every piece goes whole, the largest first, to the
holder with the fewest bytes.  That makes ranks equal to within a piece, mostly far less, so
splitting comes last and only where holders still differ by more than `TOLERANCE_BYTES`: it moves
the end of a share from the holder with the most bytes to the one with the fewest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bcpformat.model.manifest import Ints

LARGE_PIECE_BYTES = 2**20
"""Smaller replicas go to the lowest rank that holds them."""

SPLIT_PIECE_BYTES = 2**24
"""Smaller pieces are never split."""

PART_BYTES = 2**23
"""The least bytes of a part of a piece."""

TOLERANCE_BYTES = PART_BYTES
"""Holders that differ by no more are equal enough: moving a part would not make them more so."""

Bools: TypeAlias = npt.NDArray[np.bool_]

_Part: TypeAlias = tuple[int, int, int]
"""Piece, first slab, and the slab after its last."""

_Held: TypeAlias = dict[int, list[_Part]]
"""Position among the holders to its parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Pieces that several ranks hold; columns of shape `(pieces,)`.

    Attributes:
        nbytes: Raw bytes.
        count: Elements.
        slab: Elements of one step on the axis along which it may be split, which divides `count`;
            0 where it may not.
        holders: Ranks that hold each, ascending, at least one.
    """

    nbytes: Ints
    count: Ints
    slab: Ints
    holders: Sequence[Ints]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Parts of pieces and who stores them; columns of shape `(shares,)`, by piece, then `low`.

    Attributes:
        piece: Row of the piece.
        holder: Position of the rank among the piece's holders.
        low: First element of the share.
        high: The position after its last element.
    """

    piece: Ints
    holder: Ints
    low: Ints
    high: Ints


def balance(pieces: Pieces, load: Ints) -> Shares:
    """Return shares of replicas that make ranks store about equally much.

    Args:
        pieces: The replicas.
        load: Bytes that each rank stores besides, shape `(ranks,)`.

    Returns:
        Shares that tile every piece: one of a piece below `SPLIT_PIECE_BYTES`, else one or several
        of at least `PART_BYTES`, cut at whole slabs.  Equal arguments give equal shares.
    """
    load = load.copy()
    teams: dict[bytes, list[int]] = defaultdict(list)
    for piece, ranks in enumerate(pieces.holders):
        teams[ranks.tobytes()].append(piece)
    sizes = pieces.nbytes.tolist()
    slabs = np.where(pieces.slab > 0, pieces.count // np.maximum(pieces.slab, 1), 1).tolist()
    # Sorting is stable: teams of equally many ranks stay in the order of their first piece.
    found = [
        _Team(pieces.holders[members[0]], sorted(members, key=lambda p: -sizes[p]), sizes, slabs)
        for members in sorted(teams.values(), key=lambda members: len(pieces.holders[members[0]]))
    ]
    for team in found:
        team.give_whole(load)
    for team in found:
        team.level(load)
    return _columns([team.held for team in found], pieces, slabs)


class _Team:
    """Ranks and the pieces that exactly they hold, the largest first."""

    __slots__ = ("_members", "_ranks", "_sizes", "_slabs", "held")

    def __init__(
        self, ranks: Ints, members: Sequence[int], sizes: Sequence[int], slabs: Sequence[int]
    ) -> None:
        self._ranks = ranks
        self._members = members
        self._sizes = sizes
        self._slabs = slabs
        self.held: _Held = defaultdict(list)

    def give_whole(self, load: Ints) -> None:
        """Give every piece to the rank with the fewest bytes, and add it to that rank's load."""
        heap = [(nbytes, position) for position, nbytes in enumerate(load[self._ranks].tolist())]
        heapify(heap)
        for piece in self._members:
            nbytes, position = heap[0]
            self.held[position].append((piece, 0, self._slabs[piece]))
            heapreplace(heap, (nbytes + self._sizes[piece], position))
        for position in self.held:
            load[self._ranks[position]] += self._bytes_of(position)

    def level(self, load: Ints) -> None:
        """Move parts until the loads of the ranks are equal enough, or nothing helps."""
        if not any(self._may_split(piece) for piece in self._members):
            return
        loads = load[self._ranks]
        if np.ptp(loads) <= TOLERANCE_BYTES:
            return
        own = np.zeros_like(loads)
        for position in self.held:
            own[position] = self._bytes_of(position)
        aim = _water_level(loads - own, int(own.sum()))
        movable = own > 0
        # Every move makes two ranks more equal, so this ends; the bound is for gains of next to
        # nothing.
        moves = 4 * (len(loads) + len(self._members))
        while moves and self._improve(loads, movable, aim):
            moves -= 1
        load[self._ranks] = loads

    def _improve(self, loads: Ints, movable: Bools, aim: int) -> bool:
        """Move a part from the rank with the most bytes to the one with the fewest.

        Returns:
            False if they are equal enough, or no rank has a part that helps.
        """
        source = int(np.argmax(np.where(movable, loads, -1)))
        target = int(np.argmin(loads))
        gap = int(loads[source] - loads[target])
        if not movable[source] or gap <= TOLERANCE_BYTES:
            return False
        wish = min(int(loads[source]) - aim, aim - int(loads[target]))
        part = self._take(source, wish, gap)
        movable[source] = part is not None
        if part is not None:
            self.held[target].append(part)
            movable[target] = True
            loads[source] -= self._part_bytes(part)
            loads[target] += self._part_bytes(part)
        return True

    def _take(self, source: int, wish: int, gap: int) -> _Part | None:
        """Remove about `wish` bytes, fewer than `gap`, from what a rank holds, and return them."""
        parts = self.held[source]
        for index, (piece, first, stop) in enumerate(parts):
            step = self._sizes[piece] // self._slabs[piece]
            least = -(-PART_BYTES // step)
            most = stop - first - least
            if self._may_split(piece) and least <= most:
                steps = min(max((wish + step // 2) // step, least), most)
                if steps * step < gap:
                    parts[index] = (piece, first, stop - steps)
                    return piece, stop - steps, stop
        whole = [part for part in parts if self._part_bytes(part) < gap]
        if not whole:
            return None
        best = min(whole, key=lambda part: abs(self._part_bytes(part) - wish))
        parts.remove(best)
        return best

    def _may_split(self, piece: int) -> bool:
        return self._slabs[piece] > 1 and self._sizes[piece] >= SPLIT_PIECE_BYTES

    def _part_bytes(self, part: _Part) -> int:
        piece, first, stop = part
        return self._sizes[piece] // self._slabs[piece] * (stop - first)

    def _bytes_of(self, position: int) -> int:
        return sum(map(self._part_bytes, self.held[position]))


def _water_level(base: Ints, nbytes: int) -> int:
    """Return the level that so many bytes reach if they fill up the lowest of `base`."""
    ascending = np.sort(base)
    levels = (np.cumsum(ascending) + nbytes) // np.arange(1, len(base) + 1)
    covered = np.append(levels[:-1] <= ascending[1:], True)
    return int(levels[np.argmax(covered)])


def _columns(held: Sequence[_Held], pieces: Pieces, slabs: Sequence[int]) -> Shares:
    """Return parts as columns, those that continue one of the same holder joined to it."""
    rows = [
        (piece, first, stop, position)
        for parts_of in held
        for position, parts in parts_of.items()
        for piece, first, stop in parts
    ]
    rows.sort()
    piece, first, stop, holder = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    is_new = np.ones(len(rows), dtype=np.bool_)
    is_new[1:] = (piece[1:] != piece[:-1]) | (holder[1:] != holder[:-1])
    is_last = np.append(is_new[1:], True)[: len(rows)]
    unit = pieces.count // np.array(slabs, dtype=np.int64)
    return Shares(
        piece=piece[is_new],
        holder=holder[is_new],
        low=first[is_new] * unit[piece[is_new]],
        high=stop[is_last] * unit[piece[is_new]],
    )
