"""What each rank held when other frameworks wrote their checkpoints, as shards of flat ranges."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file

from bcpformat import Shard
from bcpformat.torch import InBuffer, flat_shards

State = dict[str, Any]


def truth(fixture: Path) -> dict[str, torch.Tensor]:
    """Return the whole tensors of a fixture by name."""
    return load_file(fixture / "truth.safetensors")


# ---- FSDP1 ---------------------------------------------------------------------------------------


def fsdp1_ranks(fixture: Path) -> list[State]:
    """Return what the ranks of FSDP1 held, by the names of the truth."""
    facts = json.loads((fixture / "truth.json").read_text())
    files = [fixture / "checkpoint" / f"local_rank{rank}.pt" for rank in range(facts["ranks"])]
    held = [torch.load(file, weights_only=False) for file in files]
    make = _original if facts["use_orig_params"] else _flat
    return [make(rank, local, facts) for rank, local in enumerate(held)]


def naive_ranks(fixture: Path) -> list[State]:
    """Return the same as they lie in the files: every piece a plain tensor under its name."""
    ranks = json.loads((fixture / "truth.json").read_text())["ranks"]
    files = [fixture / "checkpoint" / f"local_rank{rank}.pt" for rank in range(ranks)]
    return [{"model": torch.load(file, weights_only=False)["model"]} for file in files]


def _units(local: State) -> Iterator[tuple[str, list[InBuffer], State]]:
    """Yield the prefix of each unit, its parameters, and what the fixture says of it."""
    for prefix, unit in zip(("", "blocks.0.", "blocks.1."), local["flat_params"], strict=True):
        parts, offset = [], 0
        fields = zip(unit["fqns"], unit["shapes"], strict=True)
        for numel, padding in zip(
            unit["numels_with_padding"], unit["is_padding_mask"], strict=True
        ):
            if not padding:
                name, shape = next(fields)
                parts.append(InBuffer(prefix + name, tuple(shape), offset))
            offset += numel
        yield prefix, parts, unit


def _flat(rank: int, local: State, _facts: State) -> State:
    state: State = {"model/inv_freq": local["model"]["inv_freq"]}
    for number, (prefix, parts, unit) in enumerate(_units(local)):
        first = rank * unit["sharded_size"][0]

        def shards(data: torch.Tensor, form: str, first: int = first, parts: Any = parts) -> State:
            found = flat_shards((first, first + data.numel()), parts, data)
            return {form.format(name): shard for name, shard in found.items()}

        state |= shards(local["model"][f"{prefix}_flat_param"], "model/{}")
        for key, value in local["optimizer"]["state"][number].items():
            form = f"optimizer/state/{{}}/{key}"
            if key == "step":
                state |= {form.format(part.name): value.clone() for part in parts}
            else:
                state |= shards(value, form)
        state |= _tied(state, unit)
    return state


def _original(rank: int, local: State, facts: State) -> State:
    state: State = {"model/inv_freq": local["model"]["inv_freq"]}
    pieces: dict[str, tuple[InBuffer, tuple[int, int]]] = {}
    for prefix, parts, unit in _units(local):
        data = local["model"][f"{prefix}_flat_param"]
        first = rank * unit["sharded_size"][0]
        found = flat_shards((first, first + data.numel()), parts, data)
        state |= {f"model/{name}": shard for name, shard in found.items()}
        state |= _tied(state, unit)
        for part, info in zip(parts, unit["shard_param_infos"], strict=True):
            if info["in_shard"]:
                low, high = info["intra_param_start_idx"], info["intra_param_end_idx"] + 1
                pieces[part.name] = part._replace(offset=0), (low, high)
    names = facts["optimizer_param_groups"][0]["params"]
    for number, kept in local["optimizer"]["state"].items():
        part, held = pieces[names[number]]
        for key, value in kept.items():
            form = f"optimizer/state/{part.name}/{key}"
            state[form] = value if key == "step" else flat_shards(held, [part], value)[part.name]
    return state


def _tied(state: State, unit: State) -> State:
    found: State = {}
    for name, module, first_name, first_module in _shared(unit):
        first = f"model/{first_module}.{first_name}"
        if first in state:
            found[f"model/{module}.{name}"] = state[first]
    return found


def _shared(unit: State) -> Iterator[tuple[str, str, str, str]]:
    for name, first_module, first_name, module in unit["shared_param_infos"]:
        yield name, module, first_name, first_module


# ---- ZeRO ----------------------------------------------------------------------------------------


class _Unpickler(pickle.Unpickler):
    """Makes something of the classes of DeepSpeed, which are not here."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("deepspeed"):
            return type(name, (), {"__new__": _bare, "__init__": _nothing})
        return super().find_class(module, name)


def _bare(cls: type, *_: object, **__: object) -> object:
    return object.__new__(cls)


def _nothing(*_: object, **__: object) -> None:
    return None


def _load(file: Path) -> State:
    module = SimpleNamespace(Unpickler=_Unpickler, __name__="pickle")
    loaded: State = torch.load(file, weights_only=False, pickle_module=module)
    return loaded


def zero_ranks(fixture: Path) -> list[State]:
    """Return what the ranks of ZeRO 1, 2 or 3 held, by the names of the truth."""
    facts = json.loads((fixture / "truth.json").read_text())
    folder = next((fixture / "checkpoint").glob("global_step*"))
    states = []
    for rank in range(facts["ranks"]):
        (file,) = folder.glob(f"*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        models = list(folder.glob(f"*zero_pp_rank_{rank}_mp_rank_00_model_states.pt"))
        model = _load(models[0] if models else folder / "mp_rank_00_model_states.pt")
        held = _load(file)["optimizer_state_dict"]
        if facts["zero_stage"] == 3:
            states.append(_split_each(rank, facts["ranks"], model, held))
        else:
            states.append(_split_groups(rank, model, held))
    return states


def _split_groups(rank: int, model: State, held: State) -> State:
    """ZeRO 1 and 2: the parameters of a group lie in one buffer, which the ranks divide."""
    state: State = {}
    kept = held["base_optimizer_state"]["state"]
    for number, shapes in enumerate(model["param_shapes"]):
        ends = list(itertools.accumulate(shape.numel() for shape in shapes.values()))
        parts = [
            (name, tuple(shape), end - shape.numel())
            for (name, shape), end in zip(shapes.items(), ends, strict=True)
        ]
        first = rank * kept[number]["exp_avg"].numel()
        masters = held["single_partition_of_fp32_groups"][number]
        values = {"fp32/{}": masters}
        values |= {
            f"optimizer/state/{{}}/{key}": kept[number][key] for key in ("exp_avg", "exp_avg_sq")
        }
        for form, data in values.items():
            found = flat_shards((first, first + data.numel()), parts, data)
            state |= {form.format(name): shard for name, shard in found.items()}
    return state


def _split_each(rank: int, ranks: int, model: State, held: State) -> State:
    """ZeRO 3: the ranks divide every parameter, and lay their pieces one after the other."""
    state: State = {}
    kept = held["optimizer_state_dict"]["state"]

    def pieces(
        shapes: dict[str, Any], data: torch.Tensor, form: str
    ) -> Iterator[tuple[str, Shard]]:
        at = 0
        for name, shape in shapes.items():
            share = -(-shape.numel() // ranks)
            own = data[at : at + share]
            found = flat_shards(
                (rank * share, rank * share + share), [(name, tuple(shape), 0)], own
            )
            yield from ((form.format(n), shard) for n, shard in found.items())
            at += share

    for number, shapes in enumerate(model["param_shapes"]):
        state |= pieces(shapes, held["fp32_flat_groups"][number], "fp32/{}")
        for key in ("exp_avg", "exp_avg_sq"):
            state |= pieces(shapes, kept[number][key], f"optimizer/state/{{}}/{key}")
    for name, shape in (model["frozen_param_shapes"] or {}).items():
        state |= pieces({name: shape}, model["frozen_param_fragments"][name], "model/{}")
    return state
