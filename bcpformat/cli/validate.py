"""`bcpformat validate`: every problem of a checkpoint."""

from __future__ import annotations

import argparse
import sys
from itertools import groupby

from bcpformat.api.check import validate
from bcpformat.cli.damage import name_lines
from bcpformat.cli.terminal import Progress, Style, counted, human_bytes, one_line, print_json
from bcpformat.model.names import display
from bcpformat.validation import Report

_EXAMPLES = """\
examples:
  bcpformat validate runs/step-1000
  bcpformat validate runs/step-1000 --level manifest
  bcpformat validate runs/step-1000 --json | jq '.damaged'

Level manifest reads the manifest, and of every data file its length, header and block table.
Level full reads and verifies every byte.
Below a damaged block stand the first names it holds; --json has all of them.

exit codes: 0 valid, 1 problems were found, 2 it could not be checked
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    parser.add_argument("location", metavar="LOCATION", help="directory of a checkpoint")
    parser.add_argument(
        "--level", choices=("manifest", "full"), default="full", help="how much to check"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Check a checkpoint and list what was found."""
    with Progress("checking", total_bytes=_total_bytes(args.location)) as progress:
        report = validate(args.location, level=args.level, progress=progress)
    if args.json:
        print_json(
            {
                "location": args.location,
                "level": report.level,
                "valid": report.ok,
                "problems": [
                    {
                        "code": p.code.value,
                        "where": p.where,
                        "message": p.message,
                        "damages": list(p.damages),
                    }
                    for p in report.problems
                ],
                "damaged": list(report.damaged),
                "unreferenced": list(report.unreferenced),
                "checked_bytes": report.checked_bytes,
            }
        )
    else:
        _print_report(report, args.location, Style(sys.stdout))
    return 0 if report.ok else 1


def _total_bytes(location: str) -> int:
    """Return the bytes there, for the bar; a location that has none yet is not judged here."""
    from bcpformat.storage import open_store

    return sum(info.nbytes for info in open_store(location).list())


def _print_report(report: Report, location: str, style: Style) -> None:
    # what follows each other and hits the same, as the blocks of one tensor, names it once
    for names, problems in groupby(report.problems, key=lambda problem: problem.damages):
        for problem in problems:
            where = f" {one_line(problem.where)}" if problem.where else ""
            print(f"{style.bad(problem.code.value)}{where}: {one_line(problem.message)}")
        if names:
            print(f"  damaged ({len(names)}):")
        for line in name_lines(names):
            print(f"    {line}")
    if report.unreferenced:
        print(
            "not part of this checkpoint (left-overs of attempts that did not commit, or others):"
        )
        for key in report.unreferenced:
            print(f"  {display(key)}")
    size = f", {human_bytes(report.checked_bytes)} of data verified" if report.checked_bytes else ""
    if report.ok:
        print(f"{style.good('valid')}: {display(location)} (level {report.level}{size})")
    else:
        count = counted(len(report.problems), "problem")
        hit = f"; {counted(len(report.damaged), 'name')} damaged" if report.damaged else ""
        print(f"{style.bad('not valid')}: {display(location)} has {count}{hit}")
