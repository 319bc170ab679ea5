"""The state of optimizers by the names of parameters, so that any layout can read it.

torch numbers parameters in the order that one process gave them to one optimizer.  Here nothing
has a number: what an optimizer keeps of a parameter, and the settings of the parameter's group,
stand under the parameter's name.  So the trees of pipeline stages, or of several optimizers, are
united by name, and are read again by other stages and other groups.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch.optim import Optimizer

from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.names import shortened

STATE = "state"
GROUPS = "param_groups"
EMPTY = "empty_groups"

Value: TypeAlias = Any  # Any: optimizers keep what they like
Tree: TypeAlias = dict[str, Any]  # Any: leaves of a state, in nested dicts
Settings: TypeAlias = dict[Any, Value]  # Any: and under keys that they like

_OF_PROCESS = ("params", "param_names")
"""What a group has that is no setting."""

_ATOMS = (bool, int, float, str, type(None))


class Place(Protocol):
    """Which named tensors a parameter of an optimizer stands for."""

    @property
    def names(self) -> tuple[str, ...]:
        """Their names: one for a parameter, several for a flat one."""
        ...

    def shown(self, value: Value) -> Mapping[str, Value]:
        """Return what to store of a value that the optimizer keeps for the parameter, by name."""
        ...

    def joined(self, live: Value, given: Mapping[str, Value]) -> Value:
        """Return the value that the optimizer is to keep, from what was stored of it.

        Args:
            live: What it keeps now, filled in place if it can be; None if nothing.
            given: What was stored, by name; at least one.
        """
        ...


@dataclass(frozen=True, slots=True)
class Named:
    """The place of a parameter that is one tensor of the model."""

    names: tuple[str, ...]

    def shown(self, value: Value) -> Mapping[str, Value]:
        """Return the value itself."""
        return {self.names[0]: value}

    def joined(self, live: Value, given: Mapping[str, Value]) -> Value:
        """Return what was stored."""
        return given[self.names[0]]


Places = Mapping[torch.Tensor, Place]
"""Every parameter of the model to its place."""


def optimizer_tree(optimizers: Sequence[Optimizer], places: Places, *, attach: bool) -> Tree:
    """Return the state of optimizers by name.

    An optimizer that has no state because it made no step gets that of its first step, without the
    step: zeros as a rule, and a count of 0.

    Args:
        optimizers: No parameter is in two of them.
        places: The place of every parameter.
        attach: Give such a new state to the optimizer too; else it is left as it is.

    Returns:
        ``state``: by name what is kept of a parameter; absent where that is nothing.
        ``param_groups``: by name the settings of the parameter's group.  ``empty_groups``, only
        where there are any: settings of groups without parameters, by position, such as ``0.1``
        for the second group of the first optimizer.

    Raises:
        InvalidArgumentError: A parameter is not in the model, or is in two groups; or there is
            state that belongs to no parameter.
    """
    tree: Tree = {STATE: {}, GROUPS: {}}
    for number, optimizer in enumerate(optimizers):
        packed = optimizer.state_dict()
        parameters = _numbered(optimizer)
        _check_packed(packed, parameters)
        kept: Mapping[Any, Settings] = packed["state"]
        if is_fresh(optimizer):
            made = initial_state(optimizer)
            if attach:
                optimizer.state.update(made)
            kept = {n: made[p] for n, p in parameters.items() if p in made}
        for n, parameter in parameters.items():
            place = place_of(places, parameter)
            if n in kept:
                _show(tree[STATE], place, kept[n])
        for position, group in enumerate(packed["param_groups"]):
            names = [name for n in group["params"] for name in places[parameters[n]].names]
            settings = _settings(group)
            if not names:
                tree.setdefault(EMPTY, {})[f"{number}.{position}"] = settings
            elif not tree[GROUPS].keys().isdisjoint(names):
                first = next(name for name in names if name in tree[GROUPS])
                text = f"parameter {shortened(first)} is in two groups of the optimizers"
                raise InvalidArgumentError(text)
            fixed = all(map(_is_fixed, settings.values()))
            for name in names:
                tree[GROUPS][name] = dict(settings) if fixed else _settings(settings)
    return tree


def _show(states: Tree, place: Place, kept: Settings) -> None:
    for key, value in kept.items():
        for name, leaf in place.shown(value).items():
            states.setdefault(name, {})[key] = leaf


def _settings(group: Mapping[Any, Value]) -> Settings:
    """Return the settings of a group, as objects that nobody shares."""
    return {key: own(value) for key, value in group.items() if key not in _OF_PROCESS}


def _is_fixed(value: Value) -> bool:
    """Return whether a value can be shared, as nobody can change it; False says nothing."""
    return type(value) in _ATOMS or (type(value) is tuple and all(type(v) in _ATOMS for v in value))


def own(value: Value) -> Value:
    """Return a copy of a value of an optimizer: one tensor under two names would be tied."""
    if _is_fixed(value):
        return value
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def place_of(places: Places, parameter: torch.Tensor) -> Place:
    """Return the place of a parameter.

    Raises:
        InvalidArgumentError: The model does not have it.
    """
    place = places.get(parameter)
    if place is None:
        text = f"an optimizer has a parameter of shape {tuple(parameter.shape)} which the model "
        raise InvalidArgumentError(text + "does not have; pass the module that has all of them")
    return place


def _numbered(optimizer: Optimizer) -> dict[int, torch.Tensor]:
    """Return the parameters of an optimizer by the numbers that its `state_dict` gives them."""
    numbers: dict[int, torch.Tensor] = {}
    seen: set[int] = set()
    start = 0
    for group in optimizer.param_groups:
        for n, parameter in enumerate(group["params"], start):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                numbers[n] = parameter
        start += len(group["params"])
    return numbers


def _check_packed(packed: Tree, parameters: Mapping[int, torch.Tensor]) -> None:
    others = [key for key in packed if key not in ("state", "param_groups")]
    others += [key for key in packed["state"] if key not in parameters]
    if others:
        text = f"an optimizer keeps {others[0]!r:.100}, which belongs to no parameter; "
        raise InvalidArgumentError(text + "save its state_dict() itself, under a name of its own")


# ---- new optimizers ----------------------------------------------------------------------------


def is_fresh(optimizer: Optimizer) -> bool:
    """Return whether an optimizer has made no step, as far as can be seen."""
    return not optimizer.state and all(p.grad is None for p in _parameters(optimizer))


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def initial_state(optimizer: Optimizer) -> dict[torch.Tensor, Settings]:
    """Return the state that an optimizer has of its parameters before its first step.

    Optimizers make it in their first step.  So a twin of the optimizer makes one, with parameters
    and gradients of zeros in place of the real ones, and then the count of steps goes back to 0.
    State and settings of the optimizer do not change, no hook is called, and the memory of at most
    two parameters is needed beside the result.

    Returns:
        Parameter to state, without those for which nothing is kept, or whose gradient is not
        wanted.

    Raises:
        InvalidArgumentError: The step failed.
    """
    twin = object.__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__)
    twin.defaults = {**optimizer.defaults, "differentiable": False}
    found: dict[torch.Tensor, Settings] = {}
    for group in optimizer.param_groups:
        known: dict[object, Settings] = {}  # most parameters of a model are like another
        for parameter in group["params"]:
            if not parameter.requires_grad or not parameter.numel():
                continue
            like = _likeness(parameter)
            if like in known:
                kept = {key: own(value) for key, value in known[like].items()}
            else:
                kept = known[like] = _first_step(twin, group, parameter)
            if kept:
                found[parameter] = kept
    return found


def _likeness(parameter: torch.Tensor) -> object:
    layout = getattr(parameter, "_spec", None)  # of a DTensor
    return parameter.shape, parameter.stride(), parameter.dtype, parameter.device, layout


def _first_step(twin: Optimizer, group: Settings, like: torch.Tensor) -> Settings:
    """Let the twin make the first step of one parameter, and return the state before it."""
    parameter = torch.nn.Parameter(torch.zeros_like(like))
    parameter.grad = torch.zeros_like(like)
    settings = _settings(group)
    if "differentiable" in settings:
        settings["differentiable"] = False
    twin.state = defaultdict(dict)
    twin.param_groups = [{**settings, "params": [parameter]}]
    step: Any = type(twin).step  # Any: torch puts a function around it, which calls the hooks
    if getattr(step, "hooked", False):
        step = step.__wrapped__
    try:
        step(twin)
    except Exception as error:  # what an optimizer may raise is not known
        kind = type(twin).__name__
        text = f"{kind} has no state yet, and its first step, tried on zeros, failed: {error}; "
        raise InvalidArgumentError(text + "make a step before, or give no optimizer") from error
    kept = dict(twin.state.get(parameter, {}))
    count = kept.get("step")
    if isinstance(count, torch.Tensor):
        kept["step"] = torch.zeros_like(count)
    elif isinstance(count, (int, float)):
        kept["step"] = type(count)(0)
    return kept


# ---- back ----------------------------------------------------------------------------------------


def load_optimizers(optimizers: Sequence[Optimizer], places: Places, tree: Tree) -> None:
    """Give optimizers the state of a tree that `optimizer_tree` made, filled by a read.

    Tensors that the optimizer has already stay the same objects.  A parameter of which the tree
    has no state has none afterwards; a setting that it does not have stays as it is.

    Raises:
        InvalidArgumentError: The tree has names that the optimizers do not have (``E_MISMATCH``),
            or different settings for parameters of one group.
    """
    known = [name for o in optimizers for p in _parameters(o) for name in place_of(places, p).names]
    unknown = (tree.get(STATE, {}).keys() | tree.get(GROUPS, {}).keys()) - set(known)
    if unknown:
        text = f"no optimizer has a parameter {shortened(min(unknown))}, of which there is state"
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        raise InvalidArgumentError(text + more, code=ErrorCode.MISMATCH)
    plans = [(o, *_plan(number, o, places, tree)) for number, o in enumerate(optimizers)]
    for optimizer, states, groups in plans:
        _load(optimizer, states, groups)


def _plan(
    number: int, optimizer: Optimizer, places: Places, tree: Tree
) -> tuple[dict[int, Settings], list[Settings]]:
    """Return what `load_state_dict` is to be given: states by number, and groups."""
    parameters = _numbered(optimizer)
    states: dict[int, Settings] = {}
    for n, parameter in parameters.items():
        kept = _join(places[parameter], optimizer.state.get(parameter, {}), tree.get(STATE, {}))
        if kept:
            states[n] = kept
    numbers = {id(parameter): n for n, parameter in parameters.items()}
    groups = []
    for position, group in enumerate(optimizer.param_groups):
        names = [name for p in group["params"] for name in places[p].names]
        saved = [(name, tree.get(GROUPS, {}).get(name)) for name in names]
        if not names:
            where = f"{number}.{position}"
            saved = [(f"{EMPTY}/{where}", tree.get(EMPTY, {}).get(where))]
        settings = {key: value for key, value in group.items() if key != "params"}
        settings.update(_common([(name, each) for name, each in saved if each is not None]))
        groups.append({**settings, "params": [numbers[id(p)] for p in group["params"]]})
    return states, groups


def _join(place: Place, live: Settings, states: Mapping[str, Settings]) -> Settings:
    """Return what is to be kept of a parameter, empty if nothing is stored of it."""
    given = {name: states[name] for name in place.names if states.get(name)}
    if not given:
        return {}
    keys = dict.fromkeys([*live, *(key for each in given.values() for key in each)])
    kept: Settings = {}
    for key in keys:
        stored = {name: each[key] for name, each in given.items() if key in each}
        if stored:
            kept[key] = place.joined(live.get(key), stored)
        elif not place.shown(live[key]):  # this rank has no element of it
            kept[key] = live[key]
    return kept


def _common(saved: Sequence[tuple[str, Settings]]) -> Settings:
    """Return the settings that all parameters of a group have."""
    if not saved:
        return {}
    first, settings = saved[0]
    for name, other in saved[1:]:
        for key in settings.keys() | other.keys():
            if key not in other or key not in settings or not equal(settings[key], other[key]):
                text = (
                    f"{shortened(first)} and {shortened(name)} are in one group of an optimizer, "
                )
                text += f"but {key!r} was saved as {settings.get(key)!r:.100} and "
                text += f"{other.get(key)!r:.100}; make the groups that were saved"
                raise InvalidArgumentError(text, code=ErrorCode.MISMATCH)
    return {key: value for key, value in settings.items() if key not in _OF_PROCESS}


def equal(a: Value, b: Value) -> bool:
    """Return whether two values of an optimizer are equal."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        both = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        return both and a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and (a == b or repr(a) == repr(b))  # two NaN are one setting


def _load(optimizer: Optimizer, states: dict[int, Settings], groups: list[Settings]) -> None:
    parameters = _numbered(optimizer)
    was_fresh = not optimizer.state
    before = {p: dict(optimizer.state.get(p, {})) for p in parameters.values()}
    settings = [dict(group) for group in optimizer.param_groups]
    optimizer.load_state_dict({"state": states, "param_groups": groups})
    # torch converts what it loads to the data type of the parameter; what the optimizer itself
    # had made with another, and what others refer to, stays what it was
    for n, kept in states.items():
        parameter = parameters[n]
        now = optimizer.state[parameter]
        for key, value in kept.items():
            if not isinstance(value, torch.Tensor) or not isinstance(now.get(key), torch.Tensor):
                continue
            mine = value is before[parameter].get(key) or was_fresh
            if mine and now[key].device == value.device:
                now[key] = value
    for group, old in zip(optimizer.param_groups, settings, strict=True):
        for key, value in old.items():
            if isinstance(value, torch.Tensor) and isinstance(group.get(key), torch.Tensor):
                with torch.no_grad():
                    value.copy_(group[key])
                group[key] = value
