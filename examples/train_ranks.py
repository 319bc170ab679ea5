"""A small training that goes on in any layout: what `demo.py` starts on every rank.

    python -m torch.distributed.run --standalone --nproc-per-node 4 \
        examples/train_ranks.py train fsdp2-x-tp FOLDER

trains on 4 ranks and saves in FOLDER/runs; `resume`, in the same or another layout, takes the
newest checkpoint there, saves at once what it has loaded in FOLDER/again, and trains on.  Rank 0
writes the losses to FOLDER, and every rank what it has read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

import bcpformat
from bcpformat.api.save import encoded_state
from bcpformat.model.region import Box, Region
from bcpformat.torch import get_state, set_state

SEED = 11
SAVED_STEP, MORE_STEPS, MOST_STEPS = 24, 12, 250
WIDTH, HIDDEN, LAYERS, HEADS, VOCABULARY, CONTEXT = 128, 512, 2, 4, 512, 32
BATCH = 16
"""Sequences of one step, of all workers together."""

State = dict[str, Any]


# ---- layouts -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layout:
    """How many ranks share what: `dp` workers have data of their own, each of `tp` ranks."""

    dp: int
    tp: int

    @property
    def ranks(self) -> int:
        return self.dp * self.tp

    def worker(self, rank: int) -> int:
        """Return which worker a rank belongs to."""
        return rank // self.tp

    # What becomes of per-rank values: rules for `bcpformat.read(per_rank=)`.  Ranks of one worker
    # have saved the same value.

    def dealt(self, values: Sequence[State], /, *, rank: int, size: int) -> State:
        """Deal out the samples that the workers have left, in the order they were to come."""
        del size
        queues = {value["worker"]: value["queue"] for value in values}
        turns = zip(*(queues[worker] for worker in sorted(queues)), strict=True)
        left = [sample for turn in turns for sample in turn]
        worker = self.worker(rank)
        return {"worker": worker, "queue": left[worker :: self.dp]}

    def stream(self, values: Sequence[State], /, *, rank: int, size: int) -> State:
        """Return the random state of the worker of the same number, in turn for those beyond."""
        del size
        states = {value["worker"]: value["state"] for value in values}
        worker = self.worker(rank)
        return {"worker": worker, "state": states[worker % len(states)]}


LAYOUTS = {
    "fsdp2-x-tp": Layout(dp=2, tp=2),
    "fsdp2": Layout(dp=2, tp=1),
    "tp": Layout(dp=1, tp=2),
    "one-process": Layout(dp=1, tp=1),
}


# ---- model ---------------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention and a perceptron, with projections that tensor parallelism can split."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm1(x)
        query, key, value = (
            # a rank has some of the heads
            project(hidden).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A causal transformer; the same on every rank from the same seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for embedding in (self.embed, self.place):
            nn.init.normal_(embedding.weight, std=0.05)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits of shape `(batch, length, vocabulary)`."""
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def tensor_parallel(model: Model, mesh: DeviceMesh) -> None:
    """Split every large matrix over the ranks of a worker; norms and places are on all of them."""
    columns, rows = ColwiseParallel(), RowwiseParallel()
    plan: dict[str, ParallelStyle] = {
        f"blocks.*.{name}": columns for name in ("query", "key", "value", "up")
    }
    plan |= {f"blocks.*.{name}": rows for name in ("out", "down")}
    plan["embed"] = RowwiseParallel(input_layouts=Replicate())
    plan["head"] = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(model, mesh, plan)


def laid_out(layout: Layout, seed: int) -> tuple[Model, DeviceMesh | None]:
    """Make the model in a layout, and the mesh of its ranks, if they are several."""
    model = Model(seed)
    if layout.ranks == 1:
        return model, None
    mesh = init_device_mesh("cpu", (layout.dp, layout.tp), mesh_dim_names=("dp", "tp"))
    if layout.tp > 1:
        tensor_parallel(model, mesh["tp"])
    if layout.dp > 1:
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    return model, mesh


# ---- training ------------------------------------------------------------------------------------


class Trainer:
    """This rank's part of a training."""

    def __init__(self, layout: Layout, rank: int, *, seed: int) -> None:
        self.layout, self.rank = layout, rank
        self.model, self.mesh = laid_out(layout, seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, total_iters=100)
        self.step = 0
        worker = layout.worker(rank)
        torch.manual_seed(1000 * seed + worker)
        order = torch.randperm(
            BATCH * MOST_STEPS, generator=torch.Generator().manual_seed(SEED)
        ).tolist()
        self.queue: list[int] = order[worker :: layout.dp]

    def train_step(self) -> float:
        """Make a step and return its loss, the mean over all workers."""
        tokens = self._batch()
        logits = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.step += 1
        mean = loss.detach().clone()
        if self.mesh is not None:
            dist.all_reduce(mean, group=self.mesh["dp"].get_group())
        return mean.item() / self.layout.dp

    def _batch(self) -> torch.Tensor:
        """Take the next samples of this worker, in a random order: sequences that count on."""
        number = BATCH // self.layout.dp
        samples = torch.tensor(self.queue[:number])[torch.randperm(number), None]
        del self.queue[:number]
        return (samples * 37 + torch.arange(CONTEXT + 1) * (1 + samples % 3)) % VOCABULARY

    def state(self, saved: bcpformat.Checkpoint | None = None) -> State:
        """Return what this rank has of everything that is needed to go on."""
        worker = self.layout.worker(self.rank)
        return {
            **get_state(self.model, self.optimizer, saved=saved),
            "schedule": self.schedule.state_dict(),
            "step": self.step,
            "loader": bcpformat.PerRank({"worker": worker, "queue": list(self.queue)}),
            "rng": bcpformat.PerRank({"worker": worker, "state": torch.get_rng_state()}),
        }

    def load(self, state: State) -> None:
        """Take over a state that a read has filled."""
        set_state(self.model, self.optimizer, state)
        self.schedule.load_state_dict(state["schedule"])
        self.step = state["step"]
        self.queue = state["loader"].value["queue"]
        torch.set_rng_state(state["rng"].value["state"])


def wanted(state: State) -> dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Return origin and extent of each box that this rank has, by the tensor's name."""
    found, boxes = encoded_state(state), {}
    for name, leaf in zip(found.names, found.leaves, strict=True):
        regions = leaf.regions
        if regions is None:  # all of it
            regions = (Region.whole(Box.whole(leaf.shape)),)
        boxes[name] = [(box.origin, box.shape) for r in regions for box, _ in r.boxes()]
    return boxes


def train(trainer: Trainer, folder: Path, report: Path) -> None:
    """Train and save once; then train on for a long time."""
    while trainer.step < MOST_STEPS:
        note(trainer, trainer.train_step(), report)
        if trainer.step == SAVED_STEP:
            location = folder / "runs" / f"step-{trainer.step}"
            bcpformat.write(location, trainer.state(), step=trainer.step)


def resume(trainer: Trainer, folder: Path, report: Path) -> None:
    """Load the newest checkpoint, save again what was loaded, and train on."""
    location = bcpformat.latest(folder / "runs")
    assert location is not None
    with bcpformat.open(location) as saved:
        state = trainer.state(saved)
    boxes = wanted(state)
    layout = trainer.layout
    bcpformat.read(location, into=state, per_rank={"loader": layout.dealt, "rng": layout.stream})
    trainer.load(state)
    again = folder / "again" / report.stem
    bcpformat.write(again, trainer.state(), step=trainer.step)
    Path(f"{again}.{trainer.rank}.json").write_text(json.dumps(boxes))
    for _ in range(MORE_STEPS):
        note(trainer, trainer.train_step(), report)


def note(trainer: Trainer, loss: float, report: Path) -> None:
    """Add a step to the report: its number, and its loss to the last bit."""
    if trainer.rank == 0:
        with report.open("a") as lines:
            lines.write(f"{trainer.step} {loss.hex()}\n")


def run(action: str, name: str, folder: Path) -> None:
    """Do this rank's part; `folder` is the same for all, and has `runs` and `again`."""
    layout = LAYOUTS[name]
    torch.set_num_threads(1)
    if layout.ranks > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    try:
        rank = dist.get_rank() if layout.ranks > 1 else 0
        # other parameters than those that were saved: what is right comes from the checkpoint
        seed = SEED if action == "train" else SEED + 1
        actions: Mapping[str, Any] = {"train": train, "resume": resume}
        trainer = Trainer(layout, rank, seed=seed)
        actions[action](trainer, folder, folder / f"{name}.{action}")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
