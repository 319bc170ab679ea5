"""Packing of pieces into runs and files."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.model.manifest import ints
from bcpformat.plan.pack import pack

SIZES = st.one_of(st.integers(1, 300), st.integers(2**20 - 2, 2**20 + 2), st.just(2**25))


@given(st.lists(st.tuples(SIZES, st.sampled_from([1, 2, 4, 8])), max_size=40))
def test_pieces_fill_their_runs_without_overlap_or_waste(pieces: list[tuple[int, int]]) -> None:
    nbytes, item = ints([p[0] for p in pieces]), ints([p[1] for p in pieces])

    packing = pack(nbytes, item)

    for run in range(len(packing.run_raw)):
        rows = np.flatnonzero(packing.run == run)
        assert len(rows)
        assert (item[rows] == packing.run_item[run]).all()
        spans = sorted((int(packing.offset[r]), int(packing.offset[r] + nbytes[r])) for r in rows)
        assert spans[0][0] == 0
        assert spans[-1][1] == packing.run_raw[run]
        for (_, stop), (start, _) in pairwise(spans):
            assert start % 64 == 0
            assert 0 <= start - stop < 64


@given(st.lists(st.tuples(SIZES, st.sampled_from([1, 2, 4, 8])), max_size=40))
def test_large_pieces_stand_alone_and_before_all_packed_runs(
    pieces: list[tuple[int, int]],
) -> None:
    nbytes = ints([p[0] for p in pieces])

    packing = pack(nbytes, ints([p[1] for p in pieces]))

    own = packing.run[nbytes >= 2**20]
    assert own.tolist() == list(range(len(own)))
    assert (packing.run[nbytes < 2**20] >= len(own)).all()
    packed = packing.run_raw[len(own) :]
    assert (packed <= 2**26).all()


def test_a_file_closes_before_16_gib_and_a_larger_run_has_its_own() -> None:
    sizes = ints([2**33, 2**32, 2**32, 2**35, 2**20])

    packing = pack(sizes, np.full(5, 4))

    assert packing.run_file.tolist() == [0, 0, 1, 2, 3]


def test_blocks_are_smaller_in_small_runs() -> None:
    packing = pack(ints([2**24 - 64, 2**24]), ints([4, 4]))

    assert packing.run_block_log2.tolist() == [18, 20]


def test_nothing_packs_into_nothing() -> None:
    packing = pack(ints([]), ints([]))

    assert len(packing.run_raw) == 0
    assert len(packing.run_file) == 0
