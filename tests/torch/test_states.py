"""The state of models and optimizers: by names alone, whole, exact, and for any other layout."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adafactor, AdamW, Optimizer, RMSprop

import bcpformat
from bcpformat import MemoryStore
from bcpformat.engine.coordinator import Coordinator
from bcpformat.errors import ErrorCode, InvalidArgumentError, MismatchError
from bcpformat.testing.ranks import run_ranks
from bcpformat.torch import get_state, set_state
from tests.distributed.processes import Job, Outcome, spawn, values
from tests.torch.meshes import as_rank
from tests.torch.nets import MODELS, Net, differences, leaves, optimizer_of, train

pytestmark = pytest.mark.torch


def trained(seed: int = 1, lr: float = 0.125) -> tuple[Net, Optimizer]:
    net = Net(seed)
    optimizer = optimizer_of(net, lr)
    train(net, optimizer, seed=seed)
    return net, optimizer


def restore(store: MemoryStore, model: Any, optimizer: Any, **read: Any) -> None:
    """Read a checkpoint into a model and its optimizers."""
    with bcpformat.open(store) as saved:
        state = get_state(model, optimizer, saved=saved)
    bcpformat.read(store, into=state, **read)
    set_state(model, optimizer, state)


def states_of(*optimizers: Optimizer) -> list[tuple[str, Any]]:
    """Return what optimizers say of themselves, tensors copied."""
    return [
        (f"{number}/{name}", value)
        for number, optimizer in enumerate(optimizers)
        for name, value in leaves(copy.deepcopy(optimizer.state_dict()))
    ]


# ---- what is in a state --------------------------------------------------------------------------


def test_a_state_has_names_and_no_numbers() -> None:
    net, optimizer = trained()

    state = get_state(net, optimizer)

    assert list(state) == ["model", "optim"]
    assert set(state["model"]) == {*Net(1).state_dict()}
    assert set(state["optim"]) == {"state", "param_groups"}
    named = {name for name, _ in net.named_parameters()}
    assert set(state["optim"]["state"]) == set(state["optim"]["param_groups"]) == named
    assert state["optim"]["param_groups"]["blocks.0.up.bias"]["betas"] == (0.8, 0.9)


def test_a_state_has_the_tensors_themselves() -> None:
    net, optimizer = trained()

    state = get_state(net, optimizer)

    weight = net.blocks[0].up.weight
    assert state["model"]["blocks.0.up.weight"].data_ptr() == weight.data_ptr()
    assert (
        state["optim"]["state"]["blocks.0.up.weight"]["exp_avg"]
        is (optimizer.state[weight]["exp_avg"])
    )


def around(net: Net) -> nn.Module:
    return DistributedDataParallel(torch.compile(net))


def within(net: Net) -> nn.Module:
    net.blocks[0] = torch.compile(net.blocks[0])
    net.blocks[1] = checkpoint_wrapper(net.blocks[1])
    return DistributedDataParallel(net)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [around, within])
def test_wrappers_leave_no_trace_in_names(wrap: Callable[[Net], nn.Module]) -> None:
    net, optimizer = trained()
    expected = list(leaves(get_state(net, optimizer)))
    other = Net(2)
    again = optimizer_of(other, 0.5)
    train(other, again, seed=2)

    with as_rank(0, of=2):
        wrapped = wrap(other)
        set_state(wrapped, again, get_state(net, optimizer))
        found = list(leaves(get_state(wrapped, again)))

    assert differences(found, expected) == []


def test_a_model_may_have_no_parameters() -> None:
    state = get_state(nn.ReLU())
    set_state(nn.ReLU(), None, state)

    assert state == {"model": {}}


# ---- from one job to the next --------------------------------------------------------------------


def test_a_new_job_goes_on_where_the_old_one_was() -> None:
    net, optimizer = trained()
    store = MemoryStore()
    bcpformat.write(store, get_state(net, optimizer))
    other = Net(2)
    again = optimizer_of(other, 0.5)

    state = get_state(other, again)
    bcpformat.read(store, into=state)
    set_state(other, again, state)
    for seed in (5, 6):
        train(net, optimizer, seed=seed)
        train(other, again, seed=seed)

    assert differences(leaves(get_state(net, optimizer)), leaves(get_state(other, again))) == []
    assert other.head.weight is other.embed.weight and other.seen == 1


def test_t45_what_has_state_keeps_it_and_what_is_absent_stays_absent() -> None:
    def job() -> tuple[nn.Module, Optimizer]:
        torch.manual_seed(0)
        net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))
        groups = [
            {"params": list(net[0].parameters()), "lr": 0.1},
            {"params": [], "lr": 0.2, "betas": (0.5, 0.6)},
            {"params": [*net[1].parameters(), *net[2].parameters()], "lr": 0.3},
        ]
        return net, AdamW(groups)

    net, optimizer = job()
    net[2].bias.grad = None
    for frozen_now in (False, True):
        net[0].weight.requires_grad_(not frozen_now)  # its state stays in the optimizer
        net(torch.ones(2, 3)).sum().backward()
        net[2].bias.grad = None  # it can be trained, but never is
        optimizer.step()
        optimizer.zero_grad()
    for group, lr in zip(optimizer.param_groups, (0.01, 0.02, 0.03), strict=True):
        group["lr"] = lr  # as a scheduler does
    store = MemoryStore()
    bcpformat.write(store, get_state(net, optimizer))

    other, again = job()
    other[0].weight.requires_grad_(False)
    restore(store, other, again)

    assert [len(optimizer.state[p]) for p in net.parameters()] == [3, 3, 3, 3, 3, 0]
    assert differences(states_of(again), states_of(optimizer)) == []
    assert list(again.state_dict()["state"]) == [0, 1, 2, 3, 4]


def test_a_setting_that_only_one_of_the_jobs_has_makes_no_difference() -> None:
    net, optimizer = trained()
    optimizer.param_groups[0]["initial_lr"] = 0.25
    del optimizer.param_groups[0]["fused"]
    store = MemoryStore()
    bcpformat.write(store, {"job": get_state(net, optimizer)})
    other = Net(2)
    again = optimizer_of(other, 0.5)

    with bcpformat.open(store) as saved:
        state = get_state(other, again, saved=saved, under="job")
    bcpformat.read(store, into={"job": state})
    set_state(other, again, state)

    group = again.param_groups[0]
    assert (group["lr"], group["initial_lr"], group["fused"]) == (0.125, 0.25, None)


def test_parameters_that_the_checkpoint_lacks_are_reported() -> None:
    store = MemoryStore()
    bcpformat.write(store, get_state(*trained()))
    larger = nn.ModuleDict({"embed": nn.Embedding(7, 5), "new": nn.Linear(2, 2)})

    with pytest.raises(MismatchError) as refused:
        restore(store, larger, optimizer_of(larger, 0.5), filter="*new*")

    assert "optim/state/new.weight/exp_avg" in {p.where for p in refused.value.problems}


def test_parameters_on_the_meta_device_are_replaced() -> None:
    net, _ = trained()
    store = MemoryStore()
    bcpformat.write(store, get_state(net))
    with torch.device("meta"):
        other = Net(2)

    restore(store, other, None)

    assert other.head.weight.device.type == "cpu"
    assert isinstance(other.blocks[0].up.weight, nn.Parameter)
    assert differences(leaves(get_state(net)), leaves(get_state(other))) == []


# ---- an optimizer that has made no step ----------------------------------------------------------

OPTIMIZERS = {
    "AdamW": lambda p: AdamW(p, lr=0.1, weight_decay=0.5),
    "AdamW, amsgrad": lambda p: AdamW(p, lr=torch.tensor(0.1), amsgrad=True),
    "SGD": lambda p: SGD(p, lr=0.1, weight_decay=0.5),
    "SGD, momentum": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "RMSprop": lambda p: RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "Adafactor": lambda p: Adafactor(p, lr=0.1),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_state_to_read_into_changes_nothing(kind: str) -> None:
    net, same = Net(1), Net(1)
    optimizer, untouched = (OPTIMIZERS[kind](model.parameters()) for model in (net, same))
    called: list[object] = []
    optimizer.register_step_pre_hook(lambda *args: called.append(args))
    before = states_of(optimizer)

    state = get_state(net, optimizer)

    assert differences(states_of(optimizer), before) == [] and not called
    assert all(parameter.grad is None for parameter in net.parameters())
    set_state(net, optimizer, state)  # nothing was read, so it still is a new optimizer
    for seed in (5, 6):
        train(net, optimizer, seed=seed)
        train(same, untouched, seed=seed)
    assert differences(leaves(net.state_dict()), leaves(same.state_dict())) == []


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_state_to_read_into_has_the_form_of_a_trained_one(kind: str) -> None:
    net, other = Net(1), Net(2)
    optimizer, again = (OPTIMIZERS[kind](model.parameters()) for model in (net, other))
    train(net, optimizer, seed=1)
    store = MemoryStore()
    bcpformat.write(store, get_state(net, optimizer))

    state = get_state(other, again)
    bcpformat.read(store, into=state)
    set_state(other, again, state)

    assert differences(states_of(again), states_of(optimizer)) == []


def test_an_optimizer_whose_first_step_fails_is_named() -> None:
    net = Net(1)

    with pytest.raises(InvalidArgumentError, match="LBFGS"):
        get_state(net, torch.optim.LBFGS(net.parameters()))


def test_tensors_of_another_type_than_the_parameter_stay_what_they_are() -> None:
    class Master(Optimizer):
        """Keeps what it sums in another type than that of the parameter."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 1.0})

        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                if parameter.grad is not None:
                    kept = self.state[parameter]
                    kept.setdefault("sum", torch.zeros_like(parameter, dtype=torch.float64))
                    kept["sum"] += parameter.grad

    def job() -> tuple[nn.Module, Optimizer]:
        net = nn.Linear(2, 1).to(torch.bfloat16)
        return net, Master(net.parameters())

    net, optimizer = job()
    net.weight.grad = torch.ones_like(net.weight)
    net.bias.grad = torch.ones_like(net.bias)
    optimizer.step()
    optimizer.state[net.weight]["sum"] += 2**-40
    store = MemoryStore()
    bcpformat.write(store, get_state(net, optimizer))
    other, again = job()

    restore(store, other, again)

    assert again.state[other.weight]["sum"].tolist() == [[1 + 2**-40] * 2]


def test_tensors_of_an_optimizer_stay_the_same_objects() -> None:
    net = Net(1)
    optimizer = AdamW(net.parameters(), lr=torch.tensor(0.5))
    train(net, optimizer, seed=1)
    store = MemoryStore()
    bcpformat.write(store, get_state(net, optimizer))
    group = optimizer.param_groups[0]
    lr, moment = group["lr"], optimizer.state[net.embed.weight]["exp_avg"]
    lr.fill_(0.25)
    moment.fill_(9)

    restore(store, net, optimizer)

    assert group is optimizer.param_groups[0] or optimizer.param_groups[0]["lr"] is lr
    assert optimizer.state[net.embed.weight]["exp_avg"] is moment
    assert float(lr) == 0.5 and float(moment.max()) < 9


# ---- several optimizers, several ranks -----------------------------------------------------------


def mixed(net: Net) -> list[Optimizer]:
    """Matrices and vectors learn in different ways, the embedding not at all."""
    matrices = [p for n, p in net.named_parameters() if p.ndim == 2 and "embed" not in n]
    vectors = [p for p in net.parameters() if p.ndim == 1]
    return [SGD(matrices, lr=0.5, momentum=0.9), AdamW(vectors, lr=0.25)]


def test_several_optimizers_share_one_state() -> None:
    net, other = Net(1), Net(2)
    optimizers, again = mixed(net), mixed(other)
    for seed in (1, 2):
        for optimizer in optimizers:
            train(net, optimizer, seed=seed)
    store = MemoryStore()
    bcpformat.write(store, get_state(net, optimizers))

    restore(store, other, again)

    assert differences(states_of(*again), states_of(*optimizers)) == []


class Stage(nn.Module):
    """Some layers of a model, under the names that they have in the whole."""

    def __init__(self, layers: list[int], seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        made = {str(i): nn.Linear(2, 2, bias=i % 2 == 0) for i in layers}
        self.layers = nn.ModuleDict(made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = torch.tanh(layer(x))
        return x


def stage_optimizer(stage: nn.Module, lr: float = 0.5) -> Optimizer:
    """Weights and biases are in two groups, of which a stage without biases leaves one empty."""
    weights = [p for p in stage.parameters() if p.ndim == 2]
    biases = [p for p in stage.parameters() if p.ndim == 1]
    groups = [{"params": weights}, {"params": biases, "weight_decay": 0.0}]
    return AdamW(groups, lr=lr)


@pytest.mark.parametrize("stages", [[[0, 1, 2, 3]], [[0], [1, 2, 3]], [[1], [2, 0], [3]]])
def test_stages_of_a_pipeline_are_read_by_other_stages(stages: list[list[int]]) -> None:
    store = MemoryStore()
    expected: dict[int, Any] = {}

    def save(ranks: Coordinator) -> None:
        layers = [[0, 1], [2], [3]][ranks.rank]
        stage = Stage(layers, seed=ranks.rank)
        optimizer = stage_optimizer(stage)
        stage(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = 0.0625
        state = get_state(stage, optimizer)
        expected.update({i: [v for v in leaves(state) if f"layers.{i}." in v[0]] for i in layers})
        bcpformat.write(store, state, group=ranks)

    def load(ranks: Coordinator) -> list[tuple[str, Any]]:
        stage = Stage(stages[ranks.rank], seed=9)
        optimizer = stage_optimizer(stage, lr=1.0)
        restore(store, stage, optimizer, group=ranks)
        assert {group["lr"] for group in optimizer.param_groups if group["params"]} == {0.0625}
        return [v for v in leaves(get_state(stage, optimizer)) if "layers." in v[0]]

    run_ranks(3, save)
    found = [leaf for part in run_ranks(len(stages), load) for leaf in part]

    assert differences(found, [leaf for part in expected.values() for leaf in part]) == []


def test_parts_of_a_model_that_one_rank_has_make_one_state() -> None:
    parts = [Stage([0], seed=1), Stage([3], seed=2)]
    optimizers = [stage_optimizer(part) for part in parts]
    store = MemoryStore()
    bcpformat.write(store, get_state(parts, optimizers))
    whole = Stage([0, 3], seed=3)

    restore(store, whole, stage_optimizer(whole))

    expected = {**parts[0].state_dict(), **parts[1].state_dict()}
    assert differences(leaves(whole.state_dict()), leaves(expected)) == []


def test_parts_that_share_a_name_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"layers\.0\.bias"):
        get_state([Stage([0], seed=1), Stage([0], seed=2)])


# ---- what does not fit ---------------------------------------------------------------------------


def test_a_parameter_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"shape \(2, 3\)"):
        get_state(Net(1), SGD([nn.Parameter(torch.zeros(2, 3))], lr=0.1))


def test_a_parameter_of_two_optimizers_is_refused() -> None:
    net = Net(1)

    with pytest.raises(InvalidArgumentError, match="two groups"):
        get_state(net, [SGD(net.parameters(), lr=0.1), SGD(net.blocks[1].parameters(), lr=0.1)])


def test_state_that_belongs_to_no_parameter_is_refused() -> None:
    net, optimizer = trained()
    optimizer.state["total"] = 7

    with pytest.raises(InvalidArgumentError, match="'total'"):
        get_state(net, optimizer)


def test_settings_that_one_group_cannot_have_are_refused() -> None:
    net, optimizer = trained()
    state = get_state(net, optimizer)
    state["optim"]["param_groups"]["blocks.1.up.bias"]["lr"] = 0.75
    before = states_of(optimizer)

    with pytest.raises(
        InvalidArgumentError, match=r"'lr' was saved as 0\.125 and 0\.75"
    ) as refused:
        set_state(net, optimizer, state)

    assert refused.value.code is ErrorCode.MISMATCH
    assert differences(states_of(optimizer), before) == []


@pytest.mark.parametrize("change", ["lacking", "extra", "extra state", "no optimizer"])
def test_a_state_with_other_names_is_refused(change: str) -> None:
    net, optimizer = trained()
    state = get_state(net, optimizer)
    if change == "lacking":
        del state["model"]["scale"]
    elif change == "extra":
        state["model"]["other"] = torch.zeros(1)
    elif change == "extra state":
        state["optim"]["state"]["other"] = {"step": 1}
    else:
        del state["optim"]

    with pytest.raises(InvalidArgumentError) as refused:
        set_state(net, optimizer, state)

    assert refused.value.code is ErrorCode.MISMATCH


# ---- real ranks ----------------------------------------------------------------------------------

WRITERS = ["plain", "DDP", "FSDP2", "TP", "FSDP1", "FSDP1 flat", "FSDP1 whole"]
READERS = [
    ("plain", "FSDP1 flat", 3),
    ("DDP", "FSDP2", 2),
    ("FSDP2", "TP", 3),
    ("FSDP2", "FSDP1", 2),
    ("TP", "FSDP1 flat", 3),
    ("FSDP1", "FSDP1", 3),
    ("FSDP1", "FSDP1 flat", 2),
    ("FSDP1", "FSDP1 gathered", 2),
    ("FSDP1 flat", "FSDP1", 2),
    ("FSDP1 flat", "FSDP1 flat gathered", 2),
    ("FSDP1 flat", "FSDP2", 3),
    ("FSDP1 whole", "FSDP1 flat whole", 2),
]
"""Layout of three ranks that write, layout that reads, and by how many."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Outcome]]]:
    """Three processes do all jobs."""
    from tests.torch import state_jobs as do

    directory = tmp_path_factory.mktemp("states")
    jobs = {layout: Job(do.write, (layout, str(directory / layout))) for layout in WRITERS}
    for written, layout, ranks in READERS:
        members = tuple(range(ranks))
        job = Job(do.read, (layout, str(directory / written)), ranks=members)
        jobs[f"{written} to {layout}"] = job
    done = dict(zip(jobs, spawn(3, list(jobs.values())), strict=True))
    states = {layout: bcpformat.read(directory / layout) for layout in ("FSDP1", "FSDP1 whole")}
    yield done | {"states": [Outcome(value=states)]}


@pytest.mark.slow
@pytest.mark.parametrize("layout", WRITERS)
def test_ranks_write_what_their_model_is(outcomes: dict[str, Any], layout: str) -> None:
    assert values(outcomes[layout]) == [[]] * 3


@pytest.mark.slow
@pytest.mark.parametrize(("written", "layout", "ranks"), READERS)
def test_ranks_read_what_ranks_of_another_layout_wrote(
    outcomes: dict[str, Any], written: str, layout: str, ranks: int
) -> None:
    done = outcomes[f"{written} to {layout}"]

    assert layout in MODELS
    assert values(done[:ranks]) == [[]] * ranks


@pytest.mark.slow
def test_moments_of_fsdp1_are_those_of_ranks_that_have_them_whole(outcomes: dict[str, Any]) -> None:
    states = outcomes["states"][0].value

    assert differences(*(leaves(state) for state in states.values())) == []
