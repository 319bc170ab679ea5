"""The command line: parse arguments, call, print."""

from bcpformat.cli.program import main

__all__ = ["main"]
