"""bcpformat: the open checkpoint format for large-model training.

Example:
    >>> import bcpformat, numpy
    >>> store = bcpformat.MemoryStore()
    >>> report = bcpformat.write(store, {"w": numpy.zeros(3)}, step=1)
    >>> bcpformat.validate(store).ok
    True
"""

from bcpformat.api.check import latest, validate
from bcpformat.api.into import Mismatches
from bcpformat.api.opened import Checkpoint, TensorView, open_checkpoint, read
from bcpformat.api.save import write
from bcpformat.engine.options import ReadOptions, WriteOptions
from bcpformat.engine.write import WriteReport
from bcpformat.errors import (
    BcpError,
    ChecksumError,
    CommitError,
    CoverageError,
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
from bcpformat.model.leaves import PerRank, PerRankValues
from bcpformat.model.limits import Limits
from bcpformat.model.user_types import register_type
from bcpformat.storage import LocalStore, MemoryStore, Store
from bcpformat.validate import Report

open = open_checkpoint  # the name that users know

__all__ = [
    "BcpError",
    "Checkpoint",
    "ChecksumError",
    "CommitError",
    "CoverageError",
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
    "StateError",
    "StorageError",
    "Store",
    "TensorView",
    "UnsupportedError",
    "WriteOptions",
    "WriteReport",
    "latest",
    "open",
    "read",
    "register_type",
    "validate",
    "write",
]
