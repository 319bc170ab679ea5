"""Fill the generated parts of the spec from the registries, the worked example and the text.

``python generate.py`` writes them; ``python generate.py --check`` only says whether they are as
they would be written, by its exit status.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

SPEC = Path(__file__).resolve().parent
sys.path.insert(0, str(SPEC.parent))

from spec.examples import make_example  # noqa: E402  # found by the line above

TEXT = SPEC / "bcp-1.0.md"
BLOCK = re.compile(r"<!-- generated: ([a-z-]+) -->\n(.*?)<!-- end -->", re.DOTALL)
ITEM = re.compile(r"^- (BCP-([A-Z]{3})-([0-9]{3})): (.*(?:\n  .*)*)", re.MULTILINE)
HEADING = re.compile(r"^## (?:([0-9]+)\.|Appendix ([A-Z])\.) ", re.MULTILINE)

# TOML has no static types.
Row = dict[str, Any]


def registry(name: str) -> dict[str, list[Row]]:
    """Return a registry: kind of entry to its entries."""
    return tomllib.loads((SPEC / "registry" / f"{name}.toml").read_text(encoding="utf-8"))


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def requirements(text: str) -> dict[str, str]:
    """Return the requirements of a text in its order: identifier to sentences."""
    return {match[1]: match[4] for match in ITEM.finditer(text)}


def codecs_table(_: str) -> str:
    """Return the codecs (section 9.1)."""
    entries = registry("codecs")["codec"]
    rows = [
        (
            str(codec["code"]),
            f"`{codec['name']}`",
            f"`{codec['feature']}`" if "feature" in codec else "core",
            "any" if codec["items"] == [1, 2, 4, 8] else ", ".join(map(str, codec["items"])),
        )
        for codec in entries
    ]
    return table(("code", "name", "feature", "item"), rows)


def errors_table(text: str) -> str:
    """Return the error codes (section 17), each with the requirements that name it."""
    rules = {
        name: re.findall(r"`(E_[A-Z0-9_]+)`", body) for name, body in requirements(text).items()
    }
    rows = []
    for error in registry("errors")["error"]:
        code = error["code"]
        named = ", ".join(name[4:] for name, codes in rules.items() if code in codes)
        steps = ", ".join(map(str, error["steps"]))
        rows.append((f"`{code}`", error["class"], steps, named, error["meaning"]))
    return table(("code", "class", "steps", "rules (BCP-)", "meaning"), rows)


def limits_table(_: str) -> str:
    """Return the limits (section 18)."""
    rows = [
        (
            limit["name"],
            f"{limit['hard']:,}" if "hard" in limit else "none",
            f"{limit['floor']:,}",
            f"`{limit['error']}`",
            limit["unit"],
        )
        for limit in registry("limits")["limit"]
    ]
    return table(("limit", "hard", "floor", "code", "counts"), rows)


def features_table(_: str) -> str:
    """Return features and reserved names (appendix C)."""
    entries = registry("features")
    rows = [
        (f"`{f['name']}`", f"`{f['list']}`", f["status"], f"{f['used']} ({f['section']})")
        for f in entries["feature"]
    ]
    rows += [(f"`{f['name']}`", "", "reserved", f["meaning"]) for f in entries["reserved"]]
    rows += [(f"`{e['name']}`", "`ext`", e["status"], e["meaning"]) for e in entries["extension"]]
    return table(("name", "list", "status", "used by"), rows)


def ids_table(text: str) -> str:
    """Return the identifiers (appendix E), those of one area and section together."""
    headings = [(match.start(), match[1] or match[2]) for match in HEADING.finditer(text)]
    areas: dict[tuple[str, str], list[str]] = {}
    for match in ITEM.finditer(text):
        section = [name for start, name in headings if start < match.start()][-1]
        areas.setdefault((match[2], section), []).append(match[3])
    rows = [
        (f"BCP-{area}", section, " ".join(sorted(numbers)))
        for (area, section), numbers in areas.items()
    ]
    total = sum(map(len, areas.values()))
    return table(("area", "section", f"numbers ({total} requirements)"), rows)


def _listing(name: str) -> Callable[[str], str]:
    return lambda _: f"```hex\n{make_example.listings()[name]}\n```\n"


BLOCKS: dict[str, Callable[[str], str]] = {
    "codecs": codecs_table,
    "errors": errors_table,
    "limits": limits_table,
    "features": features_table,
    "ids": ids_table,
    **{name: _listing(name) for name in make_example.listings()},
}
"""Name of a generated part to the function that returns it, given the whole text."""


def generate(text: str) -> str:
    """Return the text with all of its generated parts as they must be."""

    def fill(match: re.Match[str]) -> str:
        return f"<!-- generated: {match[1]} -->\n{BLOCKS[match[1]](text)}<!-- end -->"

    return BLOCK.sub(fill, text)


def stale(text: str) -> Iterator[str]:
    """Yield the names of parts that are missing, or not as they must be."""
    found = {match[1]: match[2] for match in BLOCK.finditer(text)}
    for name, make in BLOCKS.items():
        if found.get(name) != make(text):
            yield name


def main() -> int:
    """Write the generated parts, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    text = TEXT.read_text(encoding="utf-8")
    if parser.parse_args().check:
        names = list(stale(text))
        if names:
            print(f"{TEXT.name}: run generate.py, these parts are stale: {', '.join(names)}")
        return 1 if names else 0
    TEXT.write_text(generate(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
