"""Field reports of several ranks, replayed with ranks that are threads."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import bcpformat
from bcpformat import LocalStore, MemoryStore, Shard, WriteOptions
from bcpformat.engine.coordinator import Coordinator
from bcpformat.errors import ErrorCode, ObjectNotFoundError
from bcpformat.testing.faulty_store import FaultyStore
from bcpformat.testing.ranks import Ranks, run_ranks

MIB = 2**20


class BlindStore(FaultyStore):
    """A store that does not see a manifest, as a network file system for some seconds."""

    def read(self, key: str, *, offset_bytes: int = 0, nbytes: int | None = None) -> bytes:
        if key == "manifest.bcp":
            raise ObjectNotFoundError("not seen yet", key=key)
        return super().read(key, offset_bytes=offset_bytes, nbytes=nbytes)


@pytest.mark.parametrize("blind", [(1, 3), (0, 2), (0, 1, 2, 3)])
def test_t43_ranks_that_see_different_files_come_to_one_decision(blind: tuple[int, ...]) -> None:
    store = MemoryStore()
    bcpformat.write(store, {"old": 1})

    def act(ranks: Coordinator) -> object:
        seen: bcpformat.Store = BlindStore(store) if ranks.rank in blind else store
        return bcpformat.write(seen, {"new": 2}, group=ranks, options=WriteOptions(timeout_s=20))

    errors = [outcome.error for outcome in Ranks(4).outcomes(act)]

    assert [getattr(e, "code", None) for e in errors] == [ErrorCode.EXISTS] * 4
    assert bcpformat.read(store) == {"old": 1}
    assert [info.key for info in store.list()] == ["manifest.bcp"]


def test_t27_what_one_rank_calls_alone_returns() -> None:
    store = MemoryStore()
    run_ranks(4, lambda end: bcpformat.write(store, {"w": np.arange(4)}, group=end))

    def act(ranks: Coordinator) -> object:
        if ranks.rank:
            return None
        with bcpformat.open(store) as opened:
            first = opened["w"][0]
        return first, bcpformat.read(store, as_numpy=True), bcpformat.validate(store).ok

    first, state, ok = run_ranks(4, act)[0]  # type: ignore[misc]  # that of rank 0
    assert (first, state["w"].tolist(), ok) == (0, [0, 1, 2, 3], True)


def test_t40_rows_of_a_large_tensor_are_read_without_the_rest_and_columns_within_a_bound(
    tmp_path: Any,
) -> None:
    rows, columns = 8192, 2048  # 64 MiB
    data = np.zeros((rows, columns), dtype=np.float32)
    data[4096:4128] = 7
    bcpformat.write(tmp_path / "rows", {"w": data})
    bcpformat.write(tmp_path / "tiles", {"w": data}, options=WriteOptions(tile=True))
    wanted = MIB  # bytes
    reads = {}
    for name, index in (
        ("rows", np.s_[4096 : 4096 + wanted // (4 * columns)]),
        ("tiles", np.s_[:, 1024 : 1024 + 256]),
    ):
        store = FaultyStore(LocalStore(tmp_path / name))
        with bcpformat.open(store) as opened:
            before = store.bytes_read
            tracemalloc.start()
            part = opened["w"][index]
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        reads[name] = (store.bytes_read - before) / part.nbytes
        assert peak < 64 * MIB
        assert part.any() or name == "tiles"

    assert reads["rows"] <= 2
    assert reads["tiles"] <= 1.4


def test_t26_a_save_of_some_ranks_has_its_own_lead() -> None:
    store = MemoryStore()

    def act(ranks: Coordinator) -> Any:
        return bcpformat.write(store, {f"w{ranks.rank}": np.zeros(2)}, group=ranks)

    Ranks(2).run(act)

    assert sorted(bcpformat.read(store, as_numpy=True)) == ["w0", "w1"]


def test_a_checkpoint_of_many_ranks_is_read_whole_in_little_more_than_its_bytes() -> None:
    whole = np.arange(4 * MIB, dtype=np.uint8).reshape(4096, 1024)
    inner = MemoryStore()

    def save(ranks: Coordinator) -> None:
        low, high = ranks.rank * 1024, (ranks.rank + 1) * 1024
        piece = Shard(whole[low:high], global_shape=whole.shape, origin=(low, 0))
        bcpformat.write(inner, {"w": piece}, group=ranks)

    run_ranks(4, save)
    stores = [FaultyStore(inner) for _ in range(8)]

    def load(ranks: Coordinator) -> None:
        low = ranks.rank * 512
        data = np.zeros((512, 1024), dtype=np.uint8)
        piece = Shard(data, global_shape=whole.shape, origin=(low, 0))
        bcpformat.read(stores[ranks.rank], into={"w": piece}, group=ranks)
        assert np.array_equal(data, whole[low : low + 512])

    run_ranks(8, load)

    manifest = len(inner.read("manifest.bcp"))
    for store in stores:
        data_bytes = sum(op.nbytes for op in store.operations if op.op == "read_into")
        assert data_bytes <= 1.05 * 512 * 1024 + manifest + 8192
