"""Nodes of values without leaves below them, keys and sets; and refusals of all that has none.

Part of encoding a state (spec 10): whatever needs no more than the value and where it is.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from math import prod
from operator import itemgetter
from typing import Any, Never, TypeAlias

import numpy as np

from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model import nodes
from bcpformat.model.dtypes import DTYPES, dtype_from_name
from bcpformat.model.leaves import TensorLeaf
from bcpformat.model.limits import MAX_INTEGER, MAX_NDIM, STATE_DEPTH
from bcpformat.model.manifest import Node
from bcpformat.model.names import MAX, is_too_long, segment, shortened

# Any: a value of the type that the function stands for in its table.
NodeEncoder: TypeAlias = Callable[[Any], Node]
"""Returns the node of a value that holds no other values."""

_CERTAINLY_FITS = nodes.MAX_TENSOR_BITS // 128
"""So many elements of any data type fit in 2^53-1 bytes."""


def float_node(value: float) -> Node:
    """Return the node of a float, every bit kept (NaN payloads, -0.0)."""
    return [nodes.FLOAT, struct.pack("<d", value)]


def complex_node(value: complex) -> Node:
    """Return the node of a complex, every bit kept."""
    return [nodes.COMPLEX, struct.pack("<dd", value.real, value.imag)]


def int_node(value: int) -> Node:
    """Return the node of an int of any size (BCP-STA-009)."""
    if 0 <= value <= MAX_INTEGER:
        return [nodes.INT, value]
    return [nodes.BIG_INT, nodes.int_bytes(value)]


def str_node(value: str, name: str) -> Node:
    """Return the node of a str, or refuse one with a surrogate."""
    if not value.isascii():
        utf8(value, name)
    return value


def utf8(value: str, name: str) -> bytes:
    """Return a str as UTF-8, or refuse one with a surrogate."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        text = f"a str with the surrogate {value[error.start]!r} has no form in a checkpoint"
        refuse(name, text)


def key_node(key: nodes.Key, name: str, depth: int) -> Node:
    """Return the node of a key that has a segment, in the dict of that name and depth."""
    if isinstance(key, tuple):
        check_enter(name, depth + 1)
        node: list[Node] = [nodes.TUPLE, *(key_node(part, name, depth + 1) for part in key)]
        check_nesting(node, name, depth + 1)
        return node
    return int_node(key) if type(key) is int else key


def set_node(kind: int, value: Iterable[Any], name: str, depth: int) -> Node:
    """Return the node of a set or frozenset, in the order of its elements' bytes (BCP-STA-003)."""
    check_enter(name, depth)
    made = [_element_node(element, name, depth + 1) for element in value]
    ordered = sorted(((nodes.encoded(node), node) for node in made), key=itemgetter(0))
    for (before, _), (after, _) in pairwise(ordered):
        if before == after:
            refuse(name, "two elements of a set have equal bits (NaN), which has no form")
    node = [kind, *(node for _, node in ordered)]
    check_nesting(node, name, depth)
    return node


def _element_node(value: Any, name: str, depth: int) -> Node:
    """Return the node of an element of a set (BCP-STA-003); the set's name is that of all."""
    cls = type(value)
    if cls is str:
        return str_node(value, name)
    if cls is tuple:
        check_enter(name, depth)
        node: list[Node] = [
            nodes.TUPLE,
            *(_element_node(part, name, depth + 1) for part in value),
        ]
        check_nesting(node, name, depth)
        return node
    if cls is frozenset:
        return set_node(nodes.FROZENSET, value, name, depth)
    encode = _ELEMENTS.get(cls)
    if encode is None:
        refuse(
            name,
            f"an element of type {type_name(cls)} in a set has no form in a checkpoint; elements "
            "are None, bool, int, float, complex, str, bytes, or tuples and frozensets of these",
        )
    return encode(value)


_ELEMENTS: dict[type, NodeEncoder] = {
    type(None): lambda _: [nodes.NONE],
    bool: lambda value: value,
    bytes: lambda value: value,
    int: int_node,
    float: float_node,
    complex: complex_node,
}


def scalar_types() -> frozenset[type]:
    """Return the types of numpy scalars, those of ml_dtypes once that is loaded.

    Whether a `numpy.void` has a form depends on its dtype.
    """
    return _scalar_types(with_extensions="ml_dtypes" in sys.modules)


@cache
def _scalar_types(*, with_extensions: bool) -> frozenset[type]:
    types = {
        d.numpy.type
        for d in DTYPES.values()
        if d.bits >= 8 and (with_extensions or not d.is_extension)
    }
    # C types that are the same as another one under a name of their own
    types |= {np.intc, np.uintc, np.longlong, np.ulonglong}
    if with_extensions:
        import ml_dtypes

        types.add(getattr(ml_dtypes, "complex32", np.void))  # from 0.6 on
    return frozenset(types)


def shown(name: str) -> str:
    """Return a name for a message."""
    return shortened(name) if name else "the top"


def type_name(cls: type) -> str:
    """Return the full name of a type for a message."""
    prefix = "" if cls.__module__ == "builtins" else cls.__module__ + "."
    return prefix + cls.__qualname__


def refuse(name: str, text: str, *, code: ErrorCode = ErrorCode.NO_FORM) -> Never:
    """Refuse the value of a name (BCP-STA-007)."""
    raise InvalidArgumentError(f"{shown(name)}: {text}", code=code)


def check_enter(name: str, depth: int) -> None:
    """Refuse a container that would be nested too deep (BCP-MSG-006)."""
    if depth > STATE_DEPTH:
        _refuse_depth(name)


def check_nesting(node: Node, name: str, depth: int) -> None:
    """Refuse a container whose leaves nest too deep; its containers have checked themselves."""
    # Nodes of leaves are at most two arrays deep.
    if depth >= STATE_DEPTH - 1 and nodes.is_deeper(node, STATE_DEPTH + 1 - depth):
        _refuse_depth(name)


def _refuse_depth(name: str) -> Never:
    text = f"values nest deeper than {STATE_DEPTH}; does a container hold itself?"
    refuse(name, text, code=ErrorCode.DEPTH)


def key_segment(key: object, name: str) -> str:
    """Return the segment of a key in the dict of a name, or refuse the key."""
    try:
        return segment(key)
    except InvalidArgumentError as error:
        refuse(name, error.message, code=error.code)


def check_name(name: str) -> None:
    """Refuse a name that is too long (BCP-MAN-020)."""
    if is_too_long(name):
        refuse(name, f"a name of more than {MAX} bytes has no form in a checkpoint")


def check_leaf(leaf: TensorLeaf, name: str) -> None:
    """Refuse a tensor that no row of a manifest can describe (BCP-CNV-003)."""
    shape = leaf.shape
    if len(shape) <= MAX_NDIM and 0 < prod(shape) <= _CERTAINLY_FITS:
        return
    if len(shape) > MAX_NDIM:
        refuse(name, f"a tensor has at most {MAX_NDIM} axes, this has {len(shape)}")
    bits = dtype_from_name(leaf.dtype).bits
    if prod(max(extent, 1) for extent in shape) * bits > nodes.MAX_TENSOR_BITS:
        refuse(name, f"shape {shape} of {leaf.dtype} is more than 2^53-1 bytes")
