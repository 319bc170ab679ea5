"""A process that plays one rank of many, without any others: what tests of one rank need."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore

from bcpformat.api.framework import Target, TargetPart
from bcpformat.model.dtypes import DType
from bcpformat.model.region import Box
from bcpformat.torch.framework import opaque_view


@contextmanager
def as_rank(rank: int, *, of: int) -> Iterator[None]:
    """Let this process be a rank of a group whose collectives do nothing."""
    _clear_sharding_prop_cache()  # torch keeps meshes there, which know the rank of before
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=of)
    try:
        yield
    finally:
        dist.destroy_process_group()


def fill(target: Target, whole: torch.Tensor) -> None:
    """Write the elements that a target wants, as a read does."""
    assert target.refusal is None
    parts = target.parts
    if parts is None:
        parts = (TargetPart(Box.whole(target.shape), target.address, target.strided),)
    elements = opaque_view(whole, DType.named(str(whole.dtype).removeprefix("torch.")))
    for part in parts:
        box = tuple(slice(o, o + e) for o, e in zip(part.box.origin, part.box.shape, strict=True))
        source = elements[box] if box else elements
        if part.strided is not None:
            assert not part.address
            part.strided[...] = source
        else:
            data = np.ascontiguousarray(source).tobytes()
            ctypes.memmove(part.address, data, len(data))
    if target.after is not None:
        target.after()
