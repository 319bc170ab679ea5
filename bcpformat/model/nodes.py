"""Nodes of the state tree: kind codes, the values of nodes without children, keys.

What is here is shared by the encoder, the decoder and the check, so that all three hold to one
reading of the table (spec 10).  Functions that read a node trust nothing about it but that it is a
value of the profile nested at most 128 deep; they say what is wrong, their callers say where.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from math import prod
from typing import Final, Never, TypeVar

import numpy as np

from bcpformat.errors import ErrorCode, Problem, UnsupportedError, error_for
from bcpformat.model.dtypes import DType, dtype_from_name
from bcpformat.model.leaves import ALL_FLAGS
from bcpformat.model.limits import MAX_INTEGER, MAX_NDIM, STATE_DEPTH
from bcpformat.model.manifest import Node
from bcpformat.model.user_types import TorchDevice, TorchDType, TorchSize

TENSOR: Final = 0
NONE: Final = 1
INT: Final = 2
BIG_INT: Final = 3
FLOAT: Final = 4
COMPLEX: Final = 5
DICT: Final = 6
ORDERED_DICT: Final = 7
LIST: Final = 8
TUPLE: Final = 9
SET: Final = 10
FROZENSET: Final = 11
BYTEARRAY: Final = 12
BYTES_IO: Final = 13
TORCH_SIZE: Final = 14
TORCH_DTYPE: Final = 15
TORCH_DEVICE: Final = 16
NUMPY_SCALAR: Final = 17
OBJECT: Final = 18
PER_RANK: Final = 19
USER: Final = 20
INLINE: Final = 21

OBJECT_STR: Final = 0
OBJECT_BYTES: Final = 1
OBJECT_BYTEARRAY: Final = 2
OBJECT_BYTES_IO: Final = 3
OBJECT_INT: Final = 4

MAX_TENSOR_BITS: Final = 8 * MAX_INTEGER
"""Bits of the largest tensor, its axes without elements counted as 1 (BCP-CNV-003)."""

Key = str | bool | int | tuple["Key", ...]
"""A key of a dict that has a form."""

T = TypeVar("T")


# ---- depth ---------------------------------------------------------------------------------


def is_deeper(node: Node, levels: int) -> bool:
    """Return whether arrays nest deeper than `levels` in a node, itself included."""
    arrays = [node] if type(node) is list else []
    for _ in range(levels):
        if not arrays:
            return False
        arrays = [child for array in arrays for child in array if type(child) is list]
    return bool(arrays)


def check_depth(root: Node) -> None:
    """Refuse a tree that nests too deep; after it no recursion can be too deep either.

    Raises:
        FormatError: Arrays nest deeper than 128 (`E_DEPTH`, BCP-MSG-006).
    """
    if is_deeper(root, STATE_DEPTH):
        refuse(f"arrays nest deeper than {STATE_DEPTH}", code=ErrorCode.DEPTH)


# ---- integers ------------------------------------------------------------------------------


def int_bytes(value: int) -> bytes:
    """Return an int as two's complement, little-endian, in as few bytes as possible."""
    return value.to_bytes(_int_nbytes(value), "little", signed=True)


def int_from_bytes(data: bytes) -> int:
    """Return an int of any size, the reverse of `int_bytes`.

    Raises:
        FormatError: No bytes (`E_STATE`), or more than needed (`E_MP_NONCANONICAL`).
    """
    if not data:
        refuse("an int of no bytes")
    value = int.from_bytes(data, "little", signed=True)
    if len(data) != _int_nbytes(value):
        text = f"an int in {len(data)} bytes that needs {_int_nbytes(value)}"
        refuse(text, code=ErrorCode.MP_NONCANONICAL)
    return value


def _int_nbytes(value: int) -> int:
    return ((value if value >= 0 else ~value).bit_length() >> 3) + 1


# ---- nodes without children ----------------------------------------------------------------


def refuse(message: str, *, code: ErrorCode = ErrorCode.STATE) -> Never:
    """Raise the error of a code; the caller adds the place."""
    raise error_for(Problem(code=code, where="", message=message))


def _only(node: list[Node], kind: type[T]) -> T:
    """Return what stands behind the kind code of a node that holds one value."""
    if len(node) != 2 or type(node[1]) is not kind:
        refuse(f"expected a kind code and one {kind.__name__}, found {describe(node)}")
    return node[1]


def _read_none(node: list[Node]) -> None:
    if len(node) != 1:
        refuse(f"expected [1], found {describe(node)}")


def _read_int(node: list[Node]) -> int:
    value = _only(node, int)
    if not 0 <= value <= MAX_INTEGER:
        refuse(f"expected an int from 0 to 2^53-1, found {describe(value)}")
    return value


def _read_big_int(node: list[Node]) -> int:
    return big_int(_only(node, bytes))


def big_int(data: bytes) -> int:
    """Return an int that is too large for ``[2, n]``, or negative (BCP-STA-009).

    Raises:
        FormatError: No bytes (`E_STATE`), more than needed, or an int that ``[2, n]`` holds
            (`E_MP_NONCANONICAL`).
    """
    value = int_from_bytes(data)
    if 0 <= value <= MAX_INTEGER:
        refuse(f"int {value} as [3, bin], not [2, n]", code=ErrorCode.MP_NONCANONICAL)
    return value


def _sized(node: list[Node], nbytes: int) -> bytes:
    data = _only(node, bytes)
    if len(data) != nbytes:
        refuse(f"expected {nbytes} bytes, found {describe(node)} with {len(data)}")
    return data


def read_float(node: list[Node]) -> float:
    """Return the value of a node of kind 4, or refuse it (`E_STATE`)."""
    value: float = struct.unpack("<d", _sized(node, 8))[0]
    return value


def read_complex(node: list[Node]) -> complex:
    """Return the value of a node of kind 5, or refuse it (`E_STATE`)."""
    real, imaginary = struct.unpack("<dd", _sized(node, 16))
    return complex(real, imaginary)


def _read_torch_size(node: list[Node]) -> TorchSize:
    return TorchSize(_integers(node[1:]))


def _integers(nodes: Sequence[Node]) -> tuple[int, ...]:
    values = tuple(n for n in nodes if type(n) is int and 0 <= n <= MAX_INTEGER)
    if len(values) != len(nodes):
        refuse("an element of a shape is not an integer from 0 to 2^53-1")
    return values


def _read_numpy_scalar(node: list[Node]) -> np.generic:
    if len(node) != 3 or type(node[1]) is not str or type(node[2]) is not bytes:
        refuse(f"expected [17, str, bin], found {describe(node)}")
    dtype = read_dtype(node[1])
    if dtype.bits < 8:
        refuse(f"a scalar of {dtype.name}, which has {dtype.bits} bits")
    if len(node[2]) * 8 != dtype.bits:
        refuse(f"a scalar of {dtype.name} has {dtype.bits // 8} bytes, found {len(node[2])}")
    scalar: np.generic = np.frombuffer(node[2], dtype.numpy)[0]
    return scalar


VALUES: dict[int, Callable[[list[Node]], object]] = {
    NONE: _read_none,
    INT: _read_int,
    BIG_INT: _read_big_int,
    FLOAT: read_float,
    COMPLEX: read_complex,
    BYTEARRAY: lambda node: bytearray(_only(node, bytes)),
    BYTES_IO: lambda node: io.BytesIO(_only(node, bytes)),
    TORCH_SIZE: _read_torch_size,
    TORCH_DTYPE: lambda node: TorchDType(_only(node, str)),
    TORCH_DEVICE: lambda node: TorchDevice(_only(node, str)),
    NUMPY_SCALAR: _read_numpy_scalar,
}
"""Kind code to the function that returns the value of such a node, or raises `FormatError`."""


def read_dtype(name: str) -> DType:
    """Return the data type a node names.

    Raises:
        UnsupportedError: The registry has no such name (`E_DTYPE`).
    """
    try:
        return dtype_from_name(name)
    except UnsupportedError:
        refuse(f"dtype {name!r:.100} is not in the registry", code=ErrorCode.DTYPE)


def read_tensor(node: list[Node]) -> tuple[int, int]:
    """Return the tensor index and the flags of a node of kind 0.

    Raises:
        FormatError: It is of another form (`E_STATE`), or has no flags (`E_MP_NONCANONICAL`).
    """
    if len(node) != 3 or type(node[1]) is not int or type(node[2]) is not int:
        refuse(f"expected [0, index, flags], found {describe(node)}")
    if not 0 <= node[2] <= ALL_FLAGS:
        refuse(f"flags must be 1 to {ALL_FLAGS}, found {node[2]}")
    if not node[2]:
        refuse("a tensor without flags as [0, i, 0]", code=ErrorCode.MP_NONCANONICAL)
    return node[1], node[2]


def read_object(node: list[Node]) -> tuple[int, int]:
    """Return the kind of value and the row of a node of kind 18.

    Raises:
        FormatError: It is of another form (`E_STATE`).
    """
    if len(node) != 3 or type(node[1]) is not int or type(node[2]) is not int:
        refuse(f"expected [18, kind, row], found {describe(node)}")
    if not OBJECT_STR <= node[1] <= OBJECT_INT:
        refuse(f"a value stored as an object has kind 0 to 4, found {node[1]}")
    return node[1], node[2]


def read_per_rank(node: list[Node]) -> int:
    """Return the ordinal of a node of kind 19.

    Raises:
        FormatError: It is of another form (`E_STATE`).
    """
    return _only(node, int)


def read_user(node: list[Node]) -> tuple[str, Node]:
    """Return the type's name and the inner node of a node of kind 20.

    Raises:
        FormatError: It is of another form (`E_STATE`).
    """
    if len(node) != 3 or type(node[1]) is not str:
        refuse(f"expected [20, name, node], found {describe(node)}")
    return node[1], node[2]


def read_inline(node: list[Node]) -> tuple[int, str, tuple[int, ...], bytes]:
    """Return flags, data type, shape and packed elements of a node of kind 21.

    Raises:
        FormatError: It is of another form (`E_STATE`), its data type is not in the registry
            (`E_DTYPE`), or its size is above 2^53-1 (`E_OVERFLOW`).
    """
    if [type(child) for child in node] != [int, int, str, list, bytes]:
        refuse(f"expected [21, flags, dtype, [shape], bin], found {describe(node)}")
    _, flags, name, dims, data = node
    assert isinstance(flags, int) and isinstance(name, str)
    assert isinstance(dims, list) and isinstance(data, bytes)
    if not 0 <= flags <= ALL_FLAGS:
        refuse(f"flags must be 0 to {ALL_FLAGS}, found {flags}")
    dtype = read_dtype(name)
    shape = _integers(dims)
    if len(shape) > MAX_NDIM:
        refuse(f"a tensor has at most {MAX_NDIM} axes, found {len(shape)}")
    if prod(max(extent, 1) for extent in shape) * dtype.bits > MAX_TENSOR_BITS:
        refuse("a tensor of more than 2^53-1 bytes", code=ErrorCode.OVERFLOW)
    if len(data) != dtype.nbytes_of(prod(shape)):
        expected = dtype.nbytes_of(prod(shape))
        refuse(f"{dtype.name} of shape {shape} has {expected} bytes, found {len(data)}")
    return flags, name, shape, data


# ---- keys ------------------------------------------------------------------------------------


def read_key(node: Node) -> Key:
    """Return the key of a dict that a node stands for (BCP-STA-002).

    Raises:
        FormatError: It is no key (`E_STATE`), or an int of another form.
    """
    if type(node) is str or type(node) is bool:
        return node
    if type(node) is list and node:
        if node[0] == TUPLE and type(node[0]) is int:
            return tuple(read_key(element) for element in node[1:])
        if node[0] in (INT, BIG_INT) and type(node[0]) is int:
            return _read_int(node) if node[0] == INT else _read_big_int(node)
    refuse(f"keys are str, int, bool or tuples of these, found {describe(node)}")


def encoded(node: Node) -> bytes:
    """Return the bytes of a node under the profile (spec 6), to order and compare.

    Preconditions: integers are 0 to 2^53-1, and every str is well-formed.
    """
    if type(node) is bool:
        return b"\xc3" if node else b"\xc2"
    if type(node) is int:
        return _head(node, 0x00, 128, (0xCC, 0xCD, 0xCE, 0xCF))
    if type(node) is str:
        data = node.encode()
        return _head(len(data), 0xA0, 32, (0xD9, 0xDA, 0xDB)) + data
    if type(node) is bytes:
        return _head(len(node), 0xC4, 0, (0xC4, 0xC5, 0xC6)) + node
    assert type(node) is list
    return array_head(len(node)) + b"".join(map(encoded, node))


def array_head(length: int) -> bytes:
    """Return how the encoding of an array begins."""
    # Arrays have no form with a length of one byte.
    return _head(length, 0x90, 16, (0xDC, 0xDC, 0xDD), smallest=1)


def _head(
    number: int, fixed: int, below: int, codes: tuple[int, ...], *, smallest: int = 0
) -> bytes:
    """Return the shortest form of an integer or a length."""
    if number < below:
        return bytes((fixed | number,))
    power = max((number > 0xFF) + (number > 0xFFFF) + (number > 0xFFFFFFFF), smallest)
    return bytes((codes[power],)) + number.to_bytes(1 << power, "big")


def describe(node: object) -> str:
    """Return what a node is in a few words, for a message."""
    if type(node) is list:
        parts = ["array" if type(child) is list else describe(child) for child in node[:6]]
        return f"[{', '.join(parts)}{', ...' if len(node) > 6 else ''}]"
    if type(node) is int:
        return str(node) if node.bit_length() <= 64 else "int"
    return "bin" if type(node) is bytes else type(node).__name__
