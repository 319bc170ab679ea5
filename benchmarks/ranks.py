"""Saves and loads of several processes, measured beside raw I/O and PyTorch DCP.

    python benchmarks/ranks.py --dir /mnt/disk [--gigabytes 4] [--rounds 5] [--json OUT]

The state is that of FSDP2: fp32 parameters and two moments as DTensors on dim 0, a sixteenth of the
bytes replicated.  Every case of a group runs once in each round, beginning with another one; what
is reported are medians of the rounds after the first.  Writes end with fsync, reads begin with a
cold page cache, and bytes are those the kernel counts for each process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

TENSOR_BYTES = 2**26
COLUMNS = 4096
RAW_CALL_BYTES = 2**23


# ---- one rank ----------------------------------------------------------------------------------


def worker(job: dict[str, Any]) -> None:
    """Run the cases of a job on this rank; rank 0 writes the results."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    state = make_state(mesh, job["bytes"], axis=job["axis"], fill=job["kind"] == "write")
    held = sum(t.to_local().numel() * 4 for t in state.values())
    cases = writers(job, state, rank) if job["kind"] == "write" else readers(job, state, rank, held)
    results: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    names = list(cases)
    for number in range(job["rounds"] + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            prepare, run = cases[name]
            dist.barrier()
            if rank == 0:
                prepare()
            dist.barrier()
            before, begin = bytes_read(), time.perf_counter()
            run()
            mine = bytes_read() - before
            dist.barrier()
            seconds = time.perf_counter() - begin
            total = torch.tensor([mine, held], dtype=torch.int64)
            dist.all_reduce(total)
            found = {"seconds": seconds, "read": int(total[0]), "held": int(total[1])}
            results[name].append(found)
    if job["kind"] == "read":
        check(state, job["axis"], rank)
    if rank == 0:
        Path(job["out"]).write_text(json.dumps(results))
    dist.destroy_process_group()


def make_state(mesh: Any, nbytes: int, *, axis: int, fill: bool) -> dict[str, Any]:
    """Return the state of this rank; element (i, j) of tensor k is a function of all three."""
    import torch
    from torch.distributed.tensor import DTensor, Replicate, Shard

    rows = TENSOR_BYTES // 4 // COLUMNS
    count = nbytes // TENSOR_BYTES
    state = {}
    for k in range(count):
        shared = k % 16 == 15
        placement = Replicate() if shared else Shard(axis)
        whole = [rows, COLUMNS]
        low, high = 0, whole[axis]
        if not shared:
            step = whole[axis] // mesh.size()
            low = mesh.get_local_rank() * step
            high = low + step
        shape = list(whole)
        shape[axis] = high - low
        local = torch.empty(shape)
        local.fill_(0.0)
        if fill:
            local += torch.arange(low if axis == 0 else 0, (low if axis == 0 else 0) + shape[0])[
                :, None
            ]
            local[:, 0] += k
        name = f"layers.{k // 3}.{('weight', 'exp_avg', 'exp_avg_sq')[k % 3]}"
        state[name] = DTensor.from_local(local, mesh, [placement], run_check=False)
    return state


def check(state: dict[str, Any], axis: int, rank: int) -> None:
    """Raise unless the state holds what `make_state` filled in."""
    for k, tensor in enumerate(state.values()):
        local = tensor.to_local()
        shared = k % 16 == 15
        first = 0 if shared or axis else rank * local.shape[0]
        expected = float(first) + (k if axis == 0 or shared or rank == 0 else 0)
        if float(local[0, 0]) != expected or float(local[-1, -1]) != first + local.shape[0] - 1:
            raise AssertionError(f"tensor {k} of rank {rank} was not read rightly")


def writers(job: dict[str, Any], state: dict[str, Any], rank: int) -> dict[str, Any]:
    import torch.distributed.checkpoint as dcp

    import bcpformat

    folder = Path(job["dir"])

    def fresh(name: str) -> Callable[[], None]:
        def prepare() -> None:
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if name.startswith("raw"):
                (folder / name).mkdir()
            os.sync()

        return prepare

    mine = sum(
        t.to_local().numel() * 4 // (job["ranks"] if t.placements[0].is_replicate() else 1)
        for t in state.values()
    )
    cases = {
        "raw": (fresh("raw"), lambda: raw_write(folder / "raw" / str(rank), mine)),
        "bcpformat": (
            fresh(job["name"]),
            lambda: bcpformat.write(
                folder / job["name"],
                {"state": state},
                options=bcpformat.WriteOptions(tile=job["tile"]),
            ),
        ),
    }
    if not job["tile"]:
        cases["DCP"] = (
            fresh(job["name"] + "-dcp"),
            lambda: dcp.save(
                {"state": state},
                storage_writer=dcp.FileSystemWriter(folder / (job["name"] + "-dcp")),
            ),
        )
    return cases


def readers(job: dict[str, Any], state: dict[str, Any], rank: int, held: int) -> dict[str, Any]:
    import torch.distributed.checkpoint as dcp

    import bcpformat

    folder = Path(job["dir"])

    def cold(name: str) -> Callable[[], None]:
        def prepare() -> None:
            for path in (folder / name).rglob("*"):
                if path.is_file():
                    descriptor = os.open(path, os.O_RDONLY)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(descriptor)

        return prepare

    raw = sorted((folder / "raw").iterdir())
    cases = {
        "raw": (cold("raw"), lambda: raw_read(raw[rank % len(raw)], held, rank // len(raw))),
        "bcpformat": (
            cold(job["name"]),
            lambda: bcpformat.read(folder / job["name"], into={"state": state}),
        ),
    }
    if job["dcp"]:
        cases["DCP"] = (
            cold(job["name"] + "-dcp"),
            lambda: dcp.load({"state": state}, checkpoint_id=folder / (job["name"] + "-dcp")),
        )
    return cases


def aligned_buffer() -> Any:
    import mmap

    import numpy as np

    memory = mmap.mmap(-1, RAW_CALL_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    np.frombuffer(memory, dtype=np.uint8)[:] = 7
    return memory


def raw_write(path: Path, nbytes: int) -> None:
    """Write a file of large direct calls, durable."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
    buffer = aligned_buffer()
    for start in range(0, nbytes, RAW_CALL_BYTES):
        os.pwrite(descriptor, buffer, start)
    os.fsync(descriptor)
    os.close(descriptor)


def raw_read(path: Path, nbytes: int, part: int) -> None:
    """Read as many bytes as a rank holds by large direct calls, from its own place in a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = aligned_buffer()
    size = os.fstat(descriptor).st_size
    first = part * nbytes // RAW_CALL_BYTES * RAW_CALL_BYTES
    for start in range(0, nbytes, RAW_CALL_BYTES):
        os.preadv(descriptor, [buffer], (first + start) % (size - RAW_CALL_BYTES) // 4096 * 4096)
    os.close(descriptor)


def bytes_read() -> int:
    """Return the bytes that this process has asked the kernel to read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


# ---- the whole run -----------------------------------------------------------------------------


@contextmanager
def launched(job: dict[str, Any], port: int) -> Iterator[dict[str, Any]]:
    """Run a job on its ranks and yield its results; nothing is left behind."""
    with tempfile.TemporaryDirectory() as folder:
        job = {**job, "out": f"{folder}/results.json"}
        environment = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(job["ranks"]),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, __file__, "--job", json.dumps(job)]
        ranks = [
            subprocess.Popen(command, env={**environment, "RANK": str(rank)})
            for rank in range(job["ranks"])
        ]
        try:
            if any(process.wait() for process in ranks):
                raise SystemExit(f"job {job['name']} of {job['ranks']} ranks failed")
            yield json.loads(Path(job["out"]).read_text())
        finally:
            for process in ranks:
                process.kill()


def summary(results: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return medians of the rounds after the first, and ratios to raw."""
    table = {}
    for name, rounds in results.items():
        counted = rounds[1:]
        table[name] = {
            "seconds": median(r["seconds"] for r in counted),
            "amplification": counted[-1]["read"] / max(counted[-1]["held"], 1),
        }
    for row in table.values():
        row["of_raw"] = row["seconds"] / table["raw"]["seconds"]
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="where the table goes as JSON")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        worker(json.loads(arguments.job))
        return
    nbytes = int(arguments.gigabytes * 10**9) // TENSOR_BYTES * TENSOR_BYTES
    tables: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        base = {"dir": folder, "bytes": nbytes, "rounds": arguments.rounds, "axis": 0}
        jobs = [
            ("write, 4 ranks", {"kind": "write", "ranks": 4, "name": "four", "tile": False}),
            ("read, 4 -> 2", {"kind": "read", "ranks": 2, "name": "four", "dcp": True}),
            ("read, 4 -> 4", {"kind": "read", "ranks": 4, "name": "four", "dcp": True}),
            ("read, 4 -> 8", {"kind": "read", "ranks": 8, "name": "four", "dcp": True}),
            (
                "read, 4 -> 4 by columns",
                {"kind": "read", "ranks": 4, "name": "four", "dcp": True, "axis": 1},
            ),
            ("write, 4 ranks, tiles", {"kind": "write", "ranks": 4, "name": "tiled", "tile": True}),
            (
                "read tiles, 4 -> 4 by columns",
                {"kind": "read", "ranks": 4, "name": "tiled", "dcp": False, "axis": 1},
            ),
            ("write, 2 ranks", {"kind": "write", "ranks": 2, "name": "two", "tile": False}),
            ("read, 2 -> 4", {"kind": "read", "ranks": 4, "name": "two", "dcp": True}),
        ]
        for number, (title, job) in enumerate(jobs):
            with launched({**base, **job}, 29600 + number) as results:
                tables[title] = summary(results)
            print(title)
            for name, row in tables[title].items():
                text = f"  {name:10} {row['seconds']:7.3f} s  {row['of_raw']:5.2f} x raw"
                if job["kind"] == "read":
                    text += f"  reads {row['amplification']:.3f} x what it needs"
                print(text, flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
