"""`read`: a whole state, or a template filled by one process or by the ranks of a group."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from bcpformat.api.failures import own_failures
from bcpformat.api.groups import coordinator_of
from bcpformat.api.into import TemplateReader
from bcpformat.api.load import read_whole
from bcpformat.api.opened import DEFAULT_READ, Checkpoint
from bcpformat.api.per_rank import PerRankRules, Rule
from bcpformat.api.save import Location
from bcpformat.api.selection import Filter, Rename
from bcpformat.engine.collector import paused_collector
from bcpformat.engine.coordinator import Coordinator
from bcpformat.engine.meeting import (
    Meeting,
    are_equal,
    convene,
    in_step,
    with_squares,
    words_of,
)
from bcpformat.engine.options import ReadOptions
from bcpformat.errors import DisagreementError, InvalidArgumentError
from bcpformat.model.manifest import Ints, ints
from bcpformat.model.progress import Progress, silent


@own_failures()
def read(
    location: Location,
    *,
    into: object = None,
    filter: Filter = None,  # the word that users know
    rename: Rename = None,
    strict: bool = True,
    cast: Any = False,  # Any: checked here: False, True or "any"
    as_numpy: bool = False,
    options: ReadOptions = DEFAULT_READ,
    per_rank: Rule | Mapping[str, Rule] | None = None,
    group: object = "auto",
    progress: Progress | None = None,
) -> Any:  # Any: whatever was written
    """Read a checkpoint, every block verified.

    Args:
        location: A directory with a checkpoint, or a `Store`.
        into: A template: its tensors are filled in place, its plain values replaced.  DTensors,
            `Shard` and `Shards` are this rank's part of a tensor; tensors on the meta device are
            replaced by new ones.
        filter: Names to read (see `selection.Filter`); None reads all.
        rename: From names of the template to names of the checkpoint.
        strict: Raise one error with every difference before anything is changed; False reads
            what fits and returns the differences as a list, whose `state` is the result.
        cast: Convert data types: True among floats, and to a wider type of the same kind;
            ``"any"`` between all numbers, but never by dropping an imaginary part.
        as_numpy: Return numpy arrays in place of torch tensors; only without `into`.
        options: How to read.
        per_rank: What becomes of per-rank values when another number of ranks reads them than wrote
            them: a rule for all, or rules by name (see `bcpformat.per_rank`).
        group: With `into`, the ranks that read together, each calling this: ``"auto"``: the default
            process group if there is one; a process group; a `Coordinator`; None: this process
            alone.  A name is unexpected only if no rank's template has it, and what one rank
            raises, all do.
        progress: Called with numbers of bytes as they are done, from any thread.

    Returns:
        The whole state with new tensors in host memory, or `into` itself; with `strict` False a
        `Mismatches`.

    Raises:
        InvalidArgumentError: Arguments do not go together, or a filter selects nothing.
        LimitError: The budget does not allow it (``E_BUDGET``), or the manifest is above a limit.
        StorageError: The store failed.
        MismatchError: Template and checkpoint differ; nothing has been changed.
        FormatError: Something does not verify; `.changed` names the destinations that may have
            changed.
        ObjectNotFoundError: There is no checkpoint, or a data file is missing.
    """
    if cast not in (False, True, "any"):
        raise InvalidArgumentError(f"cast must be False, True or 'any', got {cast!r}")
    shown = progress if progress is not None else silent
    if into is None:
        if rename is not None or not strict or cast or per_rank is not None:
            text = "rename, strict=False, cast and per_rank describe a template; pass into="
            raise InvalidArgumentError(text)
        with paused_collector(), Checkpoint(location, options=options) as opened:
            return read_whole(opened.reader, chosen=filter, as_numpy=as_numpy, progress=shown)
    if as_numpy:
        raise InvalidArgumentError("as_numpy has no meaning with into=")
    rules = PerRankRules(per_rank)
    coordinator = coordinator_of(group, timeout_s=options.timeout_s)
    with paused_collector(), ExitStack() as stack:
        opened, meeting = _opened(location, options, coordinator, stack)
        with in_step(meeting):
            reader = TemplateReader(
                opened.reader,
                chosen=filter,
                rename=rename,
                cast=cast,
                rules=rules,
                rank=coordinator.rank,
                size=coordinator.size,
                progress=shown,
            )
        return reader.read(into, strict=strict, meeting=meeting)


def _opened(
    location: Location, options: ReadOptions, coordinator: Coordinator, stack: ExitStack
) -> tuple[Checkpoint, Meeting | None]:
    """Open a checkpoint on every rank of a group, and see that it is the same one."""
    if coordinator.size == 1:
        return stack.enter_context(Checkpoint(location, options=options)), None
    opened: list[Checkpoint] = []

    def prepare() -> Ints:
        opened.append(stack.enter_context(Checkpoint(location, options=options)))
        identity = opened[0].outline.root.attempt_id
        return ints(with_squares([*words_of(identity), int(options.shared)]))

    meeting, sums = convene(coordinator, prepare, width=6, timeout_s=options.timeout_s)
    *are_same, is_shared_alike = are_equal(sums.tolist(), meeting.size)
    if not is_shared_alike:
        text = f"shared must be the same on all ranks, rank {meeting.rank} has {options.shared}; "
        text += "give all of them the same ReadOptions"
        raise DisagreementError(text)
    if not all(are_same):
        found = opened[0].outline.root.attempt_id.hex()
        text = f"the ranks of the group read different checkpoints, rank {meeting.rank} {found}"
        raise DisagreementError(text)
    return opened[0], meeting
