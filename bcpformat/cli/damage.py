"""Damage in text: what is broken in one line, below it the first of the names it hits."""

from __future__ import annotations

from collections.abc import Sequence

from bcpformat.model.names import display

MAX_NAMES = 10
"""Names that are shown below one line; `--json` has all."""


def name_lines(names: Sequence[str]) -> list[str]:
    """Return names to list below what damages them, and how many more there are.

    Example:
        >>> name_lines([f"w{i}" for i in range(12)])[-2:]
        ['w9', '... and 2 more (--json has all)']
    """
    lines = [display(name) for name in names[:MAX_NAMES]]
    if len(names) > MAX_NAMES:
        lines.append(f"... and {len(names) - MAX_NAMES} more (--json has all)")
    return lines
