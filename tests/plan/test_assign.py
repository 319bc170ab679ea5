"""Who stores what, against the rule of the design applied piece by piece."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import prod
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.errors import DisagreementError
from bcpformat.model.dtypes import DTYPES
from bcpformat.model.leaves import NumpyAdapter, TensorLeaf
from bcpformat.model.manifest import ints
from bcpformat.model.region import Box, Region
from bcpformat.model.state import EncodedState
from bcpformat.plan.assign import Assignment, assign, bytes_per_rank
from bcpformat.plan.balance import Pieces, balance
from bcpformat.plan.layout import Layout, layout_from_columns, layout_of

MIB = 2**20

Held: TypeAlias = dict[str, tuple[str, tuple[int, ...], list[Region], bool]]
"""Name of a tensor to its dtype, shape, the regions a rank holds, and whether it is trusted."""


def layout(held: Held, objects: dict[str, int] | None = None) -> Layout:
    """The layout of a rank; objects are given by their sizes."""
    leaves = [
        TensorLeaf(
            dtype, shape, 0, None, None, NumpyAdapter(), regions=tuple(regions), is_trusted=trusted
        )
        for _, (dtype, shape, regions, trusted) in sorted(held.items())
    ]
    state = EncodedState(
        root=[6],
        names=sorted(held),
        leaves=leaves,
        aliases={},
        objects=[(name, bytes(size)) for name, size in sorted((objects or {}).items())],
        per_rank=[],
    )
    return layout_of(state)


def whole(shape: tuple[int, ...]) -> list[Region]:
    return [Region.whole(Box.whole(shape))]


def replicated(ranks: int, **shapes: tuple[int, ...]) -> list[Layout]:
    """Ranks that all hold whole float32 tensors."""
    held: Held = {name: ("float32", s, whole(s), False) for name, s in shapes.items()}
    return [layout(held)] * ranks


Key: TypeAlias = tuple[str, Region]
Share: TypeAlias = tuple[int, int, int, int]
"""Rank, piece, first element and the element after the last."""


def keys_of(layout: Layout) -> list[Key]:
    """The name and region of every piece."""
    found = []
    at = 0
    for row, start, count in zip(layout.tensor, layout.start, layout.count, strict=True):
        axes = slice(at, at + len(layout.shapes[row]))
        at = axes.stop
        box = Box(
            origin=tuple(layout.origin[axes].tolist()), shape=tuple(layout.extent[axes].tolist())
        )
        found.append((layout.names[row], Region(box=box, start=int(start), count=int(count))))
    return found


def stored(layouts: Sequence[Layout], found: Sequence[Assignment]) -> dict[Key, list[Share]]:
    """What is stored of every region, by first element."""
    shares: dict[Key, list[Share]] = defaultdict(list)
    for rank, (held, mine) in enumerate(zip(layouts, found, strict=True)):
        keys = keys_of(held)
        rows = zip(mine.piece.tolist(), mine.low.tolist(), mine.high.tolist(), strict=True)
        for piece, low, high in rows:
            shares[keys[piece]].append((rank, piece, low, high))
    return {key: sorted(found, key=lambda share: share[2]) for key, found in shares.items()}


def holders(layouts: Sequence[Layout]) -> dict[Key, list[tuple[int, int]]]:
    """Rank and piece of every copy of every region."""
    found: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    for rank, held in enumerate(layouts):
        for piece, key in enumerate(keys_of(held)):
            found[key].append((rank, piece))
    return found


# ---- the rule ----------------------------------------------------------------------------------

SHAPES = [
    (),
    (3,),
    (2**18 - 1,),
    (2**18,),
    (2**22 - 1,),
    (2**22,),
    (2**24, 1),
    (1, 40, 2**18),
    (3, 2**22),
    (2, 3, 2**21 + 1),
]


def cuts(shape: tuple[int, ...], how: str) -> list[Region]:
    """Regions that tile a shape."""
    box = Box.whole(shape)
    half = box.numel // 3
    if how == "whole" or half == 0:
        return [Region.whole(box)]
    if how == "flat":
        starts, counts = (0, half), (half, box.numel - half)
        return [Region(box=box, start=s, count=n) for s, n in zip(starts, counts, strict=True)]
    if shape[-1] == 1:
        return [Region.whole(box)]
    at = shape[-1] // 2
    left, right = (*shape[:-1], at), (*shape[:-1], shape[-1] - at)
    origin = (*(0,) * (len(shape) - 1), at)
    return [Region.whole(Box.whole(left)), Region.whole(Box(origin=origin, shape=right))]


@st.composite
def worlds(draw: st.DrawFn) -> list[Layout]:
    """Layouts of up to five ranks that hold pieces of up to six tensors, and an object."""
    ranks = draw(st.integers(1, 5))
    held: list[Held] = [{} for _ in range(ranks)]
    for name in "abcdef"[: draw(st.integers(0, 6))]:
        shape = draw(st.sampled_from(SHAPES))
        dtype = draw(st.sampled_from(["float32", "float32", "int4", "uint8"]))
        regions = cuts(shape, draw(st.sampled_from(["whole", "flat", "columns"])))
        trust = draw(st.sampled_from(["all", "none", "some"]))
        for mine in held:
            if draw(st.booleans()):
                trusted = trust == "all" or (trust == "some" and draw(st.booleans()))
                times = draw(st.sampled_from([1, 1, 1, 2]))
                some = [region for region in regions if draw(st.booleans())]
                mine[name] = (dtype, shape, some * times, trusted)
    size = draw(st.sampled_from([1, MIB - 1, 20 * MIB]))
    return [layout(mine, {"o": size} if draw(st.booleans()) else {}) for mine in held]


@given(worlds())
def test_every_region_is_stored_exactly_once_by_ranks_that_hold_it(layouts: list[Layout]) -> None:
    found = stored(layouts, assign(layouts))

    copies = holders(layouts)
    assert found.keys() == copies.keys()
    for key, shares in found.items():
        at = 0
        for rank, piece, low, high in shares:
            assert (rank, piece) in copies[key]
            assert low == at < high
            at = high
        assert at == key[1].count


@given(worlds())
def test_what_may_be_split_and_who_stores_small_replicas_follows_the_rule(
    layouts: list[Layout],
) -> None:
    found = stored(layouts, assign(layouts))

    copies = holders(layouts)
    for (name, region), shares in found.items():
        rank, piece, _, _ = shares[0]
        nbytes = int(layouts[rank].nbytes[piece])
        dtype = layouts[rank].dtypes[layouts[rank].tensor[piece]]
        ranks = {rank for rank, _ in copies[name, region]}
        if len(ranks) == 1 or nbytes < 16 * MIB or dtype in ("int4", "object"):
            assert len(shares) == 1
        if nbytes < MIB:
            assert rank == min(ranks)
        if len(shares) > 1:
            size = DTYPES[dtype].bits // 8
            axis = next(n for n in region.box.shape if n != 1)
            slab = region.count // axis if region.is_whole else 1
            assert all((high - low) * size >= 8 * MIB for _, _, low, high in shares)
            assert all(low % slab == 0 and high % slab == 0 for _, _, low, high in shares)
            assert len({rank for rank, *_ in shares}) > 1


@given(worlds())
def test_columns_ascend_and_bytes_per_rank_adds_them_up(layouts: list[Layout]) -> None:
    found = assign(layouts)

    total = bytes_per_rank(layouts, found)
    for rank, (held, mine) in enumerate(zip(layouts, found, strict=True)):
        rows = list(zip(mine.piece.tolist(), mine.low.tolist(), strict=True))
        assert rows == sorted(rows)
        nbytes = 0
        for piece, low, high in zip(mine.piece, mine.low, mine.high, strict=True):
            dtype = held.dtypes[held.tensor[piece]]
            bits = 8 if dtype == "object" else DTYPES[dtype].bits
            nbytes += int((high - low) * bits + 7) // 8
        assert total[rank] == nbytes


@given(worlds())
def test_all_replicas_of_a_tensor_that_some_holder_does_not_trust_are_compared(
    layouts: list[Layout],
) -> None:
    found = assign(layouts)

    untrusted = {
        held.names[row] for held in layouts for row in held.tensor if not held.trusted[row]
    }
    expected = {
        key: rows for key, rows in holders(layouts).items() if len(rows) > 1 and key[0] in untrusted
    }
    groups: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for rank, mine in enumerate(found):
        assert mine.check_piece.tolist() == sorted(mine.check_piece.tolist())
        for piece, group in zip(mine.check_piece.tolist(), mine.check_group.tolist(), strict=True):
            groups[group].append((rank, piece))
    assert sorted(groups.values()) == sorted(expected.values())
    assert sorted(groups) == list(range(len(groups)))


@given(worlds())
def test_layouts_that_went_through_columns_give_the_same_assignment(layouts: list[Layout]) -> None:
    received = [layout_from_columns(held.to_columns()) for held in layouts]

    for a, b in zip(assign(layouts), assign(received), strict=True):
        for name in ("piece", "low", "high", "check_piece", "check_group"):
            assert np.array_equal(getattr(a, name), getattr(b, name))


def test_no_rank_has_no_assignment() -> None:
    assert assign([]) == []


def test_a_rank_without_tensors_stores_nothing() -> None:
    found = assign([layout({}), *replicated(1, w=(8,))])

    assert [len(mine.piece) for mine in found] == [0, 1]


def test_ranks_without_tensors_store_nothing() -> None:
    found = assign([layout({}), layout({})])

    assert [len(mine.piece) for mine in found] == [0, 0]


def test_one_rank_stores_all_it_holds_whole_and_compares_nothing() -> None:
    layouts = replicated(1, a=(2**25,), b=(3,))

    (mine,) = assign(layouts)

    assert mine.piece.tolist() == [0, 1]
    assert mine.low.tolist() == [0, 0]
    assert mine.high.tolist() == [2**25, 3]
    assert len(mine.check_piece) == 0


def test_a_region_held_twice_by_one_rank_is_stored_once_and_compared() -> None:
    held: Held = {"w": ("float32", (2**25,), whole((2**25,)) * 2, False)}

    (mine,) = assign([layout(held)])

    assert mine.piece.tolist() == [0]
    assert mine.check_piece.tolist() == [0, 1]
    assert mine.check_group.tolist() == [0, 0]


def test_equal_boxes_with_different_ranges_are_no_replicas() -> None:
    box = Box.whole((8,))
    first: Held = {"w": ("float32", (8,), [Region(box=box, start=0, count=4)], False)}
    second: Held = {"w": ("float32", (8,), [Region(box=box, start=4, count=4)], False)}

    found = assign([layout(first), layout(second)])

    assert [mine.high.tolist() for mine in found] == [[4], [4]]
    assert [len(mine.check_piece) for mine in found] == [0, 0]


# ---- balance -----------------------------------------------------------------------------------


def test_a_middling_replica_goes_whole_to_the_holder_with_the_fewest_bytes() -> None:
    held: Held = {
        "mine": ("float32", (2**20,), whole((2**20,)), False),
        "ours": ("float32", (2**21,), whole((2**21,)), False),
    }
    other: Held = {"ours": held["ours"]}

    found = assign([layout(held), layout(other)])

    assert [mine.high.tolist() for mine in found] == [[2**20], [2**21]]


def test_a_large_replica_is_not_split_where_whole_pieces_are_equal_enough() -> None:
    layouts = replicated(3, a=(5 * MIB,), b=(5 * MIB,), c=(5 * MIB + 2**19,))

    found = assign(layouts)

    assert [mine.piece.tolist() for mine in found] == [[2], [0], [1]]


def test_a_replica_of_all_ranks_is_split_equally_where_there_is_nothing_else() -> None:
    layouts = replicated(4, w=(1, 64, MIB))

    found = assign(layouts)

    assert sorted(mine.low.tolist() for mine in found) == [[n * 16 * MIB] for n in range(4)]
    assert [int(n) for n in bytes_per_rank(layouts, found)] == [64 * MIB] * 4


def test_a_piece_of_few_large_slabs_is_split_between_them_or_not_at_all() -> None:
    two = assign(replicated(2, w=(2, 5 * MIB)))
    odd = assign(replicated(2, w=(3, MIB + 1024 * 1024 // 2)))

    assert [mine.high.tolist() for mine in two] == [[5 * MIB], [10 * MIB]]
    assert sorted(len(mine.piece) for mine in odd) == [0, 1]


def test_who_has_more_choice_fills_what_others_leave() -> None:
    pair: Held = {f"p{i}": ("float32", (8 * MIB,), whole((8 * MIB,)), True) for i in range(4)}
    rest: Held = {f"r{i}": ("float32", (8 * MIB,), whole((8 * MIB,)), True) for i in range(4)}

    layouts = [layout(pair | rest)] * 2 + [layout(rest)] * 2
    found = assign(layouts)

    assert bytes_per_rank(layouts, found).tolist() == [64 * MIB] * 4
    assert sum(len(mine.piece) for mine in found) == 8


def test_a_piece_moves_whole_where_no_split_helps() -> None:
    # The first piece, in slabs of 12 MiB, goes to rank 0 and gives 24 MiB back to rank 1, which is
    # then 10 MiB ahead: a slab is too much, the other piece is not.
    nbytes = ints([60 * MIB, 9 * MIB])
    pieces = Pieces(
        nbytes=nbytes, count=nbytes, slab=ints([12 * MIB, 1]), holders=[ints([0, 1])] * 2
    )
    load = ints([11 * MIB, 24 * MIB])

    shares = balance(pieces, load)

    assert shares.holder.tolist() == [0, 1, 0]
    assert shares.high.tolist() == [36 * MIB, 60 * MIB, 9 * MIB]


def test_a_rank_with_nothing_that_helps_is_passed_over() -> None:
    nbytes = ints([100 * MIB, 32 * MIB])
    pieces = Pieces(nbytes=nbytes, count=nbytes, slab=ints([0, 1]), holders=[ints([0, 1, 2])] * 2)

    shares = balance(pieces, np.zeros(3, dtype=np.int64))

    assert shares.piece.tolist() == [0, 1, 1]
    assert shares.holder.tolist() == [0, 1, 2]


@st.composite
def replicas(draw: st.DrawFn) -> tuple[Pieces, int]:
    """Replicas of all ranks, of which enough may be split for any number of ranks."""
    ranks = draw(st.integers(2, 12))
    sizes = st.one_of(st.integers(16 * MIB, 300 * MIB), st.integers(MIB, 16 * MIB))
    large = draw(st.lists(st.integers(64 * MIB, 300 * MIB), min_size=ranks, max_size=ranks + 9))
    nbytes = ints(large + draw(st.lists(sizes, max_size=20)))
    slab = draw(st.sampled_from([1, 1024, 2**19]))
    nbytes = nbytes // slab * slab
    pieces = Pieces(
        nbytes=nbytes,
        count=nbytes,
        slab=np.full(len(nbytes), slab),
        holders=[np.arange(ranks)] * len(nbytes),
    )
    return pieces, ranks


@given(replicas())
def test_ranks_with_equal_replicas_store_equally_much_with_few_splits(
    made: tuple[Pieces, int],
) -> None:
    pieces, ranks = made
    load = np.zeros(ranks, dtype=np.int64)

    shares = balance(pieces, load.copy())

    np.add.at(load, shares.holder, shares.high - shares.low)
    assert load.sum() == pieces.nbytes.sum()
    assert np.ptp(load) <= 8 * MIB
    assert len(shares.piece) <= len(pieces.nbytes) + 2 * ranks


def test_assigning_leaves_its_arguments_as_they_were() -> None:
    pieces = Pieces(
        nbytes=ints([32 * MIB]),
        count=ints([32 * MIB]),
        slab=ints([1]),
        holders=[ints([0, 1])],
    )
    load = ints([1, 2])

    balance(pieces, load)

    assert load.tolist() == [1, 2]


# ---- disagreement ------------------------------------------------------------------------------


def one(shape: tuple[int, ...], dtype: str = "float32") -> Layout:
    return layout({"w": (dtype, shape, whole(shape), False)})


def test_ranks_with_different_shapes_of_a_tensor_are_named_with_them() -> None:
    with pytest.raises(DisagreementError) as caught:
        assign([one((4, 3)), layout({}), one((4, 4))])

    (problem,) = caught.value.problems
    assert problem.where == "'w'"
    assert problem.message == "rank 0 has (4, 3) float32, rank 2 has (4, 4) float32"
    assert problem.message in caught.value.message


def test_ranks_with_different_data_types_of_a_tensor_are_named_and_counted() -> None:
    with pytest.raises(DisagreementError) as caught:
        assign([one((4,)), one((4,)), one((4,), "int8"), one((4,))])

    (problem,) = caught.value.problems
    assert problem.message.startswith("rank 0 has (4,) float32, rank 2 has (4,) int8")
    assert "3 and 1" in problem.message


def test_shapes_disagree_even_where_a_rank_holds_nothing() -> None:
    with pytest.raises(DisagreementError):
        assign([one((4,)), layout({"w": ("float32", (5,), [], False)})])


def test_a_tensor_on_one_rank_is_no_object_on_another() -> None:
    with pytest.raises(DisagreementError, match=r"\(4,\) uint8, rank 1 has \(4,\) object"):
        assign([one((4,), "uint8"), layout({}, {"w": 4})])


def test_at_most_a_hundred_disagreements_are_listed_in_the_order_of_names() -> None:
    def many(extent: int) -> Layout:
        shape = (extent,)
        return layout({f"{i:03d}": ("int8", shape, whole(shape), False) for i in range(150)})

    with pytest.raises(DisagreementError, match="150 tensors") as caught:
        assign([many(1), many(2)])

    assert [p.where for p in caught.value.problems] == [f"'{i:03d}'" for i in range(100)]


# ---- many --------------------------------------------------------------------------------------


def test_pieces_of_many_ranks_in_a_mesh_are_stored_once() -> None:
    """4 by 8 shards of 40 tensors, each on two ranks."""
    layouts = []
    for rank in range(64):
        row, column = rank // 8 % 4, rank % 8
        box = Box(origin=(row * 64, column * 32), shape=(64, 32))
        held: Held = {
            f"{i:02d}": ("bfloat16", (256, 256), [Region.whole(box)], True) for i in range(40)
        }
        layouts.append(layout(held))

    found = assign(layouts)

    assert sum(int((mine.high - mine.low).sum()) for mine in found) == 40 * prod((256, 256))
    assert [len(mine.piece) for mine in found] == [40] * 32 + [0] * 32
