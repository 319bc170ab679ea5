"""Models that transformers wrote, judged by the truth beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors

import bcpformat
from bcpformat.cli import main

SHARDED = ("hf-llama-f32-sharded", "hf-llama-tied-bf16-sharded", "hf-gpt2-tied-fp16-sharded")


def truth(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return data type, shape and bytes by name, without the prefix of the fixture."""
    return {
        name.removeprefix("model/"): (row["dtype"], tuple(row["shape"]), bytes(row["data"]))
        for name, row in safetensors.deserialize(path.read_bytes())
    }


def found(location: Path) -> dict[str, tuple[tuple[int, ...], bytes]]:
    with bcpformat.open(location) as opened:
        manifest = opened.manifest
        keys = {name: name.replace("%2F", "/") for name in opened}
        assert manifest.tensors.names
        return {keys[n]: (opened[n].shape, opened[n].read().tobytes()) for n in opened}


@pytest.mark.parametrize("name", SHARDED)
def test_a_sharded_model_is_imported_bit_by_bit(
    name: str, fixtures_dir: Path, tmp_path: Path
) -> None:
    expected = truth(fixtures_dir / name / "truth.safetensors")
    tied = {
        b.removeprefix("model/")
        for _, b in json.loads((fixtures_dir / name / "truth.json").read_text())["aliases"]
    }

    assert main(["convert", str(fixtures_dir / name / "checkpoint"), str(tmp_path / "c")]) == 0

    got = found(tmp_path / "c")
    assert got == {n: row[1:] for n, row in expected.items() if n not in tied}
    assert bcpformat.validate(tmp_path / "c").ok


@pytest.mark.parametrize("name", SHARDED)
def test_a_sharded_model_goes_out_in_the_same_shape(
    name: str, fixtures_dir: Path, tmp_path: Path
) -> None:
    source = fixtures_dir / name / "checkpoint"
    index = json.loads((source / "model.safetensors.index.json").read_text())
    main(["convert", str(source), str(tmp_path / "c"), "--codec", "planes-zstd"])

    status = main(
        ["convert", str(tmp_path / "c"), str(tmp_path / "hf"), "--max-shard-size", "50KB"]
    )

    assert status == 0
    back = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert back["metadata"]["total_size"] == index["metadata"]["total_size"]
    assert sorted(back["weight_map"]) == sorted(index["weight_map"])
    expected = truth(fixtures_dir / name / "truth.safetensors")
    for file_name in set(back["weight_map"].values()):
        for tensor, row in truth(tmp_path / "hf" / file_name).items():
            assert row == expected[tensor]


def test_a_lora_adapter_is_imported(fixtures_dir: Path, tmp_path: Path) -> None:
    source = fixtures_dir / "hf-peft-lora" / "checkpoint"

    assert main(["convert", str(source), str(tmp_path / "c")]) == 0
    assert main(["convert", str(tmp_path / "c"), str(tmp_path / "x.safetensors")]) == 0

    assert truth(tmp_path / "x.safetensors") == truth(source / "adapter_model.safetensors")


@pytest.mark.torch
@pytest.mark.parametrize("part", ["pytorch_model.bin", "sharded"])
def test_a_model_of_torch_save_is_imported_with_its_ties(
    part: str, fixtures_dir: Path, tmp_path: Path
) -> None:
    source = fixtures_dir / "hf-gpt2-bin"

    assert main(["convert", str(source / "checkpoint" / part), str(tmp_path / "c")]) == 0

    expected = truth(source / "truth.safetensors")
    assert found(tmp_path / "c") == {n: row[1:] for n, row in expected.items()}
    with bcpformat.open(tmp_path / "c") as opened:
        (names,) = opened.manifest.tensors.aliases.values()
    assert names == ("lm_head.weight",)
