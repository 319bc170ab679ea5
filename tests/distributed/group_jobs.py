"""Saves of process groups: of some processes, of all, and of one that does not come."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

import bcpformat
from bcpformat import LocalStore, Shard, WriteOptions
from tests.distributed.errors_of import error_of
from tests.distributed.worker import Member

_PATIENT = WriteOptions(timeout_s=120.0)
_SHORT_S = 2.0
_ROWS = 7


class _WatchedStore(LocalStore):
    """A directory that knows whether this process has published its manifest.

    Attributes:
        has_published: Whether it has.
    """

    has_published = False

    def put_if_absent(self, key: str, data: bytes) -> None:
        super().put_if_absent(key, data)
        self.has_published = True


def sub_group(member: Member, place: str) -> dict[str, Any]:
    """The processes 2 and 3 of four save and load; the others are refused."""
    found: dict[str, Any] = {}
    with member.default_group():
        group = dist.new_group([2, 3])
        store = _WatchedStore(place)
        first = 0 if member.rank == 2 else 4
        rows = torch.arange(first, min(first + 4, _ROWS))
        state = {"rows": Shard(rows, global_shape=(_ROWS,), origin=(first,)), "epoch": 3}
        found["error"] = error_of(
            lambda: bcpformat.write(store, state, group=group, options=_PATIENT)
        )
        found["has_published"] = store.has_published
        if found["error"] is None:
            rows.zero_()
            bcpformat.read(store, into=state, group=group)
            found["rows"] = rows.tolist()
        dist.barrier()
        found["whole"] = bcpformat.read(place)["rows"].tolist()
    return found


def replicas(member: Member, place: str) -> dict[str, Any]:
    """Save a replicated DTensor that is not the same on the last process."""
    with member.default_group():
        mesh = init_device_mesh("cpu", (member.size,))
        local = torch.zeros(1000)
        local[500] = member.rank == member.size - 1
        tensor = DTensor.from_local(local, mesh, [Replicate()], run_check=False)
        full = WriteOptions(replicas="full", timeout_s=_PATIENT.timeout_s)
        return {
            "trusted": error_of(
                lambda: bcpformat.write(f"{place}/trusted", {"w": tensor}, options=_PATIENT)
            ),
            "full": error_of(lambda: bcpformat.write(f"{place}/full", {"w": tensor}, options=full)),
            "equal": error_of(
                lambda: bcpformat.write(
                    f"{place}/equal", {"w": tensor.detach().clone().zero_()}, options=full
                )
            ),
        }


def late(member: Member, place: str) -> dict[str, Any]:
    """Process 1 does not come to the first save of its group; to the next one all come."""
    others = [rank for rank in range(member.size) if rank != 1]
    state = {"w": torch.arange(5)}
    found: dict[str, Any] = {"error": None}
    with member.default_group():
        if member.rank == 1:
            member.hear("over", others)
        else:
            short = WriteOptions(timeout_s=_SHORT_S)
            start = time.monotonic()
            found["error"] = error_of(lambda: bcpformat.write(place, state, options=short))
            found["seconds"] = time.monotonic() - start
            member.say("over")
        found["next"] = error_of(lambda: bcpformat.write(place, state, options=_PATIENT))
        dist.barrier()
    found["whole"] = bcpformat.read(place)["w"].tolist()
    return found
