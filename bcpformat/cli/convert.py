"""`bcpformat convert`: from and to safetensors and torch.save files, and with another codec."""

from __future__ import annotations

import argparse
import os

from bcpformat.api.opened import open_checkpoint
from bcpformat.cli.terminal import Progress, counted, human_bytes
from bcpformat.engine.options import WriteOptions
from bcpformat.engine.write import WriteReport
from bcpformat.errors import InvalidArgumentError
from bcpformat.interop.detect import Kind, Source, detect_source, target_kind
from bcpformat.interop.export_files import Exported, export_safetensors, export_saved
from bcpformat.interop.import_files import import_safetensors, import_saved, shards_of_index
from bcpformat.interop.output import local_path
from bcpformat.interop.recode import recode
from bcpformat.interop.safetensors_file import open_safetensors
from bcpformat.interop.safetensors_shards import open_shards, parse_size
from bcpformat.model.names import display

_EXAMPLES = """\
examples:
  bcpformat convert model.safetensors runs/imported
  bcpformat convert llama/model.safetensors.index.json runs/imported --codec planes-zstd
  bcpformat convert checkpoint.pt runs/imported --step 1000
  bcpformat convert runs/step-1000 model.safetensors --below model
  bcpformat convert runs/step-1000 hf-model --below model --max-shard-size 5GB
  bcpformat convert runs/step-1000 state.pt
  bcpformat convert runs/step-1000 runs/small --codec zstd

SRC is a checkpoint, a .safetensors file, a directory or index of sharded safetensors, or a file
of torch.save (loaded with weights_only=True, nothing else).  DST is what its suffix says
(.safetensors; .pt, .pth, .bin: torch.save), a directory of shards with --max-shard-size, else a
checkpoint; --to overrides it.  One of the two is a checkpoint.  Nothing is ever overwritten.

safetensors holds tensors only: what is left out is listed.  Its metadata is the checkpoint's
user metadata.  Of tied tensors one name is written; the others are noted in the metadata.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    parser.add_argument("source", metavar="SRC", help="what to read")
    parser.add_argument("destination", metavar="DST", help="what to write; must not exist")
    parser.add_argument(
        "--to", choices=[kind.value for kind in Kind if kind.is_target], help="what DST is to be"
    )
    into = parser.add_argument_group("if DST is a checkpoint")
    into.add_argument(
        "--codec", choices=("raw", "zstd", "planes-zstd"), default="raw", help="default: raw"
    )
    into.add_argument("--level", type=int, default=1, metavar="N", help="zstd level, 1 to 19")
    into.add_argument("--step", type=int, metavar="N", help="the training step")
    out = parser.add_argument_group("if DST is not a checkpoint")
    out.add_argument(
        "--names",
        metavar="GLOB",
        action="append",
        help="take only what matches; * crosses /; may be given several times",
    )
    out.add_argument(
        "--below", default="", metavar="NAME", help="take what is below NAME, with names from there"
    )
    out.add_argument(
        "--max-shard-size", metavar="SIZE", help="write shards of this size, such as 5GB or 512MiB"
    )


def run(args: argparse.Namespace) -> int:
    """Convert SRC to DST and say what was written and what was left out."""
    source = detect_source(local_path(args.source))
    target = target_kind(args.destination, told=args.to, sharded=args.max_shard_size is not None)
    if target is Kind.CHECKPOINT:
        if args.names or args.below or args.max_shard_size:
            text = "--names, --below and --max-shard-size are for a DST that is not a checkpoint"
            raise InvalidArgumentError(text)
        _print_written(_to_checkpoint(source, args), args)
        return 0
    if source.kind is not Kind.CHECKPOINT:
        raise InvalidArgumentError(
            f"{source.path!r} is {source.kind.value}, DST is {target.value}: one of the two must "
            "be a checkpoint; convert to one first"
        )
    _print_exported(_from_checkpoint(source, target, args), args)
    return 0


def _to_checkpoint(source: Source, args: argparse.Namespace) -> WriteReport:
    options = WriteOptions(codec=args.codec, level=args.level)
    match source.kind:
        case Kind.CHECKPOINT:
            with (
                open_checkpoint(source.path) as opened,
                Progress("converting", total_bytes=int(opened.manifest.runs.raw.sum())) as progress,
            ):
                return recode(
                    opened, args.destination, step=args.step, options=options, progress=progress
                )
        case Kind.SAFETENSORS | Kind.SHARDS:
            if source.kind is Kind.SHARDS:
                files = open_shards(source.path)
            else:
                files = [open_safetensors(source.path)]
            total = sum(file.header.data_bytes for file in files)
            with Progress("converting", total_bytes=total) as progress:
                return import_safetensors(
                    files, args.destination, step=args.step, options=options, progress=progress
                )
        case Kind.TORCH | Kind.TORCH_SHARDS:
            paths = [source.path]
            if source.kind is Kind.TORCH_SHARDS:
                paths = shards_of_index(source.path)
            total = sum(os.path.getsize(path) for path in paths)
            with Progress("converting", total_bytes=total) as progress:
                return import_saved(
                    paths, args.destination, step=args.step, options=options, progress=progress
                )


def _from_checkpoint(source: Source, target: Kind, args: argparse.Namespace) -> Exported:
    if args.step is not None or args.codec != "raw":
        raise InvalidArgumentError("--step and --codec are for a DST that is a checkpoint")
    path = local_path(args.destination)
    size = parse_size(args.max_shard_size) if args.max_shard_size is not None else None
    with open_checkpoint(source.path) as opened:
        total = sum(opened[name].nbytes for name in opened.manifest.tensors.names)
        with Progress("converting", total_bytes=total) as progress:
            if target is Kind.TORCH:
                if args.below or size is not None:
                    raise InvalidArgumentError("--below and --max-shard-size are for safetensors")
                return export_saved(opened, path, chosen=args.names, progress=progress)
            return export_safetensors(
                opened,
                path,
                chosen=args.names,
                below=args.below,
                max_shard_bytes=size if target is Kind.SHARDS else None,
                skip_damaged=False,
                progress=progress,
            )


def _print_written(report: WriteReport, args: argparse.Namespace) -> None:
    raw, stored = report.raw_bytes, report.stored_bytes
    smaller = f" as {human_bytes(stored)}, ratio {raw / stored:.2f}," if stored < raw else ""
    print(
        f"wrote {human_bytes(raw)}{smaller} in "
        f"{counted(len(report.files), 'data file')}, to {display(args.destination)}"
    )


def _print_exported(found: Exported, args: argparse.Namespace) -> None:
    print(
        f"wrote {counted(found.tensors, 'tensor')}, {human_bytes(found.nbytes)}, in "
        f"{counted(len(found.files), 'file')}, to {display(args.destination)}"
    )
    if found.left_out:
        print("left out:")
    for words in found.left_out:
        print(f"  {display(words)}")
