from __future__ import annotations

import weakref

import numpy as np

from bcpformat.engine.gathered import GatheredColumn


def test_a_short_column_does_not_keep_the_buffers_of_its_parts() -> None:
    column = GatheredColumn("u4")
    kept = []
    for number in range(5):
        buffer = np.full(1000, number, dtype=np.int64)
        kept.append(weakref.ref(buffer))
        column.append(buffer[:1], 1)
        del buffer

    assert sum(ref() is not None for ref in kept) <= 1
    values = column.take()
    assert values is not None and values.tolist() == [0, 1, 2, 3, 4]


def test_the_only_array_is_taken_as_it_is() -> None:
    column = GatheredColumn("i8")
    values = np.arange(3, dtype=np.int64)
    column.append(values, 3)

    assert column.take() is values
