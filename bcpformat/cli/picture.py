"""A picture of who wrote, and who reads, which region of which tensor.

Each tensor is a plane of its elements, with its chunks in the colour of the data file that has
them.  A data file has one writer; its name is never looked into.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from bcpformat.api.selection import Filter, name_filter
from bcpformat.cli import picture_panel, picture_side
from bcpformat.cli.picture_panel import Scene, panel
from bcpformat.cli.picture_side import files_side, readers_side
from bcpformat.cli.picture_svg import HATCH, STYLE, Drawn, colours, escaped, fitted, text
from bcpformat.cli.terminal import counted, human_bytes
from bcpformat.errors import InvalidArgumentError
from bcpformat.model.geometry import tensor_nbytes
from bcpformat.model.manifest import Ints, Manifest
from bcpformat.model.names import shortened
from bcpformat.model.region import Box
from bcpformat.plan.resolve import ChunkIndex

Readers: TypeAlias = Sequence[Mapping[str, Sequence[Box]]]
"""For each reader, the name of each tensor that it reads to the boxes that it wants of it."""

LARGEST = 12
"""Tensors drawn where none are chosen."""

MOST_TENSORS = 40
"""Tensors drawn."""

MOST_RECTANGLES = 2_000
"""Rectangles of one plane."""

MOST_IN_ALL = 12_000
"""Rectangles of all planes together."""

_COLUMNS = 3
_MARGIN = 24
_GAP = 28
_LINE = 16
_TITLE_COLUMNS = 70

_KEY = "A colour is a data file, which one rank wrote.  Point at a region to see more."
_READERS_KEY = "Hatched: who reads; grey where several read the same, empty where nobody reads."


def draw(
    manifest: Manifest,
    *,
    title: str = "",
    names: Filter = None,
    readers: Readers | None = None,
) -> str:
    """Return a picture of a checkpoint as the text of an SVG file, the same for the same input.

    Args:
        manifest: A checked manifest.
        title: Of any origin, such as where the checkpoint is.
        names: Tensors to draw, the largest `MOST_TENSORS` of them; None: the `LARGEST` of all.
        readers: What each reader wants; None draws only who wrote.

    Raises:
        InvalidArgumentError: A reader wants a tensor that there is not, or what is not in it.

    Example:
        >>> import bcpformat, numpy as np
        >>> from bcpformat.engine.load import load_manifest
        >>> from bcpformat.model.limits import DEFAULT_LIMITS
        >>> from bcpformat.storage import MemoryStore
        >>> store = MemoryStore()
        >>> _ = bcpformat.write(store, {"w": np.zeros((2, 3), np.float32)})
        >>> draw(load_manifest(store, limits=DEFAULT_LIMITS)).count('class="name"')
        1
    """
    sizes = tensor_nbytes(manifest.tensors)
    chosen = _chosen(manifest, sizes, names)
    rows = chosen[: LARGEST if names is None else MOST_TENSORS]
    wanted = None if readers is None else _by_row(manifest, readers)
    planes = max(1, len(rows) * (1 if wanted is None else 2))
    index = ChunkIndex(manifest)
    scene = Scene(
        index=index,
        wanted=wanted,
        file_colours=colours(len(manifest.files)),
        reader_colours=colours(len(wanted or ())),
        most=min(MOST_RECTANGLES, MOST_IN_ALL // planes),
    )
    side = [files_side(index, scene.file_colours)]
    if wanted is not None:
        side.append(readers_side(index, wanted, scene.reader_colours))
    panels = [panel(scene, row) for row in rows]
    lines = [
        _words(manifest, sizes, rows, len(chosen)),
        _KEY,
        *([] if wanted is None else [_READERS_KEY]),
    ]
    return _arranged(title or "checkpoint", lines, panels, side)


def _chosen(manifest: Manifest, sizes: Ints, names: Filter) -> list[int]:
    """Return the rows of the tensors that names choose, the largest first, then by name."""
    table, take = manifest.tensors, name_filter(names)
    rows = [
        row
        for row, name in enumerate(table.names)
        if any(map(take, (name, *table.aliases.get(row, ()))))
    ]
    rows.sort(key=lambda row: -int(sizes[row]))
    return rows


def _by_row(manifest: Manifest, readers: Readers) -> list[dict[int, list[Box]]]:
    """Return what readers want by the rows of the tensors."""
    table = manifest.tensors
    row_of = {alias: row for row, names in table.aliases.items() for alias in names}
    row_of.update((name, row) for row, name in enumerate(table.names))
    found: list[dict[int, list[Box]]] = []
    for reader, wants in enumerate(readers):
        boxes: dict[int, list[Box]] = {}
        for name, wanted in wants.items():
            if name not in row_of:
                message = f"reader {reader} wants {shortened(name)}, which is no tensor's name"
                raise InvalidArgumentError(message)
            row = row_of[name]
            whole = Box.whole(table.shapes[row])
            for box in wanted:
                if box.ndim != whole.ndim or not whole.contains(box):
                    message = f"reader {reader} wants {box} of {shortened(name)}, a {whole}"
                    raise InvalidArgumentError(message)
            boxes.setdefault(row, []).extend(wanted)
        found.append(boxes)
    return found


def _words(manifest: Manifest, sizes: Ints, rows: Sequence[int], chosen: int) -> str:
    """Return a line on the checkpoint, and on which part of it is drawn."""
    step = "" if manifest.step is None else f"step {manifest.step} · "
    tensors = counted(len(manifest.tensors), "tensor")
    drawn = counted(len(rows), "tensor")
    if len(rows) < chosen:
        drawn = f"the {len(rows)} largest of {chosen}"
    return (
        f"{step}{tensors}, {human_bytes(int(sizes.sum()))}, "
        f"in {counted(len(manifest.files), 'data file')} · "
        f"drawn: {drawn}, {human_bytes(int(sizes[rows].sum()))}"
    )


def _arranged(
    title: str, lines: Sequence[str], panels: Sequence[Drawn], side: Sequence[Drawn]
) -> str:
    """Return the document: panels in rows, and beside them the charts."""
    out = [text(_MARGIN, 34, fitted(title, _TITLE_COLUMNS), kind="title")]
    out += [text(_MARGIN, 54 + _LINE * n, line, kind="dim") for n, line in enumerate(lines)]
    columns = max(1, min(_COLUMNS, len(panels)))
    bottom = beside = 54.0 + _LINE * len(lines) + 8
    for first in range(0, len(panels), columns):
        row = panels[first : first + columns]
        for number, drawn in enumerate(row):
            out.append(drawn.at(_MARGIN + number * (picture_panel.WIDTH + _GAP), bottom))
        bottom += max(drawn.height for drawn in row) + _GAP
    if not panels:
        out.append(text(_MARGIN, bottom + 14, "no tensor to draw", kind="dim"))
    left = _MARGIN + columns * (picture_panel.WIDTH + _GAP) + _GAP / 2
    for chart in side:
        out.append(chart.at(left, beside))
        beside += chart.height + _GAP
    width = int(left) + picture_side.WIDTH + _MARGIN
    height = int(max(bottom, beside)) + 1
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escaped(fitted(title, _TITLE_COLUMNS))}</title>",
            f"<style>\n{STYLE}</style>",
            f"<defs>{HATCH}</defs>",
            f'<rect class="page" width="{width}" height="{height}"/>',
            *out,
            "</svg>\n",
        ]
    )
