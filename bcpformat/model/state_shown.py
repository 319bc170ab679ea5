"""What stands at a place of the state in a few words, for messages about what ranks have."""

from __future__ import annotations

from bcpformat.model import nodes
from bcpformat.model.leaves import FLAG_NUMPY, FLAG_PARAMETER, FLAG_REQUIRES_GRAD
from bcpformat.model.manifest import Node

Detail = int | tuple[int, int, bytes]
"""What must be equal of a node that refers to a row: the flags of a tensor; the kind, length and
digest of an object."""

_CONTAINERS = {
    nodes.DICT: "a dict",
    nodes.ORDERED_DICT: "an OrderedDict",
    nodes.LIST: "a list",
    nodes.TUPLE: "a tuple",
    nodes.SET: "a set",
    nodes.FROZENSET: "a frozenset",
}
_BYTES = {nodes.BYTEARRAY: "a bytearray", nodes.BYTES_IO: "a BytesIO"}
_OBJECTS = ("a str", "bytes", "a bytearray", "a BytesIO", "an int")
_CHARACTERS = 60
_INT_BYTES = 25


def shown_reference(kind: int, detail: Detail) -> str:
    """Return words for a node that refers to a tensor, an object or values of single ranks.

    Example:
        >>> shown_reference(nodes.TENSOR, 6), shown_reference(nodes.OBJECT, (0, 70_000, b""))
        ('a parameter that requires a gradient', 'a str of 70000 bytes')
    """
    if type(detail) is tuple:
        value, nbytes, _ = detail
        return f"{_OBJECTS[value]} of {nbytes} bytes"
    assert type(detail) is int
    if kind == nodes.PER_RANK:
        return "a PerRank"
    if detail & FLAG_NUMPY:
        return "a numpy array"
    name = "a parameter" if detail & FLAG_PARAMETER else "a tensor"
    return name + (" that requires a gradient" if detail & FLAG_REQUIRES_GRAD else "")


def shown_container(kind: int, length: int, label: str) -> str:
    """Return words for a dict, list, tuple or set, or for a value of a user's type.

    Args:
        kind: Kind code.
        length: What is in it, in the array of its node behind the kind code.
        label: Name of the user's type.
    """
    if kind == nodes.USER:
        return f"a value of type {label:.60}"
    is_dict = kind in (nodes.DICT, nodes.ORDERED_DICT)
    return _CONTAINERS[kind] if is_dict else f"{_CONTAINERS[kind]} of {length}"


def shown_value(node: Node) -> str:
    """Return words for a node that refers to no row.

    Preconditions: `check_state` finds nothing wrong with it.

    Example:
        >>> shown_value([nodes.FLOAT, bytes(8)]), shown_value([nodes.LIST, True])
        ('0.0', 'a list of 1')
    """
    if type(node) is not list:
        return _cut(repr(node))
    kind = node[0]
    assert type(kind) is int
    if kind in _CONTAINERS or kind == nodes.USER:
        return shown_container(kind, len(node) - 1, str(node[1]) if kind == nodes.USER else "")
    data = node[1] if len(node) > 1 else b""
    if type(data) is bytes and (kind in _BYTES or len(data) > _INT_BYTES):
        return f"{_BYTES.get(kind, 'an int')} of {len(data)} bytes"
    return _cut(repr(nodes.VALUES[kind](node)))


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS else text[:_CHARACTERS] + "..."
