"""Files that appear under their name complete or not at all, and never replace another."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from bcpformat.errors import InvalidArgumentError, ObjectExistsError, StorageError


@contextmanager
def new_file(path: str) -> Iterator[BinaryIO]:
    """Open a file that gets its name when the block ends without an error.

    Raises:
        ObjectExistsError: Something has that name already.
        StorageError: It cannot be written.
    """
    if os.path.lexists(path):
        raise _exists(path)
    folder, name = os.path.split(path)
    partial = os.path.join(folder, f".{name[:80]}.{os.getpid()}.partial")
    try:
        with open(partial, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _publish(partial, path)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"cannot write {path!r}: {error.strerror or error}", key=path) from error
    finally:
        with suppress(FileNotFoundError):
            os.unlink(partial)


def new_directory(path: str) -> None:
    """Make a directory, or accept one that is empty.

    Raises:
        ObjectExistsError: It holds something, or something else has that name.
        StorageError: It cannot be made.
    """
    try:
        os.makedirs(path, exist_ok=True)
        if os.listdir(path):
            raise ObjectExistsError(
                f"{path!r} is not empty and nothing is ever overwritten; choose another", key=path
            )
    except FileExistsError as error:
        if isinstance(error, ObjectExistsError):
            raise
        raise _exists(path) from error
    except OSError as error:
        raise StorageError(f"cannot make {path!r}: {error.strerror or error}", key=path) from error


def local_path(location: str) -> str:
    """Return a path of this machine.

    Raises:
        InvalidArgumentError: It is a URL.
    """
    if "://" in location:
        raise InvalidArgumentError(f"expected a path of a file or directory, got {location!r}")
    return location


def _publish(partial: str, path: str) -> None:
    try:
        os.link(partial, path)
    except FileExistsError as error:
        raise _exists(path) from error
    except OSError as error:
        # Some file systems have no hard links; there the check and the renaming are two steps.
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        if os.path.lexists(path):
            raise _exists(path) from error
        os.rename(partial, path)


def _exists(path: str) -> ObjectExistsError:
    return ObjectExistsError(
        f"{path!r} exists already and nothing is ever overwritten; choose another name", key=path
    )
