"""Distributed tensors of one rank, as leaves and as destinations."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Placement,
    Replicate,
    distribute_tensor,
)

from bcpformat.api.framework import Target
from bcpformat.model.dtypes import DType
from bcpformat.model.leaves import TensorLeaf
from bcpformat.torch.dtensor import DTensorAdapter, dtensor_target

ADAPTER = DTensorAdapter()
FLOAT32 = DType.named("float32")


def placed(whole: torch.Tensor, mesh: DeviceMesh, *placements: Placement) -> DTensor:
    """Return a distributed tensor whose local part was cut out here."""
    return distribute_tensor(whole, mesh, list(placements), src_data_rank=None)


def over(
    local: torch.Tensor, mesh: DeviceMesh, *placements: Placement, shape: tuple[int, ...]
) -> DTensor:
    """Return a distributed tensor over a local one, whatever that is."""
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        local, mesh, list(placements), run_check=False, shape=torch.Size(shape), stride=stride
    )


def described(value: DTensor) -> TensorLeaf:
    return ADAPTER.describe(value, lambda: "model/w")


def wanted(value: DTensor, *, saved: str = "float32", cast: bool = False) -> Target:
    return dtensor_target(value, cast, DType.named(saved))


def rows(count: int = 7, columns: int = 5) -> torch.Tensor:
    return torch.arange(count * columns, dtype=torch.float32).reshape(count, columns)


BOTH = (Replicate(), Replicate())


def freed(value: DTensor) -> DTensor:
    value.to_local().untyped_storage().resize_(0)
    return value
