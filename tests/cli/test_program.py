from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bcpformat
from bcpformat.cli import main
from bcpformat.cli.program import COMMANDS


@pytest.fixture
def location(tmp_path: Path) -> str:
    bcpformat.write(tmp_path / "c", {"w": np.arange(6.0)}, step=3)
    return str(tmp_path / "c")


def program(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bcpformat.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "bench"])
def test_the_help_of_every_command_shows_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0

    assert f"bcpformat {command}" in capsys.readouterr().out.partition("examples:")[2]


def test_without_a_command_the_help_is_shown_and_the_exit_code_is_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2

    assert "validate" in capsys.readouterr().out


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2

    assert "nonsense" in capsys.readouterr().err


def test_the_version_names_program_and_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0

    assert "format 1.0" in capsys.readouterr().out


def test_an_error_is_one_line_with_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", str(tmp_path), str(tmp_path)]) == 2

    error = capsys.readouterr().err
    assert error.startswith("bcpformat: error E_NOT_COMMITTED: ")
    assert error.count("\n") == 1


def test_an_error_message_cannot_act_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", str(tmp_path / "\x1b[31m\n\u202e"), str(tmp_path)]) == 2

    error = capsys.readouterr().err
    assert not any(c in error for c in "\x1b\u202e")
    assert error.count("\n") == 1


def test_a_traceback_is_shown_only_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["diff", str(tmp_path), str(tmp_path)])
    without = capsys.readouterr().err
    main(["diff", str(tmp_path), str(tmp_path), "--traceback"])

    assert "Traceback" not in without
    assert "Traceback" in capsys.readouterr().err


def test_a_url_of_an_unknown_scheme_is_an_error_not_a_crash(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["inspect", "s3://bucket/run"]) == 2

    assert "E_NOT_BUILT" in capsys.readouterr().err


@pytest.mark.slow
def test_the_program_runs_as_a_process_without_torch(location: str) -> None:
    code = "import sys; from bcpformat.cli import main; code = main(sys.argv[1:])\n"
    code += "assert 'torch' not in sys.modules; sys.exit(code)"

    for command in (["inspect", location], ["validate", location], ["diff", location, location]):
        done = subprocess.run(
            [sys.executable, "-c", code, *command], capture_output=True, text=True, check=False
        )

        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_output_that_is_not_a_terminal_has_no_colour_and_no_bar(location: str) -> None:
    done = program("validate", location)

    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_terminal_without_the_characters_gets_escapes(tmp_path: Path) -> None:
    bcpformat.write(tmp_path / "c", {"gewicht-\u00fc\u4e2d": np.arange(2)})

    done = program("inspect", str(tmp_path / "c"), PYTHONIOENCODING="ascii")

    assert done.returncode == 0
    assert r"gewicht-\xfc\u4e2d" in done.stdout


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_the_program_quietly(tmp_path: Path) -> None:
    state = {f"name-{i}": np.zeros(1) for i in range(4000)}
    bcpformat.write(tmp_path / "c", state)

    with subprocess.Popen(
        [sys.executable, "-m", "bcpformat.cli", "inspect", str(tmp_path / "c")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        error = process.stderr.read()

    assert process.returncode == 141
    assert error == b""


@pytest.mark.slow
def test_what_inspect_does_not_need_is_not_imported(tmp_path: Path) -> None:
    """It reads a manifest; importing what moves tensors would take longer than that."""
    bcpformat.write(tmp_path / "ck", {"w": np.zeros((2, 3)), "b": np.zeros(3)})
    unneeded = ["bcpformat.api.opened", "concurrent.futures", "importlib.metadata", "numpy.ma"]
    code = "import sys; from bcpformat.cli import main; code = main(sys.argv[1:])\n"
    code += f"found = [name for name in {unneeded} if name in sys.modules]\n"
    code += "assert not found, found; sys.exit(code)"

    done = subprocess.run(
        [sys.executable, "-c", code, "inspect", str(tmp_path / "ck")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
