"""Which rank fetches which blocks where several need the same ones, and when (pure).

Ranks that read together tell each other which blocks they need, as ranges.  Blocks that one rank
alone needs are its own.  All others are cut into *units*: consecutive blocks that the same ranks
need, of about `UNIT_BYTES`.  One of those ranks, the *source*, fetches a unit and gives it to the
others, its *takers*, in a *round*; in no round does a rank hold much more than `ROUND_BYTES`.

Blocks are numbered by their place in the block tables, file after file: the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bcpformat.model.manifest import Ints, RunTable, ints
from bcpformat.plan.ranges import expand
from bcpformat.plan.resolve import Blocks, Pieces

UNIT_BYTES = 2**23
"""Raw bytes of a unit, less where no more consecutive blocks have the same takers."""

ROUND_BYTES = 2**26
"""Raw bytes of the units that a rank fetches or takes in a round, or one larger unit."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Ranges of blocks that a rank needs, ascending and disjoint; arrays of shape `(ranges,)`.

    Attributes:
        first: Number of the first block.
        stop: Number of the block after the last.
        stored: Stored bytes of the blocks.
        raw: Their raw bytes.
    """

    first: Ints
    stop: Ints
    stored: Ints
    raw: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """What is fetched by one rank for several; arrays of shape `(units,)`, by ascending blocks.

    Attributes:
        first: Number of the first block.
        stop: Number of the block after the last.
        source: The rank that fetches it.
        round: When, from 0.
        is_needed: Whether a rank needs it, shape `(ranks, units)`.
    """

    first: Ints
    stop: Ints
    source: Ints
    round: Ints
    is_needed: Bools

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return int(self.round.max(initial=-1)) + 1

    def find(self, number: Ints) -> Ints:
        """Return the unit of each block, -1 for those in none."""
        if not len(self.first):
            return np.full_like(number, -1)
        unit = np.searchsorted(self.first, number, side="right") - 1
        return np.where((unit >= 0) & (number < self.stop[unit]), unit, -1)


def needs_of(
    number: Ints, index: Ints, block_log2: Ints, *, stored: Ints, raw: Ints, unit_bytes: int
) -> Needs:
    """Return blocks as ranges, which end where every rank ends them: after each unit of a run.

    Args:
        number: Numbers of the blocks, ascending; all arrays are of shape `(blocks,)`.
        index: Position in the run, in blocks.
        block_log2: Base-2 logarithm of the raw bytes of a full block of the run.
        stored: Stored bytes.
        raw: Raw bytes.
        unit_bytes: Raw bytes of a unit.
    """
    per_unit = np.maximum(unit_bytes >> block_log2, 1)
    is_head = index % per_unit == 0
    is_head[:1] = True
    is_head[1:] |= np.diff(number) != 1
    head = np.flatnonzero(is_head)
    if not len(head):
        return Needs(first=number, stop=number, stored=number, raw=number)
    last = np.append(head[1:], len(number)) - 1
    return Needs(
        first=number[head],
        stop=number[last] + 1,
        stored=np.add.reduceat(stored, head),
        raw=np.add.reduceat(raw, head),
    )


def share(
    needs: Sequence[Needs], *, unit_bytes: int = UNIT_BYTES, round_bytes: int = ROUND_BYTES
) -> Units:
    """Return who fetches what others need too; the same on every rank.

    Bytes of a part of a range are taken to be in proportion to its blocks.

    Args:
        needs: What each rank needs, by rank.
        unit_bytes: See `UNIT_BYTES`.
        round_bytes: See `ROUND_BYTES`.
    """
    bounds = np.unique(np.concatenate([b for n in needs for b in (n.first, n.stop)]))
    first, stop = bounds[:-1], bounds[1:]
    is_needed = np.zeros((len(needs), len(first)), dtype=np.bool_)
    stored, raw = np.zeros_like(first), np.zeros_like(first)
    for rank in reversed(range(len(needs))):  # where ranks say different things, the first is right
        have = needs[rank]
        low = np.searchsorted(bounds, have.first)
        owner, at = expand(low, np.searchsorted(bounds, have.stop) - low)
        is_needed[rank, at] = True
        blocks = (have.stop - have.first)[owner]
        stored[at] = have.stored[owner] * (stop - first)[at] // blocks
        raw[at] = have.raw[owner] * (stop - first)[at] // blocks
    takers = is_needed.sum(axis=0)
    load = np.array([int(stored[row & (takers == 1)].sum()) for row in is_needed], dtype=np.int64)
    part = np.flatnonzero(takers > 1)
    if not len(part):
        none = ints([])
        return Units(first=none, stop=none, source=none, round=none, is_needed=is_needed[:, part])
    joined = (first[part][1:] == stop[part][:-1]) & (
        is_needed[:, part[1:]] == is_needed[:, part[:-1]]
    ).all(axis=0)
    head = _unit_heads(joined, raw[part], unit_bytes)
    is_needed = is_needed[:, part[head]]
    size = np.add.reduceat(raw[part], head)
    return Units(
        first=first[part[head]],
        stop=stop[part[np.append(head[1:], len(part)) - 1]],
        source=_sources(is_needed, np.add.reduceat(stored[part], head), load),
        round=_rounds(is_needed, size, round_bytes),
        is_needed=is_needed,
    )


def _unit_heads(joined: Bools, raw: Ints, unit_bytes: int) -> Ints:
    """Return which parts begin a unit: those not joined to the one before, and the next ones."""
    heads = np.append(0, np.flatnonzero(~joined) + 1)
    before = np.cumsum(raw) - raw
    before -= np.repeat(before[heads], np.diff(np.append(heads, len(raw))))
    is_head = np.append(True, ~joined | (np.diff(before // unit_bytes) > 0))
    return np.flatnonzero(is_head)


def _sources(is_needed: Bools, stored: Ints, load: Ints) -> Ints:
    """Return who fetches each unit: of those who need it the one that fetches least so far.

    Units that few ranks need come first: whoever has more choice fills what they leave.
    """
    source = np.zeros(len(stored), dtype=np.int64)
    for unit in np.argsort(is_needed.sum(axis=0), kind="stable").tolist():
        ranks = np.flatnonzero(is_needed[:, unit])
        source[unit] = rank = ranks[np.argmin(load[ranks])]
        load[rank] += stored[unit]
    return source


def _rounds(is_needed: Bools, raw: Ints, round_bytes: int) -> Ints:
    """Return the round of each unit: the first from which on all who need it have room for it."""
    current = np.zeros(len(is_needed), dtype=np.int64)  # the last round of each rank
    held = np.zeros_like(current)  # its bytes in that round
    rounds = np.zeros(len(raw), dtype=np.int64)
    for unit, nbytes in enumerate(raw.tolist()):
        ranks = np.flatnonzero(is_needed[:, unit])
        now = int(current[ranks].max())
        most = int(held[ranks[current[ranks] == now]].max())
        if most and most + nbytes > round_bytes:
            now += 1
        held[ranks[current[ranks] < now]] = 0
        held[ranks] += nbytes
        current[ranks] = now
        rounds[unit] = now
    return rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Portions:
    """Pieces, cut where the next of their blocks is of another group; by ascending group.

    Attributes:
        pieces: The portions.
        owner: The piece that each is of, shape `(portions,)`.
        skip: Bytes of that piece before it, shape `(portions,)`.
        group: The group of its blocks, shape `(portions,)`.
    """

    pieces: Pieces
    owner: Ints
    skip: Ints
    group: Ints

    def take(self, rows: slice) -> Portions:
        """Return some of the portions."""
        p = self.pieces
        return Portions(
            pieces=Pieces(
                chunk=p.chunk[rows],
                want=p.want[rows],
                run=p.run[rows],
                offset=p.offset[rows],
                nbytes=p.nbytes[rows],
                target=p.target[rows],
            ),
            owner=self.owner[rows],
            skip=self.skip[rows],
            group=self.group[rows],
        )


def cut_pieces(pieces: Pieces, blocks: Blocks, group: Ints, *, runs: RunTable) -> Portions:
    """Return the pieces in portions, each of which has bytes in blocks of one group only.

    Args:
        pieces: What is wanted.
        blocks: The blocks it needs.
        group: The group of each block, shape `(blocks,)`.
        runs: The runs.
    """
    block0 = np.zeros(len(runs), dtype=np.int64)  # number of the first block of each run
    block0[blocks.run] = blocks.number - blocks.index
    log2 = runs.block_log2[pieces.run]
    end = pieces.offset + pieces.nbytes
    low = np.searchsorted(blocks.number, block0[pieces.run] + (pieces.offset >> log2))
    high = np.searchsorted(blocks.number, block0[pieces.run] + ((end - 1) >> log2))
    # the blocks of a piece follow one another, so that only a change of the group cuts it
    stretch = np.append(0, np.cumsum(np.diff(group) != 0))
    heads = np.searchsorted(stretch, np.arange(int(stretch[-1]) + 2))
    owner, part = expand(stretch[low], stretch[high] - stretch[low] + 1)
    row = np.maximum(heads[part], low[owner])
    last = np.minimum(heads[part + 1] - 1, high[owner])
    run, log2 = pieces.run[owner], log2[owner]
    begin = np.maximum(pieces.offset[owner], blocks.index[row] << log2)
    stop = np.minimum(end[owner], (blocks.index[last] + 1) << log2)
    order = np.argsort(group[row], kind="stable")
    owner, begin = owner[order], begin[order]
    skip = begin - pieces.offset[owner]
    target = pieces.target[owner]
    return Portions(
        pieces=Pieces(
            chunk=pieces.chunk[owner],
            want=pieces.want[owner],
            run=run[order],
            offset=begin,
            nbytes=stop[order] - begin,
            target=np.where(target < 0, target, target + skip),
        ),
        owner=owner,
        skip=skip,
        group=group[row][order],
    )
