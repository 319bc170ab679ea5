"""Fixtures of the tests with torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.torch.meshes import as_rank


@pytest.fixture
def rank3() -> Iterator[None]:
    """Let this process be rank 3 of 6: (1, 1) of a mesh of 3 x 2."""
    with as_rank(3, of=6):
        yield


@pytest.fixture
def mesh(rank3: None) -> DeviceMesh:
    return init_device_mesh("cpu", (3, 2), mesh_dim_names=("dp", "tp"))
