"""`write`: the state of this process, or of a group of them, durable when it returns."""

from __future__ import annotations

import os
from collections.abc import Callable

from bcpformat.api.failures import own_failures
from bcpformat.api.framework import frameworks
from bcpformat.api.groups import coordinator_of
from bcpformat.engine.collector import paused_collector
from bcpformat.engine.options import WriteOptions
from bcpformat.engine.write import WriteReport, save
from bcpformat.errors import InvalidArgumentError
from bcpformat.model.leaves import LeafAdapter
from bcpformat.model.manifest import Node
from bcpformat.model.progress import Progress, silent
from bcpformat.model.state import EncodedState, encode_state
from bcpformat.model.user_types import default_types
from bcpformat.storage import Store, open_store

Location = str | os.PathLike[str] | Store
DEFAULT_WRITE = WriteOptions()


def encoded_state(state: object) -> EncodedState:
    """Return a state as nodes and leaves, by all libraries this process has.

    Raises:
        InvalidArgumentError: A value has no form; the message has its path.
    """
    adapters: dict[type, LeafAdapter] = {}
    encoders: dict[type, Callable[..., Node]] = {}
    for library in frameworks():
        adapters |= library.adapters
        encoders |= library.encoders
    return encode_state(state, adapters=adapters, encoders=encoders, types=default_types())


@own_failures()
def write(
    location: Location,
    state: object,
    *,
    step: int | None = None,
    options: WriteOptions = DEFAULT_WRITE,
    group: object = "auto",
    progress: Progress | None = None,
) -> WriteReport:
    """Write a checkpoint and return when it is committed and durable.

    Args:
        location: A directory that does not hold a checkpoint, or a `Store`.
        state: Nested dicts, lists and tuples of torch tensors, DTensors, numpy arrays, `Shard` and
            `Shards`, plain values, `PerRank` values and registered types: what this rank has.
        step: The training step.
        options: How to write.
        group: The ranks that save one checkpoint together, each calling this: ``"auto"``: the
            default process group if there is one; a process group; a `Coordinator`; None: this
            process alone.
        progress: Called with numbers of raw bytes as they are done, from any thread.

    Returns:
        What this rank wrote.

    Raises:
        DisagreementError: Ranks hold different things where they must hold the same.
        CoordinationError: A rank did not come in time (``E_TIMEOUT``) or is gone; nothing was
            published.  What one rank raises, all do.
        ObjectExistsError: There is a checkpoint already (``E_EXISTS``); nothing is overwritten.
        InvalidArgumentError: A value of the state has no form (``E_NO_FORM``), with its path.
        StorageError: The store failed; nothing was published.
        CommitError: Another save won, or the outcome is unknown (``E_UNCERTAIN``).

    Example:
        >>> import bcpformat, numpy
        >>> store = bcpformat.MemoryStore()
        >>> report = bcpformat.write(store, {"w": numpy.arange(6.0), "epoch": 3}, step=10)
        >>> bcpformat.read(store, as_numpy=True)
        {'w': array([0., 1., 2., 3., 4., 5.]), 'epoch': 3}
    """
    if not isinstance(options, WriteOptions):
        raise InvalidArgumentError(f"options must be WriteOptions(...), got {options!r:.200}")
    with paused_collector():
        return save(
            open_store(location),
            lambda: encoded_state(state),
            step=step,
            coordinator=coordinator_of(group, timeout_s=options.timeout_s),
            options=options,
            progress=progress if progress is not None else silent,
        )
