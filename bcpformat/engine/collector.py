"""The cyclic garbage collector, kept still while many small objects are made.

A state of 20,000 tensors makes some hundred thousand objects, none of them garbage, and the
collector would look at all of them again and again: half of the cost of a small tensor.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
_pauses = 0
_was_enabled = False


@contextmanager
def paused_collector() -> Iterator[None]:
    """Keep the collector still; it goes on when the last of overlapping pauses ends."""
    global _pauses, _was_enabled  # noqa: PLW0603  # the collector is process-wide too
    with _lock:
        if not _pauses:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if not _pauses and _was_enabled:
                gc.enable()
