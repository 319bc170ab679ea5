"""`bcpformat inspect`: what a checkpoint holds, and where its bytes are."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from bcpformat.api.failures import own_failures
from bcpformat.api.selection import name_filter
from bcpformat.cli.describe import Description, describe, describe_missing
from bcpformat.cli.near_names import near_names
from bcpformat.cli.terminal import Style, counted, human_bytes, print_json
from bcpformat.engine.load import load_manifest
from bcpformat.errors import ErrorCode, ObjectNotFoundError
from bcpformat.interop.state_items import Item, state_items, value_text
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.model.manifest import Manifest
from bcpformat.model.names import display
from bcpformat.storage import open_store

_EXAMPLES = """\
examples:
  bcpformat inspect runs/step-1000
  bcpformat inspect runs/step-1000 --depth 2
  bcpformat inspect runs/step-1000 --names 'model/*embed*'
  bcpformat inspect runs/step-1000 --json | jq '.tensors[].name'
  bcpformat inspect runs/step-1000 --svg who-wrote-what.svg

Only the manifest is read.  With --names the totals are those of what matches; data files are
always shown whole.

exit codes: 0 done, 1 there is no checkpoint at this place or nothing matches, 2 it cannot be read
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
    parser.add_argument(
        "--svg",
        metavar="OUT",
        help="also draw who wrote which region of the largest tensors to this new file",
    )


def _levels(text: str) -> int:
    levels = int(text)
    if levels < 0:
        raise argparse.ArgumentTypeError(f"levels must be at least 0, got {levels}")
    return levels


@own_failures()
def run(args: argparse.Namespace) -> int:
    """Show a checkpoint, or what is there instead."""
    take = name_filter(args.names)
    try:
        # Not `bcpformat.open`: importing what reads tensors takes longer than all of this.
        manifest = load_manifest(open_store(args.location), limits=DEFAULT_LIMITS)
        items = list(state_items(manifest.state))
        found = describe(manifest, args.location, items=items, take=take)
    except ObjectNotFoundError as error:
        if error.code is not ErrorCode.NOT_COMMITTED:
            raise
        missing = describe_missing(args.location)
        if args.json:
            print_json(missing)
        else:
            _print_missing(missing)
        return 1
    matched = [item for item in items if take(item.name)]
    _warn_of_patterns(args.names or (), items)
    shown = _shown(items, matched, args.depth)
    if args.svg is not None and matched:
        _draw(manifest, args)
    if args.json:
        print_json(_document(found, shown))
    elif matched:
        _print_summary(found, Style(sys.stdout))
        _print_tree(found, shown, Style(sys.stdout))
        _print_files(found, Style(sys.stdout))
        if args.svg is not None:
            print(f"\npicture: {display(args.svg)}")
    return 0 if matched else 1


def _draw(manifest: Manifest, args: argparse.Namespace) -> None:
    """Write the picture of a checkpoint."""
    from bcpformat.cli.picture import draw  # it takes longer to import than the rest to run
    from bcpformat.interop.output import local_path, new_file

    picture = draw(manifest, title=args.location, names=args.names)
    with new_file(local_path(args.svg)) as file:
        file.write(picture.encode())


def _shown(items: list[Item], matched: list[Item], depth: int | None) -> list[Item]:
    """Return what matches and the containers above it, down to a depth."""
    keep: set[str] = set()
    for item in matched:
        name = item.name
        while name not in keep:
            keep.add(name)
            name = name.rpartition("/")[0]
    return [item for item in items if item.name in keep and (depth is None or item.depth <= depth)]


def _document(found: Description, shown: list[Item]) -> dict[str, Any]:  # Any: JSON
    """Return the document with the rows of the items that are shown."""
    document = found.document()
    names = {item.name for item in shown}
    for key in ("tensors", "values", "objects", "per_rank"):
        document[key] = [
            row
            for row in document[key]
            if row["name"] in names or not names.isdisjoint(row.get("aliases", ()))
        ]
    return document


def _warn_of_patterns(patterns: Sequence[str], items: list[Item]) -> None:
    """Name on stderr the patterns that match nothing, and names that are near."""
    names = [item.name for item in items]
    for pattern in patterns:
        if not any(map(name_filter(pattern), names)):
            near = ", ".join(map(display, near_names(pattern, names)))
            hint = f"; near: {near}" if near else ""
            print(f"bcpformat: no name matches '{display(pattern)}'{hint}", file=sys.stderr)


def _print_summary(found: Description, style: Style) -> None:
    head = found.head
    step = "no step" if head["step"] is None else f"step {head['step']}"
    writer = f"{head['writer']['name']} {head['writer']['version']}"
    print(style.bold(f"checkpoint {display(head['location'])}"))
    print(f"  {step}, created {head['created']} by {display(writer)}")
    totals = head["totals"]
    print(
        f"  {_tensor_totals(totals, head['selected'])}; "
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


# Any: a JSON map.
def _tensor_totals(totals: dict[str, Any], selected: dict[str, Any]) -> str:
    words = f"{counted(totals['tensors'], 'tensor')}, "
    size = human_bytes(totals["tensor_bytes"])
    if selected == {key: totals[key] for key in selected}:
        return words + size
    return f"{selected['tensors']} of {words}{human_bytes(selected['tensor_bytes'])} of {size}"


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
