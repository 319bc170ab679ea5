"""Destinations that share memory: the same place twice is fine, anything else is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bcpformat
from bcpformat import MemoryStore, MismatchError
from bcpformat.api.overlap import is_folded, settle
from bcpformat.model.manifest import ints


def written(state: object) -> MemoryStore:
    store = MemoryStore()
    bcpformat.write(store, state)
    return store


@st.composite
def views(draw: st.DrawFn) -> np.ndarray:
    """Views of 40 bytes, one per draw, 1-d or 2-d, of items of 1 or 4 bytes."""
    size = draw(st.sampled_from([1, 4]))
    count = 40 // size
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    strides = tuple(draw(st.integers(1, 5)) for _ in shape)
    reach = sum(s * (n - 1) for s, n in zip(strides, shape, strict=True))
    start = draw(st.integers(0, max(count - 1 - reach, 0)))
    if start + reach >= count:
        shape, strides = (1,), (1,)
    memory = MEMORY.view(f"u{size}")[start:]
    return np.lib.stride_tricks.as_strided(memory, shape, tuple(s * size for s in strides))


MEMORY = np.zeros(40, np.uint8)


def bytes_of(view: np.ndarray) -> list[int]:
    """Every byte's position in the memory, element by element."""
    base = MEMORY.ctypes.data
    return [
        view.ctypes.data - base + sum(i * s for i, s in zip(index, view.strides, strict=True)) + b
        for index in np.ndindex(view.shape)
        for b in range(view.itemsize)
    ]


@given(views())
def test_a_view_without_shared_elements_is_never_called_folded_nor_the_reverse(
    view: np.ndarray,
) -> None:
    places = bytes_of(view)

    found = is_folded(view.shape, view.strides, size=view.itemsize)

    if len(set(places)) < len(places):
        assert found
    elif view.ndim == 1 or view.flags.c_contiguous:
        assert not found


@given(st.lists(st.tuples(views(), st.integers(0, 1)), max_size=5))
@settings(max_examples=300)
def test_clashes_are_those_of_the_bytes(wants: list[tuple[np.ndarray, int]]) -> None:
    wants = [(v, r) for v, r in wants if not is_folded(v.shape, v.strides, size=v.itemsize)]
    plain = [v.flags.c_contiguous for v, _ in wants]

    repeats, clashes = settle(
        ints([v.ctypes.data if p else 1 for (v, _), p in zip(wants, plain, strict=True)]),
        ints([v.nbytes for v, _ in wants]),
        ints([r for _, r in wants]),
        {i: v for i, ((v, _), p) in enumerate(zip(wants, plain, strict=True)) if not p},
    )

    places = [set(bytes_of(v)) for v, _ in wants]
    for want in repeats:
        assert any(
            other != want
            and wants[other][1] == wants[want][1]
            and bytes_of(wants[other][0]) == bytes_of(wants[want][0])
            for other in range(len(wants))
            if other not in repeats
        )
    for clash in clashes:
        assert places[clash.first] & places[clash.second]
    kept = [i for i in range(len(wants)) if i not in repeats]
    overlap = any(places[a] & places[b] for a in kept for b in kept if a < b)
    assert overlap == bool(clashes)


def test_a_tied_template_of_a_tied_checkpoint_is_one_destination() -> None:
    tied, saved = np.zeros((3, 4)).T, np.arange(12.0).reshape(4, 3)
    template = {"a": tied, "b": tied, "c": tied[:], "d": torch.from_numpy(tied)}

    bcpformat.read(written({"a": saved, "b": saved, "c": saved, "d": saved}), into=template)

    assert np.array_equal(tied, saved)


def test_neighbours_and_columns_of_one_array_are_no_clash() -> None:
    base = np.zeros((4, 6), np.float32)
    template = {"x": base[:, ::3], "y": base[:, 1::3], "z": base[:, 2::3]}

    bcpformat.read(written({k: np.full((4, 2), ord(k), np.float32) for k in "xyz"}), into=template)

    assert base.tolist() == [[120, 121, 122] * 2] * 4


@pytest.mark.parametrize(
    "make",
    [
        lambda b: {"a": b[:5], "b": b[4:9]},
        lambda b: {"a": b[:5], "b": b[:5]},
        lambda b: {"a": b[::2], "b": b[:5]},
        lambda b: {"a": b[::2], "b": b[::2]},
        lambda b: {"a": b[::2], "b": b[8:3:-1]},
        lambda b: {"a": b[:5].view(">f4"), "b": b[3:8]},
        lambda b: {"a": torch.from_numpy(b)[::2], "b": b[::2]},
        lambda b: {"a": torch.from_numpy(b)[::2], "b": torch.from_numpy(b)[2:7]},
        lambda b: {"a": b[:10].view(np.float64)[:5], "b": b[:5]},
    ],
)
def test_two_tensors_in_one_place_are_refused_and_nothing_is_written(make: object) -> None:
    base = np.zeros(10, np.float32)
    template = make(base)  # type: ignore[operator]

    with pytest.raises(MismatchError, match="shares memory with"):
        bcpformat.read(
            written({"a": np.full(5, 7, np.float32), "b": np.full(5, 8, np.float32)}),
            into=template,
            cast=True,
        )

    assert not base.any()


def test_a_tensor_in_a_place_that_is_only_partly_shared_is_refused() -> None:
    base = np.zeros(6)

    with pytest.raises(MismatchError, match="only a part"):
        bcpformat.read(
            written({"w": np.ones(5)}),
            into={"a": base[:5], "b": base[1:]},
            rename=lambda _: "w",
        )


def test_a_tied_template_that_is_filled_by_a_copy_is_filled_right() -> None:
    saved = torch.arange(6.0)
    tied = torch.full((6,), 9.0, dtype=torch.float16)
    template = {"a": tied, "b": tied, "c": tied[:]}

    bcpformat.read(written({"a": saved, "b": saved, "c": saved}), into=template, cast=True)

    assert tied.tolist() == saved.tolist()


def test_an_untied_template_of_a_tied_checkpoint_is_filled_twice() -> None:
    saved = np.arange(3)
    template = {"a": np.zeros(3, np.int64), "b": np.zeros(3, np.int64)}

    bcpformat.read(written({"a": saved, "b": saved}), into=template)

    assert template["a"].tolist() == template["b"].tolist() == [0, 1, 2]
