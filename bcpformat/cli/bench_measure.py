"""Measuring honestly: the same durability, a cold cache, interleaved rounds, medians.

Every case runs once before it counts: the first run touches fresh pages and starts threads, and
is reported apart.  Then each round runs every case, beginning with another one.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from bcpformat.cli.bench_report import Say


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured.

    Attributes:
        state_bytes: Bytes of the whole state that is written and read.
        small_tensors: Number of tensors of 4 KiB.
        chunks: Chunks of the manifest.
        partial_tensors: Large tensors of the checkpoint that is read in part.
        partial_bytes: Bytes of each of them, a power of two from 2^20 on.
        codec_blocks: Blocks of 1 MiB to encode, at most.
    """

    state_bytes: int
    small_tensors: int
    chunks: int
    partial_tensors: int
    partial_bytes: int
    codec_blocks: int


def full_sizes(state_bytes: int) -> Sizes:
    """Return the sizes that the goals are meant for, but for the size of the whole state."""
    return Sizes(
        state_bytes=state_bytes,
        small_tensors=20_000,
        chunks=1_000_000,
        partial_tensors=59,
        partial_bytes=2**26,
        codec_blocks=64,
    )


def quick_sizes(state_bytes: int) -> Sizes:
    """Return sizes that show within seconds whether everything works."""
    return Sizes(
        state_bytes=state_bytes,
        small_tensors=max(state_bytes // 2**15, 16),
        chunks=max(state_bytes // 640, 100),
        partial_tensors=8,
        partial_bytes=max(1 << (state_bytes // 8).bit_length() - 1, 2**20),
        codec_blocks=max(state_bytes // 2**23, 1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a group of measurements needs.

    Attributes:
        folder: An empty directory for its files; what it leaves there is removed.
        sizes: How much to measure.
        rounds: Rounds that count, at least 1.
        say: Shows what is going on.
    """

    folder: str
    sizes: Sizes
    rounds: int
    say: Say


@dataclass(frozen=True, slots=True)
class Timing:
    """One run.

    Attributes:
        wall_seconds: Elapsed time.
        cpu_seconds: Processor time of all threads of the process.
    """

    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to do a thing.

    Attributes:
        name: For people.
        run: What is timed.
        prepare: Called before every run, not timed.
        check: Called after the first run, not timed; raises if the result is wrong.
        is_raw: Whether this is a base that the others are compared with.
        makes_durable: Whether it ends with fsync.
        verifies: Whether it would notice a changed bit.
    """

    name: str
    run: Callable[[], None]
    prepare: Callable[[], None]
    check: Callable[[], None] | None = None
    is_raw: bool = False
    makes_durable: bool = False
    verifies: bool = False


@dataclass(frozen=True, slots=True)
class Timings:
    """All runs of a case.

    Attributes:
        case: The case.
        first: The run that does not count.
        rounds: The runs that do.
    """

    case: Case
    first: Timing
    rounds: Sequence[Timing]

    @property
    def wall(self) -> list[float]:
        """Elapsed seconds of each round."""
        return [timing.wall_seconds for timing in self.rounds]

    @property
    def cpu(self) -> list[float]:
        """Processor seconds of each round."""
        return [timing.cpu_seconds for timing in self.rounds]

    def document(self) -> dict[str, object]:
        """Return everything about them for programs."""
        return {
            "case": self.case.name,
            "fsync": self.case.makes_durable,
            "verifies": self.case.verifies,
            "first_wall_seconds": self.first.wall_seconds,
            "first_cpu_seconds": self.first.cpu_seconds,
            "wall_seconds": self.wall,
            "cpu_seconds": self.cpu,
            "median_wall_seconds": median(self.wall),
            "median_cpu_seconds": median(self.cpu),
        }


def measure(cases: Sequence[Case], *, rounds: int, label: str, say: Say) -> list[Timings]:
    """Run every case once, then round by round, and return the timings in the order of the cases.

    Args:
        cases: What to compare.
        rounds: Rounds that count, at least 1.
        label: What is being measured, for people.
        say: Shows it.
    """
    first: list[Timing] = []
    for case in cases:
        say(f"{label}: {case.name}, first run")
        first.append(_timed(case))
        if case.check is not None:
            case.check()
    later: list[list[Timing]] = [[] for _ in cases]
    for number in range(rounds):
        for position in range(len(cases)):
            index = (number + position) % len(cases)
            say(f"{label}: {cases[index].name}, round {number + 1} of {rounds}")
            later[index].append(_timed(cases[index]))
    return [
        Timings(case, once, timings)
        for case, once, timings in zip(cases, first, later, strict=True)
    ]


def _timed(case: Case) -> Timing:
    case.prepare()
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    case.run()
    return Timing(time.perf_counter() - wall, time.process_time() - cpu)


def fastest_raw(timings: Sequence[Timings]) -> float:
    """Return the smallest median of the bases, in seconds."""
    return min(median(found.wall) for found in timings if found.case.is_raw)


def spread(values: Sequence[float], digits: int) -> str:
    """Return the smallest and the largest value as text."""
    return f"{min(values):.{digits}f}-{max(values):.{digits}f}"


def evict(path: str) -> None:
    """Remove a file, or all files of a directory, from the page cache."""
    for file in _files(path):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    return [os.path.join(root, name) for root, _, names in os.walk(path) for name in names]


def make_durable(path: str) -> None:
    """Call fsync on a file and on its directory."""
    for place in (path, os.path.dirname(path)):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
