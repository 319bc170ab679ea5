"""States to measure with: what a training run saves, and very many small tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bcpformat.errors import StateError
from bcpformat.model.dtypes import DType

Array: TypeAlias = npt.NDArray[Any]  # Any: the scalar type is the tensor's
Arrays: TypeAlias = dict[str, dict[str, Array]]
"""Names of arrays in named groups."""

SMALL_TENSOR_BYTES = 4096
ADAM_BYTES_PER_PARAMETER = 14
"""bfloat16 parameters; float32 masters and two float32 moments."""

_LAYERS_SHARE = 0.8
_FEWEST_LAYERS = 4
_NOISE_BYTES = (8 << 20) + 64


def adam_state(nbytes: int) -> Arrays:
    """Return parameters with the shapes of a Llama model, and what Adam keeps for them.

    Args:
        nbytes: Bytes of all arrays, reached to a few per cent.
    """
    shapes = llama_shapes(nbytes // ADAM_BYTES_PER_PARAMETER)
    kinds = {
        "model": DType.named("bfloat16").numpy,
        "master": np.dtype(np.float32),
        "exp_avg": np.dtype(np.float32),
        "exp_avg_sq": np.dtype(np.float32),
    }
    return _filled(
        {
            group: {name: np.empty(shape, kind) for name, shape in shapes.items()}
            for group, kind in kinds.items()
        }
    )


def llama_shapes(num_parameters: int) -> dict[str, tuple[int, ...]]:
    """Return name to shape of a model of about so many parameters, small norms among them.

    Example:
        >>> list(llama_shapes(100_000).items())[:2]
        [('layers.0.wq', (64, 64)), ('layers.0.wk', (16, 64))]
    """
    room = int(num_parameters * _LAYERS_SHARE)
    hidden = 64
    while hidden < 4096 and _FEWEST_LAYERS * _num_elements(_layer_shapes(2 * hidden)) <= room:
        hidden *= 2
    layer = _layer_shapes(hidden)
    num_layers = max(1, room // _num_elements(layer))
    shapes = {
        f"layers.{number}.{name}": shape
        for number in range(num_layers)
        for name, shape in layer.items()
    }
    rest = num_parameters - num_layers * _num_elements(layer) - hidden
    shapes["embed"] = (max(1, rest // hidden), hidden)
    shapes["norm"] = (hidden,)
    return shapes


def _layer_shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    inner = hidden * 11 // 4
    return {
        "wq": (hidden, hidden),
        "wk": (hidden // 4, hidden),
        "wv": (hidden // 4, hidden),
        "wo": (hidden, hidden),
        "w1": (inner, hidden),
        "w2": (hidden, inner),
        "w3": (inner, hidden),
        "attention_norm": (hidden,),
        "ffn_norm": (hidden,),
    }


def _num_elements(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(int(np.prod(shape)) for shape in shapes.values())


def small_state(num_tensors: int) -> Arrays:
    """Return so many arrays of 4 KiB."""
    shape = (SMALL_TENSOR_BYTES // 4,)
    names = [f"t{number:06d}" for number in range(num_tensors)]
    return _filled({"model": {name: np.empty(shape, np.float32) for name in names}})


def zeros_like(arrays: Arrays) -> Arrays:
    """Return warm arrays of the same shapes, to read into."""
    made = {
        group: {name: np.empty_like(array) for name, array in members.items()}
        for group, members in arrays.items()
    }
    clear(made)
    return made


def clear(arrays: Arrays) -> None:
    """Set all elements to 0."""
    for members in arrays.values():
        for array in members.values():
            array.reshape(-1).view(np.uint8)[:] = 0


def total_bytes(arrays: Arrays) -> int:
    """Return the bytes of all arrays."""
    return sum(array.nbytes for members in arrays.values() for array in members.values())


def check_equal(expected: Arrays, found: Arrays) -> None:
    """Compare all bits.

    Raises:
        StateError: They differ.
    """
    for group, members in expected.items():
        for name, array in members.items():
            other = found[group][name]
            if not np.array_equal(array.view(np.uint8), other.view(np.uint8)):
                raise StateError(f"tensor {name!r} of {group!r} was not read as it was written")


def flat(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the members of all groups under one name each.  Any: arrays or tensors."""
    return {
        f"{group}.{name}": value
        for group, members in groups.items()
        for name, value in members.items()
    }


def fill(data: npt.NDArray[np.uint8], noise: npt.NDArray[np.uint8]) -> None:
    """Fill bytes with noise, repeated; cheaper than new noise and just as good for copies."""
    for start in range(0, len(data), len(noise)):
        part = data[start : start + len(noise)]
        part[:] = noise[: len(part)]


def make_noise(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return random bytes, every time the same."""
    return np.frombuffer(np.random.default_rng(0).bytes(nbytes), np.uint8)


def _filled(arrays: Arrays) -> Arrays:
    noise = make_noise(_NOISE_BYTES)
    count = 0
    for members in arrays.values():
        for array in members.values():
            # Every array begins elsewhere in the noise, so that no two are equal.
            fill(array.reshape(-1).view(np.uint8), noise[count % (1 << 20) :])
            count += 61
    return arrays
