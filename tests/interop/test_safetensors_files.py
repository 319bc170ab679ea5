from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import bcpformat
from bcpformat import ErrorCode, InvalidArgumentError
from bcpformat.cli import main
from bcpformat.errors import FormatError
from bcpformat.interop.safetensors_shards import open_shards, parse_size, split_into_shards

DTYPES = {
    "BOOL": np.bool_, "I8": np.int8, "U8": np.uint8, "I16": np.int16, "U16": np.uint16,
    "F16": np.float16, "I32": np.int32, "U32": np.uint32, "F32": np.float32, "C64": np.complex64,
    "F64": np.float64, "I64": np.int64, "U64": np.uint64, "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz, "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu, "F4": ml_dtypes.float4_e2m1fn,
}  # fmt: skip


def raw_tensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Return what the safetensors library finds in a file, as bits."""
    return {
        name: (row["dtype"], row["shape"], bytes(row["data"]))
        for name, row in safetensors.deserialize(path.read_bytes())
    }


@pytest.fixture
def everything() -> dict[str, Any]:
    random = np.random.default_rng(1)
    state = {}
    for name, kind in DTYPES.items():
        bits = random.integers(0, 2 if name == "BOOL" else 16, (3, 8), np.uint8)
        item = np.dtype(kind).itemsize
        state[name] = np.repeat(bits, item, axis=1).view(kind)
    return state


def test_every_data_type_goes_to_safetensors_and_back_bit_by_bit(
    tmp_path: Path, everything: dict[str, Any]
) -> None:
    bcpformat.write(tmp_path / "a", everything)
    out = tmp_path / "x.safetensors"

    assert main(["convert", str(tmp_path / "a"), str(out)]) == 0
    assert main(["convert", str(out), str(tmp_path / "b")]) == 0

    found = raw_tensors(out)
    assert {n: (d, s) for n, (d, s, _) in found.items()} == {n: (n, [3, 8]) for n in DTYPES}
    for name, array in everything.items():
        if name != "F4":
            assert found[name][2] == array.tobytes()
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0


def test_a_file_of_the_library_is_imported_and_written_back_byte_by_byte(tmp_path: Path) -> None:
    state = {"z": np.ones((2, 2), np.float32), "a/b": np.arange(3), "e": np.zeros((0, 4))}
    source = tmp_path / "x.safetensors"
    save_file(state, source, metadata={"format": "pt", "note": "\u00fc"})

    assert main(["convert", str(source), str(tmp_path / "c")]) == 0
    assert main(["convert", str(tmp_path / "c"), str(tmp_path / "y.safetensors")]) == 0

    with bcpformat.open(tmp_path / "c") as opened:
        assert dict(opened.user) == {"format": "pt", "note": "\u00fc"}
    with safe_open(tmp_path / "y.safetensors", "numpy") as back:
        assert back.metadata() == {"format": "pt", "note": "\u00fc"}
    assert raw_tensors(tmp_path / "y.safetensors") == raw_tensors(source)


@pytest.mark.torch
def test_imported_tensors_are_torch_tensors_where_there_is_torch(tmp_path: Path) -> None:
    import torch

    save_file({"w": np.ones(3, np.float32)}, tmp_path / "x.safetensors")
    main(["convert", str(tmp_path / "x.safetensors"), str(tmp_path / "c")])

    assert torch.equal(bcpformat.read(tmp_path / "c")["w"], torch.ones(3))


def test_tied_tensors_are_written_once_noted_and_restored(tmp_path: Path) -> None:
    w = np.ones(3)
    bcpformat.write(tmp_path / "a", {"w": w, "tied": w})
    out = tmp_path / "x.safetensors"

    main(["convert", str(tmp_path / "a"), str(out)])
    main(["convert", str(out), str(tmp_path / "b")])

    assert list(load_file(out)) == ["w"]
    with safe_open(out, "numpy") as file:
        assert json.loads(file.metadata()["bcpformat.aliases"]) == {"tied": "w"}
    with bcpformat.open(tmp_path / "b") as opened:
        assert opened.manifest.tensors.aliases == {0: ("tied",)}
        assert "bcpformat.aliases" not in opened.user


@pytest.mark.parametrize("aliases", ['{"x": "nobody"}', '{"w": "w"}'])
def test_a_tie_to_nothing_is_refused(
    tmp_path: Path, aliases: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"w": np.ones(3)}, path, metadata={"bcpformat.aliases": aliases})

    assert main(["convert", str(path), str(tmp_path / "c")]) == 2

    assert "E_INDEX" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["nonsense", "[1]", '{"a": 1}'])
def test_metadata_that_only_looks_like_ties_is_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"w": np.ones(3)}, path, metadata={"bcpformat.aliases": text})

    assert main(["convert", str(path), str(tmp_path / "c")]) == 0

    with bcpformat.open(tmp_path / "c") as opened:
        assert opened.user["bcpformat.aliases"] == text


def test_unaligned_data_is_imported(tmp_path: Path) -> None:
    header = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "w": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    text = json.dumps(header).encode()
    data = b"\7" + np.array([1.5, 2.5], np.float32).tobytes()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)

    assert main(["convert", str(tmp_path / "x.safetensors"), str(tmp_path / "c")]) == 0

    with bcpformat.open(tmp_path / "c") as opened:
        assert opened["w"].read().tolist() == [1.5, 2.5]


@pytest.mark.parametrize("kind", [np.complex128, ml_dtypes.int4, ml_dtypes.float6_e2m3fn])
def test_a_data_type_that_safetensors_lacks_is_refused_by_name_and_nothing_is_written(
    tmp_path: Path, kind: type, capsys: pytest.CaptureFixture[str]
) -> None:
    bcpformat.write(tmp_path / "c", {"fine": np.ones(2), "odd": np.ones(2).astype(kind)})
    out = tmp_path / "x.safetensors"

    assert main(["convert", str(tmp_path / "c"), str(out)]) == 2

    error = capsys.readouterr().err
    assert "E_NO_FORM" in error
    assert "'odd'" in error
    assert np.dtype(kind).name in error
    assert not out.exists()


def test_a_tensor_named_like_the_metadata_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bcpformat.write(tmp_path / "c", {"__metadata__": np.ones(2)})

    assert main(["convert", str(tmp_path / "c"), str(tmp_path / "x.safetensors")]) == 2

    assert "'__metadata__'" in capsys.readouterr().err


def test_below_takes_a_container_and_names_its_tensors_from_there(tmp_path: Path) -> None:
    state = {"model": {"a.w": np.ones(1), "b/c": np.ones(2)}, "opt": {"m": np.ones(3)}}
    bcpformat.write(tmp_path / "c", state)
    out = tmp_path / "x.safetensors"

    assert main(["convert", str(tmp_path / "c"), str(out), "--below", "model"]) == 0

    assert sorted(load_file(out)) == ["a.w", "b/c"]


def test_what_is_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = {"w": np.ones(1), "lr": 0.5, "x": np.ones(1), "deep": [1, "a"]}
    options = bcpformat.WriteOptions(user={"n": 1})
    bcpformat.write(tmp_path / "c", state, step=9, options=options)

    main(["convert", str(tmp_path / "c"), str(tmp_path / "x.safetensors"), "--names", "w"])

    left_out = capsys.readouterr().out.partition("left out:")[2]
    for words in ("1 x float", "1 x int", "1 x str", "1 tensors", "step (9)", "'n'"):
        assert words in left_out


def test_nothing_is_ever_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bcpformat.write(tmp_path / "c", {"w": np.ones(1)})
    out = tmp_path / "x.safetensors"
    out.write_text("mine")

    assert main(["convert", str(tmp_path / "c"), str(out)]) == 2

    assert "E_EXISTS" in capsys.readouterr().err
    assert out.read_text() == "mine"


def test_a_failed_export_leaves_nothing_behind(tmp_path: Path) -> None:
    bcpformat.write(tmp_path / "c", {"w": np.ones(1)})
    (path,) = (tmp_path / "c" / "data").iterdir()
    data = bytearray(path.read_bytes())
    data[4100] ^= 1
    path.write_bytes(data)

    assert main(["convert", str(tmp_path / "c"), str(tmp_path / "x.safetensors")]) == 2

    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_shards_have_an_index_and_the_size_asked_for(tmp_path: Path) -> None:
    state = {f"w{i}": np.full((10, 10), i, np.float32) for i in range(5)}
    bcpformat.write(tmp_path / "c", state)
    out = tmp_path / "hf"

    assert main(["convert", str(tmp_path / "c"), str(out), "--max-shard-size", "800"]) == 0

    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 2000
    assert sorted(index["weight_map"]) == sorted(state)
    assert sorted(p.name for p in out.iterdir()) == [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    ]
    for name, file_name in index["weight_map"].items():
        assert np.array_equal(load_file(out / file_name)[name], state[name])
    assert main(["convert", str(out), str(tmp_path / "back")]) == 0
    assert main(["diff", str(tmp_path / "c"), str(tmp_path / "back")]) == 0


def test_what_fits_one_shard_has_no_index(tmp_path: Path) -> None:
    bcpformat.write(tmp_path / "c", {"w": np.ones(2)})

    main(["convert", str(tmp_path / "c"), str(tmp_path / "hf"), "--max-shard-size", "1GB"])

    assert [p.name for p in (tmp_path / "hf").iterdir()] == ["model.safetensors"]


@pytest.fixture
def sharded(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "hf"
    folder.mkdir()
    save_file({"a": np.ones(1)}, folder / "m-1.safetensors")
    save_file({"b": np.ones(1)}, folder / "m-2.safetensors")
    weight_map = {"a": "m-1.safetensors", "b": "m-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    yield folder / "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ("nope", ErrorCode.TYPE),
        ("[" * 100_000, ErrorCode.TYPE),
        ({}, ErrorCode.KEY_MISSING),
        ({"weight_map": {"a": 1}}, ErrorCode.TYPE),
        ({"weight_map": {"a": "../m-1.safetensors"}}, ErrorCode.FILE_NAME),
        ({"weight_map": {"a": "/etc/passwd"}}, ErrorCode.FILE_NAME),
        ({"weight_map": {"a": ".."}}, ErrorCode.FILE_NAME),
        ({"weight_map": {"a": "m-2.safetensors", "b": "m-2.safetensors"}}, ErrorCode.INDEX),
        ({"weight_map": {"a": "m-1.safetensors", "c": "m-1.safetensors"}}, ErrorCode.INDEX),
    ],
)
def test_a_hostile_index_is_refused(sharded: Path, document: object, code: ErrorCode) -> None:
    sharded.write_text(document if isinstance(document, str) else json.dumps(document))

    with pytest.raises(FormatError) as caught:
        open_shards(str(sharded))

    assert caught.value.code is code


def test_a_missing_shard_is_an_error_that_names_it(
    sharded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (sharded.parent / "m-2.safetensors").unlink()

    assert main(["convert", str(sharded.parent), str(tmp_path / "c")]) == 2

    error = capsys.readouterr().err
    assert "E_FILE_MISSING" in error
    assert "m-2.safetensors" in error


@pytest.mark.parametrize("text", ["", "5XB", "GB", "-1", "0", "nan", "inf", "1e400"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_size(text)


def test_no_tensors_make_one_shard() -> None:
    assert split_into_shards([], max_bytes=1) == [[]]
