"""What a call raises, as a value that goes to the test."""

from __future__ import annotations

from collections.abc import Callable

from bcpformat.errors import BcpError


def error_of(act: Callable[[], object]) -> BcpError | None:
    """Return the error of ours that a call raises, None if it returns."""
    try:
        act()
    except BcpError as error:
        return error
    return None
