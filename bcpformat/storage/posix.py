"""The POSIX calls a local store is made of: open without following links, sync, fail in words."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from bcpformat.errors import ErrorCode, ObjectNotFoundError, StateError, StorageError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_O_DIRECT = getattr(os, "O_DIRECT", 0)
_NOT_SYNCABLE = frozenset({errno.EBADF, errno.EINVAL})
_RETRYABLE = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETIMEDOUT})
_FIXES = {
    errno.ENOSPC: "free some space or choose another location",
    errno.EDQUOT: "raise the quota or choose another location",
    errno.EACCES: "check the permissions of the location",
    errno.EPERM: "check the permissions and attributes of the location",
    errno.EROFS: "the file system is mounted read-only; choose another location",
    errno.EIO: "the device reports damage; look into the kernel's log",
    errno.ENOTDIR: "something above it is not a directory",
    errno.EFBIG: "the file system or a process limit allows no file of this size",
    errno.ENAMETOOLONG: "shorten the key or the location",
    errno.EMFILE: "raise the limit of open files of this process",
    errno.ESTALE: "the network mount has lost the file; mount it again",
}
_KINDS = (
    (stat.S_ISREG, "a regular file"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def storage_error(
    error: OSError, *, key: str, action: str, code: ErrorCode = ErrorCode.IO
) -> StorageError:
    """Return the error that says what failed, why, and the likely fix.

    Args:
        error: What the system said.
        key: The object's key, or ``""``.
        action: What was being done, where, such as "cannot write 'a' in '/b' at byte 0".
        code: The stable code.
    """
    number = error.errno or 0
    name = errno.errorcode.get(number, "no errno")
    fix = f"; {_FIXES[number]}" if number in _FIXES else ""
    return StorageError(
        f"{action}: {(error.strerror or str(error)).lower()} ({name}){fix}",
        key=key,
        retryable=number in _RETRYABLE,
        code=code,
    )


def wrong_type(mode: int, *, key: str, expected: str, where: str) -> StorageError:
    """Return the error for something that is not what it should be (E_FILE_TYPE)."""
    found = next((words for test, words in _KINDS if test(mode)), f"a file of mode {mode:#o}")
    return StorageError(
        f"expected {expected} at {where}, found {found}", key=key, code=ErrorCode.FILE_TYPE
    )


def mode_at(directory: int, name: str) -> int | None:
    """Return the mode of what has this name, not followed, or None if nothing has."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


@contextmanager
def opened_root(root: str, *, key: str) -> Iterator[int]:
    """Yield a descriptor of the root directory, which may be reached by links.

    Raises:
        ObjectNotFoundError: There is no root.
        StorageError: It is no directory (E_FILE_TYPE), or cannot be opened.
    """
    try:
        descriptor = os.open(root, _DIRECTORY)
    except FileNotFoundError as error:
        raise ObjectNotFoundError(f"no directory {root!r}", key=key) from error
    except NotADirectoryError as error:
        raise StorageError(
            f"expected a directory at {root!r}, found something else there or above it",
            key=key,
            code=ErrorCode.FILE_TYPE,
        ) from error
    except OSError as error:
        raise storage_error(error, key=key, action=f"cannot open directory {root!r}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_subdirectory(directory: int, name: str, *, key: str, where: str) -> int:
    """Return a descriptor of a directory below another, refusing links.

    Raises:
        ObjectNotFoundError: Nothing has that name.
        StorageError: It is no directory (E_FILE_TYPE), or cannot be opened.
    """
    try:
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    except FileNotFoundError as error:
        raise ObjectNotFoundError(f"no directory {name!r} in {where!r}", key=key) from error
    except OSError as error:
        mode = mode_at(directory, name)
        if error.errno in (errno.ENOTDIR, errno.ELOOP) and mode is not None:
            place = f"{name!r} in {where!r}"
            raise wrong_type(mode, key=key, expected="a directory", where=place) from error
        action = f"cannot open directory {name!r} in {where!r}"
        raise storage_error(error, key=key, action=action) from error


@contextmanager
def opened_directory(root: str, parts: Sequence[str], *, key: str) -> Iterator[int]:
    """Yield a descriptor of the directory `parts` below `root`, following no link below it.

    Raises:
        ObjectNotFoundError: One of the directories does not exist.
        StorageError: One is no directory (E_FILE_TYPE), or cannot be opened.
    """
    with opened_root(root, key=key) as top:
        current = top
        try:
            for part in parts:
                below = open_subdirectory(current, part, key=key, where=root)
                if current != top:
                    os.close(current)
                current = below
            yield current
        finally:
            if current != top:
                os.close(current)


def open_regular(directory: int, name: str, *, key: str, where: str) -> tuple[int, int]:
    """Open a regular file for reading; never block on a FIFO, never follow a link.

    Returns:
        Its descriptor, which the caller owns, and its size in bytes.

    Raises:
        ObjectNotFoundError: Nothing has that name.
        StorageError: It is no regular file (E_FILE_TYPE), or cannot be opened.
    """
    place = f"{key!r} in {where!r}"
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=directory)
    except FileNotFoundError as error:
        raise ObjectNotFoundError(f"no object {place}", key=key) from error
    except OSError as error:
        mode = mode_at(directory, name)
        if error.errno in (errno.ELOOP, errno.ENXIO) and mode is not None:
            raise wrong_type(mode, key=key, expected="a regular file", where=place) from error
        raise storage_error(error, key=key, action=f"cannot open {place}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise wrong_type(status.st_mode, key=key, expected="a regular file", where=place)
    return descriptor, status.st_size


def make_root(root: str) -> None:
    """Create a directory and those above it that are missing, each name durable.

    Raises:
        StorageError: One cannot be created or made durable.
    """
    if os.path.lexists(root):
        return
    above = os.path.dirname(root)
    if above != root:
        make_root(above)
    action = f"cannot create directory {root!r}"
    try:
        os.mkdir(root)
    except FileExistsError:
        return
    except OSError as error:
        raise storage_error(error, key="", action=action) from error
    try:
        sync_path(above)
    except OSError as error:
        raise storage_error(error, key="", action=action) from error


def sync_path(path: str) -> None:
    """Make the names in the directory at a path durable.

    Raises:
        OSError: It cannot be opened or synced.
    """
    descriptor = os.open(path, _DIRECTORY)
    try:
        sync_directory(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(descriptor: int) -> None:
    """Make the names in a directory durable, where the file system has such a call.

    Raises:
        OSError: It failed; a second try would succeed without having done anything.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems sync names at once and refuse this call on directories.
        if error.errno not in _NOT_SYNCABLE:
            raise


def write_fully(descriptor: int, view: memoryview) -> None:
    """Write all of `view` at the file's start."""
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], done)


def set_direct(descriptor: int, *, direct: bool) -> bool:
    """Switch the bypass of the page cache and return whether it is on.

    Switched after opening, because a create that refuses the flag leaves its file behind.
    """
    if not _O_DIRECT:
        return False
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    flags = flags | _O_DIRECT if direct else flags & ~_O_DIRECT
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & _O_DIRECT)


class Descriptor:
    """A file descriptor that many threads use and one closes.

    Closing waits for the calls that run: the system gives a closed number to the next file
    that is opened, and a late write would go there.

    Example:
        >>> descriptor = Descriptor(os.open(os.devnull, os.O_RDONLY), key="x")
        >>> with descriptor.borrow() as number:
        ...     os.read(number, 1)
        b''
        >>> descriptor.close()
    """

    def __init__(self, number: int, *, key: str) -> None:
        self._number = number
        self._key = key
        self._users = 0
        self._closed = False
        self._idle = threading.Condition()

    @contextmanager
    def borrow(self) -> Iterator[int]:
        """Yield the number, which stays open meanwhile.

        Raises:
            StateError: It is closed.
        """
        with self._idle:
            if self._closed:
                raise StateError(f"object {self._key!r} is closed")
            self._users += 1
        try:
            yield self._number
        finally:
            with self._idle:
                self._users -= 1
                if self._users == 0:
                    self._idle.notify_all()

    def close(self) -> None:
        """Close it once nobody uses it; a second call does nothing.

        Raises:
            OSError: The system could not store what was written.
        """
        with self._idle:
            if self._closed:
                return
            self._closed = True
            self._idle.wait_for(lambda: self._users == 0)
        os.close(self._number)

    def __del__(self) -> None:
        if not self._closed:
            with suppress(OSError):
                os.close(self._number)
