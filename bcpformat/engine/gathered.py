"""Columns that grow part by part, in little more memory than their values take."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from bcpformat.model.manifest import Ints, ints

Width: TypeAlias = Literal["u1", "u4", "i8"]
"""Type of the values while they are gathered; the caller knows that they fit."""

_BLOCK_ROWS = 2**16


class GatheredColumn:
    """A column of many parts, one after the other.

    Short arrays are put together now and then, so that neither they nor the buffers that they are
    views of add up.

    Example:
        >>> column = GatheredColumn("u4")
        >>> column.append(ints([1, 2]), 2)
        >>> column.append(None, 1)
        >>> column.take()
        array([1, 2, 0])
    """

    __slots__ = ("_blocks", "_few", "_few_rows", "_rows_before", "_width", "has_absent")

    def __init__(self, width: Width) -> None:
        self._width = width
        self._blocks: list[npt.NDArray[np.generic]] = []
        self._few: list[npt.NDArray[np.generic]] = []
        self._few_rows = 0
        self._rows_before = 0  # rows of parts that lack the column, before one that has it
        self.has_absent = False

    def append(self, values: Ints | None, rows: int) -> None:
        """Append the values of one part; None stands for that many zeros."""
        if not rows:  # an empty view keeps its buffer, too
            return
        if values is None:
            self.has_absent = True
            if not self._few and not self._blocks:
                self._rows_before += rows
                return
            values = np.zeros(rows, dtype=np.int64)
        elif self._rows_before:
            self._add(np.zeros(self._rows_before, dtype=self._width))
            self._rows_before = 0
        self._add(values)

    def _add(self, values: npt.NDArray[np.generic]) -> None:
        is_first = not self._few and not self._blocks
        # A view keeps the whole buffer of its part, whatever it shows of it.
        self._few.append(values if is_first else values.astype(self._width))
        self._few_rows += len(values)
        if self._few_rows >= _BLOCK_ROWS and len(self._few) > 1:
            self._blocks.append(np.concatenate(self._few, dtype=self._width, casting="unsafe"))
            self._few, self._few_rows = [], 0

    def take(self) -> Ints | None:
        """Return all values and forget them; None if no part had any.

        Returns:
            The array itself if there is just one.
        """
        arrays = [*self._blocks, *self._few]
        self._blocks, self._few, self._few_rows = [], [], 0
        if len(arrays) == 1:
            return ints(arrays[0])
        if not arrays:
            return None
        return np.concatenate(arrays, dtype=np.int64, casting="unsafe")
