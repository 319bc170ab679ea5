"""A small model in every layout: real processes save it in one, and others load it in another.

Every element of the model is a number of its own, and so is what the optimizer learns from it in
exact arithmetic.  So what a rank must hold is known without asking the library: torch itself
places the numbers when it lays out the model.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import bcpformat
from bcpformat import PerRank, WriteOptions
from bcpformat.errors import BcpError
from bcpformat.torch import InBuffer, flat_shards, get_state, set_state
from tests.distributed.worker import Member

VOCABULARY, HIDDEN, FFN = 503, 20, 37
MOMENTS = ("exp_avg", "exp_avg_sq")
LR = 0.25
MOST_RANKS = 8
_PATIENT_S = 300.0

Tree = dict[str, Any]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, FFN)
        self.down = nn.Linear(FFN, HIDDEN, bias=False)
        self.register_buffer("scale", torch.empty(3))


def _modules() -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            embed=nn.Embedding(VOCABULARY, HIDDEN),
            blocks=nn.ModuleDict({"0": Block(), "1": Block()}),
            norm=nn.LayerNorm(HIDDEN),
            head=nn.Linear(HIDDEN, VOCABULARY, bias=False),
        )
    )


def truth() -> dict[str, torch.Tensor]:
    """Return the elements of every parameter and buffer: the numbers from 1 on."""
    found, first = {}, 1
    for name, tensor in _modules().state_dict().items():
        numbers = torch.arange(first, first + tensor.numel(), dtype=torch.float32)
        found[name] = numbers.reshape(tensor.shape)
        first += tensor.numel()
    return found


def numbered(stage: int | None = None) -> nn.Module:
    """Make the model with its numbers, or the first or second stage of it."""
    model = _modules()
    if stage is not None:
        del model.blocks[str(1 - stage)]
        for name in ("norm", "head") if stage == 0 else ("embed",):
            delattr(model, name)
    whole = truth()
    model.load_state_dict({name: whole[name] for name in model.state_dict()})
    return model


def optimizer_of(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.5, 0.5), weight_decay=0.0)


# ---- what a rank has -----------------------------------------------------------------------------


class Held(Protocol):
    """What one rank has of a model and its optimizer."""

    def state(self) -> Tree:
        """Return it to be written, or to be read into."""

    def load(self, tree: Tree) -> None:
        """Take what was read."""

    def learn(self) -> None:
        """Make a step with the parameters as their own gradients, which moves no parameter."""

    def clear(self) -> None:
        """Forget all of it."""

    def elements(self) -> dict[str, torch.Tensor]:
        """Return what lies in the memory of this rank, under any names."""

    def lr(self) -> float:
        """Return a setting of the optimizer."""


class Trained:
    """A model of torch in any layout, and its optimizer."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._optimizer = optimizer_of(model, lr=0.0)

    def state(self) -> Tree:
        return get_state(self._model, self._optimizer)

    def load(self, tree: Tree) -> None:
        set_state(self._model, self._optimizer, tree)

    def learn(self) -> None:
        for parameter in self._model.parameters():
            # a parameter that is not here has no gradient either
            parameter.grad = parameter.detach().clone() if _local(parameter).numel() else None
        self._optimizer.step()
        self._optimizer.zero_grad()
        for group in self._optimizer.param_groups:
            group["lr"] = LR

    def clear(self) -> None:
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            _local(tensor).zero_()
        self._optimizer = optimizer_of(self._model, lr=0.5)

    def elements(self) -> dict[str, torch.Tensor]:
        found = {f"buffer {i}": b for i, b in enumerate(self._model.buffers())}
        for i, parameter in enumerate(self._model.parameters()):
            found[f"parameter {i}"] = parameter
            for key, value in self._optimizer.state.get(parameter, {}).items():
                found[f"{key} of parameter {i}"] = value
        return {name: _local(tensor) for name, tensor in found.items()}

    def lr(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


class FlatPartition:
    """What ZeRO keeps: flat buffers of all parameters, of which each rank has a range.

    In stage 1 these are the moments alone, and every rank has all parameters; in stage 3 the
    parameters too.
    """

    def __init__(self, model: nn.Module, *, stage: int) -> None:
        self._whole = Trained(model)
        self._params: list[InBuffer] = []
        at = 0
        for name, parameter in model.named_parameters():
            self._params.append(InBuffer(name, tuple(parameter.shape), at))
            at += -(-parameter.numel() // 8) * 8  # each begins at a multiple of 8 elements
        rank, ranks = dist.get_rank(), dist.get_world_size()
        share = -(-at // ranks)
        self._range = (rank * share, rank * share + share)
        self._length = share * ranks
        self._names = MOMENTS if stage == 1 else ("parameter", *MOMENTS)
        self._settings: Tree = {}
        self._take_ranges()

    def _take_ranges(self) -> None:
        """Cut this rank's ranges out of the whole state."""
        tree = self._whole.state()
        self._ranges = {}
        for name in self._names:
            buffer = torch.zeros(self._length)
            for part in self._params:
                kept = tree["optim"]["state"][part.name]
                value = tree["model"][part.name] if name == "parameter" else kept[name]
                buffer[part.offset : part.end] = value.detach().reshape(-1)
            self._ranges[name] = buffer[slice(*self._range)].clone()
        steps = [kept["step"] for kept in tree["optim"]["state"].values()]
        self._steps = {p.name: s.clone() for p, s in zip(self._params, steps, strict=True)}
        self._settings = tree["optim"]["param_groups"]

    def state(self) -> Tree:
        shards = {n: flat_shards(self._range, self._params, r) for n, r in self._ranges.items()}
        model = self._whole.state()["model"]
        if "parameter" in shards:
            names = {part.name for part in self._params}
            model = {name: value for name, value in model.items() if name not in names}
            model |= shards["parameter"]
        state = {
            name: {"step": step, **{m: shards[m][name] for m in MOMENTS if name in shards[m]}}
            for name, step in self._steps.items()
        }
        settings = {name: dict(each) for name, each in self._settings.items()}
        return {"model": model, "optim": {"state": state, "param_groups": settings}}

    def load(self, tree: Tree) -> None:
        self._settings = tree["optim"]["param_groups"]

    def learn(self) -> None:
        self._whole.learn()
        self._take_ranges()

    def clear(self) -> None:
        self._whole.clear()
        for tensor in (*self._ranges.values(), *self._steps.values()):
            tensor.zero_()

    def elements(self) -> dict[str, torch.Tensor]:
        found = {f"range of {name}": held for name, held in self._ranges.items()}
        found |= {f"step of {name}": step for name, step in self._steps.items()}
        if "parameter" not in self._ranges:
            found |= {k: v for k, v in self._whole.elements().items() if " of " not in k}
        return found

    def lr(self) -> float:
        return float(next(iter(self._settings.values()))["lr"])


# ---- layouts -------------------------------------------------------------------------------------


def _mesh(**axes: int) -> DeviceMesh:
    return init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))


def _shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _split_tensors(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    plan = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
    if hasattr(model, "embed"):
        plan["embed"] = RowwiseParallel()
    if hasattr(model, "head"):
        plan["head"] = ColwiseParallel()
    return parallelize_module(model, mesh, plan)


def _fsdp2() -> Held:
    return Trained(_shard(numbered(), _mesh(dp=dist.get_world_size())))


def _tensor_parallel() -> Held:
    return Trained(_split_tensors(numbered(), _mesh(tp=dist.get_world_size())))


def _fsdp2_over_tensor_parallel() -> Held:
    mesh = _mesh(dp=dist.get_world_size() // 2, tp=2)
    return Trained(_shard(_split_tensors(numbered(), mesh["tp"]), mesh["dp"]))


def _hybrid() -> Held:
    return Trained(_shard(numbered(), _mesh(replicas=2, shards=dist.get_world_size() // 2)))


def _pipeline() -> Held:
    return Trained(numbered(dist.get_rank()))


def _pipeline_of_fsdp2() -> Held:
    mesh = _mesh(pp=2, dp=2)
    return Trained(_shard(numbered(mesh.get_local_rank("pp")), mesh["dp"]))


def _pipeline_of_fsdp2_over_tensor_parallel() -> Held:
    mesh = _mesh(pp=2, dp=2, tp=2)
    model = _split_tensors(numbered(mesh.get_local_rank("pp")), mesh["tp"])
    return Trained(_shard(model, mesh["dp"]))


def _fsdp1(*, orig: bool) -> Held:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FullyShardedDataParallel(
            numbered(),
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            use_orig_params=orig,
            device_id=torch.device("cpu"),
        )
    return Trained(model)


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout, and how each of its ranks gets its part.

    Attributes:
        ranks: How many processes it needs.
        make: Makes what this rank has, in the default process group.
    """

    ranks: int
    make: Callable[[], Held]


LAYOUTS: dict[str, Layout] = {
    "one process": Layout(1, lambda: Trained(numbered())),
    "DDP, 2": Layout(2, lambda: Trained(DistributedDataParallel(numbered()))),
    "FSDP2, 2": Layout(2, _fsdp2),
    "FSDP2, 3": Layout(3, _fsdp2),
    "FSDP2, 4": Layout(4, _fsdp2),
    "TP, 3": Layout(3, _tensor_parallel),
    "FSDP2 x TP, 2x2": Layout(4, _fsdp2_over_tensor_parallel),
    "FSDP2 x TP, 3x2": Layout(6, _fsdp2_over_tensor_parallel),
    "HSDP, 2x2": Layout(4, _hybrid),
    "PP, 2": Layout(2, _pipeline),
    "PP x FSDP2, 2x2": Layout(4, _pipeline_of_fsdp2),
    "PP x FSDP2 x TP, 2x2x2": Layout(8, _pipeline_of_fsdp2_over_tensor_parallel),
    "FSDP1, original parameters, 3": Layout(3, lambda: _fsdp1(orig=True)),
    "FSDP1, flat parameters, 2": Layout(2, lambda: _fsdp1(orig=False)),
    "ZeRO-1 partition, 3": Layout(3, lambda: FlatPartition(numbered(), stage=1)),
    "ZeRO-3 partition, 4": Layout(4, lambda: FlatPartition(numbered(), stage=3)),
}
"""Name of a layout to the layout; the numbers are those of its ranks."""

assert max(layout.ranks for layout in LAYOUTS.values()) == MOST_RANKS


# ---- jobs ----------------------------------------------------------------------------------------


def save(member: Member, name: str, place: str) -> str:
    """Save the model in a layout; return why that was refused, nothing if it was not."""
    with member.default_group():
        held = _made(name)
        held.learn()
        state = {**held.state(), "epoch": 7, "seen": PerRank({"rank": member.rank})}
        try:
            bcpformat.write(place, state, options=WriteOptions(timeout_s=_PATIENT_S))
        except BcpError as error:
            return f"refused: {error}"
    return ""


def load(member: Member, name: str, places: Mapping[str, str]) -> dict[str, list[str]]:
    """Load into a model in a layout what others saved; return what is wrong with each."""
    with member.default_group():
        held = _made(name)
        held.learn()
        expected = {key: tensor.clone() for key, tensor in held.elements().items()}
        found = {}
        for saved, place in places.items():
            held.clear()
            found[saved] = list(_problems(held, place, expected, member.rank))
        return found


def _made(name: str) -> Held:
    _clear_sharding_prop_cache()  # torch keeps meshes there, whose groups are gone
    return LAYOUTS[name].make()


def _problems(
    held: Held, place: str, expected: Mapping[str, torch.Tensor], rank: int
) -> Iterator[str]:
    state = {**held.state(), "epoch": 0, "seen": PerRank(None)}
    try:
        bcpformat.read(place, into=state, per_rank={"seen": bcpformat.per_rank.copy})
        held.load(state)
    except BcpError as error:
        yield f"refused: {error}"
        return
    found = held.elements()
    for name in sorted(found.keys() ^ expected.keys()):
        yield f"{name}: only one has it"
    for name in sorted(found.keys() & expected.keys()):
        if not torch.equal(found[name], expected[name]):
            yield f"{name} differs"
    if state["epoch"] != 7:
        yield f"the epoch is {state['epoch']!r}"
    if held.lr() != LR:
        yield f"the learning rate is {held.lr()}"
    if not 0 <= state["seen"].value["rank"] <= rank:
        yield f"the value of a rank is {state['seen'].value!r}"
