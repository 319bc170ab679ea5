"""One tensor of a picture: its name, and its elements as planes cut into regions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from bcpformat.cli.picture_rectangles import (
    How,
    Rectangles,
    chunk_boxes,
    fold_axis,
    owned_boxes,
    rectangles,
)
from bcpformat.cli.picture_svg import GREY, Drawn, escaped, fitted, ink, rectangle, text
from bcpformat.cli.terminal import counted, human_bytes
from bcpformat.codec.block import Codec
from bcpformat.model.dtypes import DType
from bcpformat.model.manifest import DATA_PREFIX, ints
from bcpformat.model.region import Box
from bcpformat.plan.resolve import ChunkIndex

WIDTH = 300
_BETWEEN = 16
_TALLEST = 150
_NARROWEST = 100
_LOWEST = 56
_BAR = 28
_LINE = 15
_NAME_COLUMNS = 40
_LINE_COLUMNS = 56
_TIP_COLUMNS = 80
_TITLE_COLUMNS = 1000
_MOST_RANGES = 8

_CODECS = {int(codec): codec.registry_name for codec in Codec}
_HOW = {
    How.SINGLE: "",
    How.MERGED: "neighbours of one {} are drawn as one",
    How.SAMPLED: "many pieces: sampled on a grid, edges are not exact",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What all panels of a picture share.

    Attributes:
        index: The chunks of the manifest.
        wanted: For each reader, the boxes of each tensor by the tensor's row; None: only what was
            written is drawn.
        file_colours: By row of the data file.
        reader_colours: By reader.
        most: Rectangles that there may be in a plane.
    """

    index: ChunkIndex
    wanted: Sequence[Mapping[int, Sequence[Box]]] | None
    file_colours: Sequence[str]
    reader_colours: Sequence[str]
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plane:
    """Rectangles, and what is said of them.

    Attributes:
        found: The rectangles.
        fills: Colour by owner.
        labels: What stands inside, by owner.
        tip: What is said of the rectangle of a row.
        owner: The word for an owner.
        is_read: Whether owners are readers: then a plane has holes, and rectangles overlap.
    """

    found: Rectangles
    fills: Sequence[str]
    labels: Sequence[str]
    tip: Callable[[int], str]
    owner: str
    is_read: bool


def panel(scene: Scene, row: int) -> Drawn:
    """Return the picture of the tensor of a row."""
    table = scene.index.manifest.tensors
    name, dtype, shape = table.names[row], table.dtypes[row], table.shapes[row]
    chunks = int(table.chunks[row])
    size = human_bytes(DType.named(dtype).nbytes_of(prod(shape)))
    of_shape = fitted(" x ".join(map(str, shape)) or "scalar", 28)
    out = [
        f"<title>{escaped(fitted(name, _TITLE_COLUMNS))}</title>",
        text(0, 12, fitted(name, _NAME_COLUMNS) or "(top)", kind="name"),
        text(0, 27, f"{dtype} {of_shape} · {size} · {counted(chunks, 'chunk')}", kind="dim"),
    ]
    y = 36.0
    if not chunks:
        out.append(rectangle(0.5, y + 0.5, WIDTH - 1, _BAR, kind="empty"))
        out.append(text(8, y + 18, "no elements", kind="dim"))
        return Drawn(elements=out, width=WIDTH, height=y + _BAR + 2)

    boxes = chunk_boxes(scene.index, row)
    fold = fold_axis(boxes)
    planes = [_written(scene, row, rectangles(boxes, fold=fold, most=scene.most))]
    if scene.wanted is not None:
        wanted = [boxes.get(row, ()) for boxes in scene.wanted]
        planes.append(_read(scene, shape, wanted, fold))
        for number, plane in enumerate(planes):
            label = "who reads" if plane.is_read else "who wrote"
            out.append(text(number * (WIDTH + _BETWEEN) / 2, y + 10, label, kind="dim"))
        y += _LINE
    room = WIDTH if len(planes) == 1 else (WIDTH - _BETWEEN) / 2
    width, height = _size(planes[0].found, room)
    for number, plane in enumerate(planes):
        out += _drawn(plane, number * (WIDTH + _BETWEEN) / 2, y, width, height)
    y += height + 2
    notes = [_folded(shape, fold)]
    notes += [_HOW[plane.found.how].format(plane.owner) for plane in planes if len(plane.found)]
    for note in dict.fromkeys(filter(None, notes)):
        y += _LINE
        out.append(text(0, y, note, kind="dim"))
    return Drawn(elements=out, width=WIDTH, height=y + 4)


def _written(scene: Scene, row: int, found: Rectangles) -> _Plane:
    index = scene.index
    manifest = index.manifest
    files, chunks, runs = manifest.files, manifest.chunks, manifest.runs
    name = fitted(manifest.tensors.names[row], _TIP_COLUMNS)

    def tip(number: int) -> str:
        file, chunk = int(found.owner[number]), int(found.source[number])
        of_file = f"file {file}: {DATA_PREFIX}{files[file].name}"
        if chunk < 0:
            return f"{name}\n{of_file}"
        region, run = index.region(chunk), int(chunks.run[chunk])
        lines = [name, _place(region.box)]
        if not region.is_whole:
            last = region.start + region.count - 1
            lines.append(f"elements {region.start} to {last} of this box, in row-major order")
        code = int(runs.codec[run])
        lines += [
            of_file,
            f"{human_bytes(int(index.geometry.nbytes[chunk]))} in run {run}: "
            f"{human_bytes(int(runs.raw[run]))}, {_CODECS.get(code, f'codec {code}')}, "
            f"{human_bytes(int(runs.stored[run]))} stored",
        ]
        return "\n".join(lines)

    return _Plane(
        found=found,
        fills=scene.file_colours,
        labels=[str(row) for row in range(len(files))],
        tip=tip,
        owner="file",
        is_read=False,
    )


def _read(
    scene: Scene, shape: tuple[int, ...], wanted: Sequence[Sequence[Box]], fold: int
) -> _Plane:
    readers_of: dict[Box, list[int]] = {}
    for reader, wants in enumerate(wanted):
        for box in dict.fromkeys(wants):
            if box.numel:
                readers_of.setdefault(box, []).append(reader)
    boxes = list(readers_of)
    groups = list(dict.fromkeys(map(tuple, readers_of.values())))
    owners = {group: owner for owner, group in enumerate(groups)}
    columns = (len(boxes), len(shape))
    found = rectangles(
        owned_boxes(
            shape,
            origin=ints([n for box in boxes for n in box.origin]).reshape(columns).T,
            extent=ints([n for box in boxes for n in box.shape]).reshape(columns).T,
            owner=ints([owners[tuple(readers)] for readers in readers_of.values()]),
            source=np.arange(len(boxes), dtype=np.int64),
        ),
        fold=fold,
        most=scene.most,
    )
    labels = list(map(_numbers, groups))

    def tip(number: int) -> str:
        box = int(found.source[number])
        words = f"read by {labels[int(found.owner[number])]}"
        return words if box < 0 else f"{words}\n{_place(boxes[box])}"

    return _Plane(
        found=found,
        fills=[GREY if len(group) > 1 else scene.reader_colours[group[0]] for group in groups],
        labels=labels,
        tip=tip,
        owner="reader",
        is_read=True,
    )


def _size(found: Rectangles, room: float) -> tuple[float, float]:
    """Return width and height of a plane in pixels: to scale, unless it gets hard to see."""
    if found.height == 1:
        return (_BAR if found.width == 1 else room), _BAR
    scale = min(room / found.width, _TALLEST / found.height)
    return max(found.width * scale, _NARROWEST), max(found.height * scale, _LOWEST)


def _drawn(plane: _Plane, x: float, y: float, width: float, height: float) -> list[str]:
    """Return the elements of a plane at a place."""
    found = plane.found
    left = np.round(x + found.left * (width / found.width), 2).tolist()
    right = np.round(x + found.right * (width / found.width), 2).tolist()
    top = np.round(y + found.top * (height / found.height), 2).tolist()
    bottom = np.round(y + found.bottom * (height / found.height), 2).tolist()
    out: list[str] = []
    inside: list[str] = []
    order = np.arange(len(found))
    if plane.is_read:
        out.append(rectangle(x + 0.5, y + 0.5, width - 1, height - 1, kind="empty"))
        area = (found.right - found.left) * (found.bottom - found.top)
        order = np.argsort(-area, kind="stable")  # what lies within another is drawn over it
    for n in order.tolist():
        owner = int(found.owner[n])
        wide, tall = right[n] - left[n], bottom[n] - top[n]
        kind = "box" if min(wide, tall) >= 4 else "small"
        fill = plane.fills[owner]
        out.append(rectangle(left[n], top[n], wide, tall, kind=kind, fill=fill, tip=plane.tip(n)))
        if plane.is_read and kind == "box":
            out.append(rectangle(left[n], top[n], wide, tall, kind="hatch"))
        label = plane.labels[owner]
        if wide >= 7 + 6 * len(label) and tall >= 13:
            middle, base = left[n] + wide / 2, top[n] + tall / 2 + 3.5
            inside.append(text(middle, base, label, kind="inside", fill=ink(fill)))
    if not plane.is_read:
        out.append(rectangle(x, y, width, height, kind="frame"))
    return out + inside


def _place(box: Box) -> str:
    return f"origin {list(box.origin)}, extent {list(box.shape)}"


def _folded(shape: tuple[int, ...], fold: int) -> str:
    """Return which axes are rows and which are columns, if that is not plain."""
    axes = [axis for axis, size in enumerate(shape) if size != 1]
    if len(axes) < 3:
        return ""
    rows, columns = (", ".join(map(str, part)) for part in (axes[:fold], axes[fold:]))
    return fitted(f"rows: axis {rows}; columns: axis {columns}", _LINE_COLUMNS)


def _numbers(ascending: Sequence[int]) -> str:
    """Return numbers as ranges.

    Example:
        >>> _numbers([0, 1, 2, 5])
        '0-2, 5'
    """
    column = ints(ascending)
    first = np.flatnonzero(np.diff(column, prepend=-2) != 1)
    last = np.append(first[1:], len(column)) - 1
    pairs = zip(column[first].tolist(), column[last].tolist(), strict=True)
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in pairs]
    if len(parts) > _MOST_RANGES:
        parts = [*parts[:_MOST_RANGES], f"... ({len(column)} in all)"]
    return ", ".join(parts)
