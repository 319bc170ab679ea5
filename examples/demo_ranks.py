"""The second half of the demo: a job of 4 ranks is killed, and goes on in other layouts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from terminal import promise, say, shell, tell
from train_ranks import LAYOUTS, MORE_STEPS, SAVED_STEP

import bcpformat
from bcpformat.cli.picture import Readers, draw
from bcpformat.engine.load import load_manifest
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.model.region import Box
from bcpformat.storage import open_store

PROGRAM = Path(__file__).with_name("train_ranks.py")
PICTURES = Path(__file__).parents[1] / "build" / "demo"
WRITER = "fsdp2-x-tp"
RESUMES = {
    WRITER: "FSDP2 x tensor parallelism, 2x2, as before",
    "fsdp2": "FSDP2 alone",
    "tp": "tensor parallelism alone",
    "one-process": "no process group",
}
"""Name of a layout to what it is, in the order in which they are shown."""

TENSORS = ("model/*", "optim/*", "schedule/*", "step")
"""What does not depend on the number of ranks."""

DRAWN = ("model/embed*", "model/blocks.0.*.weight", "optim/state/blocks.0.up.weight/exp_avg*")
TOLERANCE = 1e-4
_POLL_S = 0.05
_JOB_S = 600.0
_LOG_CHARACTERS = 3000


# ---- processes -----------------------------------------------------------------------------------


def children(parent: int) -> list[int]:
    """Return the ids of the processes that a process has started and not yet waited for."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended in between
            # the name, in parentheses, may hold anything; state and parent follow it
            if int(place.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(place.parent.name))
    return sorted(found)


def kill(pids: list[int]) -> None:
    """Kill processes, at once and without a chance to tidy up."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def job(action: str, layout: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a job; when the block ends, however it does, no process of it is left."""
    ranks = LAYOUTS[layout].ranks
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    launcher += ["--nproc-per-node", str(ranks)]
    command = [sys.executable, *(launcher if ranks > 1 else []), str(PROGRAM)]
    with log_of(action, layout, folder).open("wb") as log:
        process = subprocess.Popen(
            [*command, action, layout, str(folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)  # it starts and reaps nothing from now on
            kill([*children(process.pid), process.pid])
            process.wait()


def log_of(action: str, layout: str, folder: Path) -> Path:
    return folder / f"{layout}.{action}.log"


def losses(action: str, layout: str, folder: Path) -> dict[int, float]:
    """Return the losses so far by step, as rank 0 has noted them to the last bit."""
    place = folder / f"{layout}.{action}"
    lines = place.read_text().splitlines(keepends=True) if place.exists() else []
    steps = [line.split() for line in lines if line.endswith("\n")]
    return {int(step): float.fromhex(loss) for step, loss in steps}


def expect_success(
    action: str, layout: str, folder: Path, process: subprocess.Popen[bytes]
) -> None:
    """Wait for a job to end well."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_JOB_S)
    if process.returncode != 0:
        tell(log_of(action, layout, folder).read_text(errors="replace")[-_LOG_CHARACTERS:])
    promise(process.returncode == 0, f"the job in layout {layout} ends well")


# ---- parts ---------------------------------------------------------------------------------------


def show_many_ranks(folder: Path) -> None:
    """Train on 4 ranks, kill them, go on in every layout, and draw who wrote and read what."""
    for name in ("runs", "again"):
        (folder / name).mkdir()
    saved = train_and_kill(folder)
    reference = losses("train", WRITER, folder)
    for layout, words in RESUMES.items():
        resume(layout, words, folder, saved, reference)
    compare_loaders(folder, saved)
    draw_pictures(folder, saved)


def train_and_kill(folder: Path) -> Path:
    """Train on 4 ranks until the job has saved and gone on, and kill it."""
    say("Train a small transformer on 4 processes: FSDP2 x tensor parallelism, 2x2, gloo")
    begin = time.monotonic()
    with job("train", WRITER, folder) as process:
        last = 0
        while last < SAVED_STEP + MORE_STEPS:
            time.sleep(_POLL_S)
            last = max(losses("train", WRITER, folder), default=0)
            if process.poll() is not None or time.monotonic() - begin > _JOB_S:
                expect_success("train", WRITER, folder, process)
                promise(False, "the training is still under way when it is killed")
        ranks = children(process.pid)
        promise(len(ranks) == LAYOUTS[WRITER].ranks, "there are 4 ranks to kill")
        kill(ranks)
        code = process.wait(timeout=_JOB_S)
    gone = not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    promise(gone, "no rank survives, and the launcher has noticed")
    found = losses("train", WRITER, folder)
    last = max(found)
    tell(f"loss {found[1]:.3f} -> {found[SAVED_STEP]:.3f}, saved at step {SAVED_STEP}, trained on")
    tell(f"SIGKILL after step {last} to all ranks: processes {', '.join(map(str, ranks))}")
    tell(f"the launcher ends with exit code {code}; what is left is the last checkpoint")
    promise(code != 0, "the launcher says that its ranks were killed")
    saved = folder / "runs" / f"step-{SAVED_STEP}"
    shell("validate", saved)
    return saved


def resume(layout: str, words: str, folder: Path, saved: Path, reference: dict[int, float]) -> None:
    """Go on in a layout; what it loaded, and how it goes on, must be as before."""
    ranks = LAYOUTS[layout].ranks
    say(f"Resume on {ranks} process{'es' if ranks > 1 else ''}: {words}")
    begin = time.monotonic()
    with job("resume", layout, folder) as process:
        expect_success("resume", layout, folder, process)
    tell(f"loaded, saved again at once, trained on: {time.monotonic() - begin:.0f} s in all")
    is_same = layout == WRITER
    chosen = [] if is_same else [word for name in TENSORS for word in ("--names", name)]
    shell("diff", saved, folder / "again" / layout, *chosen)
    found = losses("resume", layout, folder)
    steps = range(SAVED_STEP + 1, SAVED_STEP + MORE_STEPS + 1)
    promise(list(found) == list(steps), "it goes on with the step after the saved one")
    largest = max(abs(found[step] - reference[step]) for step in steps)
    if is_same:
        tell(f"the next {MORE_STEPS} losses differ from those of the killed job by {largest}")
        promise(largest == 0.0, "the losses are the same to the last bit")
    else:
        tell(f"the next {MORE_STEPS} losses are those of the killed job within {largest:.1e}")
        promise(largest <= TOLERANCE, f"the losses are the same within {TOLERANCE:.0e}")


def compare_loaders(folder: Path, saved: Path) -> None:
    """See that no sample was lost or is seen twice, however the queues were dealt."""
    say("Per-rank values: what is left of the data, dealt out again by a rule")
    # by themselves: all at once they were 4 ranks' values, and now are those of 2 or of 1
    expected = sorted(sample for queue in queues(saved) for sample in queue)
    for layout in RESUMES:
        found = queues(folder / "again" / layout)
        left = [sample for queue in found for sample in queue]
        tell(f"{layout:>12}: {' + '.join(str(len(queue)) for queue in found)} samples left")
        promise(sorted(left) == expected, "no sample is lost, and none comes twice")


def queues(location: Path) -> list[list[int]]:
    """Return the samples that each worker has left: those of its first rank."""
    values = bcpformat.read(location, filter="loader")["loader"].values()
    found = {value["worker"]: value["queue"] for value in values}
    return [found[worker] for worker in sorted(found)]


def draw_pictures(folder: Path, saved: Path) -> None:
    """Draw who wrote which region, and who read which."""
    say("Who wrote which region, and who read which")
    PICTURES.mkdir(parents=True, exist_ok=True)
    written = PICTURES / "written.svg"
    written.unlink(missing_ok=True)
    names = [word for name in DRAWN for word in ("--names", name)]
    shell("inspect", saved, "--depth", 0, *names, "--svg", written)
    manifest = load_manifest(open_store(saved), limits=DEFAULT_LIMITS)
    for layout, words in RESUMES.items():
        place = PICTURES / f"read-{layout}.svg"
        title = f"written: FSDP2 x tensor parallelism, 2x2; read: {words}"
        place.write_text(draw(manifest, title=title, names=DRAWN, readers=readers(layout, folder)))
        tell(f"picture: {place}")


def readers(layout: str, folder: Path) -> Readers:
    """Return what each rank of a layout has read, by its own account."""
    found = []
    for rank in range(LAYOUTS[layout].ranks):
        told = json.loads((folder / "again" / f"{layout}.{rank}.json").read_text())
        found.append(
            {name: [Box(origin=tuple(o), shape=tuple(s)) for o, s in told[name]] for name in told}
        )
    return found
