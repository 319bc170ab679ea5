"""Random indices as numpy's basic indexing takes them."""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import numpy as np
from hypothesis import strategies as st

Part = int | np.integer[Any] | slice | EllipsisType | None


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> Part | tuple[Part, ...]:
    """An index that fits a shape: ints, slices of any step, None and one Ellipsis."""
    used = draw(st.integers(0, len(shape)))
    dots = draw(st.integers(0, used)) if used < len(shape) or draw(st.booleans()) else None
    front = used if dots is None else dots
    axes = [*range(front), *range(len(shape) - used + front, len(shape))]
    parts: list[Part] = [draw(one_axis(shape[axis])) for axis in axes]
    if dots is not None:
        parts.insert(dots, ...)
    for _ in range(draw(st.integers(0, 2))):
        parts.insert(draw(st.integers(0, len(parts))), None)
    if len(parts) == 1 and draw(st.booleans()):
        return parts[0]
    return tuple(parts)


@st.composite
def one_axis(draw: st.DrawFn, size: int) -> Part:
    """An index of one axis."""
    if size and draw(st.integers(0, 2)) == 0:
        number = draw(st.integers(-size, size - 1))
        return np.int16(number) if draw(st.booleans()) else number
    bound = st.none() | st.integers(-2 * size - 2, 2 * size + 2)
    step = st.none() | st.integers(-4, 4).filter(bool) | st.sampled_from([-1000, 1000])
    return slice(draw(bound), draw(bound), draw(step))
