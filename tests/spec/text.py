"""The text of the spec, taken apart for the tests of it."""

from __future__ import annotations

import re
from pathlib import Path

from spec import generate

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = generate.TEXT.read_text(encoding="utf-8")
REQUIREMENTS = generate.requirements(TEXT)

_FENCE = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"([0-9a-f]{4})  ((?:[0-9a-f]{2} )*[0-9a-f]{2}|00 times [0-9]+)(?:  +(.*))?")


def fenced(language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return [match[2] for match in _FENCE.finditer(TEXT) if match[1] == language]


def without_fences() -> str:
    """Return the text without its fenced blocks."""
    return _FENCE.sub("", TEXT)


def table_after(heading: str) -> list[list[str]]:
    """Return the rows, without the head, of the first table after some text."""
    lines = TEXT[TEXT.index(heading) :].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def bytes_of(listing: str) -> bytes:
    """Return the bytes that a listing shows, after checking its positions."""
    data = b""
    for line in listing.splitlines():
        match = _LINE.fullmatch(line)
        assert match is not None, line
        assert int(match[1], 16) == len(data), line
        times = re.fullmatch(r"00 times ([0-9]+)", match[2])
        data += bytes(int(times[1])) if times else bytes.fromhex(match[2])
    return data
