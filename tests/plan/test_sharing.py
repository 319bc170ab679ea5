"""Who fetches what several ranks need, against sets of blocks."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bcpformat.model.manifest import ints
from bcpformat.plan.resolve import ChunkIndex
from bcpformat.plan.sharing import Needs, Units, cut_pieces, needs_of, share
from tests.plan.painted import Read, reads

BLOCK_LOG2 = 4
UNIT_BYTES = 4 << BLOCK_LOG2
ROUND_BYTES = 3 * UNIT_BYTES
RUN_BLOCKS = 11

NEEDED = st.lists(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 25)), max_size=4).map(
        lambda ranges: {n for first, size in ranges for n in range(first, first + size)}
    ),
    min_size=1,
    max_size=5,
)


def needs(blocks: set[int], *, stored: int = 16) -> Needs:
    """What a rank needs that needs some blocks, of runs of `RUN_BLOCKS` full blocks."""
    number = ints(sorted(blocks))
    return needs_of(
        number,
        number % RUN_BLOCKS,
        np.full_like(number, BLOCK_LOG2),
        stored=np.full_like(number, stored),
        raw=np.full_like(number, 1 << BLOCK_LOG2),
        unit_bytes=UNIT_BYTES,
    )


def shared(needed: list[set[int]]) -> Units:
    return share([needs(b) for b in needed], unit_bytes=UNIT_BYTES, round_bytes=ROUND_BYTES)


@given(NEEDED)
def test_ranges_hold_the_blocks_and_their_bytes(needed: list[set[int]]) -> None:
    found = needs(needed[0], stored=7)

    members = [range(a, b) for a, b in zip(found.first, found.stop, strict=True)]
    assert [n for r in members for n in r] == sorted(needed[0])
    assert found.stored.tolist() == [7 * len(r) for r in members]
    assert found.raw.tolist() == [16 * len(r) for r in members]


@given(NEEDED)
def test_block_that_several_ranks_need_is_fetched_once_by_one_of_them(
    needed: list[set[int]],
) -> None:
    units = shared(needed)

    fetched: dict[int, int] = {}
    for unit, (first, stop) in enumerate(zip(units.first, units.stop, strict=True)):
        for number in range(first, stop):
            assert number not in fetched
            fetched[number] = unit
    takers = {n: [n in blocks for blocks in needed] for n in set().union(*needed)}
    assert set(fetched) == {n for n, ranks in takers.items() if sum(ranks) > 1}
    for number, unit in fetched.items():
        assert units.is_needed[:, unit].tolist() == takers[number]
        assert takers[number][units.source[unit]]


@given(NEEDED)
def test_block_is_found_in_its_unit_and_others_in_none(needed: list[set[int]]) -> None:
    units = shared(needed)

    numbers = np.arange(100)
    expected = np.full(100, -1)
    for unit, (first, stop) in enumerate(zip(units.first, units.stop, strict=True)):
        expected[first:stop] = unit
    assert units.find(numbers).tolist() == expected.tolist()


@given(NEEDED)
def test_rank_holds_at_most_one_unit_or_a_round_of_them(needed: list[set[int]]) -> None:
    units = shared(needed)

    raw = (units.stop - units.first) << BLOCK_LOG2
    for rank in range(len(needed)):
        for this in range(units.rounds):
            held = raw[units.is_needed[rank] & (units.round == this)]
            assert held.sum() <= ROUND_BYTES or len(held) == 1
    assert set(units.round.tolist()) == set(range(units.rounds))


def test_ranks_that_need_the_same_fetch_equally_much() -> None:
    units = shared([set(range(352))] * 8)

    nbytes = np.zeros(8, dtype=np.int64)
    np.add.at(nbytes, units.source, (units.stop - units.first) << BLOCK_LOG2)
    assert nbytes.max() - nbytes.min() <= UNIT_BYTES
    assert np.array_equal(units.round, np.sort(units.round))


def test_rank_that_reads_much_of_its_own_fetches_nothing_for_others() -> None:
    common = set(range(22))

    units = shared([common | set(range(100, 200)), common, common])

    assert set(units.source.tolist()) == {1, 2}


def test_groups_that_share_nothing_do_not_wait_for_each_other() -> None:
    first, second = set(range(44)), set(range(44, 88))

    units = shared([first, first, second, second])

    assert units.rounds == shared([first, first]).rounds


def test_short_runs_side_by_side_are_one_unit() -> None:
    number = ints(range(8))
    zeros = np.zeros_like(number)
    one = needs_of(number, zeros, zeros + 20, stored=zeros + 100, raw=zeros + 100, unit_bytes=2**23)

    units = share([one, one])

    assert (units.first.tolist(), units.stop.tolist()) == ([0], [8])


def test_fewer_bytes_where_blocks_are_encoded_balance_the_ranks() -> None:
    encoded, whole = set(range(22)), set(range(22, 44))
    both = [
        Needs(
            first=np.append(a.first, b.first),
            stop=np.append(a.stop, b.stop),
            stored=np.append(a.stored, b.stored),
            raw=np.append(a.raw, b.raw),
        )
        for a, b in [(needs(encoded, stored=1), needs(whole))] * 2
    ]

    units = share(both, unit_bytes=UNIT_BYTES, round_bytes=ROUND_BYTES)

    stored = np.where(units.first < 22, 1, 16) * (units.stop - units.first)
    nbytes = [int(stored[units.source == rank].sum()) for rank in range(2)]
    assert abs(nbytes[0] - nbytes[1]) <= UNIT_BYTES


@settings(max_examples=40)
@given(reads(), st.data())
def test_pieces_are_cut_where_the_group_of_their_blocks_changes(
    read: Read, data: st.DataObject
) -> None:
    runs = read.manifest.runs
    pieces, blocks = ChunkIndex(read.manifest).resolve(read.tensors, read.boxes)
    size = len(blocks.number)
    group = ints(data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)))

    found = cut_pieces(pieces, blocks, group, runs=runs)

    place = {
        (run, index): g
        for run, index, g in zip(
            blocks.run.tolist(), blocks.index.tolist(), group.tolist(), strict=True
        )
    }
    times = [np.zeros(n, dtype=np.int64) for n in pieces.nbytes.tolist()]
    for row, (owner, skip, nbytes) in enumerate(
        zip(found.owner.tolist(), found.skip.tolist(), found.pieces.nbytes.tolist(), strict=True)
    ):
        times[owner][skip : skip + nbytes] += 1
        assert nbytes > 0
        offset, run = int(found.pieces.offset[row]), int(found.pieces.run[row])
        assert (offset, run) == (int(pieces.offset[owner]) + skip, int(pieces.run[owner]))
        log2 = int(runs.block_log2[run])
        for index in range(offset >> log2, (offset + nbytes - 1 >> log2) + 1):
            assert place[run, index] == found.group[row]
    assert all((t == 1).all() for t in times)
    assert (np.diff(found.group) >= 0).all()
