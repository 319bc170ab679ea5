"""One error for everything that ranks do not agree on."""

from __future__ import annotations

from collections.abc import Sequence

from bcpformat.errors import DisagreementError, Problem

MOST_PROBLEMS = 100
"""Problems of one merge that are kept; nobody reads more."""

_SHOWN = 40
"""Problems that the message lists."""


def disagreement(problems: Sequence[Problem]) -> DisagreementError:
    """Return one error that lists the problems, of which there is at least one."""
    lines = [f"{p.where}: {p.message}" if p.where else p.message for p in problems]
    if len(lines) == 1:
        return DisagreementError(lines[0], problems=problems)
    text = f"ranks that save together differ in {len(lines)} places"
    if len(lines) >= MOST_PROBLEMS:
        text = f"ranks that save together differ in {MOST_PROBLEMS} places or more"
    shown = [text, *(f"  {line}" for line in lines[:_SHOWN])]
    if len(lines) > _SHOWN:
        shown.append(f"  ... and {len(lines) - _SHOWN} more, all in .problems")
    return DisagreementError("\n".join(shown), problems=problems)
