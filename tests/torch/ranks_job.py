"""A real process group on this machine: compares what ranks describe with what torch gathers.

    python ranks_job.py RANKS STORE OUT

Rank 0 writes to OUT, as JSON, for each case what is wrong with it; nothing if it is right.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard

from bcpformat.model.dtypes import DType
from bcpformat.torch.dtensor import DTensorAdapter, dtensor_target
from tests.torch.meshes import fill

Make = Callable[[DeviceMesh], dict[str, tuple[DTensor, torch.Tensor]]]
"""Names to distributed tensors and what they hold."""


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


class Block(torch.nn.Module):
    """Two matrices, both uneven over all ranks."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(5, rows)
        self.down = torch.nn.Linear(rows, 5, bias=False)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(numbered(*parameter.shape) + 1)


def trained(rows: int, prepare: Callable[[Block], None]) -> dict[str, Any]:
    """Return parameters and moments after a step, and the parameters' values before."""
    block = Block(rows)
    before = {f"model.{n}": p.detach().clone() for n, p in block.named_parameters()}
    prepare(block)
    found: dict[str, Any] = {}
    for name, parameter in block.named_parameters():
        found[f"model.{name}"] = (parameter, before[f"model.{name}"])
    optimizer = torch.optim.AdamW(block.parameters(), lr=0.0, weight_decay=0.0)
    for parameter in block.parameters():
        parameter.grad = parameter.detach() + 1
    optimizer.step()
    for name, parameter in block.named_parameters():
        moment = optimizer.state[parameter]["exp_avg"]
        found[f"moment.{name}"] = (moment, None)
    return found


def fsdp_over_tensor_parallelism(rows: int) -> Make:
    def make(mesh: DeviceMesh) -> dict[str, Any]:
        def prepare(block: Block) -> None:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(block, mesh["tp"], plan)
            fully_shard(block, mesh=mesh["dp"])

        return trained(rows, prepare)

    return make


def hybrid_sharding(mesh: DeviceMesh) -> dict[str, Any]:
    return trained(7, lambda block: fully_shard(block, mesh=mesh))


def tensor_parallelism(mesh: DeviceMesh) -> dict[str, Any]:
    flat = init_device_mesh("cpu", (mesh.size(),))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    block = Block(9)
    before = {n: p.detach().clone() for n, p in block.named_parameters()}
    parallelize_module(block, flat, plan)
    return {n: (p, before[n]) for n, p in block.named_parameters()}


def distributed(*placements: Any, rows: int = 7) -> Make:
    def make(mesh: DeviceMesh) -> dict[str, Any]:
        whole = numbered(rows, 5)
        return {"w": (distribute_tensor(whole, mesh, placements), whole)}

    return make


def redistributed(*placements: Any) -> Make:
    def make(mesh: DeviceMesh) -> dict[str, Any]:
        whole = numbered(7, 5)
        copies = distribute_tensor(whole, mesh, [Replicate()] * mesh.ndim)
        return {"w": (copies.redistribute(placements=placements), whole)}

    return make


def on_some_ranks(_mesh: DeviceMesh) -> dict[str, Any]:
    whole = numbered(7, 5)
    return {"w": (distribute_tensor(whole, DeviceMesh("cpu", [1, 2, 3]), [Shard(0)]), whole)}


def tied(mesh: DeviceMesh) -> dict[str, Any]:
    """Tied weights with fewer rows than ranks, as a state_dict has them."""
    module = torch.nn.Sequential(torch.nn.Embedding(2, 5), torch.nn.Linear(5, 2, bias=False))
    module[1].weight = module[0].weight
    whole = numbered(2, 5)
    with torch.no_grad():
        module[0].weight.copy_(whole)
    fully_shard(module, mesh=init_device_mesh("cpu", (mesh.size(),)))
    return {name: (tensor, whole) for name, tensor in module.state_dict().items()}


CASES: dict[str, Make] = {
    "FSDP over tensor parallelism": fsdp_over_tensor_parallelism(7),
    "FSDP over tensor parallelism, five rows": fsdp_over_tensor_parallelism(5),
    "HSDP": hybrid_sharding,
    "tensor parallelism": tensor_parallelism,
    "rows over both axes": distributed(Shard(0), Shard(0)),
    "five rows over both axes": distributed(Shard(0), Shard(0), rows=5),
    "columns, then rows": distributed(Shard(1), Shard(0)),
    "replicated": distributed(Replicate(), Replicate()),
    "redistributed with a factor": redistributed(_StridedShard(0, split_factor=2), Shard(0)),
    "some ranks": on_some_ranks,
    "tied": tied,
}


def wrong(make: Make, mesh: DeviceMesh) -> list[str]:
    """Return what is wrong with the tensors of a case; the same on every rank."""
    adapter = DTensorAdapter()
    problems = []
    keys = []
    for name, (value, known) in make(mesh).items():
        leaf = adapter.describe(value, lambda: "w")
        keys.append(leaf.alias_key)
        assert leaf.regions is not None
        mine = [
            (region.box.origin, region.box.shape, torch.from_numpy(piece.copy().view("<f4")))
            for region, piece in zip(leaf.regions, adapter.pieces(leaf), strict=True)
        ]
        outside = value.device_mesh.get_coordinate() is None
        gathered: list[Any] = [None] * dist.get_world_size()
        whole = known if outside else value.full_tensor().detach().clone()
        dist.all_gather_object(gathered, mine)
        stored = torch.full(leaf.shape, -1.0)
        count = torch.zeros(leaf.shape)
        for origin, shape, piece in itertools.chain.from_iterable(gathered):
            area = tuple(slice(o, o + e) for o, e in zip(origin, shape, strict=True))
            stored[area] = piece
            count[area] += 1
        if known is not None and not torch.equal(whole, known):
            problems.append(f"{name}: torch gathers something else")
        if not torch.equal(stored, whole):
            problems.append(f"{name}: the pieces are not the tensor")
        if count.min() != count.max():
            problems.append(f"{name}: the pieces do not tile the tensor")
        local = value.to_local().detach()
        expected = local.clone()
        local.fill_(-2)
        fill(dtensor_target(value, cast=False, saved=DType.named("float32")), whole)
        if not torch.equal(local, expected):
            problems.append(f"{name}: what was read is not what was there")
    if make is tied and len(set(keys)) != 1:
        problems.append("the tie is lost")
    return problems


def work(rank: int, ranks: int, store: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    found: dict[str, Any] = {}
    for name, make in CASES.items():
        everyone: list[Any] = [None] * ranks
        dist.all_gather_object(everyone, wrong(make, mesh))
        found[name] = {r: p for r, p in enumerate(everyone) if p}
    if rank == 0:
        Path(out).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Run all ranks; forked, so that torch is imported once."""
    ranks, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    context = multiprocessing.get_context("fork")
    arguments = [(rank, ranks, store, out) for rank in range(ranks)]
    processes = [context.Process(target=work, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))


if __name__ == "__main__":
    main()
