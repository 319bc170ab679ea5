"""What a caller may choose when writing and reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.limits import DEFAULT_LIMITS, MAX_INTEGER, Limits
from bcpformat.model.manifest import Value

MAX_THREADS = 2**10
MAX_SECONDS = 10**6
CodecName = Literal["raw", "zstd", "planes-zstd", "auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How to write.

    Attributes:
        codec: How blocks are encoded; ``planes-zstd`` falls back to ``zstd`` where an element has
            one byte.
        level: zstd level of codec ``zstd``.
        threads: Threads that copy, hash, encode and write.
        tile: Cut large tensors on several axes, so that a reader of columns reads little else: True
            chooses the size of the tiles, a tuple gives it for the last axes, in elements.
        replicas: What of the replicas of a tensor is compared between ranks: ``"sample"`` at most
            1 MiB of each and nothing of DTensors, ``"full"`` every byte.
        disagree: What happens when ranks have different values in one place that is not marked with
            `PerRank`: an ``"error"``, or ``"per_rank"`` to keep all of them.
        timeout_s: How long a rank waits for others, each time.
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
    replicas: Literal["sample", "full"] = "sample"
    disagree: Literal["error", "per_rank"] = "error"
    timeout_s: float = 600.0
    capture: Literal["copy", "lazy"] = "copy"
    arena_bytes: int | None = None
    user: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.codec not in ("raw", "zstd", "planes-zstd", "auto"):
            names = "'raw', 'zstd', 'planes-zstd'"
            raise InvalidArgumentError(f"codec must be one of {names}, got {self.codec!r}")
        for name, known in (
            ("capture", ("copy", "lazy")),
            ("replicas", ("sample", "full")),
            ("disagree", ("error", "per_rank")),
        ):
            value = getattr(self, name)
            if value not in known:
                text = f"{name} must be {known[0]!r} or {known[1]!r}, got {value!r}"
                raise InvalidArgumentError(text)
        _check_seconds("timeout_s", self.timeout_s)
        _check_tile(self.tile)
        _check_integer("level", self.level, 1, 19)
        _check_integer("threads", self.threads, 1, MAX_THREADS)
        if not isinstance(self.user, Mapping):
            raise InvalidArgumentError(f"user must be a mapping, got {self.user!r:.200}")
        for name, unbuilt in (
            ("codec='auto'", self.codec == "auto"),
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
        timeout_s: How long a rank waits for others that read with it, each time.
        shared: Let one of the ranks that read together, and need the same blocks of tensors, fetch
            them and give them to the others: for stores that are slower than the network between
            the ranks.  It must be the same on all of them; it changes nothing for one alone.

    Example:
        >>> ReadOptions(budget_bytes=2**30).verify
        True
    """

    verify: bool = True
    threads: int = 2
    budget_bytes: int | None = None
    limits: Limits = DEFAULT_LIMITS
    timeout_s: float = 600.0
    shared: bool = False

    def __post_init__(self) -> None:
        _check_integer("threads", self.threads, 1, MAX_THREADS)
        if self.budget_bytes is not None:
            _check_integer("budget_bytes", self.budget_bytes, 1, MAX_INTEGER)
        _check_seconds("timeout_s", self.timeout_s)
        for name, flag in (("verify", self.verify), ("shared", self.shared)):
            if not isinstance(flag, bool):
                raise InvalidArgumentError(f"{name} must be True or False, got {flag!r}")
        if not isinstance(self.limits, Limits):
            raise InvalidArgumentError(f"limits must be Limits(...), got {self.limits!r:.200}")


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidArgumentError(f"{name} must be an integer, {low} to {high}, got {value!r}")


def _check_seconds(name: str, value: object) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < float(cast(float, value)) <= MAX_SECONDS:
        text = f"{name} must be a number of seconds, at most {MAX_SECONDS}, got {value!r}"
        raise InvalidArgumentError(text)


def _check_tile(value: object) -> None:
    if isinstance(value, bool):
        return
    extents = value if isinstance(value, tuple) else ()
    if not extents or not all(type(e) is int and 1 <= e <= MAX_INTEGER for e in extents):
        text = f"tile must be True, False or a tuple of extents of at least 1, got {value!r}"
        raise InvalidArgumentError(text)
