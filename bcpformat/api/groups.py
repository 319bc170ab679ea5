"""Which ranks a call is for: a group of processes, or this one alone."""

from __future__ import annotations

from typing import cast

from bcpformat.api.framework import frameworks
from bcpformat.engine.coordinator import Coordinator, SoloCoordinator
from bcpformat.errors import InvalidArgumentError

_METHODS = ("total", "exchange", "put", "take", "forget")


def coordinator_of(group: object, *, timeout_s: float) -> Coordinator:
    """Return this process's end of a group.

    Args:
        group: ``"auto"``: the default process group if there is one; a process group of a library
            that this process has imported; a `Coordinator`; None: this process alone.
        timeout_s: How long to wait for the other ranks, if they have not met before.

    Raises:
        InvalidArgumentError: It is none of these, or this process is not in it.
        CoordinationError: A rank did not come; the message names it.
    """
    if group is None:
        return SoloCoordinator()
    if all(callable(getattr(group, name, None)) for name in _METHODS):
        return cast(Coordinator, group)
    for library in frameworks():
        found = library.coordinator(group, timeout_s)
        if found is not None:
            return found
    if group == "auto":
        return SoloCoordinator()
    text = "group must be 'auto', None, a process group or a Coordinator, got "
    raise InvalidArgumentError(f"{text}{group!r:.200}")
