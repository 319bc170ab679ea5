"""Whatever is written comes back, bit by bit and type by type; and a stranger's reader agrees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bcpformat
from bcpformat import MemoryStore, WriteOptions
from bcpformat.model.dtypes import DType
from tests.api.states import same, states
from tests.oracle.bcp_oracle import read_checkpoint

CODECS = ["raw", "zstd", "planes-zstd"]


@given(states, st.sampled_from(CODECS))
@settings(max_examples=150)
def test_any_state_comes_back_as_it_was(state: object, codec: str) -> None:
    store = MemoryStore()
    bcpformat.write(store, state, options=WriteOptions(codec=codec))

    back = bcpformat.read(store, as_numpy=True)

    assert same(state, back)
    report = bcpformat.validate(store)
    assert report.ok, report.problems


@given(states, st.sampled_from(CODECS))
@settings(max_examples=40)
def test_a_reader_written_from_the_spec_alone_reads_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, state: object, codec: str
) -> None:
    location = tmp_path_factory.mktemp("oracle") / "c"
    bcpformat.write(location, state, options=WriteOptions(codec=codec))

    found = read_checkpoint(str(location))

    with bcpformat.open(location) as ckpt:
        names = ckpt.manifest.tensors.names
        assert list(found["tensors"]) == list(names)
        for name in names:
            dtype, shape, data = found["tensors"][name]
            view = ckpt[name]
            assert (dtype, tuple(shape)) == (view.dtype, view.shape)
            array = view.read()
            if DType.named(dtype).bits >= 8:
                assert array.tobytes() == bytes(data)
        assert found["state"] == ckpt.manifest.state


@pytest.mark.parametrize("codec", CODECS)
def test_every_bfloat16_and_float8_pattern_survives(tmp_path: Path, codec: str) -> None:
    state = {
        "bf16": torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16),
        **{
            name: torch.arange(256).to(torch.uint8).view(getattr(torch, name))
            for name in (
                "float8_e4m3fn",
                "float8_e5m2",
                "float8_e4m3fnuz",
                "float8_e5m2fnuz",
                "float8_e8m0fnu",
            )
        },
    }
    bcpformat.write(tmp_path / "c", state, options=WriteOptions(codec=codec))

    back = bcpformat.read(tmp_path / "c")

    for name, value in state.items():
        assert back[name].dtype == value.dtype
        assert torch.equal(back[name].view(torch.uint8), value.view(torch.uint8)), name


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rows", [1, 255, 256, 257, 3000])
def test_tensors_larger_than_a_block_come_back(codec: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    state = {
        "noise": rng.integers(0, 2**16, (rows, 1024), dtype=np.uint16),
        "zeros": np.zeros((rows, 1024), np.float32),
        "mixed": np.where(rng.random((rows, 256)) < 0.5, 0, rng.random((rows, 256))),
    }
    store = MemoryStore()
    bcpformat.write(store, state, options=WriteOptions(codec=codec))

    assert same(state, bcpformat.read(store, as_numpy=True))
    assert bcpformat.validate(store).ok


def test_parameters_and_gradients_flags_come_back(tmp_path: Path) -> None:
    w = torch.nn.Parameter(torch.ones(3))
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    leaf = torch.zeros(4, requires_grad=True)
    state = {"w": w, "frozen": frozen, "leaf": leaf, "data": w.data, "plain": torch.ones(1)}
    bcpformat.write(tmp_path / "c", state)

    back = bcpformat.read(tmp_path / "c")

    assert isinstance(back["w"], torch.nn.Parameter)
    assert back["w"].requires_grad
    assert isinstance(back["frozen"], torch.nn.Parameter)
    assert not back["frozen"].requires_grad
    assert back["leaf"].requires_grad
    assert not isinstance(back["leaf"], torch.nn.Parameter)
    assert type(back["plain"]) is torch.Tensor
    assert not back["plain"].requires_grad
    assert back["w"].data_ptr() == back["data"].data_ptr()


def test_torch_values_come_back_as_torch_values(tmp_path: Path) -> None:
    state = {
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "device": torch.device("cuda:1"),
        "rng": bcpformat.PerRank(torch.get_rng_state()),
    }
    bcpformat.write(tmp_path / "c", state)

    back = bcpformat.read(tmp_path / "c")

    assert back["size"] == torch.Size([2, 3])
    assert type(back["size"]) is torch.Size
    assert back["dtype"] is torch.bfloat16
    assert back["device"] == torch.device("cuda:1")
    assert torch.equal(back["rng"][0], torch.get_rng_state())


def test_a_module_and_an_optimizer_go_on_from_where_they_were(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    bcpformat.write(tmp_path / "c", state)

    other = torch.nn.Linear(4, 3)
    restored = torch.optim.AdamW(other.parameters())
    back = bcpformat.read(tmp_path / "c")
    other.load_state_dict(back["model"])
    restored.load_state_dict(back["optimizer"])

    assert back["model"]._metadata == state["model"]._metadata
    assert torch.equal(other.weight, model.weight)
    moments = restored.state_dict()["state"][0]
    assert torch.equal(moments["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


def test_what_has_no_form_is_refused_with_its_path(tmp_path: Path) -> None:
    for value, words in (
        (object(), "object"),
        (lambda: 0, "function"),
        (np.array(["a"]), "array"),
        (torch.ones(3).to_sparse(), "sparse"),
        (torch.ones(2, device="meta"), "meta"),
        (np.longdouble(1), "longdouble|float128"),
    ):
        with pytest.raises(bcpformat.InvalidArgumentError, match=words) as caught:
            bcpformat.write(tmp_path / "c", {"model": [value]})
        assert "model/0" in str(caught.value)
        assert caught.value.code is bcpformat.ErrorCode.NO_FORM
    assert not (tmp_path / "c" / "manifest.bcp").exists()


def test_options_that_are_not_built_yet_raise() -> None:
    for options in (
        {"codec": "auto"},
        {"capture": "lazy"},
        {"arena_bytes": 2**20},
    ):
        with pytest.raises(bcpformat.InvalidArgumentError) as caught:
            WriteOptions(**options)
        assert caught.value.code is bcpformat.ErrorCode.NOT_BUILT
