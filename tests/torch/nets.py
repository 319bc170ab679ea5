"""Small models in many layouts, and what they learn, for tests of their states."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from bcpformat import Shard
from bcpformat.torch.dtensor import DTensorAdapter

WORDS, WIDTH, HIDDEN = 7, 5, 6


class Block(nn.Module):
    """Parameters of sizes that few numbers of ranks divide."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    """Tied embedding and head, buffers of both kinds, and extra state."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.rand(3))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.seen = seed

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


def fsdp1(seed: int, *, orig: bool, strategy: str = "FULL_SHARD") -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FullyShardedDataParallel(
            Net(seed),
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            use_orig_params=orig,
            sharding_strategy=ShardingStrategy[strategy],
            device_id=torch.device("cpu"),
        )


def fsdp2(seed: int) -> nn.Module:
    model = Net(seed)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def tensor_parallel(seed: int) -> nn.Module:
    model = Net(seed)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return model


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "plain": Net,
    "DDP": lambda seed: DistributedDataParallel(Net(seed)),
    "FSDP2": fsdp2,
    "TP": tensor_parallel,
    "FSDP1": lambda seed: fsdp1(seed, orig=True),
    "FSDP1 flat": lambda seed: fsdp1(seed, orig=False),
    "FSDP1 gathered": lambda seed: fsdp1(seed, orig=True, strategy="SHARD_GRAD_OP"),
    "FSDP1 flat gathered": lambda seed: fsdp1(seed, orig=False, strategy="SHARD_GRAD_OP"),
    "FSDP1 whole": lambda seed: fsdp1(seed, orig=True, strategy="NO_SHARD"),
    "FSDP1 flat whole": lambda seed: fsdp1(seed, orig=False, strategy="NO_SHARD"),
}
"""Name of a layout to what makes the model in it, from a seed."""

SAME_DATA = ("plain", "TP")
"""Layouts whose ranks learn from the same data, so that they stay equal."""


def optimizer_of(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.8, 0.9))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, *, seed: int) -> None:
    """Make a step with data from a seed."""
    maker = torch.Generator().manual_seed(seed)
    words = torch.randint(WORDS, (4, 6), generator=maker)
    loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def compute(model: nn.Module) -> torch.Tensor:
    """Return what a model makes of every word; it leaves FSDP1's parameters gathered."""
    with torch.no_grad():
        return model(torch.arange(WORDS)[None])


# ---- states --------------------------------------------------------------------------------------


def leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield name and content of everything in a state; of a shard also where it lies."""
    if isinstance(tree, Mapping):
        for key, below in tree.items():
            yield from leaves(below, f"{name}/{key}" if name else str(key))
    elif isinstance(tree, Shard):
        yield name, (tree.region, tree.data.clone())
    elif isinstance(tree, DTensor):
        yield name, tree.to_local().detach().clone()
    else:
        yield name, tree.detach().clone() if isinstance(tree, torch.Tensor) else tree


def parts(like: Mapping[str, Any], whole: Mapping[str, Any], name: str = "") -> Iterator[Any]:
    """Yield from a whole state what another has of it, as `leaves` yields that."""
    for key, below in like.items():
        path, value = f"{name}/{key}" if name else str(key), whole[key]
        if isinstance(below, Mapping):
            yield from parts(below, value, path)
        elif isinstance(below, Shard):
            held = piece(value, below.region)
            yield path, (below.region, held.reshape(below.data.shape))
        elif isinstance(below, DTensor):
            regions = DTensorAdapter().describe(below, lambda: "").regions or ()
            held = torch.cat([torch.empty(0), *(piece(value, region) for region in regions)])
            yield path, held.reshape(below.to_local().shape)
        else:
            yield path, value


def piece(whole: torch.Tensor, region: Any) -> torch.Tensor:
    """Return the elements of a region, 1-d."""
    box = region.box
    area = tuple(slice(o, o + e) for o, e in zip(box.origin, box.shape, strict=True))
    return whole.detach()[area].reshape(-1)[region.start : region.start + region.count]


def differences(a: Any, b: Any) -> list[str]:
    """Return the names that two states, given as `leaves`, do not have in common or not alike."""
    first, second = dict(a), dict(b)
    found = [f"{name}: only one has it" for name in first.keys() ^ second.keys()]
    return found + [n for n in first.keys() & second.keys() if not _alike(first[n], second[n])]


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and bool(a == b)
