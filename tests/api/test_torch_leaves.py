"""torch tensors of every kind as leaves: their values, their ties, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bcpformat
from bcpformat import ErrorCode, InvalidArgumentError, MemoryStore, PerRank, WriteOptions
from bcpformat.torch.dtypes import DTYPE_NAMES, PAIR_DTYPE


def through(state: object, *, codec: str = "raw") -> object:
    store = MemoryStore()
    bcpformat.write(store, state, options=WriteOptions(codec=codec))  # type: ignore[arg-type]
    return bcpformat.read(store)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    return torch.zeros(plain.shape, dtype=plain.dtype).copy_(plain).view(torch.uint8)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Tensors of any type, bits, shape and strides."""
    dtype = draw(st.sampled_from([d for d in DTYPE_NAMES if d is not PAIR_DTYPE]))
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    top = 2 if dtype is torch.bool else 256
    size = dtype.itemsize
    raw = torch.randint(0, top, (*shape, size), dtype=torch.uint8, generator=generator)
    tensor = raw.view(dtype)[..., 0] if size > 1 else raw[..., 0].view(dtype)
    if draw(st.booleans()):
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    match draw(st.integers(0, 4)):
        case 1:
            tensor = tensor.permute(tuple(range(tensor.ndim))[::-1])
        case 2 if tensor.ndim:
            tensor = tensor[..., 1::2]
        case 3 if dtype in (torch.complex64, torch.complex128):
            tensor = tensor.conj()
        case 4 if dtype.is_floating_point and dtype.itemsize > 1:
            tensor = tensor.detach().clone().requires_grad_()
    return tensor


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@given(st.dictionaries(st.sampled_from("abc"), tensors(), max_size=3), st.booleans())
@settings(max_examples=80)
def test_any_tensor_comes_back_bit_by_bit(state: dict[str, torch.Tensor], packed: bool) -> None:  # noqa: FBT001
    back = through(state, codec="zstd" if packed else "raw")

    assert isinstance(back, dict)
    for name, tensor in state.items():
        found = back[name]
        assert found.dtype == tensor.dtype
        assert found.shape == tensor.shape
        assert found.requires_grad == tensor.requires_grad
        assert torch.equal(bits(found), bits(tensor)), name


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@given(tensors())
@settings(max_examples=60)
def test_any_tensor_lies_within_a_per_rank_value(tensor: torch.Tensor) -> None:
    back = through({"r": PerRank([tensor, 1])})

    found = back["r"][0][0]  # type: ignore[index]
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(bits(found), bits(tensor))


# ---- ties ------------------------------------------------------------------------------------


def names_of(state: object) -> tuple[list[str], dict[int, tuple[str, ...]]]:
    store = MemoryStore()
    bcpformat.write(store, state)
    with bcpformat.open(store) as ckpt:
        table = ckpt.manifest.tensors
        return list(table.names), dict(table.aliases)


def test_tied_weights_are_stored_once_and_come_back_tied() -> None:
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    state = {"embed": weight, "head": weight, "data": weight.data, "t": weight.T, "t2": weight.T}

    back = through(state)

    assert names_of(state) == (["embed", "t"], {0: ("head", "data"), 1: ("t2",)})
    assert back["embed"] is back["head"]  # type: ignore[index]
    assert back["data"].data_ptr() == back["embed"].data_ptr()  # type: ignore[index]
    assert torch.equal(back["t2"], weight.T)  # type: ignore[index]


@pytest.mark.parametrize(
    "make",
    [
        lambda: (torch.zeros(4), lambda t: t.view(torch.int32)),
        lambda: (torch.zeros(4), lambda t: t.view(2, 2)),
        lambda: (torch.zeros(4), lambda t: t[:3]),
        lambda: (torch.zeros(4), lambda t: t[1:]),
        lambda: (torch.zeros(2, 2), lambda t: t.T),
        lambda: (torch.ones(2, dtype=torch.complex64), lambda t: t.conj()),
        lambda: (torch.ones(4, dtype=torch.complex64).conj().imag, lambda t: t[:2]),
        lambda: (np.zeros(4), lambda a: a.view(np.int64)),
        lambda: (np.zeros((2, 2)), lambda a: a.T),
        lambda: (np.zeros(4), lambda a: a[::2]),
        lambda: (np.zeros(4), lambda a: a.reshape(1, 4)),
        lambda: (np.zeros(4, "<i4"), lambda a: a.view(">i4")),
        lambda: (torch.zeros(0), lambda t: t.clone()),
        lambda: (np.zeros(0), lambda a: a),
        lambda: (np.zeros((0, 3)), lambda a: a[:, :0]),
    ],
)
def test_views_that_mean_something_else_are_tensors_of_their_own(make: object) -> None:
    first, change = make()  # type: ignore[operator]
    state = {"a": first, "b": change(first)}

    names, aliases = names_of(state)
    back = through(state)

    assert names == ["a", "b"]
    assert aliases == {}
    for name, value in state.items():
        assert np.array_equal(native(back[name]), native(value))  # type: ignore[index]


def native(value: object) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        return value.resolve_conj().resolve_neg().numpy()
    assert isinstance(value, np.ndarray)
    return value.astype(value.dtype.newbyteorder("<"))


def test_axes_of_one_element_do_not_untie() -> None:
    base = torch.arange(3.0)
    state = {"a": base.as_strided((1, 3), (3, 1)), "b": base.as_strided((1, 3), (77, 1))}

    assert names_of(state) == (["a"], {0: ("b",)})
    assert torch.equal(through(state)["b"], base.reshape(1, 3))  # type: ignore[index]


@dataclass
class Made:
    """A value whose encoder makes tensors that nobody else holds."""

    number: int


def test_tensors_that_an_encoder_makes_are_not_mistaken_for_one_another() -> None:
    def encode(value: Made) -> object:
        return [torch.full((1000,), value.number), np.full(1000, value.number)]

    bcpformat.register_type(
        Made, name="test-made", encode=encode, decode=lambda parts: Made(int(parts[0][999]))
    )
    state = [Made(number) for number in range(12)]

    back = through(state)

    assert back == state


def test_arrays_of_temporaries_are_not_mistaken_for_one_another() -> None:
    state = [torch.full((64, 65), number).T for number in range(40)]
    state += [torch.full((64,), float(n), dtype=torch.complex64).conj() for n in range(40)]
    mixed = [*state, *(np.full((64, 3), n, ">f8").T for n in range(40))]

    back = through(mixed)

    for found, wanted in zip(back, mixed, strict=True):  # type: ignore[call-overload]
        assert np.array_equal(native(found), native(wanted))


# ---- refusals --------------------------------------------------------------------------------


class Wrapped(torch.Tensor):
    """A subclass, which may mean anything."""


def freed() -> torch.Tensor:
    tensor = torch.zeros(5)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.zeros(2).as_subclass(Wrapped), r"make it a torch\.Tensor"),
        (torch.nn.UninitializedParameter, "make it a"),
        (lambda: torch.zeros(2, device="meta"), "meta"),
        (lambda: torch.zeros(2).to_sparse(), "to_dense"),
        (freed, "freed"),
        (lambda: torch.nn.Linear(1, 1), r"torch\.nn\.modules\.linear\.Linear"),
        (lambda: np.ma.masked_array([1, 2]), r"make it a numpy\.ndarray"),
        (lambda: np.array([1, None]), "object"),
        (lambda: np.array(["x"]), "array"),
        (lambda: np.zeros(1, [("a", "f4")]), "array"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda v: v, PerRank])
def test_what_has_no_form_is_refused_with_path_and_way_out(
    make: object, words: str, wrap: object
) -> None:
    with pytest.raises(InvalidArgumentError, match=words) as caught:
        bcpformat.write(MemoryStore(), {"model": {"layer": [0, wrap(make())]}})  # type: ignore[operator]

    assert "model/layer/1" in str(caught.value)
    assert caught.value.code is ErrorCode.NO_FORM


@pytest.mark.filterwarnings("ignore")
def test_nested_tensors_are_refused() -> None:
    nested = torch._nested_tensor_from_tensor_list([torch.zeros(1), torch.zeros(2)])

    with pytest.raises(InvalidArgumentError, match="'w': a tensor without memory of its own"):
        bcpformat.write(MemoryStore(), {"w": nested})


@pytest.mark.filterwarnings("ignore")
def test_quantized_tensors_are_refused() -> None:
    quantized = torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.quint8)

    with pytest.raises(InvalidArgumentError, match=r"'w': a tensor of torch\.quint8"):
        bcpformat.write(MemoryStore(), {"w": quantized})


def test_reading_leaves_the_default_dtype_and_grad_mode_alone() -> None:
    with torch.no_grad():
        back = through({"w": torch.nn.Parameter(torch.ones(2))})
        assert not torch.is_grad_enabled()
    assert back["w"].requires_grad  # type: ignore[index]
    torch.set_default_dtype(torch.float64)
    try:
        assert through({"w": torch.ones(2, dtype=torch.float32)})["w"].dtype is torch.float32  # type: ignore[index]
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_default_device_does_not_move_what_is_read() -> None:
    with torch.device("meta"):
        back = through({"w": torch.arange(3, device="cpu")})

    assert back["w"].tolist() == [0, 1, 2]  # type: ignore[index]
