"""What the processes of `test_coordinator.py` do; the tests look at what comes of it."""

from __future__ import annotations

import gc
import os
import select
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, TCPStore

from bcpformat.engine.coordinator import Coordinator
from bcpformat.model.manifest import ints
from bcpformat.testing.coordinator_suite import COORDINATOR_CHECKS
from bcpformat.torch.coordinator import TorchCoordinator, coordinator_for, join_store
from tests.distributed.errors_of import error_of
from tests.distributed.worker import Member

_PATIENT_S = 60.0
_SHORT_S = 2.0


def suite(member: Member) -> list[str]:
    with member.default_group() as group:
        ranks = coordinator_for(group)
        for check in COORDINATOR_CHECKS:
            check(ranks)
    return [check.__name__ for check in COORDINATOR_CHECKS]


def suite_in_files(member: Member, path: str) -> list[str]:
    return suite(replace(member, store=FileStore(path, member.size)))


def caching(member: Member) -> dict[str, bool]:
    """Make the coordinator of the default group twice, and see it go with the group."""
    with member.default_group() as group:
        first = coordinator_for(group)
        is_same = coordinator_for(None) is first
    known = weakref.ref(first)
    del first, group
    gc.collect()
    return {"is_same": is_same, "is_gone": known() is None}


def sub_groups(member: Member) -> dict[str, Any]:
    """Two groups of the processes 2 and 3, which use the same keys."""
    found: dict[str, Any] = {}
    with member.default_group():
        groups = [dist.new_group([2, 3]), dist.new_group([2, 3])]
        if member.rank not in (2, 3):
            found["error"] = error_of(lambda: coordinator_for(groups[0]))
            return found
        ends = [coordinator_for(group) for group in groups]
        for number, end in enumerate(ends):
            if end.rank == 0:
                end.put("key", f"of group {number}".encode())
        found["place"] = [(end.rank, end.size) for end in ends]
        found["totals"] = [_total(end, member.rank) for end in ends]
        found["taken"] = [end.take("key", timeout_s=_PATIENT_S) for end in ends]
        if member.rank == 2:
            found["error"] = error_of(lambda: _total(ends[0], 1, timeout_s=_SHORT_S))
            member.say("failed")
        member.hear("failed", [2])
        return found


def again(member: Member) -> dict[str, Any]:
    """Destroy the default group and make it again, and a third time."""
    found: dict[str, Any] = {"totals": [], "old": []}
    for attempt in range(3):
        # torch itself cannot connect where it finds the addresses of an earlier attempt.
        store = PrefixStore(f"attempt-{attempt}", member.store)
        with replace(member, store=store).default_group():
            _use_again(coordinator_for(None), found)
    return found


def same_store(member: Member) -> dict[str, Any]:
    """Join in the same store three times."""
    found: dict[str, Any] = {"totals": [], "old": []}
    for _ in range(3):
        _use_again(_joined(member), found)
    return found


def _use_again(end: Coordinator, found: dict[str, Any]) -> None:
    found["old"].append(end.take("key", timeout_s=0.0))
    found["totals"].append(_total(end, 1))
    if end.rank == 0:
        end.put("key", b"old")
    assert end.take("key", timeout_s=_PATIENT_S) == b"old"
    _total(end, 1)  # nobody goes on to the next attempt before


def large_value(member: Member) -> dict[str, Any]:
    """Take 64 MiB on a thread while the main thread is in collectives of the training."""
    large = bytes(range(256)) * (256 << 10)
    with member.default_group(), ThreadPoolExecutor(1) as background:
        end = coordinator_for(None)
        taking = background.submit(end.take, "large", timeout_s=_PATIENT_S)
        _train()
        waited = not taking.done()
        dist.barrier()
        if end.rank == 1:
            end.put("large", large)
        _train()
        found = {"waited": waited, "is_whole": taking.result() == large}
        dist.barrier()
        return found


def _train() -> None:
    gradient = torch.ones(1000)
    for _ in range(20):
        dist.all_reduce(gradient)


def busy_client(member: Member) -> bytes | None:
    """Take on a thread while the main thread waits with the training's own client."""
    with member.default_group(), ThreadPoolExecutor(1) as background:
        end = coordinator_for(None)

        def take_and_tell() -> bytes | None:
            value = end.take("value", timeout_s=_PATIENT_S)
            end.put(f"taken/{end.rank}", b"")
            return value

        taking = background.submit(take_and_tell)
        if end.rank == 0:
            end.put("value", b"abc")
            for rank in range(end.size):
                assert end.take(f"taken/{rank}", timeout_s=_PATIENT_S) is not None
            member.say("release")
        member.hear("release", [0])
        return taking.result()


def late_rank(member: Member) -> dict[str, Any]:
    """Process 1 comes to a sum when the others have given it up; then all go on."""
    others = [rank for rank in range(member.size) if rank != 1]
    with member.default_group():
        end = coordinator_for(None)
        _total(end, 1)
        if member.rank == 1:
            member.hear("over", others)
        error = error_of(lambda: _total(end, 1, timeout_s=_SHORT_S))
        member.say("over")
        _train()  # the training's own group is as good as before
        renewed = coordinator_for(None)
        return {"error": error, "is_new": renewed is not end, "total": _total(renewed, 1)}


def late_to_join(member: Member, late: int) -> dict[str, Any]:
    """One process does not come to make the coordinator; then all do."""
    others = [rank for rank in range(member.size) if rank != late]
    with member.default_group():
        error = None
        if member.rank == late:
            member.hear("over", others)
        else:
            error = error_of(lambda: coordinator_for(None, timeout_s=_SHORT_S))
            member.say("over")
        return {"error": error, "total": _total(coordinator_for(None), 1)}


def killed(member: Member) -> dict[str, Any]:
    """The last process is killed before it comes to a sum."""
    end = _joined(member)
    _total(end, 1)
    if member.rank == member.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    error = error_of(lambda: _total(end, 1, timeout_s=20.0))
    return {"error": error, "seconds": time.monotonic() - start}


def killed_within(member: Member) -> BaseException | None:
    """The last process is killed within a sum that process 1 has not come to; then that comes."""
    end = _joined(member)
    last = member.size - 1
    if member.rank == last:
        member.store.set("pid", str(os.getpid()))
        threading.Thread(target=lambda: _total(end, 1), daemon=True).start()
        while not any(key.endswith(f"/here/1/{last}") for key in member.store.list_keys()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    if member.rank == 1:
        ended = os.pidfd_open(int(member.store.get("pid")))
        select.select([ended], [], [])
        os.close(ended)
    return error_of(lambda: _total(end, 1))


def silent_store(member: Member) -> dict[str, Any]:
    """Process 1 hosts a store, is stopped, and then killed; process 0 is a group of one."""
    if member.rank == 1:
        host = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
        member.store.set("host", f"{os.getpid()} {host.port}")
        member.hear("never", [0])
    pid, port = map(int, member.store.get("host").split())
    store = TCPStore("127.0.0.1", port, None, is_master=False, wait_for_workers=False)
    ends = [
        join_store(store, rank=0, global_ranks=[0], timeout_s=_PATIENT_S, answer_s=answer_s)
        for answer_s in (1.0, _PATIENT_S)
    ]
    for end in ends:
        end.put("key", b"abc")
    found: dict[str, Any] = {}
    for end, number, what in zip(
        ends, (signal.SIGSTOP, signal.SIGKILL), ("stopped", "killed"), strict=True
    ):
        os.kill(pid, number)
        start = time.monotonic()
        found[what] = error_of(lambda end=end: end.take("key", timeout_s=0.0))
        found[f"{what}_seconds"] = time.monotonic() - start
    found["put"] = error_of(lambda: ends[0].put("other", b"abc"))
    found["are_broken"] = [end.is_broken for end in ends]
    return found


def _joined(member: Member) -> TorchCoordinator:
    return join_store(
        member.store,
        rank=member.rank,
        global_ranks=list(range(member.size)),
        timeout_s=_PATIENT_S,
    )


def _total(end: Coordinator, value: int, *, timeout_s: float = _PATIENT_S) -> int:
    return int(end.total(ints([value]), timeout_s=timeout_s)[0])
