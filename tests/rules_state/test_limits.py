"""Limits of checkpoints, of readers and of their callers (spec 18)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bcpformat
from bcpformat import ErrorCode, Limits, MemoryStore, ReadOptions
from bcpformat.model.manifest import DATA_PREFIX, MANIFEST_KEY
from bcpformat.testing.faulty_store import FaultyStore
from tests.rules_state.hostile import (
    OPTIONS,
    accepted,
    manifest_of,
    objects_of,
    read,
    refused,
    with_documents,
    with_manifest,
    with_state,
    written,
)

STATE = {"w": np.arange(2**19, dtype=np.float32), "x": np.arange(2**19, dtype=np.int32), "n": 1}


def shaped(shape: list[int]) -> MemoryStore:
    def change(_root: dict[str, Any], sections: dict[str, Any]) -> None:
        sections["tensors"][0]["shape"] = shape

    return with_documents(written({"w": np.arange(2.0)}), change)


def named(name: str) -> MemoryStore:
    def change(_root: dict[str, Any], sections: dict[str, Any]) -> None:
        sections["tensors"][0]["name"] = name
        sections["state"] = [6, name, [0, 0, 1]]

    return with_documents(written({"w": np.arange(2.0)}), change)


def nested(depth: int) -> MemoryStore:
    node: Any = True
    for _ in range(depth):
        node = [8, node]
    return with_state(written({"n": 1}), node)


def blocks(log2: int) -> MemoryStore:
    def change(_root: dict[str, Any], sections: dict[str, Any]) -> None:
        sections["runs"]["block"] = bytes([log2])

    return with_documents(written({"w": np.arange(2.0)}), change)


def stepped(step: int) -> MemoryStore:
    def change(root: dict[str, Any], _sections: dict[str, Any]) -> None:
        root["step"] = step

    return with_documents(written({"n": 1}), change)


@pytest.mark.parametrize(
    ("make", "largest", "above", "code"),
    [
        (lambda n: shaped([1] * (n - 1) + [2]), 32, 33, ErrorCode.RANGE),
        (lambda n: named("x" * n), 65_535, 65_536, ErrorCode.NAME),
        (nested, 128, 129, ErrorCode.DEPTH),
        (blocks, 30, 31, ErrorCode.RANGE),
        (stepped, 2**53 - 1, 2**53, ErrorCode.RANGE),
    ],
)
def test_a_checkpoint_at_a_hard_limit_is_read_and_one_above_is_refused(
    make: Callable[[int], MemoryStore], largest: int, above: int, code: ErrorCode
) -> None:
    """BCP-LIM-001, BCP-LIM-002."""
    accepted(make(largest))

    assert refused(make(above)) is code


@pytest.mark.parametrize(
    ("limits", "step"),
    [
        (Limits(files=0), "manifest"),
        (Limits(chunks=1), "manifest"),
        (Limits(section_bytes=100), "manifest"),
        (Limits(root_bytes=100), "manifest"),
        (Limits(table_bytes=8), "data"),
    ],
)
def test_what_is_above_a_readers_own_limit_is_refused(limits: Limits, step: str) -> None:
    """BCP-LIM-002: by a validator too, in its report."""
    store = written(STATE)
    options = replace(OPTIONS, limits=limits)

    with pytest.raises(bcpformat.LimitError) as caught:
        bcpformat.read(store, as_numpy=True, options=options)
    report = bcpformat.validate(store, options=options)

    assert caught.value.code is ErrorCode.LIMIT
    assert [p.code for p in report.problems] == [ErrorCode.LIMIT]
    if step == "data":
        bcpformat.open(store, options=options).close()


def test_a_manifest_of_any_length_costs_no_more_than_its_root_allows() -> None:
    """BCP-LIM-002, BCP-RDR-002: what follows the last section is never allocated."""
    store = written({"n": 1})

    class Endless(MemoryStore):
        """A manifest that claims a length of 2^50 bytes."""

        def read(self, key: str, *, offset_bytes: int = 0, nbytes: int | None = None) -> bytes:
            assert nbytes is not None, "a read without a bound"
            data = store.read(key, offset_bytes=offset_bytes, nbytes=nbytes)
            return data.ljust(nbytes, b"\0")

        def open_reader(self, key: str, *, direct: bool) -> Any:
            inner = store.open_reader(key, direct=direct)

            class Reader:
                nbytes = 2**50

                def read_into(self, offset_bytes: int, out: Any) -> int:
                    assert len(out) <= 2**20
                    data = store.read(key, offset_bytes=offset_bytes, nbytes=len(out))
                    out[:] = data.ljust(len(out), b"\0")
                    return len(out)

                def close(self) -> None:
                    inner.close()

            return Reader()

    with pytest.raises(bcpformat.FormatError) as caught:
        bcpformat.read(Endless())

    assert caught.value.code is ErrorCode.LENGTH


def test_a_manifest_of_more_than_1_mib_is_read_through_one_handle() -> None:
    """BCP-SEC-003, BCP-MAN-012: after the first request, which was not enough."""
    rng = np.random.default_rng(1)
    state = {"bytes": [rng.bytes(60_000) for _ in range(40)], "w": np.arange(3)}
    inner = written(state)
    assert len(inner.read(MANIFEST_KEY)) > 2**21
    store = FaultyStore(inner)

    back = read(store)

    assert back["bytes"] == state["bytes"]
    names = [o.op for o in store.operations if o.key == MANIFEST_KEY]
    assert names.count("open_reader") == 1
    assert names.count("read") == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c["zeros"].read(),
        lambda c: c.state(),
        lambda c: c["zeros"][1:],
    ],
)
def test_a_read_above_the_budget_is_refused_before_it_allocates(call: Any) -> None:
    """BCP-LIM-003: 64 MiB of zeros, which are some kilobytes as stored."""
    store = written({"zeros": np.zeros(2**23), "n": 1}, codec="zstd")
    options = ReadOptions(budget_bytes=2**24, threads=1)
    with bcpformat.open(store, options=options) as ckpt:
        tracemalloc.start()
        with pytest.raises(bcpformat.LimitError) as caught:
            call(ckpt)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

        assert caught.value.code is ErrorCode.BUDGET
        assert peak < 2**24
        assert ckpt["zeros"][:4].tolist() == [0, 0, 0, 0]


def test_a_per_rank_value_and_an_object_above_the_budget_are_refused() -> None:
    """BCP-LIM-003."""
    options = ReadOptions(budget_bytes=2**16, threads=1)
    for state in ({"o": "x" * 10**6}, {"r": bcpformat.PerRank("x" * 10**6)}):
        with pytest.raises(bcpformat.LimitError) as caught:
            bcpformat.read(written(state), as_numpy=True, options=options)
        assert caught.value.code is ErrorCode.BUDGET


def test_a_writer_does_not_write_what_readers_may_refuse() -> None:
    """BCP-LIM-004: it does more than warn; here the root is above its floor."""
    store = MemoryStore()
    user = {"notes": bytes(2**26)}

    with pytest.raises(bcpformat.LimitError) as caught:
        bcpformat.write(store, {"w": np.zeros(3)}, options=bcpformat.WriteOptions(user=user))

    assert caught.value.code is ErrorCode.LIMIT
    assert store.list() == []


def test_the_names_of_a_store_are_those_of_the_format() -> None:
    """BCP-FIL-001: the manifest, and data files below `data/`."""
    store = written(STATE)

    assert {DATA_PREFIX + row.name for row in manifest_of(store).files} | {MANIFEST_KEY} == set(
        objects_of(store)
    )
    accepted(with_manifest(store, lambda m: m))
