"""What a template and a checkpoint do not agree on, in words that help."""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from bcpformat.errors import ErrorCode, MismatchError, Problem

SHOWN = 40
"""Problems that an error's message lists; `problems` has all."""
NEAR_MISSES = 20
"""Missing names for which similar saved names are looked up."""
NEIGHBOURS = 16
"""Names looked at on each side of where a missing one would stand."""


def mismatch(where: str, message: str) -> Problem:
    """Return one difference between a template and a checkpoint."""
    return Problem(code=ErrorCode.MISMATCH, where=where, message=message)


class Names:
    """Names among which similar ones are looked for.

    Comparing with each of 20,000 names takes seconds.  A similar name nearly always shares its
    start or its end, and those that share the longest stand next to it in order.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._forward = sorted(names)
        self._backward = sorted(name[::-1] for name in self._forward)

    def near(self, name: str) -> list[str]:
        """Return the names with the longest starts and ends in common, most similar first."""
        found = dict.fromkeys(_around(self._forward, name))
        found |= dict.fromkeys(other[::-1] for other in _around(self._backward, name[::-1]))
        return difflib.get_close_matches(name, found, n=len(found) or 1, cutoff=0)


def _around(names: list[str], name: str) -> list[str]:
    at = bisect_left(names, name)
    return names[max(at - NEIGHBOURS, 0) : at + NEIGHBOURS]


def missing(names: Sequence[str], saved: Names) -> list[Problem]:
    """Return a problem for each name that the checkpoint lacks, with similar names it has."""
    found = []
    for row, name in enumerate(names):
        near = saved.near(name) if row < NEAR_MISSES else []
        near = difflib.get_close_matches(name, near, n=3)
        hint = f"; similar: {', '.join(repr(n) for n in near)}" if near else ""
        found.append(mismatch(name, f"missing: the checkpoint does not have it{hint}"))
    return found


def unexpected(names: Iterable[str]) -> list[Problem]:
    """Return a problem for each selected name that the template lacks."""
    return [mismatch(n, "unexpected: the template does not have it") for n in names]


def prefix_hint(absent: Sequence[str], extra: Sequence[str]) -> str:
    """Return a sentence if one inserted or dropped prefix explains most missing names, or ""."""
    if not absent or not extra:
        return ""
    others, names = set(extra), Names(extra)
    for want in absent[:3]:
        for have in names.near(want) if want else ():
            is_longer = len(have) > len(want)
            cut = _inserted(have, want) if is_longer else _inserted(want, have)
            if cut is None:
                continue
            head, piece = cut
            hits = sum(_moved(name, head, piece, insert=is_longer) in others for name in absent)
            if 2 * hits > len(absent):
                whose = "the checkpoint's" if is_longer else "the template's"
                place = f" after {head!r}" if head else ""
                return (
                    f"{hits} of {len(absent)} missing names would match: {whose} names have "
                    f"the extra prefix {piece!r}{place}; pass rename="
                )
    return ""


def part_hint(names: Sequence[str], extra: Sequence[str]) -> str:
    """Return a sentence if a template is just a part of the checkpoint, or ""."""
    tops = sorted({name.split("/", 1)[0] for name in names})
    if not extra or not tops or any(name.split("/", 1)[0] in tops for name in extra):
        return ""
    shown = repr(tops[0]) if len(tops) == 1 else repr(tops[:5])
    return f"to read only what the template has, pass filter={shown}"


def _moved(name: str, head: str, piece: str, *, insert: bool) -> str | None:
    """Return a name with `piece` put in or taken out after `head`, None if it is not there."""
    before = head if insert else head + piece
    if not name.startswith(before):
        return None
    return head + (piece if insert else "") + name[len(before) :]


def _inserted(longer: str, shorter: str) -> tuple[str, str] | None:
    """Return after what and what was put into `shorter` to make `longer`, at a part's start."""
    extra = len(longer) - len(shorter)
    starts = [0, *(i + 1 for i, c in enumerate(shorter) if c == "/")]
    for at in starts:
        if extra and longer[:at] == shorter[:at] and longer[at + extra :] == shorter[at:]:
            return shorter[:at], longer[at : at + extra]
    return None


def mismatch_error(problems: Sequence[Problem], hint: str) -> MismatchError:
    """Return one error that lists the problems."""
    lines = [f"  {p.where}: {p.message}" for p in problems[:SHOWN]]
    if len(problems) > SHOWN:
        lines.append(f"  ... and {len(problems) - SHOWN} more, all in .problems")
    head = f"template and checkpoint differ in {len(problems)} places"
    text = "\n".join([head, *lines, *([f"  hint: {hint}"] if hint else [])])
    return MismatchError(text, problems=problems)
