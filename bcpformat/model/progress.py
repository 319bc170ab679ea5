"""How long work says how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[int], None]
"""Called with numbers of bytes as they are done, from any thread."""


def silent(_nbytes: int) -> None:
    """Show nothing: the progress of a caller who asked for none."""
