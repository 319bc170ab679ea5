"""What is shown to people: sizes, safe names, colours, a progress bar.

The only module that reads the environment: ``NO_COLOR`` and ``TERM``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import TextIO

from bcpformat.model.closing import Closing
from bcpformat.model.names import display

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_BAR = 24
_REDRAW_SECONDS = 0.1
_SHOW_AFTER_SECONDS = 0.3


def human_bytes(nbytes: int) -> str:
    """Return a size in the unit that suits it.

    Example:
        >>> human_bytes(1536), human_bytes(3)
        ('1.5 KiB', '3 B')
    """
    if nbytes < 1024:
        return f"{nbytes} B"
    value = float(nbytes)
    unit = 0
    while value >= 1023.95 and unit + 1 < len(_UNITS):
        value /= 1024
        unit += 1
    return f"{value:.1f} {_UNITS[unit]}"


def counted(number: int, noun: str) -> str:
    """Return a number and a noun in the right form.

    Example:
        >>> counted(1, "file"), counted(2, "file")
        ('1 file', '2 files')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def one_line(text: str) -> str:
    r"""Return text of any origin as one line that cannot act on a terminal.

    Example:
        >>> one_line("a\n  b\x9b")
        'a; b\\x9b'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    joined = lines[0] if lines else ""
    for line in lines[1:]:
        joined += (" " if joined.endswith((":", ";", ",")) else "; ") + line
    return (
        joined
        if joined.isprintable()
        else "".join(c if c.isprintable() else display(c) for c in joined)
    )


def iso_time(created_us: int) -> str:
    """Return microseconds since 1970 as ISO 8601 in UTC; beyond the year 9999 as they are."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=created_us)
    except OverflowError:
        return f"{created_us} us after 1970-01-01T00:00:00Z"
    return moment.isoformat().replace("+00:00", "Z")


def print_json(document: object) -> None:
    """Print a document as JSON; every character beyond ASCII is escaped."""
    print(json.dumps(document, indent=2, allow_nan=False))


class Style:
    """Colours for one stream, or none: not a terminal, ``NO_COLOR``, a dumb terminal."""

    __slots__ = ("_enabled",)

    def __init__(self, stream: TextIO) -> None:
        self._enabled = _is_terminal(stream) and not os.environ.get("NO_COLOR")

    def bold(self, text: str) -> str:
        """Return text that stands out."""
        return self._wrap("1", text)

    def dim(self, text: str) -> str:
        """Return text that steps back."""
        return self._wrap("2", text)

    def good(self, text: str) -> str:
        """Return text for what is right."""
        return self._wrap("32", text)

    def bad(self, text: str) -> str:
        """Return text for what is wrong."""
        return self._wrap("31", text)

    def _wrap(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._enabled else text


class Progress(Closing):
    """A bar on stderr, if that is a terminal; call it with numbers of bytes, from any thread.

    Example:
        >>> with Progress("reading", total_bytes=10) as progress:
        ...     progress(10)
    """

    def __init__(self, label: str, *, total_bytes: int) -> None:
        self._label = label
        self._total = total_bytes
        self._done = 0
        self._lock = Lock()
        self._started = time.monotonic()
        self._drawn = self._started + _SHOW_AFTER_SECONDS - _REDRAW_SECONDS
        self._visible = False
        self._enabled = _is_terminal(sys.stderr)

    def __call__(self, nbytes: int) -> None:
        """Count bytes as done."""
        with self._lock:
            self._done += nbytes
            now = time.monotonic()
            if self._enabled and now - self._drawn >= _REDRAW_SECONDS:
                self._drawn = now
                self._visible = True
                print(f"\r\x1b[K{self._line(now)}", end="", file=sys.stderr, flush=True)

    def _line(self, now: float) -> str:
        speed = human_bytes(int(self._done / max(now - self._started, 1e-9)))
        if not self._total:
            return f"{self._label} {human_bytes(self._done)}  {speed}/s"
        share = min(self._done / self._total, 1.0)
        bar = "#" * int(share * _BAR)
        return (
            f"{self._label} [{bar:<{_BAR}}] {share:4.0%}  "
            f"{human_bytes(self._done)} of {human_bytes(self._total)}  {speed}/s"
        )

    def close(self) -> None:
        """Remove the bar."""
        if self._visible:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._visible = False


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"
