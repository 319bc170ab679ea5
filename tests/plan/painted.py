"""What a read needs, found by painting elements one by one: the oracle of the plan tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from bcpformat.model.dtypes import DType
from bcpformat.model.manifest import Ints, Manifest, ints
from bcpformat.model.region import Box
from bcpformat.plan.resolve import ChunkIndex
from tests.plan.layouts import boxes, long_rows, manifests, subbyte


@dataclass(frozen=True, slots=True)
class Read:
    """A manifest and the wants of a read: tensor and box; `whole` are those given without one."""

    manifest: Manifest
    wants: Sequence[tuple[int, Box]]
    whole: frozenset[int] = frozenset()

    @property
    def tensors(self) -> Ints:
        return ints([tensor for tensor, _ in self.wants])

    @property
    def boxes(self) -> dict[int, Box]:
        return {i: box for i, (_, box) in enumerate(self.wants) if i not in self.whole}

    def bits(self, want: int) -> int:
        return DType.named(self.manifest.tensors.dtypes[self.wants[want][0]]).bits

    def wanted(self, want: int) -> np.ndarray:
        """Return which elements of its tensor a want has, by their row-major position."""
        tensor, box = self.wants[want]
        mask = np.zeros(self.manifest.tensors.shapes[tensor], dtype=np.bool_)
        mask[slices(box)] = True
        return mask.reshape(-1)

    def taken(self, want: int) -> Iterator[tuple[int, Ints]]:
        """Yield chunks, and the positions in them of elements that a want has."""
        index = ChunkIndex(self.manifest)
        mask = self.wanted(want)
        for chunk in np.flatnonzero(index.geometry.tensor == self.wants[want][0]).tolist():
            found = np.flatnonzero(mask[stored(self.manifest, index, chunk)])
            if len(found):
                yield chunk, found

    def needed_blocks(self) -> set[tuple[int, int]]:
        """Return run and index of the blocks that hold a byte of a wanted element."""
        chunks, runs = self.manifest.chunks, self.manifest.runs
        blocks: set[tuple[int, int]] = set()
        for want in range(len(self.wants)):
            bits = self.bits(want)
            for chunk, found in self.taken(want):
                run = int(chunks.run[chunk])
                for byte in (found * bits // 8, ((found + 1) * bits - 1) // 8):
                    index = (int(chunks.offset[chunk]) + byte) >> int(runs.block_log2[run])
                    blocks |= {(run, i) for i in np.unique(index).tolist()}
        return blocks


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(o, e) for o, e in zip(box.origin, box.end, strict=True))


def stored(manifest: Manifest, index: ChunkIndex, chunk: int) -> Ints:
    """Return the row-major positions in the tensor of a chunk's elements, in stored order."""
    region = index.region(chunk)
    shape = manifest.tensors.shapes[int(index.geometry.tensor[chunk])]
    grid = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    return grid[slices(region.box)].reshape(-1)[region.start : region.start + region.count]


@st.composite
def reads(draw: st.DrawFn, layouts: st.SearchStrategy[Manifest] | None = None) -> Read:
    """A manifest, of any kind unless given, and up to four wants in it, some of the same tensor."""
    manifest = draw(st.one_of(manifests(), long_rows(), subbyte()) if layouts is None else layouts)
    full = [t for t, shape in enumerate(manifest.tensors.shapes) if 0 not in shape]
    wants, whole = [], set()
    for tensor in draw(st.lists(st.sampled_from(full), max_size=4)) if full else []:
        shape = manifest.tensors.shapes[tensor]
        kind = draw(st.sampled_from(["whole", "box", "box", "rows"]))
        if kind == "whole":
            whole.add(len(wants))
            wants.append((tensor, Box.whole(shape)))
        elif kind == "rows" and shape:
            rows = draw(boxes(shape[:1]))
            box = Box(origin=rows.origin + (0,) * (len(shape) - 1), shape=rows.shape + shape[1:])
            wants.append((tensor, box))
        else:
            wants.append((tensor, draw(boxes(shape))))
    return Read(manifest, wants, frozenset(whole))
