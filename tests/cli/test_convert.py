from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import bcpformat
from bcpformat.cli import main


@pytest.fixture
def location(tmp_path: Path) -> Path:
    w = np.arange(400_000, dtype=np.float32)
    state = {
        "model": OrderedDict(w=w, tied=w, e=np.zeros((0, 3)), f4=np.ones(3, ml_dtypes.int4)),
        "rng": bcpformat.PerRank({"seed": b"\1\2"}),
        "big": "x" * 70_000,
        "t": (1, None, {2, 3}),
    }
    bcpformat.write(
        tmp_path / "c", state, step=5, options=bcpformat.WriteOptions(user={"note": "hi", "n": 3})
    )
    return tmp_path / "c"


@pytest.mark.parametrize("first", ["raw", "zstd"])
@pytest.mark.parametrize("second", ["raw", "zstd", "planes-zstd"])
def test_another_codec_keeps_everything_else(
    location: Path, tmp_path: Path, first: str, second: str
) -> None:
    assert main(["convert", str(location), str(tmp_path / "a"), "--codec", first]) == 0
    assert main(["convert", str(tmp_path / "a"), str(tmp_path / "b"), "--codec", second]) == 0

    assert bcpformat.validate(tmp_path / "b").ok
    assert main(["diff", str(location), str(tmp_path / "b")]) == 0
    with bcpformat.open(location) as old, bcpformat.open(tmp_path / "b") as new:
        assert new.step == 5
        assert new.user == old.user
        assert new.manifest.state == old.manifest.state
        assert new.manifest.tensors.aliases == old.manifest.tensors.aliases
        assert new.manifest.per_rank.rank.tolist() == old.manifest.per_rank.rank.tolist()


def test_a_step_can_be_given(location: Path, tmp_path: Path) -> None:
    main(["convert", str(location), str(tmp_path / "a"), "--step", "77"])

    with bcpformat.open(tmp_path / "a") as opened:
        assert opened.step == 77


def test_the_metadata_of_modules_is_not_counted_among_the_values_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = OrderedDict(w=np.ones(2), n=3)
    model._metadata = OrderedDict({"": {"version": 1}, "0": {"version": 2}})  # type: ignore[attr-defined]
    bcpformat.write(tmp_path / "c", {"model": model})

    main(["convert", str(tmp_path / "c"), str(tmp_path / "x.safetensors"), "--below", "model"])

    left_out = capsys.readouterr().out.partition("left out:\n")[2]
    assert left_out == "  1 x int\n  module metadata: _metadata of 1 OrderedDict\n"


def test_damage_is_not_converted(
    location: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (location / "data").iterdir()
    data = bytearray(path.read_bytes())
    data[8192] ^= 1
    path.write_bytes(data)

    assert main(["convert", str(location), str(tmp_path / "a")]) == 2

    assert "E_BLOCK_CHECKSUM" in capsys.readouterr().err
    assert not (tmp_path / "a" / "manifest.bcp").exists()


def test_a_checkpoint_is_never_overwritten(
    location: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"w": np.ones(1)}, tmp_path / "x.safetensors")

    assert main(["convert", str(tmp_path / "x.safetensors"), str(location)]) == 2

    assert "E_EXISTS" in capsys.readouterr().err
    assert bcpformat.validate(location).ok


@pytest.mark.parametrize(
    "words",
    [
        ["x.safetensors", "y.safetensors"],
        ["x.safetensors", "y", "--names", "w"],
        ["x.safetensors", "y", "--max-shard-size", "1GB", "--to", "checkpoint"],
        ["c", "y", "--to", "safetensors-shards"],
        ["c", "y.safetensors", "--step", "3"],
        ["c", "y.safetensors", "--codec", "zstd"],
        ["c", "y.safetensors", "--below", "nobody"],
        ["c", "y.safetensors", "--names", "nobody"],
        ["c", "y", "--max-shard-size", "many"],
        ["c", "y", "--level", "99"],
        ["nobody", "y"],
        ["text", "y"],
        ["empty", "y"],
    ],
)
def test_a_call_that_makes_no_sense_is_refused_and_writes_nothing(
    location: Path, tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_file({"w": np.ones(1)}, "x.safetensors")
    Path("text").write_text("hello, this is a text")
    Path("empty").mkdir()

    assert main(["convert", *words]) == 2

    assert not Path(words[1]).exists()


def test_a_file_without_a_known_suffix_is_told_by_its_first_bytes(
    location: Path, tmp_path: Path
) -> None:
    save_file({"w": np.ones(1)}, tmp_path / "blob")

    assert main(["convert", str(tmp_path / "blob"), str(tmp_path / "a")]) == 0


def test_the_kind_of_the_target_can_be_told(location: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "plain")

    main(["convert", str(location), out, "--to", "safetensors", "--names", "model/w"])

    assert main(["convert", out, str(tmp_path / "a")]) == 0
