"""The state of models and optimizers, in a form that any layout can read: `get_state`, `set_state`.

It stands on `torch.distributed.checkpoint.state_dict`, which knows the names of parameters under
DDP, FSDP2, tensor parallelism and `torch.compile`, and takes from the optimizers by itself what
that does not keep: which parameters have no state, and groups without parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    _get_fqns,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from bcpformat.api.opened import Checkpoint
from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.names import join, shortened
from bcpformat.torch.fitting import fit
from bcpformat.torch.fsdp1 import (
    attach_initial,
    check_names,
    fsdp1_model,
    fsdp1_places,
    has_fsdp1,
    load_fsdp1_model,
)
from bcpformat.torch.optimizers import (
    Named,
    Place,
    Tree,
    Value,
    load_optimizers,
    optimizer_tree,
)

MODEL = "model"
OPTIM = "optim"

_COMPILED = "_orig_mod"
"""Where `torch.compile` keeps the module that it was given."""


def get_state(
    model: Module | Sequence[Module],
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    saved: Checkpoint | None = None,
    under: str = "",
) -> Tree:
    """Return the state of a model and its optimizers, to be written, or to be read into.

    It has this rank's part of it: plain tensors, DTensors, or for FSDP1 shards (see `fsdp1_state`),
    all of which are what the model and the optimizers have, not copies.  Nothing is communicated.

    An optimizer that has made no step has no state to read into.  It is shown with the state of its
    first step, but for the step: zeros as a rule, and a count of 0.  The optimizer itself is not
    changed (that of an FSDP1 model is given this state).

    Args:
        model: A module, wrapped or not; or the parts of one that this rank has, such as the stages
            of a pipeline, without a name in common.
        optimizer: That or those of the model; None for the model alone.
        saved: The checkpoint that will be read into the state.  Then the optimizer's part has just
            what the checkpoint has of these parameters: a parameter without state there has none
            here, and settings and groups that only one of the two has make no difference.
        under: Name of the container in the checkpoint that holds what this returns.

    Returns:
        ``model``: name to parameter, buffer or extra state.  ``optim``, if there is an optimizer:
        ``state`` and ``param_groups``, by name of the parameter, and where there are any
        ``empty_groups``, the settings of groups without parameters, by position.

    Raises:
        InvalidArgumentError: An optimizer has a parameter that the model does not have, or one
            that another has too, or state that belongs to no parameter; or it made no step, and
            its first step fails.

    Example:
        >>> layer = torch.nn.Linear(2, 1)
        >>> state = get_state(layer, torch.optim.SGD(layer.parameters(), lr=0.5, momentum=0.9))
        >>> list(state["model"]), state["optim"]["state"]["bias"]["momentum_buffer"]
        (['weight', 'bias'], tensor([0.]))
        >>> state["optim"]["param_groups"]["weight"]["lr"]
        0.5
    """
    parts, optimizers = _modules(model), _optimizers(optimizer)
    state: Tree = {MODEL: _model_state(parts)}
    if optimizers is None:
        return state
    places, is_flat = _places(parts)
    tree = optimizer_tree(optimizers, places, attach=is_flat)
    if saved is not None:
        fit(tree, places, saved, under=join(under, OPTIM))
    state[OPTIM] = tree
    return state


def set_state(
    model: Module | Sequence[Module],
    optimizer: Optimizer | Sequence[Optimizer] | None,
    state: Mapping[str, Any],  # Any: parts of other kinds too
) -> None:
    """Give a model and its optimizers a state that `get_state` returned and a read filled.

    What was read in place stays in place: parameters and the tensors of an optimizer remain the
    same objects.  A parameter of which the state has none for the optimizer has none afterwards.

    Args:
        model: As for `get_state`; parameters on the meta device are replaced.
        optimizer: As for `get_state`; None leaves any optimizer alone.
        state: With ``model`` and, unless `optimizer` is None, ``optim``; what else it has is
            ignored.

    Raises:
        InvalidArgumentError: A part is missing, has names that are not here or lacks some that
            are, or has different settings for parameters of one group (``E_MISMATCH``).  The
            model may have its part then.
    """
    parts, optimizers = _modules(model), _optimizers(optimizer)
    for part in [MODEL] if optimizers is None else [MODEL, OPTIM]:
        if part not in state:
            text = f"the state has no {part!r}; give what get_state returned, filled"
            raise InvalidArgumentError(text, code=ErrorCode.MISMATCH)
    _load_model(parts, state[MODEL])
    if optimizers is None:
        return
    places, is_flat = _places(parts)
    if is_flat:
        attach_initial(optimizers)
    load_optimizers(optimizers, places, state[OPTIM])


def _modules(model: Module | Sequence[Module]) -> list[Module]:
    return [_unwrapped(each) for each in ([model] if isinstance(model, Module) else model)]


def _unwrapped(module: Module) -> Module:
    """Return what DDP or `torch.compile` was put around; names begin there."""
    while isinstance(module, DistributedDataParallel) or hasattr(module, _COMPILED):
        key = _COMPILED if hasattr(module, _COMPILED) else "module"
        module = module.get_submodule(key)
    return module


def _optimizers(optimizer: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer] | None:
    if optimizer is None:
        return None
    return [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)


# ---- models --------------------------------------------------------------------------------------


def _part_state(part: Module) -> Mapping[str, Value]:
    """Return the state of one module by name."""
    if has_fsdp1(part):
        return fsdp1_model(part)
    if not _has_wrapper(part):
        with torch.no_grad():
            found: Mapping[str, Value] = part.state_dict()
        return found
    # not strict: a stage of a pipeline may have no parameters at all
    return get_model_state_dict(part, options=StateDictOptions(strict=False))


def _has_wrapper(part: Module) -> bool:
    """Return whether names may have parts that come from a wrapper within, which torch removes."""
    return any(
        isinstance(module, (DistributedDataParallel, ActivationWrapper))
        or hasattr(module, _COMPILED)
        or hasattr(module, "_fqn_modifiers")
        for module in part.modules()
    )


def _model_state(parts: Sequence[Module]) -> Tree:
    """Return the state of all parts, as a plain dict: torch's own has the versions of wrappers."""
    state: Tree = {}
    for part in parts:
        found = _part_state(part)
        both = state.keys() & found.keys()
        if both:
            text = f"two parts of the model have a {shortened(min(both))}; name them apart"
            raise InvalidArgumentError(text)
        state.update(found)
    return state


def _load_model(parts: Sequence[Module], given: Mapping[str, Value]) -> None:
    live = [_part_state(part) for part in parts]
    check_names({name: None for found in live for name in found}, given)
    for part, found in zip(parts, live, strict=True):
        own = {name: given[name] for name in found}
        if has_fsdp1(part):
            load_fsdp1_model(part, own)
        elif any(isinstance(value, torch.Tensor) and value.is_meta for value in found.values()):
            part.load_state_dict(own, assign=True)
        elif own:
            set_model_state_dict(part, own, options=StateDictOptions(strict=True))


# ---- places --------------------------------------------------------------------------------------


def _places(parts: Sequence[Module]) -> tuple[dict[torch.Tensor, Place], bool]:
    """Return every parameter of the model to its place, and whether some lie in flat buffers."""
    places: dict[torch.Tensor, Place] = {}
    is_flat = False
    for part in parts:
        if has_fsdp1(part):
            is_flat = True
            places.update(fsdp1_places(part))
        else:
            has_wrapper = _has_wrapper(part)
            for raw, parameter in part.named_parameters():
                name = next(iter(_get_fqns(part, raw))) if has_wrapper else raw
                places[parameter] = Named((name,))
    return places, is_flat
