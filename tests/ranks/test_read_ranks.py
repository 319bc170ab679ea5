"""Several ranks read one checkpoint, each its own part, in any layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bcpformat
from bcpformat import MemoryStore, PerRank, Shard, Shards, WriteOptions, even_segments, fused
from bcpformat.engine.coordinator import Coordinator
from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.testing.ranks import Ranks, run_ranks

Array = np.ndarray[Any, Any]


def save(size: int, state: Callable[[int], Any], **options: Any) -> MemoryStore:
    store = MemoryStore()
    run_ranks(
        size,
        lambda end: bcpformat.write(
            store, state(end.rank), group=end, options=WriteOptions(timeout_s=20, **options)
        ),
    )
    return store


def load(store: MemoryStore, size: int, template: Callable[[int], Any], **how: Any) -> list[Any]:
    return run_ranks(
        size, lambda end: bcpformat.read(store, into=template(end.rank), group=end, **how)
    )


def bounds(total: int, size: int, rank: int) -> tuple[int, int]:
    step = -(-total // size)
    return min(total, rank * step), min(total, (rank + 1) * step)


def shard(whole: Array, size: int, rank: int, *, axis: int = 0, empty: bool = False) -> Shard:
    low, high = bounds(whole.shape[axis], size, rank)
    index = (slice(None),) * axis + (slice(low, high),)
    data = whole[index].copy()
    if empty:
        data = np.zeros_like(data)
    origin = (0,) * axis + (low,) + (0,) * (whole.ndim - axis - 1)
    return Shard(data, global_shape=whole.shape, origin=origin)


@pytest.mark.parametrize(("before", "after"), [(4, 8), (2, 3), (3, 1), (8, 5), (1, 4)])
def test_any_number_of_ranks_reads_rows_and_columns_that_any_other_wrote(
    before: int, after: int
) -> None:
    whole = np.arange(50257 * 3, dtype=np.float32).reshape(50257, 3)
    store = save(before, lambda rank: {"w": shard(whole, before, rank)})

    for axis in (0, 1):
        found = load(
            store, after, lambda rank, a=axis: {"w": shard(whole, after, rank, axis=a, empty=True)}
        )
        parts = [state["w"].data for state in found]
        assert np.array_equal(np.concatenate(parts, axis=axis), whole)


def test_t02_five_elements_over_eight_ranks_are_read_by_any_number() -> None:
    whole = np.arange(5, dtype=np.float64)
    store = save(8, lambda rank: [shard(whole, 8, rank)])

    for size in (1, 2, 3, 8):
        found = load(store, size, lambda rank, n=size: [shard(whole, n, rank, empty=True)])
        assert np.concatenate([state[0].data for state in found]).tolist() == [0, 1, 2, 3, 4]


def test_t01_a_scalar_that_only_rank_2_has_is_read_by_one_and_by_eight() -> None:
    def state(rank: int) -> dict[str, Any]:
        return {"x": np.array(2.5, dtype=np.float16)} if rank == 2 else {}

    store = save(4, state)

    for size in (1, 8):
        found = load(store, size, lambda _rank: {"x": np.zeros((), dtype=np.float16)})
        assert [float(s["x"]) for s in found] == [2.5] * size


def test_flat_ranges_are_read_from_boxes_and_boxes_from_flat_ranges() -> None:
    whole = np.arange(60, dtype=np.int32).reshape(5, 4, 3)

    def flat(size: int, rank: int, *, empty: bool = False) -> Shard:
        low, high = bounds(60, size, rank)
        data = whole.reshape(-1)[low:high].copy()
        if empty:
            data[:] = -1
        origin = (0, 0, 0)
        return Shard(data, global_shape=whole.shape, origin=origin, flat=(low, high - low))

    from_boxes = save(3, lambda rank: {"w": shard(whole, 3, rank, axis=1)})
    from_flat = save(7, lambda rank: {"w": flat(7, rank)})

    for store in (from_boxes, from_flat):
        found = load(store, 4, lambda rank: {"w": flat(4, rank, empty=True)})
        assert np.concatenate([s["w"].data for s in found]).tolist() == list(range(60))
        found = load(store, 2, lambda rank: {"w": shard(whole, 2, rank, axis=2, empty=True)})
        assert np.array_equal(np.concatenate([s["w"].data for s in found], axis=2), whole)


def test_names_of_other_stages_are_not_unexpected_but_those_of_nobody_are() -> None:
    store = save(2, lambda rank: {"layers": {str(rank): np.full(3, rank)}})

    found = load(store, 2, lambda rank: {"layers": {str(1 - rank): np.zeros(3, dtype=np.int64)}})

    assert found[0]["layers"]["1"].tolist() == [1, 1, 1]
    errors = [
        o.error
        for o in Ranks(2).outcomes(
            lambda end: bcpformat.read(
                store, into={"layers": {"0": np.zeros(3, dtype=np.int64)}}, group=end
            )
        )
    ]
    assert [getattr(e, "code", None) for e in errors] == [ErrorCode.MISMATCH] * 2
    assert "layers/1" in str(errors[0])


def test_a_mismatch_on_one_rank_is_raised_on_all_and_changes_nothing() -> None:
    store = save(2, lambda _rank: {"w": np.arange(4)})
    templates = [{"w": np.zeros(4 + rank, dtype=np.int64)} for rank in range(2)]

    outcomes = Ranks(2).outcomes(
        lambda end: bcpformat.read(store, into=templates[end.rank], group=end)
    )

    assert all(isinstance(o.error, bcpformat.MismatchError) for o in outcomes)
    assert "rank 1 of 2" in str(outcomes[0].error)
    assert not templates[0]["w"].any()


def test_damage_that_one_rank_meets_is_raised_on_all() -> None:
    whole = np.arange(2**20, dtype=np.float32)
    store = save(2, lambda rank: {"w": shard(whole, 2, rank)})
    (first, _) = sorted(info.key for info in store.list() if info.key.startswith("data/"))
    data = bytearray(store.read(first))
    data[5000] ^= 1
    store.delete(first)
    store.put_if_absent(first, bytes(data))

    outcomes = Ranks(2).outcomes(
        lambda end: bcpformat.read(
            store, into={"w": shard(whole, 2, end.rank, empty=True)}, group=end
        )
    )

    assert [getattr(o.error, "code", None) for o in outcomes] == [ErrorCode.BLOCK_CHECKSUM] * 2


def test_t47_per_rank_values_go_by_a_declared_rule_when_the_ranks_change() -> None:
    store = save(4, lambda rank: {"rng": PerRank({"seed": rank}), "loader": PerRank([rank] * 2)})

    def template(_rank: int) -> dict[str, Any]:
        return {"rng": PerRank(None), "loader": PerRank(None)}

    same = load(store, 4, template)
    assert [s["rng"].value["seed"] for s in same] == [0, 1, 2, 3]
    for size in (2, 8):
        outcomes = Ranks(size).outcomes(
            lambda end: bcpformat.read(store, into=template(0), group=end)
        )
        assert "saved by 4 ranks" in str(outcomes[0].error)
    rules = {"rng": bcpformat.per_rank.copy, "loader": bcpformat.per_rank.split}
    fewer = load(store, 2, template, per_rank=rules)
    assert [s["rng"].value["seed"] for s in fewer] == [0, 1]
    assert [s["loader"].value for s in fewer] == [[0, 0, 1, 1], [2, 2, 3, 3]]
    more = load(store, 8, template, per_rank=rules)
    assert [s["loader"].value for s in more] == [[0], [0], [1], [1], [2], [2], [3], [3]]


def test_a_users_rule_gets_the_values_of_all_ranks_and_who_reads() -> None:
    store = save(3, lambda rank: {"seen": PerRank(rank)})

    def rule(values: Any, /, *, rank: int, size: int) -> Any:
        return (sum(values), rank, size)

    found = load(store, 2, lambda _rank: {"seen": PerRank(0)}, per_rank=rule)

    assert [s["seen"].value for s in found] == [(3, 0, 2), (3, 1, 2)]


def test_fused_q_k_v_of_four_ranks_is_read_by_three_exactly() -> None:
    heads, groups, width, hidden = 12, 12, 4, 5
    extents = {"q": heads * width, "k": groups * width, "v": groups * width}
    rows = sum(extents.values())
    whole = np.arange(rows * hidden, dtype=np.float32).reshape(rows, hidden)
    firsts = {"q": 0, "k": extents["q"], "v": extents["q"] + extents["k"]}

    def local(size: int, rank: int, *, empty: bool = False) -> tuple[Shards, Array]:
        parts = even_segments(extents, rank=rank, size=size, units=dict.fromkeys(extents, width))
        pieces = [whole[firsts[p.name] + p.origin :][: p.width] for p in parts]
        data = np.concatenate(pieces)
        expected = data.copy()
        if empty:
            data[:] = -1
        return fused(data, parts, global_shape=whole.shape), expected

    store = save(4, lambda rank: {"qkv": local(4, rank)[0]})

    assert np.array_equal(bcpformat.read(store, as_numpy=True)["qkv"], whole)
    templates = [local(3, rank, empty=True) for rank in range(3)]
    load(store, 3, lambda rank: {"qkv": templates[rank][0]})
    for shards, expected in templates:
        assert np.array_equal(np.concatenate([p.data for p in shards.pieces]), expected)
    with bcpformat.open(store) as opened:
        extra = opened.manifest.tensors.extra[0]["segments"]
    assert extra == [["q", 0, 0, 48], ["k", 0, 48, 48], ["v", 0, 96, 48]]


def test_t30_gate_and_up_keep_their_logical_order_and_odd_halves_are_refused() -> None:
    whole = np.arange(12 * 2).reshape(12, 2)

    def local(size: int, rank: int) -> Shards:
        parts = even_segments({"gate": 6, "up": 6}, rank=rank, size=size)
        data = np.concatenate([whole[p.origin :][: p.width] for p in parts[:1]])
        data = np.concatenate([data, whole[6 + parts[1].origin :][: parts[1].width]])
        return fused(data, parts, global_shape=(12, 2))

    store = save(2, lambda rank: {"w": local(2, rank)})

    assert np.array_equal(bcpformat.read(store, as_numpy=True)["w"], whole)
    for size in (3, 1):
        found = load(store, size, lambda rank, n=size: {"w": local(n, rank)})
        assert [p.data.shape[0] for p in found[0]["w"].pieces] == [6 // size] * 2
    with pytest.raises(bcpformat.InvalidArgumentError, match="'gate' of 3 elements"):
        even_segments({"gate": 3, "up": 3}, rank=0, size=2)


def test_t31_padding_of_a_vocabulary_is_not_stored_and_set_to_zero_on_read() -> None:
    vocabulary, hidden = 11, 3
    whole = np.arange(vocabulary * hidden, dtype=np.float32).reshape(vocabulary, hidden) + 1

    def local(size: int, rank: int, fill: float) -> Shard:
        rows = -(-vocabulary // size)
        padded = np.full((rows * size, hidden), fill, dtype=np.float32)
        padded[:vocabulary] = whole if fill == 9 else fill
        data = padded[rank * rows : (rank + 1) * rows].copy()
        shape = (vocabulary, hidden)
        return Shard(data, global_shape=shape, origin=(rank * rows, 0), padded=True)

    store = save(2, lambda rank: {"emb": local(2, rank, 9)})

    assert np.array_equal(bcpformat.read(store, as_numpy=True)["emb"], whole)
    for size in (4, 5):
        found = load(store, size, lambda rank, n=size: {"emb": local(n, rank, 7)})
        rows = np.concatenate([s["emb"].data for s in found])
        assert np.array_equal(rows[:vocabulary], whole)
        assert not rows[vocabulary:].any()


def test_a_per_rank_value_that_some_ranks_have_goes_back_to_these() -> None:
    def state(rank: int) -> dict[str, Any]:
        return {"x": 1, **({"loader": PerRank(f"of rank {rank}")} if rank else {})}

    store = save(3, state)

    for rules in (None, bcpformat.per_rank.copy):
        found = load(store, 3, state, per_rank=rules)
        assert [s["loader"].value for s in found[1:]] == ["of rank 1", "of rank 2"]


def test_a_filter_that_selects_nothing_is_refused_in_a_group_too() -> None:
    store = save(2, lambda _rank: {"a": np.arange(3)})

    outcomes = Ranks(2).outcomes(
        lambda end: bcpformat.read(store, into={"a": np.zeros(3, int)}, filter="zz", group=end)
    )

    assert all("'zz' selects none" in str(o.error) for o in outcomes)


def test_a_rank_without_anything_in_a_container_reads_nothing_there() -> None:
    def state(rank: int) -> dict[str, Any]:
        return {"m": {} if rank else {"a": np.arange(3)}}

    store = save(2, state)

    assert load(store, 2, state)[1] == {"m": {}}


def test_two_pieces_of_one_region_on_one_rank_are_refused() -> None:
    piece = Shard(np.zeros(3), global_shape=(3,), origin=(0,))

    with pytest.raises(bcpformat.InvalidArgumentError, match="two pieces of the same region"):
        bcpformat.write(MemoryStore(), {"w": Shards([piece, piece])})


@st.composite
def tilings(draw: st.DrawFn, shape: tuple[int, ...]) -> list[tuple[tuple[slice, ...], int]]:
    """Boxes that tile a shape, each with a rank."""
    boxes = [tuple((0, extent) for extent in shape)]
    for _ in range(draw(st.integers(0, 5))):
        index = draw(st.integers(0, len(boxes) - 1))
        box = boxes[index]
        axis = draw(st.integers(0, len(shape) - 1))
        low, high = box[axis]
        if high - low < 2:
            continue
        at = draw(st.integers(low + 1, high - 1))
        boxes[index] = (*box[:axis], (low, at), *box[axis + 1 :])
        boxes.append((*box[:axis], (at, high), *box[axis + 1 :]))
    ranks = st.integers(0, 2)
    return [(tuple(slice(a, b) for a, b in box), draw(ranks)) for box in boxes]


@st.composite
def layouts(draw: st.DrawFn, whole: Array) -> list[list[Shard]]:
    """The pieces of each of three ranks: boxes, some of them cut into flat ranges."""
    pieces: list[list[Shard]] = [[], [], []]
    for index, rank in draw(tilings(whole.shape)):
        data = whole[index]
        origin = tuple(s.start for s in index)
        if data.size > 1 and draw(st.booleans()):
            at = draw(st.integers(0, data.size))
            for low, high, holder in ((0, at, rank), (at, data.size, (rank + 1) % 3)):
                part = data.reshape(-1)[low:high].copy()
                pieces[holder].append(
                    Shard(
                        part,
                        global_shape=whole.shape,
                        origin=origin,
                        shape=data.shape,
                        flat=(low, high - low),
                    )
                )
        else:
            pieces[rank].append(Shard(data.copy(), global_shape=whole.shape, origin=origin))
    return pieces


def state_of(pieces: list[Shard], whole: Array) -> dict[str, Any]:
    nothing = np.zeros((0, *whole.shape[1:]), dtype=whole.dtype)
    empty = Shard(nothing, global_shape=whole.shape, origin=(0,) * whole.ndim)
    return {"w": Shards(pieces or [empty]), "plain": "all the same"}


@given(data=st.data())
def test_layouts_a_to_b_to_c_keep_every_element(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    dtype = data.draw(st.sampled_from(["u1", "i2", "f4", "c16"]))
    whole = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape).astype(dtype)
    codec = data.draw(st.sampled_from(["raw", "zstd", "planes-zstd"]))
    first, second, third = (data.draw(layouts(whole)) for _ in range(3))

    store = save(3, lambda rank: state_of(first[rank], whole), codec=codec)
    for layout in (second, third):
        for piece in (p for pieces in layout for p in pieces):
            piece.data[...] = 111 if dtype != "u1" else 255
        found = load(store, 3, lambda rank, now=layout: state_of(now[rank], whole))
        store = save(3, lambda rank, now=found: now[rank], codec=codec)

    assert np.array_equal(bcpformat.read(store, as_numpy=True)["w"], whole)
    assert bcpformat.validate(store, level="full").ok


def test_what_matching_a_template_raises_on_one_rank_all_raise_at_once() -> None:
    store = MemoryStore()
    bcpformat.write(store, {"a": np.zeros(3), "b": np.ones(3)})
    ranks = Ranks(3)
    totals = []

    def act(end: Coordinator) -> None:
        def rename(name: str) -> Any:
            return 7 if name == "b" else name

        into = {"ab"[end.rank == 1]: np.empty(3)}
        with pytest.raises(InvalidArgumentError, match="rename must return names"):
            bcpformat.read(store, into=into, rename=rename, group=end)
        totals.append(end.total(np.array([1]), timeout_s=5).tolist())

    ranks.run(act)

    assert totals == [[3]] * 3


@pytest.mark.parametrize("axis", [2, -3])
def test_a_fused_axis_that_does_not_exist_is_refused(axis: int) -> None:
    parts = even_segments({"q": 2, "k": 2}, rank=0, size=2)

    with pytest.raises(InvalidArgumentError, match=f"axis {axis}"):
        fused(np.zeros((2, 4)), parts, global_shape=(4, 4), axis=axis)


@pytest.mark.parametrize("part", ["global_shape", "origin", "shape", "flat"])
def test_a_shard_takes_no_fractions_for_places(part: str) -> None:
    parts: dict[str, Any] = {"global_shape": (4,), "origin": (0,), "shape": (4,), "flat": (1, 2)}

    with pytest.raises(InvalidArgumentError, match=f"{part} must be integers"):
        Shard(np.zeros(2), **parts | {part: tuple(n + 0.5 for n in parts[part])})


def test_segments_may_be_counted_in_integers_of_numpy() -> None:
    store = MemoryStore()
    four: Any = np.int64(4)
    whole = np.arange(8)

    pieces = fused(whole, even_segments({"q": four, "k": four}, rank=0, size=1), global_shape=[8])
    bcpformat.write(store, {"qk": pieces})

    assert bcpformat.read(store, as_numpy=True)["qk"].tolist() == whole.tolist()
