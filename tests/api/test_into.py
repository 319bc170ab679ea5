"""Reads into a template: in place, whole or not at all, everything returned where it belongs."""

from __future__ import annotations

import io
import warnings
from collections import OrderedDict
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import bcpformat
from bcpformat import ErrorCode, MemoryStore, MismatchError, PerRank
from tests.api.states import same, states


def written(state: object) -> MemoryStore:
    store = MemoryStore()
    bcpformat.write(store, state)
    return store


def damaged(store: MemoryStore, *, at: int) -> MemoryStore:
    copy = MemoryStore()
    for info in store.list():
        data = bytearray(store.read(info.key))
        if info.key.startswith("data/"):
            data[at] ^= 1
        copy.put_if_absent(info.key, bytes(data))
    return copy


def blank(value: object) -> object:
    """A template of the same form with other contents."""
    if isinstance(value, np.ndarray):
        native = value.dtype.byteorder != ">"
        return np.zeros(value.shape, value.dtype if native else value.dtype.newbyteorder("<"))
    if isinstance(value, OrderedDict):
        return OrderedDict((k, blank(v)) for k, v in value.items())
    if isinstance(value, dict):
        return {k: blank(v) for k, v in value.items()}
    if isinstance(value, list):
        return [blank(v) for v in value]
    if isinstance(value, tuple):
        return tuple(blank(v) for v in value)
    return PerRank(None) if isinstance(value, PerRank) else None


def plain(value: object) -> object:
    """A state without what a template does not take over: metadata of dicts, per-rank marks."""
    if isinstance(value, PerRank):
        return plain(value.value)
    if isinstance(value, OrderedDict):
        return OrderedDict((k, plain(v)) for k, v in value.items())
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(v) for v in value)
    return value


@given(states)
@settings(max_examples=100)
def test_any_state_comes_back_through_a_template_of_its_form(state: object) -> None:
    template = blank(state)

    back = bcpformat.read(written(state), into=template)

    assert same(plain(state), plain(back))
    if isinstance(template, (dict, list)):
        assert back is template


def test_dicts_lists_and_arrays_stay_the_same_objects() -> None:
    state = {"a": [np.arange(3), {"b": 1}], "o": OrderedDict(x=np.ones(2)), "e": {}, "l": []}
    template = {
        "a": [np.zeros(3, np.int64), {"b": 0}],
        "o": OrderedDict(x=np.zeros(2)),
        "e": {},
        "l": [],
    }
    kept = [template, template["a"], template["a"][0], template["a"][1], template["o"]]
    kept += [template["o"]["x"], template["e"], template["l"]]

    back = bcpformat.read(written(state), into=template)

    found = [back, back["a"], back["a"][0], back["a"][1], back["o"], back["o"]["x"]]
    found += [back["e"], back["l"]]
    assert all(a is b for a, b in zip(kept, found, strict=True))
    assert same(state, back)


def test_tuples_are_made_new_only_where_a_value_in_them_changed() -> None:
    array = np.zeros(2)
    only_arrays, with_number = (array,), (array.copy(), (5, "x"))
    template = {"t": only_arrays, "u": with_number}

    back = bcpformat.read(written({"t": (np.ones(2),), "u": (np.ones(2), (6, "y"))}), into=template)

    assert back["t"] is only_arrays
    assert back["t"][0] is array
    assert back["u"][1] == (6, "y")
    assert back["u"][0] is with_number[0]
    assert np.array_equal(array, [1, 1])


def test_a_tuple_at_the_top_is_returned_new() -> None:
    template = (np.zeros(2), 1)

    back = bcpformat.read(written((np.ones(2), 2)), into=template)

    assert back[1] == 2
    assert back[0] is template[0]


def test_a_bare_tensor_a_bare_list_and_a_bare_value_are_states() -> None:
    tensor, items = torch.zeros(3), [np.zeros(1), 0]

    assert bcpformat.read(written(torch.ones(3)), into=tensor) is tensor
    assert torch.equal(tensor, torch.ones(3))
    assert bcpformat.read(written([np.ones(1), 7]), into=items) is items
    assert same(items, [np.ones(1), 7])
    assert bcpformat.read(written("text"), into="") == "text"


def test_an_empty_checkpoint_goes_into_an_empty_template() -> None:
    template: dict[str, object] = {}

    assert bcpformat.read(written({}), into=template) is template
    assert template == {}


def test_buffers_keep_their_identity() -> None:
    stream, data = io.BytesIO(b"longer than the new"), bytearray(b"old")
    template = {"s": stream, "b": data}

    bcpformat.read(written({"s": io.BytesIO(b"new"), "b": bytearray(b"newer")}), into=template)

    assert template["s"] is stream
    assert stream.read() == b"new"
    assert template["b"] is data
    assert data == b"newer"


def test_a_per_rank_value_is_returned_as_this_ranks() -> None:
    state = {
        "rng": PerRank({"seed": 3, "t": torch.arange(6).reshape(2, 3).T, "n": np.arange(4)[::2]})
    }
    template = {"rng": PerRank(None)}

    bcpformat.read(written(state), into=template)

    assert type(template["rng"]) is PerRank
    value = template["rng"].value
    assert value["seed"] == 3
    assert torch.equal(value["t"], torch.arange(6).reshape(2, 3).T)
    assert np.array_equal(value["n"], [0, 2])


def test_plain_values_of_large_size_and_many_are_read() -> None:
    state = {"text": "x" * 100_000, "n": 2**600_000, "many": [float(i) for i in range(500)]}
    template = {"text": "", "n": 0, "many": [0.0] * 500}

    bcpformat.read(written(state), into=template)

    assert same(template, state)


def test_torch_templates_of_every_kind_are_filled_where_they_lie() -> None:
    wanted = torch.arange(12.0).reshape(3, 4)
    base = torch.zeros(3, 8)
    template = {
        "contiguous": torch.zeros(3, 4),
        "transposed": torch.zeros(4, 3).T,
        "strided": base[:, 1::2],
        "leaf": torch.zeros(3, 4, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.zeros(3, 4)),
        "strided leaf": torch.zeros(4, 3).T.requires_grad_(),
        "numpy": np.zeros((3, 4), np.float32),
    }
    kept = dict(template)

    bcpformat.read(written(dict.fromkeys(template, wanted)), into=template)

    for name, value in template.items():
        assert value is kept[name]
        found = torch.as_tensor(value).detach()
        assert torch.equal(found, wanted), name
    assert template["parameter"].requires_grad
    assert template["leaf"].grad_fn is None
    assert torch.equal(base[:, ::2], torch.zeros(3, 4))
    template["parameter"].sum().backward()


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_large_strided_templates_are_filled(codec: str) -> None:
    """Destinations beyond one read of 8 MiB, rows that cross its borders."""
    array = np.random.default_rng(0).integers(0, 2**40, (1501, 1203))
    store = MemoryStore()
    options = bcpformat.WriteOptions(codec=codec)
    bcpformat.write(store, {"w": array, "v": array[::-1, ::2]}, options=options)
    template = {"w": torch.zeros(1203, 1501, dtype=torch.int64).T, "v": np.zeros((602, 1501)).T}
    template["v"] = template["v"].astype(np.int64, order="F")

    bcpformat.read(store, into=template)

    assert np.array_equal(template["w"].numpy(), array)
    assert np.array_equal(template["v"], array[::-1, ::2])


def test_conjugate_and_negative_views_get_values_not_bits() -> None:
    wanted = torch.tensor([1 + 2j, 3 - 4j])
    base, imaginary = torch.zeros(2, dtype=torch.complex64), torch.zeros(2, dtype=torch.complex64)
    template = {"c": base.conj(), "n": imaginary.conj().imag}

    bcpformat.read(written({"c": wanted, "n": wanted.imag}), into=template)

    assert torch.equal(base, wanted.conj())
    assert torch.equal(template["n"], wanted.imag)


def test_big_endian_arrays_get_values_not_bits() -> None:
    template = {"w": np.zeros(3, ">i4")}

    bcpformat.read(written({"w": np.arange(3, dtype="<i4")}), into=template)

    assert template["w"].tolist() == [0, 1, 2]


def test_packed_pairs_are_compared_in_elements() -> None:
    pair = torch.float4_e2m1fn_x2
    saved = torch.arange(8, dtype=torch.uint8).view(pair)
    right = torch.zeros(8, dtype=torch.uint8).view(pair)
    twice = torch.zeros(16, dtype=torch.uint8).view(pair)
    unpacked = np.zeros(16, ml_dtypes.float4_e2m1fn)
    store = written({"w": saved})

    bcpformat.read(store, into={"w": right})
    bcpformat.read(store, into={"w": unpacked})

    assert torch.equal(right.view(torch.uint8), saved.view(torch.uint8))
    assert unpacked.view(np.uint8)[:4].tolist() == [0, 0, 1, 0]
    with pytest.raises(MismatchError, match=r"\(32,\) in the template, \(16,\)"):
        bcpformat.read(store, into={"w": twice})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.zeros(1).expand(4), "share memory"),
        (lambda: torch.zeros(0), "shape"),
        (lambda: torch.zeros(4).to_sparse(), "layout"),
        (lambda: np.broadcast_to(np.zeros(1, np.float32), 4), "share memory"),
        (lambda: readonly(np.zeros(4, np.float32)), "read-only"),
        (lambda: readonly(np.zeros(8, np.float32)[::2]), "read-only"),
        (lambda: freed(4), "freed"),
        (lambda: np.zeros(4, np.float64), "float64 in the template, float32"),
        (lambda: np.zeros(4, object), "object in the template"),
        (lambda: 3.0, "the checkpoint has a tensor, the template has a float"),
        (lambda: PerRank(None), "one value for all ranks"),
    ],
)
def test_what_cannot_be_a_destination_is_refused_with_the_reason(make: object, words: str) -> None:
    template = {"w": make()}  # type: ignore[operator]

    with pytest.raises(MismatchError, match=words) as caught:
        bcpformat.read(written({"w": torch.ones(4)}), into=template)

    assert [p.where for p in caught.value.problems] == ["w"]


def test_a_view_whose_rows_overlap_is_refused() -> None:
    for template in (
        torch.zeros(10).as_strided((4, 4), (2, 1)),
        np.lib.stride_tricks.sliding_window_view(np.zeros(7, np.float32), 4, writeable=True),
    ):
        with pytest.raises(MismatchError, match="share memory with one another"):
            bcpformat.read(written({"w": np.ones((4, 4), np.float32)}), into={"w": template})


def readonly(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def freed(count: int) -> torch.Tensor:
    tensor = torch.zeros(count)
    tensor.untyped_storage().resize_(0)
    return tensor


def test_after_a_mismatch_nothing_is_touched() -> None:
    store = written({"a": np.ones(3), "b": np.ones(4), "n": 5, "s": bytearray(b"new")})
    buffer = bytearray(b"old")
    template = {"a": np.zeros(3), "b": np.zeros(3), "n": 1, "s": buffer}

    with pytest.raises(MismatchError):
        bcpformat.read(store, into=template)

    assert template["a"].tolist() == [0, 0, 0]
    assert template["n"] == 1
    assert buffer == b"old"


def test_damage_leaves_plain_values_and_names_what_may_have_changed() -> None:
    store = damaged(written({"a": np.zeros(9), "n": 5}), at=4096 + 3)
    template = {"a": np.zeros(9), "n": 1}

    with pytest.raises(bcpformat.ChecksumError) as caught:
        bcpformat.read(store, into=template)

    assert caught.value.changed == ("a",)
    assert template["n"] == 1
    assert any("'a'" in note for note in caught.value.__notes__)


def test_a_destination_that_is_converted_is_unchanged_by_damage() -> None:
    store = damaged(written({"a": np.zeros(9)}), at=4096 + 3)
    template = {"a": np.ones(9, np.float32)}

    with pytest.raises(bcpformat.ChecksumError) as caught:
        bcpformat.read(store, into=template, cast=True)

    assert caught.value.changed == ()
    assert template["a"].tolist() == [1] * 9


@dataclass
class Recipe:
    """A value of a user's type."""

    weight: np.ndarray
    name: str


def test_a_registered_type_comes_back_whole() -> None:
    bcpformat.register_type(
        Recipe,
        name="test-into-recipe",
        encode=lambda r: {"weight": r.weight, "name": r.name},
        decode=lambda parts: Recipe(**parts),
    )
    template = {"r": None, "x": np.zeros(2)}

    bcpformat.read(written({"r": Recipe(np.arange(4), "a"), "x": np.ones(2)}), into=template)

    assert isinstance(template["r"], Recipe)
    assert np.array_equal(template["r"].weight, np.arange(4))
    assert template["r"].name == "a"


def test_a_container_that_holds_itself_is_no_template() -> None:
    template: list[object] = []
    template.append({"x": template})

    with pytest.raises(bcpformat.InvalidArgumentError, match="hold itself") as caught:
        bcpformat.read(written([1]), into=template)

    assert caught.value.code is ErrorCode.DEPTH


def test_template_arguments_need_a_template() -> None:
    store = written({"w": np.ones(1)})
    for arguments in ({"rename": {}}, {"strict": False}, {"cast": True}):
        with pytest.raises(bcpformat.InvalidArgumentError, match="into="):
            bcpformat.read(store, **arguments)
    with pytest.raises(bcpformat.InvalidArgumentError, match="as_numpy"):
        bcpformat.read(store, into={"w": np.ones(1)}, as_numpy=True)
    with pytest.raises(bcpformat.InvalidArgumentError, match="cast"):
        bcpformat.read(store, into={"w": np.ones(1)}, cast="some")


@pytest.mark.parametrize("device", [d for d in ("cuda",) if torch.cuda.is_available()])
def test_tensors_of_a_device_are_filled(device: str) -> None:
    wanted = torch.arange(12.0).reshape(3, 4)
    template = {"w": torch.zeros(3, 4, device=device), "t": torch.zeros(4, 3, device=device).T}

    bcpformat.read(written({"w": wanted, "t": wanted}), into=template)

    assert torch.equal(template["w"].cpu(), wanted)
    assert torch.equal(template["t"].cpu(), wanted)


def test_nothing_warns() -> None:
    state = {"c": torch.zeros(3, dtype=torch.complex64), "r": np.broadcast_to(np.zeros(1), 3)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = bcpformat.read(written(state))
        bcpformat.read(written(state), into=back)


def test_a_container_at_two_places_takes_equal_values_only() -> None:
    shared = {"x": 0, "w": np.zeros(1)}
    template = {"a": shared, "b": shared}
    weight = np.ones(1)

    bcpformat.read(written({"a": {"x": 1, "w": weight}, "b": {"x": 1, "w": weight}}), into=template)

    assert shared["x"] == 1
    with pytest.raises(MismatchError, match="b/x: is the same place as 'a/x'"):
        bcpformat.read(
            written({"a": {"x": 2, "w": weight}, "b": {"x": 3, "w": weight}}), into=template
        )
    assert shared["x"] == 1


def test_one_bytearray_at_two_places_with_different_values_is_refused() -> None:
    store = bcpformat.MemoryStore()
    bcpformat.write(store, {"a": bytearray(b"1"), "b": bytearray(b"2")})
    shared = bytearray(b"0")

    with pytest.raises(bcpformat.MismatchError, match="same place"):
        bcpformat.read(store, into={"a": shared, "b": shared})

    assert shared == b"0"


def test_one_list_of_a_per_rank_value_at_two_places_is_refused() -> None:
    store = bcpformat.MemoryStore()
    bcpformat.write(store, {"a": [bcpformat.PerRank(1)], "b": [bcpformat.PerRank(2)]})
    shared = [bcpformat.PerRank(0)]

    with pytest.raises(bcpformat.MismatchError, match="same place"):
        bcpformat.read(store, into={"a": shared, "b": shared})
