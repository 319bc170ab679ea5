from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bcpformat
from bcpformat.cli import compare as compare_module
from bcpformat.cli import main


def differences(
    tmp_path: Path, a: object, b: object, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, dict[str, Any]]:
    """Return exit code and document of the difference of two states."""
    bcpformat.write(tmp_path / "a", a)
    bcpformat.write(tmp_path / "b", b, options=bcpformat.WriteOptions(codec="zstd"))
    status = main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json", *words])
    return status, json.loads(capsys.readouterr().out)


def test_equal_states_of_other_codecs_are_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"w": np.array([1, np.nan, np.inf, -0.0]), "e": np.zeros((0, 2)), "lr": float("nan")}

    status, found = differences(tmp_path, state, state, capsys)

    assert status == 0
    assert found["same"]
    assert found["compared"] == 3


def test_names_of_one_side_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = differences(
        tmp_path, {"w": np.ones(1), "x": {}}, {"w": np.ones(1), "y": 1}, capsys
    )

    assert status == 1
    assert found["only_in_a"] == ["x"]
    assert found["only_in_b"] == ["y"]


def test_the_number_and_size_of_differences_is_exact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_module, "SLICE_ELEMENTS", 7)
    a = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    b = a.copy()
    b[2, 3, 4] += 8
    b[0, 0, 0] -= 0.5

    _, found = differences(tmp_path, {"w": a}, {"w": b}, capsys)

    (tensor,) = found["tensors"]
    assert (tensor["differing"], tensor["differing_bits"], tensor["max_abs"]) == (2, 2, 8.0)


def test_nan_equals_nan_by_value_and_not_by_other_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = np.array([0x7FC00000, 0x7FC00000, 0, 0x3F800000], np.uint32).view(np.float32)
    b = np.array([0x7FC00001, 0x3F800000, 0x80000000, 0x40000000], np.uint32).view(np.float32)

    status, found = differences(tmp_path, {"w": a}, {"w": b}, capsys)

    (tensor,) = found["tensors"]
    assert status == 1
    assert tensor["differing_bits"] == 4
    assert tensor["differing"] == 2
    assert tensor["nan_mismatches"] == 1
    assert tensor["max_abs"] == 1.0


@pytest.mark.parametrize(
    ("a", "b", "max_abs"),
    [
        (np.array([2**63 - 1]), np.array([-(2**63)]), 2**64 - 1),
        (np.array([2**64 - 1], np.uint64), np.array([0], np.uint64), 2**64 - 1),
        (np.array([True]), np.array([False]), 1.0),
        (np.array([3 + 4j]), np.array([0j]), 5.0),
        (np.array([1.5], ml_dtypes.bfloat16), np.array([1], ml_dtypes.bfloat16), 0.5),
        (np.array([2], ml_dtypes.float8_e5m2), np.array([4], ml_dtypes.float8_e5m2), 2.0),
        (np.array([-8], ml_dtypes.int4), np.array([7], ml_dtypes.int4), 15),
        (np.array([np.inf]), np.array([-np.inf]), "inf"),
        (np.array([np.nan]), np.array([1.0]), "nan"),
    ],
)
def test_the_largest_difference_of_every_kind_of_element(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], a: Any, b: Any, max_abs: object
) -> None:
    _, found = differences(tmp_path, {"w": a}, {"w": b}, capsys)

    assert found["tensors"][0]["max_abs"] == max_abs


def test_shapes_and_types_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = {"s": np.ones((2, 3)), "d": np.ones(2, np.float32)}
    b = {"s": np.ones((3, 2)), "d": np.ones(2, np.float64)}

    _, found = differences(tmp_path, a, b, capsys)

    shape, dtype = found["tensors"]
    assert shape["shapes"] == [[2, 3], [3, 2]]
    assert shape["differing"] is None
    assert dtype["dtypes"] == ["float32", "float64"]
    assert dtype["differing"] == 0


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, 2),
        (1, 1.0),
        (True, 1),
        (0.0, -0.0),
        ("x", b"x"),
        ([1], (1,)),
        ({}, OrderedDict()),
        ({1, 2}, {1, 3}),
        ("a" * 70_000, "a" * 69_999 + "b"),
        ("a" * 70_000, "b"),
        (bcpformat.PerRank(1), bcpformat.PerRank(2)),
        (np.zeros(1), 0),
    ],
)
def test_values_that_differ_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], a: object, b: object
) -> None:
    status, found = differences(tmp_path, {"v": a}, {"v": b}, capsys)

    assert status == 1
    assert [v["name"] for v in found["values"]] == ["v"]


def test_names_select_what_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = {"model": {"w": np.ones(1)}, "opt": {"m": np.ones(1)}}
    b = {"model": {"w": np.ones(1)}, "opt": {"m": np.zeros(1)}}

    status, _ = differences(tmp_path, a, b, capsys, "--names", "model")

    assert status == 0


def test_the_text_says_by_how_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bcpformat.write(tmp_path / "a", {"w": np.ones(4)})
    bcpformat.write(tmp_path / "b", {"w": np.array([1, 1, 1, 3.0])})

    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1

    assert "1 of 4 elements (0.25), max abs difference 2" in capsys.readouterr().out


def last_line(
    tmp_path: Path, a: object, b: object, capsys: pytest.CaptureFixture[str], *words: str
) -> str:
    """Return the summary of the difference of two states."""
    bcpformat.write(tmp_path / "a", a)
    bcpformat.write(tmp_path / "b", b)
    main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), *words])
    return capsys.readouterr().out.splitlines()[-1]


def test_the_summary_counts_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = {"w": np.ones(4), "v": np.ones(4), "s": np.ones(4), "lr": 0.1, "x": 1, "y": np.ones(1)}
    b = {"w": np.zeros(4), "v": np.ones(5), "s": np.ones(4), "lr": 0.2, "z": 1}

    assert last_line(tmp_path, a, b, capsys) == (
        "they differ: 2 tensors differ, 1 value differs, 2 names only in A, 1 name only in B; "
        "4 names compared"
    )


def test_the_summary_leaves_out_what_does_not_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = {"w": np.ones(4), "v": 1}, {"w": np.zeros(4), "v": 1}

    assert last_line(tmp_path, a, b, capsys) == "they differ: 1 tensor differs; 2 names compared"


def test_names_that_select_nothing_are_an_error_not_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bcpformat.write(tmp_path / "a", {"w": np.ones(4)})

    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "a"), "--names", "nobody"]) == 2

    assert "E_MISMATCH" in capsys.readouterr().err


def test_damage_is_an_error_not_a_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bcpformat.write(tmp_path / "a", {"w": np.ones(4)})
    bcpformat.write(tmp_path / "b", {"w": np.ones(4)})
    (path,) = (tmp_path / "b" / "data").iterdir()
    data = bytearray(path.read_bytes())
    data[4100] ^= 1
    path.write_bytes(data)

    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 2

    assert "E_BLOCK_CHECKSUM" in capsys.readouterr().err
