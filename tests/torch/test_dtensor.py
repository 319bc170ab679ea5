"""Distributed tensors as leaves and as destinations, seen by one rank."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

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
    distribute_tensor,
)
from torch.distributed.tensor.placement_types import _StridedShard

import bcpformat
from bcpformat import MemoryStore
from bcpformat.api.framework import Target, load_torch
from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.dtypes import DType
from bcpformat.model.leaves import FLAG_PARAMETER, FLAG_REQUIRES_GRAD, TensorLeaf
from bcpformat.torch.dtensor import DTensorAdapter, dtensor_target
from tests.torch.meshes import as_rank, fill

pytestmark = pytest.mark.torch

ADAPTER = DTensorAdapter()
FLOAT32 = DType.named("float32")


@pytest.fixture
def rank3() -> Iterator[None]:
    """Let this process be rank 3 of 6: (1, 1) of a mesh of 3 x 2."""
    with as_rank(3, of=6):
        yield


@pytest.fixture
def mesh(rank3: None) -> DeviceMesh:
    return init_device_mesh("cpu", (3, 2), mesh_dim_names=("dp", "tp"))


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


BOTH = (Replicate(), Replicate())


def freed(value: DTensor) -> DTensor:
    value.to_local().untyped_storage().resize_(0)
    return value


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
