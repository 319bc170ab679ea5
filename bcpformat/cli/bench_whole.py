"""Groups `write`, `read` and `small`: whole states, beside the raw storage and other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bcpformat.cli.bench_contest import OURS, Contest
from bcpformat.cli.bench_measure import Setup, Timings, fastest_raw, measure, spread
from bcpformat.cli.bench_report import Goal, Row, Table, at_most
from bcpformat.cli.bench_state import adam_state, small_state

WRITE_RATIO = 1.25
READ_RATIO = 1.4
SMALL_MICROSECONDS = 10.0

_DURABLE = "all cases end with fsync of the files and their directory"
_FRESH = "before every run the old files are deleted and the system is synced"
_COLD = "cold: before every run the files are synced and evicted from the page cache"
_EXISTING = "all cases read into tensors that exist; raw reads into warm buffers"
_UNVERIFIED = "raw, torch.load and safetensors verify nothing; bcpformat verifies every block"
_TORCH_THREADS = "'+ copy': with torch's default threads, or with 1; other load slows the former"


def write_group(setup: Setup) -> list[Table]:
    """Measure writing a state of parameters and Adam's moments."""
    with Contest(setup.folder, adam_state(setup.sizes.state_bytes)) as contest:
        timings = measure(contest.writers(), rounds=setup.rounds, label="write", say=setup.say)
        title = f"write: {contest.nbytes / 1e9:.3g} GB of bf16 parameters and fp32 Adam state"
        notes = contest.notes(_DURABLE, _FRESH)
        return [_whole_table("write", title, timings, contest.nbytes, WRITE_RATIO, notes)]


def read_group(setup: Setup) -> list[Table]:
    """Measure reading that state from a cold cache into existing tensors."""
    with Contest(setup.folder, adam_state(setup.sizes.state_bytes)) as contest:
        setup.say("read: writing the files")
        contest.write_all()
        readers = contest.readers(also_one_thread=True)
        timings = measure(readers, rounds=setup.rounds, label="read", say=setup.say)
        title = f"read: {contest.nbytes / 1e9:.3g} GB into existing tensors, cold cache"
        notes = contest.notes(_COLD, _EXISTING, _UNVERIFIED, _TORCH_THREADS)
        return [_whole_table("read", title, timings, contest.nbytes, READ_RATIO, notes)]


def _whole_table(
    name: str,
    title: str,
    timings: Sequence[Timings],
    nbytes: int,
    bound: float,
    notes: Sequence[str],
) -> Table:
    raw = fastest_raw(timings)
    rows = []
    for found in timings:
        wall = median(found.wall)
        ratio = wall / raw
        goal = at_most(ratio, bound, f"{bound}x raw") if found.case.name == OURS else None
        cells = (
            found.case.name,
            f"{wall:.3f}",
            spread(found.wall, 3),
            f"{nbytes / wall / 1e9:.2f}",
            f"{ratio:.2f}",
            f"{median(found.cpu):.2f}",
            f"{found.first.wall_seconds:.3f}",
            _yes_no(found.case.makes_durable),
            _yes_no(found.case.verifies),
        )
        data = found.document() | {"nbytes": nbytes, "ratio_to_raw": ratio}
        rows.append(Row(cells=cells, data=data, goal=goal))
    columns = (
        "case",
        "median s",
        "min-max",
        "GB/s",
        "x raw",
        "CPU s",
        "first s",
        "fsync",
        "verifies",
    )
    return Table(name=name, title=title, columns=columns, rows=rows, notes=notes)


def small_group(setup: Setup) -> list[Table]:
    """Measure writing and reading very many small tensors."""
    count = setup.sizes.small_tensors
    with Contest(setup.folder, small_state(count)) as contest:
        writes = measure(
            contest.writers(), rounds=setup.rounds, label="small, write", say=setup.say
        )
        contest.write_all()
        readers = contest.readers(also_one_thread=False)
        reads = measure(readers, rounds=setup.rounds, label="small, read", say=setup.say)
        title = f"small: {count} tensors of 4 KiB"
        cpu = "CPU time is that of all threads of the process"
        return [
            _small_table(
                "small-write",
                f"{title}, write",
                writes,
                count,
                contest.notes(_DURABLE, _FRESH, cpu),
            ),
            _small_table(
                "small-read",
                f"{title}, read into existing tensors, cold cache",
                reads,
                count,
                contest.notes(_COLD, _UNVERIFIED, cpu),
            ),
        ]


def _small_table(
    name: str, title: str, timings: Sequence[Timings], count: int, notes: Sequence[str]
) -> Table:
    raw = fastest_raw(timings)
    rows = []
    for found in timings:
        cpu = [seconds * 1e6 / count for seconds in found.cpu]
        wall = [seconds * 1e6 / count for seconds in found.wall]
        ratio = median(found.wall) / raw
        goal: Goal | None = None
        if found.case.name == OURS:
            goal = at_most(median(cpu), SMALL_MICROSECONDS, f"{SMALL_MICROSECONDS:.0f} us CPU")
        cells = (
            found.case.name,
            f"{median(cpu):.1f}",
            spread(cpu, 1),
            f"{median(wall):.1f}",
            f"{ratio:.2f}",
            f"{found.first.cpu_seconds * 1e6 / count:.1f}",
            _yes_no(found.case.makes_durable),
            _yes_no(found.case.verifies),
        )
        data = found.document() | {
            "tensors": count,
            "median_cpu_us_per_tensor": median(cpu),
            "median_wall_us_per_tensor": median(wall),
            "ratio_to_raw": ratio,
        }
        rows.append(Row(cells=cells, data=data, goal=goal))
    columns = (
        "case",
        "CPU us/tensor",
        "min-max",
        "wall us/tensor",
        "wall x raw",
        "first CPU us",
        "fsync",
        "verifies",
    )
    return Table(name=name, title=title, columns=columns, rows=rows, notes=notes)


def _yes_no(value: object) -> str:
    return "yes" if value else "no"
