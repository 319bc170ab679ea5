from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import bcpformat
from bcpformat.cli import main


@pytest.fixture
def location(tmp_path: Path) -> Path:
    state = {"w": np.arange(500_000.0), "v": np.arange(400_000.0), "s": np.arange(3)}
    bcpformat.write(tmp_path / "c", state)
    return tmp_path / "c"


def data_file(location: Path) -> Path:
    (found,) = (location / "data").iterdir()
    return found


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_a_valid_checkpoint_exits_0(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(location)]) == 0

    assert capsys.readouterr().out.startswith("valid: ")


def test_damaged_tensors_are_named_and_the_exit_code_is_1(
    location: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(data_file(location), 8192)

    assert main(["validate", str(location)]) == 1

    shown = capsys.readouterr().out
    assert "E_BLOCK_CHECKSUM" in shown
    assert "damaged (1):" in shown


def test_json_lists_every_problem(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(data_file(location), 8192)
    flip(data_file(location), 5_000_000)

    assert main(["validate", str(location), "--json"]) == 1

    found = json.loads(capsys.readouterr().out)
    assert found["valid"] is False
    assert sorted(found["damaged"]) == ["v", "w"]
    assert [p["code"] for p in found["problems"]] == ["E_BLOCK_CHECKSUM"] * 2


def test_level_manifest_reads_no_elements(
    location: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(data_file(location), 8192)

    assert main(["validate", str(location), "--level", "manifest", "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["checked_bytes"] == 0


def test_a_missing_manifest_is_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(tmp_path), "--json"]) == 1

    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["code"] == "E_NOT_COMMITTED"


def test_what_cannot_be_reached_cannot_be_checked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["validate", "gs://bucket/x"]) == 2

    assert "bcpformat: error" in capsys.readouterr().err


def test_objects_of_others_are_listed_and_no_problem(
    location: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (location / "notes.txt").write_text("mine")

    assert main(["validate", str(location)]) == 0

    assert "notes.txt" in capsys.readouterr().out
