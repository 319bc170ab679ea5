"""Exchanges over real connections, of ranks that are threads here."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import bcpformat
from bcpformat import MemoryStore, ReadOptions
from bcpformat.errors import CoordinationError, ErrorCode
from bcpformat.model.manifest import ints

pytestmark = pytest.mark.torch
dist = pytest.importorskip("torch.distributed")

from bcpformat.torch import coordinator  # noqa: E402  # needs torch

_PATIENT_S = 60.0


class _Group:
    def __init__(self, size: int) -> None:
        store = dist.HashStore()
        self.ranks = list(range(size))
        self.ends: list[coordinator.TorchCoordinator] = self.on_each(
            lambda rank: coordinator.join_store(
                store, rank=rank, global_ranks=self.ranks, timeout_s=_PATIENT_S
            )
        )

    def on_each(self, act: Callable[[int], Any]) -> list[Any]:
        with ThreadPoolExecutor(len(self.ranks)) as threads:
            return list(threads.map(act, self.ranks))


def test_parts_of_many_steps_arrive_whole() -> None:
    group = _Group(3)
    sizes = [0, 5, 3 * (coordinator._STEP_BYTES // 3) + 7]
    given = [np.arange(n, dtype=np.uint32).astype(np.uint8) for n in sizes]

    found = group.on_each(lambda rank: group.ends[rank].exchange(given, timeout_s=_PATIENT_S))

    for rank, parts in enumerate(found):
        assert all(np.array_equal(part, given[rank]) for part in parts)


def test_exchanges_and_sums_follow_one_another() -> None:
    group = _Group(2)

    def act(rank: int) -> list[int]:
        end = group.ends[rank]
        found = []
        for number in range(5):
            part = np.full(number, rank, dtype=np.uint8)
            found.append(int(sum(p.sum() for p in end.exchange([part] * 2, timeout_s=_PATIENT_S))))
            found.append(int(end.total(ints([1]), timeout_s=_PATIENT_S)[0]))
        return found

    assert group.on_each(act) == [[0, 2, 1, 2, 2, 2, 3, 2, 4, 2]] * 2


def test_rank_that_does_not_come_to_an_exchange_is_named() -> None:
    group = _Group(3)
    part = np.zeros(9, dtype=np.uint8)

    def act(rank: int) -> CoordinationError | None:
        try:
            if rank != 1:
                group.ends[rank].exchange([part] * 3, timeout_s=0.5)
        except CoordinationError as error:
            return error
        return None

    first, _, last = group.on_each(act)

    for error in (first, last):
        assert (error.code, error.ranks) == (ErrorCode.TIMEOUT, (1,))
        assert "no exchange of 3 ranks within 0.5 s: rank 1 did not come" in error.message
    with pytest.raises(CoordinationError, match="an earlier exchange of this group failed"):
        group.ends[0].total(ints([1]), timeout_s=_PATIENT_S)


def test_replicas_share_what_they_read() -> None:
    state = {"w": np.arange(3 << 18, dtype=np.float32)}
    store = MemoryStore()
    bcpformat.write(store, state, group=None)
    group = _Group(3)

    found = group.on_each(
        lambda rank: bcpformat.read(
            store,
            into={"w": np.zeros_like(state["w"])},
            group=group.ends[rank],
            options=ReadOptions(shared=True),
        )
    )

    assert all(np.array_equal(one["w"], state["w"]) for one in found)
