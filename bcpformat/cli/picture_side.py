"""What stands beside the planes of a picture: data files and readers, by their bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bcpformat.cli.picture_svg import Drawn, fitted, rectangle, text
from bcpformat.cli.terminal import counted, human_bytes
from bcpformat.model.dtypes import DType
from bcpformat.model.manifest import DATA_PREFIX, Ints, Manifest, ints
from bcpformat.model.region import Box
from bcpformat.plan.resolve import ChunkIndex

MOST_BARS = 24
"""Bars of one chart; where there is more, a bar is for several that follow one another."""

WIDTH = 320
_ROW = 20
_BAR_AT = 128
_BAR = 80
_LABEL_COLUMNS = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """One row of a chart: what it is, how long its bar is, and what is said of it."""

    label: str
    colour: str
    nbytes: int
    words: str
    tip: str


def files_side(index: ChunkIndex, palette: Sequence[str]) -> Drawn:
    """Return the chart of the data files, by the bytes of each; `palette` has their colours."""
    manifest = index.manifest
    files = manifest.files
    file_of_chunk = manifest.runs.file[manifest.chunks.run]
    chunks = np.bincount(file_of_chunk, minlength=len(files)).tolist()
    ranks = _ranks(manifest)
    bars = []
    for group in _groups(len(files)):
        sizes = [files[row].nbytes for row in group]
        if len(group) == 1:
            row = group[0]
            rank = f" (rank {ranks[row]})" if row in ranks else ""
            tip = f"{DATA_PREFIX}{files[row].name}\n{counted(chunks[row], 'chunk')}"
            if rank:
                tip += f"\nhas the per-rank values of rank {ranks[row]}"
            label = f"file {row}{rank}"
        else:
            label = f"files {group[0]}-{group[-1]}"
            tip = f"{len(group)} files, {human_bytes(sum(sizes))}, {_span(sizes)} each"
        bars.append(
            _Bar(
                label=label,
                colour=palette[group[len(group) // 2]],
                nbytes=max(sizes),
                words=_up_to(sizes),
                tip=tip,
            )
        )
    return _chart("data files", bars, hatched=False)


def readers_side(
    index: ChunkIndex, wanted: Sequence[Mapping[int, Sequence[Box]]], palette: Sequence[str]
) -> Drawn:
    """Return the chart of the readers, by the bytes that each wants.

    Args:
        index: The chunks of the manifest.
        wanted: For each reader, the boxes of each tensor by the tensor's row.
        palette: Colour of each reader.
    """
    files = len(index.manifest.files)
    bars = []
    for group in _groups(len(wanted)):
        sizes, touched = [], []
        for reader in group:
            size, number = _reading(index, wanted[reader])
            sizes.append(size)
            touched.append(number)
        low, high = min(touched), max(touched)
        of_files = counted(high, "file") if low == high else f"{low}-{high} files"
        if len(group) == 1:
            label, tip = f"reader {group[0]}", f"reads from {high} of {counted(files, 'data file')}"
        else:
            label = f"readers {group[0]}-{group[-1]}"
            tip = f"{len(group)} readers, {_span(sizes)} each, of {of_files} each"
        bars.append(
            _Bar(
                label=label,
                colour=palette[group[len(group) // 2]],
                nbytes=max(sizes),
                words=f"{_up_to(sizes)}, {of_files}",
                tip=tip,
            )
        )
    return _chart("readers", bars, hatched=True)


def _reading(index: ChunkIndex, boxes: Mapping[int, Sequence[Box]]) -> tuple[int, int]:
    """Return the bytes a reader wants, and the number of data files that have them."""
    table = index.manifest.tensors
    tensors: list[int] = []
    wants: dict[int, Box] = {}
    nbytes = 0
    for row, found in boxes.items():
        for box in found:
            if box.numel:
                wants[len(tensors)] = box
                tensors.append(row)
                nbytes += DType.named(table.dtypes[row]).nbytes_of(box.numel)
    if not tensors:
        return 0, 0
    pieces, _ = index.resolve(ints(tensors), wants)
    return nbytes, len(np.unique(index.manifest.runs.file[pieces.run]))


def _ranks(manifest: Manifest) -> dict[int, int]:
    """Return the rank of each data file that has per-rank values of one rank."""
    table = manifest.per_rank
    found: dict[int, set[int]] = {}
    file: Ints = manifest.runs.file[table.run]
    for row, rank in zip(file.tolist(), table.rank.tolist(), strict=True):
        found.setdefault(row, set()).add(rank)
    return {row: min(ranks) for row, ranks in found.items() if len(ranks) == 1}


def _groups(number: int) -> list[range]:
    """Return at most `MOST_BARS` ranges of rows that follow one another."""
    step = max(1, -(-number // MOST_BARS))
    return [range(first, min(first + step, number)) for first in range(0, number, step)]


def _span(sizes: Sequence[int]) -> str:
    low, high = human_bytes(min(sizes)), human_bytes(max(sizes))
    return low if low == high else f"{low} to {high}"


def _up_to(sizes: Sequence[int]) -> str:
    largest = human_bytes(max(sizes))
    return largest if len(sizes) == 1 else f"up to {largest}"


def _chart(title: str, bars: Sequence[_Bar], *, hatched: bool) -> Drawn:
    longest = max((bar.nbytes for bar in bars), default=0)
    out = [text(0, 14, title, kind="head")]
    y = 26.0
    for bar in bars:
        length = _BAR * bar.nbytes / longest if longest else 0
        out.append(rectangle(0, y, 12, 12, kind="small", fill=bar.colour, tip=bar.tip))
        out.append(text(20, y + 10, fitted(bar.label, _LABEL_COLUMNS), kind="label"))
        out.append(rectangle(_BAR_AT, y, _BAR, 12, kind="track", tip=bar.tip))
        out.append(rectangle(_BAR_AT, y, length, 12, kind="small", fill=bar.colour, tip=bar.tip))
        if hatched:
            out.append(rectangle(0, y, 12, 12, kind="hatch"))
            out.append(rectangle(_BAR_AT, y, length, 12, kind="hatch"))
        out.append(text(WIDTH, y + 10, bar.words, kind="dim end"))
        y += _ROW
    if not bars:
        out.append(text(0, y + 10, "none", kind="dim"))
        y += _ROW
    return Drawn(elements=out, width=WIDTH, height=y)
