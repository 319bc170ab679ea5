"""Layouts: what a rank holds, in columns that travel between ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.errors import InvalidArgumentError
from bcpformat.model.leaves import NumpyAdapter, TensorLeaf
from bcpformat.model.manifest import Value
from bcpformat.model.region import Box, Region
from bcpformat.model.state import EncodedState
from bcpformat.plan.layout import OBJECT, Columns, Layout, layout_from_columns, layout_of
from tests.plan.layouts import regions


def state_of(
    leaves: dict[str, TensorLeaf], objects: list[tuple[str, bytes]] | None = None
) -> EncodedState:
    """A state of leaves without values, which a layout does not look at."""
    return EncodedState(
        root=[6],
        names=sorted(leaves),
        leaves=[leaves[name] for name in sorted(leaves)],
        aliases={},
        objects=objects or [],
        per_rank=[],
    )


def leaf(
    shape: tuple[int, ...],
    *,
    dtype: str = "float32",
    held: tuple[Region, ...] | None = None,
    is_trusted: bool = False,
) -> TensorLeaf:
    return TensorLeaf(
        dtype, shape, 0, None, None, NumpyAdapter(), None, regions=held, is_trusted=is_trusted
    )


def equal(a: Layout, b: Layout) -> bool:
    columns = ("trusted", "tensor", "origin", "extent", "start", "count", "nbytes")
    return all(np.array_equal(getattr(a, c), getattr(b, c)) for c in columns) and all(
        list(getattr(a, c)) == list(getattr(b, c)) for c in ("names", "dtypes", "shapes")
    )


@st.composite
def states(draw: st.DrawFn) -> EncodedState:
    """States of up to four tensors, held whole or in pieces, and up to two objects."""
    leaves = {}
    for name in draw(st.sets(st.text("ab/é", min_size=1), max_size=4)):
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        held = None
        if draw(st.booleans()):
            held = tuple(r for r in draw(regions(shape)) if draw(st.booleans()))
        dtype = draw(st.sampled_from(["float32", "int4", "bfloat16", "complex128"]))
        leaves[name] = leaf(shape, dtype=dtype, held=held, is_trusted=draw(st.booleans()))
    objects = draw(st.sets(st.text("xy", min_size=1), max_size=2))
    return state_of(leaves, [(name, bytes(len(name))) for name in sorted(objects)])


@given(states())
def test_a_layout_survives_its_columns(state: EncodedState) -> None:
    layout = layout_of(state)

    assert equal(layout_from_columns(layout.to_columns()), layout)


@given(states())
def test_pieces_are_the_regions_of_each_tensor_in_order_and_then_the_objects(
    state: EncodedState,
) -> None:
    layout = layout_of(state)

    expected = []
    for row, held in enumerate(state.leaves):
        whole = Region.whole(Box.whole(held.shape))
        found = held.regions if held.regions is not None else (whole,) if whole.count else ()
        expected += [(row, r.box.origin, r.box.shape, r.start, r.count) for r in found]
    for row, (_, data) in enumerate(state.objects, start=len(state.leaves)):
        expected.append((row, (0,), (len(data),), 0, len(data)))
    at = 0
    for piece, (row, origin, extent, start, count) in enumerate(expected):
        assert layout.tensor[piece] == row
        assert layout.origin[at : at + len(origin)].tolist() == list(origin)
        assert layout.extent[at : at + len(origin)].tolist() == list(extent)
        assert (layout.start[piece], layout.count[piece]) == (start, count)
        at += len(origin)
    assert len(layout) == len(expected)
    assert len(layout.origin) == len(layout.extent) == at


def test_bytes_of_a_sub_byte_piece_are_rounded_up() -> None:
    held = (Region(box=Box.whole((3, 3)), start=1, count=5),)

    layout = layout_of(state_of({"w": leaf((3, 3), dtype="int4", held=held)}))

    assert layout.nbytes.tolist() == [3]


def test_a_tensor_without_elements_is_listed_but_has_no_piece() -> None:
    layout = layout_of(state_of({"none": leaf((0, 3)), "scalar": leaf(())}))

    assert layout.names == ["none", "scalar"]
    assert layout.tensor.tolist() == [1]
    assert layout.count.tolist() == [1]


def test_a_rank_that_holds_nothing_of_a_tensor_still_lists_it() -> None:
    layout = layout_of(state_of({"w": leaf((4, 3), held=())}))

    assert (list(layout.names), list(layout.shapes)) == (["w"], [(4, 3)])
    assert len(layout) == 0


def test_an_object_is_a_tensor_of_its_bytes_after_all_tensors() -> None:
    layout = layout_of(state_of({"z": leaf((2,))}, [("a", b"12345")]))

    assert layout.names == ["z", "a"]
    assert layout.dtypes == ["float32", OBJECT]
    assert layout.nbytes.tolist() == [8, 5]
    assert layout.trusted.tolist() == [False, True]


def test_an_empty_state_has_an_empty_layout() -> None:
    layout = layout_of(state_of({}))

    assert equal(layout_from_columns(layout.to_columns()), layout)
    assert len(layout) == 0


def test_equal_shapes_of_a_received_layout_are_one_object() -> None:
    layout = layout_of(state_of({"a": leaf((4096, 512)), "b": leaf((4096, 512))}))

    received = layout_from_columns(layout.to_columns())

    assert received.shapes[0] is received.shapes[1]


def sample() -> Columns:
    """The columns of a layout with every kind of row."""
    box = Box(origin=(2, 1), shape=(2, 3))
    held = (Region.whole(Box.whole((2, 4))), Region(box=box, start=1, count=4))
    leaves = {"a": leaf((4, 4), held=held), "b": leaf((), dtype="int8"), "c": leaf((0,))}
    return layout_of(state_of(leaves, [("o", b"123")])).to_columns()


def u8(*values: int) -> bytes:
    return np.array(values, dtype="<u8").tobytes()


def u4(*values: int) -> bytes:
    return np.array(values, dtype="<u4").tobytes()


NAMES: list[Value] = ["a", "b", "c", "o"]
FAULTS: dict[str, tuple[str, Value]] = {
    "names are no list": ("names", "abco"),
    "a name is no str": ("names", [b"a", "b", "c", "o"]),
    "names do not ascend": ("names", ["b", "a", "c", "o"]),
    "a name is there twice": ("names", ["a", "b", "b", "o"]),
    "a name is missing": ("names", NAMES[:3]),
    "no such dtype": ("dtypes", ["float31", "int8", OBJECT]),
    "a dtype is missing": ("dtypes", ["float32", "int8"]),
    "an object comes before a tensor": ("dtypes", ["float32", OBJECT, "int8"]),
    "dtype is too short": ("dtype", bytes(3)),
    "dtype is no bytes": ("dtype", 0),
    "ndim is too short": ("ndim", bytes(3)),
    "ndim is above the limit": ("ndim", bytes([33, 0, 1, 1])),
    "trusted is no bool": ("trusted", bytes([2, 0, 0, 1])),
    "trusted is too long": ("trusted", bytes(5)),
    "shape is too short": ("shape", u8(4, 4, 0)),
    "shape is cut": ("shape", bytes(15)),
    "shape is above 2^53-1": ("shape", u8(2**53, 4, 0, 3)),
    "tensor does not exist": ("tensor", u4(0, 0, 1, 4)),
    "tensor descends": ("tensor", u4(0, 1, 0, 3)),
    "a piece is missing": ("tensor", u4(0, 0, 1)),
    "origin is too short": ("origin", u8(0, 0, 2, 1)),
    "a box ends outside": ("origin", u8(3, 0, 2, 1, 0)),
    "extent is too long": ("extent", u8(2, 4, 2, 3, 3, 1)),
    "a box is empty": ("extent", u8(0, 4, 2, 3, 3)),
    "start is too short": ("start", u8(0, 1, 0)),
    "a range ends outside its box": ("start", u8(0, 3, 0, 0)),
    "a range of a scalar ends outside": ("start", u8(0, 1, 1, 0)),
    "count is too long": ("count", u8(8, 4, 1, 3, 1)),
    "a range is empty": ("count", u8(8, 0, 1, 3)),
}


@pytest.mark.parametrize(("column", "value"), FAULTS.values(), ids=FAULTS)
def test_columns_with_a_fault_are_no_layout(column: str, value: Value) -> None:
    with pytest.raises(InvalidArgumentError, match="layout of a rank"):
        layout_from_columns(sample() | {column: value})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda columns: [*columns], id="a list"),
        pytest.param(lambda columns: columns | {"more": b""}, id="one more"),
        pytest.param(lambda columns: {k: columns[k] for k in columns if k != "start"}, id="fewer"),
    ],
)
def test_what_has_other_columns_is_no_layout(change: Callable[[Columns], object]) -> None:
    with pytest.raises(InvalidArgumentError, match="expected the columns"):
        layout_from_columns(change(sample()))


@pytest.mark.parametrize(
    "shape", [(2**53 - 1,) * 31, (2**32, 2**31), (2**27, 2**27), (2**53 - 1, 2)], ids=repr
)
def test_a_box_of_too_many_elements_is_refused_without_an_overflow(shape: tuple[int, ...]) -> None:
    held = (Region(box=Box.whole(shape), start=0, count=1),)
    columns = layout_of(state_of({"w": leaf(shape, held=held)})).to_columns()

    with pytest.raises(InvalidArgumentError, match="more than 2\\^53-1 elements"):
        layout_from_columns(columns)


@given(st.data())
def test_damaged_columns_are_refused_or_read_never_anything_else(data: st.DataObject) -> None:
    columns = sample()
    name = data.draw(st.sampled_from([n for n in columns if isinstance(columns[n], bytes)]))
    packed = columns[name]
    assert isinstance(packed, bytes)
    at = data.draw(st.integers(0, len(packed) - 1))
    changed = packed[:at] + data.draw(st.binary(max_size=9)) + packed[at + 1 :]

    try:
        layout = layout_from_columns(columns | {name: changed})
    except InvalidArgumentError:
        return
    assert layout.to_columns()[name] == changed
