"""Which names a read takes: patterns, and new names for saved ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import translate
from typing import Any, TypeAlias

from bcpformat.errors import InvalidArgumentError

Filter: TypeAlias = str | Collection[str] | Callable[[str], bool] | None
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
    patterns: Any = [chosen] if isinstance(chosen, str) else chosen  # Any: looked at
    if not isinstance(patterns, Iterable) or not all(isinstance(p, str) for p in patterns):
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
    given: Any = rename  # Any: looked at
    if not isinstance(given, Mapping) or not all(
        isinstance(name, str) for pair in given.items() for name in pair
    ):
        text = f"rename must be a mapping of names to names or a function, got {rename!r:.200}"
        raise InvalidArgumentError(text)
    table: dict[str, str] = dict(given)
    prefixes = sorted(table, key=len, reverse=True)

    def renamed(name: str) -> str:
        if name in table:
            return table[name]
        for prefix in prefixes:
            if name.startswith(prefix + "/"):
                return table[prefix] + name[len(prefix) :]
        return name

    return renamed
