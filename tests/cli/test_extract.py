from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

import bcpformat
from bcpformat.cli import main
from bcpformat.interop.npy_files import file_names


def extracted(folder: Path) -> dict[str, tuple[dict[str, Any], Any]]:
    """Return name to row of the index and array."""
    index = json.loads((folder / "index.json").read_text())
    return {row["name"]: (row, np.load(folder / row["file"])) for row in index["tensors"]}


def damaged_checkpoint(location: Path) -> Path:
    bcpformat.write(location, {"a": np.ones(200_000), "b": np.ones(200_000), "s": np.ones(2)})
    (path,) = (location / "data").iterdir()
    data = bytearray(path.read_bytes())
    data[8192] ^= 1
    path.write_bytes(data)
    return location


@pytest.mark.parametrize(
    ("array", "stored_as"),
    [
        (np.arange(6.0).reshape(2, 3), "float64"),
        (np.array(5, np.int8), "int8"),
        (np.zeros((0, 3), np.float16), "float16"),
        (np.array([True, False]), "bool"),
        (np.array([1 + 2j]), "complex128"),
        (np.array([1.5, np.nan], ml_dtypes.bfloat16), "uint16"),
        (np.array([[1.5]], ml_dtypes.float8_e4m3fn), "uint8"),
        (np.array([-8, 7, 1], ml_dtypes.int4), "uint8"),
    ],
)
def test_npy_files_hold_the_bits_and_the_index_the_type(
    tmp_path: Path, array: Any, stored_as: str
) -> None:
    bcpformat.write(tmp_path / "c", {"w": array})

    assert main(["extract", str(tmp_path / "c"), "--out", str(tmp_path / "o")]) == 0

    row, loaded = extracted(tmp_path / "o")["w"]
    assert row["dtype"] == array.dtype.name
    assert row["stored_as"] == loaded.dtype.name == stored_as
    assert loaded.shape == array.shape
    back = loaded.view(array.dtype)
    if array.dtype == ml_dtypes.int4:
        assert back.tolist() == array.tolist()
    else:
        assert back.tobytes() == array.tobytes()


def test_no_name_leaves_the_directory_or_collides(tmp_path: Path) -> None:
    names = ["../../x", "/etc/x", "..", ".", "A", "a", "CON", "nul.txt", "a:b", "x" * 300, "-rf",
             "\u202e", "\\..\\x", "index.json", "%2e%2e"]  # fmt: skip
    state: dict[str, object] = {name: np.array([i]) for i, name in enumerate(names)}
    bcpformat.write(tmp_path / "root" / "c", state)

    out = tmp_path / "root" / "o"
    assert main(["extract", str(tmp_path / "root" / "c"), "--out", str(out)]) == 0

    values = {name: int(array[0]) for name, (_, array) in extracted(out).items()}
    assert sorted(values.values()) == list(range(len(names)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["root"]
    assert all(p.is_file() and p.name.isascii() for p in out.iterdir())


@given(st.lists(st.text(), unique=True, max_size=30))
def test_file_names_are_safe_and_differ_in_any_case(names: list[str]) -> None:
    files = list(file_names(names).values())

    assert len({f.lower() for f in files}) == len(names)
    for file in files:
        assert file.isascii()
        assert not set(file) & set('/\\:*?"<>|\0 ')
        assert not file.startswith(".")
        assert len(file) < 150


def test_names_select(tmp_path: Path) -> None:
    bcpformat.write(tmp_path / "c", {"m": {"w": np.ones(1)}, "o": {"w": np.ones(2)}})

    main(["extract", str(tmp_path / "c"), "--out", str(tmp_path / "o"), "--names", "m"])

    assert list(extracted(tmp_path / "o")) == ["m/w"]


def test_one_safetensors_file_is_written(tmp_path: Path) -> None:
    bcpformat.write(tmp_path / "c", {"m": {"w": np.arange(3)}})
    out = tmp_path / "x.safetensors"

    assert main(["extract", str(tmp_path / "c"), "--out", str(out)]) == 0

    assert load_file(out)["m/w"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("out", ["o", "x.safetensors"])
def test_damage_stops_an_extraction(
    tmp_path: Path, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    location = damaged_checkpoint(tmp_path / "c")

    assert main(["extract", str(location), "--out", str(tmp_path / out)]) == 2

    assert "E_BLOCK_CHECKSUM" in capsys.readouterr().err
    assert not (tmp_path / "x.safetensors").exists()
    assert not (tmp_path / "o" / "index.json").exists()


def test_what_verifies_can_be_rescued_as_npy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    location = damaged_checkpoint(tmp_path / "c")
    out = tmp_path / "o"

    assert main(["extract", str(location), "--out", str(out), "--skip-damaged"]) == 1

    index = json.loads((out / "index.json").read_text())
    assert "left out (1)" in capsys.readouterr().out
    assert len(index["damaged"]) == 1
    assert index["damaged"][0]["code"] == "E_BLOCK_CHECKSUM"
    assert len(list(out.iterdir())) == 3
    assert set("abs") - set(extracted(out)) == {index["damaged"][0]["name"]}


def packed_checkpoint(location: Path) -> Path:
    """Write 25 tensors that lie in one damaged block."""
    bcpformat.write(location, {f"w{i:02}": np.ones(2) for i in range(25)})
    (path,) = (location / "data").iterdir()
    data = bytearray(path.read_bytes())
    data[4100] ^= 1
    path.write_bytes(data)
    return location


@pytest.mark.parametrize("out", ["o", "x.safetensors"])
def test_what_is_left_out_for_one_block_is_listed_below_one_line(
    tmp_path: Path, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    location = packed_checkpoint(tmp_path / "c")

    assert main(["extract", str(location), "--out", str(tmp_path / out), "--skip-damaged"]) == 1

    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "damaged, left out (25):"
    assert lines[2].startswith("  E_BLOCK_CHECKSUM data/")
    assert lines[3:13] == [f"    w{i:02}" for i in range(10)]
    assert lines[13:] == ["    ... and 15 more (--json has all)"]


def test_json_has_everything_that_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    location = packed_checkpoint(tmp_path / "c")
    out = str(tmp_path / "o")

    assert main(["extract", str(location), "--out", out, "--skip-damaged", "--json"]) == 1

    found = json.loads(capsys.readouterr().out)
    assert (found["out"], found["tensors"], found["bytes"]) == (out, 0, 0)
    assert [row["name"] for row in found["damaged"]] == [f"w{i:02}" for i in range(25)]
    assert {row["code"] for row in found["damaged"]} == {"E_BLOCK_CHECKSUM"}


def test_what_verifies_can_be_rescued_as_safetensors(tmp_path: Path) -> None:
    location = damaged_checkpoint(tmp_path / "c")
    out = tmp_path / "x.safetensors"

    assert main(["extract", str(location), "--out", str(out), "--skip-damaged"]) == 1

    assert len(load_file(out)) == 2


def test_tensors_of_a_missing_file_are_damaged_too(tmp_path: Path) -> None:
    bcpformat.write(tmp_path / "c", {"w": np.ones(2), "e": np.zeros((0, 2))})
    (path,) = (tmp_path / "c" / "data").iterdir()
    path.unlink()
    out = tmp_path / "o"

    assert main(["extract", str(tmp_path / "c"), "--out", str(out), "--skip-damaged"]) == 1

    assert list(extracted(out)) == ["e"]


def test_a_directory_that_holds_something_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bcpformat.write(tmp_path / "c", {"w": np.ones(2)})

    assert main(["extract", str(tmp_path / "c"), "--out", str(tmp_path)]) == 2

    assert "E_EXISTS" in capsys.readouterr().err
