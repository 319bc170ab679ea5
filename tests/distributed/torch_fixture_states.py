"""What each rank of torch held when the checkpoints were written, as DTensors made without others.

A process plays one rank after the other, with collectives that do nothing.  torch cuts the whole
tensors by the placements that were recorded, and the shapes that come of it must be those that
were recorded too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from bcpformat.torch import InBuffer, flat_shards
from tests.torch.meshes import as_rank

State = dict[str, Any]
"""Names of the truth to tensors, DTensors or shards."""

_PLACEMENT = re.compile(r"(\w+)\((?:dim=(\d+))?(?:, sf=(\d+))?\)")


def truth(fixture: Path) -> dict[str, torch.Tensor]:
    """Return the whole tensors of a fixture by name."""
    return load_file(fixture / "truth.safetensors")


def held(fixture: Path, *, elements: Path | None = None) -> list[State]:
    """Return what each rank held: DTensors as recorded, anything else whole.

    Args:
        fixture: The layout.
        elements: The fixture from which the elements are; by default the same.

    Raises:
        AssertionError: torch cuts a tensor into other shapes than were recorded.
    """
    facts = json.loads((fixture / "truth.json").read_text())
    whole = truth(fixture if elements is None else elements)
    states = []
    for rank, layout in enumerate(facts["layout_per_rank"]):
        keys = facts["model_keys_per_rank"][rank] if "model_keys_per_rank" in facts else [""]
        with as_rank(rank, of=facts["ranks"]):
            meshes: dict[str, DeviceMesh] = {}
            state: State = {"step": 3}
            for name, tensor in whole.items():
                if name in layout:
                    state[name] = _recorded(tensor, layout[name], meshes)
                elif any(key in name for key in keys):  # of the stage that this rank has
                    state[name] = tensor.clone()
        states.append(state)
    return states


def _recorded(
    whole: torch.Tensor, said: Mapping[str, Any], meshes: dict[str, DeviceMesh]
) -> DTensor:
    key = str(said["mesh"])
    if key not in meshes:
        meshes[key] = DeviceMesh("cpu", said["mesh"])
    tensor = placed(whole, meshes[key], [_placement(text) for text in said["placements"]])
    assert list(tensor.shape) == said["global_shape"]
    assert list(tensor.to_local().shape) == said["local_shape"], said
    return tensor


def placed(whole: torch.Tensor, mesh: DeviceMesh, placements: list[Placement]) -> DTensor:
    """Return a distributed tensor of this rank; torch cuts it, and nobody is asked.

    Placements with a factor are cut as by `fully_shard` over tensor parallelism.
    """
    if not any(isinstance(each, _StridedShard) for each in placements):
        return distribute_tensor(whole.clone(), mesh, placements, src_data_rank=None)
    copies = [Replicate()] * mesh.ndim
    replicated = distribute_tensor(whole.clone(), mesh, copies, src_data_rank=None)
    return replicated.redistribute(placements=placements)


def _placement(text: str) -> Placement:
    found = _PLACEMENT.fullmatch(text)
    assert found, text
    kind, axis, factor = found.groups()
    if kind == "Replicate":
        return Replicate()
    if kind == "Shard":
        return Shard(int(axis))
    assert kind == "_StridedShard", text
    return _StridedShard(int(axis), split_factor=int(factor))


def wrongly_recorded(fixture: Path) -> list[State]:
    """Return what the ranks of the checkpoint held whose recorded sizes are wrong.

    Which rows of the first tensor a rank held was written down, by their first elements.
    """
    facts = json.loads((fixture / "truth.json").read_text())
    whole = truth(fixture)
    first, second = whole["model/0.weight"], whole["model/1.weight"]
    states = []
    for rank, said in enumerate(facts["held_by_rank"]):
        rows = [first[:, 0].tolist().index(value) for value in said["first_column"]]
        local = first[rows]
        assert list(local.shape) == said["local_shape"]
        with as_rank(rank, of=facts["ranks"]):
            mesh = DeviceMesh("cpu", torch.arange(facts["ranks"]).reshape(3, 2))
            states.append(
                {
                    "step": 3,
                    "model/0.weight": DTensor.from_local(
                        local,
                        mesh,
                        [_StridedShard(0, split_factor=2), Shard(0)],
                        run_check=False,
                        shape=first.shape,
                        stride=first.stride(),
                    ),
                    "model/1.weight": placed(second, mesh, [Shard(0), Shard(1)]),
                }
            )
    return states


def flat_ranks(whole: Mapping[str, torch.Tensor], ranks: int) -> list[State]:
    """Return ranges of all tensors of one data type in one buffer, cut anywhere; else the whole."""
    params, at = [], 0
    for name, tensor in whole.items():
        if tensor.dtype is torch.float32:
            params.append(InBuffer(name, tuple(tensor.shape), at))
            at += tensor.numel()
    share = -(-at // ranks)
    buffer = torch.zeros(share * ranks)
    for part in params:
        buffer[part.offset : part.end] = whole[part.name].reshape(-1)
    states = []
    for rank in range(ranks):
        bounds = (rank * share, rank * share + share)
        shards = flat_shards(bounds, params, buffer[slice(*bounds)].clone())
        others = {n: t.clone() for n, t in whole.items() if t.dtype is not torch.float32}
        states.append({"step": 3, **others, **shards})
    return states


def locals_of(state: State) -> dict[str, torch.Tensor]:
    """Return the tensors that lie in this rank's memory."""
    return {name: _local(value) for name, value in state.items() if name != "step"}


def _local(value: Any) -> torch.Tensor:
    if isinstance(value, DTensor):
        return value.to_local().detach()
    data: torch.Tensor = getattr(value, "data", value)
    return data.detach()


def cleared(make: Callable[[], list[State]]) -> list[State]:
    """Return states with zeros in place of all elements."""
    states = make()
    for state in states:
        state["step"] = 0
        for tensor in locals_of(state).values():
            tensor.zero_()
    return states
