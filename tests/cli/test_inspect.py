from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bcpformat
from bcpformat.cli import main
from bcpformat.cli.near_names import near_names


@pytest.fixture
def location(tmp_path: Path) -> str:
    w = np.ones((4, 3), np.float32)
    state = {
        "model": {"w": w, "tied": w, "b": np.ones(5, ml_dtypes.bfloat16)},
        "lr": 0.5,
        "big": "x" * 70_000,
        "rng": bcpformat.PerRank({"seed": 1}),
        "none": None,
    }
    options = bcpformat.WriteOptions(codec="zstd", user={"note": "hi", "raw": b"\0"})
    bcpformat.write(tmp_path / "c", state, step=12, options=options)
    return str(tmp_path / "c")


def inspected(*words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["inspect", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json_has_what_the_checkpoint_says_of_itself(
    location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = inspected(location, capsys=capsys)

    assert found["is_checkpoint"] is True
    assert found["format"] == "1.0"
    assert found["step"] == 12
    assert found["created"].endswith("Z")
    assert found["writer"]["name"] == "bcpformat"
    assert found["user"] == {"note": "hi", "raw": {"base64": "AA=="}}


def test_json_has_every_tensor_with_its_aliases(
    location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = inspected(location, capsys=capsys)

    assert [(t["name"], t["dtype"], t["shape"], t["bytes"]) for t in found["tensors"]] == [
        ("model/b", "bfloat16", [5], 10),
        ("model/w", "float32", [4, 3], 48),
    ]
    assert found["tensors"][1]["aliases"] == ["model/tied"]


def test_json_has_every_other_value(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = inspected(location, capsys=capsys)

    kinds = {value["name"]: (value["kind"], value["text"]) for value in found["values"]}
    assert kinds["lr"] == ("float", "0.5")
    assert kinds["none"] == ("None", "")
    assert kinds["big"][0] == "str"
    assert kinds["rng"][0] == "per-rank"
    assert found["objects"][0]["bytes"] == 70_000
    assert found["per_rank"] == [
        {"name": "rng", "ranks": [0], "bytes": found["per_rank"][0]["bytes"]}
    ]


def test_totals_by_key_and_by_type_add_up(
    location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = inspected(location, capsys=capsys)

    keys = {row["key"]: row["bytes"] for row in found["by_key"]}
    dtypes = {row["dtype"]: row["bytes"] for row in found["by_dtype"]}
    assert keys["model"] == 58
    assert keys["big"] == 70_000
    assert dtypes == {"float32": 48, "bfloat16": 10}
    assert found["totals"]["tensor_bytes"] == 58


def test_files_say_codecs_and_ratio(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = inspected(location, capsys=capsys)["files"]

    assert [c["codec"] for c in file["codecs"]] == ["zstd"]
    assert file["raw_bytes"] > file["stored_bytes"] > 0
    assert file["bytes"] == (Path(location) / file["name"]).stat().st_size


def test_the_text_shows_tree_ties_and_values(
    location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", location]) == 0

    shown = capsys.readouterr().out
    assert "step 12" in shown
    assert "tied to model/w" in shown
    assert "float 0.5" in shown
    assert "per-rank, 1 rank" in shown


def test_depth_cuts_the_tree(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = inspected(location, "--depth", "1", capsys=capsys)

    assert found["tensors"] == []
    assert [v["name"] for v in found["values"]] == ["lr", "big", "rng", "none"]
    assert found["totals"]["tensors"] == 2


def test_names_select_and_keep_the_containers_above(
    location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", location, "--names", "*/b"]) == 0

    tree = capsys.readouterr().out.partition("\nstate\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in tree.splitlines()] == ["(top)", "model", "b"]


def test_totals_are_those_of_what_matches(
    location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["inspect", location, "--names", "*/b", "--names", "lr"])
    shown = capsys.readouterr().out
    found = inspected(location, "--names", "*/b", capsys=capsys)

    assert "  1 of 2 tensors, 10 B of 58 B; 1 data file, " in shown
    assert found["selected"] == {"tensors": 1, "elements": 5, "tensor_bytes": 10}
    assert found["totals"]["tensors"] == 2
    assert found["by_key"] == [{"key": "model", "tensors": 1, "bytes": 10}]
    assert [row["dtype"] for row in found["by_dtype"]] == ["bfloat16"]
    assert (found["values"], found["objects"], found["per_rank"]) == ([], [], [])


def test_a_tied_tensor_is_selected_by_any_of_its_names(
    location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = inspected(location, "--names", "model/tied", capsys=capsys)

    assert [row["name"] for row in found["tensors"]] == ["model/w"]
    assert found["selected"]["tensors"] == 1


def test_without_a_match_near_names_are_shown_and_the_exit_code_is_1(
    location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", location, "--names", "modle/*"]) == 1

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "bcpformat: no name matches 'modle/*'; near: model\n"


def test_without_a_match_the_document_has_no_rows_and_the_exit_code_is_1(
    location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", location, "--names", "zzz", "--json"]) == 1

    found = json.loads(capsys.readouterr().out)
    assert found["tensors"] == found["values"] == found["by_key"] == []
    assert found["selected"]["tensors"] == 0


def test_one_match_of_several_patterns_is_enough_and_the_other_is_named(
    location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", location, "--names", "lr", "--names", "zzz"]) == 0

    assert capsys.readouterr().err == "bcpformat: no name matches 'zzz'\n"


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("tied", ["model/tied"]),
        ("*/TIED", ["model/tied"]),
        ("mode", ["model", "model/w", "model/tied"]),
        ("model/teid", ["model/tied", "model/w", "model/b"]),
        ("*/teid", ["model/tied"]),
        ("*", []),
        ("nothing-like-it", []),
    ],
)
def test_near_names_hold_the_word_or_are_spelled_like_it(pattern: str, near: list[str]) -> None:
    names = ["", "lr", "model", "model/w", "model/tied", "model/b"]

    assert near_names(pattern, names) == near


def test_left_overs_are_called_left_overs(
    location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(location) / "data" / "old.bcd").write_bytes(b"abc")

    found = inspected(location, capsys=capsys)
    main(["inspect", location])

    assert found["unreferenced"] == [{"key": "data/old.bcd", "bytes": 3}]
    assert "left-overs of attempts that did not commit" in capsys.readouterr().out


def test_a_place_without_a_manifest_is_not_a_checkpoint_and_what_is_there_is_shown(
    location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(location).parent
    (root / "half").mkdir()
    (root / "half" / "data").mkdir()
    (root / "half" / "data" / "x.bcd").write_bytes(b"1234")

    assert main(["inspect", str(root), "--json"]) == 1
    above = json.loads(capsys.readouterr().out)
    assert main(["inspect", str(root / "half")]) == 1
    half = capsys.readouterr().out

    assert above["is_checkpoint"] is False
    assert above["checkpoints"] == ["c"]
    assert above["leftovers"] == [{"key": "half/data/x.bcd", "bytes": 4}]
    assert "not a checkpoint" in half
    assert "did not commit" in half


def test_a_damaged_manifest_is_an_error(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(location) / "manifest.bcp"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)

    assert main(["inspect", location]) == 2

    assert "error E_MANIFEST_CHECKSUM" in capsys.readouterr().err


@pytest.mark.parametrize("state", [{}, [], 5, None, {"w": np.zeros((0, 3))}, np.zeros(())])
def test_any_state_can_be_inspected(
    tmp_path: Path, state: object, capsys: pytest.CaptureFixture[str]
) -> None:
    bcpformat.write(tmp_path / "c", state)

    assert main(["inspect", str(tmp_path / "c")]) == 0
    capsys.readouterr()
    assert inspected(str(tmp_path / "c"), capsys=capsys)["is_checkpoint"]
