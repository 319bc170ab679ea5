"""Requirements of the spec: identifiers, key words, and a test for each."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from spec.generate import ITEM, SPEC
from tests.spec.text import REPOSITORY, REQUIREMENTS, TEXT, without_fences

IDENTIFIER = re.compile(r"BCP-[A-Z]{3}-[0-9]{3}")
KEY_WORD = re.compile(r"\b(?:MUST|SHOULD|MAY)\b")
UNTESTABLE = tomllib.loads((SPEC / "untestable.toml").read_text(encoding="utf-8"))


def cited(*directories: str) -> dict[str, str]:
    """Return the identifiers that files of some directories cite, each with one such file."""
    found = {}
    for path in files(*directories):
        for name in IDENTIFIER.findall(path.read_text(encoding="utf-8")):
            found[name] = path.relative_to(REPOSITORY).as_posix()
    return found


def files(*directories: str) -> Iterator[Path]:
    """Yield the text files of some directories."""
    for directory in directories:
        for path in sorted((REPOSITORY / directory).rglob("*")):
            if path.suffix in (".py", ".json", ".toml", ".md") and path.is_file():
                yield path


def test_every_identifier_is_given_once() -> None:
    counts = Counter(match[1] for match in ITEM.finditer(TEXT))

    assert [name for name, count in counts.items() if count > 1] == []


def test_the_numbers_of_an_area_have_no_gap() -> None:
    areas: dict[str, list[int]] = {}
    for name in REQUIREMENTS:
        areas.setdefault(name[:7], []).append(int(name[8:]))

    for area, numbers in areas.items():
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), area


def test_every_key_word_stands_in_a_requirement() -> None:
    rest = ITEM.sub("", without_fences())
    paragraphs = [p for p in rest.split("\n\n") if KEY_WORD.search(p)]

    assert [p for p in paragraphs if not p.startswith("The key words MUST, ")] == []


def test_every_requirement_has_a_key_word() -> None:
    assert [name for name, body in REQUIREMENTS.items() if not KEY_WORD.search(body)] == []


def test_every_identifier_named_in_the_text_exists() -> None:
    # One is an example of what an identifier looks like, and exists as well.
    assert sorted(set(IDENTIFIER.findall(TEXT)) - REQUIREMENTS.keys()) == []


def test_every_identifier_named_elsewhere_exists() -> None:
    places = cited("bcpformat", "conformance", "docs", "spec/registry", "tests", "fuzz")

    assert {name: place for name, place in places.items() if name not in REQUIREMENTS} == {}


def test_every_requirement_is_cited_by_a_test_or_a_case_or_listed_as_untestable() -> None:
    covered = cited("tests", "conformance").keys() | UNTESTABLE.keys()

    missing = [name for name in REQUIREMENTS if name not in covered]
    assert missing == [], f"{len(missing)} requirements without a test: {' '.join(missing)}"


def test_what_is_listed_as_untestable_exists_is_not_tested_and_has_a_reason() -> None:
    assert sorted(UNTESTABLE.keys() - REQUIREMENTS.keys()) == []
    assert sorted(UNTESTABLE.keys() & cited("tests", "conformance").keys()) == []
    assert all(entry.keys() == {"reason"} and entry["reason"] for entry in UNTESTABLE.values())


def test_every_section_that_the_code_cites_exists() -> None:
    sections = set(re.findall(r"^##+ ([0-9]+(?:\.[0-9]+)?)", TEXT, re.MULTILINE))
    unknown = {}
    for path in files("bcpformat"):
        for citation in re.findall(r"\(spec ([0-9][0-9., and]*)", path.read_text("utf-8")):
            for section in re.findall(r"[0-9]+(?:\.[0-9]+)?", citation):
                if section not in sections:
                    unknown[section] = path.name

    assert unknown == {}
