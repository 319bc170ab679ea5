from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.interop.slices import row_major_indexes


@given(st.lists(st.integers(0, 5), max_size=4), st.integers(1, 40))
def test_indexes_cover_a_shape_once_in_row_major_order(shape: list[int], limit: int) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)

    parts = [array[i].reshape(-1) for i in row_major_indexes(tuple(shape), max_elements=limit)]

    assert np.array_equal(np.concatenate([*parts, np.empty(0, int)]), array.reshape(-1))
    assert all(0 < part.size <= limit for part in parts)
