"""The safetensors library as it is used without bcpformat, for measuring beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import safetensors
import safetensors.torch


def save(tensors: Mapping[str, Any], path: str) -> None:
    """Save torch tensors with `save_file`; nothing is made durable.

    Args:
        tensors: Name to tensor.  Any: their type belongs to a library that is not known here.
        path: The file.
    """
    safetensors.torch.save_file(dict(tensors), path)


def load_into(tensors: Mapping[str, Any], path: str) -> None:
    """Copy what `save` wrote into existing torch tensors, one after the other.

    Args:
        tensors: Name to tensor, filled.  Any: as in `save`.
        path: The file.
    """
    with safetensors.safe_open(path, framework="pt") as file:
        for name, tensor in tensors.items():
            tensor.copy_(file.get_tensor(name))
