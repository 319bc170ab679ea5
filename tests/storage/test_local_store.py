"""What a directory as a store does beyond the suite: links, odd files, odd roots."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from bcpformat.errors import (
    ErrorCode,
    InvalidArgumentError,
    ObjectExistsError,
    StorageError,
)
from bcpformat.storage import LocalStore, ObjectInfo


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """Return a store in an empty directory."""
    return LocalStore(tmp_path)


def refuse_type(store: LocalStore, key: str, words: str) -> None:
    """Assert that a key is refused for what it is, by every way of reading."""
    for direct in (False, True):
        with pytest.raises(StorageError, match=words) as refused:
            store.open_reader(key, direct=direct)
        assert refused.value.code is ErrorCode.FILE_TYPE
        assert refused.value.key == key
    with pytest.raises(StorageError, match=words):
        store.read(key)


class TestOddFiles:
    def test_fifo_is_refused_without_waiting_for_a_writer(
        self, store: LocalStore, tmp_path: Path
    ) -> None:
        os.mkfifo(tmp_path / "x")

        refuse_type(store, "x", "found a FIFO")

    def test_symbolic_link_to_a_file_is_refused(self, store: LocalStore, tmp_path: Path) -> None:
        (tmp_path / "real").write_bytes(b"abc")
        (tmp_path / "x").symlink_to("real")

        refuse_type(store, "x", "found a symbolic link")

    def test_directory_is_refused_as_an_object(self, store: LocalStore, tmp_path: Path) -> None:
        (tmp_path / "x").mkdir()

        refuse_type(store, "x", "found a directory")
        with pytest.raises(StorageError, match="found a directory") as refused:
            store.delete("x")
        assert refused.value.code is ErrorCode.FILE_TYPE

    def test_socket_is_refused(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(tmp_path / "x"))

            refuse_type(LocalStore(tmp_path), "x", "found a socket")

    def test_device_is_refused(self) -> None:
        refuse_type(LocalStore("/dev"), "null", "found a character device")

    def test_file_behind_a_linked_data_directory_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "x").write_bytes(b"abc")
        root = tmp_path / "root"
        root.mkdir()
        (root / "data").symlink_to(tmp_path / "elsewhere")
        store = LocalStore(root)

        refuse_type(store, "data/x", "found a symbolic link")
        for act in (
            lambda: store.create("data/y", nbytes_hint=None),
            lambda: store.put_if_absent("data/y", b""),
            lambda: store.delete("data/x"),
            lambda: store.child("data").read("x"),
        ):
            with pytest.raises(StorageError, match="found a symbolic link"):
                act()
        assert os.listdir(tmp_path / "elsewhere") == ["x"]

    def test_root_may_be_a_symbolic_link(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "root").symlink_to("real")

        LocalStore(tmp_path / "root").put_if_absent("x", b"abc")

        assert (tmp_path / "real" / "x").read_bytes() == b"abc"

    def test_listing_names_links_and_fifos_and_follows_none(
        self, store: LocalStore, tmp_path: Path
    ) -> None:
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "loop").symlink_to(".")
        (tmp_path / "dangling").symlink_to("nowhere")
        store.put_if_absent("x", b"abc")

        assert store.list() == [
            ObjectInfo("dangling", 0),
            ObjectInfo("fifo", 0),
            ObjectInfo("loop", 0),
            ObjectInfo("x", 3),
        ]
        assert store.list("loop/") == []
        assert store.children() == []

    def test_delete_removes_the_link_and_not_its_target(
        self, store: LocalStore, tmp_path: Path
    ) -> None:
        store.put_if_absent("x", b"abc")
        (tmp_path / "link").symlink_to("x")

        store.delete("link")

        assert store.list() == [ObjectInfo("x", 3)]

    @pytest.mark.parametrize("make", ["link", "fifo"])
    def test_nothing_is_created_where_something_odd_is(
        self, store: LocalStore, tmp_path: Path, make: str
    ) -> None:
        if make == "link":
            (tmp_path / "x").symlink_to("nowhere")
        else:
            os.mkfifo(tmp_path / "x")

        with pytest.raises(ObjectExistsError):
            store.create("x", nbytes_hint=None)
        with pytest.raises(ObjectExistsError):
            store.put_if_absent("x", b"abc")
        assert not (tmp_path / "nowhere").exists()


class TestRoot:
    def test_root_that_is_a_file_is_named_by_every_call(self, tmp_path: Path) -> None:
        (tmp_path / "root").write_bytes(b"")
        store = LocalStore(tmp_path / "root")

        for act in (
            store.list,
            store.children,
            lambda: store.read("x"),
            lambda: store.open_reader("x", direct=False),
            lambda: store.create("x", nbytes_hint=None),
            lambda: store.put_if_absent("x", b""),
        ):
            with pytest.raises(StorageError, match=r"expected a directory at '.*root'") as refused:
                act()
            assert refused.value.code is ErrorCode.FILE_TYPE

    def test_root_below_a_file_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")

        with pytest.raises(StorageError, match="something above it is not a directory"):
            LocalStore(tmp_path / "file" / "root").put_if_absent("x", b"")

    def test_root_without_a_path_is_refused(self) -> None:
        for path in ("", "a\0b"):
            with pytest.raises(InvalidArgumentError, match="expected the path of a directory"):
                LocalStore(path)

    def test_relative_root_means_the_directory_it_was_given_in(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        store = LocalStore("root")
        monkeypatch.chdir("/")

        store.put_if_absent("x", b"abc")

        assert (tmp_path / "root" / "x").read_bytes() == b"abc"

    @pytest.mark.skipif(os.geteuid() == 0, reason="root is denied nothing")
    def test_denied_directory_says_what_to_check(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)

        with pytest.raises(StorageError, match="check the permissions"):
            LocalStore(tmp_path).create("x", nbytes_hint=None)

    def test_directory_removed_meanwhile_is_made_again(self, store: LocalStore) -> None:
        store.put_if_absent("data/x", b"")
        store.delete("data/x")
        os.rmdir(os.path.join(store.describe(), "data"))

        store.put_if_absent("data/y", b"abc")

        assert store.read("data/y") == b"abc"


def test_new_files_and_directories_obey_the_umask(store: LocalStore, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        store.put_if_absent("data/x", b"")
        with store.create("data/y", nbytes_hint=None) as writer:
            writer.finish(0)
    finally:
        os.umask(before)

    modes = [
        stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("data/x", "data/y", "data")
    ]
    assert modes == [0o640, 0o640, 0o750]
