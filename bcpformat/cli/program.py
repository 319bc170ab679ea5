"""The program: a table of commands, each loaded when it is used; errors become exit codes."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Protocol, cast

EXIT_OK = 0
EXIT_ERROR = 2
"""The command could not do its work."""
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

COMMANDS = {
    "inspect": ("bcpformat.cli.inspect", "show what a checkpoint holds and where its bytes are"),
    "validate": ("bcpformat.cli.validate", "check a checkpoint and list every problem"),
    "diff": ("bcpformat.cli.diff", "show which tensors and values of two checkpoints differ"),
    "extract": ("bcpformat.cli.extract", "write tensors as .npy files or as one safetensors file"),
    "convert": ("bcpformat.cli.convert", "convert from and to safetensors and torch.save files"),
    "simulate": (
        "bcpformat.cli.simulate",
        "show what saves and reads by many ranks would cost",
    ),
    "bench": ("bcpformat.cli.bench", "measure against the raw speed of this machine"),
}
"""Command to the module that has it and one line of help."""

_EPILOG = """\
exit codes:
  0  done, nothing found
  1  problems, differences or damage were found, or nothing that inspect could show
  2  the command could not do its work

examples:
  bcpformat inspect runs/step-1000
  bcpformat validate runs/step-1000 --level manifest
  bcpformat diff runs/step-1000 runs/step-2000 --names 'model/*'
  bcpformat extract runs/step-1000 --out arrays --names 'model/embed*'
  bcpformat convert model.safetensors runs/imported

`bcpformat COMMAND --help` shows the options and examples of a command.
"""


class Command(Protocol):
    """The module of a command."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Describe the command's arguments."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Do it and return the exit code."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments without the program's name; None takes those of this process.

    Returns:
        The exit code.
    """
    if argv is None:
        argv = sys.argv[1:]
        _never_fail_to_print()
    try:
        code = _run(list(argv))
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads any more; keep the interpreter from failing once more at its end.
        _discard_stdout()
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        print("bcpformat: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return code


def _run(argv: list[str]) -> int:
    chosen = next((word for word in argv if not word.startswith("-")), None)
    module: Command | None = None
    parser = argparse.ArgumentParser(
        prog="bcpformat",
        description="Work with checkpoints in the bcpformat format, without a GPU or torch.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (_, words) in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=words,
            description=words[0].upper() + words[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument(
            "--traceback", action="store_true", help="show where in the program an error arose"
        )
        if name == chosen:
            module = _load(COMMANDS[name][0])
            module.add_arguments(sub)
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has printed help or a usage error
        return stop.code if isinstance(stop.code, int) else EXIT_ERROR
    if args.version:
        print(_version())
        return EXIT_OK
    if module is None:
        parser.print_help()
        return EXIT_ERROR
    return _run_command(module, args)


def _load(name: str) -> Command:
    # A cast: a module has no declared type; every command's test calls both functions.
    return cast("Command", importlib.import_module(name))


def _run_command(module: Command, args: argparse.Namespace) -> int:
    from bcpformat.errors import BcpError

    try:
        return module.run(args)
    except BcpError as error:
        _report(error.code.value, error, error.message, args)
    except BrokenPipeError:
        raise
    except OSError as error:
        _report("E_IO", error, str(error), args)
    except MemoryError as error:
        _report("E_BUDGET", error, str(error), args)
    return EXIT_ERROR


def _report(code: str, error: BaseException, message: str, args: argparse.Namespace) -> None:
    from bcpformat.cli.terminal import one_line

    sys.stdout.flush()
    if args.traceback:
        import traceback

        traceback.print_exception(error)
    text = one_line(message) or type(error).__name__
    print(f"bcpformat: error {code}: {text}", file=sys.stderr)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"bcpformat {version('bcpformat')} (format 1.0)"
    except PackageNotFoundError:
        return "bcpformat, not installed (format 1.0)"


def _never_fail_to_print() -> None:
    """Print what the terminal's encoding lacks as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _discard_stdout() -> None:
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # not a real file, as in a test
        return
