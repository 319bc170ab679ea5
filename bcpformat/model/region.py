"""Boxes and regions: where a piece lies in its tensor (spec 8.2).

A region is an N-d box of a tensor and a flat range of the row-major elements of that box.
Everything that works on elements works on boxes, so this module also cuts a flat range into
the few boxes that hold it.  All numbers are elements, never bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from bcpformat.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """An N-d box: the elements from ``origin`` to ``origin + shape``.

    Attributes:
        origin: First element, shape `(ndim,)`, in the coordinates of the tensor.
        shape: Size on each axis in elements, shape `(ndim,)`, at least 0.

    Raises:
        InvalidArgumentError: The two differ in length, or a number is negative.

    Example:
        >>> Box(origin=(1, 0), shape=(2, 4)).numel
        8
    """

    origin: tuple[int, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.origin) != len(self.shape):
            raise InvalidArgumentError(
                f"origin {self.origin} and shape {self.shape} must have the same number of axes"
            )
        if self.origin and (min(self.origin) < 0 or min(self.shape) < 0):
            raise InvalidArgumentError(
                f"origin {self.origin} and shape {self.shape} must not be negative"
            )

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Self:
        """Return the box of all elements of a tensor of ``shape``."""
        return cls(origin=(0,) * len(shape), shape=shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """The number of elements; 1 for a box without axes."""
        return math.prod(self.shape)

    @property
    def end(self) -> tuple[int, ...]:
        """The first position after the box on each axis, in the coordinates of ``origin``."""
        return tuple([o + s for o, s in zip(self.origin, self.shape, strict=True)])

    def intersect(self, other: Box) -> Box | None:
        """Return the box of the elements that both hold, or None if there are none.

        Args:
            other: A box in the same coordinates.

        Raises:
            InvalidArgumentError: The boxes differ in their number of axes.
        """
        self._require_same_ndim(other)
        origin: list[int] = []
        shape: list[int] = []
        for a, a_size, b, b_size in zip(
            self.origin, self.shape, other.origin, other.shape, strict=True
        ):
            low = max(a, b)
            high = min(a + a_size, b + b_size)
            if high <= low:
                return None
            origin.append(low)
            shape.append(high - low)
        return Box(origin=tuple(origin), shape=tuple(shape))

    def contains(self, other: Box) -> bool:
        """Return whether ``other`` lies within this box on every axis.

        Args:
            other: A box in the same coordinates.

        Raises:
            InvalidArgumentError: The boxes differ in their number of axes.
        """
        self._require_same_ndim(other)
        return all(
            low <= origin and origin + size <= low + space
            for low, space, origin, size in zip(
                self.origin, self.shape, other.origin, other.shape, strict=True
            )
        )

    def _require_same_ndim(self, other: Box) -> None:
        if len(self.shape) != len(other.shape):
            raise InvalidArgumentError(
                f"expected a box of {self.ndim} axes, got {other.ndim} axes in {other}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A flat range of the row-major elements of a box.

    Attributes:
        box: In tensor coordinates.
        start: First element of the range, in the row-major order of ``box``.
        count: Elements of the range, at least 0.

    Raises:
        InvalidArgumentError: The range does not lie within the box.

    Example:
        >>> Region(box=Box.whole((2, 3)), start=1, count=4).is_whole
        False
    """

    box: Box
    start: int
    count: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.count < 0 or self.start + self.count > self.box.numel:
            raise InvalidArgumentError(
                f"flat range from {self.start} of {self.count} elements must lie within the "
                f"{self.box.numel} elements of {self.box}"
            )

    @classmethod
    def whole(cls, box: Box) -> Self:
        """Return the region of all elements of ``box``."""
        return cls(box=box, start=0, count=box.numel)

    @property
    def is_whole(self) -> bool:
        """Whether the range is the whole box."""
        return self.count == self.box.numel

    def boxes(self) -> tuple[tuple[Box, int], ...]:
        """Return the boxes that hold the range, in row-major order.

        Returns:
            At most ``max(1, 2 * ndim - 1)`` pairs: a box in tensor coordinates, and the flat
            position of its first element in the row-major order of ``self.box``.  The elements
            of a box follow one another in that order; its offset in the region's own
            elements is the position less ``start``.

        Example:
            >>> region = Region(box=Box(origin=(4, 0), shape=(2, 3)), start=1, count=5)
            >>> [(box.origin, box.shape, flat) for box, flat in region.boxes()]
            [((4, 1), (1, 2), 1), ((5, 0), (1, 3), 3)]
        """
        if self.is_whole and self.count:
            return ((self.box, 0),)
        base = self.box.origin
        return tuple(
            [
                (
                    Box(
                        origin=tuple([b + o for b, o in zip(base, piece.origin, strict=True)]),
                        shape=piece.shape,
                    ),
                    flat,
                )
                for piece, flat in flat_range_boxes(
                    self.box.shape, self.start, self.start + self.count
                )
            ]
        )


def flat_range_boxes(shape: tuple[int, ...], start: int, stop: int) -> list[tuple[Box, int]]:
    """Return the boxes that hold a flat range of the row-major elements of ``shape``.

    The walk climbs from the innermost axis while its position is not aligned to the next
    axis, takes all whole slabs of the outermost axis as one box, and descends to the rest.

    Args:
        shape: Shape `(ndim,)`, in elements.
        start: First flat position, at least 0.
        stop: Flat position after the last one, at most the number of elements.

    Returns:
        At most ``max(1, 2 * ndim - 1)`` pairs in row-major order, none if the range is empty:
        a box in the coordinates of ``shape``, and the flat position of its first element.  The
        elements of each box are contiguous in the row-major order of ``shape``.

    Preconditions:
        ``0 <= start``, and ``stop`` is at most the number of elements; `Region` checks it.

    Example:
        >>> [(b.origin, b.shape, p) for b, p in flat_range_boxes((3, 4), 2, 9)]
        [((0, 2), (1, 2), 2), ((1, 0), (1, 4), 4), ((2, 0), (1, 1), 8)]
    """
    if start >= stop:
        return []
    ndim = len(shape)
    if ndim <= 1:
        return [(Box(origin=(start,) * ndim, shape=(stop - start,) * ndim), start)]
    units = [1] * ndim  # elements of one step on each axis
    for axis in range(ndim - 1, 0, -1):
        units[axis - 1] = units[axis] * shape[axis]
    out: list[tuple[Box, int]] = []
    position = start
    for axis in range(ndim - 1, 0, -1):
        unit = units[axis]
        misaligned = position % units[axis - 1]
        if misaligned:
            steps = min(units[axis - 1] - misaligned, stop - position) // unit
            if steps:
                out.append((_slab(shape, units, position, axis, steps), position))
                position += steps * unit
    for axis, unit in enumerate(units):
        steps = (stop - position) // unit
        if steps:
            out.append((_slab(shape, units, position, axis, steps), position))
            position += steps * unit
    return out


def _slab(shape: tuple[int, ...], units: list[int], position: int, axis: int, steps: int) -> Box:
    """Return the box of ``steps`` on ``axis`` from ``position``, whole on the axes after it."""
    origin = [0] * len(shape)
    rest = position
    for index in range(axis + 1):
        origin[index], rest = divmod(rest, units[index])
    return Box(origin=tuple(origin), shape=(1,) * axis + (steps,) + shape[axis + 1 :])
