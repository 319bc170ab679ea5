"""What a caller may choose when writing and reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.limits import DEFAULT_LIMITS, MAX_INTEGER, Limits
from bcpformat.model.manifest import Value

MAX_THREADS = 2**10
CodecName = Literal["raw", "zstd", "planes-zstd", "auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How to write.

    Attributes:
        codec: How blocks are encoded; ``planes-zstd`` falls back to ``zstd`` where an element has
            one byte.
        level: zstd level of codec ``zstd``.
        threads: Threads that copy, hash, encode and write.
        tile: Not built yet: chunks split on more than one axis.
        capture: ``"copy"``; ``"lazy"`` is not built yet.
        arena_bytes: Not built yet.
        user: The user's own metadata: str, bool, bytes, integers from 0 to 2^53-1, lists and maps.

    Example:
        >>> WriteOptions(codec="zstd").codec
        'zstd'
    """

    codec: CodecName = "raw"
    level: int = 1
    threads: int = 2
    tile: bool | tuple[int, ...] = False
    capture: Literal["copy", "lazy"] = "copy"
    arena_bytes: int | None = None
    user: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.codec not in ("raw", "zstd", "planes-zstd", "auto"):
            known = "'raw', 'zstd', 'planes-zstd'"
            raise InvalidArgumentError(f"codec must be one of {known}, got {self.codec!r}")
        if self.capture not in ("copy", "lazy"):
            raise InvalidArgumentError(f"capture must be 'copy' or 'lazy', got {self.capture!r}")
        _check_integer("level", self.level, 1, 19)
        _check_integer("threads", self.threads, 1, MAX_THREADS)
        if not isinstance(self.user, Mapping):
            raise InvalidArgumentError(f"user must be a mapping, got {self.user!r:.200}")
        for name, unbuilt in (
            ("codec='auto'", self.codec == "auto"),
            ("tile", self.tile is not False),
            ("capture='lazy'", self.capture == "lazy"),
            ("arena_bytes", self.arena_bytes is not None),
        ):
            if unbuilt:
                text = f"{name} is not built yet in this version; leave it at its default"
                raise InvalidArgumentError(text, code=ErrorCode.NOT_BUILT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read.

    Attributes:
        verify: Compare every block's digest before handing out its elements.
        threads: Threads that read, verify, decode and copy.
        budget_bytes: Refuse to allocate more than this for the arrays of a result, and for the
            buffers of a read (16 MiB a thread, more only for blocks above 1 MiB), each by itself;
            None means the machine's memory.  `limits` bounds the manifest.
        limits: What the manifest may declare.

    Example:
        >>> ReadOptions(budget_bytes=2**30).verify
        True
    """

    verify: bool = True
    threads: int = 2
    budget_bytes: int | None = None
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        _check_integer("threads", self.threads, 1, MAX_THREADS)
        if self.budget_bytes is not None:
            _check_integer("budget_bytes", self.budget_bytes, 1, MAX_INTEGER)
        if not isinstance(self.verify, bool):
            raise InvalidArgumentError(f"verify must be True or False, got {self.verify!r}")
        if not isinstance(self.limits, Limits):
            raise InvalidArgumentError(f"limits must be Limits(...), got {self.limits!r:.200}")


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidArgumentError(f"{name} must be an integer, {low} to {high}, got {value!r}")
