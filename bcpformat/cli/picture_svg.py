"""Elements of an SVG picture as text: escaped, of few digits, readable in light and dark."""

from __future__ import annotations

import colorsys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from bcpformat.model.names import display

STYLE = """\
text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#1f2328}
.title{font-size:17px;font-weight:600}
.head{font-size:13px;font-weight:600}
.name{font:600 12px ui-monospace,Menlo,Consolas,monospace}
.dim{font-size:11px;fill:#59636e}
.inside{font-size:10px;font-weight:600;text-anchor:middle;pointer-events:none}
.end{text-anchor:end}
.page{fill:#fff}
.frame{fill:none;stroke:#8c959f;pointer-events:none}
.empty{fill:none;stroke:#8c959f;stroke-dasharray:3 3}
.hatch{fill:url(#hatch);pointer-events:none}
.box{stroke:#fff;stroke-width:.8}
.small{shape-rendering:crispEdges}
.box:hover,.small:hover{opacity:.7}
.track{fill:#818b9833}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}
.dim{fill:#9198a1}
.page{fill:#0d1117}
.box{stroke:#0d1117}
.frame,.empty{stroke:#656c76}
}
"""
HATCH = (
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="2" height="6" fill="#fff" fill-opacity=".4"/>'
    "</pattern>"
)
"""The pattern of the class ``hatch``."""

GREY = "#848d97"

_FEW = (
    "#3b7dd8",
    "#e0823d",
    "#3f9c5a",
    "#cf4b4b",
    "#8f62c9",
    "#b0843c",
    "#d669a8",
    "#2f9fb0",
    "#7f9a2b",
    "#6d7fa8",
)
"""Colours that stand out from each other on white and on black."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A part of a picture, to be placed; nothing of it is seen beyond its size.

    Attributes:
        elements: Its elements, in its own coordinates.
        width: In pixels.
        height: In pixels.

    Example:
        >>> Drawn(elements=["<g/>"], width=3, height=2).at(1, 0.5)
        '<svg x="1" y="0.5" width="3" height="2"><g/></svg>'
    """

    elements: Sequence[str]
    width: float
    height: float

    def at(self, x: float, y: float) -> str:
        """Return the element that has the part at a place."""
        place = f'x="{number(x)}" y="{number(y)}"'
        size = f'width="{number(self.width)}" height="{number(self.height)}"'
        return f"<svg {place} {size}>{''.join(self.elements)}</svg>"


def colours(number: int) -> list[str]:
    """Return colours that differ; beyond ten they run through the hues, light and dark in turn.

    Example:
        >>> colours(2)
        ['#3b7dd8', '#e0823d']
    """
    if number <= len(_FEW):
        return list(_FEW[:number])
    return [_hue(row / number, 0.62 if row % 2 else 0.46) for row in range(number)]


def _hue(part: float, lightness: float) -> str:
    """Return the colour at a part of the way from red to purple."""
    rgb = colorsys.hls_to_rgb(part * 0.85, lightness, 0.55)
    return "#" + "".join(f"{round(255 * value):02x}" for value in rgb)


def ink(colour: str) -> str:
    """Return what can be read on a colour: black or white.

    Example:
        >>> ink("#ffffff"), ink("#202020")
        ('#000', '#fff')
    """
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#000" if 299 * red + 587 * green + 114 * blue > 135_000 else "#fff"


def escaped(text: str) -> str:
    r"""Return text for an element; line feeds stay, and what `display` made stays as it is.

    Example:
        >>> print(escaped("a<b> & \x1b"))
        a&lt;b&gt; &amp; \x1b
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c == "\n" else display(c) for c in text)
    return escape(text)


def fitted(text: str, columns: int) -> str:
    """Return text as it is displayed, without its middle if that takes more columns.

    Args:
        text: Of any origin.
        columns: At least 1; characters of East Asian scripts take two.

    Example:
        >>> fitted("model/layers/0/attention/wq", 15)
        'model…ention/wq'
    """
    shown = display(text[: columns + 1] + text[-columns - 1 :] if len(text) > 3 * columns else text)
    if _columns(shown) <= columns and len(text) <= 3 * columns:
        return shown
    head, tail = "", ""
    rest = columns - 1
    for character in reversed(shown):
        if _columns(tail + character) > rest - rest * 2 // 5:
            break
        tail = character + tail
    for character in shown:
        if _columns(head + character) + _columns(tail) > rest:
            break
        head += character
    return f"{head}…{tail}"


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def number(value: float) -> str:
    """Return a coordinate with at most two decimals.

    Example:
        >>> number(1.0), number(2.506)
        ('1', '2.51')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text(x: float, y: float, words: str, *, kind: str, fill: str | None = None) -> str:
    """Return a line of text; `kind` is its class, or several."""
    colour = f' style="fill:{fill}"' if fill else ""
    place = f'x="{number(x)}" y="{number(y)}"'
    return f'<text class="{kind}" {place}{colour}>{escaped(words)}</text>'


def rectangle(
    x: float,
    y: float,
    width: float,
    height: float,
    *,
    kind: str,
    fill: str | None = None,
    tip: str | None = None,
) -> str:
    """Return a rectangle; `kind` is its class, `tip` what it says to who points at it."""
    colour = f' fill="{fill}"' if fill else ""
    size = f'width="{number(width)}" height="{number(height)}"'
    start = f'<rect class="{kind}" x="{number(x)}" y="{number(y)}" {size}{colour}'
    return f"{start}/>" if tip is None else f"{start}><title>{escaped(tip)}</title></rect>"
