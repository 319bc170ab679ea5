"""What ranks hold of a distributed tensor, against the elements that they really held."""

from __future__ import annotations

import itertools
import json
import re
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.torch.placements import Held, MeshLayout, Split, held, splitting_order

Array = np.ndarray[Any, np.dtype[np.int64]]


# ---- the oracle: numpy arrays that are cut as torch cuts ------------------------------------


def numbered(shape: tuple[int, ...]) -> Array:
    """Return an array whose elements are their row-major numbers."""
    return np.arange(prod(shape)).reshape(shape)


def chunk(array: Array, axis: int, parts: int, part: int) -> Array:
    """Return what `torch.chunk` gives, with empty parts at the end."""
    size = max(1, -(-array.shape[axis] // parts))
    return np.take(array, range(array.shape[axis])[part * size : (part + 1) * size], axis)


def left_to_right(layout: MeshLayout) -> Array:
    """Return what `distribute_tensor` puts on a rank."""
    array = numbered(layout.shape)
    for parts, part, split in zip(layout.mesh, layout.coordinate, layout.splits, strict=True):
        if split.axis is not None:
            pieces = [chunk(array, split.axis, split.factor, n) for n in range(split.factor)]
            cut = [chunk(piece, split.axis, parts, part) for piece in pieces]
            array = np.concatenate(cut, axis=split.axis)
    return array


def in_order(layout: MeshLayout, order: tuple[int, ...]) -> Array:
    """Return what a rank holds if mesh axes chunk one after the other."""
    array = numbered(layout.shape)
    for mesh_axis in order:
        axis = layout.splits[mesh_axis].axis
        if axis is not None:
            array = chunk(array, axis, layout.mesh[mesh_axis], layout.coordinate[mesh_axis])
    return array


def assembled(here: Held, shape: tuple[int, ...]) -> Array:
    """Return the local tensor that the boxes describe; -1 where they say nothing."""
    local = np.full(here.shape, -1)
    for box, place in zip(here.boxes, here.slices, strict=True):
        local[place] = numbered(shape)[area(box)]
    return local


def area(box: Any) -> tuple[slice, ...]:
    return tuple(slice(o, o + e) for o, e in zip(box.origin, box.shape, strict=True))


def ranks(
    shape: tuple[int, ...], mesh: tuple[int, ...], splits: tuple[Split, ...]
) -> list[MeshLayout]:
    """Return the layout as each rank of a mesh sees it."""
    return [
        MeshLayout(shape=shape, mesh=mesh, coordinate=coordinate, splits=splits)
        for coordinate in itertools.product(*map(range, mesh))
    ]


def rows(shape: tuple[int, ...], mesh: tuple[int, ...], *splits: Split) -> list[list[tuple]]:
    """Return origin and extent of each rank's boxes on axis 0, for plain `Shard` placements."""
    found = [held(layout, left_to_right(layout).shape) for layout in ranks(shape, mesh, splits)]
    return [[(box.origin[0], box.shape[0]) for box in here.boxes] for here in found]


def through(
    shape: tuple[int, ...],
    save: tuple[tuple[int, ...], tuple[Split, ...]],
    load: tuple[tuple[int, ...], tuple[Split, ...]],
) -> None:
    """Store what all ranks of one layout hold, and fill those of another from it."""
    stored = np.full(shape, -1)
    count = np.zeros(shape, int)
    for layout in ranks(shape, *save):
        local = left_to_right(layout)
        here = held(layout, local.shape)
        for box, place in zip(here.boxes, here.slices, strict=True):
            stored[area(box)] = local[place]
            count[area(box)] += 1
    assert (count == 1).all()
    for layout in ranks(shape, *load):
        local = np.full_like(left_to_right(layout), -1)
        here = held(layout, local.shape)
        for box, place in zip(here.boxes, here.slices, strict=True):
            local[place] = stored[area(box)]
        assert np.array_equal(local, left_to_right(layout))


# ---- scenarios ------------------------------------------------------------------------------

ROW, COLUMN, SAME = Split(0), Split(1), Split(None)


@pytest.mark.parametrize("readers", [1, 2, 3, 8])
def test_t02_five_elements_over_eight_ranks_leave_three_with_nothing(readers: int) -> None:
    found = rows((5,), (8,), ROW)

    assert found == [[(0, 1)], [(1, 1)], [(2, 1)], [(3, 1)], [(4, 1)], [], [], []]
    through((5,), ((8,), (ROW,)), ((readers,), (ROW,)))


def test_t03_nine_elements_over_eight_ranks_follow_the_rule_of_the_rounded_up_size() -> None:
    found = rows((9,), (8,), ROW)

    assert [sum(extent for _, extent in boxes) for boxes in found] == [2, 2, 2, 2, 1, 0, 0, 0]
    through((9,), ((8,), (ROW,)), ((3,), (ROW,)))


def test_t04_two_mesh_axes_on_one_tensor_axis_leave_an_empty_rank_in_the_middle() -> None:
    found = rows((5,), (2, 4), ROW, ROW)

    assert found == [[(0, 1)], [(1, 1)], [(2, 1)], [], [(3, 1)], [(4, 1)], [], []]
    through((5,), ((2, 4), (ROW, ROW)), ((1,), (ROW,)))


def test_t28_a_matrix_goes_from_any_mesh_to_any_other() -> None:
    layouts = [
        ((2, 3), (ROW, COLUMN)),
        ((3, 2), (COLUMN, ROW)),
        ((1,), (SAME,)),
        ((6,), (ROW,)),
    ]

    for save, load in itertools.pairwise(layouts):
        through((7, 5), save, load)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (8, [(0, 2), (4, 2), (2, 2), (6, 2)]),
        (6, [(0, 2), (3, 2), (2, 1), (5, 1)]),
        (5, [(0, 2), (3, 1), (2, 1), (4, 1)]),
    ],
)
def test_t29_fsdp_over_tensor_parallelism_chunks_each_part_of_that(
    count: int, expected: list[tuple[int, int]]
) -> None:
    layouts = ranks((count,), (2, 2), (Split(0, factor=2), ROW))
    locals_ = [in_order(layout, (1, 0)) for layout in layouts]

    found = [held(layout, a.shape).boxes for layout, a in zip(layouts, locals_, strict=True)]

    assert [(box.origin[0], box.shape[0]) for (box,) in found] == expected
    stored = np.concatenate([np.arange(o, o + e) for o, e in expected])
    assert sorted(stored.tolist()) == list(range(count))


# ---- what ranks really held -----------------------------------------------------------------


def split_named(text: str) -> Split:
    """Return the split that torch's representation of a placement says."""
    if text == "Replicate()":
        return SAME
    found = re.fullmatch(r"(?:Shard|_StridedShard)\(dim=(\d+)(?:, sf=(\d+))?\)", text)
    assert found is not None
    return Split(int(found[1]), factor=int(found[2] or 1))


@pytest.mark.parametrize("count", [3, 4, 6])
def test_boxes_are_the_elements_that_ranks_of_torch_hold(count: int, fixtures_dir: Path) -> None:
    cases = json.loads(
        (fixtures_dir / "torch-dtensor-layouts" / f"layouts-{count}r.json").read_text()
    )
    for case in cases:
        shape = tuple(case["global_shape"])
        for rank in case["ranks"]:
            layout = MeshLayout(
                shape=shape,
                mesh=np.array(case["mesh"]).shape,
                coordinate=tuple(rank["coordinate"]),
                splits=tuple(map(split_named, case["placements"])),
            )

            here = held(layout, tuple(rank["local_shape"]))

            really = [number for first, n in rank["runs"] for number in range(first, first + n)]
            assert assembled(here, shape).reshape(-1).tolist() == really, (case, rank)


def test_the_rank_that_torch_calls_empty_is_the_one_that_holds_the_last_row(
    fixtures_dir: Path,
) -> None:
    truth = json.loads(
        (fixtures_dir / "torch-fsdp2-tp-wrong-chunks-3x2" / "truth.json").read_text()
    )
    layouts = ranks((7, 5), (3, 2), (Split(0, factor=2), ROW))

    for layout, rank in zip(layouts, truth["held_by_rank"], strict=True):
        here = held(layout, tuple(rank["local_shape"]))

        column = assembled(here, layout.shape)[:, 0] + 1 if here.boxes else np.array([])
        assert column.tolist() == rank["first_column"]


def test_all_tensors_of_fsdp_over_tensor_parallelism_are_covered_evenly(fixtures_dir: Path) -> None:
    truth = json.loads((fixtures_dir / "torch-fsdp2-tp-2x2" / "truth.json").read_text())
    counts: dict[str, Array] = {}
    for rank, tensors in enumerate(truth["layout_per_rank"]):
        for name, entry in tensors.items():
            mesh = np.array(entry["mesh"])
            layout = MeshLayout(
                shape=tuple(entry["global_shape"]),
                mesh=mesh.shape,
                coordinate=tuple(int(n) for n in np.argwhere(mesh == rank)[0]),
                splits=tuple(map(split_named, entry["placements"])),
            )
            count = counts.setdefault(f"{name} {mesh.tolist()}", np.zeros(layout.shape, int))
            for box in held(layout, tuple(entry["local_shape"])).boxes:
                count[area(box)] += 1

    assert counts
    assert all(count.min() == count.max() > 0 for count in counts.values())


# ---- properties -----------------------------------------------------------------------------


@st.composite
def meshes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of a tensor, and of a mesh of at most 24 ranks."""
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)))
    mesh = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    assume(prod(mesh) <= 24)
    return shape, mesh


@st.composite
def plain_layouts(draw: st.DrawFn) -> list[MeshLayout]:
    """Return the ranks of a layout without factors."""
    shape, mesh = draw(meshes())
    axes = st.one_of(st.none(), st.integers(0, len(shape) - 1))
    return ranks(shape, mesh, tuple(Split(draw(axes)) for _ in mesh))


@st.composite
def ordered_layouts(draw: st.DrawFn) -> tuple[list[MeshLayout], tuple[int, ...]]:
    """Return the ranks of a layout whose factors state an order of mesh axes, and that order."""
    shape, mesh = draw(meshes())
    axes = [draw(st.one_of(st.none(), st.integers(0, len(shape) - 1))) for _ in mesh]
    order = tuple(draw(st.permutations(range(len(mesh)))))
    splits = []
    for mesh_axis, axis in enumerate(axes):
        before = order[: order.index(mesh_axis)]
        right = [mesh[m] for m in before if m > mesh_axis and axes[m] == axis]
        splits.append(Split(axis, factor=1 if axis is None else prod(right)))
    return ranks(shape, mesh, tuple(splits)), order


@given(plain_layouts())
def test_boxes_of_all_ranks_tile_the_tensor_and_are_what_ranks_hold(
    layouts: list[MeshLayout],
) -> None:
    shape = layouts[0].shape
    count = np.zeros(shape, int)
    for layout in layouts:
        local = left_to_right(layout)
        here = held(layout, local.shape)
        assert np.array_equal(assembled(here, shape), local)
        for box in here.boxes:
            count[area(box)] += 1

    copies = prod(
        n for n, s in zip(layouts[0].mesh, layouts[0].splits, strict=True) if s.axis is None
    )
    assert (count == copies).all()


@given(ordered_layouts())
def test_factors_that_state_an_order_are_followed_whatever_the_sizes(
    case: tuple[list[MeshLayout], tuple[int, ...]],
) -> None:
    layouts, order = case
    shape = layouts[0].shape
    seen = np.zeros(shape, int)
    for layout in layouts:
        local = in_order(layout, order)
        here = held(layout, local.shape)
        assert np.array_equal(assembled(here, shape), local)
        for box in here.boxes:
            seen[area(box)] += 1

    assert len(np.unique(seen)) <= 1


@given(meshes(), st.data())
def test_factors_of_a_view_split_from_left_to_right(
    case: tuple[tuple[int, ...], tuple[int, ...]], data: st.DataObject
) -> None:
    shape, mesh = case
    axes = st.one_of(st.none(), st.integers(0, len(shape) - 1))
    drawn = [(data.draw(axes), data.draw(st.integers(1, 4))) for _ in mesh]
    splits = tuple(Split(a, factor=1 if a is None else f) for a, f in drawn)
    seen = np.zeros(shape, int)
    for layout in ranks(shape, mesh, splits):
        view = MeshLayout(
            shape=shape, mesh=mesh, coordinate=layout.coordinate, splits=splits, from_view=True
        )
        local = left_to_right(view)
        here = held(view, local.shape)
        assert np.array_equal(assembled(here, shape), local)
        for box in here.boxes:
            seen[area(box)] += 1

    assert len(np.unique(seen)) <= 1


@given(plain_layouts(), st.data())
def test_an_order_that_torch_states_is_followed(
    layouts: list[MeshLayout], data: st.DataObject
) -> None:
    first = layouts[0]
    order = tuple(data.draw(st.permutations(range(len(first.mesh)))))
    axes = sorted({s.axis for s in first.splits if s.axis is not None})
    stated = tuple((axis, tuple(m for m in order if first.splits[m].axis == axis)) for axis in axes)
    for layout in layouts:
        told = MeshLayout(
            shape=layout.shape,
            mesh=layout.mesh,
            coordinate=layout.coordinate,
            splits=layout.splits,
            order=stated,
        )
        local = in_order(layout, order)

        assert np.array_equal(assembled(held(told, local.shape), layout.shape), local)


# ---- edges ----------------------------------------------------------------------------------


def test_boxes_come_in_the_order_of_the_local_tensor() -> None:
    splits = (Split(0, factor=2), Split(1, factor=3))
    layout = MeshLayout(
        shape=(8, 12), mesh=(2, 2), coordinate=(1, 1), splits=splits, from_view=True
    )

    here = held(layout, (4, 6))

    assert [box.origin for box in here.boxes] == [(2, 2), (2, 6), (2, 10), (6, 2), (6, 6), (6, 10)]
    assert {box.shape for box in here.boxes} == {(2, 2)}
    assert here.slices[1] == (slice(0, 2), slice(2, 4))
    assert here.slices[3] == (slice(2, 4), slice(0, 2))


def test_pieces_that_touch_are_one_box() -> None:
    layout = MeshLayout(
        shape=(4,), mesh=(1,), coordinate=(0,), splits=(Split(0, factor=2),), from_view=True
    )

    assert [box.shape for box in held(layout, (4,)).boxes] == [(4,)]


def test_a_tensor_without_axes_is_one_box_without_axes() -> None:
    layout = MeshLayout(shape=(), mesh=(2,), coordinate=(1,), splits=(SAME,))

    here = held(layout, ())

    assert [(box.origin, box.shape) for box in here.boxes] == [((), ())]
    assert here.slices == ((),)


def test_local_tensors_without_elements_agree_whatever_their_shape() -> None:
    layout = MeshLayout(shape=(3, 4), mesh=(2, 4), coordinate=(1, 3), splits=(COLUMN, ROW))

    assert held(layout, (0, 4)).boxes == held(layout, (3, 0)).boxes == ()


def test_a_local_tensor_of_another_shape_is_refused_with_both_shapes_and_the_layout() -> None:
    layout = MeshLayout(shape=(7, 5), mesh=(2,), coordinate=(1,), splits=(ROW,))

    with pytest.raises(InvalidArgumentError) as caught:
        held(layout, (4, 5))

    assert caught.value.code is ErrorCode.NO_FORM
    for words in ("(7, 5)", "[Shard(0)]", "mesh of shape (2,) at (1,)", "(3, 5)", "(4, 5)"):
        assert words in str(caught.value)


@pytest.mark.parametrize("shape", [(0, 5), (7, 0)])
def test_an_empty_local_tensor_that_should_not_be_is_refused(shape: tuple[int, ...]) -> None:
    layout = MeshLayout(shape=(7, 5), mesh=(2,), coordinate=(1,), splits=(ROW,))

    with pytest.raises(InvalidArgumentError, match="not known"):
        held(layout, shape)


def test_a_tensor_split_from_left_to_right_with_factors_is_known_by_its_shapes() -> None:
    layouts = ranks((7, 5), (3, 2), (Split(0, factor=2), ROW))

    for layout in layouts:
        local = left_to_right(layout)

        assert np.array_equal(assembled(held(layout, local.shape), (7, 5)), local)


def test_where_two_orders_give_a_rank_equal_shapes_the_one_of_fsdp_is_meant() -> None:
    splits = (Split(0, factor=4), ROW)
    layout = MeshLayout(shape=(27,), mesh=(3, 4), coordinate=(2, 2), splits=splits)
    ours, other = in_order(layout, (1, 0)), left_to_right(layout)
    assert ours.shape == other.shape and ours.tolist() != other.tolist()

    assert assembled(held(layout, ours.shape), (27,)).tolist() == ours.tolist()


def test_where_the_other_order_would_mislead_a_rank_some_rank_refuses() -> None:
    splits = (Split(0, factor=4), ROW)
    refused = []
    for layout in ranks((27,), (3, 4), splits):
        try:
            held(layout, left_to_right(layout).shape)
        except InvalidArgumentError as error:
            assert error.code is ErrorCode.NO_FORM
            assert "two orders" in str(error)
            refused.append(layout.coordinate)

    assert refused


def test_the_order_of_three_mesh_axes_is_read_from_their_factors() -> None:
    splits = (Split(0, factor=2), Split(0, factor=2), ROW)
    layout = MeshLayout(shape=(48,), mesh=(4, 3, 2), coordinate=(0, 0, 0), splits=splits)

    assert splitting_order(layout) == ((0, (2, 0, 1)),)


def test_factors_that_state_no_order_have_none() -> None:
    layout = MeshLayout(
        shape=(48,), mesh=(4, 3), coordinate=(0, 0), splits=(Split(0, factor=2), ROW)
    )

    assert splitting_order(layout) is None


@pytest.mark.parametrize(
    "parts",
    [
        {"mesh": (2, 2)},
        {"coordinate": (2,)},
        {"coordinate": (-1,)},
        {"splits": (Split(1),)},
        {"splits": (Split(-1),)},
        {"splits": (Split(0, factor=0),)},
    ],
)
def test_a_layout_whose_parts_do_not_agree_is_refused(parts: dict[str, Any]) -> None:
    whole = {"shape": (4,), "mesh": (2,), "coordinate": (1,), "splits": (ROW,)}

    with pytest.raises(InvalidArgumentError):
        MeshLayout(**{**whole, **parts})
