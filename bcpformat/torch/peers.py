"""`torch.save` and `torch.load` as they are used without bcpformat, for measuring beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

Array: TypeAlias = npt.NDArray[Any]  # Any: the scalar type is the tensor's
Groups: TypeAlias = Mapping[str, Mapping[str, torch.Tensor]]
"""Names of tensors in named groups."""


def tensor_over(array: Array) -> torch.Tensor:
    """Return a tensor that shares the memory of an array.

    Args:
        array: C-contiguous, of float32 or of the ``bfloat16`` of ml_dtypes.
    """
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def save(state: Groups, path: str) -> None:
    """Save with `torch.save`; nothing is made durable."""
    torch.save(state, path)


def load_into(state: Groups, path: str, *, mmap: bool) -> None:
    """Load what `save` wrote and copy it into existing tensors.

    Args:
        state: Filled; the names and shapes of what was saved.
        path: The file.
        mmap: Map the file instead of reading it to new memory.
    """
    loaded = torch.load(path, map_location="cpu", mmap=mmap, weights_only=True)
    for group, tensors in state.items():
        for name, tensor in tensors.items():
            tensor.copy_(loaded[group][name])


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch copy with one thread within the block.

    Its threads wait actively for one another, which costs much while others load the machine.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
