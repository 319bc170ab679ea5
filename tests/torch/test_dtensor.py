"""Distributed tensors as leaves, seen by one rank."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
)
from torch.distributed.tensor.placement_types import _StridedShard

from bcpformat.api.framework import load_torch
from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.leaves import FLAG_PARAMETER, FLAG_REQUIRES_GRAD
from tests.torch.distributed_tensors import (
    ADAPTER,
    BOTH,
    FLOAT32,
    described,
    freed,
    over,
    placed,
    rows,
)
from tests.torch.meshes import as_rank

pytestmark = pytest.mark.torch


# ---- as leaves ------------------------------------------------------------------------------


def test_a_leaf_has_the_global_shape_and_the_boxes_that_this_rank_holds(mesh: DeviceMesh) -> None:
    value = placed(rows(), mesh, Shard(0), Shard(1))

    leaf = described(value)

    assert (leaf.dtype, leaf.shape, leaf.flags) == ("float32", (7, 5), 0)
    assert leaf.regions is not None and leaf.is_trusted and leaf.address is None
    (region,) = leaf.regions
    assert (region.box.origin, region.box.shape, region.is_whole) == ((3, 3), (3, 2), True)
    (piece,) = ADAPTER.pieces(leaf)
    assert np.array_equal(piece.view(np.float32), rows()[3:6, 3:5].numpy())


@pytest.mark.parametrize("rank", range(6))
@pytest.mark.parametrize(
    "placements",
    [
        (Shard(0), Shard(0)),
        (Shard(1), Shard(0)),
        (Replicate(), Shard(1)),
        (_StridedShard(0, split_factor=2), Shard(0)),
        (_StridedShard(0, split_factor=3), Replicate()),
        (Shard(1), _StridedShard(1, split_factor=2)),
    ],
)
def test_pieces_are_the_elements_of_their_regions(
    rank: int, placements: tuple[Placement, ...]
) -> None:
    with as_rank(rank, of=6):
        value = placed(rows(), init_device_mesh("cpu", (3, 2)), *placements)

        leaf = described(value)
        pieces = ADAPTER.pieces(leaf)

        assert leaf.regions is not None
        found = [region.box for region in leaf.regions]
        for box, piece in zip(found, pieces, strict=True):
            (r, c), (height, width) = box.origin, box.shape
            expected = rows()[r : r + height, c : c + width]
            assert np.array_equal(piece.view(np.float32), expected.numpy())
        assert sum(box.numel for box in found) == value.to_local().numel()


def test_pieces_show_the_local_tensor_itself(mesh: DeviceMesh) -> None:
    value = placed(rows(8), mesh, Replicate(), _StridedShard(0, split_factor=2))
    leaf = described(value)

    value.to_local().fill_(7)

    assert [p.view(np.float32).tolist() for p in ADAPTER.pieces(leaf)] == [[[7.0] * 5] * 2] * 2


def test_a_replicated_tensor_is_one_whole_region(mesh: DeviceMesh) -> None:
    leaf = described(placed(rows(), mesh, Replicate(), Replicate()))

    assert leaf.regions is not None
    assert [(r.box.origin, r.box.shape) for r in leaf.regions] == [((0, 0), (7, 5))]
    assert ADAPTER.array(leaf).shape == (7, 5)


def test_a_tensor_without_axes_is_one_region_of_one_element(mesh: DeviceMesh) -> None:
    leaf = described(placed(torch.tensor(2.5), mesh, Replicate(), Replicate()))

    (piece,) = ADAPTER.pieces(leaf)

    assert leaf.shape == piece.shape == ()
    assert piece.view(np.float32) == 2.5


def test_a_tensor_without_elements_has_no_region_and_no_ties(mesh: DeviceMesh) -> None:
    leaf = described(placed(torch.zeros(0, 3), mesh, Shard(0), Replicate()))

    assert (leaf.regions, leaf.alias_key) == ((), None)
    assert ADAPTER.pieces(leaf) == []
    assert ADAPTER.array(leaf).shape == (0, 3)


def test_a_rank_without_a_part_has_no_region(mesh: DeviceMesh) -> None:
    leaf = described(placed(torch.zeros(2, 3), mesh, Shard(0), Shard(0)))

    assert leaf.shape == (2, 3)
    assert (leaf.regions, ADAPTER.pieces(leaf)) == ((), [])


def test_a_rank_outside_the_mesh_has_no_region(rank3: None) -> None:
    leaf = described(placed(rows(), DeviceMesh("cpu", [0, 1]), Shard(0)))

    assert (leaf.shape, leaf.regions) == ((7, 5), ())


def test_a_leaf_says_whether_it_is_a_parameter_and_asks_for_a_gradient(mesh: DeviceMesh) -> None:
    parameter = torch.nn.Parameter(placed(rows(), mesh, Shard(0), Replicate()))
    frozen = torch.nn.Parameter(parameter.detach(), requires_grad=False)

    assert described(parameter).flags == FLAG_PARAMETER | FLAG_REQUIRES_GRAD  # type: ignore[arg-type]
    assert described(frozen).flags == FLAG_PARAMETER  # type: ignore[arg-type]
    assert described(parameter.detach()).flags == 0  # type: ignore[arg-type]
    assert described(parameter.detach().requires_grad_()).flags == FLAG_REQUIRES_GRAD  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        lambda local: local.t().contiguous().t(),
        lambda local: torch.stack([local, local], 2)[..., 0],
        lambda local: torch._neg_view(-local),
    ],
)
def test_pieces_of_local_tensors_of_any_strides_are_their_elements(
    mesh: DeviceMesh, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    local = change(rows()[3:6].clone())
    value = over(local, mesh, Shard(0), Replicate(), shape=(7, 5))

    (piece,) = ADAPTER.pieces(described(value))

    assert np.array_equal(piece.view(np.float32), rows()[3:6].numpy())


def test_elements_keep_their_bits(mesh: DeviceMesh) -> None:
    bits = torch.tensor([0x7FC1, -0x8000, 1, 0x7F80, 5, 6, 7], dtype=torch.int16)
    value = placed(bits.view(torch.bfloat16), mesh, Shard(0), Replicate())

    (piece,) = ADAPTER.pieces(described(value))

    assert piece.view(np.int16).tolist() == [0x7F80, 5, 6]


def test_a_local_tensor_on_its_way_is_waited_for(mesh: DeviceMesh) -> None:
    local = AsyncCollectiveTensor(rows()[3:6].clone())
    value = DTensor(  # type: ignore[no-untyped-call]
        local, placed(rows(), mesh, Shard(0), Replicate())._spec, requires_grad=False
    )

    (piece,) = ADAPTER.pieces(described(value))

    assert local.completed
    assert np.array_equal(piece.view(np.float32), rows()[3:6].numpy())


def test_tied_tensors_have_one_key_and_others_do_not(mesh: DeviceMesh) -> None:
    value = placed(rows(), mesh, Shard(0), Replicate())
    other = placed(rows(), mesh, Shard(0), Replicate())
    local = value.to_local()
    elsewhere = over(local, mesh, Replicate(), Shard(0), shape=(6, 5))

    keys = [described(v).alias_key for v in (value, value.detach(), other, elsewhere)]

    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_tied_tensors_are_tied_on_a_rank_that_holds_nothing_of_them(mesh: DeviceMesh) -> None:
    value = placed(torch.zeros(2, 3), mesh, Shard(0), Shard(0))
    other = placed(torch.zeros(2, 3), mesh, Shard(0), Shard(0))

    keys = [described(v).alias_key for v in (value, value.detach(), other)]

    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda m: over(rows(), m, Partial(), Replicate(), shape=(7, 5)), "redistribute"),
        (lambda m: over(rows(4), m, Shard(0), Replicate(), shape=(7, 5)), "full_tensor"),
        (lambda m: placed(rows().to("meta"), m, Shard(0), Replicate()), "meta"),
        (lambda m: freed(placed(rows(), m, Shard(0), Replicate())), "freed"),
        (
            lambda m: placed(
                torch.zeros(6, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), m, *BOTH
            ),
            "float4",
        ),
    ],
)
def test_what_has_no_form_is_refused_with_its_path(
    mesh: DeviceMesh, make: Callable[[DeviceMesh], DTensor], words: str
) -> None:
    value = make(mesh)

    with pytest.raises(InvalidArgumentError, match=words) as caught:
        described(value)

    assert caught.value.code is ErrorCode.NO_FORM
    assert "'model/w'" in str(caught.value)


def test_a_local_tensor_of_another_shape_is_refused_with_everything_about_it(
    mesh: DeviceMesh,
) -> None:
    value = over(rows(4), mesh, Shard(0), Replicate(), shape=(7, 5))

    with pytest.raises(InvalidArgumentError) as caught:
        described(value)

    text = str(caught.value)
    for words in ("'model/w'", "(7, 5)", "[Shard(0), Replicate()]", "(3, 2) at (1, 1)"):
        assert words in text
    assert "(3, 5) on this rank" in text and "(4, 5)" in text and ".full_tensor()" in text


def test_a_part_has_no_form_within_a_per_rank_value(mesh: DeviceMesh) -> None:
    leaf = described(placed(rows(), mesh, Shard(0), Replicate()))

    with pytest.raises(InvalidArgumentError, match="per-rank") as caught:
        ADAPTER.array(leaf)

    assert caught.value.code is ErrorCode.NO_FORM


def test_views_split_by_torch_are_described_as_they_lie(mesh: DeviceMesh) -> None:
    """The factor of a flattened axis says nothing of an order of mesh axes."""
    value = placed(rows(4, 6).reshape(2, 2, 6), mesh, Replicate(), Shard(1))
    flat = value.view(4, 6)
    assert isinstance(flat, DTensor)

    leaf = described(flat)

    assert leaf.regions is not None
    assert [r.box.origin for r in leaf.regions] == [(1, 0), (3, 0)]
    pieces = [p.view(np.float32).reshape(-1).tolist() for p in ADAPTER.pieces(leaf)]
    assert pieces == [rows(4, 6)[1].tolist(), rows(4, 6)[3].tolist()]


# ---- registration ---------------------------------------------------------------------------


def test_the_framework_with_dtensor_is_made_once() -> None:
    first, second = load_torch(), load_torch()

    assert first is second
    assert DTensor in first.adapters and torch.Tensor in first.adapters


def test_a_dtensor_is_never_filled_as_if_it_were_plain_memory(mesh: DeviceMesh) -> None:
    value = placed(rows(), mesh, *BOTH)

    assert load_torch().direct(value, "float32", (7, 5)) == 0
    assert load_torch().direct(value.to_local(), "float32", (7, 5)) == value.to_local().data_ptr()
    part = placed(rows(), mesh, Shard(0), Replicate())
    assert load_torch().target(part, False, FLOAT32).parts is not None


@pytest.mark.slow
def test_a_process_that_does_not_use_dtensor_does_not_import_it() -> None:
    code = """
import sys, torch, bcpformat
from bcpformat.api.framework import frameworks
store = bcpformat.MemoryStore()
before = {kind for library in frameworks() for kind in library.adapters}
assert "torch.distributed.tensor" not in sys.modules
import torch.distributed.tensor as tensor
after = {kind for library in frameworks() for kind in library.adapters}
assert after - before == {tensor.DTensor}, after - before
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_layouts_of_equal_tensors_are_computed_once(mesh: DeviceMesh) -> None:
    first, second = (described(placed(rows(), mesh, Shard(0), Shard(1))) for _ in range(2))

    assert first.regions is second.regions


def test_ranks_of_one_mesh_after_another_do_not_get_the_layout_of_the_first() -> None:
    origins = []
    for rank in range(2):
        with as_rank(rank, of=2):
            leaf = described(placed(rows(), init_device_mesh("cpu", (2,)), Shard(0)))
            assert leaf.regions is not None
            origins.append(leaf.regions[0].box.origin)

    assert origins == [(0, 0), (4, 0)]
