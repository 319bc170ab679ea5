"""Names that a pattern without a match may have meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

MAX_COMPARED = 5000
"""Names compared letter by letter; a checkpoint may have a million."""

_WILD = re.compile(r"[*?\[\]]+")


def near_names(pattern: str, names: Iterable[str], *, count: int = 3) -> list[str]:
    """Return the first names that hold the longest word of a pattern, else those spelled like it.

    Example:
        >>> near_names("weight", ["model/0.weight", "model/0.bias", "lr"])
        ['model/0.weight']
        >>> near_names("modle/*", ["model", "model/0.weight", "lr"])
        ['model']
    """
    from difflib import get_close_matches  # needed after a mistake only

    names = [name for name in names if name]
    word = max(_WILD.split(pattern), key=len).strip("/")
    if not word:
        return []
    found = list(islice((name for name in names if word.lower() in name.lower()), count))
    if found:
        return found
    segments = word.count("/") + 1
    meant: dict[str, str] = {}
    for name in names[:MAX_COMPARED]:
        parts = name.split("/")
        meant.setdefault("/".join(parts[-segments:]), name)
        above = "/".join(parts[:segments])
        meant[above] = above
    close = get_close_matches(word, meant, n=count)
    return list(dict.fromkeys(meant[spelled] for spelled in close))
