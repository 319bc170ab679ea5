"""`bcpformat simulate`: what a save and its reads would cost on any number of ranks."""

from __future__ import annotations

import argparse
import sys
from statistics import median

from bcpformat.cli.bench_report import Status
from bcpformat.cli.simulate_mesh import AXES, Mesh
from bcpformat.cli.simulate_models import MODELS
from bcpformat.cli.simulate_read import MeshReading, read
from bcpformat.cli.simulate_save import SAMPLED_RANKS, Planned, Saved, plan, rank_seconds, save
from bcpformat.cli.simulate_state import Job
from bcpformat.cli.terminal import Style, counted, human_bytes, print_json
from bcpformat.errors import InvalidArgumentError

DTYPES = ("float32", "bfloat16")

_Document = dict[str, object]

_EPILOG = f"""\
models: {", ".join(MODELS)}

mesh: AXIS=RANKS pairs with commas between them, the axis whose ranks lie farthest apart first:
{chr(10).join(f"  {axis:<5} {words}" for axis, words in AXES.items())}

The state is that of a job with AdamW: sharded parameters and two float32 moments, a count of steps
for each parameter, the settings of the optimizer, and the random generators of each rank.  Plans
and the manifest are made as a save makes them, but there is no data, so nothing is written.
Without --read-mesh it is read with 3/4, 5/4 and 2 times the ranks along fsdp.

Figures are of processor time, so that other work on the machine does not count:
  plan_seconds_per_rank   what a rank needs for the first save with a layout, from its state to its
                          part record, but for its data and for the lead (median of {SAMPLED_RANKS})
  lead_plan_seconds       what the lead needs, once for a layout, to decode all layouts and assign
  merge_seconds           from the first part record to the manifest, before check and encoding
  merge_peak_bytes        the most memory of Python and numpy in the merge, by tracemalloc; records
                          that wait are not in it
  read_plan_seconds       from opening the manifest to the list of reads (median of the readers)
  manifest_read_bytes_per_rank  bytes of the manifest that a reader fetches (median)
  read_amplification      bytes of blocks that readers need over the bytes that they want

examples:
  bcpformat simulate --model llama-8b --mesh fsdp=64
  bcpformat simulate --model llama-405b --mesh pp=16,fsdp=128,tp=8 --json
  bcpformat simulate --model llama-70b --mesh fsdp=64,tp=8 --read-mesh fsdp=32,tp=4 --tile
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EPILOG
    parser.add_argument("--model", required=True, choices=list(MODELS), help="what is saved")
    parser.add_argument("--mesh", required=True, help="ranks that save, as fsdp=128,tp=8")
    parser.add_argument(
        "--read-mesh", action="append", metavar="MESH", help="ranks that read; may be given again"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default=DTYPES[0], help="data type of the parameters (float32)"
    )
    parser.add_argument("--tile", action="store_true", help="cut chunks for reads of columns")
    parser.add_argument(
        "--readers", type=int, default=16, metavar="N", help="ranks of a mesh that read (16)"
    )
    parser.add_argument(
        "--no-memory", action="store_true", help="do not merge once more to measure its memory"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Simulate and print what was found.

    Raises:
        InvalidArgumentError: A mesh is none, or has more stages than the model has layers.
    """
    if args.readers < 1:
        raise InvalidArgumentError(f"--readers must be at least 1, got {args.readers}")
    job = _job(args, Mesh.of(args.mesh))
    readers = [_job(args, mesh) for mesh in _read_meshes(args.read_mesh, job.mesh)]
    with Status() as say:
        planned = plan(job, say)
        seconds = rank_seconds(job, planned, tile=args.tile)
        saved = save(job, planned, say, tile=args.tile, trace=not args.no_memory)
        readings = [read(saved.document, r, ranks=args.readers, say=say) for r in readers]
    if args.json:
        print_json(_document(args, job, planned, seconds, saved, readings))
    else:
        _print_tables(args, job, planned, seconds, saved, readings)
    return 0


def _job(args: argparse.Namespace, mesh: Mesh) -> Job:
    model = MODELS[args.model]
    if mesh.along("pp") > model.layers:
        text = (
            f"mesh '{mesh}' has {mesh.along('pp')} stages, {args.model} has {model.layers} layers"
        )
        raise InvalidArgumentError(text)
    return Job(model, mesh, dtype=args.dtype)


def _read_meshes(texts: list[str] | None, mesh: Mesh) -> list[Mesh]:
    """Return the meshes that read: as asked for, or this one with other ranks along fsdp."""
    if texts:
        return [Mesh.of(text) for text in texts]
    ranks = mesh.along("fsdp")
    others = {max(1, ranks * 3 // 4), ranks * 5 // 4, 2 * ranks}
    return [mesh.with_ranks("fsdp", other) for other in sorted(others)]


def _document(
    args: argparse.Namespace,
    job: Job,
    planned: Planned,
    seconds: list[float],
    saved: Saved,
    readings: list[MeshReading],
) -> dict[str, object]:
    """Return everything for programs; of reads the worst of all meshes, and each mesh alone."""
    ranks = len(job.mesh)
    return {
        "model": args.model,
        "mesh": str(job.mesh),
        "dtype": args.dtype,
        "tile": args.tile,
        "parameters": job.num_parameters,
        "ranks": ranks,
        "tensors": saved.tensors,
        "chunks": saved.chunks,
        "runs": saved.runs,
        "files": saved.files,
        "stored_bytes": saved.stored_bytes,
        "bytes_per_rank_min": int(planned.stored.min()),
        "bytes_per_rank_max": int(planned.stored.max()),
        "plan_seconds_per_rank": median(seconds),
        "plan_seconds_worst_rank": max(seconds),
        "lead_plan_seconds": planned.lead_seconds,
        "layout_bytes_per_rank": planned.layout_bytes // ranks,
        "part_bytes_per_rank": saved.part_bytes // ranks,
        "merge_seconds": saved.merge_seconds,
        "merge_peak_bytes": saved.merge_peak_bytes,
        "check_seconds": saved.check_seconds,
        "encode_seconds": saved.encode_seconds,
        "manifest_bytes": len(saved.document),
        "manifest_raw_bytes": saved.raw_bytes,
        "read_plan_seconds": max(r.plan_seconds for r in readings),
        "manifest_read_bytes_per_rank": max(r.manifest_bytes for r in readings),
        "manifest_read_bytes_worst_rank": max(r.worst_manifest_bytes for r in readings),
        "read_amplification": max(r.amplification for r in readings),
        "reads": [r.document() for r in readings],
    }


def _print_tables(
    args: argparse.Namespace,
    job: Job,
    planned: Planned,
    seconds: list[float],
    saved: Saved,
    readings: list[MeshReading],
) -> None:
    style, ranks = Style(sys.stdout), len(job.mesh)
    title = f"{args.model} on {job.mesh}: {ranks:,} ranks, {job.num_parameters:,} "
    print(style.bold(f"{title}parameters, {human_bytes(saved.stored_bytes)} of data"))
    peak = ""
    if saved.merge_peak_bytes is not None:
        ratio = saved.merge_peak_bytes / saved.raw_bytes
        peak = f", {human_bytes(saved.merge_peak_bytes)} of memory ({ratio:.2f}x raw)"
    least, most = (human_bytes(int(n)) for n in (planned.stored.min(), planned.stored.max()))
    lines = {
        "tensors, chunks, runs": f"{saved.tensors:,}, {saved.chunks:,}, {saved.runs:,}",
        "data of a rank": f"{least} to {most}",
        "layout of a rank": human_bytes(planned.layout_bytes // ranks),
        "part record of a rank": human_bytes(saved.part_bytes // ranks),
        "plan of a rank": f"{median(seconds):.3f} s (worst {max(seconds):.3f} s)",
        "plan of the lead": f"{planned.lead_seconds:.2f} s, once for a layout",
        "merge": f"{saved.merge_seconds:.2f} s{peak}",
        "check and encode": f"{saved.check_seconds:.2f} s, {saved.encode_seconds:.2f} s",
        "manifest": f"{human_bytes(len(saved.document))}, {human_bytes(saved.raw_bytes)} raw",
    }
    for name, text in lines.items():
        print(f"  {name:<22} {text}")
    print(style.bold(f"\nread by {counted(len(readings[0].ranks), 'rank')} of another mesh"))
    table = [_COLUMNS, *map(_cells, readings)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        row = [cells[0].ljust(widths[0])]
        row += [text.rjust(width) for text, width in zip(cells[1:], widths[1:], strict=True)]
        print("  " + "  ".join(row))


_COLUMNS = (
    *("mesh", "ranks", "plan s", "manifest", "worst"),
    *("files", "reads", "wanted", "read/wanted", "worst"),
)


def _cells(reading: MeshReading) -> tuple[str, ...]:
    """Return a row of the table."""
    ranks = reading.ranks
    return (
        str(reading.mesh),
        f"{len(reading.mesh):,}",
        f"{reading.plan_seconds:.3f}",
        human_bytes(reading.manifest_bytes),
        human_bytes(reading.worst_manifest_bytes),
        str(max(rank.files for rank in ranks)),
        str(max(rank.reads for rank in ranks)),
        human_bytes(max(rank.wanted_bytes for rank in ranks)),
        f"{reading.amplification:.3f}",
        f"{reading.worst_amplification:.3f}",
    )
