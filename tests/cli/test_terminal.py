from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.cli.terminal import Progress, Style, human_bytes, iso_time, one_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (5 * 2**30, "5.0 GiB"),
        (2**80, "1048576.0 EiB"),
    ],
)
def test_sizes_are_in_binary_units(nbytes: int, text: str) -> None:
    assert human_bytes(nbytes) == text


@given(st.text())
def test_any_text_becomes_one_printable_line(text: str) -> None:
    assert one_line(text).isprintable()


def test_times_are_utc_and_never_fail() -> None:
    assert iso_time(0) == "1970-01-01T00:00:00Z"
    assert iso_time(1_700_000_000_000_001) == "2023-11-14T22:13:20.000001Z"
    assert "9007199254740991" in iso_time(2**53 - 1) or iso_time(2**53 - 1).endswith("Z")


def test_colours_are_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    assert Style(Terminal()).bad("x") == "\x1b[31mx\x1b[0m"
    assert Style(io.StringIO()).bad("x") == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Style(Terminal()).bad("x") == "x"


def test_a_bar_is_drawn_on_a_terminal_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    moments = iter([0.0, 1.0, 1.01, 2.0])
    monkeypatch.setattr("time.monotonic", lambda: next(moments))

    with Progress("reading", total_bytes=100) as progress:
        for _ in range(3):
            progress(25)

    assert "25%" in terminal.getvalue()
    assert "75%" in terminal.getvalue()
    assert terminal.getvalue().count("reading") == 2
    assert terminal.getvalue().endswith("\r\x1b[K")
