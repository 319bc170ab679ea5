"""Sums of ranks that are threads here: what stays in the store, and how failures spread."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bcpformat.errors import CoordinationError, ErrorCode, InvalidArgumentError
from bcpformat.model.manifest import ints

pytestmark = pytest.mark.torch
dist = pytest.importorskip("torch.distributed")

from bcpformat.torch.coordinator import (  # noqa: E402  # needs torch
    TorchCoordinator,
    coordinator_for,
    join_store,
)

_PATIENT_S = 60.0


class _Group:
    """Ranks that are threads of this process, with real connections between them."""

    def __init__(self, size: int) -> None:
        self.store = dist.HashStore()
        self.ranks = list(range(size))
        self.ends: list[TorchCoordinator] = self.on_each(
            lambda rank: join_store(
                self.store,
                rank=rank,
                global_ranks=[10 + rank for rank in self.ranks],
                timeout_s=_PATIENT_S,
            )
        )

    def on_each(self, act: Callable[[int], Any]) -> list[Any]:
        with ThreadPoolExecutor(len(self.ranks)) as threads:
            return list(threads.map(act, self.ranks))

    def totals(self, *, times: int = 1) -> None:
        def act(rank: int) -> None:
            for _ in range(times):
                self.ends[rank].total(ints([1]), timeout_s=_PATIENT_S)

        self.on_each(act)


def test_keys_of_old_sums_are_removed() -> None:
    group = _Group(3)
    group.totals(times=3)
    before = len(group.store.list_keys())

    group.totals(times=50)

    # Keys are removed without waiting, so each rank may be one call behind.
    assert len(group.store.list_keys()) <= before + 3


@pytest.mark.slow
def test_death_of_one_rank_reaches_ranks_that_do_not_talk_to_it() -> None:
    group = _Group(8)
    group.totals()
    group.ends[5]._gloo = None  # closes its connections, as its death would

    def act(rank: int) -> tuple[ErrorCode, tuple[int, ...], bool] | None:
        start = time.monotonic()
        try:
            if rank != 5:
                group.ends[rank].total(ints([1]), timeout_s=40.0)
        except CoordinationError as error:
            return error.code, error.ranks, time.monotonic() - start < 30
        return None

    found = group.on_each(act)

    assert found == [(ErrorCode.RANK_LOST, (5,), True) if rank != 5 else None for rank in range(8)]


def test_sum_after_a_failed_one_says_what_failed() -> None:
    group = _Group(2)
    end = group.ends[0]
    with pytest.raises(CoordinationError):
        end.total(ints([1]), timeout_s=0.05)

    with pytest.raises(CoordinationError, match=r"earlier sum .* rank 1 \(global 11\)") as caught:
        end.total(ints([1]), timeout_s=_PATIENT_S)

    assert caught.value.code is ErrorCode.TIMEOUT
    assert caught.value.ranks == (1,)


@pytest.mark.slow
def test_interrupt_ends_the_wait_for_a_sum_and_the_use_of_the_group() -> None:
    group = _Group(2)
    end = group.ends[0]
    interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        end.total(ints([1]), timeout_s=4.0)
    waited_s = time.monotonic() - start

    with pytest.raises(CoordinationError, match="interrupted"):
        end.total(ints([1]), timeout_s=4.0)

    interrupt.join()
    assert waited_s < 3.5
    assert end.is_broken


def test_values_outlive_a_failed_sum() -> None:
    group = _Group(2)
    with pytest.raises(CoordinationError):
        group.ends[0].total(ints([1]), timeout_s=0.05)

    group.ends[0].put("key", b"abc")

    assert group.ends[1].take("key", timeout_s=_PATIENT_S) == b"abc"


def test_group_of_one_needs_no_connection() -> None:
    end = _Group(1).ends[0]

    assert end.total(ints([3, 4]), timeout_s=0.0).tolist() == [3, 4]
    assert end._gloo is None


def test_process_without_a_group_is_told_to_make_one() -> None:
    with pytest.raises(InvalidArgumentError, match="init_process_group"):
        coordinator_for(None)
