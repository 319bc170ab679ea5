"""`bcpformat extract`: tensors as .npy files or as one safetensors file."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from bcpformat.api.opened import Checkpoint, open_checkpoint
from bcpformat.api.selection import name_filter
from bcpformat.cli.damage import name_lines
from bcpformat.cli.terminal import Progress, counted, human_bytes, one_line, print_json
from bcpformat.errors import BcpError, ErrorCode, InvalidArgumentError
from bcpformat.interop.export_files import Exported, export_safetensors
from bcpformat.interop.npy_files import INDEX_NAME, extract_npy
from bcpformat.interop.output import local_path
from bcpformat.model.names import display

_EXAMPLES = """\
examples:
  bcpformat extract runs/step-1000 --out arrays
  bcpformat extract runs/step-1000 --out arrays --names 'model/layers.0.*'
  bcpformat extract runs/step-1000 --out model.safetensors --names model
  bcpformat extract damaged --out rescued --skip-damaged

Format npy writes a directory: one file for each tensor and index.json, which maps names to files.
File names are made safe; read the names in the index.  A data type that .npy has no name for
(bfloat16, float8, ...) is stored as unsigned integers of its bits, and the index has the type:
  numpy.load("w.npy").view(ml_dtypes.bfloat16)

With --skip-damaged what verifies is written, the rest is listed by what damages it, and the exit
code is 1; --json lists all of it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    parser.add_argument("location", metavar="LOCATION", help="directory of a checkpoint")
    parser.add_argument("--out", required=True, metavar="PATH", help="new directory or file")
    parser.add_argument(
        "--names",
        metavar="GLOB",
        action="append",
        help="take only what matches; * crosses /; may be given several times",
    )
    parser.add_argument(
        "--format", choices=("npy", "safetensors"), help="by default what --out's suffix says"
    )
    parser.add_argument(
        "--skip-damaged", action="store_true", help="leave out what does not verify"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Write tensors of a checkpoint."""
    out = local_path(args.out)
    by_suffix = "safetensors" if out.lower().endswith(".safetensors") else "npy"
    with open_checkpoint(args.location) as opened:
        rows = _rows(opened, args.names)
        total = sum(opened[opened.manifest.tensors.names[row]].nbytes for row in rows)
        with Progress("extracting", total_bytes=total) as progress:
            if (args.format or by_suffix) == "npy":
                npy = extract_npy(
                    opened, rows, out, skip_damaged=args.skip_damaged, progress=progress
                )
                found = Exported(
                    tensors=len(npy.files),
                    nbytes=npy.nbytes,
                    files=[os.path.join(out, INDEX_NAME)],
                    damaged=npy.damaged,
                )
            else:
                found = export_safetensors(
                    opened,
                    out,
                    chosen=args.names,
                    below="",
                    max_shard_bytes=None,
                    skip_damaged=args.skip_damaged,
                    progress=progress,
                )
    if args.json:
        print_json(
            {
                "out": out,
                "tensors": found.tensors,
                "bytes": found.nbytes,
                "damaged": [
                    {"name": name, "code": error.code.value, "message": error.message}
                    for name, error in found.damaged.items()
                ],
            }
        )
    else:
        size = human_bytes(found.nbytes)
        print(f"wrote {counted(found.tensors, 'tensor')}, {size}, to {display(out)}")
        _print_damaged(found.damaged)
    return 1 if found.damaged else 0


def _print_damaged(damaged: Mapping[str, BcpError]) -> None:
    """Print each cause once, with the tensors that are left out for it."""
    if damaged:
        print(f"damaged, left out ({len(damaged)}):")
    causes: dict[str, list[str]] = {}
    for name, error in damaged.items():
        causes.setdefault(f"{error.code.value} {one_line(error.message)}", []).append(name)
    for cause, names in causes.items():
        print(f"  {cause}")
        for line in name_lines(names):
            print(f"    {line}")


def _rows(opened: Checkpoint, patterns: list[str] | None) -> list[int]:
    """Return the rows of the tensors that have a name which is selected."""
    take = name_filter(patterns)
    table = opened.manifest.tensors
    rows = [
        row
        for row, name in enumerate(table.names)
        if any(take(n) for n in (name, *table.aliases.get(row, ())))
    ]
    if not rows:
        text = f"none of the {len(opened)} names of tensors is selected"
        raise InvalidArgumentError(text, code=ErrorCode.MISMATCH)
    return rows
