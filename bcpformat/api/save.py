"""`write`: a whole state of this process, durable when it returns."""

from __future__ import annotations

import os
from collections.abc import Callable

from bcpformat.api.failures import own_failures
from bcpformat.api.framework import frameworks
from bcpformat.engine.collector import paused_collector
from bcpformat.engine.options import WriteOptions
from bcpformat.engine.write import WriteReport, save
from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.leaves import LeafAdapter
from bcpformat.model.manifest import Node
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


def check_group(group: object) -> None:
    """Refuse a process group: this version saves and reads for one process.

    Raises:
        InvalidArgumentError: Code ``E_NOT_BUILT``.
    """
    if group is not None and group != "auto":
        text = f"group must be 'auto' or None in this version, got {group!r}"
        raise InvalidArgumentError(text, code=ErrorCode.NOT_BUILT)
    for library in frameworks():
        if group == "auto" and library.world_size() > 1:
            text = (
                f"this process is one of {library.world_size()} and saving together is not "
                "built yet; pass group=None to handle this process alone"
            )
            raise InvalidArgumentError(text, code=ErrorCode.NOT_BUILT)


@own_failures()
def write(
    location: Location,
    state: object,
    *,
    step: int | None = None,
    options: WriteOptions = DEFAULT_WRITE,
    group: object = "auto",
    progress: Callable[[int], None] | None = None,
) -> WriteReport:
    """Write a checkpoint and return when it is committed and durable.

    Args:
        location: A directory that does not hold a checkpoint, or a `Store`.
        state: Nested dicts, lists and tuples of torch tensors, numpy arrays, plain values,
            `PerRank` values and registered types.
        step: The training step.
        options: How to write.
        group: ``"auto"`` or None: this process alone.
        progress: Called with numbers of raw bytes as they are done, from any thread.

    Returns:
        What was written.

    Raises:
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
    check_group(group)
    if not isinstance(options, WriteOptions):
        raise InvalidArgumentError(f"options must be WriteOptions(...), got {options!r:.200}")
    with paused_collector():
        return save(
            open_store(location),
            encoded_state(state),
            step=step,
            rank=0,
            options=options,
            progress=progress if progress is not None else _silent,
        )


def _silent(_nbytes: int) -> None:
    """Show nothing."""
