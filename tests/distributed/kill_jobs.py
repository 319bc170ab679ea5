"""Saves in which one rank is killed or hangs at a chosen step, and what the others make of it.

The ranks are forks of one process that waits for their end: so one import of torch does for many
of them, and a rank that got past the step where it was to die is noticed.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import numpy as np
from torch.distributed import Store, TCPStore

import bcpformat
from bcpformat import LocalStore, MemoryStore, Shard, WriteOptions
from bcpformat.engine.coordinator import Coordinator
from bcpformat.errors import BcpError
from bcpformat.model.manifest import Ints
from bcpformat.storage.store import ObjectWriter, ReadableBytes
from bcpformat.torch.coordinator import TorchCoordinator, join_store
from tests.distributed.errors_of import error_of
from tests.distributed.worker import Member

TIMEOUT_S = 4.0
_PATIENT_S = 120.0
_SLOW_S = 0.5
RANKS = 3
_PR_SET_PDEATHSIG = 1
_ROWS, _COLUMNS = 301, 1024

Step = Literal[
    "before the sum",
    "after the sum",
    "after its layout",
    "within its data file",
    "before its part record",
    "before merging",
    "before publishing",
    "after publishing",
    "before the outcome",
]
Fate = Literal["killed", "hung", "late"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What becomes of one rank of three.

    Attributes:
        rank: The rank.
        step: Where it happens.
        fate: What happens; ``"late"``: it goes on when the others have given it up.
        hosts: Whether the rank hosts the store that the ranks share.
        again: Whether the others save again, to the same place.
    """

    rank: int
    step: Step
    fate: Fate = "killed"
    hosts: bool = False
    again: bool = True

    @property
    def others(self) -> list[int]:
        """The other ranks."""
        return [rank for rank in range(RANKS) if rank != self.rank]

    def __str__(self) -> str:
        text = f"rank {self.rank} {self.fate} {self.step}"
        text += ", with the store" if self.hosts else ""
        return text if self.again else f"{text}, once"


# ---- how a rank meets its fate -------------------------------------------------------------------


class _Doom:
    """What becomes of this process at one step."""

    def __init__(self, scenario: Scenario, own: Member) -> None:
        self._scenario = scenario
        self._own = own

    def at(self, step: Step) -> None:
        if step != self._scenario.step:
            return
        if self._scenario.fate == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._scenario.fate == "hung":
            threading.Event().wait()
        self._own.hear("end", self._scenario.others)


class _DoomedEnd:
    """A rank's end of its group, for one that is lost at some step."""

    def __init__(self, inner: Coordinator, doom: _Doom) -> None:
        self._inner = inner
        self._doom = doom
        self.rank = inner.rank
        self.size = inner.size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def total(self, values: Ints, *, timeout_s: float) -> Ints:
        self._doom.at("before the sum")
        found = self._inner.total(values, timeout_s=timeout_s)
        self._doom.at("after the sum")
        return found

    def put(self, key: str, value: bytes) -> None:
        if "/part/" in key:
            self._doom.at("before its part record")
        if "/outcome/" in key:
            self._doom.at("before the outcome")
        self._inner.put(key, value)
        if "/layout/" in key:
            self._doom.at("after its layout")

    def take(self, key: str, *, timeout_s: float) -> bytes | None:
        if "/part/" in key:
            self._doom.at("before merging")
        if "/outcome/" in key:
            self._doom.at("before the outcome")
        return self._inner.take(key, timeout_s=timeout_s)


class _DoomedStore(LocalStore):
    """A directory, for a rank that is lost at some step."""

    def __init__(self, path: str, doom: _Doom) -> None:
        super().__init__(path)
        self._doom = doom

    def create(self, key: str, *, nbytes_hint: int | None) -> ObjectWriter:
        return _DoomedWriter(super().create(key, nbytes_hint=nbytes_hint), self._doom)

    def put_if_absent(self, key: str, data: bytes) -> None:
        self._doom.at("before publishing")
        super().put_if_absent(key, data)
        self._doom.at("after publishing")


class _DoomedWriter:
    """A writer that may write no more than a part of what it is given."""

    def __init__(self, inner: ObjectWriter, doom: _Doom) -> None:
        self._inner = inner
        self._doom = doom
        self.key = inner.key
        self.alignment = inner.alignment

    def write_at(self, offset_bytes: int, data: ReadableBytes) -> None:
        view = memoryview(data).cast("B")
        if len(view) > self.alignment:
            self._inner.write_at(offset_bytes, view[: self.alignment])
            self._doom.at("within its data file")
        self._inner.write_at(offset_bytes, data)

    def finish(self, nbytes: int) -> None:
        self._inner.finish(nbytes)

    def abort(self) -> None:
        self._inner.abort()

    def __enter__(self) -> _DoomedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class _SlowEnd:
    """A rank's end of its group that begins to wait for layouts later than the others do."""

    def __init__(self, inner: Coordinator) -> None:
        self._inner = inner
        self._is_slow = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def take(self, key: str, *, timeout_s: float) -> bytes | None:
        if "/layout/" in key and self._is_slow:
            self._is_slow = False
            time.sleep(_SLOW_S)
        return self._inner.take(key, timeout_s=timeout_s)


# ---- the job -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Survival:
    """What a rank saw that was not lost.

    Attributes:
        error: What its save raised; None if it returned.
        seconds: How long that took.
        left: Keys of what lay there afterwards.
        read: Who saved the checkpoint that was read afterwards, 1 for the first save; 0: nobody.
        second: What a second save to the same place raised, with the ranks that are left.
    """

    error: BcpError | None
    seconds: float
    left: tuple[str, ...]
    read: int
    second: BcpError | None


@dataclass(frozen=True, slots=True)
class Loss:
    """What became of a scenario.

    Attributes:
        others: What the other ranks saw, in their order.
        signal: What ended the rank that was lost, SIGTERM if nothing did; 0 if it was late.
        error: What the save of a late rank raised.
        read: Who saved the checkpoint that is there in the end; 0: nobody.
        is_valid: Whether that has no problem.
    """

    others: list[Survival]
    signal: int
    error: BcpError | None
    read: int
    is_valid: bool


def lose(member: Member, scenario: Scenario, place: str) -> Loss:
    """Save with three ranks, one of which is lost; then save again with the others."""
    bcpformat.write(MemoryStore(), {"w": np.zeros(1)}, group=None)  # imports what the forks need
    forks = [_fork(lambda rank=rank: _play(member, rank, scenario, place)) for rank in range(RANKS)]
    others = [forks[rank].result() for rank in scenario.others]
    lost = forks[scenario.rank]
    is_late = scenario.fate == "late"
    return Loss(
        others=others,
        error=lost.result() if is_late else None,
        signal=0 if is_late else lost.end(),
        read=_saver(place),
        is_valid=bcpformat.validate(place, level="full").ok,
    )


@dataclass(frozen=True, slots=True)
class _Fork:
    """A process that plays a rank.

    Attributes:
        process: Its id.
        results: The end of a pipe.
    """

    process: int
    results: int

    def result(self) -> Any:
        """Return what it made, when it has ended.

        Raises:
            AssertionError: It failed, or was killed.
        """
        with os.fdopen(self.results, "rb") as results:
            data = results.read()
        os.waitpid(self.process, 0)
        assert data, f"process {self.process} was killed"
        value, problem = pickle.loads(data)
        assert not problem, problem
        return value

    def end(self) -> int:
        """Return the signal that ended it; if it has not ended, that is SIGTERM.

        Raises:
            AssertionError: It came to its end.
        """
        os.kill(self.process, signal.SIGTERM)
        _, status = os.waitpid(self.process, 0)
        if os.WIFSIGNALED(status):
            os.close(self.results)
            return os.WTERMSIG(status)
        with os.fdopen(self.results, "rb") as results:
            raise AssertionError(f"it ended by itself: {pickle.loads(results.read())}")


def _fork(act: Callable[[], object]) -> _Fork:
    results, out = os.pipe()
    process = os.fork()
    if process:
        os.close(out)
        return _Fork(process, results)
    value, problem = None, ""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        value = act()
    except BaseException:  # noqa: BLE001  # goes to the process that asked
        problem = traceback.format_exc()
    with os.fdopen(out, "wb") as file:
        file.write(pickle.dumps((value, problem)))
    os._exit(0)  # nothing of that process is to be done twice


def _play(member: Member, rank: int, scenario: Scenario, place: str) -> object:
    # a connection belongs to one process
    own = Member(rank=rank, size=RANKS, store=member.store.clone())
    play = _be_lost if rank == scenario.rank else _survive
    return play(own, scenario, place)


def _be_lost(own: Member, scenario: Scenario, place: str) -> BcpError | None:
    store = own.store
    if scenario.hosts:
        store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
        own.store.set("port", str(store.port))
    doom = _Doom(scenario, own)
    end = _joined(store, own.rank, range(RANKS))
    return error_of(lambda: _save(_DoomedStore(place, doom), _DoomedEnd(end, doom), number=1))


def _survive(own: Member, scenario: Scenario, place: str) -> Survival:
    others = scenario.others
    end: Any = _joined(_shared(own, scenario), own.rank, range(RANKS))
    if own.rank == 0:
        end = _SlowEnd(end)
    start = time.monotonic()
    error = error_of(lambda: _save(place, end, number=1))
    seconds = time.monotonic() - start
    own.say("over")
    own.hear("over", others)
    left = tuple(sorted(info.key for info in LocalStore(place).list()))
    read = _saver(place)
    second = None
    if scenario.again:
        again = _joined(own.store, others.index(own.rank), others)
        second = error_of(lambda: _save(place, again, number=2))
    own.say("end")
    return Survival(error=error, seconds=seconds, left=left, read=read, second=second)


def _shared(own: Member, scenario: Scenario) -> Store:
    """Return the store that the three ranks share."""
    if not scenario.hosts:
        return own.store
    own.store.wait(["port"], timedelta(seconds=_PATIENT_S))
    port = int(own.store.get("port"))
    return TCPStore("127.0.0.1", port, None, is_master=False, wait_for_workers=False)


def _joined(store: Store, rank: int, ranks: Sequence[int]) -> TorchCoordinator:
    return join_store(store, rank=rank, global_ranks=list(ranks), timeout_s=_PATIENT_S)


def _save(place: Any, end: Coordinator, *, number: int) -> None:
    rows = -(-_ROWS // end.size)
    first = end.rank * rows
    data = np.full((min(rows, _ROWS - first), _COLUMNS), number, dtype=np.float32)
    state = {
        "w": Shard(data, global_shape=(_ROWS, _COLUMNS), origin=(first, 0)),
        "b": np.full(17, number),
        "number": number,
    }
    bcpformat.write(place, state, group=end, options=WriteOptions(timeout_s=TIMEOUT_S))


def _saver(place: str) -> int:
    """Return the number of the save whose checkpoint there is, 0 without one."""
    try:
        state = bcpformat.read(place, as_numpy=True)
    except bcpformat.ObjectNotFoundError:
        return 0
    number = int(state["number"])
    assert state["w"].shape == (_ROWS, _COLUMNS)
    assert (state["w"] == number).all() and (state["b"] == number).all()
    return number
