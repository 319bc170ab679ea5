"""A save that dies at any moment: committed and whole, or absent (spec 14, 20)."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import bcpformat
from bcpformat import BcpError, ErrorCode, LocalStore, MemoryStore, Store, WriteOptions
from bcpformat.engine.options import CodecName
from bcpformat.model.manifest import MANIFEST_KEY
from bcpformat.testing.faulty_store import Effect, FaultyStore
from tests.rules_state.hostile import found_by_validation, objects_of, read, store_of
from tests.rules_state.writer_process import state as large_state

REPOSITORY = Path(__file__).resolve().parents[2]
STATE = {
    "w": np.arange(300, dtype=np.float32),
    "r": bcpformat.PerRank({"seed": 3}),
    "o": "x" * 70_000,
    "n": 1,
}


def save(store: Store, codec: CodecName = "raw") -> None:
    bcpformat.write(store, STATE, step=1, options=WriteOptions(codec=codec, threads=1))


def operations(codec: CodecName) -> list[str]:
    """Return the operations of a save, in order."""
    store = FaultyStore(MemoryStore())
    save(store, codec)
    return [o.op for o in store.operations]


def check_absent_or_whole(store: Store, *, reported: bool) -> bool:
    """Check the promise, and return whether there is a checkpoint."""
    found = found_by_validation(store)
    if MANIFEST_KEY in [info.key for info in store.list()]:
        assert found == []
        assert np.array_equal(read(store)["w"], STATE["w"])
        return True
    assert found == [ErrorCode.NOT_COMMITTED]
    assert not reported
    return False


def attempt(store: Store, codec: CodecName) -> bool:
    """Save, and return whether success was reported."""
    try:
        save(store, codec)
    except BcpError:
        return False
    return True


def check_next_save(store: Store, *, committed: bool) -> None:
    """Check that what is left is in nobody's way."""
    if committed:
        with pytest.raises(bcpformat.ObjectExistsError):
            save(store)
        return
    save(store)
    assert found_by_validation(store) == []


@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("effect", ["fail", "late", "short"])
def test_a_crash_at_any_operation_leaves_nothing_or_a_whole_checkpoint(
    codec: CodecName, effect: Effect
) -> None:
    """BCP-CLS-005, BCP-WRT-003, BCP-WRT-004: and the next save at the same place succeeds."""
    names = operations(codec)
    committed = []
    for at, name in enumerate(names):
        if effect == "short" and name == "put_if_absent":
            continue  # a publication of half a manifest is no atomic step
        inner = MemoryStore()

        reported = attempt(FaultyStore(inner, fail_at=at, effect=effect, crash=True), codec)

        assert not reported
        committed.append(check_absent_or_whole(inner, reported=reported))
        check_next_save(inner, committed=committed[-1])
    # only a publication that took place before the crash has committed
    assert sum(committed) == (effect == "late")


@pytest.mark.parametrize("effect", ["fail", "late"])
def test_a_crash_at_any_operation_on_a_directory(tmp_path: Path, effect: Effect) -> None:
    """BCP-CLS-005."""
    for at in range(len(operations("raw"))):
        inner = LocalStore(tmp_path / f"{at}")

        reported = attempt(FaultyStore(inner, fail_at=at, effect=effect, crash=True), "raw")

        committed = check_absent_or_whole(inner, reported=reported)
        check_next_save(LocalStore(tmp_path / f"{at}"), committed=committed)


@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("effect", ["fail", "late"])
def test_a_failure_at_any_operation_removes_what_was_written(
    codec: CodecName, effect: Effect
) -> None:
    """BCP-WRT-005, BCP-DEL-002: unless the save succeeded; what others own stays."""
    others = {"data/left-over.bcd": b"1", "note.txt": b"2"}
    for at, name in enumerate(operations(codec)):
        inner = store_of(others)

        reported = attempt(FaultyStore(inner, fail_at=at, effect=effect), codec)

        committed = check_absent_or_whole(inner, reported=reported)
        assert committed == reported, name
        if not committed and not (effect == "late" and name == "create"):
            # a file whose creation was not acknowledged has nobody who could remove it
            assert objects_of(inner) == others, name
        check_next_save(inner, committed=committed)


def test_a_failure_to_clean_up_hides_nothing() -> None:
    """BCP-WRT-005: the first error is raised, and left-overs are in nobody's way."""
    put = len(operations("raw")) - 1

    class Stuck(MemoryStore):
        def delete(self, key: str) -> None:
            raise bcpformat.StorageError("read-only now", key=key)

    inner = Stuck()

    with pytest.raises(bcpformat.StorageError, match=f"operation {put}: put_if_absent"):
        save(FaultyStore(inner, fail_at=put))

    assert found_by_validation(inner) == [ErrorCode.NOT_COMMITTED]
    check_next_save(inner, committed=False)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("delay_seconds", [0.0, 0.02, 0.06, 0.2])
def test_a_killed_process_leaves_nothing_or_a_whole_checkpoint(
    tmp_path: Path, codec: CodecName, delay_seconds: float
) -> None:
    """BCP-CLS-005: SIGKILL while it writes, on a real directory."""
    location = tmp_path / "c"
    command = [sys.executable, "-m", "tests.rules_state.writer_process", str(location), codec]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(delay_seconds)
        process.kill()
        rest = process.stdout.read()

    store = LocalStore(location)
    found = found_by_validation(store)
    if rest == "done\n" or (location / MANIFEST_KEY).exists():
        assert found == []
        assert np.array_equal(read(store)["noise"], large_state()["noise"])
    else:
        assert found == [ErrorCode.NOT_COMMITTED]
        save(store)
        assert found_by_validation(store) == []
