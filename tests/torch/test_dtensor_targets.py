"""Distributed tensors, and tensors on the meta device, as destinations, seen by one rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
)
from torch.distributed.tensor.placement_types import _StridedShard

import bcpformat
from bcpformat import MemoryStore
from bcpformat.api.framework import load_torch
from tests.torch.distributed_tensors import (
    BOTH,
    FLOAT32,
    freed,
    over,
    placed,
    rows,
    wanted,
)
from tests.torch.meshes import as_rank, fill

pytestmark = pytest.mark.torch


# ---- as destinations ------------------------------------------------------------------------

PLACEMENTS = [
    (Shard(0), Shard(1)),
    (Replicate(), Shard(1)),
    (Replicate(), Replicate()),
    (_StridedShard(0, split_factor=2), Shard(0)),
    (Replicate(), _StridedShard(1, split_factor=2)),
]


@pytest.mark.parametrize("placements", PLACEMENTS)
@pytest.mark.parametrize("cast", [False, True])
def test_a_destination_is_filled_in_place(
    mesh: DeviceMesh,
    placements: tuple[Placement, ...],
    cast: bool,  # noqa: FBT001
) -> None:
    whole = rows(8)
    expected = placed(whole, mesh, *placements).to_local()
    value = placed(torch.zeros(8, 5, dtype=torch.float16 if cast else None), mesh, *placements)
    local = value.to_local()

    target = wanted(value, cast=cast)
    fill(target, whole)

    assert (target.shape, target.value) == ((8, 5), None)
    assert torch.equal(local.float(), expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda local: local.t().contiguous().t(),
        lambda local: torch.stack([local, local], 2)[..., 0],
        torch._neg_view,
    ],
)
def test_destinations_of_any_strides_are_filled(
    mesh: DeviceMesh, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    local = change(torch.zeros(3, 5))
    value = over(local, mesh, Shard(0), Replicate(), shape=(7, 5))

    fill(wanted(value), rows())

    assert torch.equal(local, rows()[3:6])


def test_a_contiguous_destination_needs_no_copy(mesh: DeviceMesh) -> None:
    value = placed(torch.zeros(7, 5), mesh, Shard(0), Replicate())

    target = wanted(value)

    assert target.after is None and target.parts is not None
    assert [part.address for part in target.parts] == [value.to_local().data_ptr()]


@pytest.mark.parametrize("copied", [False, True])
def test_parts_know_the_memory_that_is_changed(mesh: DeviceMesh, copied: bool) -> None:  # noqa: FBT001
    value = placed(torch.zeros(8, 6), mesh, Replicate(), _StridedShard(1, split_factor=2))
    local = value.to_local()
    start, end = local.data_ptr(), local.data_ptr() + local.nbytes

    target = wanted(value, saved="float16" if copied else "float32", cast=copied)

    assert target.parts is not None and len(target.parts) == 2
    for part in target.parts:
        assert part.memory is not None
        low, high = np.lib.array_utils.byte_bounds(part.memory)
        assert start <= low < high <= end
    assert not np.shares_memory(target.parts[0].memory, target.parts[1].memory)  # type: ignore[arg-type]


def test_a_rank_without_a_part_wants_nothing(mesh: DeviceMesh) -> None:
    target = wanted(placed(torch.zeros(2, 3), mesh, Shard(0), Shard(0)))

    assert (target.shape, target.parts, target.refusal) == ((2, 3), (), None)


def test_a_rank_outside_the_mesh_wants_nothing(rank3: None) -> None:
    target = wanted(placed(rows(), DeviceMesh("cpu", [0, 1]), Shard(0)))

    assert (target.shape, target.parts, target.refusal) == ((7, 5), (), None)


def test_a_parameter_is_filled_though_it_asks_for_a_gradient(mesh: DeviceMesh) -> None:
    value = torch.nn.Parameter(placed(torch.zeros(7, 5).half(), mesh, Shard(0), Replicate()))

    fill(wanted(value, cast=True), rows())  # type: ignore[arg-type]

    assert value.requires_grad
    assert torch.equal(value.to_local().float(), rows()[3:6])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda m: over(rows(), m, Partial(), Replicate(), shape=(7, 5)), "reduction"),
        (lambda m: over(rows(4), m, Shard(0), Replicate(), shape=(7, 5)), r"\(4, 5\)"),
        (lambda m: freed(placed(rows(), m, Shard(0), Replicate())), "freed"),
        (
            lambda m: over(torch.zeros(1, 5).expand(3, 5), m, Shard(0), Replicate(), shape=(7, 5)),
            "share memory",
        ),
        (
            lambda m: placed(
                torch.zeros(6, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), m, *BOTH
            ),
            "float4",
        ),
    ],
)
def test_what_cannot_be_a_destination_is_refused(
    mesh: DeviceMesh, make: Callable[[DeviceMesh], DTensor], words: str
) -> None:
    target = wanted(make(mesh))

    assert target.refusal is not None and words.replace("\\", "") in target.refusal
    assert not target.address and target.parts is None


def test_another_data_type_is_no_refusal_but_no_destination_either(mesh: DeviceMesh) -> None:
    target = wanted(placed(rows().double(), mesh, Shard(0), Replicate()))

    assert (target.refusal, target.dtype, target.parts) == (None, "float64", None)


@pytest.mark.parametrize("cast", [False, True])
def test_a_meta_tensor_is_replaced_by_one_that_holds_elements(
    mesh: DeviceMesh,
    cast: bool,  # noqa: FBT001
) -> None:
    empty = torch.zeros(7, 5, device="meta", dtype=torch.float16 if cast else None)
    template = placed(empty, mesh, _StridedShard(0, split_factor=2), Shard(0))

    target = wanted(template, cast=cast)
    fill(target, rows())

    made = target.value
    assert type(made) is DTensor
    assert made._spec == template._spec
    assert made.dtype is template.dtype and not made.is_meta and not made.requires_grad
    expected = placed(rows(), mesh, _StridedShard(0, split_factor=2), Shard(0))
    assert torch.equal(made.to_local().float(), expected.to_local())


def test_what_replaces_a_meta_parameter_is_a_parameter(mesh: DeviceMesh) -> None:
    meta = placed(torch.zeros(7, 5, device="meta"), mesh, Shard(0), Replicate())
    made = {
        grad: wanted(torch.nn.Parameter(meta, requires_grad=grad)).value  # type: ignore[arg-type]
        for grad in (False, True)
    }

    for grad, value in made.items():
        assert isinstance(value, torch.nn.Parameter) and isinstance(value, DTensor)
        assert value.requires_grad is grad


def test_ties_of_meta_tensors_are_known(mesh: DeviceMesh) -> None:
    meta = placed(torch.zeros(7, 5, device="meta"), mesh, Shard(0), Replicate())
    other = placed(torch.zeros(7, 5, device="meta"), mesh, Shard(0), Replicate())

    ties = [wanted(value).tie for value in (meta, meta.detach(), other)]  # type: ignore[arg-type]

    assert ties[0] == ties[1] != ties[2]


# ---- plain tensors on the meta device -------------------------------------------------------


@pytest.mark.parametrize("cast", [False, True])
def test_a_plain_meta_tensor_is_replaced_by_a_cpu_tensor(cast: bool) -> None:  # noqa: FBT001
    template = torch.zeros(7, 5, device="meta", dtype=torch.float16 if cast else None)

    target = load_torch().target(template, cast, FLOAT32)

    assert target.parts is None and target.address
    assert isinstance(target.value, torch.Tensor)
    assert target.value.is_cpu and target.value.dtype is template.dtype
    assert target.value.shape == (7, 5) and not target.value.requires_grad
    if not cast:
        assert target.address == target.value.data_ptr()


def test_a_plain_meta_parameter_is_replaced_by_a_parameter() -> None:
    for template in (
        torch.nn.Parameter(torch.zeros(2, device="meta")),
        torch.nn.Parameter(torch.zeros(2, device="meta"), requires_grad=False),
        torch.zeros(2, device="meta").requires_grad_(),
    ):
        value = load_torch().target(template, False, FLOAT32).value

        assert type(value) is type(template)
        assert value.requires_grad is template.requires_grad


# ---- through the public functions -----------------------------------------------------------


@pytest.mark.parametrize("rank", range(6))
def test_each_rank_reads_its_part_of_a_whole_tensor(rank: int) -> None:
    store = MemoryStore()
    bcpformat.write(store, {"w": rows(), "b": rows(7, 1)[:, 0]}, group=None)
    with as_rank(rank, of=6):
        mesh = init_device_mesh("cpu", (3, 2))
        expected = placed(rows(), mesh, _StridedShard(0, split_factor=2), Shard(1))
        template = {
            "w": placed(torch.zeros(7, 5), mesh, _StridedShard(0, split_factor=2), Shard(1)),
            "b": torch.nn.Parameter(
                placed(torch.zeros(7, device="meta"), mesh, Shard(0), Shard(0))
            ),
        }

        bcpformat.read(store, into=template, group=None)

        assert torch.equal(template["w"].to_local(), expected.to_local())
        made = template["b"]
        assert isinstance(made, torch.nn.Parameter) and isinstance(made, DTensor)
        bias = placed(rows(7, 1)[:, 0], mesh, Shard(0), Shard(0))
        assert torch.equal(made.to_local().detach(), bias.to_local())


def test_a_state_of_one_rank_round_trips() -> None:
    store = MemoryStore()
    with as_rank(0, of=1):
        mesh = init_device_mesh("cpu", (1,))
        weight = torch.nn.Parameter(placed(rows(), mesh, Shard(0)))
        state = {
            "w": weight,
            "tied": weight,
            "scalar": placed(torch.tensor(3.0), mesh, Replicate()),
        }
        bcpformat.write(store, state, group=None)
        template = {
            "w": placed(torch.zeros(7, 5), mesh, Shard(1)),
            "tied": torch.zeros(7, 5),
            "scalar": placed(torch.tensor(0.0), mesh, Replicate()),
        }

        bcpformat.read(store, into=template, group=None)

        assert torch.equal(template["w"].to_local(), rows())  # type: ignore[attr-defined]
        assert torch.equal(template["tied"], rows())
        assert template["scalar"].item() == 3.0
    back = bcpformat.read(store)
    assert back["w"] is back["tied"] and isinstance(back["w"], torch.nn.Parameter)


def test_a_rank_alone_cannot_save_a_part_as_the_whole(mesh: DeviceMesh) -> None:
    with pytest.raises(bcpformat.BcpError, match="w"):
        bcpformat.write(MemoryStore(), {"w": placed(rows(), mesh, Shard(0), Shard(0))}, group=None)
