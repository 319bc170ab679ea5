"""Failures of what the package stands on, reported under its own codes (BCP-ERR-002)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bcpformat.errors import ErrorCode, LimitError


@contextmanager
def own_failures() -> Iterator[None]:
    """Raise ours where the interpreter or a library ran out of memory or stack.

    It decorates the functions that users call.

    Raises:
        LimitError: ``E_BUDGET`` for memory, ``E_LIMIT`` for the stack.

    Example:
        >>> with own_failures():
        ...     raise MemoryError
        Traceback (most recent call last):
        bcpformat.errors.LimitError: not enough memory; read less, or set a budget [E_BUDGET]
    """
    try:
        yield
    except MemoryError as error:
        detail = f": {error}" if str(error) else ""
        text = f"not enough memory{detail}; read less, or set a budget"
        raise LimitError(text, code=ErrorCode.BUDGET) from error
    except RecursionError as error:
        text = "the stack of this thread is exhausted; call from a function that is less deep"
        raise LimitError(text, code=ErrorCode.LIMIT) from error
