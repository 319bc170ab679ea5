"""`validate` and `latest`: what is whole, what is not, and which is the newest."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import bcpformat
from bcpformat import ErrorCode, MemoryStore
from bcpformat.testing.faulty_store import FaultyStore


def flip(path: Path, *, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def data_file(location: Path) -> Path:
    (path,) = (location / "data").iterdir()
    return path


def test_the_levels_read_what_they_say() -> None:
    store = FaultyStore(MemoryStore())
    bcpformat.write(store, {"w": np.zeros(2**20)})
    seen: list[int] = []
    before = store.bytes_read

    quick = bcpformat.validate(store, level="manifest")
    between = store.bytes_read
    full = bcpformat.validate(store, progress=seen.append)

    assert quick.ok
    assert full.ok
    assert between - before < 2**17
    assert quick.checked_bytes == 0
    assert full.checked_bytes == 2**23 == sum(seen)
    assert (quick.level, full.level) == ("manifest", "full")


def test_a_level_that_is_none_is_refused() -> None:
    with pytest.raises(bcpformat.InvalidArgumentError, match="level"):
        bcpformat.validate(MemoryStore(), level="half")  # type: ignore[arg-type]


def test_damage_is_reported_block_by_block_with_the_names_in_it(tmp_path: Path) -> None:
    state = {"big": np.zeros(2**18), "a": np.ones(3), "b": np.ones(3), "r": bcpformat.PerRank(1)}
    bcpformat.write(tmp_path, state)
    size = data_file(tmp_path).stat().st_size
    flip(data_file(tmp_path), at=4096 + 5)
    flip(data_file(tmp_path), at=4096 + 2**20)
    flip(data_file(tmp_path), at=4096 + 2**21 + 64)

    quick, full = bcpformat.validate(tmp_path, level="manifest"), bcpformat.validate(tmp_path)

    assert size > 2**21
    assert quick.ok
    assert [p.code for p in full.problems] == [ErrorCode.BLOCK_CHECKSUM] * 3
    assert full.damaged == ("big", "a", "b")
    assert not full.ok


def test_a_lost_file_damages_everything_in_it(tmp_path: Path) -> None:
    state = {"w": np.ones(3), "s": "x" * 70_000, "r": bcpformat.PerRank(1)}
    bcpformat.write(tmp_path, state)
    data_file(tmp_path).unlink()

    report = bcpformat.validate(tmp_path, level="manifest")

    assert [p.code for p in report.problems] == [ErrorCode.FILE_MISSING]
    assert report.damaged == ("w", "s", "per-rank value 0 of rank 0")


def test_what_the_manifest_does_not_name_is_listed_and_no_problem(tmp_path: Path) -> None:
    bcpformat.write(tmp_path, {"w": np.ones(3)})
    (tmp_path / "data" / "x.bcd").write_bytes(b"left over")
    (tmp_path / "notes.txt").write_text("mine")

    report = bcpformat.validate(tmp_path)

    assert report.ok
    assert report.unreferenced == ("data/x.bcd", "notes.txt")


def test_a_missing_or_damaged_manifest_is_a_problem_not_an_error(tmp_path: Path) -> None:
    missing = bcpformat.validate(tmp_path / "nothing")
    bcpformat.write(tmp_path / "c", {"w": np.ones(3)})
    flip(tmp_path / "c" / "manifest.bcp", at=70)
    damaged = bcpformat.validate(tmp_path / "c")
    (tmp_path / "c" / "manifest.bcp").write_bytes(b"")
    empty = bcpformat.validate(tmp_path / "c")

    assert [p.code for p in missing.problems] == [ErrorCode.NOT_COMMITTED]
    assert len(damaged.problems) == len(empty.problems) == 1
    assert len(damaged.unreferenced) == 1


def test_a_place_that_cannot_be_reached_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(bcpformat.StorageError):
        bcpformat.validate(tmp_path / "file")
    store = FaultyStore(MemoryStore(), fail_at=0)
    with pytest.raises(bcpformat.StorageError):
        bcpformat.validate(store)


def test_a_table_beyond_the_limits_is_a_problem() -> None:
    store = MemoryStore()
    bcpformat.write(store, {"w": np.zeros(2**16)})
    options = bcpformat.ReadOptions(limits=bcpformat.Limits(table_bytes=8))

    report = bcpformat.validate(store, options=options)

    assert [p.code for p in report.problems] == [ErrorCode.LIMIT]


# ---- latest ----------------------------------------------------------------------------------


def test_the_newest_is_that_of_the_highest_step(tmp_path: Path) -> None:
    for name, step in (("b", 3), ("a", 20), ("c", 100), ("z", 7), ("none", None)):
        bcpformat.write(tmp_path / name, {}, step=step)

    assert bcpformat.latest(tmp_path) == str(tmp_path / "c")
    assert bcpformat.latest(str(tmp_path)) == str(tmp_path / "c")


def test_of_equal_steps_the_later_made_is_newer_whatever_its_name(tmp_path: Path) -> None:
    for name in ("z", "m", "a", "k"):
        bcpformat.write(tmp_path / name, {}, step=5)

    assert bcpformat.latest(tmp_path) == str(tmp_path / "k")


def test_a_step_is_newer_than_none(tmp_path: Path) -> None:
    bcpformat.write(tmp_path / "with", {}, step=0)
    bcpformat.write(tmp_path / "without", {})

    assert bcpformat.latest(tmp_path) == str(tmp_path / "with")


def test_damaged_and_unfinished_ones_are_passed_over(tmp_path: Path) -> None:
    for step in range(6):
        bcpformat.write(tmp_path / str(step), {"w": np.ones(100)}, step=step)
    (tmp_path / "5" / "manifest.bcp").unlink()
    flip(tmp_path / "4" / "manifest.bcp", at=80)
    data_file(tmp_path / "3").unlink()
    with data_file(tmp_path / "2").open("ab") as file:
        file.truncate(5000)

    assert bcpformat.latest(tmp_path) == str(tmp_path / "1")


def test_foreign_things_are_ignored_and_untouched(tmp_path: Path) -> None:
    bcpformat.write(tmp_path / "good", {}, step=1)
    bcpformat.write(tmp_path / "deep" / "inner", {}, step=9)
    (tmp_path / "file").write_text("x")
    (tmp_path / "logs").mkdir()
    (tmp_path / "odd" / "manifest.bcp").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.bcp").write_text("not ours")
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "inner")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "back\\slash").mkdir()
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))).mkdir()
    before = sorted(map(str, tmp_path.rglob("*")))

    assert bcpformat.latest(tmp_path) == str(tmp_path / "good")
    assert sorted(map(str, tmp_path.rglob("*"))) == before


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert bcpformat.latest(tmp_path) is None
    assert bcpformat.latest(tmp_path / "nothing") is None
    assert bcpformat.latest(MemoryStore()) is None


def test_of_a_store_a_store_is_returned() -> None:
    root = MemoryStore()
    bcpformat.write(root.child("a"), {"n": 1}, step=1)
    bcpformat.write(root.child("b"), {"n": 2}, step=2)

    found = bcpformat.latest(root)

    assert isinstance(found, bcpformat.Store)
    assert bcpformat.read(found) == {"n": 2}


def test_of_a_url_a_url_is_returned(tmp_path: Path) -> None:
    root = tmp_path / "a b"
    bcpformat.write(root / "step 100%41", {"n": 1})

    found = bcpformat.latest(root.as_uri())

    assert isinstance(found, str)
    assert found.startswith("file://")
    assert bcpformat.read(found) == {"n": 1}


def test_a_place_that_fails_is_an_error_not_an_older_checkpoint() -> None:
    root = MemoryStore()
    for step in (1, 2):
        bcpformat.write(root.child(str(step)), {}, step=step)
    operations = FaultyStore(root)
    bcpformat.latest(operations)
    for number in range(len(operations.operations)):
        with pytest.raises(bcpformat.StorageError):
            bcpformat.latest(FaultyStore(root, fail_at=number))


def test_a_directory_that_nobody_may_read_is_passed_over(tmp_path: Path) -> None:
    root = MemoryStore()
    bcpformat.write(root.child("good"), {}, step=1)
    bcpformat.write(root.child("lost+found"), {}, step=2)

    class Locked(FaultyStore):
        """A store with one part that may not be read."""

        def child(self, prefix: str) -> FaultyStore:
            if prefix != "lost+found":
                return super().child(prefix)
            error = bcpformat.StorageError("permission denied", key="manifest.bcp")
            error.__cause__ = PermissionError()
            return FaultyStore(root.child(prefix), fail_at=0, error=error)

    found = bcpformat.latest(Locked(root))

    assert isinstance(found, FaultyStore)
    assert bcpformat.open(found).step == 1


def test_latest_looks_at_the_data_when_it_is_told_to(tmp_path: Path) -> None:
    for step in (1, 2):
        bcpformat.write(tmp_path / str(step), {"w": np.arange(1000)}, step=step)
    (victim,) = (tmp_path / "2" / "data").iterdir()
    data = bytearray(victim.read_bytes())
    data[5000] ^= 1
    victim.write_bytes(data)

    assert bcpformat.latest(tmp_path) == str(tmp_path / "2")
    assert bcpformat.latest(tmp_path, level="full") == str(tmp_path / "1")
