"""What a local file does beyond the suite: direct access, short calls, failing and full disks."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from bcpformat.errors import ErrorCode, FormatError, InvalidArgumentError, StorageError
from bcpformat.storage import AlignedBuffer, LocalStore
from bcpformat.storage.local import DIRECT_FROM_BYTES


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """Return a store in an empty directory."""
    return LocalStore(tmp_path)


def failing(number: int) -> Callable[..., NoReturn]:
    """Return a system call that fails."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


class TestReading:
    def test_direct_read_may_end_behind_the_object(self, store: LocalStore) -> None:
        data = bytes(range(250)) * 33
        store.put_if_absent("x", data)
        with store.open_reader("x", direct=True) as reader, AlignedBuffer(12288) as buffer:
            if reader.alignment == 1:
                pytest.skip("this file system has no direct reads")

            assert reader.read_into(0, buffer.array) == len(data)
            assert bytes(buffer.view[: len(data)]) == data
            assert reader.read_into(8192, buffer.array[:4096]) == len(data) - 8192

    def test_direct_read_a_page_too_long_is_truncated(self, store: LocalStore) -> None:
        store.put_if_absent("x", bytes(4096))
        with store.open_reader("x", direct=True) as reader, AlignedBuffer(8192) as buffer:
            with pytest.raises(FormatError, match="expected 8192 bytes at byte 0, found 4096"):
                reader.read_into(0, buffer.array)
            with pytest.raises(FormatError, match="at byte 4096, found 0"):
                reader.read_into(4096, buffer.array[:4096])

    def test_direct_read_refuses_what_is_not_aligned(self, store: LocalStore) -> None:
        store.put_if_absent("x", bytes(8192))
        with store.open_reader("x", direct=True) as reader, AlignedBuffer(8192) as buffer:
            if reader.alignment == 1:
                pytest.skip("this file system has no direct reads")

            for offset_bytes, out, word in (
                (1, buffer.array[:4096], "offset"),
                (0, buffer.array[:100], "length"),
                (0, buffer.array[8:4104], "address"),
            ):
                with pytest.raises(InvalidArgumentError, match=f"expected a {word}"):
                    reader.read_into(offset_bytes, out)

    def test_direct_read_continues_behind_a_short_one(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = np.random.default_rng(0).bytes(8192)
        store.put_if_absent("x", data)
        preadv = os.preadv
        monkeypatch.setattr(
            os, "preadv", lambda fd, views, at: preadv(fd, [v[:1000] for v in views], at)
        )

        with store.open_reader("x", direct=True) as reader, AlignedBuffer(8192) as buffer:
            assert reader.read_into(0, buffer.array) == 8192
            assert bytes(buffer.view) == data

    def test_file_shortened_after_opening_is_truncated(self, store: LocalStore) -> None:
        store.put_if_absent("x", bytes(1000))
        with store.open_reader("x", direct=False) as reader:
            os.truncate(os.path.join(store.describe(), "x"), 10)

            with pytest.raises(FormatError, match="expected 1000 bytes at byte 0, found 10") as cut:
                reader.read_into(0, bytearray(1000))
            assert cut.value.code is ErrorCode.TRUNCATED
            with pytest.raises(FormatError, match="found 10"):
                reader.map()

    def test_failing_device_is_named_with_key_and_position(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.put_if_absent("x", bytes(1000))
        monkeypatch.setattr(os, "preadv", failing(errno.EIO))

        with (
            store.open_reader("x", direct=False) as reader,
            pytest.raises(StorageError, match=r"'x' in .* at byte 7: input/output error \(EIO\)"),
        ):
            reader.read_into(7, bytearray(10))

    def test_closing_waits_for_the_read_that_runs(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.put_if_absent("x", b"abc")
        reader = store.open_reader("x", direct=False)
        inside, go_on, preadv = threading.Event(), threading.Event(), os.preadv

        def slow(fd: int, views: list[memoryview], at: int) -> int:
            inside.set()
            assert go_on.wait(10)
            return preadv(fd, views, at)

        monkeypatch.setattr(os, "preadv", slow)
        out = bytearray(3)
        reading = threading.Thread(target=reader.read_into, args=(0, out))
        closing = threading.Thread(target=reader.close)
        reading.start()
        assert inside.wait(10)
        closing.start()
        closing.join(0.01)
        waited = closing.is_alive()
        go_on.set()
        reading.join()
        closing.join()

        assert waited
        assert out == b"abc"

    def test_file_system_that_cannot_map_says_none(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.put_if_absent("x", b"abc")
        monkeypatch.setattr(mmap, "mmap", failing(errno.ENODEV))

        with store.open_reader("x", direct=False) as reader:
            assert reader.map() is None

    @pytest.mark.parametrize(
        ("call", "act"),
        [
            ("pread", lambda store: store.read("x")),
            ("scandir", lambda store: store.list()),
            ("unlink", lambda store: store.delete("x")),
            ("mkdir", lambda store: store.create("data/y", nbytes_hint=None)),
        ],
    )
    def test_failing_system_call_is_a_storage_error(
        self,
        store: LocalStore,
        monkeypatch: pytest.MonkeyPatch,
        call: str,
        act: Callable[[LocalStore], object],
    ) -> None:
        store.put_if_absent("x", b"abc")
        monkeypatch.setattr(os, call, failing(errno.EIO))

        with pytest.raises(StorageError, match="EIO") as failed:
            act(store)
        assert not failed.value.retryable


class TestWriting:
    def test_short_writes_are_continued(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:7], at))
        data = bytes(range(100))

        with store.create("x", nbytes_hint=None) as writer:
            writer.write_at(0, data)
            writer.finish(100)
        store.put_if_absent("y", data)

        assert store.read("x") == store.read("y") == data

    def test_short_direct_writes_are_continued(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:1000], at))

        with (
            store.create("x", nbytes_hint=DIRECT_FROM_BYTES) as writer,
            AlignedBuffer(8192) as buffer,
        ):
            buffer.array[:] = 7
            writer.write_at(0, buffer.array)
            writer.finish(8000)

        assert store.read("x") == bytes([7]) * 8000

    def test_only_large_files_bypass_the_page_cache(self, store: LocalStore) -> None:
        for hint in (None, 0, DIRECT_FROM_BYTES - 1):
            with store.create("x", nbytes_hint=hint) as writer:
                assert writer.alignment == 1

    def test_direct_writer_refuses_what_is_not_aligned(self, store: LocalStore) -> None:
        with (
            store.create("x", nbytes_hint=DIRECT_FROM_BYTES) as writer,
            AlignedBuffer(8192) as buffer,
        ):
            if writer.alignment == 1:
                pytest.skip("this file system has no direct writes")

            for offset_bytes, data, word in (
                (1, buffer.array[:4096], "offset"),
                (0, buffer.array[:100], "length"),
                (0, buffer.array[8:4104], "address"),
            ):
                with pytest.raises(InvalidArgumentError, match=f"expected a {word}"):
                    writer.write_at(offset_bytes, data)

    def test_file_system_without_direct_writes_gets_buffered_ones(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bcpformat.storage.posix._O_DIRECT", 0)

        with store.create("x", nbytes_hint=DIRECT_FROM_BYTES) as writer:
            assert writer.alignment == 1
            writer.write_at(0, b"abc")
            writer.finish(3)

        assert store.read("x") == b"abc"

    def test_direct_write_refused_late_becomes_a_buffered_one(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pwrite = os.pwrite
        refused: list[int] = []

        def refuse_once(fd: int, data: memoryview, at: int) -> int:
            if not refused:
                refused.append(at)
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return pwrite(fd, data, at)

        monkeypatch.setattr(os, "pwrite", refuse_once)
        with (
            store.create("x", nbytes_hint=DIRECT_FROM_BYTES) as writer,
            AlignedBuffer(4096) as buffer,
        ):
            if writer.alignment == 1:
                pytest.skip("this file system has no direct writes")
            writer.write_at(0, buffer.array)
            writer.finish(10)

        assert refused == [0]
        assert store.read("x") == bytes(10)

    @pytest.mark.parametrize(
        ("number", "fix"),
        [(errno.ENOSPC, "free some space"), (errno.EDQUOT, "quota"), (errno.EIO, "kernel's log")],
    )
    def test_failed_write_says_what_to_do_and_loses_the_object(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int, fix: str
    ) -> None:
        with store.create("data/x", nbytes_hint=None) as writer:
            writer.write_at(0, bytes(100))
            with monkeypatch.context() as patch:
                patch.setattr(os, "pwrite", failing(number))
                with pytest.raises(
                    StorageError, match=f"at byte 100 of 'data/x'.*100 bytes written.*{fix}"
                ):
                    writer.write_at(100, bytes(50))
            with pytest.raises(StorageError, match="lost since an earlier call failed"):
                writer.write_at(0, bytes(1))
            with pytest.raises(StorageError, match="lost since an earlier call failed"):
                writer.finish(100)

        assert store.list() == []

    def test_failed_fsync_is_never_tried_again(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = []

        def fail(fd: int) -> None:
            calls.append(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with store.create("x", nbytes_hint=None) as writer:
            writer.write_at(0, b"abc")
            monkeypatch.setattr(os, "fsync", fail)
            for _ in range(2):
                with pytest.raises(StorageError):
                    writer.finish(3)

        assert len(calls) == 1

    def test_unfinished_file_that_cannot_be_removed_is_noted_on_the_error(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "unlink", failing(errno.EIO))

        with pytest.raises(KeyError) as raised, store.create("x", nbytes_hint=None):
            raise KeyError("what went wrong first")
        assert "cannot remove the unfinished 'x'" in raised.value.__notes__[0]
        with (
            pytest.raises(StorageError, match="cannot remove the unfinished 'y'"),
            store.create("y", nbytes_hint=None),
        ):
            pass

    def test_unfinished_file_that_is_gone_needs_no_removing(self, store: LocalStore) -> None:
        with store.create("x", nbytes_hint=None):
            store.delete("x")

        assert store.list() == []

    def test_file_system_that_takes_no_bytes_fails_the_write(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "pwrite", lambda *_: 0)

        with (
            store.create("x", nbytes_hint=None) as writer,
            pytest.raises(StorageError, match="took no bytes"),
        ):
            writer.write_at(0, b"abc")

    def test_abort_leaves_another_file_of_the_same_name(
        self, store: LocalStore, tmp_path: Path
    ) -> None:
        writer = store.create("x", nbytes_hint=None)
        other = tmp_path / "other"
        other.write_bytes(b"theirs")
        other.rename(tmp_path / "x")

        writer.abort()

        assert store.read("x") == b"theirs"

    def test_forgotten_files_are_closed(self, store: LocalStore) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for number in range(5):
            writer = store.create(str(number), nbytes_hint=None)
            del writer
            reader = store.open_reader(str(number), direct=False)
            del reader

        assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 1 MiB, where this process may mount one."""
    place = tmp_path / "tiny"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)]
    try:
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a small file system is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


class TestFullDisk:
    @pytest.mark.parametrize("hint", [None, DIRECT_FROM_BYTES])
    def test_full_disk_fails_the_write_and_leaves_nothing(
        self, tiny: Path, hint: int | None
    ) -> None:
        store = LocalStore(tiny)
        with AlignedBuffer(2 << 20) as buffer, store.create("x", nbytes_hint=hint) as writer:
            with pytest.raises(StorageError, match=r"ENOSPC.*free some space"):
                writer.write_at(0, buffer.array)
            with pytest.raises(StorageError, match="ENOSPC"):
                writer.finish(1)

        assert store.list() == []

    def test_full_disk_fails_the_publication_and_leaves_nothing(self, tiny: Path) -> None:
        store = LocalStore(tiny)

        with pytest.raises(StorageError, match=r"cannot publish 'x'.*ENOSPC"):
            store.put_if_absent("x", bytes(2 << 20))

        assert store.list() == []
