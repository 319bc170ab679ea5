"""What a template and a checkpoint do not agree on, in words that help."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from bcpformat.errors import ErrorCode, MismatchError, Problem

SHOWN = 40
"""Problems that an error's message lists; `problems` has all."""
NEAR_MISSES = 20
"""Missing names for which similar saved names are looked up."""


def mismatch(where: str, message: str) -> Problem:
    """Return one difference between a template and a checkpoint."""
    return Problem(code=ErrorCode.MISMATCH, where=where, message=message)


def missing(names: Sequence[str], saved: Iterable[str]) -> list[Problem]:
    """Return a problem for each name that the checkpoint lacks, with similar names it has."""
    known = sorted(saved)
    found = []
    for row, name in enumerate(names):
        near = difflib.get_close_matches(name, known, n=3) if row < NEAR_MISSES else []
        hint = f"; similar: {', '.join(repr(n) for n in near)}" if near else ""
        found.append(mismatch(name, f"missing: the checkpoint does not have it{hint}"))
    return found


def unexpected(names: Iterable[str]) -> list[Problem]:
    """Return a problem for each selected name that the template lacks."""
    return [mismatch(n, "unexpected: the template does not have it") for n in names]


def prefix_hint(absent: Sequence[str], extra: Iterable[str]) -> str:
    """Return a sentence if one inserted or dropped prefix explains most missing names, or ""."""
    others = set(extra)
    if not absent or not others:
        return ""
    for want in absent[:3]:
        near = difflib.get_close_matches(want, sorted(others), n=2, cutoff=0.3)
        for have in [*near, *sorted(o for o in others if o.endswith(want))[:2]]:
            for longer, shorter, words in (
                (have, want, "the checkpoint's names have"),
                (want, have, "the template's names have"),
            ):
                cut = _inserted(longer, shorter)
                if cut is None:
                    continue
                at, piece = cut
                head = shorter[:at]
                if longer is have:
                    hits = sum(
                        n.startswith(head) and head + piece + n[at:] in others for n in absent
                    )
                else:
                    hits = sum(
                        n.startswith(head + piece) and head + n[at + len(piece) :] in others
                        for n in absent
                    )
                if 2 * hits > len(absent):
                    place = f" after {head!r}" if head else ""
                    return (
                        f"{hits} of {len(absent)} missing names would match: {words} "
                        f"the extra prefix {piece!r}{place}; pass rename="
                    )
    return ""


def _inserted(longer: str, shorter: str) -> tuple[int, str] | None:
    """Return where and what was inserted into `shorter` to make `longer`, at a segment's start."""
    extra = len(longer) - len(shorter)
    if extra <= 0:
        return None
    starts = [0] + [i + 1 for i, c in enumerate(shorter) if c == "/"]
    for at in starts:
        if longer[:at] == shorter[:at] and longer[at + extra :] == shorter[at:]:
            return at, longer[at : at + extra]
    return None


def mismatch_error(problems: Sequence[Problem], hint: str) -> MismatchError:
    """Return one error that lists the problems."""
    lines = [f"  {p.where}: {p.message}" for p in problems[:SHOWN]]
    if len(problems) > SHOWN:
        lines.append(f"  ... and {len(problems) - SHOWN} more, all in .problems")
    head = f"template and checkpoint differ in {len(problems)} places"
    text = "\n".join([head, *lines, *([f"  hint: {hint}"] if hint else [])])
    return MismatchError(text, problems=problems)
