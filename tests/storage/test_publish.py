"""Publishing: exactly one wins, nothing torn is seen, nothing uncertain is called done."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bcpformat.errors import ErrorCode, ObjectExistsError, StorageError
from bcpformat.storage import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """Return a store in an empty directory."""
    return LocalStore(tmp_path)


def failing(number: int) -> Callable[..., None]:
    """Return a system call that fails."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


class Syncs:
    """A stand-in for `os.fsync` that notes what is synced and may fail on directories."""

    def __init__(self, *, fail_on: str | None = None) -> None:
        self.paths: list[str] = []
        self._fail_on = fail_on
        self._fsync = os.fsync

    def __call__(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        self.paths.append(path)
        if path == self._fail_on:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._fsync(fd)


def test_leftover_of_a_crash_is_listed_and_stands_in_nobodys_way(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", die)
        patch.setattr(os, "unlink", failing(errno.EIO))
        with pytest.raises(Killed):
            store.put_if_absent("manifest.bcp", b"torn")

    store.put_if_absent("manifest.bcp", b"whole")
    left, published = store.list()
    assert left.key.startswith(".manifest.bcp.tmp-")
    assert published.key == "manifest.bcp"
    assert store.read("manifest.bcp") == b"whole"
    store.delete(left.key)
    assert [info.key for info in store.list()] == ["manifest.bcp"]


def test_lost_reply_of_the_link_is_success(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def link_and_fail(
        source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int, follow_symlinks: bool
    ) -> None:
        link(
            source,
            target,
            src_dir_fd=src_dir_fd,
            dst_dir_fd=dst_dir_fd,
            follow_symlinks=follow_symlinks,
        )
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))

    monkeypatch.setattr(os, "link", link_and_fail)

    store.put_if_absent("x", b"abc")

    assert [info.key for info in store.list()] == ["x"]
    assert store.read("x") == b"abc"


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_file_system_without_hard_links_publishes_by_rename(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "link", failing(number))

    store.put_if_absent("x", b"abc")

    assert [info.key for info in store.list()] == ["x"]
    assert store.read("x") == b"abc"


def test_rename_that_finds_a_rival_replaces_nothing(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bcpformat.storage import publish

    rename = publish._rename_noreplace

    def rival_first(directory: int, temporary: str, name: str) -> None:
        Path(store.describe(), name).write_bytes(b"rival")
        rename(directory, temporary, name)

    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    monkeypatch.setattr(publish, "_rename_noreplace", rival_first)

    with pytest.raises(ObjectExistsError):
        store.put_if_absent("x", b"abc")
    assert store.read("x") == b"rival"
    assert [info.key for info in store.list()] == ["x"]


def test_file_system_without_either_is_refused_with_words(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    monkeypatch.setattr("bcpformat.storage.publish._rename_noreplace", failing(errno.EINVAL))

    with pytest.raises(StorageError, match="neither hard links nor a rename"):
        store.put_if_absent("x", b"abc")
    assert store.list() == []


def test_failed_link_publishes_nothing(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing(errno.ENOSPC))

    with pytest.raises(StorageError, match=r"cannot publish 'x'.*free some space") as failed:
        store.put_if_absent("x", b"abc")
    assert failed.value.code is ErrorCode.IO
    assert store.list() == []


def test_directory_that_cannot_be_synced_makes_the_publication_uncertain(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", Syncs(fail_on=str(tmp_path)))

    with pytest.raises(StorageError, match="may not survive") as failed:
        store.put_if_absent("x", b"abc")
    assert failed.value.code is ErrorCode.UNCERTAIN


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBADF])
def test_file_system_that_cannot_sync_directories_is_taken_at_its_word(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr("bcpformat.storage.posix.os.fsync", failing(number))

    with pytest.raises(StorageError, match=r"cannot publish"):
        store.put_if_absent("x", b"abc")

    monkeypatch.undo()
    fsync = os.fsync

    def only_files(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(number, os.strerror(number))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", only_files)
    store.put_if_absent("x", b"abc")
    assert store.read("x") == b"abc"


def test_publishing_syncs_the_file_and_every_new_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs()
    monkeypatch.setattr(os, "fsync", syncs)

    LocalStore(tmp_path / "a" / "b").put_if_absent("data/x", b"abc")

    assert syncs.paths[-1] == str(tmp_path / "a/b/data")
    assert ".x.tmp-" in syncs.paths[-2]
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a/b")} <= set(syncs.paths)


def test_names_created_before_are_durable_before_the_publication(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.create("data/x", nbytes_hint=None) as writer:
        writer.finish(0)
    syncs = Syncs()
    monkeypatch.setattr(os, "fsync", syncs)

    store.put_if_absent("manifest.bcp", b"abc")

    temporary = next(path for path in syncs.paths if ".manifest.bcp.tmp-" in path)
    assert str(tmp_path / "data") in syncs.paths[: syncs.paths.index(temporary)]


def test_sync_makes_each_created_name_durable_once(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("data/x", "data/y", "z"):
        with store.create(key, nbytes_hint=None) as writer:
            writer.finish(0)
    syncs = Syncs()
    monkeypatch.setattr(os, "fsync", syncs)

    store.child("data").sync()
    store.sync()

    assert syncs.paths == [str(tmp_path.parent), str(tmp_path), str(tmp_path / "data")]


def test_directory_found_is_synced_like_one_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    store = LocalStore(tmp_path)
    syncs = Syncs()
    monkeypatch.setattr(os, "fsync", syncs)

    with store.create("data/x", nbytes_hint=None) as writer:
        writer.finish(0)
    store.sync()

    assert str(tmp_path) in syncs.paths


def test_failed_sync_of_names_is_never_tried_again(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.create("data/x", nbytes_hint=None) as writer:
        writer.finish(0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Syncs(fail_on=str(tmp_path / "data")))
        with pytest.raises(StorageError, match=r"names in '.*data' durable"):
            store.sync()

    with pytest.raises(StorageError, match="since an earlier sync failed"):
        store.sync()
    with pytest.raises(StorageError, match="since an earlier sync failed"):
        store.put_if_absent("manifest.bcp", b"abc")
    assert [info.key for info in store.list()] == ["data/x"]


def test_interrupted_sync_of_names_is_done_by_the_next(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(fd: int) -> None:
        raise KeyboardInterrupt

    with store.create("data/x", nbytes_hint=None) as writer:
        writer.finish(0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.sync()
    syncs = Syncs()
    monkeypatch.setattr(os, "fsync", syncs)

    store.sync()

    assert syncs.paths == [str(tmp_path.parent), str(tmp_path), str(tmp_path / "data")]


def test_created_directory_that_vanished_fails_every_later_sync(
    store: LocalStore, tmp_path: Path
) -> None:
    with store.create("data/x", nbytes_hint=None) as writer:
        writer.finish(0)
    (tmp_path / "data").rename(tmp_path / "moved")

    for _ in range(2):
        with pytest.raises(StorageError, match="no directory 'data'"):
            store.sync()


def test_delete_is_durable(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_if_absent("data/x", b"")
    syncs = Syncs()
    monkeypatch.setattr(os, "fsync", syncs)

    store.delete("data/x")

    assert syncs.paths == [str(tmp_path / "data")]


def test_target_that_cannot_be_looked_at_makes_the_publication_uncertain(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat_file = os.stat

    def link(*_: object, **__: object) -> None:
        monkeypatch.setattr(os, "stat", failing(errno.EIO))
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", link)

    with pytest.raises(StorageError, match="it is unknown whether 'x' was published") as failed:
        store.put_if_absent("x", b"abc")
    monkeypatch.setattr(os, "stat", stat_file)
    assert failed.value.code is ErrorCode.UNCERTAIN


def test_parent_of_the_root_that_is_closed_to_us_is_left_alone(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bcpformat.storage.names.sync_path", failing(errno.EACCES))

    store.put_if_absent("x", b"abc")

    assert store.read("x") == b"abc"


def test_parent_of_the_root_that_cannot_be_synced_fails_the_publication(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bcpformat.storage.names.sync_path", failing(errno.EIO))

    with pytest.raises(StorageError, match="durable"):
        store.put_if_absent("x", b"abc")
    assert store.list() == []
