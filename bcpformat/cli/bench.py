"""`bcpformat bench`: measures this machine and this storage, with goals to compare with."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from typing import cast

from bcpformat.cli.bench_measure import Setup, Sizes, full_sizes, quick_sizes
from bcpformat.cli.bench_report import (
    Status,
    Table,
    file_system,
    machine,
    print_table,
    table_document,
)
from bcpformat.cli.terminal import Style, human_bytes
from bcpformat.errors import InvalidArgumentError, ObjectExistsError, StorageError

GROUPS = {
    "write": "bcpformat.cli.bench_whole:write_group",
    "read": "bcpformat.cli.bench_whole:read_group",
    "small": "bcpformat.cli.bench_whole:small_group",
    "manifest": "bcpformat.cli.bench_manifest:manifest_group",
    "partial": "bcpformat.cli.bench_partial:partial_group",
    "codec": "bcpformat.cli.bench_codec:codec_group",
}
"""Group to the function that measures it, imported when it is chosen."""

MIN_STATE_BYTES = 10**6

_FULL_SIZE = "1GB"
_QUICK_SIZE = "128MB"
"""Just above the size from which data files bypass the page cache."""

_ROUNDS = 5
_SPARE_BYTES = 2**26

_EPILOG = """\
groups:
  write     a training state, beside raw direct writes, torch.save and safetensors; all fsync
  read      the same from a cold cache, into existing tensors
  small     20,000 tensors of 4 KiB
  manifest  encode, decode and check a manifest of a million chunks
  partial   bytes read for parts of a checkpoint of 4 GB
  codec     planes-zstd beside zstd on bfloat16 weights

It needs about three times the size in memory and four times on disk, and at least 4 GB there for
'partial'.  Everything it makes is removed.
Goals are for a quiet machine and full sizes: --quick does not judge them.

examples:
  bcpformat bench --dir /mnt/fast --json result.json
  bcpformat bench --quick
  bcpformat bench --only write,read --size 8GB --rounds 3
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--dir", default=".", help="a directory of the storage to measure")
    parser.add_argument(
        "--size", help=f"size of the whole state, {_FULL_SIZE} or with --quick {_QUICK_SIZE}"
    )
    parser.add_argument("--rounds", type=int, help=f"rounds, {_ROUNDS} or with --quick 1")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: a smoke test")
    parser.add_argument("--only", metavar="GROUPS", help="groups to measure, separated by commas")
    parser.add_argument("--json", metavar="OUT", help="also write everything to this new file")


def run(args: argparse.Namespace) -> int:
    """Measure, print and return 0, whether goals are met or not.

    Raises:
        InvalidArgumentError: An argument is out of range.
        ObjectExistsError: The file for the results exists.
        StorageError: There is no directory, or not enough space.
    """
    from bcpformat.interop.output import new_file

    groups = _chosen(args.only)
    sizes = _sizes(args)
    rounds = _rounds(args)
    if args.json is not None and os.path.lexists(args.json):
        text = f"{args.json!r} exists already and nothing is ever overwritten; choose another name"
        raise ObjectExistsError(text, key=args.json)
    _check_space(args.dir, groups, sizes)
    about = machine(args.dir)
    style = Style(sys.stdout)
    print(style.dim(_about_text(about, args.dir, rounds)) + "\n")
    document: dict[str, object] = {
        "machine": about,
        "rounds": rounds,
        "quick": bool(args.quick),
        "sizes": asdict(sizes),
        "groups": _run_groups(groups, args.dir, sizes, rounds, style, judged=not args.quick),
    }
    if args.quick:
        print(style.dim("quick: nothing is judged, goals are for full sizes"))
    if args.json is not None:
        with new_file(args.json) as file:
            file.write(json.dumps(document, indent=2, allow_nan=False).encode() + b"\n")
    return 0


def _run_groups(
    groups: list[str], folder: str, sizes: Sizes, rounds: int, style: Style, *, judged: bool
) -> dict[str, object]:
    """Measure group after group, each in a directory of its own that is removed in any case."""
    found: dict[str, object] = {}
    for group in groups:
        with (
            tempfile.TemporaryDirectory(prefix="bcpformat-bench-", dir=folder) as own,
            Status() as status,
        ):
            setup = Setup(folder=own, sizes=sizes, rounds=rounds, say=status)
            tables = _function(GROUPS[group])(setup)
        for table in tables:
            print_table(table, style, judged=judged)
            found[table.name] = table_document(table, judged=judged)
        sys.stdout.flush()
    return found


def _function(place: str) -> Callable[[Setup], list[Table]]:
    module, name = place.split(":")
    # A cast: a module's attributes have no declared types; the test of this command calls all.
    return cast("Callable[[Setup], list[Table]]", getattr(importlib.import_module(module), name))


def _chosen(only: str | None) -> list[str]:
    if only is None:
        return list(GROUPS)
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in GROUPS]
    if unknown or not names:
        text = f"--only must name some of {', '.join(GROUPS)}, got {only!r}"
        raise InvalidArgumentError(text)
    return [name for name in GROUPS if name in names]


def _sizes(args: argparse.Namespace) -> Sizes:
    from bcpformat.interop.safetensors_shards import parse_size

    state_bytes = parse_size(args.size or (_QUICK_SIZE if args.quick else _FULL_SIZE))
    if state_bytes < MIN_STATE_BYTES:
        raise InvalidArgumentError(f"--size must be at least 1MB, got {args.size!r}")
    return quick_sizes(state_bytes) if args.quick else full_sizes(state_bytes)


def _rounds(args: argparse.Namespace) -> int:
    rounds: int = args.rounds if args.rounds is not None else (1 if args.quick else _ROUNDS)
    if rounds < 1:
        raise InvalidArgumentError(f"--rounds must be at least 1, got {rounds}")
    return rounds


def _check_space(folder: str, groups: list[str], sizes: Sizes) -> None:
    needs = {
        "write": sizes.state_bytes * 5 // 4,
        "read": sizes.state_bytes * 5,
        "small": sizes.small_tensors * 4096 * 6,
        "partial": sizes.partial_tensors * sizes.partial_bytes,
    }
    need = _SPARE_BYTES + max(needs.get(group, 0) for group in groups)
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        text = f"cannot measure in {folder!r}: {(error.strerror or str(error)).lower()}"
        raise StorageError(text, key=folder) from error
    if free < need:
        text = (
            f"expected {human_bytes(need)} of free space in {folder!r}, found {human_bytes(free)}; "
            "choose another --dir, a smaller --size or fewer groups"
        )
        raise StorageError(text, key=folder)


def _about_text(about: dict[str, object], folder: str, rounds: int) -> str:
    memory = about["memory_bytes"]
    assert isinstance(memory, int)
    return (
        f"{about['processor']}, {about['processors']} processors, {human_bytes(memory)} of memory, "
        f"{file_system(folder)} at {os.path.abspath(folder)!r}\n"
        f"Python {about['python']}, {about['date']}, load {about['load']}, "
        f"1 run that does not count and {rounds} that count, medians"
    )
