"""FSDP1: modules wrapped by `FullyShardedDataParallel`, whose parameters lie in flat buffers.

Every unit of FSDP1 flattens its parameters into one buffer, and each rank has a range of it, which
is cut anywhere.  With ``use_orig_params=False`` the optimizer sees the range, with ``True`` the
piece of each parameter in it, of no elements on most ranks.  Either way these are shards with flat
ranges: nothing is communicated, neither to save nor to load, and the shards are views of what FSDP1
and the optimizer have, so that a read into them fills it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._common_utils import HandleTrainingState
from torch.distributed.fsdp._flat_param import FlatParamHandle
from torch.distributed.fsdp._runtime_utils import _reshard
from torch.optim import Optimizer

from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.names import shortened
from bcpformat.model.shards import Shard
from bcpformat.torch.flat import InBuffer, flat_shards
from bcpformat.torch.optimizers import (
    Named,
    Place,
    Tree,
    Value,
    equal,
    initial_state,
    is_fresh,
    optimizer_tree,
    own,
)

_EXTRA = "_extra_state"
_WRAPPERS = frozenset({"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"})
"""Parts of a name that come from wrappers."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """One flat buffer of a model.

    Attributes:
        handle: What FSDP1 keeps of it.
        parts: Its parameters, under their names in the model.
        tied: Other names of parameters, and the name in `parts`.
        range: This rank's range of the buffer.
        local: The elements of the range.
    """

    handle: FlatParamHandle
    parts: tuple[InBuffer, ...]
    tied: tuple[tuple[str, str], ...]
    range: tuple[int, int]
    local: torch.Tensor

    def shards(self) -> dict[str, Shard]:
        """Return what this rank has of each parameter, also under the other names of tied ones."""
        found = flat_shards(self.range, self.parts, self.local)
        found.update({name: found[first] for name, first in self.tied if first in found})
        return found


def has_fsdp1(model: torch.nn.Module) -> bool:
    """Return whether a module, or one within, is wrapped by FSDP1."""
    return any(isinstance(module, FullyShardedDataParallel) for module in model.modules())


def fsdp1_state(
    model: torch.nn.Module, optimizer: Optimizer | Sequence[Optimizer] | None = None
) -> Tree:
    """Return the state of an FSDP1 model as this rank has it, without communication.

    It is what `get_state` returns for such a model, and `set_state` takes it back: see there.
    Parameters, and whatever the optimizer has an element of for each of theirs, are shards, which
    are views of the flat buffers.

    Args:
        model: Wrapped by FSDP1, with ``use_orig_params`` or without; it may have parameters
            outside FSDP1 too.  This is called between steps.
        optimizer: That or those of the model; None for the model alone.  One that has made no step
            is given the state that a first step would give it, with a count of 0.

    Raises:
        InvalidArgumentError: A unit is being computed with or is unsharded by
            `summon_full_params`; a parameter has no row-major elements, or is a DTensor itself;
            or the optimizer does not fit (see `get_state`).
    """
    state: Tree = {"model": fsdp1_model(model)}
    if optimizer is not None:
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        state["optim"] = optimizer_tree(optimizers, fsdp1_places(model), attach=True)
    return state


def fsdp1_model(model: torch.nn.Module) -> Tree:
    """Return parameters, buffers and extra state of a model, by name (see `fsdp1_state`)."""
    units = list(_units(model))
    state: Tree = {}
    for unit in units:
        state.update(unit.shards())
    state.update((name, parameter.detach()) for name, parameter in _unflattened(model, units))
    for prefix, module in _modules(model):
        for key, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            if key not in module._non_persistent_buffers_set:
                state[_joined(prefix, key)] = buffer.detach()
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            state[_joined(prefix, _EXTRA)] = module.get_extra_state()
    return state


def fsdp1_places(model: torch.nn.Module) -> dict[torch.Tensor, Place]:
    """Return every parameter that an optimizer may have, to its place."""
    units = list(_units(model))
    places: dict[torch.Tensor, Place] = {}
    for unit in units:
        flat = unit.handle.flat_param
        if flat._params is None:
            places[flat] = _InUnit(tuple(p.name for p in unit.parts), unit.range, unit.parts)
            continue
        first, end = unit.range
        for original, part in zip(flat._params, unit.parts, strict=True):
            low = min(max(first, part.offset), part.end)
            high = max(low, min(end, part.end))
            places[original] = _InUnit((part.name,), (low, high), (part,))
    for name, parameter in _unflattened(model, units):
        places.setdefault(parameter, Named((name,)))
    return places


def attach_initial(optimizers: Sequence[Optimizer]) -> None:
    """Give optimizers that have made no step the state of their first, for a load to fill."""
    for optimizer in optimizers:
        if is_fresh(optimizer):
            optimizer.state.update(initial_state(optimizer))


def load_fsdp1_model(model: torch.nn.Module, given: Mapping[str, Value]) -> None:
    """Give a model the state that `fsdp1_model` made, filled by a read.

    Raises:
        InvalidArgumentError: The names differ, or a shard is of another region (``E_MISMATCH``).
    """
    for module in model.modules():
        _free_gathered(module)
    live = fsdp1_model(model)
    check_names(live, given)
    extra = {
        _joined(prefix, _EXTRA): module
        for prefix, module in _modules(model)
        if type(module).set_extra_state is not torch.nn.Module.set_extra_state
    }
    for name, value in live.items():
        if name in extra:
            extra[name].set_extra_state(given[name])
        else:
            _fill(name, value, given[name])


def _free_gathered(module: torch.nn.Module) -> None:
    """Let a unit drop the whole parameters that a forward left, which a read did not change."""
    handle = _handle_of(module)
    if handle is None or not handle.uses_sharded_strategy:
        return
    if hasattr(handle.flat_param, "_full_param_padded") and not handle.needs_unshard():
        _reshard(module, handle, free_unsharded_flat_param=True)


def check_names(live: Mapping[str, object], given: Mapping[str, object]) -> None:
    """Refuse the state of a model if it has other names than the model.

    Raises:
        InvalidArgumentError: They differ (``E_MISMATCH``).
    """
    lacking, extra = live.keys() - given.keys(), given.keys() - live.keys()
    if lacking or extra:
        name = min(lacking or extra)
        text = f"the state lacks {shortened(name)}, which the model has"
        if not lacking:
            text = f"the state has {shortened(name)}, which the model lacks"
        more = len(lacking) + len(extra) - 1
        text += f" (and {more} other names differ)" if more else ""
        raise InvalidArgumentError(text, code=ErrorCode.MISMATCH)


# ---- what a parameter of the optimizer stands for ----------------------------------------------


@dataclass(frozen=True, slots=True)
class _InUnit:
    """The place of a range of a flat buffer, or of one parameter's piece of it.

    Attributes:
        names: Those of `parts`.
        range: Of the buffer.
        parts: The parameters that lie there.
    """

    names: tuple[str, ...]
    range: tuple[int, int]
    parts: tuple[InBuffer, ...]

    def shown(self, value: Value) -> Mapping[str, Value]:
        """Return shards of what has an element for each of the range; else a copy by name."""
        if self._is_like_range(value):
            return flat_shards(self.range, self.parts, value.detach().reshape(-1))
        if len(self.names) == 1:
            return {self.names[0]: value}
        return {name: own(value) for name in self.names}

    def joined(self, live: Value, given: Mapping[str, Value]) -> Value:
        """Fill what the optimizer has; what belongs to the range as a whole was stored by name."""
        if self._is_like_range(live):
            for name, shard in self.shown(live).items():
                if name in given:
                    _fill(name, shard, given[name])
            return live
        (name, value), *others = given.items()
        for other, again in others:
            if not equal(value, again):
                text = f"{shortened(name)} and {shortened(other)} are in one flat parameter, but "
                text += f"were saved with {value!r:.100} and {again!r:.100}; such parameters need "
                text += "use_orig_params=True"
                raise InvalidArgumentError(text, code=ErrorCode.MISMATCH)
        if isinstance(live, torch.Tensor) and isinstance(value, torch.Tensor):
            _fill(name, live, value)
            return live
        return own(value)

    def _is_like_range(self, value: object) -> bool:
        if not isinstance(value, torch.Tensor):
            return False
        first, end = self.range
        whole = len(self.parts) == 1 and prod(self.parts[0].shape) == end - first
        return value.shape == (end - first,) or (whole and value.shape == self.parts[0].shape)


def _fill(name: str, live: Value, given: Value) -> None:
    """Copy what was read to where it belongs, if it was not read there."""
    if isinstance(live, Shard):
        if not isinstance(given, Shard) or given.region != live.region:
            text = f"{shortened(name)} is no shard of {live.region}; fill what get_state returned"
            raise InvalidArgumentError(text, code=ErrorCode.MISMATCH)
        live, given = live.data, given.data
    if not isinstance(given, torch.Tensor) or given.shape != live.shape:
        text = f"{shortened(name)} has shape {tuple(live.shape)} here, but what was given is "
        text += f"{tuple(given.shape) if hasattr(given, 'shape') else type(given).__name__}"
        raise InvalidArgumentError(text, code=ErrorCode.MISMATCH)
    if given.data_ptr() != live.data_ptr() or given.device != live.device:
        with torch.no_grad():
            live.copy_(given)


# ---- the units of a model ----------------------------------------------------------------------


def _units(model: torch.nn.Module) -> Iterator[_Unit]:
    for prefix, module in _modules(model):
        handle = _handle_of(module)
        if handle is not None:
            yield _unit(prefix, handle)


def _unit(prefix: str, handle: FlatParamHandle) -> _Unit:
    flat = handle.flat_param
    if handle._training_state is not HandleTrainingState.IDLE:
        text = f"the FSDP unit {prefix!r} is at work ({handle._training_state.name}); take its "
        raise InvalidArgumentError(text + "state between steps, outside of summon_full_params")
    # it is set at the first forward; until then the parameter itself is the range
    local = getattr(flat, "_local_shard", flat.data)
    first = handle.rank * local.numel() if handle.uses_sharded_strategy else 0
    tied = tuple(
        (
            _joined(prefix, _cleaned(f"{module_name}.{name}")),
            _joined(prefix, _cleaned(f"{first_module}.{first_name}")),
        )
        for name, _, module_name, first_name, _, first_module in flat._shared_param_infos
    )
    return _Unit(
        handle=handle,
        parts=tuple(_parts(prefix, handle)),
        tied=tied,
        range=(first, first + local.numel()),
        local=local.detach(),
    )


def _parts(prefix: str, handle: FlatParamHandle) -> Iterator[InBuffer]:
    flat = handle.flat_param
    params = iter(zip(flat._fqns, flat._shapes, flat._strides, flat._param_extensions, strict=True))
    offset = 0
    for numel, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        if not is_padding:
            name, shape, strides, extension = next(params)
            name = _joined(prefix, _cleaned(name))
            if extension is not None:
                text = (
                    f"{shortened(name)} is a DTensor in a flat parameter, which has no form; use "
                )
                raise InvalidArgumentError(text + "fully_shard", code=ErrorCode.NO_FORM)
            if not _is_row_major(shape, strides):
                text = (
                    f"{shortened(name)} of shape {tuple(shape)} lies in a flat parameter with the "
                )
                text += f"strides {tuple(strides)}, not row-major, which has no form; make it "
                text += "contiguous before it is wrapped"
                raise InvalidArgumentError(text, code=ErrorCode.NO_FORM)
            yield InBuffer(name, tuple(shape), offset)
        offset += numel


def _is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent > 1 and stride != step:
            return 0 in shape
        step *= extent
    return True


def _handle_of(module: torch.nn.Module) -> FlatParamHandle | None:
    return module._handle if isinstance(module, FullyShardedDataParallel) else None


def _unflattened(
    model: torch.nn.Module, units: Sequence[_Unit]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters that are in no flat buffer, each under all its names."""
    flat: set[int] = set()
    for unit in units:
        buffer = unit.handle.flat_param
        flat.update(map(id, [buffer, *(buffer._params or ()), *(buffer._shared_params or ())]))
    for prefix, module in _modules(model):
        for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) not in flat:
                yield _joined(prefix, key), parameter


def _modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield every module with its name in the model, a shared one under each of its names."""
    for name, module in model.named_modules(remove_duplicate=False):
        yield _cleaned(name), module


def _cleaned(name: str) -> str:
    return ".".join(part for part in name.split(".") if part and part not in _WRAPPERS)


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
