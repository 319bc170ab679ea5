"""Which directories hold names that a power failure could still take, and how they get durable.

fsync of a file does not make its name durable; fsync of its directory does (fsync(2)).  A
directory that exists may have been made by another process that was killed before it synced
the name, so what is found is treated as what is made: each directory on the way counts as
unsynced once per store.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from bcpformat.errors import ObjectNotFoundError, StorageError
from bcpformat.storage.posix import (
    make_root,
    mode_at,
    opened_directory,
    storage_error,
    sync_directory,
    sync_path,
)

Parts = tuple[str, ...]


class Names:
    """The names below one root, shared by a local store and all its children.

    Thread safety: every method may run in many threads.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._syncing = threading.Lock()
        self._unsynced: set[Parts] = set()
        self._seen: set[Parts] = set()
        self._root_used = False
        self._failure: StorageError | None = None

    def add(self, directory: Parts) -> None:
        """Note that a directory got a new name."""
        with self._lock:
            self._unsynced.add(directory)

    @contextmanager
    def made_directory(self, parts: Parts, *, key: str) -> Iterator[int]:
        """Yield a descriptor of a directory below the root, created where it is missing.

        Raises:
            StorageError: It cannot be created, or is no directory (E_FILE_TYPE).
        """
        with self._lock:
            seen = parts in self._seen
        with ExitStack() as stack:
            descriptor = None
            if seen:
                # Others may have removed it since.
                with suppress(ObjectNotFoundError):
                    descriptor = stack.enter_context(opened_directory(self._root, parts, key=key))
            if descriptor is None:
                self._make(parts, key=key)
                descriptor = stack.enter_context(opened_directory(self._root, parts, key=key))
            yield descriptor

    def _make(self, parts: Parts, *, key: str) -> None:
        make_root(self._root)
        for depth, name in enumerate(parts):
            above = parts[:depth]
            with opened_directory(self._root, above, key=key) as directory:
                try:
                    os.mkdir(name, dir_fd=directory)
                except OSError as error:
                    if mode_at(directory, name) is None:
                        place = "/".join((self._root, *above, name))
                        action = f"cannot create directory {place!r}"
                        raise storage_error(error, key=key, action=action) from error
            self.add(above)
        with self._lock:
            self._seen.add(parts)
            self._root_used = True

    def sync(self) -> None:
        """Make every noted name durable.

        Raises:
            StorageError: It failed, now or before: another fsync would succeed for lost names.
        """
        with self._syncing:
            if self._failure is not None:
                raise StorageError(
                    f"names in {self._root!r} may be lost since an earlier sync failed: "
                    f"{self._failure.message}",
                    key="",
                )
            with self._lock:
                unsynced, self._unsynced = self._unsynced, set()
                root_used, self._root_used = self._root_used, False
            synced = False
            try:
                if root_used:
                    self._sync_above_root()
                for parts in sorted(unsynced):
                    self._sync_one(parts)
                synced = True
            finally:
                # An interrupt must not let the next call believe that this one ended.
                if not synced:
                    with self._lock:
                        self._unsynced |= unsynced
                        self._root_used |= root_used

    def _sync_above_root(self) -> None:
        above = os.path.dirname(os.path.realpath(self._root))
        try:
            sync_path(above)
        except PermissionError:
            # A directory that is closed to us is not one we made the root in.
            return
        except OSError as error:
            raise self._fail(error, above) from error

    def _sync_one(self, parts: Parts) -> None:
        try:
            with opened_directory(self._root, parts, key="") as directory:
                sync_directory(directory)
        except StorageError as error:
            self._failure = error
            raise
        except OSError as error:
            raise self._fail(error, "/".join((self._root, *parts))) from error

    def _fail(self, error: OSError, directory: str) -> StorageError:
        self._failure = storage_error(
            error, key="", action=f"cannot make the names in {directory!r} durable"
        )
        return self._failure
