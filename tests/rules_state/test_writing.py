"""What a writer does until a checkpoint is durable, and what it writes (spec 14)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bcpformat
from bcpformat import CommitError, ErrorCode, MemoryStore, StorageError, WriteOptions
from bcpformat.api.save import encoded_state
from bcpformat.engine.coordinator import SoloCoordinator
from bcpformat.engine.options import CodecName
from bcpformat.engine.write import save
from bcpformat.model.manifest import MANIFEST_KEY
from bcpformat.testing.faulty_store import FaultyStore
from tests.rules_state.hostile import (
    accepted,
    data_key,
    found_by_validation,
    manifest_of,
    objects_of,
    refused,
    store_of,
    with_manifest,
    written,
)

STATE = {"w": np.arange(300, dtype=np.float32), "b": [np.arange(5), None], "n": 1}
ONE_THREAD = WriteOptions(threads=1)


# ---- attempts ----------------------------------------------------------------------------------


def test_every_attempt_has_an_id_of_its_own() -> None:
    """BCP-WRT-001, BCP-FIL-007: it stands in the manifest, in the header and name of its files."""
    ids = set()
    for _ in range(3):
        store = MemoryStore()
        report = bcpformat.write(store, STATE)
        head = store.read(data_key(store), nbytes=64)
        assert head[16:32] == report.attempt_id == manifest_of(store).attempt_id
        assert report.attempt_id.hex() in report.files[0]
        ids.add(report.attempt_id)

    assert len(ids) == 3


def test_a_committed_checkpoint_is_never_changed() -> None:
    """BCP-WRT-002."""
    store = written(STATE, step=1)
    before = objects_of(store)

    with pytest.raises(bcpformat.ObjectExistsError) as caught:
        bcpformat.write(store, {"other": 1}, step=2)

    assert caught.value.code is ErrorCode.EXISTS
    assert objects_of(store) == before


def test_a_save_does_not_touch_the_left_overs_of_another() -> None:
    """BCP-WRT-002, BCP-DEL-003: it cannot tell them from a save in progress."""
    others = {"data/0000-000000-000000.bcd": b"unfinished", "notes.txt": b"of a person"}
    store = store_of(others)

    bcpformat.write(store, STATE)

    found = objects_of(store)
    assert {key: found[key] for key in others} == others
    assert bcpformat.validate(store).unreferenced == tuple(sorted(others))
    assert found_by_validation(store) == []


# ---- the order of a commit ---------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_the_manifest_is_published_last_and_once(codec: CodecName) -> None:
    """BCP-WRT-003, BCP-WRT-004: after every file is finished and its name durable."""
    store = FaultyStore(MemoryStore())

    bcpformat.write(store, STATE, options=WriteOptions(codec=codec, threads=1))

    names = [o.op for o in store.operations]
    assert names[-2:] == ["sync", "put_if_absent"]
    assert store.operations[-1].key == MANIFEST_KEY
    assert names.count("put_if_absent") == 1
    assert names.index("finish") < names.index("sync")
    assert names.count("create") == names.count("finish") == 1
    writes = [at for at, name in enumerate(names) if name == "write_at"]
    assert max(writes) < names.index("finish")


def test_on_posix_files_and_directories_are_durable_before_the_manifest_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BCP-WRT-003, BCP-WRT-004: fsync of the data file, of both directories, then `link`."""
    calls: list[tuple[str, str]] = []
    fsync, link = os.fsync, os.link

    def synced(descriptor: int) -> None:
        calls.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def linked(source: str, target: str, **arguments: Any) -> None:
        calls.append(("link", target))
        link(source, target, **arguments)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)

    report = bcpformat.write(tmp_path / "c", STATE, options=ONE_THREAD)

    at = calls.index(("link", MANIFEST_KEY))
    before, after = calls[:at], calls[at + 1 :]
    data = os.path.basename(report.files[0])
    assert before.index(("fsync", data)) < before.index(("fsync", "data"))
    assert {("fsync", "data"), ("fsync", "c"), ("fsync", tmp_path.name)} <= set(before)
    assert before[-1][0] == "fsync"
    assert before[-1][1].startswith(f".{MANIFEST_KEY}.tmp-")
    assert after == [("fsync", "c")]


def put_number(state: object) -> int:
    """Return the number of the operation that publishes the manifest."""
    store = FaultyStore(MemoryStore())
    bcpformat.write(store, state, options=ONE_THREAD)
    return len(store.operations) - 1


def test_a_lost_reply_of_our_own_publication_is_success() -> None:
    """BCP-WRT-005."""
    inner = MemoryStore()
    store = FaultyStore(inner, fail_at=put_number(STATE), effect="late")

    report = bcpformat.write(store, STATE, options=ONE_THREAD)

    assert manifest_of(inner).attempt_id == report.attempt_id
    accepted(inner)


def test_a_publication_that_did_not_take_place_is_a_failure() -> None:
    """BCP-WRT-005: nothing is there, and nothing is left."""
    inner = MemoryStore()

    with pytest.raises(StorageError) as caught:
        bcpformat.write(FaultyStore(inner, fail_at=put_number(STATE)), STATE, options=ONE_THREAD)

    assert caught.value.code is ErrorCode.IO
    assert inner.list() == []


class LateStore(MemoryStore):
    """A store to which somebody else commits at the moment of our publication."""

    def __init__(self, others: dict[str, bytes], code: ErrorCode | None) -> None:
        super().__init__()
        self._others = others
        self._code = code

    def put_if_absent(self, key: str, data: bytes) -> None:
        if key == MANIFEST_KEY:
            for other, content in self._others.items():
                super().put_if_absent(other, content)
        if self._code is not None:
            raise StorageError("the reply was lost", key=key, code=self._code)
        super().put_if_absent(key, data)


@pytest.mark.parametrize("code", [None, ErrorCode.IO, ErrorCode.UNCERTAIN])
def test_a_publication_of_somebody_else_is_found(code: ErrorCode | None) -> None:
    """BCP-WRT-005, BCP-DEL-002: with a reply or without one; only our own files are removed."""
    others = objects_of(written({"theirs": np.zeros(3)}))
    store = LateStore(others, code)

    with pytest.raises(CommitError) as caught:
        bcpformat.write(store, STATE)

    assert caught.value.code is ErrorCode.EXISTS
    assert caught.value.published is False
    assert objects_of(store) == others


def test_an_outcome_that_cannot_be_read_is_uncertain_and_keeps_the_data() -> None:
    """BCP-WRT-005: if it was published, its files must be there."""
    inner = MemoryStore()
    store = FaultyStore(inner, fail_at=put_number(STATE), effect="late", crash=True)

    with pytest.raises(CommitError) as caught:
        bcpformat.write(store, STATE, options=ONE_THREAD)

    assert caught.value.code is ErrorCode.UNCERTAIN
    assert caught.value.published is None
    accepted(inner)


def test_a_name_that_may_not_survive_is_not_reported_as_success(tmp_path: Path) -> None:
    """BCP-WRT-004: the directory's fsync after `link` failed."""

    class Unsure(MemoryStore):
        def put_if_absent(self, key: str, data: bytes) -> None:
            super().put_if_absent(key, data)
            raise StorageError("not durable", key=key, code=ErrorCode.UNCERTAIN)

    store = Unsure()

    with pytest.raises(CommitError) as caught:
        bcpformat.write(store, STATE)

    assert caught.value.code is ErrorCode.UNCERTAIN
    accepted(store)


# ---- what is written ---------------------------------------------------------------------------


def test_a_writer_refuses_what_breaks_a_rule_before_it_publishes() -> None:
    """BCP-WRT-006: here a state whose leaf is not at the path of its name."""
    store = MemoryStore()
    state = replace(encoded_state({"w": np.zeros(3)}), names=["v"])

    with pytest.raises(bcpformat.FormatError) as caught:
        save(
            store,
            lambda: state,
            step=1,
            coordinator=SoloCoordinator(),
            options=ONE_THREAD,
            progress=lambda _: None,
        )

    assert caught.value.code is ErrorCode.STATE
    assert store.list() == []


@pytest.mark.parametrize("codec", ["raw", "zstd", "planes-zstd"])
def test_padding_and_gaps_are_zero_whatever_memory_held_before(codec: CodecName) -> None:
    """BCP-WRT-007: the buffers hold noise of the save before."""
    noise = np.frombuffer(np.random.default_rng(1).bytes(2**23), np.uint8)
    written({"noise": noise, "view": noise[::2]}, codec=codec)
    odd = {f"t{n}": np.full(n, n, np.uint8) for n in range(1, 200, 7)}
    odd |= {f"f{n}": np.full(n, n, np.float16) for n in range(1, 50, 7)}

    store = written({**odd, "p": bcpformat.PerRank("x"), "t": noise[: 2**20 + 1]}, codec=codec)

    assert found_by_validation(store) == []
    if codec == "raw":
        manifest = manifest_of(store)
        data = bytearray(store.read(data_key(store)))
        data[:64] = bytes(64)
        (row,) = manifest.files
        data[row.table_bytes :] = b""
        pieces = [manifest.chunks, manifest.per_rank]
        runs = np.concatenate([p.run for p in pieces])
        offsets = np.concatenate([p.offset for p in pieces])
        nbytes = [
            int(np.prod(s)) * (2 if d == "float16" else 1)
            for s, d in zip(manifest.tensors.shapes, manifest.tensors.dtypes, strict=True)
        ]
        nbytes += manifest.per_rank.nbytes.tolist()
        for run, offset, size in zip(runs.tolist(), offsets.tolist(), nbytes, strict=True):
            at = int(manifest.runs.position[run]) + offset
            data[at : at + size] = bytes(size)
        assert not any(data)


@pytest.mark.parametrize("state", [{}, {"a": 1, "b": "text"}, {"a": np.zeros((0, 3))}])
def test_what_has_no_pieces_has_no_data_file(state: object) -> None:
    """BCP-WRT-008."""
    store = written(state)

    assert [info.key for info in store.list()] == [MANIFEST_KEY]
    accepted(store)


@pytest.mark.parametrize(
    ("array", "codec", "require"),
    [
        (np.zeros(3, np.float32), "raw", ()),
        (np.zeros(3, np.float32), "zstd", ()),
        (np.zeros(3, np.float32), "planes-zstd", ("planes-zstd",)),
        (np.zeros(3, np.uint8), "planes-zstd", ()),
        (np.zeros(3, np.uint8).view(ml_dtypes.uint4), "raw", ("subbyte",)),
        (np.zeros(3, np.uint8).view(ml_dtypes.uint4), "planes-zstd", ("subbyte",)),
    ],
)
def test_exactly_the_features_that_are_used_are_required(
    array: np.ndarray[Any, Any], codec: CodecName, require: tuple[str, ...]
) -> None:
    """BCP-WRT-009."""
    store = written({"w": array}, codec=codec)

    assert manifest_of(store).require == require
    accepted(store)


def test_a_feature_that_is_not_used_is_refused() -> None:
    """BCP-WRT-009."""
    store = written({"w": np.zeros(3)})

    for feature in ("subbyte", "planes-zstd"):
        changed = with_manifest(store, lambda m, f=feature: replace(m, require=(f,)))
        assert refused(changed) is ErrorCode.FEATURE
