"""One guarantee: a complete, durable file appears under a name that nothing had.

Write a temporary file beside the target, fsync it, `link` it to the target, which fails if
the target exists, and fsync the directory.  A failed `link` may have happened all the same
(a network file system that lost the reply), so the target's inode decides, not the errno:
see link(2), BUGS.  `rename` would replace silently; `O_EXCL` on the target itself would show
a torn file after a crash.  Where hard links are refused, `renameat2` with RENAME_NOREPLACE
gives the same guarantee.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress

from bcpformat.errors import ErrorCode, ObjectExistsError, StorageError
from bcpformat.storage.posix import mode_at, storage_error, sync_directory, write_fully

_RENAME_NOREPLACE = 1
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


def publish(directory: int, name: str, data: bytes, *, key: str, where: str) -> None:
    """Let `data` appear under `name`, atomically and durably, or not at all.

    Args:
        directory: A descriptor of the directory.
        name: The target's name in it.
        data: The whole content.
        key: The object's key, for messages.
        where: The store in words, for messages.

    Raises:
        ObjectExistsError: Something has that name.
        StorageError: Nothing was published; or, with E_UNCERTAIN, perhaps it was.
    """
    place = f"{key!r} in {where!r}"
    if mode_at(directory, name) is not None:
        raise exists(key, where)
    temporary = f".{name}.tmp-{os.urandom(8).hex()}"
    try:
        inode = _write_temporary(directory, temporary, data)
        _take_name(directory, temporary, name, inode, key=key, where=where)
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(error, key=key, action=f"cannot publish {place}") from error
    finally:
        # Left behind, it stands in nobody's way; gone, if it was renamed.
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
    try:
        sync_directory(directory)
    except OSError as error:
        raise storage_error(
            error,
            key=key,
            action=f"{place} was published, but may not survive a power failure",
            code=ErrorCode.UNCERTAIN,
        ) from error


def exists(key: str, where: str) -> ObjectExistsError:
    """Return the error for a key that is taken."""
    return ObjectExistsError(f"expected nothing at {key!r} in {where!r}, found an object", key=key)


def _write_temporary(directory: int, name: str, data: bytes) -> tuple[int, int]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o666, dir_fd=directory)
    try:
        write_fully(descriptor, memoryview(data))
        os.fsync(descriptor)
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return status.st_dev, status.st_ino


def _take_name(
    directory: int, temporary: str, name: str, inode: tuple[int, int], *, key: str, where: str
) -> None:
    try:
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        return
    except OSError as error:
        if _is_ours(directory, name, inode, error, key=key, where=where):
            return
        if error.errno not in _NO_LINKS:
            raise
    try:
        _rename_noreplace(directory, temporary, name)
    except OSError as error:
        if _is_ours(directory, name, inode, error, key=key, where=where):
            return
        raise StorageError(
            f"cannot publish {key!r} in {where!r}: the file system offers neither hard links nor "
            f"a rename that replaces nothing ({error.strerror}); choose another location",
            key=key,
        ) from error


def _is_ours(
    directory: int,
    name: str,
    inode: tuple[int, int],
    cause: OSError,
    *,
    key: str,
    where: str,
) -> bool:
    """Return whether the target is our file after all; raise if it is another's or unknown."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError:
        raise storage_error(
            cause,
            key=key,
            action=f"it is unknown whether {key!r} was published in {where!r}",
            code=ErrorCode.UNCERTAIN,
        ) from cause
    if (found.st_dev, found.st_ino) == inode:
        return True
    raise exists(key, where) from cause


def _rename_noreplace(directory: int, temporary: str, name: str) -> None:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    rename.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint,
    )
    source, target = os.fsencode(temporary), os.fsencode(name)
    if rename(directory, source, directory, target, _RENAME_NOREPLACE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
