"""`validate` and `latest`: is this checkpoint whole, and which is the newest that is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import quote

from bcpformat.api.failures import own_failures
from bcpformat.api.opened import DEFAULT_READ
from bcpformat.api.save import Location
from bcpformat.engine.load import read_manifest_bytes
from bcpformat.engine.options import ReadOptions
from bcpformat.errors import BcpError, ErrorCode, InvalidArgumentError
from bcpformat.model.manifest import MANIFEST_KEY
from bcpformat.model.progress import Progress, silent
from bcpformat.storage import Store, open_store
from bcpformat.validation import Level, Report, validate_store
from bcpformat.wire import decode_root


def check_level(level: str) -> None:
    """Refuse a level that there is not.

    Raises:
        InvalidArgumentError: It is another.
    """
    if level not in ("manifest", "full"):
        raise InvalidArgumentError(f"level must be 'manifest' or 'full', got {level!r}")


@own_failures()
def validate(
    location: Location,
    *,
    level: Level = "full",
    options: ReadOptions = DEFAULT_READ,
    progress: Progress | None = None,
) -> Report:
    """Check a checkpoint and return every problem; damage is in the report, never raised.

    Args:
        location: A directory or a `Store`.
        level: ``"manifest"``: the manifest, and of each data file its presence, length, header
            and block table.  ``"full"``: every byte too.
        options: Threads and limits.
        progress: Called with numbers of bytes as they are checked, from any thread.

    Raises:
        StorageError: The location cannot be reached, so nothing can be said.
    """
    check_level(level)
    shown = progress if progress is not None else silent
    return validate_store(open_store(location), level=level, options=options, progress=shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One checkpoint below a root.

    Attributes:
        name: Its prefix below the root.
        step: Its training step.
        created_us: Microseconds since 1970-01-01T00:00:00Z.
    """

    name: str
    step: int | None
    created_us: int


@own_failures()
def latest(
    root: Location, *, level: Level = "manifest", options: ReadOptions = DEFAULT_READ
) -> str | Store | None:
    """Return the location of the newest checkpoint below `root` that validates, None without one.

    Newest is decided by the manifests' step, then by when they were made; never by names.
    A damaged one is passed over: `validate` it to see why.

    Args:
        root: A directory whose immediate sub-directories may be checkpoints, or a `Store`.
        level: How much of a candidate is checked: by default not its data, see `validate`.
        options: Threads and limits.

    Returns:
        A path if `root` is one, else a `Store`: what `read` and `open` take.

    Raises:
        StorageError: The root, or a data file of a candidate, cannot be read, so that nobody can
            say which is the newest.
    """
    check_level(level)
    store = open_store(root)
    for found in checkpoints(store, options=options):
        report = validate_store(
            store.child(found.name), level=level, options=options, progress=silent
        )
        if report.ok:
            if not isinstance(root, (str, os.PathLike)):
                return store.child(found.name)
            path = os.fspath(root)
            is_url = path[:7].lower() == "file://"
            return os.path.join(path, quote(found.name) if is_url else found.name)
    return None


def checkpoints(store: Store, *, options: ReadOptions) -> list[Found]:
    """Return what has a readable root of a manifest below a store, the newest first."""
    found = []
    for name in store.children():
        try:
            data = read_manifest_bytes(store.child(name), limits=options.limits)
            root = decode_root(data, key=MANIFEST_KEY, limits=options.limits)
        except BcpError as error:
            # what nobody lets us read, such as lost+found, is not ours
            if error.code is ErrorCode.IO and not isinstance(error.__cause__, PermissionError):
                raise
            continue
        found.append(Found(name=name, step=root.step, created_us=root.created_us))
    found.sort(key=lambda f: (-1 if f.step is None else f.step, f.created_us), reverse=True)
    return found
