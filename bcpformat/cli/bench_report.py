"""What a benchmark found: tables for people, documents for programs."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType

from bcpformat.cli.terminal import Style

PACKAGES = ("bcpformat", "numpy", "zstandard", "xxhash", "msgpack", "torch", "safetensors")
"""Distributions whose versions bear on the figures."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure to reach.

    Attributes:
        text: In words, such as ``"<= 1.25x raw"``.
        met: Whether it was reached.
        missed: In words the parts that were not, of a goal that has parts.
    """

    text: str
    met: bool
    missed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured case.

    Attributes:
        cells: Texts for the columns of its table.
        data: The same and more for programs.
        goal: What it should reach; None for a peer or a base.
    """

    cells: tuple[str, ...]
    data: Mapping[str, object]
    goal: Goal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cases measured side by side.

    Attributes:
        name: For programs.
        title: For people.
        columns: Heads of the cells; the column of goals is added.
        rows: The cases.
        notes: Sentences below the table.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    notes: Sequence[str] = ()


def at_most(value: float, bound: float, text: str) -> Goal:
    """Return a goal that a value reaches from above."""
    return Goal(f"<= {text}", value <= bound)


def at_least(value: float, bound: float, text: str) -> Goal:
    """Return a goal that a value reaches from below."""
    return Goal(f">= {text}", value >= bound)


def print_table(table: Table, style: Style, *, judged: bool) -> None:
    """Print a table and its notes, with `judged` also whether each goal is met."""
    goals = (_goal_text(row.goal, judged=judged) for row in table.rows)
    lines = [(*table.columns, "goal")]
    lines += [(*row.cells, goal) for row, goal in zip(table.rows, goals, strict=True)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(style.bold(table.title))
    for line, row in zip(lines, (None, *table.rows), strict=True):
        cells = [line[0].ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(line[1:-1], widths[1:-1], strict=True)]
        goal = line[-1]
        if row is None:
            print("  " + style.dim("  ".join([*cells, goal])))
            continue
        if row.goal is not None and judged:
            goal = style.good(goal) if row.goal.met else style.bad(goal)
        print("  " + "  ".join([*cells, goal]).rstrip())
    for note in table.notes:
        print(style.dim(f"  {note}"))
    print()


def _goal_text(goal: Goal | None, *, judged: bool) -> str:
    if goal is None:
        return ""
    if not judged:
        return goal.text
    parts = f" ({goal.missed})" if goal.missed else ""
    return f"{goal.text}: {'met' if goal.met else 'missed'}{parts}"


def table_document(table: Table, *, judged: bool) -> dict[str, object]:
    """Return a table as a JSON document; ``"met"`` is null if the goals are not judged."""

    def goal_document(goal: Goal | None) -> dict[str, object] | None:
        return None if goal is None else {"text": goal.text, "met": goal.met if judged else None}

    return {
        "title": table.title,
        "notes": list(table.notes),
        "cases": [{**row.data, "goal": goal_document(row.goal)} for row in table.rows],
    }


def machine(folder: str) -> dict[str, object]:
    """Return what bears on the figures: the machine, its load, the file system, versions."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": platform.platform(),
        "processor": _processor(),
        "processors": _processors(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load": list(os.getloadavg()),
        "file_system": file_system(folder),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def file_system(folder: str) -> str:
    """Return the type of the file system of a directory, ``"unknown"`` where nobody says."""
    path = os.path.realpath(folder)
    best, found = "", "unknown"
    for line in _lines("/proc/self/mounts"):
        _, place, kind, *_ = line.split()
        place = place.replace("\\040", " ")
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, found = place, kind
    return found


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


class Status:
    """One line on stderr that says what is being measured, if that is a terminal.

    Example:
        >>> with Status() as status:
        ...     status("write: bcpformat, round 1 of 5")
    """

    def __init__(self) -> None:
        self._enabled = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        """Show a text in place of the last one."""
        if self._enabled:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Status:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self("")


Say = Callable[[str], None]
"""What takes the words of the status line."""
