"""The state tree as a flat list of items with names, for tools that show or compare it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bcpformat.model.manifest import Node
from bcpformat.model.names import METADATA, display, join, segment
from bcpformat.model.nodes import (
    BIG_INT,
    BYTEARRAY,
    BYTES_IO,
    COMPLEX,
    DICT,
    FLOAT,
    FROZENSET,
    INT,
    LIST,
    NONE,
    NUMPY_SCALAR,
    OBJECT,
    ORDERED_DICT,
    PER_RANK,
    SET,
    TENSOR,
    TORCH_DEVICE,
    TORCH_DTYPE,
    TORCH_SIZE,
    TUPLE,
    USER,
    VALUES,
    read_key,
)

_KINDS = {
    TENSOR: "tensor",
    NONE: "None",
    INT: "int",
    BIG_INT: "int",
    FLOAT: "float",
    COMPLEX: "complex",
    DICT: "dict",
    ORDERED_DICT: "OrderedDict",
    LIST: "list",
    TUPLE: "tuple",
    SET: "set",
    FROZENSET: "frozenset",
    BYTEARRAY: "bytearray",
    BYTES_IO: "BytesIO",
    TORCH_SIZE: "torch.Size",
    TORCH_DTYPE: "torch.dtype",
    TORCH_DEVICE: "torch.device",
    NUMPY_SCALAR: "numpy scalar",
    PER_RANK: "per-rank",
}
_OBJECT_KINDS = ("str", "bytes", "bytearray", "BytesIO", "int")
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One node of the state: a container, a tensor leaf or a value.

    Attributes:
        name: Its name (spec 11).
        segment: The last segment of the name, ``""`` at the top.
        depth: Containers above it.
        kind: What it is: ``"dict"``, ``"tensor"``, ``"int"`` and so on.
        registered: The name of a user's registered type that wraps it, ``""`` if none does.
        node: The node.
        index: Row of the tensor, of the object or ordinal of the per-rank value; -1 for others.
        children: Entries of a container; 0 for others.
    """

    name: str
    segment: str
    depth: int
    kind: str
    registered: str
    node: Node
    index: int
    children: int

    @property
    def is_container(self) -> bool:
        """Whether other items stand below it, or could."""
        return self.kind in ("dict", "OrderedDict", "list", "tuple")


def state_items(root: Node) -> Iterator[Item]:
    """Yield all items of a checked state, in state order, containers before their entries."""
    stack = [(root, "", "", 0, "")]
    while stack:
        node, name, last, depth, registered = stack.pop()
        code = node[0] if isinstance(node, list) else None
        if isinstance(node, list) and code == USER:
            kind = str(node[1])
            stack.append((node[2], name, last, depth, f"{registered}/{kind}".lstrip("/")))
            continue
        entries = list(_entries(node))
        yield Item(
            name=name,
            segment=last,
            depth=depth,
            kind=_kind(node),
            registered=registered,
            node=node,
            index=_index(node),
            children=len(entries),
        )
        for part, child in reversed(entries):
            stack.append((child, join(name, part), part, depth + 1, ""))


def find_node(root: Node, name: str) -> Node | None:
    """Return the node of a name, None if there is none."""
    return next((item.node for item in state_items(root) if item.name == name), None)


def plain_keys(root: Node) -> dict[str, str]:
    """Return name to key if the tree is one dict of str keys with tensors and values.

    Such keys are names in other formats as they are, without escapes.  Of any other tree the
    result is empty.
    """
    if not (isinstance(root, list) and root[0] in (DICT, ORDERED_DICT)):
        return {}
    pairs = root[1:] if root[0] == DICT else root[2:]
    keys: dict[str, str] = {}
    for key, child in zip(pairs[::2], pairs[1::2], strict=True):
        if not isinstance(key, str) or _is_container(child):
            return {}
        keys[segment(key)] = key
    return keys


def value_text(node: Node) -> str:
    """Return a value that is no tensor in a few words, safe for a terminal.

    Example:
        >>> value_text([2, 7]), value_text("text"), value_text([1])
        ('7', "'text'", '')
    """
    if node == [NONE]:
        return ""  # its kind says it
    if isinstance(node, list) and node[0] in VALUES:
        kind, value = node[0], node[1] if len(node) > 1 else None
        if kind in (BYTEARRAY, BYTES_IO) and isinstance(value, bytes):
            return f"{len(value)} bytes"
        if kind == TORCH_SIZE:
            return str(list(node[1:]))
        if kind in (TORCH_DTYPE, TORCH_DEVICE):
            return display(str(value))
        if kind == BIG_INT and isinstance(value, bytes) and len(value) > 32:
            return f"an int of {len(value)} bytes"
        return display(str(VALUES[kind](node)))
    if isinstance(node, bytes):
        return f"{len(node)} bytes"
    if isinstance(node, list) and node[0] in (SET, FROZENSET):
        return f"{len(node) - 1} elements"
    if isinstance(node, str) and len(node) > _SHOWN_CHARACTERS:
        return display(f"{node[:_SHOWN_CHARACTERS]!r}...")
    return display(repr(node)) if isinstance(node, (str, bool)) else ""


def _kind(node: Node) -> str:
    if isinstance(node, bool):
        return "bool"
    if isinstance(node, int):
        return "tensor"
    if isinstance(node, str):
        return "str"
    if isinstance(node, bytes):
        return "bytes"
    code = node[0]
    if code == OBJECT and isinstance(node[1], int):
        return _OBJECT_KINDS[node[1]]
    return _KINDS[code] if isinstance(code, int) else "unknown"


def _is_container(node: Node) -> bool:
    return isinstance(node, list) and node[0] in (DICT, ORDERED_DICT, LIST, TUPLE, USER)


def _index(node: Node) -> int:
    """Return the row or ordinal that a node refers to, -1 if to none."""
    if isinstance(node, bool):
        return -1
    if isinstance(node, int):
        return node
    if isinstance(node, list) and node[0] in (TENSOR, PER_RANK, OBJECT):
        found = node[2] if node[0] == OBJECT else node[1]
        return found if isinstance(found, int) else -1
    return -1


def _entries(node: Node) -> Iterator[tuple[str, Node]]:
    """Yield segment and node of everything directly in a container."""
    if not isinstance(node, list):
        return
    if node[0] in (LIST, TUPLE):
        for position, child in enumerate(node[1:]):
            yield str(position), child
    elif node[0] in (DICT, ORDERED_DICT):
        pairs = node[1:]
        if node[0] == ORDERED_DICT:
            if node[1] != [NONE]:
                yield METADATA, node[1]
            pairs = node[2:]
        for key, child in zip(pairs[::2], pairs[1::2], strict=True):
            yield segment(read_key(key)), child
