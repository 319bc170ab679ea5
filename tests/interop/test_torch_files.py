from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

import bcpformat
from bcpformat.cli import main

pytestmark = pytest.mark.torch


class Surprise:
    """Its pickle would call a function."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("unpickled",))


def test_a_training_state_goes_to_torch_save_and_back(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 4}
    torch.save(state, tmp_path / "a.pt")

    assert main(["convert", str(tmp_path / "a.pt"), str(tmp_path / "c"), "--step", "4"]) == 0
    assert main(["convert", str(tmp_path / "c"), str(tmp_path / "b.pt")]) == 0

    back = torch.load(tmp_path / "b.pt", weights_only=True)
    assert type(back["model"]) is OrderedDict
    assert back["optimizer"]["param_groups"] == state["optimizer"]["param_groups"]
    for name, tensor in state["model"].items():
        assert torch.equal(back["model"][name], tensor)
    with bcpformat.open(tmp_path / "c") as opened:
        assert opened.step == 4


def test_ties_survive(tmp_path: Path) -> None:
    w = torch.ones(3)
    torch.save({"a": w, "b": w}, tmp_path / "a.pt")
    main(["convert", str(tmp_path / "a.pt"), str(tmp_path / "c")])
    main(["convert", str(tmp_path / "c"), str(tmp_path / "b.pt")])

    back = torch.load(tmp_path / "b.pt", weights_only=True)

    assert back["a"].data_ptr() == back["b"].data_ptr()


def test_other_objects_are_refused_and_never_unpickled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"w": torch.ones(1), "x": Surprise()}, tmp_path / "a.pt")

    assert main(["convert", str(tmp_path / "a.pt"), str(tmp_path / "c")]) == 2

    captured = capsys.readouterr()
    assert "E_NO_FORM" in captured.err
    assert "unpickled" not in captured.out
    assert not (tmp_path / "c").exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"PK\x03\x04 broken", pickle.dumps({"a": 1})[:-1]]
)
def test_a_damaged_file_is_an_error_without_a_traceback(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.pt").write_bytes(content)

    assert main(["convert", str(tmp_path / "a.pt"), str(tmp_path / "c")]) == 2

    assert "bcpformat: error E_" in capsys.readouterr().err


def test_numpy_and_per_rank_values_become_what_torch_can_load(tmp_path: Path) -> None:
    state = {"n": np.arange(3), "s": np.float32(2), "r": bcpformat.PerRank({"seed": 1})}
    bcpformat.write(tmp_path / "c", state)

    assert main(["convert", str(tmp_path / "c"), str(tmp_path / "a.pt")]) == 0

    back = torch.load(tmp_path / "a.pt", weights_only=True)
    assert back["n"].tolist() == [0, 1, 2]
    assert back["s"] == 2
    assert back["r"] == {0: {"seed": 1}}


def test_a_selection_is_written(tmp_path: Path) -> None:
    bcpformat.write(tmp_path / "c", {"model": {"w": torch.ones(1)}, "opt": {"m": torch.ones(1)}})

    main(["convert", str(tmp_path / "c"), str(tmp_path / "a.pt"), "--names", "model"])

    assert list(torch.load(tmp_path / "a.pt", weights_only=True)) == ["model"]
