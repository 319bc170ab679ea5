"""Real processes for tests: started together, given jobs one after the other, all ended.

Importing torch takes longer than most jobs, so one set of processes does many of them, and the
tests look at the outcomes.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]

_POLL_S = 0.02
_LOG_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class Job:
    """What some of the processes do together.

    Attributes:
        function: Called with a `Member` and `args` on each; it stands in an importable module.
        args: Its other arguments, which can be pickled.
        ranks: The processes that take part, by number; all if None.
        lost: Those that do not survive it; whatever is left of them is killed at the end.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    ranks: tuple[int, ...] | None = None
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job on one process.

    Attributes:
        value: What it returned.
        error: What it raised; its notes hold the traceback.
        is_gone: Whether it did neither, because the process was killed or took no part.
    """

    value: Any = None
    error: BaseException | None = None
    is_gone: bool = False


def values(outcomes: Sequence[Outcome]) -> list[Any]:
    """Return what a job returned on each process; raise what it raised on the first."""
    for rank, outcome in enumerate(outcomes):
        if outcome.error is not None:
            raise outcome.error
        assert not outcome.is_gone, f"process {rank} has no outcome"
    return [outcome.value for outcome in outcomes]


def spawn(
    size: int,
    jobs: Sequence[Job],
    *,
    timeout_s: float = 180.0,
) -> list[list[Outcome]]:
    """Start processes, have them do jobs, end them, and return the outcomes.

    They share a store that is hosted here, so that any of them may die.

    Args:
        size: How many processes.
        jobs: What they do, in this order.
        timeout_s: How long all of it may take.

    Returns:
        By job, by process.

    Raises:
        TimeoutError: A process that no job loses is not done in time.  No process is left.
    """
    from torch.distributed import TCPStore

    lost = {rank for job in jobs for rank in job.lost}
    with tempfile.TemporaryDirectory(prefix="bcpformat-") as directory, ExitStack() as ended:
        place = Path(directory)
        host = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
        request = {"port": host.port, "size": size, "jobs": [_portable(job) for job in jobs]}
        (place / "request").write_bytes(pickle.dumps(request))
        processes = [_start(place, rank, ended) for rank in range(size)]
        awaited = [process for rank, process in enumerate(processes) if rank not in lost]
        deadline = time.monotonic() + timeout_s
        while any(process.poll() is None for process in awaited):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not done within {timeout_s:g} s\n{_logs(place, size)}")
            time.sleep(_POLL_S)
        bad = [p.returncode for p in awaited if p.returncode != 0]
        assert not bad, f"exit codes {bad}\n{_logs(place, size)}"
        return [[_outcome(place, j, rank) for rank in range(size)] for j in range(len(jobs))]


def run_script(command: Sequence[str], *, timeout_s: float = 180.0) -> str:
    """Run a command in the repository to its end; return what it printed.

    Raises:
        AssertionError: It failed; the message holds what it printed.
        TimeoutError: It is not done in time; it and what it started is killed.
    """
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # a launcher ends what it has launched
            output, _ = process.communicate(timeout=timeout_s)
            raise TimeoutError(f"not done within {timeout_s:g} s\n{output}") from None
    assert process.returncode == 0, output[-_LOG_CHARACTERS:]
    return output


def _portable(job: Job) -> tuple[str, str, tuple[Any, ...], tuple[int, ...] | None]:
    return job.function.__module__, job.function.__qualname__, job.args, job.ranks


def _environment() -> dict[str, str]:
    # One thread each: there are more processes than processors.
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}


def _start(place: Path, rank: int, ended: ExitStack) -> subprocess.Popen[bytes]:
    log = ended.enter_context((place / f"log-{rank}").open("wb"))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.distributed.worker", str(place), str(rank)],
        cwd=REPOSITORY,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    ended.callback(process.wait)
    ended.callback(process.kill)
    return process


def _outcome(place: Path, job: int, rank: int) -> Outcome:
    path = place / f"outcome-{job}-{rank}"
    if not path.exists():
        return Outcome(is_gone=True)
    outcome: Outcome = pickle.loads(path.read_bytes())
    return outcome


def _logs(place: Path, size: int) -> str:
    texts = [(place / f"log-{rank}").read_text(errors="replace") for rank in range(size)]
    return "\n".join(f"process {r}: {text[-_LOG_CHARACTERS:]}" for r, text in enumerate(texts))
