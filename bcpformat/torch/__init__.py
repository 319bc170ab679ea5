"""Everything that knows torch: its tensors as leaves and as destinations, its types as nodes.

The core never imports this; `api` loads it by name when a state may hold something of torch.  What
a training calls is loaded when it is first used: the modules of torch behind it take long.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from bcpformat.torch.framework import FRAMEWORK, loaded_framework

if TYPE_CHECKING:
    from bcpformat.torch.flat import InBuffer, flat_shards
    from bcpformat.torch.fsdp1 import fsdp1_state
    from bcpformat.torch.states import get_state, set_state

_HOMES = {
    "InBuffer": "bcpformat.torch.flat",
    "flat_shards": "bcpformat.torch.flat",
    "fsdp1_state": "bcpformat.torch.fsdp1",
    "get_state": "bcpformat.torch.states",
    "set_state": "bcpformat.torch.states",
}
"""Public name to the module that defines it."""


def __getattr__(name: str) -> object:
    """Load a public name from its home."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "FRAMEWORK",
    "InBuffer",
    "flat_shards",
    "fsdp1_state",
    "get_state",
    "loaded_framework",
    "set_state",
]
