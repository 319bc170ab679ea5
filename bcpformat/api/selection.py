"""Which names a read takes: patterns, and new names for saved ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from typing import TypeAlias

from bcpformat.errors import InvalidArgumentError

Filter: TypeAlias = str | Sequence[str] | Callable[[str], bool] | None
"""Shell-style patterns of names (``*`` crosses ``/``), or a function; None takes every name.

A pattern that matches the name of a container takes everything below it: ``"model"`` takes
``"model/w"``.
"""

Rename: TypeAlias = Mapping[str, str] | Callable[[str], str] | None
"""From a name in the template to the name in the checkpoint; names it lacks stay."""


def name_filter(chosen: Filter) -> Callable[[str], bool]:
    """Return the function that says whether a name is taken."""
    if chosen is None:
        return lambda _: True
    if callable(chosen):
        return chosen
    patterns = [chosen] if isinstance(chosen, str) else list(chosen)
    if not all(isinstance(p, str) for p in patterns):
        raise InvalidArgumentError(f"filter must be patterns or a function, got {chosen!r}")
    matches = [re.compile(translate(p)).match for p in patterns]
    matches += [re.compile(translate(p.rstrip("/") + "/*")).match for p in patterns]
    return lambda name: any(match(name) for match in matches)


def name_map(rename: Rename) -> Callable[[str], str]:
    """Return the function from a template's name to the checkpoint's."""
    if rename is None:
        return lambda name: name
    if callable(rename):
        return rename
    table = dict(rename)
    prefixes = sorted((k for k in table), key=len, reverse=True)

    def renamed(name: str) -> str:
        if name in table:
            return table[name]
        for prefix in prefixes:
            if name.startswith(prefix + "/"):
                return table[prefix] + name[len(prefix) :]
        return name

    return renamed
