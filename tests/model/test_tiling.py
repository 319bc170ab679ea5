"""Flat ranges cut into boxes for many regions at once, against the walk for one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.model.region import Box, Region
from bcpformat.model.tiling import Rows, cut_ranges


@st.composite
def regions(draw: st.DrawFn) -> list[Region]:
    """Up to eight regions with the same number of axes, at least one."""
    axes = draw(st.integers(1, 4))
    found = []
    for _ in range(draw(st.integers(1, 8))):
        shape = tuple(draw(st.integers(1, 5)) for _ in range(axes))
        box = Box(origin=tuple(draw(st.integers(0, 9)) for _ in range(axes)), shape=shape)
        start = draw(st.integers(0, box.numel - 1))
        found.append(Region(box=box, start=start, count=draw(st.integers(1, box.numel - start))))
    return found


@given(regions())
def test_every_range_is_cut_into_the_boxes_of_its_region(found: list[Region]) -> None:
    rows = Rows(
        tensor=np.arange(len(found)) * 10,
        origin=np.array([r.box.origin for r in found]).T,
        extent=np.array([r.box.shape for r in found]).T,
        start=np.array([r.start for r in found]),
        count=np.array([r.count for r in found]),
    )

    cut = cut_ranges(rows)

    boxes = [(row * 10, box) for row, region in enumerate(found) for box, _ in region.boxes()]
    assert cut.tensor.tolist() == [row for row, _ in boxes]
    assert cut.origin.T.tolist() == [list(box.origin) for _, box in boxes]
    assert cut.extent.T.tolist() == [list(box.shape) for _, box in boxes]
    assert cut.start.tolist() == [0] * len(boxes)
    assert cut.count.tolist() == [box.numel for _, box in boxes]
