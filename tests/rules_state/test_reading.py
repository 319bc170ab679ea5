"""What a reader does, in order, and on damage (spec 13, 17)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bcpformat
from bcpformat import ErrorCode, MemoryStore
from bcpformat.model.manifest import MANIFEST_KEY
from bcpformat.testing.faulty_store import FaultyStore
from bcpformat.wire import HEADER_BYTES
from tests.rules_state.hostile import (
    OPTIONS,
    accepted,
    data_key,
    found_by_validation,
    manifest_of,
    objects_of,
    read,
    refused,
    store_of,
    with_documents,
    with_state,
    written,
)

W = np.arange(2**19, dtype=np.float32)  # a run of its own
STATE = {"w": W, "x": W + 1, "n": 1}


def flipped(store: MemoryStore, *positions: int) -> MemoryStore:
    """Return a copy with a bit of each of some bytes of its data file flipped."""
    objects = objects_of(store)
    data = bytearray(objects[data_key(store)])
    for position in positions:
        data[position] ^= 1
    return store_of({**objects, data_key(store): bytes(data)})


# ---- parts -------------------------------------------------------------------------------------


def test_what_is_damaged_is_refused_and_the_rest_is_read() -> None:
    """BCP-RDR-003, BCP-RDR-001: by the rows that a read uses."""
    store = written(STATE)
    damaged = flipped(store, int(manifest_of(store).runs.position[0]))

    rest = bcpformat.read(damaged, filter="x", as_numpy=True)
    with pytest.raises(bcpformat.ChecksumError) as caught:
        bcpformat.read(damaged, filter="w", as_numpy=True)

    assert rest["x"].tobytes() == (W + 1).tobytes()
    assert caught.value.code is ErrorCode.BLOCK_CHECKSUM


def test_a_read_of_a_part_applies_the_rules_to_its_rows() -> None:
    """BCP-RDR-003: a region beyond its run is refused, whatever part of it is asked for."""
    store = written(STATE)

    def change(_root: dict[str, Any], sections: dict[str, Any]) -> None:
        for row in sections["tensors"]:
            row["shape"] = [2**19 + 16]

    with pytest.raises(bcpformat.FormatError) as caught:
        bcpformat.open(with_documents(store, change))["w"][:1]

    assert caught.value.code is ErrorCode.EXTENT_BOUNDS
    with bcpformat.open(store) as ckpt:
        assert ckpt["w"][:2].tolist() == [0, 1]


# ---- the order of the steps --------------------------------------------------------------------


def broken_magic(store: MemoryStore) -> MemoryStore:
    objects = objects_of(store)
    return store_of({**objects, MANIFEST_KEY: b"\x88" + objects[MANIFEST_KEY][1:]})


def broken_root(store: MemoryStore) -> MemoryStore:
    objects = objects_of(store)
    data = bytearray(objects[MANIFEST_KEY])
    data[HEADER_BYTES] ^= 1
    return store_of({**objects, MANIFEST_KEY: bytes(data)})


def broken_section(store: MemoryStore) -> MemoryStore:
    objects = objects_of(store)
    data = bytearray(objects[MANIFEST_KEY])
    data[-1] ^= 1
    return store_of({**objects, MANIFEST_KEY: bytes(data)})


def broken_feature(store: MemoryStore) -> MemoryStore:
    def change(root: dict[str, Any], _sections: dict[str, Any]) -> None:
        root["require"] = ["com.example.unknown"]

    return with_documents(store, change)


def broken_state(store: MemoryStore) -> MemoryStore:
    return with_state(store, [99])


def broken_file(store: MemoryStore) -> MemoryStore:
    objects = objects_of(store)
    return store_of({MANIFEST_KEY: objects[MANIFEST_KEY]})


def broken_table(store: MemoryStore) -> MemoryStore:
    return flipped(store, manifest_of(store).files[0].table_bytes)


def broken_block(store: MemoryStore) -> MemoryStore:
    return flipped(store, int(manifest_of(store).runs.position[0]))


STEPS: list[tuple[Callable[[MemoryStore], MemoryStore], ErrorCode]] = [
    (broken_magic, ErrorCode.MAGIC),
    (broken_root, ErrorCode.MANIFEST_CHECKSUM),
    (broken_feature, ErrorCode.FEATURE),
    (broken_section, ErrorCode.MANIFEST_CHECKSUM),
    (broken_state, ErrorCode.STATE),
    (broken_file, ErrorCode.FILE_MISSING),
    (broken_table, ErrorCode.TABLE_CHECKSUM),
    (broken_block, ErrorCode.BLOCK_CHECKSUM),
]


@pytest.mark.parametrize("first", range(len(STEPS)))
@pytest.mark.parametrize("second", range(len(STEPS)))
def test_the_first_step_that_fails_decides_the_code(first: int, second: int) -> None:
    """BCP-ERR-001: with two faults, the code of the earlier step."""
    store = written({"w": np.arange(40.0)})
    # made in this order, as what changes a manifest needs one that can be decoded
    makers = [broken_block, broken_table, broken_file, broken_state, broken_feature]
    makers += [broken_section, broken_root, broken_magic]
    for make in sorted({STEPS[first][0], STEPS[second][0]}, key=makers.index):
        store = make(store)

    assert refused(store) is STEPS[min(first, second)][1]


# ---- failures of what a reader stands on -------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [(MemoryError("4 GiB"), ErrorCode.BUDGET), (RecursionError(), ErrorCode.LIMIT)],
)
def test_exhausted_memory_or_stack_has_a_code(error: BaseException, code: ErrorCode) -> None:
    """BCP-ERR-002: at any operation of a read, an open, a slice, a validation and a save."""
    inner = written(STATE)
    calls: list[Callable[[bcpformat.Store], object]] = [
        read,
        lambda s: bcpformat.open(s)["w"][3:5],
        lambda s: bcpformat.open(s).state(),
        lambda s: bcpformat.open(s)["w"].verify(),
        lambda s: bcpformat.validate(s, options=OPTIONS),
        lambda s: bcpformat.write(FaultyStore(s.child("c"), fail_at=0, error=error), STATE),
    ]
    for call in calls:
        count = FaultyStore(inner)
        if call is not calls[-1]:
            call(count)
        for at in range(max(1, len(count.operations))):
            with pytest.raises(bcpformat.LimitError) as caught:
                call(FaultyStore(inner, fail_at=at, error=error))
            assert caught.value.code is code
            assert caught.value.__cause__ is error


def test_text_that_is_not_utf8_has_a_code() -> None:
    """BCP-ERR-002: in a document."""
    store = written({"key": 1})

    assert accepted(with_state(store, [6, "k\xff", True]))
    assert refused(with_state(store, [6, "k\udcff", True])) is ErrorCode.MP_MALFORMED


def test_a_manifest_that_is_absent_is_no_checkpoint() -> None:
    """BCP-ERR-003."""
    for call in (read, bcpformat.open):
        with pytest.raises(bcpformat.ObjectNotFoundError) as caught:
            call(MemoryStore())
        assert caught.value.code is ErrorCode.NOT_COMMITTED


def test_a_data_file_that_is_absent_is_missing() -> None:
    """BCP-ERR-003: but only if it is needed."""
    store = broken_file(written(STATE))

    assert refused(store) is ErrorCode.FILE_MISSING
    assert bcpformat.read(store, filter="n", as_numpy=True) == {"n": 1}


@pytest.mark.parametrize("state", [STATE, {"r": bcpformat.PerRank(1), "o": "x" * 70_000}])
def test_a_failure_of_the_store_says_nothing_about_the_bytes(state: object) -> None:
    """BCP-ERR-003: `E_IO` at every operation of a read and of a validation."""
    inner = written(state)
    for call in (read, found_by_validation):
        count = FaultyStore(inner)
        call(count)
        for at in range(len(count.operations)):
            with pytest.raises(bcpformat.StorageError) as caught:
                call(FaultyStore(inner, fail_at=at))
            assert caught.value.code is ErrorCode.IO


def test_every_problem_is_reported_under_its_own_code() -> None:
    """BCP-ERR-004: two damaged blocks, and padding behind a run."""
    store = written({"w": W[:-1], "x": W[1:]})
    manifest = manifest_of(store)
    first, second = manifest.runs.position.tolist()
    end = second + int(manifest.runs.stored[1])

    report = bcpformat.validate(flipped(store, first, second + 2**18, end), options=OPTIONS)

    assert sorted(p.code.value for p in report.problems) == [
        "E_BLOCK_CHECKSUM",
        "E_BLOCK_CHECKSUM",
        "E_PADDING",
    ]
    assert report.damaged == ("w", "x")
