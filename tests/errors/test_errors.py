"""What an error shows: its message, and its code once."""

from __future__ import annotations

import ast
import copy
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

import bcpformat
from bcpformat import errors
from bcpformat.errors import (
    BcpError,
    ChecksumError,
    CommitError,
    ErrorCode,
    InvalidArgumentError,
    MismatchError,
    ObjectNotFoundError,
    StorageError,
)

EXAMPLES = [
    ChecksumError("data/x: block 3", code=ErrorCode.BLOCK_CHECKSUM),
    InvalidArgumentError("level must be 1, got 2"),
    MismatchError("2 differences:\n  a\n  b", problems=[]),
    ObjectNotFoundError("no object 'x'", key="x"),
    CommitError("another save was first", published=False, code=ErrorCode.EXISTS),
]
OWN = {name for name, kind in vars(errors).items() if isinstance(kind, type)} - {"Problem"}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_the_text_of_an_error_is_its_message_and_its_code(error: BcpError) -> None:
    assert str(error) == f"{error.message} [{error.code.value}]"


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_a_repr_shows_the_message_alone(error: BcpError) -> None:
    assert repr(error) == f"{type(error).__name__}({error.message!r})"


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_copies_have_the_same_text(error: BcpError) -> None:
    assert str(copy.copy(error)) == str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_traceback_shows_the_code_of_each_error_of_a_chain_once() -> None:
    try:
        try:
            raise StorageError("no space is left", key="x")
        except StorageError as cause:
            text = f"it was not committed: {cause.message}"
            raise CommitError(text, published=None, code=ErrorCode.UNCERTAIN) from cause
    except CommitError as error:
        shown = "".join(traceback.format_exception(error))

    assert shown.count("no space is left [E_IO]") == 1
    assert shown.count("no space is left [E_UNCERTAIN]") == 1


def handlers(tree: ast.AST) -> Iterator[ast.ExceptHandler]:
    """Yield the handlers that give a name to an error of ours."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.name and node.type:
            kinds = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
            if kinds & OWN:
                yield node


def whole_texts(handler: ast.ExceptHandler) -> Iterator[int]:
    """Yield the lines of a handler that take the text of its error with the code in it."""
    for node in ast.walk(handler):
        taken: ast.expr | None = None
        if isinstance(node, ast.FormattedValue):
            taken = node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("str", "format"):
            taken = node.args[0]
        if isinstance(taken, ast.Name) and taken.id == handler.name:
            yield node.lineno


def test_no_message_embeds_the_code_of_another_error() -> None:
    root = Path(bcpformat.__file__).parent
    sources = {path: ast.parse(path.read_text(encoding="utf-8")) for path in root.rglob("*.py")}
    found = [
        f"{path.relative_to(root)}:{line}"
        for path, tree in sources.items()
        for handler in handlers(tree)
        for line in whole_texts(handler)
    ]

    assert found == [], "take error.message"
