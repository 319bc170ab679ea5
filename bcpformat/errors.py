"""The exception tree and the stable error codes (spec 17).

Classes are grouped by what a handler does: report corruption, upgrade, fix the call, or
retry.  Codes are append-only: a code never changes its meaning, a message may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum


class ErrorCode(str, Enum):
    """A stable name for one kind of failure; the registry is ``spec/registry/errors.toml``.

    Example:
        >>> ErrorCode.COVERAGE.value
        'E_COVERAGE'
    """

    # io
    FILE_MISSING = "E_FILE_MISSING"
    FILE_TYPE = "E_FILE_TYPE"
    FILE_LENGTH = "E_FILE_LENGTH"
    IO = "E_IO"
    # container
    MAGIC = "E_MAGIC"
    HEADER_CHECKSUM = "E_HEADER_CHECKSUM"
    KIND = "E_KIND"
    RESERVED = "E_RESERVED"
    TRUNCATED = "E_TRUNCATED"
    LENGTH = "E_LENGTH"
    MANIFEST_CHECKSUM = "E_MANIFEST_CHECKSUM"
    MANIFEST_ENCODING = "E_MANIFEST_ENCODING"
    ID = "E_ID"
    # encoding
    MP_MALFORMED = "E_MP_MALFORMED"
    MP_NONCANONICAL = "E_MP_NONCANONICAL"
    MP_TYPE = "E_MP_TYPE"
    DEPTH = "E_DEPTH"
    # schema
    KEY_MISSING = "E_KEY_MISSING"
    KEY_UNKNOWN = "E_KEY_UNKNOWN"
    TYPE = "E_TYPE"
    RANGE = "E_RANGE"
    NAME = "E_NAME"
    FILE_NAME = "E_FILE_NAME"
    ORDER = "E_ORDER"
    SECTION = "E_SECTION"
    COLUMN = "E_COLUMN"
    # unsupported
    VERSION = "E_VERSION"
    FEATURE = "E_FEATURE"
    DTYPE = "E_DTYPE"
    CODEC = "E_CODEC"
    DIGEST = "E_DIGEST"
    # semantic
    OVERFLOW = "E_OVERFLOW"
    BOUNDS = "E_BOUNDS"
    COVERAGE = "E_COVERAGE"
    INDEX = "E_INDEX"
    EXTENT_BOUNDS = "E_EXTENT_BOUNDS"
    EXTENT_OVERLAP = "E_EXTENT_OVERLAP"
    EXTENT_HOLE = "E_EXTENT_HOLE"
    ALIGN = "E_ALIGN"
    RAW_LENGTH = "E_RAW_LENGTH"
    ITEM = "E_ITEM"
    STATE = "E_STATE"
    # data
    TABLE_CHECKSUM = "E_TABLE_CHECKSUM"
    TABLE = "E_TABLE"
    BLOCK_CHECKSUM = "E_BLOCK_CHECKSUM"
    BLOCK_ENCODING = "E_BLOCK_ENCODING"
    PADDING = "E_PADDING"
    # limit
    LIMIT = "E_LIMIT"
    BUDGET = "E_BUDGET"
    # commit
    NOT_COMMITTED = "E_NOT_COMMITTED"
    EXISTS = "E_EXISTS"
    UNCERTAIN = "E_UNCERTAIN"
    # ranks: what processes that save or read together owe each other
    TIMEOUT = "E_TIMEOUT"
    RANK_LOST = "E_RANK_LOST"
    DISAGREE = "E_DISAGREE"
    # use: the caller's side, never about bytes in a file
    ARGUMENT = "E_ARGUMENT"
    NO_FORM = "E_NO_FORM"
    MISMATCH = "E_MISMATCH"
    CLOSED = "E_CLOSED"
    NOT_BUILT = "E_NOT_BUILT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One finding of a check: what is wrong, where, under a stable code.

    Attributes:
        code: The stable code (spec 17).
        where: The place: a key, a section, a tensor's name, a byte position; ``""`` when
            the message says it all.
        message: What was expected and what was found.
        damages: Names of the tensors, objects and per-rank values whose data it is in.

    Example:
        >>> str(Problem(code=ErrorCode.ALIGN, where="run 3", message="position 100"))
        'E_ALIGN run 3: position 100'
    """

    code: ErrorCode
    where: str
    message: str
    damages: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        place = f" {self.where}" if self.where else ""
        return f"{self.code.value}{place}: {self.message}"


class BcpError(Exception):
    """The root of every error this package raises on purpose.

    Its text ends with the code in brackets, so that whatever shows the one shows the other.

    Attributes:
        code: The stable code (spec 17).
        changed: Names of destinations that a failed read may have changed.
        rank: The rank it happened on, where several save or read together; every rank of the
            group raises it.

    Example:
        >>> error = FormatError("run 3: position 100", code=ErrorCode.ALIGN)
        >>> str(error), error.message
        ('run 3: position 100 [E_ALIGN]', 'run 3: position 100')
    """

    changed: tuple[str, ...] = ()
    rank: int | None = None

    def __init__(self, message: str, *, code: ErrorCode) -> None:
        super().__init__(message)
        self.code = code

    @property
    def message(self) -> str:
        """What was expected, what was found and where, without the code.

        This is what goes into the text of another error, which ends with a code of its own.
        """
        return str(self.args[0])

    def __str__(self) -> str:
        return f"{self.message} [{self.code.value}]"

    def __reduce__(self) -> tuple[object, ...]:
        """Make copies and other processes see the same error, with all it carries."""
        return _rebuilt, (type(self), self.args, self.__dict__.copy())


def _rebuilt(kind: type[BcpError], args: tuple[object, ...], state: dict[str, object]) -> BcpError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class FormatError(BcpError):
    """These bytes are not a valid checkpoint; report corruption or a faulty writer."""


class ChecksumError(FormatError):
    """Bytes differ from what was written."""


class LimitError(FormatError):
    """Refused before allocating; raise the limit if the source is trusted."""


class UnsupportedError(FormatError):
    """A valid checkpoint of a newer version, or with a feature this reader lacks."""


class CoverageError(FormatError):
    """The regions of a tensor leave a gap or overlap."""


class InvalidArgumentError(BcpError, ValueError):
    """The caller's mistake; fix the call."""

    def __init__(self, message: str, *, code: ErrorCode = ErrorCode.ARGUMENT) -> None:
        super().__init__(message, code=code)


class MismatchError(InvalidArgumentError):
    """A template and a checkpoint do not agree (every difference is listed).

    Attributes:
        problems: All of them, in the order of the template.
    """

    def __init__(self, message: str, *, problems: Sequence[Problem]) -> None:
        super().__init__(message, code=ErrorCode.MISMATCH)
        self.problems = tuple(problems)


class StateError(BcpError):
    """The right call at the wrong moment, such as a closed checkpoint."""

    def __init__(self, message: str, *, code: ErrorCode = ErrorCode.CLOSED) -> None:
        super().__init__(message, code=code)


class StorageError(BcpError):
    """A store failed.

    Attributes:
        key: The object's key, or ``""`` for the store as a whole.
        retryable: Whether the same call may succeed later.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str,
        retryable: bool = False,
        code: ErrorCode = ErrorCode.IO,
    ) -> None:
        super().__init__(message, code=code)
        self.key = key
        self.retryable = retryable


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """No object has that key."""

    def __init__(self, message: str, *, key: str, code: ErrorCode = ErrorCode.FILE_MISSING) -> None:
        super().__init__(message, key=key, code=code)


class ObjectExistsError(StorageError, FileExistsError):
    """An object has that key already, and nothing is ever overwritten."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message, key=key, code=ErrorCode.EXISTS)


class CommitError(BcpError):
    """A save did not commit.

    Attributes:
        published: False when nothing was published; None when a lost reply leaves it unknown.
    """

    def __init__(self, message: str, *, published: bool | None, code: ErrorCode) -> None:
        super().__init__(message, code=code)
        self.published = published


class CoordinationError(BcpError):
    """Ranks that save or read together did not hear from each other.

    Attributes:
        ranks: Those that did not come, as far as is known.
    """

    def __init__(
        self, message: str, *, ranks: Sequence[int] = (), code: ErrorCode = ErrorCode.TIMEOUT
    ) -> None:
        super().__init__(message, code=code)
        self.ranks = tuple(ranks)


class DisagreementError(BcpError):
    """Ranks that save together hold different things where they must hold the same.

    Attributes:
        problems: All of them, as far as they were found.
    """

    def __init__(self, message: str, *, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message, code=ErrorCode.DISAGREE)
        self.problems = tuple(problems)


_CLASSES: dict[ErrorCode, type[BcpError]] = {
    ErrorCode.HEADER_CHECKSUM: ChecksumError,
    ErrorCode.MANIFEST_CHECKSUM: ChecksumError,
    ErrorCode.TABLE_CHECKSUM: ChecksumError,
    ErrorCode.BLOCK_CHECKSUM: ChecksumError,
    ErrorCode.LIMIT: LimitError,
    ErrorCode.BUDGET: LimitError,
    ErrorCode.VERSION: UnsupportedError,
    ErrorCode.FEATURE: UnsupportedError,
    ErrorCode.DTYPE: UnsupportedError,
    ErrorCode.CODEC: UnsupportedError,
    ErrorCode.DIGEST: UnsupportedError,
    ErrorCode.COVERAGE: CoverageError,
}


def error_for(problem: Problem) -> BcpError:
    """Return the exception that a reader raises for a problem of a checkpoint."""
    place = f"{problem.where}: " if problem.where else ""
    return _CLASSES.get(problem.code, FormatError)(place + problem.message, code=problem.code)
