"""A directory as a store: durable, and never following a link below its root."""

from __future__ import annotations

import builtins
import os
import stat
from contextlib import suppress

from bcpformat.errors import ErrorCode, InvalidArgumentError, ObjectNotFoundError, StorageError
from bcpformat.storage.arguments import check_key, check_prefix, check_read
from bcpformat.storage.local_files import LocalReader, LocalWriter
from bcpformat.storage.names import Names, Parts
from bcpformat.storage.posix import (
    open_regular,
    opened_directory,
    storage_error,
    sync_directory,
    wrong_type,
)
from bcpformat.storage.publish import exists, publish
from bcpformat.storage.store import ObjectInfo

DIRECT_FROM_BYTES = 64 << 20
"""Where bypassing the page cache starts to pay; below, buffered writes are as fast."""


class LocalStore:
    """The files below a directory; directories are created when an object needs them.

    The root may be reached through symbolic links; below it none is followed, neither for
    objects nor for directories.

    Thread safety: every method may run in many threads.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     store = LocalStore(root)
        ...     with store.create("data/x", nbytes_hint=None) as writer:
        ...         writer.write_at(0, b"abc")
        ...         writer.finish(3)
        ...     store.sync()
        ...     store.list()
        [ObjectInfo(key='data/x', nbytes=3)]
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Name a root; nothing is opened or created yet.

        Args:
            root: A directory, which need not exist; made absolute now.

        Raises:
            InvalidArgumentError: The path is empty or has a NUL.
        """
        path = os.fspath(root)
        try:
            encoded = os.fsencode(path)
        except UnicodeEncodeError:
            encoded = b""
        if not encoded or b"\0" in encoded:
            raise InvalidArgumentError(f"expected the path of a directory, got {path!r}")
        self._root = os.path.abspath(path)
        self._below: Parts = ()
        self._names = Names(self._root)

    def describe(self) -> str:
        """Return the directory's absolute path."""
        return os.path.join(self._root, *self._below)

    def open_reader(self, key: str, *, direct: bool) -> LocalReader:
        """Open a file for reading."""
        descriptor, nbytes = self._open(key)
        return LocalReader(descriptor, key=key, where=self.describe(), nbytes=nbytes, direct=direct)

    def read(self, key: str, *, offset_bytes: int = 0, nbytes: int | None = None) -> bytes:
        """Return up to `nbytes` bytes of a file, all that follow if None."""
        check_read(offset_bytes, nbytes)
        descriptor, size = self._open(key)
        try:
            left = max(0, size - offset_bytes)
            left = left if nbytes is None else min(nbytes, left)
            pieces: list[bytes] = []
            while left:
                piece = os.pread(descriptor, left, offset_bytes)
                if not piece:
                    break
                pieces.append(piece)
                offset_bytes += len(piece)
                left -= len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        except OSError as error:
            action = f"cannot read {key!r} in {self.describe()!r} at byte {offset_bytes}"
            raise storage_error(error, key=key, action=action) from error
        finally:
            os.close(descriptor)

    def create(self, key: str, *, nbytes_hint: int | None) -> LocalWriter:
        """Create a file that must not exist and return its writer.

        From 64 MiB on it bypasses the page cache, where the file system accepts that.
        """
        *above, name = self._parts(key)
        direct = nbytes_hint is not None and nbytes_hint >= DIRECT_FROM_BYTES
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._names.made_directory(tuple(above), key=key) as directory:
            try:
                descriptor = os.open(name, flags, 0o666, dir_fd=directory)
            except FileExistsError as error:
                raise exists(key, self.describe()) from error
            except OSError as error:
                action = f"cannot create {key!r} in {self.describe()!r}"
                raise storage_error(error, key=key, action=action) from error
        self._names.add(tuple(above))
        inode = os.fstat(descriptor).st_ino
        return LocalWriter(
            descriptor,
            key=key,
            where=self.describe(),
            direct=direct,
            remove=lambda: self._remove_created(key, inode),
        )

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Publish a file atomically and durably; never replace one.

        A crash can leave a file ``.<name>.tmp-<random>`` beside it, which nothing reads.
        """
        *above, name = self._parts(key)
        with self._names.made_directory(tuple(above), key=key) as directory:
            # What the object names must be durable before the object is.
            self._names.sync()
            publish(directory, name, data, key=key, where=self.describe())

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        """Return every file whose key starts with `prefix`, sorted by key."""
        found: list[ObjectInfo] = []
        pending = [check_prefix(prefix)]
        while pending:
            parts = pending.pop()
            start = "".join(part + "/" for part in parts)
            for name, mode, nbytes in self._scan(parts):
                key = start + name
                if stat.S_ISDIR(mode):
                    if (key + "/").startswith(prefix) or prefix.startswith(key + "/"):
                        pending.append((*parts, name))
                elif key.startswith(prefix):
                    found.append(ObjectInfo(key, nbytes if stat.S_ISREG(mode) else 0))
        return sorted(found, key=lambda info: info.key)

    def delete(self, key: str) -> None:
        """Remove a file (or link, or FIFO) durably; directories stay."""
        *above, name = self._parts(key)
        with opened_directory(self._root, above, key=key) as directory:
            try:
                os.unlink(name, dir_fd=directory)
                sync_directory(directory)
            except FileNotFoundError as error:
                message = f"no object {key!r} in {self.describe()!r}"
                raise ObjectNotFoundError(message, key=key) from error
            except IsADirectoryError as error:
                place = f"{key!r} in {self.describe()!r}"
                raise wrong_type(
                    stat.S_IFDIR, key=key, expected="an object", where=place
                ) from error
            except OSError as error:
                action = f"cannot delete {key!r} in {self.describe()!r}"
                raise storage_error(error, key=key, action=action) from error

    def sync(self) -> None:
        """Make every name created through this store, its parents and children durable."""
        self._names.sync()

    def child(self, prefix: str) -> LocalStore:
        """Return the store of a directory below this one, which is not followed if a link."""
        child = LocalStore(self._root)
        child._below = (*self._below, *check_key(prefix))
        child._names = self._names
        return child

    def children(self) -> builtins.list[str]:
        """Return the names of the immediate sub-directories, sorted; links are none."""
        return sorted(n for n, mode, _ in self._scan(()) if stat.S_ISDIR(mode))

    def _parts(self, key: str) -> Parts:
        return (*self._below, *check_key(key))

    def _open(self, key: str) -> tuple[int, int]:
        *above, name = self._parts(key)
        with opened_directory(self._root, above, key=key) as directory:
            return open_regular(directory, name, key=key, where=self.describe())

    def _scan(self, parts: Parts) -> builtins.list[tuple[str, int, int]]:
        """Return name, mode and size of each entry of a directory; none where it is none."""
        entries = []
        try:
            with (
                opened_directory(self._root, (*self._below, *parts), key="") as directory,
                os.scandir(directory) as scan,
            ):
                for entry in scan:
                    # What vanishes between the two calls was not there.
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        entries.append((entry.name, status.st_mode, status.st_size))
        except ObjectNotFoundError:
            return []
        except StorageError as error:
            if error.code is ErrorCode.FILE_TYPE and os.path.isdir(self._root):
                return []
            raise
        except OSError as error:
            action = f"cannot list {self.describe()!r}"
            raise storage_error(error, key="", action=action) from error
        return entries

    def _remove_created(self, key: str, inode: int) -> None:
        """Unlink a file of ours that was not finished, unless its name means another by now."""
        *above, name = self._parts(key)
        try:
            with opened_directory(self._root, above, key=key) as directory:
                if os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino == inode:
                    os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            return
        except StorageError:
            raise
        except OSError as error:
            action = f"cannot remove the unfinished {key!r} in {self.describe()!r}"
            raise storage_error(error, key=key, action=action) from error
