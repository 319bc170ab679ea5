"""`bcpformat diff`: which tensors and values of two checkpoints differ, and by how much."""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

from bcpformat.api.opened import open_checkpoint
from bcpformat.cli.compare import Comparison, TensorDifference, compare
from bcpformat.cli.terminal import Progress, Style, counted, print_json
from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.names import display

_EXAMPLES = """\
examples:
  bcpformat diff runs/step-1000 runs/step-2000
  bcpformat diff a b --names 'model/*' --names 'optimizer/*/exp_avg'
  bcpformat diff a b --json | jq '.tensors[] | select(.max_abs > 1e-3)'

Tensors are compared by name, however each checkpoint cut them.  Two elements are the same if
their bits are; elements that have other bits and the same value (-0.0 and 0.0, two NaN) are
counted apart.
Step, metadata and layout are not compared.

The last line counts what differs: tensors, values, and names that only A or only B has.

exit codes: 0 the same, 1 they differ, 2 they could not be compared or no name matches
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    parser.add_argument("a", metavar="A", help="directory of a checkpoint")
    parser.add_argument("b", metavar="B", help="directory of another")
    parser.add_argument(
        "--names",
        metavar="GLOB",
        action="append",
        help="compare only what matches; * crosses /; may be given several times",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Compare two checkpoints."""
    with open_checkpoint(args.a) as a, open_checkpoint(args.b) as b:
        total = sum(a[name].nbytes for name in a.manifest.tensors.names)
        with Progress("comparing", total_bytes=total) as progress:
            found = compare(a, b, chosen=args.names, progress=progress)
    if args.names and found.same and not found.compared:
        text = "none of the names of either checkpoint is selected"
        raise InvalidArgumentError(text, code=ErrorCode.MISMATCH)
    if args.json:
        print_json(_document(found, args))
    else:
        _print(found, args, Style(sys.stdout))
    return 0 if found.same else 1


def _document(found: Comparison, args: argparse.Namespace) -> dict[str, Any]:  # Any: JSON
    return {
        "a": args.a,
        "b": args.b,
        "same": found.same,
        "compared": found.compared,
        "only_in_a": found.only_a,
        "only_in_b": found.only_b,
        "tensors": [
            {
                "name": d.name,
                "dtypes": list(d.dtypes),
                "shapes": [list(shape) for shape in d.shapes],
                "elements": d.elements,
                "differing": d.differing,
                "differing_bits": d.differing_bits,
                "max_abs": _number(d.max_abs),
                "nan_mismatches": d.nan_mismatches,
            }
            for d in found.tensors
        ],
        "values": [{"name": v.name, "a": v.a, "b": v.b} for v in found.values],
    }


def _number(value: float | None) -> float | str | None:
    """Return a number as JSON has it; infinity and NaN, which it lacks, as texts."""
    if value is None or math.isfinite(value):
        return value
    return str(value)


def _print(found: Comparison, args: argparse.Namespace, style: Style) -> None:
    for place, names in ((args.a, found.only_a), (args.b, found.only_b)):
        if names:
            print(style.bold(f"only in {display(place)} ({len(names)})"))
        for name in names:
            print(f"  {display(name)}")
    if found.tensors:
        print(style.bold(f"tensors that differ ({len(found.tensors)})"))
    for difference in found.tensors:
        print(f"  {display(difference.name)}: {_words(difference)}")
    if found.values:
        print(style.bold(f"values that differ ({len(found.values)})"))
    for value in found.values:
        print(f"  {display(value.name)}: {value.a} -> {value.b}")
    both = f"{counted(found.compared, 'name')} compared"
    if found.same:
        print(f"{style.good('the same')}: {both}")
    else:
        print(f"{style.bad('they differ')}: {', '.join(_counts(found))}; {both}")


def _counts(found: Comparison) -> list[str]:
    """Return in words how many of each kind of difference there are, without the kinds of none."""
    counts = [
        (len(found.tensors), "tensor", "differs", "differ"),
        (len(found.values), "value", "differs", "differ"),
        (len(found.only_a), "name", "only in A", "only in A"),
        (len(found.only_b), "name", "only in B", "only in B"),
    ]
    return [
        f"{counted(number, noun)} {one if number == 1 else many}"
        for number, noun, one, many in counts
        if number
    ]


def _words(difference: TensorDifference) -> str:
    parts = []
    if difference.dtypes[0] != difference.dtypes[1]:
        parts.append(f"{difference.dtypes[0]} -> {difference.dtypes[1]}")
    if difference.differing is None:
        shapes = [list(shape) for shape in difference.shapes]
        return ", ".join([*parts, f"shape {shapes[0]} -> {shapes[1]}"])
    if difference.differing:
        share = difference.differing / difference.elements
        parts.append(
            f"{difference.differing} of {difference.elements} elements ({share:.3g}), "
            f"max abs difference {difference.max_abs:.6g}"
        )
    else:
        parts.append("equal values")
    more_bits = (difference.differing_bits or 0) - difference.differing
    if more_bits > 0:
        parts.append(f"{counted(more_bits, 'element')} with other bits only")
    if difference.nan_mismatches:
        parts.append(f"{difference.nan_mismatches} NaN in one of them")
    return ", ".join(parts)
