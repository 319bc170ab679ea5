"""Keys to bytes: where checkpoints lie.  Knows no manifest."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.storage.arguments import check_key
from bcpformat.storage.buffers import AlignedBuffer, BufferPool, get_pool
from bcpformat.storage.local import LocalStore
from bcpformat.storage.memory import MemoryStore
from bcpformat.storage.store import (
    DIRECT_ALIGNMENT_BYTES,
    ObjectInfo,
    ObjectReader,
    ObjectWriter,
    ReadableBytes,
    Store,
    WritableBytes,
)

__all__ = [
    "DIRECT_ALIGNMENT_BYTES",
    "AlignedBuffer",
    "BufferPool",
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "ObjectReader",
    "ObjectWriter",
    "ReadableBytes",
    "Store",
    "WritableBytes",
    "check_key",
    "get_pool",
    "open_store",
]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)


def open_store(location: str | os.PathLike[str] | Store) -> Store:
    """Return the store at a location.

    Args:
        location: A path, a ``file://`` URL, or a store, which is returned as it is.

    Raises:
        InvalidArgumentError: It is none of these; with E_NOT_BUILT a URL of another scheme.

    Example:
        >>> open_store("file:///srv/a%20b").describe()
        '/srv/a b'
    """
    if isinstance(location, str | os.PathLike):
        path = os.fspath(location)
        if not isinstance(path, str):
            raise InvalidArgumentError(f"expected a path of text, got {path!r}")
        return LocalStore(_local_path(path))
    if isinstance(location, Store):
        return location
    raise InvalidArgumentError(
        f"expected a path, a URL or a store, got an object of type {type(location).__name__!r}"
    )


def _local_path(location: str) -> str:
    url = _URL.fullmatch(location)
    if url is None:
        return location
    scheme, host, path = url.groups()
    if scheme.lower() != "file":
        raise InvalidArgumentError(
            f"locations of scheme {scheme!r} are not built yet: {location!r}; "
            "use a local path or pass a store",
            code=ErrorCode.NOT_BUILT,
        )
    if host not in ("", "localhost") or not path:
        raise InvalidArgumentError(
            f"expected a URL of this host with an absolute path, such as 'file:///srv/a', "
            f"got {location!r}"
        )
    return unquote(path)
