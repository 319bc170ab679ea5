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


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Return a checkpoint whose 25 tensors lie in one damaged block."""
    bcpformat.write(tmp_path / "p", {f"w{i:02}": np.ones(2) for i in range(25)})
    flip(data_file(tmp_path / "p"), 4100)
    return tmp_path / "p"


def test_a_damaged_block_is_one_line_with_the_first_names_in_it(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["validate", str(packed)])

    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("E_BLOCK_CHECKSUM") for line in lines] == [True] + [False] * 13
    assert lines[1] == "  damaged (25):"
    assert lines[2:12] == [f"    w{i:02}" for i in range(10)]
    assert lines[12] == "    ... and 15 more (--json has all)"
    assert lines[13].endswith("has 1 problem; 25 names damaged")


def test_a_tensor_with_several_damaged_blocks_is_named_once(
    location: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for position in (8192, 8192 + 2**20, 8192 + 2 * 2**20):
        flip(data_file(location), position)

    main(["validate", str(location)])

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["E_BLOCK_CHECKSUM"] * 3 + ["damaged"]
    assert len(lines) == 6


def test_json_has_every_name_of_a_damaged_block(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["validate", str(packed), "--json"])

    found = json.loads(capsys.readouterr().out)
    names = [f"w{i:02}" for i in range(25)]
    assert found["damaged"] == found["problems"][0]["damages"] == names


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
