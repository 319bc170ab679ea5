"""The ranks of a `torch.distributed` process group as a `Coordinator`.

Sums and exchanges run on gloo, over connections that belong to the coordinator alone, whatever
the backend of the group is; made in milliseconds, once per group.  So no time-out of a save harms
the training's own collectives, and none of those can come between.  Values go through the store
of the group, on a client of their own.

What was found out about gloo (torch 2.13), and is relied on:

- An operation that passes its time-out closes all connections of this rank.  A rank that comes
  late then fails at once, instead of waiting for one that nobody else finishes.
- Only a time-out given to the operation itself does this.  `Work.wait` can also stop waiting, but
  leaves the operation running, and the process cannot end before that does.
- A dead rank fails the sums of those that talk to it within milliseconds.  Their connections to
  others stay, and those would wait until their time-out; so a rank that fails drops all that holds
  its connections.  The error does not tell which rank is dead: a neighbour that failed first
  looks the same.

So after any failure all fail, and the next `coordinator_for` makes new connections.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import (
    AllreduceOptions,
    AllToAllOptions,
    PrefixStore,
    ProcessGroup,
    ProcessGroupGloo,
    Store,
    Work,
)

from bcpformat.engine.memory import Bytes
from bcpformat.errors import CoordinationError, ErrorCode, InvalidArgumentError
from bcpformat.model.manifest import Ints, ints
from bcpformat.torch.joining import RankNames, join
from bcpformat.torch.mailbox import Mailbox

if TYPE_CHECKING:
    from bcpformat.engine.coordinator import Coordinator

_ANSWER_S = 60.0
"""How long a store may be silent: many ranks may talk to it at once."""

_SLICE_S = 1.0
"""How long a wait may be deaf to Ctrl-C."""

_MARGIN_S = 5.0
"""How much longer than its time-out a sum may take to fail."""

_STEP_BYTES = 1 << 25
"""An exchange of more goes in several steps, each of about so many bytes a rank."""

_COORDINATORS: weakref.WeakKeyDictionary[ProcessGroup, TorchCoordinator]
_COORDINATORS = weakref.WeakKeyDictionary()


def coordinator_for(group: ProcessGroup | None, *, timeout_s: float = 300.0) -> Coordinator:
    """Return this rank's end of a process group; every rank of the group calls it.

    It is made once per group and lives as long as that, or until a sum fails.

    Args:
        group: The process group; None for the default one.
        timeout_s: How long to wait for the other ranks, where it has to be made.

    Raises:
        InvalidArgumentError: There is no such group, or this process is not in it.
        CoordinationError: Ranks did not come (``E_TIMEOUT``), named in the message and in
            `.ranks`; or the store or a rank is gone (``E_RANK_LOST``).
    """
    if not dist.is_initialized():
        text = "torch.distributed has no process group; call init_process_group first"
        raise InvalidArgumentError(text)
    known = dist.group.WORLD if group is None else group
    if not isinstance(known, ProcessGroup):
        raise InvalidArgumentError(f"this process is not in the group (it is {known!r})")
    try:
        ranks = dist.get_process_group_ranks(known)
    except KeyError:
        raise InvalidArgumentError(
            "the process group was destroyed; give one that is not"
        ) from None
    found = _COORDINATORS.get(known)
    if found is None or found.is_broken:
        found = _COORDINATORS[known] = join_store(
            known.get_group_store(), rank=known.rank(), global_ranks=ranks, timeout_s=timeout_s
        )
    return found


def join_store(
    store: Store,
    *,
    rank: int,
    global_ranks: list[int],
    timeout_s: float,
    answer_s: float = _ANSWER_S,
) -> TorchCoordinator:
    """Return this rank's end of a group that shares a store; every rank of the group calls it.

    Args:
        store: Any store of c10d; keys that begin with ``bcpformat/`` are taken.
        rank: This rank's position in the group.
        global_ranks: What each rank of the group is called in messages, by its position.
        timeout_s: How long to wait for the other ranks.
        answer_s: How long the store may take to answer one call, once the ranks have met.

    Raises:
        CoordinationError: As for `coordinator_for`.
    """
    size = len(global_ranks)
    names = RankNames(tuple(global_ranks))
    deadline = time.monotonic() + timeout_s
    mailbox = Mailbox(store, "bcpformat", size=size, answer_s=answer_s)
    name = join(mailbox, rank, names, timeout_s=timeout_s)
    gloo = None
    if size > 1:
        left_s = max(deadline - time.monotonic(), _MARGIN_S)
        gloo = _connect(mailbox, f"{name}/gloo", rank, size, left_s)
    return TorchCoordinator(mailbox, gloo, f"{name}/", rank, names)


def _connect(
    mailbox: Mailbox, prefix: str, rank: int, size: int, timeout_s: float
) -> ProcessGroupGloo:
    limit = timedelta(seconds=timeout_s)
    store = PrefixStore(prefix, mailbox.client)
    try:
        return mailbox.perform(
            lambda: ProcessGroupGloo(store, rank, size, limit), timeout_s=timeout_s + _MARGIN_S
        )
    except (TimeoutError, RuntimeError) as error:
        text = (
            f"the ranks met, but could not connect with gloo in {timeout_s:.0f} s: {_first(error)}"
        )
        raise CoordinationError(text, code=ErrorCode.RANK_LOST) from error


class TorchCoordinator:
    """One rank's end of a process group (see `Coordinator`); `coordinator_for` makes it.

    Thread safety: `total` and `exchange` are called from one thread, the others from any at once.

    Attributes:
        rank: This rank's position in the group, from 0.
        size: Ranks in the group.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        gloo: ProcessGroupGloo | None,
        prefix: str,
        rank: int,
        names: RankNames,
    ) -> None:
        self.rank = rank
        self.size = len(names.global_ranks)
        self._names = names
        self._mailbox = mailbox
        self._prefix = prefix
        self._gloo = gloo
        self._calls = 0
        self._what = "sum"  # what the call is, in messages
        self._is_whole = True
        self._failure: CoordinationError | None = None

    @property
    def is_broken(self) -> bool:
        """Whether a call was not finished, or the store is gone: then nothing mends it."""
        return not self._is_whole or self._mailbox.is_lost

    def describe(self, rank: int) -> str:
        """Return what to call a rank of the group in messages."""
        return self._names.describe(rank)

    def put(self, key: str, value: bytes) -> None:
        """Publish a value (see `Coordinator.put`).

        Raises:
            CoordinationError: The store of the group is gone (``E_RANK_LOST``), here and below.
        """
        self._mailbox.put(self._value(key), value)

    def take(self, key: str, *, timeout_s: float) -> bytes | None:
        """Return a value, waiting for it (see `Coordinator.take`)."""
        return self._mailbox.take(self._value(key), timeout_s=timeout_s)

    def forget(self, key: str) -> None:
        """Remove a value (see `Coordinator.forget`)."""
        self._mailbox.forget(self._value(key))

    def total(self, values: Ints, *, timeout_s: float) -> Ints:
        """Return the sum over all ranks (see `Coordinator.total`).

        After an error every further call raises, on every rank; a new coordinator is needed.

        Raises:
            CoordinationError: A rank did not come (``E_TIMEOUT``) or is gone (``E_RANK_LOST``); the
                message and `.ranks` name it where that can be known.
        """
        if self.size == 1:
            return values.copy()
        self._begin("sum")
        summed = torch.tensor(values, dtype=torch.int64)
        options = AllreduceOptions()

        def begin(gloo: ProcessGroupGloo, limit: timedelta) -> Work:
            options.timeout = limit
            # The stub lacks it: what a Backend can do is listed under ProcessGroup only.
            work: Work = gloo.allreduce([summed], options)  # type: ignore[attr-defined]
            return work

        self._perform(begin, time.monotonic(), timeout_s)
        result: Ints = summed.numpy()
        return result

    def exchange(self, parts: Sequence[Bytes], *, timeout_s: float) -> list[Bytes]:
        """Give every rank its part (see `Coordinator.exchange`); errors are those of `total`."""
        if self.size == 1:
            return list(parts)
        self._begin("exchange")
        start = time.monotonic()
        sizes = ints([len(part) for part in parts])
        largest = np.full(self.size, sizes.max())
        rows = np.stack((sizes, largest), axis=1).astype("<i8")
        row = rows[0].nbytes
        counted = self._step(list(rows.view(np.uint8)), [row] * self.size, start, timeout_s)
        found = np.concatenate(counted).view("<i8").reshape(-1, 2)
        out = [np.empty(nbytes, dtype=np.uint8) for nbytes in found[:, 0].tolist()]
        step = -(-_STEP_BYTES // self.size)
        for at in range(0, int(found[:, 1].max()), step):
            given = [part[at : at + step] for part in parts]
            taken = [part[at : at + step] for part in out]
            got = self._step(given, [len(part) for part in taken], start, timeout_s)
            for part, data in zip(taken, got, strict=True):
                part[...] = data
        return out

    def _step(
        self, parts: Sequence[Bytes], counts: list[int], start: float, timeout_s: float
    ) -> list[Bytes]:
        """Exchange parts of known sizes, all of them copied once."""
        given = torch.from_numpy(np.concatenate(parts))
        taken = torch.empty(sum(counts), dtype=torch.uint8)
        sizes = [len(part) for part in parts]
        options = AllToAllOptions()

        def begin(gloo: ProcessGroupGloo, limit: timedelta) -> Work:
            options.timeout = limit
            work: Work = gloo.alltoall_base(  # type: ignore[attr-defined]  # as allreduce
                taken, given, counts, sizes, options
            )
            return work

        self._perform(begin, start, timeout_s)
        return np.split(taken.numpy(), np.cumsum(counts)[:-1])

    def _begin(self, what: str) -> None:
        """Begin a call that all ranks come to."""
        if self._gloo is None or not self._is_whole:
            raise self._broken()
        self._what = what
        self._calls += 1
        self._say_here()

    def _perform(
        self,
        begin: Callable[[ProcessGroupGloo, timedelta], Work],
        start: float,
        timeout_s: float,
    ) -> None:
        """Do one operation of a call that began at `start`, or explain why it is not done."""
        assert self._gloo is not None
        left_s = max(start + timeout_s - time.monotonic(), 0.0)
        limit = timedelta(milliseconds=math.ceil(left_s * 1000) or 1)
        self._is_whole = False  # until it is done: Ctrl-C leaves it half done
        work: Work | None = begin(self._gloo, limit)
        assert work is not None
        error = _finish(work, start + timeout_s + _MARGIN_S)
        if error is not None:
            if work.is_completed():
                self._gloo = work = None  # closes the connections: nobody shall wait for this rank
            is_late = time.monotonic() - start >= timeout_s
            self._failure = self._explained(timeout_s, is_late=is_late)
            raise self._failure from error
        self._is_whole = True

    # ---- who is missing --------------------------------------------------------------------

    def _say_here(self) -> None:
        """Leave word that this rank has come to this call, and take away that of two before.

        All ranks have come to the one before, so nobody looks for the older any more.
        """
        self._mailbox.post(self._here(self._calls, self.rank), b"1")
        if self._calls > 2:
            self._mailbox.post(self._here(self._calls - 2, self.rank), None)

    def _explained(self, timeout_s: float, *, is_late: bool) -> CoordinationError:
        code = ErrorCode.TIMEOUT if is_late else ErrorCode.RANK_LOST
        try:
            code, missing = self._verdict(code, timeout_s)
        except CoordinationError as error:
            text = f"no {self._what} of {self.size} ranks within {timeout_s:g} s; {error.message}"
            return CoordinationError(text, code=code)
        return CoordinationError(self._text(code, missing, timeout_s), ranks=missing, code=code)

    def _verdict(self, code: ErrorCode, timeout_s: float) -> tuple[ErrorCode, list[int]]:
        """Return what the first rank that looked has found, or look.

        The ranks look one after the other, so that not all of them search at once; and all say the
        same.  Where a rank is gone, those that are merely late get some time to come.
        """
        patience_s = min(max(timeout_s / 20, 1.0), 15.0)
        turn_s = patience_s * self.rank / self.size
        if code is ErrorCode.RANK_LOST:
            turn_s += patience_s
        key = f"{self._prefix}found/{self._calls}"
        if self._mailbox.until(lambda: self._mailbox.has([key]), timeout_s=turn_s):
            found, _, ranks = self._mailbox.get(key).decode().partition(" ")
            return ErrorCode(found), [int(rank) for rank in ranks.split(",") if rank]
        here = [self._here(self._calls, rank) for rank in range(self.size)]
        missing = self._mailbox.absent(here)
        self._mailbox.set(key, f"{code.value} {','.join(map(str, missing))}".encode())
        return code, missing

    def _text(self, code: ErrorCode, missing: list[int], timeout_s: float) -> str:
        text = f"no {self._what} of {self.size} ranks"
        named = self._names.describe_all(missing)
        if self.rank in missing:
            return (
                f"{text}: the others stopped waiting before this one, {self.describe(self.rank)}, "
                "came; see what kept it, or raise the time-out"
            )
        if code is ErrorCode.TIMEOUT and missing:
            return (
                f"{text} within {timeout_s:g} s: {named} did not come; see what happens there, or "
                "raise the time-out"
            )
        if code is ErrorCode.TIMEOUT:
            return (
                f"{text} within {timeout_s:g} s although all came; see whether the network between "
                "them works, or raise the time-out"
            )
        if len(missing) == 1:
            return f"{text}: {named} is gone; see how that process ended"
        if missing:
            return f"{text}: at least one of {named} is gone; see how those processes ended"
        return f"{text}: one of them is gone, and which is not known; see how the processes ended"

    def _broken(self) -> CoordinationError:
        failure = self._failure
        if failure is None:
            return CoordinationError(
                f"an earlier {self._what} of this group was interrupted on this rank"
            )
        text = f"an earlier {self._what} of this group failed: {failure.message}"
        return CoordinationError(text, ranks=failure.ranks, code=failure.code)

    def _here(self, call: int, rank: int) -> str:
        return f"{self._prefix}here/{call}/{rank}"

    def _value(self, key: str) -> str:
        return f"{self._prefix}value/{key}"


def _finish(work: Work, deadline: float) -> RuntimeError | None:
    """Wait until an operation is done or the time is over; return its error.

    The error holds no frame: the operation would live in it, and with it the connections.
    """
    while not work.is_completed():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return RuntimeError("the operation did not keep its own time-out")
        with suppress(RuntimeError):  # this wait is over, or the operation failed: see below
            work.wait(timedelta(seconds=min(left_s, _SLICE_S) + 0.001))
    try:
        work.wait()
    except RuntimeError as error:
        return error.with_traceback(None)
    return None


def _first(error: BaseException) -> str:
    return str(error).partition("\n")[0]
