"""bcpformat: the open checkpoint format for large-model training.

Example:
    >>> import bcpformat, numpy
    >>> store = bcpformat.MemoryStore()
    >>> report = bcpformat.write(store, {"w": numpy.zeros(3)}, step=1)
    >>> bcpformat.validate(store).ok
    True

The names are loaded when they are first used: the command line program starts several times
faster for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bcpformat.api import per_rank
    from bcpformat.api.check import latest, validate
    from bcpformat.api.into import Mismatches
    from bcpformat.api.opened import Checkpoint, TensorView
    from bcpformat.api.opened import open_checkpoint as open
    from bcpformat.api.read import read
    from bcpformat.api.save import write
    from bcpformat.engine.coordinator import Coordinator
    from bcpformat.engine.options import ReadOptions, WriteOptions
    from bcpformat.engine.write import WriteReport
    from bcpformat.errors import (
        BcpError,
        ChecksumError,
        CommitError,
        CoordinationError,
        CoverageError,
        DisagreementError,
        ErrorCode,
        FormatError,
        InvalidArgumentError,
        LimitError,
        MismatchError,
        ObjectExistsError,
        ObjectNotFoundError,
        Problem,
        StateError,
        StorageError,
        UnsupportedError,
    )
    from bcpformat.model.fused import Segment, even_segments, fused
    from bcpformat.model.leaves import PerRank, PerRankValues
    from bcpformat.model.limits import Limits
    from bcpformat.model.shards import Shard, Shards
    from bcpformat.model.user_types import register_type
    from bcpformat.storage import LocalStore, MemoryStore, Store
    from bcpformat.validation import Report

_HOMES = {
    "BcpError": "bcpformat.errors",
    "Checkpoint": "bcpformat.api.opened",
    "ChecksumError": "bcpformat.errors",
    "CommitError": "bcpformat.errors",
    "CoordinationError": "bcpformat.errors",
    "Coordinator": "bcpformat.engine.coordinator",
    "CoverageError": "bcpformat.errors",
    "DisagreementError": "bcpformat.errors",
    "ErrorCode": "bcpformat.errors",
    "FormatError": "bcpformat.errors",
    "InvalidArgumentError": "bcpformat.errors",
    "LimitError": "bcpformat.errors",
    "Limits": "bcpformat.model.limits",
    "LocalStore": "bcpformat.storage",
    "MemoryStore": "bcpformat.storage",
    "MismatchError": "bcpformat.errors",
    "Mismatches": "bcpformat.api.into",
    "ObjectExistsError": "bcpformat.errors",
    "ObjectNotFoundError": "bcpformat.errors",
    "PerRank": "bcpformat.model.leaves",
    "PerRankValues": "bcpformat.model.leaves",
    "Problem": "bcpformat.errors",
    "ReadOptions": "bcpformat.engine.options",
    "Report": "bcpformat.validation",
    "Segment": "bcpformat.model.fused",
    "Shard": "bcpformat.model.shards",
    "Shards": "bcpformat.model.shards",
    "StateError": "bcpformat.errors",
    "StorageError": "bcpformat.errors",
    "Store": "bcpformat.storage",
    "TensorView": "bcpformat.api.opened",
    "UnsupportedError": "bcpformat.errors",
    "WriteOptions": "bcpformat.engine.options",
    "WriteReport": "bcpformat.engine.write",
    "even_segments": "bcpformat.model.fused",
    "fused": "bcpformat.model.fused",
    "latest": "bcpformat.api.check",
    "open": "bcpformat.api.opened",
    "per_rank": "bcpformat.api.per_rank",
    "read": "bcpformat.api.read",
    "register_type": "bcpformat.model.user_types",
    "validate": "bcpformat.api.check",
    "write": "bcpformat.api.save",
}
"""Public name to the module that defines it."""


def __getattr__(name: str) -> object:
    """Load a public name from its home."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = import_module(home)
    if name != "per_rank":  # a module of its own
        value = getattr(value, "open_checkpoint" if name == "open" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "BcpError",
    "Checkpoint",
    "ChecksumError",
    "CommitError",
    "CoordinationError",
    "Coordinator",
    "CoverageError",
    "DisagreementError",
    "ErrorCode",
    "FormatError",
    "InvalidArgumentError",
    "LimitError",
    "Limits",
    "LocalStore",
    "MemoryStore",
    "MismatchError",
    "Mismatches",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "PerRank",
    "PerRankValues",
    "Problem",
    "ReadOptions",
    "Report",
    "Segment",
    "Shard",
    "Shards",
    "StateError",
    "StorageError",
    "Store",
    "TensorView",
    "UnsupportedError",
    "WriteOptions",
    "WriteReport",
    "even_segments",
    "fused",
    "latest",
    "open",
    "per_rank",
    "read",
    "register_type",
    "validate",
    "write",
]
