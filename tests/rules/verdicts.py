"""What the package says of a checkpoint: the values it reads, or the code it refuses with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import bcpformat
from bcpformat import BcpError, ErrorCode, MemoryStore, PerRankValues, ReadOptions
from tests.rules.build import EXPECTED, Draft, Objects, Parts

OPTIONS = ReadOptions(threads=1)


def store_of(made: Draft | Parts | Objects) -> MemoryStore:
    """Return a store that holds a checkpoint."""
    objects = made.encoded() if isinstance(made, Draft) else made
    objects = objects.objects() if isinstance(objects, Parts) else objects
    store = MemoryStore()
    for key, data in objects.items():
        store.put_if_absent(key, data)
    return store


def shown(value: object) -> object:
    """Return what was read with arrays as data type, shape and bytes."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, PerRankValues | Mapping):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shown(item) for item in value]
    if isinstance(value, tuple):
        return tuple(shown(item) for item in value)
    return value


def read(made: Draft | Parts | Objects, *, options: ReadOptions = OPTIONS) -> object:
    """Return the values that the package reads."""
    return shown(bcpformat.read(store_of(made), as_numpy=True, options=options))


def problems(made: Draft | Parts | Objects) -> list[str]:
    """Return the codes of the problems that full validation finds, each once."""
    report = bcpformat.validate(store_of(made), options=OPTIONS)
    return list(dict.fromkeys(problem.code.value for problem in report.problems))


def accept(made: Draft | Parts | Objects, expected: object = EXPECTED) -> None:
    """Assert that a checkpoint is read, with these values, and is valid."""
    assert problems(made) == []
    assert read(made) == expected


def refuse(made: Draft | Parts | Objects, code: str) -> None:
    """Assert that reading and validation both refuse a checkpoint, with this code alone."""
    assert read_code(made) == code
    assert problems(made) == [code]


def read_code(made: Draft | Parts | Objects) -> str:
    """Return the code that reading refuses a checkpoint with."""
    with pytest.raises(BcpError) as caught:
        read(made)
    assert isinstance(caught.value.code, ErrorCode)
    return caught.value.code.value


def refuse_to_open(made: Draft | Parts | Objects, code: str) -> None:
    """Assert that a checkpoint is refused, with this code alone, before any data is asked for."""
    with pytest.raises(BcpError) as caught:
        bcpformat.open(store_of(made), options=OPTIONS)

    assert caught.value.code.value == code
    refuse(made, code)


def find_only_by_validation(made: Draft | Parts | Objects, code: str) -> None:
    """Assert that reading returns the values of `base()`, and that validation finds a problem."""
    assert read(made) == EXPECTED
    assert problems(made) == [code]
