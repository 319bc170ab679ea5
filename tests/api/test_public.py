"""What users see: the names, their documentation, and that torch stays out of the way."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import bcpformat

NAMES = [
    "BcpError",
    "Checkpoint",
    "ChecksumError",
    "CommitError",
    "CoordinationError",
    "Coordinator",
    "CoverageError",
    "DisagreementError",
    "ErrorCode",
    "FormatError",
    "InvalidArgumentError",
    "LimitError",
    "Limits",
    "LocalStore",
    "MemoryStore",
    "MismatchError",
    "Mismatches",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "PerRank",
    "PerRankValues",
    "Problem",
    "ReadOptions",
    "Report",
    "Segment",
    "Shard",
    "Shards",
    "StateError",
    "StorageError",
    "Store",
    "TensorView",
    "UnsupportedError",
    "WriteOptions",
    "WriteReport",
    "even_segments",
    "fused",
    "latest",
    "open",
    "per_rank",
    "read",
    "register_type",
    "validate",
    "write",
]
SIGNATURES = {
    "write": "(location, state, *, step, options, group, progress)",
    "read": (
        "(location, *, into, filter, rename, strict, cast, as_numpy, options, per_rank, group, "
        "progress)"
    ),
    "open": "(location, *, options)",
    "validate": "(location, *, level, options, progress)",
    "latest": "(root, *, level, options)",
    "register_type": "(cls, *, name, encode, decode)",
}


def test_the_public_names_are_these() -> None:
    assert bcpformat.__all__ == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_documented(name: str) -> None:
    value = getattr(bcpformat, name)

    assert inspect.getdoc(value)
    for member, found in vars(value).items() if inspect.isclass(value) else ():
        if not member.startswith("_") and callable(found):
            assert inspect.getdoc(getattr(value, member)), f"{name}.{member}"


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_arguments_have_these_names_in_this_order(name: str) -> None:
    parts: list[str] = []
    for parameter in inspect.signature(getattr(bcpformat, name)).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(parameter.name)

    assert f"({', '.join(parts)})" == SIGNATURES[name]


def test_every_error_is_a_bcp_error_with_a_code() -> None:
    for name in NAMES:
        value = getattr(bcpformat, name)
        if inspect.isclass(value) and issubclass(value, Exception):
            assert issubclass(value, bcpformat.BcpError)
    assert bcpformat.InvalidArgumentError("x").code is bcpformat.ErrorCode.ARGUMENT


def modules(package: str) -> list[str]:
    found = importlib.import_module(package)
    walked = pkgutil.walk_packages(found.__path__, prefix=package + ".")
    return [package, *(m.name for m in walked if not m.name.endswith("__main__"))]


@pytest.mark.parametrize(
    "name",
    [
        "bcpformat",
        *modules("bcpformat.api"),
        *modules("bcpformat.engine"),
        *modules("bcpformat.plan"),
        *modules("bcpformat.validation"),
        *modules("bcpformat.torch"),
    ],
)
def test_the_examples_in_the_documentation_are_right(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize(
    "code",
    [
        "import bcpformat",
        "import bcpformat.cli.program",
        (
            "import bcpformat, numpy; s = bcpformat.MemoryStore(); "
            "bcpformat.write(s, {'w': numpy.ones(2), 'p': bcpformat.PerRank(1)}); "
            "bcpformat.read(s, as_numpy=True); bcpformat.validate(s); "
            "bcpformat.read(s, into={'w': numpy.zeros(2), 'p': bcpformat.PerRank(0)}); "
            "bcpformat.open(s)['w'][0]"
        ),
    ],
)
def test_torch_is_not_imported(code: str) -> None:
    script = f"{code}\nimport sys\nprint('torch' in sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.slow
def test_torch_is_imported_when_a_value_needs_it() -> None:
    script = (
        "import bcpformat, sys, tempfile, subprocess\n"
        "place = tempfile.mkdtemp() + '/c'\n"
        "code = 'import bcpformat, torch; bcpformat.write(%r, [torch.ones(2), torch.float16, "
        "torch.Size([1])])' % place\n"
        "subprocess.run([sys.executable, '-c', code], check=True)\n"
        "assert 'torch' not in sys.modules\n"
        "plain = bcpformat.read(place, as_numpy=True)\n"
        "assert 'torch' not in sys.modules\n"
        "found = bcpformat.read(place)\n"
        "print(type(plain[0]).__name__, type(plain[1]).__name__, *map(type, found))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )

    assert done.stdout.strip() == (
        "ndarray TorchDType <class 'torch.Tensor'> <class 'torch.dtype'> <class 'torch.Size'>"
    )


def test_every_public_name_has_one_home_and_the_type_checkers_import_agrees() -> None:
    tree = ast.parse(Path(bcpformat.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.asname or alias.name: (
            node.module if alias.name != "per_rank" else f"{node.module}.per_rank"  # a module
        )
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert imported == bcpformat._HOMES
    assert sorted(imported) == sorted(bcpformat.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        bcpformat.nothing  # noqa: B018  # the look-up is the test
