"""What real processes do with the states of models: some train and write, others read.

Every job returns what is wrong; nothing if all is right.
"""

from __future__ import annotations

import warnings

import torch
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

import bcpformat
from bcpformat.torch import get_state, set_state
from tests.distributed.worker import Member
from tests.torch.nets import (
    MODELS,
    SAME_DATA,
    Net,
    compute,
    differences,
    leaves,
    optimizer_of,
    parts,
    train,
)


def write(member: Member, layout: str, place: str) -> list[str]:
    """Train and write; compare with what FSDP1 gathers, if it is that."""
    with member.default_group():
        model = MODELS[layout](1)
        optimizer = optimizer_of(model, 0.125)
        for step in range(2):
            train(model, optimizer, seed=10 * step + member.rank * (layout not in SAME_DATA))
        compute(model)
        bcpformat.write(place, {**get_state(model, optimizer), "epoch": 4})
        if not layout.startswith("FSDP1"):
            return []
        saved = dict(leaves(bcpformat.read(place)))
        return [n for n, v in gathered(model).items() if not torch.equal(saved[n], v)]


def gathered(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers that FSDP1 gathers, by the names of `get_state`."""
    kind = StateDictType.FULL_STATE_DICT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with FullyShardedDataParallel.state_dict_type(model, kind):
            state = model.state_dict()
    return {f"model/{k}": v for k, v in state.items() if isinstance(v, torch.Tensor)}


def read(member: Member, layout: str, place: str) -> list[str]:
    """Read into another model, see that it is the one that was written, and train on."""
    with member.default_group():
        model = MODELS[layout](2)
        optimizer = optimizer_of(model, 0.5)
        compute(model)
        with bcpformat.open(place) as saved:
            state = {**get_state(model, optimizer, saved=saved), "epoch": 0}
        places = [(p, p.data_ptr()) for p in model.parameters() if p.numel()]
        bcpformat.read(place, into=state)
        set_state(model, optimizer, state)
        problems = [] if state["epoch"] == 4 else ["the epoch is not read"]
        if any(p.data_ptr() != was for p, was in places) and "FSDP1" not in layout:
            problems.append("parameters moved")

        plain = Net(3)
        other = optimizer_of(plain, 0.75)
        with bcpformat.open(place) as saved:
            whole = {**get_state(plain, other, saved=saved), "epoch": 0}
        bcpformat.read(place, into=whole, group=None)
        set_state(plain, other, whole)
        own = get_state(model, optimizer)
        problems += differences(leaves(own), parts(own, whole))
        if not torch.allclose(compute(model), compute(plain), atol=1e-5):
            problems.append("it computes something else")
        for step in range(2):
            train(model, optimizer, seed=step)
            train(plain, other, seed=step)
        if not torch.allclose(compute(model), compute(plain), atol=1e-4):
            problems.append("it learns something else")
        return problems
