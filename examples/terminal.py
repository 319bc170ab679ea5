"""What the demo prints, and how it ends when something is not as promised."""

from __future__ import annotations

from bcpformat.cli import main as bcpformat_cli


class NotAsPromisedError(Exception):
    """Something that the demo promises did not happen."""


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)


def tell(text: str) -> None:
    """Print a line of what happens."""
    print(text, flush=True)


def promise(is_kept: bool, text: str) -> None:  # noqa: FBT001  # reads like assert
    """End the demo unless a promise is kept; `text` says what is promised."""
    if not is_kept:
        raise NotAsPromisedError(text)


def shell(*arguments: object, expect: int = 0) -> None:
    """Run the command line program in this process, showing the command.

    Raises:
        NotAsPromisedError: Its exit code is not the expected one.
    """
    words = [str(a) for a in arguments]
    tell("$ bcpformat " + " ".join(words))
    found = bcpformat_cli(words)
    promise(found == expect, f"`bcpformat {words[0]}` exits with {expect}; it did with {found}")
