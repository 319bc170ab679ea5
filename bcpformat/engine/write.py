"""One save of one rank: agree, gather, write data files, say what they hold (spec 14)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

import numpy as np

from bcpformat.engine.agree import agree
from bcpformat.engine.commit import LEAD, commit
from bcpformat.engine.coordinator import Coordinator
from bcpformat.engine.data_files import write_data_files
from bcpformat.engine.gather import gather, held_pieces
from bcpformat.engine.meeting import Meeting
from bcpformat.engine.options import WriteOptions
from bcpformat.engine.part import Part, ReplicaChecks
from bcpformat.engine.part_rows import part_of, replica_checks
from bcpformat.engine.replicas import replica_digests
from bcpformat.errors import (
    BcpError,
    InvalidArgumentError,
    ObjectExistsError,
    ObjectNotFoundError,
)
from bcpformat.model.limits import MAX_INTEGER
from bcpformat.model.manifest import (
    DATA_PREFIX,
    MANIFEST_KEY,
    Value,
)
from bcpformat.model.progress import Progress
from bcpformat.model.state import EncodedState
from bcpformat.plan.assign import Assignment
from bcpformat.plan.layout import Layout, layout_of
from bcpformat.storage.store import Store
from bcpformat.wire import check_user


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """What a save wrote.

    Attributes:
        attempt_id: 16 bytes.
        raw_bytes: Raw bytes of all pieces.
        stored_bytes: Bytes of all runs as stored.
        manifest_bytes: Bytes of the manifest.
        files: Keys of the data files.
    """

    attempt_id: bytes
    raw_bytes: int
    stored_bytes: int
    manifest_bytes: int
    files: tuple[str, ...]

    def __repr__(self) -> str:
        sizes = f"raw_bytes={self.raw_bytes}, stored_bytes={self.stored_bytes}, "
        sizes += f"manifest_bytes={self.manifest_bytes}, files={len(self.files)}"
        return f"WriteReport(attempt_id={self.attempt_id.hex()}, {sizes})"


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A save that all ranks have agreed on; from here on none waits for another to go on.

    Attributes:
        meeting: That of the ranks.
        state: This rank's state.
        plan: What it holds of it and what it stores of that; None: all.
        step: The training step.
    """

    meeting: Meeting
    state: EncodedState
    plan: tuple[Layout, Assignment] | None
    step: int | None


def save(
    store: Store,
    make_state: Callable[[], EncodedState],
    *,
    step: int | None,
    coordinator: Coordinator,
    rank: int | None = None,
    options: WriteOptions,
    progress: Progress,
) -> WriteReport:
    """Write a checkpoint and return when it is committed and durable, on every rank.

    Args:
        store: Where its prefix is, the same for all ranks.
        make_state: Makes this rank's state, encoded; it may fail.
        step: The training step.
        coordinator: This rank's end of the group that saves together.
        rank: The number under which this process's per-rank values go; by default its rank.
        options: How to write.
        progress: Called with numbers of raw bytes as they are done, from any thread.

    Raises:
        ObjectExistsError: A checkpoint is there already; nothing is ever overwritten.
        DisagreementError: Ranks hold different things where they must hold the same.
        CoordinationError: A rank did not come; the message names it.
        CommitError: The data is written but the manifest could not be published.
        StorageError: The store failed; nothing was published.
    """
    prepared = _prepare(store, make_state, step, coordinator, options)
    meeting = prepared.meeting
    number = meeting.rank if rank is None else rank
    part: Part | None = None
    with ExitStack() as undo:
        try:
            part = _write_part(store, prepared, number, options, progress, undo)
        except BaseException as error:
            if meeting.size == 1:
                raise
            meeting.fail("part", meeting.rank, error)
            if not isinstance(error, BcpError):
                if meeting.rank == LEAD:  # or the others would wait for an outcome
                    meeting.announce(error)
                raise
        nbytes = commit(store, meeting, part, step=prepared.step, options=options, undo=undo)
    assert part is not None  # without it nothing is committed
    return WriteReport(
        attempt_id=meeting.id,
        raw_bytes=part.raw_bytes,
        stored_bytes=int(part.runs.stored.sum()),
        manifest_bytes=nbytes,
        files=tuple(DATA_PREFIX + row.name for row in part.files),
    )


def _prepare(
    store: Store,
    make_state: Callable[[], EncodedState],
    step: int | None,
    coordinator: Coordinator,
    options: WriteOptions,
) -> _Prepared:
    """Agree with all ranks on what is saved and who stores what."""
    if coordinator.size == 1:
        checked, state = _checked(store, make_state, step, options, is_lead=True)
        meeting = Meeting(coordinator, os.urandom(16), timeout_s=options.timeout_s)
        return _Prepared(meeting, state, None, checked)
    made: list[tuple[int | None, EncodedState, Layout]] = []

    def propose() -> tuple[Layout, Mapping[str, Value]]:
        is_lead = coordinator.rank == 0
        checked, state = _checked(store, make_state, step, options, is_lead=is_lead)
        layout = layout_of(state)
        if options.replicas == "full":  # objects are compared whole anyway
            objects = np.arange(len(layout.names)) >= len(state.names)
            layout = replace(layout, trusted=objects)
        made.append((checked, state, layout))
        return layout, _call(store, checked, options)

    meeting, assignment = agree(coordinator, propose, timeout_s=options.timeout_s)
    ((checked, state, layout),) = made
    return _Prepared(meeting, state, (layout, assignment), checked)


def _checked(
    store: Store,
    make_state: Callable[[], EncodedState],
    step: object,
    options: WriteOptions,
    *,
    is_lead: bool,
) -> tuple[int | None, EncodedState]:
    """Return step and state, or refuse the save."""
    checked = _checked_step(step)
    check_user(options.user)
    if is_lead:
        _refuse_existing(store)
    return checked, make_state()


def _call(store: Store, step: int | None, options: WriteOptions) -> dict[str, Value]:
    """Return what all ranks of one save must be called with alike."""
    return {
        "location": store.describe(),
        "step": step if step is not None else "none",
        "codec": options.codec,
        "replicas": options.replicas,
        "disagree": options.disagree,
        "user": dict(options.user),
    }


def _checked_step(step: object) -> int | None:
    """Return a step as an int, those of numpy too.

    Raises:
        InvalidArgumentError: It is no integer of the format, or a bool.
    """
    if step is None:
        return None
    if not isinstance(step, (int, np.integer)) or isinstance(step, bool):
        raise InvalidArgumentError(f"step must be an integer or None, got {step!r:.200}")
    if not 0 <= step <= MAX_INTEGER:
        raise InvalidArgumentError(f"step must be 0 to 2^53-1, got {step}")
    return int(step)


def _refuse_existing(store: Store) -> None:
    with suppress(ObjectNotFoundError):
        store.read(MANIFEST_KEY, nbytes=1)
        raise ObjectExistsError(
            f"{store.describe()} holds a checkpoint already and nothing is ever overwritten; "
            "write to another location, or delete that checkpoint first",
            key=MANIFEST_KEY,
        )


def _write_part(
    store: Store,
    prepared: _Prepared,
    rank: int,
    options: WriteOptions,
    progress: Progress,
    undo: ExitStack,
) -> Part:
    """Write this rank's data files, and return what they hold."""
    meeting, state = prepared.meeting, prepared.state
    assignment: Assignment | None = None
    checks = ReplicaChecks()
    if prepared.plan is not None:
        layout, assignment = prepared.plan
        replicas = held_pieces(state, assignment.check_piece)
        digests = replica_digests(replicas, seed=meeting.id, replicas=options.replicas)
        checks = replica_checks(layout, assignment, digests)
    gathered = gather(state, assignment, options.tile)
    written = write_data_files(
        store,
        gathered.sources,
        gathered.item,
        attempt_id=meeting.id,
        label=f"{meeting.rank:06d}",
        options=options,
        progress=progress,
        undo=undo,
        block_log2=gathered.block_log2,
    )
    return part_of(
        state, gathered, written, checks, rank=meeting.rank, number=rank, attempt_id=meeting.id
    )
