"""Several ranks write one checkpoint: what is stored once, compared, and never published."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bcpformat
from bcpformat import MemoryStore, PerRank, Shard, Shards, WriteOptions
from bcpformat.engine.coordinator import Coordinator
from bcpformat.errors import CoordinationError, DisagreementError, ErrorCode
from bcpformat.testing.faulty_store import FaultyStore
from bcpformat.testing.ranks import Ranks, run_ranks

MIB = 2**20


def rows(total: int, size: int, rank: int) -> tuple[int, int]:
    """Return the first row and the end of a rank's part by the rule of torch.chunk."""
    step = -(-total // size)
    return min(total, rank * step), min(total, (rank + 1) * step)


def save(
    store: bcpformat.Store,
    size: int,
    state: Callable[[int], Any],
    **options: Any,
) -> list[bcpformat.WriteReport]:
    def act(ranks: Coordinator) -> bcpformat.WriteReport:
        return bcpformat.write(
            store,
            state(ranks.rank),
            step=1,
            group=ranks,
            options=WriteOptions(timeout_s=20, **options),
        )

    return run_ranks(size, act)


def failures(
    store: bcpformat.Store, size: int, state: Callable[[int], Any], **options: Any
) -> list[BaseException | None]:
    def act(ranks: Coordinator) -> object:
        return bcpformat.write(
            store, state(ranks.rank), group=ranks, options=WriteOptions(timeout_s=20, **options)
        )

    return [outcome.error for outcome in Ranks(size).outcomes(act)]


def shard(whole: np.ndarray[Any, Any], size: int, rank: int) -> Shard:
    low, high = rows(whole.shape[0], size, rank)
    origin = (low,) + (0,) * (whole.ndim - 1)
    return Shard(whole[low:high].copy(), global_shape=whole.shape, origin=origin)


def test_pieces_of_all_ranks_make_one_tensor() -> None:
    store = MemoryStore()
    whole = np.arange(50257 * 3, dtype=np.float32).reshape(50257, 3)

    save(store, 3, lambda rank: {"w": shard(whole, 3, rank), "epoch": 4})

    state = bcpformat.read(store, as_numpy=True)
    assert np.array_equal(state["w"], whole) and state["epoch"] == 4
    assert bcpformat.validate(store, level="full").ok


def test_one_rank_reads_what_it_wrote_alone_and_what_eight_wrote_alike() -> None:
    whole = np.arange(5, dtype=np.int16)
    for size in (1, 8):
        store = MemoryStore()
        save(store, size, lambda rank, size=size: [shard(whole, size, rank)])

        assert bcpformat.read(store, as_numpy=True)[0].tolist() == [0, 1, 2, 3, 4]


def test_replicas_are_stored_once_and_spread_over_their_holders() -> None:
    store = MemoryStore()
    state = {f"w{i}": np.full(3 * MIB, i, dtype=np.uint8) for i in range(8)}

    reports = save(store, 4, lambda _rank: state)

    assert sum(r.raw_bytes for r in reports) == 24 * MIB
    assert {r.raw_bytes for r in reports} == {6 * MIB}
    assert bcpformat.read(store, as_numpy=True)["w7"][-1] == 7


def test_a_large_replica_is_split_among_its_holders() -> None:
    store = MemoryStore()
    whole = np.arange(8 * MIB, dtype=np.float32).reshape(-1, 1024)

    reports = save(store, 4, lambda _rank: {"w": whole})

    assert max(r.raw_bytes for r in reports) <= 8 * MIB
    assert np.array_equal(bcpformat.read(store, as_numpy=True)["w"], whole)


def test_t33_replicas_that_differ_are_refused_and_named() -> None:
    store = MemoryStore()

    errors = failures(store, 2, lambda rank: {"experts.0.w": np.full(8, rank, dtype=np.float32)})

    assert all(isinstance(e, DisagreementError) for e in errors)
    assert "experts.0.w" in str(errors[1]) and "rank 1" in str(errors[1])
    assert not store.list()


def test_a_difference_outside_the_sample_is_found_on_request() -> None:
    def state(rank: int) -> dict[str, Any]:
        data = np.zeros(64 * MIB, dtype=np.uint8)
        data[5 * MIB + 17] = rank
        return {"w": data}

    errors = failures(MemoryStore(), 2, state, replicas="full")

    assert all(isinstance(e, DisagreementError) for e in errors)


def test_values_that_differ_are_refused_with_path_ranks_and_values() -> None:
    errors = failures(MemoryStore(), 3, lambda rank: {"opt": {"lr": 0.1 if rank < 2 else 0.2}})

    assert {type(e) for e in errors} == {DisagreementError}
    for part in ("opt/lr", "0.1", "0.2", "rank 2", "PerRank"):
        assert part in str(errors[0])


def test_values_that_differ_are_all_kept_on_request() -> None:
    store = MemoryStore()

    save(store, 3, lambda rank: {"lr": rank / 10, "same": 5}, disagree="per_rank")

    state = bcpformat.read(store)
    assert dict(state["lr"]) == {0: 0.0, 1: 0.1, 2: 0.2} and state["same"] == 5
    assert bcpformat.validate(store, level="full").ok


def test_per_rank_values_keep_those_of_all_ranks() -> None:
    store = MemoryStore()

    save(store, 3, lambda rank: {"rng": PerRank({"seed": rank, "state": np.arange(rank)})})

    values = bcpformat.read(store, as_numpy=True)["rng"]
    assert [values[r]["seed"] for r in range(3)] == [0, 1, 2]
    assert values[2]["state"].tolist() == [0, 1]


def test_names_that_some_ranks_have_are_joined_lowest_rank_first() -> None:
    store = MemoryStore()

    save(store, 2, lambda rank: {"layers": {str(rank): np.full(3, rank)}, "step": 7})

    state = bcpformat.read(store, as_numpy=True)
    assert list(state["layers"]) == ["0", "1"] and state["layers"]["1"].tolist() == [1, 1, 1]


def test_one_name_with_two_shapes_is_refused() -> None:
    errors = failures(MemoryStore(), 2, lambda rank: {"flat": np.zeros(3 + rank)})

    assert {type(e) for e in errors} == {DisagreementError}
    assert "(3,)" in str(errors[0]) and "(4,)" in str(errors[0])


def test_pieces_that_leave_a_gap_are_refused_on_all_ranks() -> None:
    whole = np.zeros((6, 2))

    errors = failures(MemoryStore(), 2, lambda rank: {"w": shard(whole, 3, rank)})

    assert [getattr(e, "code", None) for e in errors] == [ErrorCode.COVERAGE] * 2


def test_a_state_without_a_form_on_one_rank_fails_on_all_with_its_path() -> None:
    errors = failures(MemoryStore(), 3, lambda rank: {"x": object() if rank == 1 else 1})

    assert [getattr(e, "code", None) for e in errors] == [ErrorCode.NO_FORM] * 3
    assert all("'x'" in str(e) and "rank 1 of 3" in str(e) for e in errors)


def test_t24_storage_that_raises_on_one_rank_fails_all_with_its_error() -> None:
    inner = MemoryStore()
    state = {"w": np.zeros(3 * MIB, dtype=np.uint8)}

    def act(ranks: Coordinator) -> object:
        store: bcpformat.Store = inner
        if ranks.rank == 1:
            store = FaultyStore(inner, fail_at=2)
        own = {f"w{ranks.rank}": state["w"]}
        return bcpformat.write(store, own, group=ranks, options=WriteOptions(timeout_s=20))

    errors = [o.error for o in Ranks(4).outcomes(act)]

    assert {type(e) for e in errors} == {bcpformat.StorageError}
    assert all("rank 1 of 4" in str(e) for e in errors)
    with pytest.raises(bcpformat.ObjectNotFoundError):
        bcpformat.open(inner)
    assert not inner.list()


def test_a_rank_that_does_not_come_is_named_and_nothing_is_published() -> None:
    store = MemoryStore()

    def act(ranks: Coordinator) -> object:
        if ranks.rank == 2:
            raise KeyError("gone before the save")
        options = WriteOptions(timeout_s=1)
        return bcpformat.write(store, {"w": np.zeros(4)}, group=ranks, options=options)

    errors = [o.error for o in Ranks(3).outcomes(act)]

    assert isinstance(errors[0], CoordinationError) and errors[0].ranks == (2,)
    with pytest.raises(bcpformat.ObjectNotFoundError):
        bcpformat.open(store)


def test_calls_that_differ_between_ranks_are_refused() -> None:
    store = MemoryStore()

    def act(ranks: Coordinator) -> object:
        return bcpformat.write(store, {}, step=ranks.rank, group=ranks)

    errors = [o.error for o in Ranks(2).outcomes(act)]

    assert {type(e) for e in errors} == {DisagreementError}
    assert "step" in str(errors[0])


def test_t56_a_second_save_of_the_same_layout_exchanges_no_plan() -> None:
    whole = np.zeros((16, 4))
    ranks = Ranks(8)
    store = MemoryStore()
    sizes = []
    for number, extra in enumerate((0, 0, 1)):
        place = store.child(str(number))
        before = ranks.put_bytes()
        ranks.run(
            lambda end, place=place, extra=extra: bcpformat.write(
                place, {"w": shard(whole, 8, end.rank), "b": np.zeros(4 + extra)}, group=end
            )
        )
        sizes.append(ranks.put_bytes() - before)

    assert sizes[1] < sizes[0] and sizes[2] > sizes[1]


def test_empty_shards_and_ranks_without_chunks_write_no_file() -> None:
    store = MemoryStore()

    reports = save(store, 8, lambda rank: {"w": shard(np.arange(5), 8, rank)})

    assert [len(r.files) for r in reports] == [1, 1, 1, 1, 1, 0, 0, 0]


def test_flat_shards_are_stored_as_they_lie() -> None:
    store = MemoryStore()
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)

    def state(rank: int) -> dict[str, Any]:
        low, high = (0, 5) if rank == 0 else (5, 12)
        flat = whole.reshape(-1)[low:high]
        return {"w": Shard(flat, global_shape=(3, 4), origin=(0, 0), flat=(low, high - low))}

    save(store, 2, state)

    assert np.array_equal(bcpformat.read(store, as_numpy=True)["w"], whole)


def test_several_pieces_of_one_rank_are_one_tensor() -> None:
    store = MemoryStore()
    whole = np.arange(8)

    def state(rank: int) -> dict[str, Any]:
        pieces = [
            Shard(whole[at : at + 2], global_shape=(8,), origin=(at,))
            for at in (2 * rank, 4 + 2 * rank)
        ]
        return {"w": Shards(pieces)}

    save(store, 2, state)

    assert bcpformat.read(store, as_numpy=True)["w"].tolist() == list(range(8))


def test_large_objects_of_all_ranks_are_stored_once_and_compared() -> None:
    store = MemoryStore()
    blob = bytes(200_000)

    reports = save(store, 2, lambda _rank: {"blob": blob})

    assert sum(r.raw_bytes for r in reports) == 200_000
    assert bcpformat.read(store)["blob"] == blob
    errors = failures(MemoryStore(), 2, lambda rank: {"blob": bytes([rank]) * 200_000})
    assert {type(e) for e in errors} == {DisagreementError}


def test_tensors_without_elements_and_without_axes_keep_shape_and_value() -> None:
    store = MemoryStore()
    scalar = Shard(np.array(7.5), global_shape=(), origin=())

    save(store, 2, lambda _rank: {"none": np.zeros((0, 3)), "scalar": scalar})

    state = bcpformat.read(store, as_numpy=True)
    assert state["none"].shape == (0, 3) and state["scalar"].item() == 7.5


class Interrupted:
    """An end of a group that raises where it puts or takes values of one kind."""

    def __init__(self, end: Coordinator, *, error: BaseException, put: str = "", take: str = ""):
        self.rank, self.size = end.rank, end.size
        self.describe, self.total, self.exchange = end.describe, end.total, end.exchange
        self.forget = end.forget
        self._end = end
        self._error = error
        self._put = put
        self._take = take

    def put(self, key: str, value: bytes) -> None:
        if self._put and f"/{self._put}/" in key:
            raise self._error
        self._end.put(key, value)

    def take(self, key: str, *, timeout_s: float) -> bytes | None:
        if self._take and f"/{self._take}/" in key:
            raise self._error
        return self._end.take(key, timeout_s=timeout_s)


def own_row(rank: int) -> dict[str, Shard]:
    return {"w": Shard(np.full((1, 4), rank), global_shape=(2, 4), origin=(rank, 0))}


def test_an_interrupted_wait_for_the_outcome_removes_nothing_that_may_be_committed() -> None:
    store = MemoryStore()

    def act(end: Coordinator) -> object:
        stopped = Interrupted(end, error=KeyboardInterrupt(), take="outcome" * end.rank)
        return bcpformat.write(store, own_row(end.rank), group=stopped)

    errors = [o.error for o in Ranks(2).outcomes(act)]

    assert errors[0] is None and isinstance(errors[1], KeyboardInterrupt)
    assert bcpformat.validate(store, level="full").ok


@pytest.mark.parametrize("kind", ["put", "take"])
def test_a_committed_save_stays_whatever_becomes_of_telling_it(kind: str) -> None:
    store = MemoryStore()
    lost = CoordinationError("the store is gone", code=ErrorCode.RANK_LOST)

    def act(end: Coordinator) -> object:
        ways = {"put": "outcome" * (end.rank == 0), "take": "heard" * (end.rank == 0)}
        stopped = Interrupted(end, error=lost, **{kind: ways[kind]})
        options = WriteOptions(timeout_s=1)
        return bcpformat.write(store, own_row(end.rank), group=stopped, options=options)

    errors = [o.error for o in Ranks(2).outcomes(act)]

    assert errors == [None, None]
    assert bcpformat.validate(store, level="full").ok


def test_ctrl_c_on_the_lead_while_it_publishes_removes_nothing_on_any_rank() -> None:
    inner = MemoryStore()
    trial = FaultyStore(MemoryStore())
    bcpformat.write(trial, {"w": np.zeros(4)}, group=None)
    publication = [o.op for o in trial.operations].index("put_if_absent")

    def act(end: Coordinator) -> object:
        store: bcpformat.Store = inner
        if end.rank == 0:
            error = KeyboardInterrupt()
            store = FaultyStore(inner, fail_at=publication, error=error, effect="late")
        return bcpformat.write(store, own_row(end.rank), group=end)

    errors = [o.error for o in Ranks(2).outcomes(act)]

    assert isinstance(errors[0], KeyboardInterrupt)
    assert getattr(errors[1], "code", None) is ErrorCode.UNCERTAIN
    assert bcpformat.validate(inner, level="full").ok


def test_a_failure_of_the_lead_that_is_not_ours_is_told_at_once() -> None:
    inner = MemoryStore()

    def act(end: Coordinator) -> object:
        store: bcpformat.Store = inner
        if end.rank == 0:
            store = FaultyStore(inner, fail_at=1, error=KeyboardInterrupt())
        return bcpformat.write(store, own_row(end.rank), group=end)

    errors = [o.error for o in Ranks(2).outcomes(act)]

    assert isinstance(errors[0], KeyboardInterrupt)
    assert isinstance(errors[1], CoordinationError) and "KeyboardInterrupt" in str(errors[1])
    assert not inner.list()


def test_a_group_is_in_step_after_an_error_of_another_library_on_one_rank() -> None:
    class Odd(Exception):
        pass

    class Odder(MemoryStore):
        def describe(self) -> str:
            raise Odd

    ranks = Ranks(3)
    totals = []

    def act(end: Coordinator) -> None:
        store = Odder() if end.rank == 1 else MemoryStore()
        with pytest.raises(Odd if end.rank == 1 else CoordinationError):
            bcpformat.write(store, {}, group=end)
        totals.append(end.total(np.array([1]), timeout_s=5).tolist())

    ranks.run(act)

    assert totals == [[3]] * 3
    assert not ranks.keys


def test_a_save_that_fails_leaves_no_values_behind() -> None:
    ranks = Ranks(4)

    def gap(end: Coordinator) -> object:
        return bcpformat.write(MemoryStore(), {"w": shard(np.zeros(10), 5, end.rank)}, group=end)

    def variants(end: Coordinator) -> object:
        return bcpformat.write(MemoryStore(), {"w": np.zeros(3 + end.rank)}, group=end)

    def broken(end: Coordinator) -> object:
        store = FaultyStore(MemoryStore(), fail_at=2 if end.rank == 1 else None)
        return bcpformat.write(store, own_row(end.rank % 2), group=end)

    for act in (gap, variants, broken):
        with pytest.raises(ExceptionGroup):
            ranks.run(act)

    assert ranks.keys == []


def test_metadata_that_differs_in_type_alone_is_refused() -> None:
    def act(end: Coordinator) -> object:
        options = WriteOptions(user={"final": True if end.rank else 1})
        return bcpformat.write(MemoryStore(), {}, group=end, options=options)

    errors = [o.error for o in Ranks(2).outcomes(act)]

    assert {type(e) for e in errors} == {DisagreementError}
    assert "user" in str(errors[0])
