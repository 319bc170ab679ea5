"""Pairs of layouts, saved in one and loaded in the other; all of them are a table in the README.

python -m tests.distributed.layout_table [--readme README.md]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.distributed.layout_jobs import LAYOUTS, MOST_RANKS, load, save
from tests.distributed.processes import Job, Outcome, spawn, values

Pair = tuple[str, str]
"""Names of the layout that is saved and of the one that is loaded."""

_BEGIN, _END = "<!-- layouts -->\n", "<!-- end of layouts -->\n"
_ROW = re.compile(r"^\| (\d+)\. (.+?) \|(.*)\|$", re.MULTILINE)
_TIMEOUT_S = 3600.0


def matrix_jobs(pairs: Sequence[Pair], place: str) -> list[Job]:
    """Return the jobs that save and load pairs of layouts, for `MOST_RANKS` processes.

    Process 0 does all of them, so that no load begins before its save has ended.
    """
    saved = dict.fromkeys(saved for saved, _ in pairs)
    places = {name: f"{place}/{number}" for number, name in enumerate(saved)}
    jobs = [Job(save, (name, places[name]), _ranks(name)) for name in saved]
    for name in dict.fromkeys(loaded for _, loaded in pairs):
        own = {s: places[s] for s, loaded in pairs if loaded == name}
        jobs.append(Job(load, (name, own), _ranks(name)))
    return jobs


def _ranks(name: str) -> tuple[int, ...]:
    return tuple(range(LAYOUTS[name].ranks))


def matrix(pairs: Sequence[Pair], outcomes: Sequence[Sequence[Outcome]]) -> dict[Pair, str]:
    """Return for each pair what is wrong, on the lowest rank that found anything; "" if nothing.

    Args:
        pairs: The layouts saved and loaded.
        outcomes: Those of `matrix_jobs`.
    """
    saves = list(dict.fromkeys(saved for saved, _ in pairs))
    loads = list(dict.fromkeys(loaded for _, loaded in pairs))
    names = [*saves, *loads]
    done = [
        values(outcome[: LAYOUTS[name].ranks])
        for name, outcome in zip(names, outcomes, strict=True)
    ]
    refused = {
        name: next(filter(None, found), "") for name, found in zip(saves, done, strict=False)
    }
    read = dict(zip(loads, done[len(saves) :], strict=True))
    found = {}
    for saved, loaded in pairs:
        ranks = (
            f"rank {rank}: {'; '.join(problems[saved][:4])}"
            for rank, problems in enumerate(read[loaded])
            if problems[saved]
        )
        found[saved, loaded] = refused[saved] or next(ranks, "")
    return found


def selection() -> list[Pair]:
    """Return some of the pairs: every layout is saved three times and loaded three times."""
    names = list(LAYOUTS)
    return [
        (name, names[(number + step) % len(names)])
        for number, name in enumerate(names)
        for step in (1, 6, 11)
    ]


def table_of(found: Mapping[Pair, str]) -> str:
    """Return the table in Markdown.

    Args:
        found: What is wrong with each pair, "" if nothing; a number refers to what stands below.
    """
    names = list(dict.fromkeys(saved for saved, _ in found))
    reasons: list[str] = []
    lines = ["| saved, loaded as | " + " | ".join(str(i + 1) for i in range(len(names))) + " |"]
    lines.append("|---" * (len(names) + 1) + "|")
    for number, saved in enumerate(names, 1):
        cells = []
        for loaded in names:
            reason = found[saved, loaded]
            if reason and reason not in reasons:
                reasons.append(reason)
            cells.append(f"no: {reasons.index(reason) + 1}" if reason else "ok")
        lines.append(f"| {number}. {saved} | " + " | ".join(cells) + " |")
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def table_in(text: str) -> dict[Pair, str]:
    """Return the cells of the table in a document, by pair of layouts."""
    shown = text.partition(_BEGIN)[2].partition(_END)[0]
    rows = [(name, cells.split("|")) for _, name, cells in _ROW.findall(shown)]
    return {
        (saved, loaded): cell.strip()
        for saved, cells in rows
        for (loaded, _), cell in zip(rows, cells, strict=True)
    }


def with_table(text: str, table: str) -> str:
    """Return a document with the table between its marks."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"the document has no lines {_BEGIN!r} and {_END!r}")
    return f"{before}{begin}{table}{end}{after}"


def main() -> None:
    """Run all pairs; exit with 1 if something is wrong with one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--readme", type=Path, help="replace the table in this document")
    readme: Path | None = parser.parse_args().readme
    pairs = [(saved, loaded) for saved in LAYOUTS for loaded in LAYOUTS]
    with tempfile.TemporaryDirectory(prefix="bcpformat-") as place:
        outcomes = spawn(MOST_RANKS, matrix_jobs(pairs, place), timeout_s=_TIMEOUT_S)
    found = matrix(pairs, outcomes)
    table = table_of(found)
    print(table, end="")
    if readme is not None:
        text = readme.read_text(encoding="utf-8")
        readme.write_text(with_table(text, table), encoding="utf-8")
    sys.exit(any(found.values()))


if __name__ == "__main__":
    main()
