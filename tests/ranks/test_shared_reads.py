"""Ranks that need the same blocks fetch them once and give them to each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bcpformat
from bcpformat import MemoryStore, PerRank, ReadOptions, Shard, WriteOptions
from bcpformat.api.opened import Checkpoint
from bcpformat.cli.bench_counting import CountingStore
from bcpformat.engine.coordinator import Coordinator
from bcpformat.engine.meeting import Meeting
from bcpformat.engine.memory import Bytes, address_of
from bcpformat.engine.shared import reads_together
from bcpformat.engine.sink import Destinations
from bcpformat.errors import BcpError, ErrorCode
from bcpformat.model.manifest import ints
from bcpformat.model.region import Box
from bcpformat.testing.ranks import Outcome, Ranks, run_ranks

Array = np.ndarray[Any, Any]
SHARED = ReadOptions(shared=True, timeout_s=20)
BLOCK_BYTES = 2**18


def saved(state: Any, **options: Any) -> MemoryStore:
    store = MemoryStore()
    bcpformat.write(store, state, group=None, options=WriteOptions(**options))
    return store


def noise(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def empty(state: dict[str, Array]) -> dict[str, Array]:
    return {name: np.zeros_like(array) for name, array in state.items()}


def rows(whole: Array, low: int, high: int) -> Shard:
    data = np.zeros_like(whole[low:high])
    return Shard(data, global_shape=whole.shape, origin=(low,) + (0,) * (whole.ndim - 1))


def data_reads(store: CountingStore) -> list[tuple[str, int, int]]:
    """The reads of blocks; those of block tables and of the manifest are left out."""
    with bcpformat.open(store) as opened:
        tables = {f"data/{f.name}": f.table_bytes for f in opened.manifest.files}
    return [(key, at, n) for key, at, n in store.reads if key in tables and at < tables[key]]


def covered(reads: list[tuple[str, int, int]]) -> set[tuple[str, int]]:
    return {(key, page) for key, at, n in reads for page in range(at >> 12, (at + n + 4095) >> 12)}


def outcomes(
    store: Any, size: int, template: Callable[[int], Any], **how: Any
) -> list[Outcome[Any]]:
    return Ranks(size).outcomes(
        lambda end: bcpformat.read(
            store, into=template(end.rank), group=end, **{"options": SHARED, **how}
        )
    )


def codes(found: Sequence[Outcome[Any]]) -> list[ErrorCode | None]:
    return [o.error.code if isinstance(o.error, BcpError) else None for o in found]


def damaged(store: MemoryStore, at: int) -> MemoryStore:
    (info,) = [i for i in store.list() if i.key.startswith("data/")]
    data = bytearray(store.read(info.key))
    data[at] ^= 1
    store.delete(info.key)
    store.put_if_absent(info.key, bytes(data))
    return store


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_replicas_read_every_block_once_and_get_what_each_alone_would(codec: str) -> None:
    state = {"w": noise((7, BLOCK_BYTES)) & 15, "b": noise((1000,), 1), "c": noise((3,), 2)}
    alone = CountingStore(saved(state, codec=codec))
    bcpformat.read(alone, into=empty(state), group=None)
    store = CountingStore(saved(state, codec=codec))
    ranks = Ranks(4)

    found = ranks.run(
        lambda end: bcpformat.read(store, into=empty(state), group=end, options=SHARED)
    )

    for one in found:
        assert all(np.array_equal(one[name], state[name]) for name in state)
    assert sum(n for *_, n in data_reads(store)) == sum(n for *_, n in data_reads(alone))
    raw_bytes = sum(array.nbytes for array in state.values())
    assert 3 * raw_bytes <= ranks.exchanged_bytes < 3 * raw_bytes + 4096


def test_blocks_read_by_all_ranks_are_the_union_of_what_they_need() -> None:
    whole = {"w": noise((16, BLOCK_BYTES)), "all": noise((BLOCK_BYTES + 5,), 1)}
    cuts = [(0, 9), (5, 12), (5, 16)]
    written = saved(whole)
    stores = [CountingStore(written), CountingStore(written)]

    def template(rank: int) -> dict[str, Any]:
        return {"w": rows(whole["w"], *cuts[rank]), "all": np.zeros_like(whole["all"])}

    for store, options in zip(stores, (ReadOptions(), SHARED), strict=True):
        found = outcomes(store, 3, template, options=options)
        for (low, high), one in zip(cuts, found, strict=True):
            assert one.value is not None
            assert np.array_equal(one.value["w"].data, whole["w"][low:high])
            assert np.array_equal(one.value["all"], whole["all"])
    apart, together = (data_reads(store) for store in stores)
    assert covered(together) == covered(apart)
    assert sum(n for *_, n in together) == sum(array.nbytes for array in whole.values())
    assert sum(n for *_, n in together) < sum(n for *_, n in apart)


def test_ranks_that_need_nothing_in_common_read_their_own() -> None:
    whole = noise((8, BLOCK_BYTES))
    store = saved({"w": whole})
    ranks = Ranks(2)

    found = ranks.run(
        lambda end: bcpformat.read(
            store,
            into={"w": rows(whole, 4 * end.rank, 4 * end.rank + 4)},
            group=end,
            options=SHARED,
        )
    )

    assert np.array_equal(np.concatenate([s["w"].data for s in found]), whole)
    assert ranks.exchanged_bytes < 1024


def test_rank_that_needs_nothing_takes_part() -> None:
    state = {"w": noise((1000,))}
    store = saved({**state, "n": 3})

    found = outcomes(store, 3, lambda rank: empty(state) if rank else {"n": 0})

    assert [o.error for o in found] == [None] * 3
    assert found[0].value == {"n": 3}
    assert all(np.array_equal(o.value["w"], state["w"]) for o in found[1:])


def test_one_process_reads_as_if_it_were_not_asked() -> None:
    state = {"w": noise((1000,))}

    found = bcpformat.read(saved(state), into=empty(state), group=None, options=SHARED)

    assert np.array_equal(found["w"], state["w"])


def test_plain_and_per_rank_values_come_too() -> None:
    store = MemoryStore()
    run_ranks(
        2,
        lambda e: bcpformat.write(store, {"n": 7, "r": PerRank(e.rank), "w": noise((9,))}, group=e),
    )

    found = outcomes(store, 2, lambda _: {"n": 0, "r": PerRank(0), "w": np.zeros(9, np.uint8)})

    assert [(o.value["n"], o.value["r"].value) for o in found] == [(7, 0), (7, 1)]


@pytest.mark.parametrize("row", [1, 6], ids=["shared", "own"])
def test_damage_is_the_same_error_on_all_ranks(row: int) -> None:
    whole = noise((8, BLOCK_BYTES))
    store = damaged(saved({"w": whole}), 4096 + row * BLOCK_BYTES + 77)

    found = outcomes(store, 3, lambda rank: {"w": rows(whole, 0, 8 if rank == 2 else 4)})

    assert codes(found) == [ErrorCode.BLOCK_CHECKSUM] * 3
    assert len({str(o.error) for o in found}) == 1
    assert f"block {row} " in str(found[0].error)


class Flipping:
    """A coordinator that flips a bit of what one rank gets of another with an exchange."""

    def __init__(self, inner: Coordinator, *, giver: int, taker: int, least: int) -> None:
        self._inner = inner
        self._way = (giver, taker)
        self._least = least

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def exchange(self, parts: Sequence[Bytes], *, timeout_s: float) -> list[Bytes]:
        found = self._inner.exchange(parts, timeout_s=timeout_s)
        giver, taker = self._way
        if self._inner.rank == taker and len(found[giver]) >= self._least:
            found[giver] = found[giver].copy()
            found[giver][self._least // 2] ^= 1
        return found


def test_bytes_damaged_between_ranks_are_found_by_who_takes_them() -> None:
    state = {"w": noise((3, BLOCK_BYTES))}
    store = saved(state)

    def act(end: Coordinator) -> Any:
        group = Flipping(end, giver=0, taker=2, least=BLOCK_BYTES)
        return bcpformat.read(store, into=empty(state), group=group, options=SHARED)

    found = Ranks(3).outcomes(act)

    assert codes(found) == [ErrorCode.BLOCK_CHECKSUM] * 3
    notes = getattr(found[1].error, "__notes__", [])
    assert "as rank 0 gave it to rank 2" in notes


def test_rank_that_fails_before_the_read_stops_the_others() -> None:
    store = MemoryStore()
    run_ranks(2, lambda e: bcpformat.write(store, {"r": PerRank(1), "w": noise((9,))}, group=e))

    def rule(values: Any, /, *, rank: int, size: int) -> Any:
        if rank == 1:
            raise ValueError("no such rule")
        return values[0]

    template = {"r": PerRank(0), "w": np.zeros(9, np.uint8)}
    start = time.monotonic()
    found = outcomes(store, 3, lambda _: dict(template), per_rank=rule)

    assert "no such rule" in str(found[1].error)
    for rank in (0, 2):
        assert "no such rule" in str(found[rank].error)
        assert "rank 1" in str(found[rank].error)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("failing", [0, 1])
def test_rank_that_fails_amid_the_read_stops_the_others(failing: int) -> None:
    state = {"w": noise((3, BLOCK_BYTES))}
    store = saved(state)

    def act(end: Coordinator) -> Any:
        def progress(_: int) -> None:
            if end.rank == failing:
                raise ArithmeticError("full")

        return bcpformat.read(
            store, into=empty(state), group=end, options=SHARED, progress=progress
        )

    start = time.monotonic()
    found = Ranks(2).outcomes(act)

    assert isinstance(found[failing].error, ArithmeticError)
    assert "ArithmeticError: full" in str(found[1 - failing].error)
    assert time.monotonic() - start < 10


def test_ranks_must_all_share_or_none() -> None:
    state = {"w": noise((9,))}
    store = saved(state)

    found = Ranks(2).outcomes(
        lambda end: bcpformat.read(
            store,
            into=empty(state),
            group=end,
            options=ReadOptions(shared=end.rank == 1, timeout_s=20),
        )
    )

    assert codes(found) == [ErrorCode.DISAGREE] * 2
    assert "shared must be the same on all ranks" in str(found[0].error)


def test_shared_is_a_flag() -> None:
    with pytest.raises(bcpformat.InvalidArgumentError, match="shared must be True or False"):
        ReadOptions(shared=1)  # type: ignore[arg-type]


ROWS, COLUMNS = 6, BLOCK_BYTES // 2
WHOLE = noise((ROWS, COLUMNS)) & 31
STORES: dict[str, MemoryStore] = {}


def read_boxes(end: Coordinator, store: Any, boxes: list[Box], unit: int, most: int) -> list[Array]:
    """Read boxes of one tensor, in small units and rounds."""
    found = [np.zeros(box.shape, dtype=np.uint8) for box in boxes]
    meeting = Meeting(end, bytes(16), timeout_s=20)
    with ExitStack() as stack:
        opened = stack.enter_context(Checkpoint(store, options=SHARED))
        read = stack.enter_context(
            reads_together(opened.reader, meeting, unit_bytes=unit, round_bytes=most)
        )
        read(
            ints([0] * len(boxes)),
            dict(enumerate(boxes)),
            Destinations(
                address=ints([address_of(a) for a in found]),
                nbytes=ints([a.nbytes for a in found]),
                strided={},
                owners=found,
            ),
            progress=lambda _: None,
        )
    return found


@st.composite
def some_boxes(draw: st.DrawFn) -> list[Box]:
    found = []
    for _ in range(draw(st.integers(0, 2))):
        low = draw(st.integers(0, ROWS - 1))
        left = draw(st.sampled_from([0, 1, COLUMNS // 2]))
        height = draw(st.integers(1, ROWS - low))
        width = draw(st.sampled_from([1, COLUMNS // 3, COLUMNS - left]))
        found.append(Box(origin=(low, left), shape=(height, min(width, COLUMNS - left))))
    return found


@settings(max_examples=40)
@given(
    needed=st.lists(some_boxes(), min_size=2, max_size=4),
    unit=st.sampled_from([1, 2, 8]),
    most=st.sampled_from([1, 3, 8]),
    codec=st.sampled_from(["raw", "zstd"]),
)
def test_any_boxes_are_read_in_any_units_and_rounds(
    needed: list[list[Box]], unit: int, most: int, codec: str
) -> None:
    if codec not in STORES:
        STORES[codec] = saved({"w": WHOLE}, codec=codec)
    store = CountingStore(STORES[codec])

    found = run_ranks(
        len(needed),
        lambda end: read_boxes(
            end, store, needed[end.rank], unit * BLOCK_BYTES, most * BLOCK_BYTES
        ),
    )

    for boxes, arrays in zip(needed, found, strict=True):
        for box, array in zip(boxes, arrays, strict=True):
            assert np.array_equal(array, WHOLE[tuple(map(slice, box.origin, box.end))])
    if codec == "raw":
        reads = data_reads(store)
        assert sum(n for *_, n in reads) == 4096 * len(covered(reads))


def test_blocks_of_several_files_are_shared() -> None:
    whole = noise((9, BLOCK_BYTES))
    store = MemoryStore()

    def part(rank: int) -> Shard:
        data = whole[3 * rank : 3 * rank + 3].copy()
        return Shard(data, global_shape=whole.shape, origin=(3 * rank, 0))

    run_ranks(3, lambda end: bcpformat.write(store, {"w": part(end.rank)}, group=end))
    counting = CountingStore(store)

    found = outcomes(counting, 3, lambda rank: {"w": rows(whole, rank, 7 + rank)})

    for rank, one in enumerate(found):
        assert np.array_equal(one.value["w"].data, whole[rank : 7 + rank])
    reads = data_reads(counting)
    assert len({key for key, *_ in reads}) == 3
    assert sum(n for *_, n in reads) == whole.nbytes
