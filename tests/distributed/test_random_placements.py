"""DTensors of random placements on random meshes: from one layout to the next, to a third."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]
torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402  # torch comes first, as before what follows
from hypothesis import strategies as st  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard  # noqa: E402
from torch.distributed.tensor.placement_types import Placement, _StridedShard  # noqa: E402

import bcpformat  # noqa: E402
from bcpformat import MemoryStore  # noqa: E402
from bcpformat.testing.ranks import run_ranks  # noqa: E402
from tests.distributed.torch_fixture_states import placed  # noqa: E402
from tests.torch.meshes import as_rank  # noqa: E402

MESHES = ((1,), (2,), (3,), (5,), (2, 2), (3, 2), (2, 3), (1, 4), (2, 2, 2))


@dataclass(frozen=True, slots=True)
class Placing:
    """A mesh, and what its axes do to a tensor."""

    mesh: tuple[int, ...]
    placements: tuple[Placement, ...]

    def tensors(self, whole: Any) -> list[Any]:
        """Return the DTensor of each rank; torch cuts it."""
        ranks = prod(self.mesh)
        found = []
        for rank in range(ranks):
            with as_rank(rank, of=ranks):
                mesh = DeviceMesh("cpu", torch.arange(ranks).reshape(self.mesh))
                found.append(placed(whole, mesh, list(self.placements)))
        return found


@st.composite
def placings(draw: st.DrawFn, ndim: int) -> Placing:
    mesh = draw(st.sampled_from(MESHES))
    axes = st.integers(0, ndim - 1)
    whole = st.just(Replicate())
    kinds = whole | st.builds(Shard, axes) if ndim else whole
    placements = draw(st.tuples(*[kinds] * len(mesh)))
    if ndim and len(mesh) == 2 and draw(st.booleans()):  # fully_shard over tensor parallelism
        axis = draw(axes)
        placements = (_StridedShard(axis, split_factor=mesh[1]), Shard(axis))
    return Placing(mesh, placements)


@given(data=st.data())
@settings(max_examples=40)
def test_placements_a_to_b_to_c_keep_every_element(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 7), max_size=3)))
    dtype = data.draw(st.sampled_from([torch.float32, torch.int16, torch.complex64]))
    whole = torch.arange(1, prod(shape) + 1).reshape(shape).to(dtype)
    first, *others = data.draw(st.tuples(*[placings(len(shape))] * 3))

    held = first.tensors(whole)
    for placing in others:
        store = MemoryStore()
        run_ranks(
            len(held),
            lambda end, s=store, h=held: bcpformat.write(s, {"w": h[end.rank]}, group=end),
        )
        expected = placing.tensors(whole)
        held = placing.tensors(torch.zeros_like(whole))
        run_ranks(
            len(held),
            lambda end, s=store, h=held: bcpformat.read(s, into={"w": h[end.rank]}, group=end),
        )

        pairs = zip(held, expected, strict=True)
        assert all(torch.equal(mine.to_local(), right.to_local()) for mine, right in pairs)
