"""`bcpformat inspect`: what a checkpoint holds, and where its bytes are."""

from __future__ import annotations

import argparse
from fnmatch import fnmatchcase
from typing import Any

from bcpformat.api.opened import open_checkpoint
from bcpformat.cli.describe import Description, describe, describe_missing
from bcpformat.cli.terminal import Style, counted, human_bytes, print_json
from bcpformat.errors import ErrorCode, ObjectNotFoundError
from bcpformat.interop.state_items import Item, state_items, value_text
from bcpformat.model.names import display

_EXAMPLES = """\
examples:
  bcpformat inspect runs/step-1000
  bcpformat inspect runs/step-1000 --depth 2
  bcpformat inspect runs/step-1000 --names 'model/*embed*'
  bcpformat inspect runs/step-1000 --json | jq '.tensors[].name'

Only the manifest is read.  Exit code 1: there is no checkpoint at this place.
"""


_MOST_ROWS = 12
"""Rows of a table of totals that are printed; `--json` has all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    parser.add_argument("location", metavar="LOCATION", help="directory of a checkpoint")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--depth", type=_levels, metavar="N", help="show N levels of the state, 0 for none"
    )
    parser.add_argument(
        "--names",
        metavar="GLOB",
        action="append",
        help="show only what matches; * crosses /; may be given several times",
    )


def _levels(text: str) -> int:
    levels = int(text)
    if levels < 0:
        raise argparse.ArgumentTypeError(f"levels must be at least 0, got {levels}")
    return levels


def run(args: argparse.Namespace) -> int:
    """Show a checkpoint, or what is there instead."""
    import sys

    try:
        with open_checkpoint(args.location) as opened:
            found = describe(opened, args.location)
            items = _selected(list(state_items(opened.manifest.state)), args.names, args.depth)
    except ObjectNotFoundError as error:
        if error.code is not ErrorCode.NOT_COMMITTED:
            raise
        missing = describe_missing(args.location)
        if args.json:
            print_json(missing)
        else:
            _print_missing(missing)
        return 1
    if args.json:
        document = found.document()
        shown = {item.name for item in items}
        if args.names or args.depth is not None:
            document["tensors"] = [t for t in document["tensors"] if t["name"] in shown]
            document["values"] = [v for v in document["values"] if v["name"] in shown]
        print_json(document)
    else:
        _print_summary(found, Style(sys.stdout))
        _print_tree(found, items, Style(sys.stdout))
        _print_files(found, Style(sys.stdout))
    return 0


def _selected(items: list[Item], patterns: list[str] | None, depth: int | None) -> list[Item]:
    """Return the items to show: what matches, what is below it, and the containers above it."""
    if patterns is not None:
        below = [pattern.rstrip("/") + "/*" for pattern in patterns]
        keep: set[str] = set()
        for item in items:
            if any(fnmatchcase(item.name, p) for p in (*patterns, *below)):
                keep.add(item.name)
                parent = item.name
                while "/" in parent and (parent := parent.rpartition("/")[0]) not in keep:
                    keep.add(parent)
        items = [item for item in items if item.name in keep or not item.depth]
    return [item for item in items if depth is None or item.depth <= depth]


def _print_summary(found: Description, style: Style) -> None:
    head = found.head
    step = "no step" if head["step"] is None else f"step {head['step']}"
    writer = f"{head['writer']['name']} {head['writer']['version']}"
    print(style.bold(f"checkpoint {display(head['location'])}"))
    print(f"  {step}, created {head['created']} by {display(writer)}")
    totals = head["totals"]
    print(
        f"  {counted(totals['tensors'], 'tensor')}, {human_bytes(totals['tensor_bytes'])}; "
        f"{counted(totals['files'], 'data file')}, {human_bytes(totals['file_bytes'])}; "
        f"ratio {_ratio(totals['raw_bytes'], totals['stored_bytes'])}"
    )
    print(f"  features required: {', '.join(map(display, head['require'])) or 'none'}")
    if head["optional"]:
        print(f"  features optional: {', '.join(map(display, head['optional']))}")
    for key, value in head["user"].items():
        print(f"  user {display(key)}: {display(str(value))[:200]}")
    for title, rows, key in (
        ("by top-level key", found.by_key, "key"),
        ("by data type", found.by_dtype, "dtype"),
    ):
        if rows:
            print(style.bold(f"\n{title}"))
        width = max((len(display(str(row[key]))) for row in rows[:_MOST_ROWS]), default=0)
        for row in rows[:_MOST_ROWS]:
            print(
                f"  {display(str(row[key])):<{width}}  {human_bytes(row['bytes']):>10}  "
                f"{counted(row['tensors'], 'tensor')}"
            )
        if len(rows) > _MOST_ROWS:
            print(style.dim(f"  ... and {len(rows) - _MOST_ROWS} more"))


def _print_tree(found: Description, items: list[Item], style: Style) -> None:
    if not items:
        return
    print(style.bold("\nstate"))
    rows = [(_label(item), _words(item, found)) for item in items]
    width = min(max((len(label) for label, _ in rows), default=0), 60)
    for label, words in rows:
        print(f"  {label:<{width}}  {style.dim(words)}")


def _label(item: Item) -> str:
    return "  " * item.depth + (display(item.segment) if item.depth else "(top)")


def _words(item: Item, found: Description) -> str:
    kind = f"{item.registered} ({item.kind})" if item.registered else item.kind
    if item.kind == "tensor":
        row = found.tensors[item.index]
        shape = "x".join(map(str, row["shape"])) or "scalar"
        text = f"{row['dtype']} {shape}  {human_bytes(row['bytes'])}"
        return text if row["name"] == item.name else f"{text}  tied to {display(row['name'])}"
    if item.kind == "per-rank":
        row = found.per_rank[item.index]
        return f"per-rank, {counted(len(row['ranks']), 'rank')}  {human_bytes(row['bytes'])}"
    if item.is_container:
        text = f"{display(kind)} of {item.children}"
        nbytes = found.bytes_below.get(item.name, 0)
        return f"{text}  {human_bytes(nbytes)}" if nbytes else text
    if isinstance(item.node, list) and item.index >= 0:
        return f"{display(kind)}  {human_bytes(found.objects[item.index]['bytes'])}"
    return f"{display(kind)} {value_text(item.node)}".rstrip()


def _print_files(found: Description, style: Style) -> None:
    if found.files:
        print(style.bold("\ndata files"))
    for file in found.files:
        print(f"  {display(file['name'])}")
        print(
            f"    {human_bytes(file['bytes'])}, {counted(file['runs'], 'run')}, "
            f"{counted(file['blocks'], 'block')}, "
            f"ratio {_ratio(file['raw_bytes'], file['stored_bytes'])}"
        )
        for codec in file["codecs"]:
            print(
                f"    {codec['codec']}: {counted(codec['runs'], 'run')}, "
                f"{human_bytes(codec['raw_bytes'])} raw, "
                f"{human_bytes(codec['stored_bytes'])} stored"
            )
    if found.unreferenced:
        print(style.bold("\nnot part of this checkpoint"))
        print("  left-overs of attempts that did not commit, or files of others")
        for row in found.unreferenced:
            print(f"  {human_bytes(row['bytes']):>10}  {display(row['key'])}")


# Any: a JSON document.
def _print_missing(missing: dict[str, Any]) -> None:
    print(f"not a checkpoint: {display(missing['location'])} has no manifest.bcp")
    if not missing["found_objects"]:
        print("  there is nothing here")
    for row in missing["checkpoints"]:
        print(f"  a checkpoint is below it: {display(row)}")
    if missing["leftovers"]:
        print("  data of attempts that did not commit, or whose manifest was deleted:")
        for row in missing["leftovers"]:
            print(f"  {human_bytes(row['bytes']):>10}  {display(row['key'])}")
    if missing["others"]:
        print("  other files:")
        for row in missing["others"]:
            print(f"  {human_bytes(row['bytes']):>10}  {display(row['key'])}")


def _ratio(raw: int, stored: int) -> str:
    return f"{raw / stored:.2f}" if stored else "1.00"
