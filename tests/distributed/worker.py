"""One of the processes that `tests.distributed.processes` starts."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroup, Store, TCPStore

from tests.distributed.processes import Outcome


@dataclass(frozen=True, slots=True)
class Member:
    """One process among those that do a job.

    Attributes:
        rank: Its number among them, from 0.
        size: How many they are.
        store: What they share; nobody else uses these keys.
    """

    rank: int
    size: int
    store: Store

    @contextmanager
    def default_group(self) -> Iterator[ProcessGroup]:
        """Make the default process group, and destroy whatever group there is at the end."""
        dist.init_process_group("gloo", store=self.store, rank=self.rank, world_size=self.size)
        try:
            group = dist.group.WORLD
            assert group is not None
            yield group
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    def say(self, key: str) -> None:
        """Set a key that the others can wait for."""
        self.store.set(f"said/{key}/{self.rank}", "1")

    def hear(self, key: str, ranks: list[int]) -> None:
        """Wait until all of these have set a key."""
        self.store.wait([f"said/{key}/{rank}" for rank in ranks])


def main(directory: str, rank: int) -> None:
    """Do the jobs of a request and write down what becomes of each."""
    place = Path(directory)
    request = pickle.loads((place / "request").read_bytes())
    store = TCPStore("127.0.0.1", request["port"], None, is_master=False, wait_for_workers=False)
    for number, (module, name, args, ranks) in enumerate(request["jobs"]):
        members = list(range(request["size"])) if ranks is None else list(ranks)
        if rank not in members:
            continue
        member = Member(
            rank=members.index(rank),
            size=len(members),
            store=PrefixStore(f"job-{number}", store),
        )
        outcome = _done(module, name, member, args)
        path = place / f"outcome-{number}-{rank}"
        part = path.with_suffix(".part")
        part.write_bytes(_pickled(outcome))
        os.replace(part, path)


def _done(module: str, name: str, member: Member, args: tuple[Any, ...]) -> Outcome:
    try:
        return Outcome(value=getattr(importlib.import_module(module), name)(member, *args))
    except Exception as error:  # noqa: BLE001  # goes to the process that asked
        error.add_note("".join(traceback.format_exception(error)))
        return Outcome(error=error)


def _pickled(outcome: Outcome) -> bytes:
    try:
        return pickle.dumps(outcome)
    except Exception:  # noqa: BLE001  # whatever cannot be pickled is told in words
        told = RuntimeError(repr(outcome))
        return pickle.dumps(Outcome(error=told))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
