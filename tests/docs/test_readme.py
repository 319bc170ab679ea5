"""The README: its examples run, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bcpformat.cli import main
from bcpformat.errors import ErrorCode
from bcpformat.model import user_types
from tests.conftest import REPOSITORY

README = REPOSITORY / "README.md"
TEXT = README.read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXIT_CODE = re.compile(r"# exit code (\d+)$")
LINK = re.compile(r"\[[^]]*\]\(([^)#]+)\)")
SECTION = re.compile(r"^\[(spec (\d+))\]: ([^#\n]+)#(.+)$", re.MULTILINE)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
ADR_LINES = 60


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; `line` is that of its first line, from 1."""

    language: str
    text: str
    line: int


def blocks(*languages: str) -> list[Block]:
    """Return the fenced blocks in some languages, in order."""
    found = []
    for match in FENCE.finditer(TEXT):
        if match[1] in languages:
            line = TEXT.count("\n", 0, match.start(2)) + 1
            found.append(Block(match[1], match[2], line))
    return found


def commands(text: str) -> Iterator[tuple[list[str], int]]:
    """Yield the words of each `$ bcpformat` line, and its exit code: 0 unless a comment says it."""
    for line in text.splitlines():
        if line.startswith("$ bcpformat "):
            said = EXIT_CODE.search(line)
            words = shlex.split(line.removeprefix("$ bcpformat "), comments=True)
            yield words, int(said[1]) if said else 0


def documents() -> list[Path]:
    """Return the documents whose links are checked."""
    names = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
    return [REPOSITORY / name for name in names] + sorted((REPOSITORY / "docs").rglob("*.md"))


@pytest.mark.slow
@pytest.mark.torch
def test_every_example_runs_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(user_types, "_DEFAULT", user_types.TypeRegistry())
    names: dict[str, object] = {"__name__": "__main__"}

    for block in blocks("python", "console"):
        if block.language == "python":
            # The empty lines before it make a traceback name the line of the README.
            source = "\n" * (block.line - 1) + block.text
            exec(compile(source, str(README), "exec"), names)  # it is ours
            continue
        for words, expected in commands(block.text):
            assert main(words) == expected, f"line {block.line}: {shlex.join(words)}"


def test_every_line_of_a_console_block_is_a_command_that_runs() -> None:
    lines = [line for block in blocks("console") for line in block.text.splitlines()]

    assert [line for line in lines if not line.startswith("$ bcpformat ")] == []


def test_every_make_target_exists() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))

    assert set(re.findall(r"(?:^|`)make ([a-z]+)", TEXT, re.MULTILINE)) <= targets


def test_every_error_code_is_one_of_the_registry() -> None:
    assert set(re.findall(r"\bE_[A-Z_]+\b", TEXT)) <= {code.value for code in ErrorCode}


@pytest.mark.parametrize("path", documents(), ids=lambda p: p.name)
def test_every_link_leads_to_a_file(path: Path) -> None:
    links = [link for link in LINK.findall(path.read_text(encoding="utf-8")) if ":" not in link]

    assert [link for link in links if not (path.parent / link).exists()] == []


def slug(heading: str) -> str:
    """Return the anchor that a heading gets where Markdown is shown."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize(("label", "number", "target", "anchor"), SECTION.findall(TEXT))
def test_a_link_to_a_section_of_the_specification_leads_to_its_heading(
    label: str, number: str, target: str, anchor: str
) -> None:
    headings = HEADING.findall((REPOSITORY / target).read_text(encoding="utf-8"))

    assert f"[{label}]" in TEXT.lower().partition(f"[{label}]:")[0]
    assert anchor in {slug(heading) for heading in headings}
    assert anchor.startswith(f"{number}-")


def test_every_section_of_the_specification_that_is_named_is_a_link() -> None:
    named = re.findall(r"(\[?)\b(spec \d+)\b", TEXT, re.IGNORECASE)

    assert [label for bracket, label in named if not bracket] == []
    assert {label.lower() for _, label in named} == {m[0] for m in SECTION.findall(TEXT)}


@pytest.mark.parametrize("path", sorted((REPOSITORY / "docs" / "adr").glob("*.md")), ids=str)
def test_a_decision_has_all_sections_and_is_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    expected = ["Context", "Options", "Choice", "Drawbacks", "Consequences"]

    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == expected
    assert len(text.splitlines()) <= ADR_LINES
