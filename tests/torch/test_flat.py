"""Flat buffers: what ranks of FSDP1, ZeRO and Megatron have of each parameter, as it lies."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

import bcpformat
from bcpformat import MemoryStore, Shard
from bcpformat.engine.coordinator import Coordinator
from bcpformat.errors import DisagreementError, ErrorCode, InvalidArgumentError
from bcpformat.testing.ranks import Ranks, run_ranks
from bcpformat.torch import InBuffer, flat_shards, fsdp1_state, get_state, set_state
from tests.torch.fixture_states import fsdp1_ranks, naive_ranks, truth, zero_ranks
from tests.torch.meshes import as_rank
from tests.torch.nets import Net, fsdp1, optimizer_of, piece

pytestmark = pytest.mark.torch

State = dict[str, Any]
MODES = pytest.mark.parametrize("orig", [True, False], ids=["original", "flat"])


def save(states: list[State]) -> MemoryStore:
    """Write what each rank has, together."""
    store = MemoryStore()

    def act(ranks: Coordinator) -> None:
        bcpformat.write(store, states[ranks.rank], group=ranks)

    run_ranks(len(states), act)
    return store


def load(store: MemoryStore, states: list[State]) -> None:
    """Read into what each rank has, together."""

    def act(ranks: Coordinator) -> None:
        bcpformat.read(store, into=states[ranks.rank], group=ranks)

    run_ranks(len(states), act)


# ---- the arithmetic ------------------------------------------------------------------------------


@st.composite
def buffers(draw: st.DrawFn) -> tuple[list[InBuffer], int]:
    """Draw parameters with gaps between them, and the length of their buffer."""
    found, offset = [], 0
    for number in range(draw(st.integers(0, 5))):
        offset += draw(st.integers(0, 3))
        shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
        found.append(InBuffer(f"p{number}", shape, offset))
        offset = found[-1].end
    return found, offset + draw(st.integers(0, 3))


@pytest.mark.slow
@given(buffers(), st.integers(1, 6))
def test_ranks_have_every_element_of_every_parameter_once(
    drawn: tuple[list[InBuffer], int], ranks: int
) -> None:
    params, length = drawn
    share = -(-length // ranks)
    buffer = np.arange(share * ranks)
    found: dict[str, list[Any]] = {part.name: [] for part in params}
    for rank in range(ranks):
        held = (rank * share, (rank + 1) * share)
        for name, shard in flat_shards(held, params, buffer[slice(*held)]).items():
            start = shard.region.start
            found[name] += enumerate(shard.data.flat, start)

    for part in params:
        places = [(i, part.offset + i) for i in range(math.prod(part.shape))]
        assert sorted((int(i), int(value)) for i, value in found[part.name]) == places


def test_t32_a_flat_partition_of_13_elements_is_read_by_another_number_of_ranks() -> None:
    params = [("w", (3, 4), 0), ("b", (1,), 12)]
    whole = np.arange(13, dtype=np.float32)

    def partitions(ranks: int, fill: np.ndarray[Any, Any]) -> list[State]:
        share = -(-13 // ranks)
        padded = np.full(share * ranks, -1, np.float32)
        padded[:13] = fill
        cut = [(r * share, (r + 1) * share) for r in range(ranks)]
        return [flat_shards(held, params, padded[slice(*held)]) for held in cut]

    store = save(partitions(4, whole))
    states = partitions(3, np.zeros(13, np.float32))
    load(store, states)

    with bcpformat.open(store) as saved:
        assert sum(view.nbytes for view in saved.values()) == 13 * 4
        assert saved["w"].read().ravel().tolist() + saved["b"].read().tolist() == list(range(13))
    read = [float(v) for state in states for shard in state.values() for v in shard.data.flat]
    assert read == list(range(13))


def test_a_range_within_the_box_of_a_tensor_parallel_rank_lies_in_that_box() -> None:
    box = InBuffer("w", (4, 3), 5, global_shape=(4, 6), origin=(0, 3))

    found = flat_shards((7, 12), [box], np.arange(7, 12))["w"]

    assert found.global_shape == (4, 6)
    assert (found.region.box.origin, found.region.box.shape) == ((0, 3), (4, 3))
    assert (found.region.start, found.region.count) == (2, 5)


def test_a_parameter_without_elements_is_there_on_every_rank() -> None:
    states = [
        flat_shards((r, r + 1), [("none", (0, 5), 1), ("w", (2,), 0)], np.ones(1)) for r in (0, 1)
    ]

    whole = bcpformat.read(save(states), as_numpy=True)

    assert whole["none"].shape == (0, 5)


def test_shards_are_views_of_the_data() -> None:
    data = torch.zeros(4)

    for shard in flat_shards((4, 8), [("a", (2, 3), 0), ("b", (1, 2), 6)], data).values():
        shard.data.fill_(1)

    assert data.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("held", "params"),
    [
        ((0, 5), [("w", (4,), 0)]),
        ((0, 4), [("a", (3,), 0), ("b", (3,), 2)]),
        ((0, 4), [("a", (4,), 0), ("b", (1,), 1), ("c", (1,), 2)]),
        ((0, 4), [("a", (2,), 0), ("a", (2,), 2)]),
    ],
    ids=["data is too short", "overlap", "within another", "one name twice"],
)
def test_buffers_that_cannot_be_are_refused(held: tuple[int, int], params: list[Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        flat_shards(held, params, np.zeros(4))


# ---- what other frameworks held ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch-fsdp1-flat-noorig-3r", "torch-fsdp1-flat-orig-2r"])
def test_what_ranks_of_fsdp1_held_is_the_whole_state(name: str, fixtures_dir: Path) -> None:
    expected = {n: v for n, v in truth(fixtures_dir / name).items() if not n.startswith("flat/")}

    found = bcpformat.read(save(fsdp1_ranks(fixtures_dir / name)))

    assert found.keys() == expected.keys()
    assert [n for n, value in found.items() if not torch.equal(value, expected[n])] == []


@pytest.mark.parametrize(
    "name",
    [
        "deepspeed-zero1-bf16-2r",
        "deepspeed-zero1-bf16optimizer-2r",
        "deepspeed-zero1-fp32-3r",
        "deepspeed-zero2-bf16-tied-3r",
        "deepspeed-zero2-fp32-frozen-2r",
        "deepspeed-zero3-bf16-3r",
        "deepspeed-zero3-fp32-frozen-2r",
    ],
)
def test_what_ranks_of_zero_held_is_the_state_of_the_optimizer(
    name: str, fixtures_dir: Path
) -> None:
    whole = truth(fixtures_dir / name)
    expected = {n for n in whole if n.startswith(("fp32/", "optimizer/"))}

    found = bcpformat.read(save(zero_ranks(fixtures_dir / name)))

    assert expected <= found.keys()
    assert [n for n, value in found.items() if not torch.equal(value, whole[n])] == []


def test_pieces_given_as_whole_tensors_of_one_name_are_refused(fixtures_dir: Path) -> None:
    states = naive_ranks(fixtures_dir / "torch-fsdp1-flat-orig-2r")
    store = MemoryStore()

    def act(ranks: Coordinator) -> None:
        bcpformat.write(store, states[ranks.rank], group=ranks)

    errors = [outcome.error for outcome in Ranks(2).outcomes(act)]

    assert {type(error) for error in errors} == {DisagreementError}
    assert "(2304,)" in str(errors[0]) and "(0,)" in str(errors[0])
    assert not store.list()


# ---- FSDP1 ---------------------------------------------------------------------------------------


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Make a step with gradients of ones, as no collective works here."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.numel() else None
    optimizer.step()
    optimizer.zero_grad()


def painted(tensors: dict[str, torch.Tensor], shards: list[tuple[str, Shard]]) -> dict[str, Any]:
    """Return how often each element is held, where what is held is right."""
    counts = {name: torch.zeros(value.numel()) for name, value in tensors.items()}
    for name, shard in shards:
        region = shard.region
        own = piece(torch.arange(tensors[name].numel()).reshape(tensors[name].shape), region)
        right = shard.data.reshape(-1) == piece(tensors[name], region)
        counts[name][own] += right
    return counts


@MODES
@pytest.mark.parametrize("ranks", [3, 4, pytest.param(64, marks=pytest.mark.slow)])
def test_ranks_of_fsdp1_have_every_element_of_every_parameter(orig: bool, ranks: int) -> None:  # noqa: FBT001
    expected = {name: p.detach() for name, p in Net(1).named_parameters(remove_duplicate=False)}
    found = []
    for rank in range(ranks):
        with as_rank(rank, of=ranks):
            state = fsdp1_state(fsdp1(1, orig=orig))["model"]
        found += [(name, value) for name, value in state.items() if isinstance(value, Shard)]

    counts = painted(expected, found)
    assert {name for name, count in counts.items() if not bool((count == 1).all())} == set()


@MODES
def test_ranks_of_fsdp1_have_moments_where_they_have_parameters(orig: bool) -> None:  # noqa: FBT001
    for rank in range(3):
        with as_rank(rank, of=3):
            model = fsdp1(1, orig=orig)
            optimizer = optimizer_of(model, 0.1)
            step(model, optimizer)
            state = fsdp1_state(model, optimizer)
        held = {n: v.region for n, v in state["model"].items() if isinstance(v, Shard)}
        held.pop("head.weight", None)  # tied
        kept = state["optim"]["state"]

        assert {n: kept[n]["exp_avg"].region for n in kept if "exp_avg" in kept[n]} == held
        assert {float(each["step"]) for each in kept.values()} == {1.0}
        assert set(state["optim"]["param_groups"]) == {n for n, _ in Net(1).named_parameters()}


@MODES
def test_a_read_fills_what_fsdp1_and_its_optimizer_have(orig: bool) -> None:  # noqa: FBT001
    with as_rank(1, of=3):
        model = fsdp1(1, orig=orig)
        optimizer = optimizer_of(model, 0.1)
        state = get_state(model, optimizer)
        for value in [
            *state["model"].values(),
            *state["optim"]["state"]["blocks.0.up.weight"].values(),
        ]:
            if isinstance(value, Shard):
                value.data.fill_(7)
        set_state(model, optimizer, state)

        assert all((p == 7).all() for p in model.parameters() if orig or p.numel() > 3)
        moments = [kept["exp_avg"] for kept in optimizer.state.values()]
        assert any((moment == 7).any() for moment in moments)


@MODES
def test_a_rank_with_padding_alone_keeps_its_count_of_steps(orig: bool) -> None:  # noqa: FBT001
    with as_rank(63, of=64):
        model = fsdp1(1, orig=orig)
        optimizer = optimizer_of(model, 0.1)
        state = get_state(model, optimizer)
        for kept in state["optim"]["state"].values():
            kept["step"] = torch.tensor(5.0)
        set_state(model, optimizer, state)

        steps = [float(kept["step"]) for kept in optimizer.state.values()]
        assert steps == ([] if orig else [5.0] * 3)


def test_a_flat_parameter_takes_one_count_of_steps_only() -> None:
    with as_rank(0, of=3):
        model = fsdp1(1, orig=False)
        optimizer = optimizer_of(model, 0.1)
        state = get_state(model, optimizer)
        state["optim"]["state"]["blocks.0.up.weight"]["step"] += 1

        with pytest.raises(InvalidArgumentError, match="use_orig_params=True"):
            set_state(model, optimizer, state)


@MODES
def test_parameters_that_are_summoned_whole_are_refused(orig: bool) -> None:  # noqa: FBT001
    with as_rank(0, of=3):
        model = fsdp1(1, orig=orig)
        with (
            FullyShardedDataParallel.summon_full_params(model),
            pytest.raises(InvalidArgumentError, match="summon_full_params"),
        ):
            fsdp1_state(model)


def test_a_shard_of_another_layout_is_refused() -> None:
    with as_rank(0, of=3):
        state = get_state(fsdp1(1, orig=True))
    with as_rank(0, of=2):
        model = fsdp1(1, orig=True)
        with pytest.raises(InvalidArgumentError) as refused:
            set_state(model, None, state)

    assert refused.value.code is ErrorCode.MISMATCH


def test_parameters_that_are_not_row_major_are_refused() -> None:
    layer = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
    with as_rank(0, of=2):
        model = FullyShardedDataParallel(layer, device_id=torch.device("cpu"))
        with pytest.raises(InvalidArgumentError, match="'weight'") as refused:
            fsdp1_state(model)

    assert refused.value.code is ErrorCode.NO_FORM


def test_parameters_outside_the_flat_buffers_keep_their_own_form() -> None:
    net = Net(1)
    with as_rank(1, of=2):
        ignored = [net.blocks[0]]
        model = FullyShardedDataParallel(
            net, ignored_modules=ignored, device_id=torch.device("cpu"), use_orig_params=True
        )
        optimizer = optimizer_of(model, 0.1)
        state = get_state(model, optimizer)

        assert state["model"]["blocks.0.up.weight"].shape == (6, 5)
        assert state["optim"]["state"]["blocks.0.up.weight"]["exp_avg"].shape == (6, 5)
        assert isinstance(state["model"]["blocks.1.up.weight"], Shard)
