"""The form of what is written, and which of several checkpoints is the newest (spec 14, 16)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bcpformat
from bcpformat import ErrorCode, LocalStore, MemoryStore, WriteOptions
from bcpformat.engine.options import CodecName
from bcpformat.model.manifest import MANIFEST_KEY, Manifest
from bcpformat.wire import encode_manifest
from tests.rules_state.hostile import (
    accepted,
    data_key,
    found_by_validation,
    manifest_of,
    objects_of,
    with_manifest,
    written,
)

STATE = {"w": np.arange(300, dtype=np.float32), "b": [np.arange(5), None], "n": 1}


# ---- determinism and size ----------------------------------------------------------------------


def anonymous(store: MemoryStore) -> tuple[Manifest, bytes]:
    """Return manifest and data of a checkpoint without attempt id and time."""
    manifest = manifest_of(store)
    (row,) = manifest.files
    attempt = bytes(16)
    data = store.read(data_key(store))[64:]
    files = [replace(row, name="a.bcd", attempt_id=attempt)]
    return replace(manifest, attempt_id=attempt, created_us=0, files=files), data


@pytest.mark.parametrize("codec", ["raw", "zstd", "planes-zstd"])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_state_gives_the_same_bytes(codec: CodecName, threads: int) -> None:
    """BCP-CAN-001: but for attempt id and time, also with other threads."""
    state = {**STATE, "long": np.arange(2**18, dtype=np.float32)}
    first = anonymous(written(state, codec=codec))
    again = MemoryStore()
    bcpformat.write(again, state, options=WriteOptions(codec=codec, threads=threads))

    second = anonymous(again)

    assert first[1] == second[1]
    documents = [encode_manifest(m, codec="zstd") for m, _ in (first, second)]
    assert documents[0] == documents[1]


@pytest.mark.parametrize(("nbytes", "objects"), [(65_536, 0), (65_537, 1)])
@pytest.mark.parametrize("make", [bytes, bytearray, lambda n: "x" * n])
def test_large_values_are_stored_as_objects(nbytes: int, objects: int, make: Any) -> None:
    """BCP-CAN-002."""
    store = written({"v": make(nbytes)})

    assert len(manifest_of(store).objects) == objects
    assert accepted(store)["v"] == make(nbytes)


def test_sections_are_compressed_where_that_is_shorter() -> None:
    """BCP-CAN-003."""
    store = written({f"layer{n}": np.zeros(1) for n in range(300)})
    manifest = manifest_of(store)

    stored = len(store.read(MANIFEST_KEY))

    assert stored == len(encode_manifest(manifest, codec="zstd"))
    assert stored < len(encode_manifest(manifest, codec="none")) / 3


# ---- which checkpoint is it --------------------------------------------------------------------


def test_a_checkpoint_is_where_a_manifest_is_and_nowhere_else(tmp_path: Path) -> None:
    """BCP-DIS-001: not by a directory's name, a marker or a pointer."""
    for name in ("step-900", "done", "x"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-900" / "COMMITTED").touch()
    (tmp_path / "latest").write_text("step-900")
    bcpformat.write(tmp_path / "x", STATE, step=3)

    assert bcpformat.latest(tmp_path) == str(tmp_path / "x")
    with pytest.raises(bcpformat.ObjectNotFoundError) as caught:
        bcpformat.read(tmp_path / "step-900")
    assert caught.value.code is ErrorCode.NOT_COMMITTED


def test_the_newest_is_decided_by_step_then_by_time_among_those_that_validate() -> None:
    """BCP-DIS-001: one without a step is older than all with one."""
    root = MemoryStore()

    def add(name: str, step: int | None, created_us: int) -> None:
        store = with_manifest(
            written(STATE, step=step), lambda m: replace(m, created_us=created_us)
        )
        for key, data in objects_of(store).items():
            root.put_if_absent(f"{name}/{key}", data)

    def newest() -> str:
        found = bcpformat.latest(root)
        assert isinstance(found, MemoryStore)
        manifest = manifest_of(found)
        return f"{manifest.step} {manifest.created_us}"

    assert bcpformat.latest(root) is None
    add("step-900", None, 900)
    assert newest() == "None 900"
    add("a", 0, 5)
    assert newest() == "0 5"
    add("b", 7, 1)
    add("c", 7, 2)
    add("aa", 6, 99)
    assert newest() == "7 2"
    add("damaged", 8, 1)
    root.delete(next(i.key for i in root.list("damaged/data/")))
    assert newest() == "7 2"


def test_a_deletion_that_begins_with_the_manifest_never_leaves_a_damaged_checkpoint(
    tmp_path: Path,
) -> None:
    """BCP-DEL-001: nothing here deletes a checkpoint; who does it in this order is safe."""
    bcpformat.write(tmp_path / "c", STATE)
    store = LocalStore(tmp_path / "c")

    store.delete(MANIFEST_KEY)

    assert found_by_validation(store) == [ErrorCode.NOT_COMMITTED]
    store.delete(data_key(store))
    assert found_by_validation(store) == [ErrorCode.NOT_COMMITTED]
    bcpformat.write(tmp_path / "c", STATE)
    accepted(store)
