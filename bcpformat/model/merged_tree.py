"""A merged state tree while it is made: branches, leaves, and plain values (spec 10)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TypeAlias

from bcpformat.model import nodes
from bcpformat.model.manifest import Node
from bcpformat.model.state_shown import Detail
from bcpformat.model.state_walk import children

CONTAINERS = (nodes.DICT, nodes.ORDERED_DICT, nodes.LIST, nodes.TUPLE)
REFERENCES = (nodes.TENSOR, nodes.OBJECT, nodes.PER_RANK)

Present: TypeAlias = tuple[int, ...]
"""Documents that have a node, ascending, as half-open ranges: (0, 3, 5, 6) is 0, 1, 2 and 5."""


@dataclass(slots=True)
class Leaf:
    """A node that refers to a tensor, an object or the values of single ranks.

    Attributes:
        kind: Kind code 0, 18 or 19.
        number: Which of its kind, in the order in which they were met.
        detail: What must be equal.
    """

    kind: int
    number: int
    detail: Detail


@dataclass(slots=True)
class Branch:
    """A dict, list or tuple, or a value of a user's type that has leaves in it.

    Attributes:
        kind: Kind code.
        label: Name of the user's type.
        index: What stands for a key to its position.
        keys: Keys (see `state_walk.children`), in order.
        children: What stands under each key.
        present: Documents that have each key.
    """

    kind: int
    label: str = ""
    index: dict[object, int] = field(default_factory=dict)
    keys: list[Node | None] = field(default_factory=list)
    children: list[Content] = field(default_factory=list)
    present: list[Present] = field(default_factory=list)


@dataclass(slots=True)
class Split:
    """A plain value that differs: those of all documents that have it.

    Attributes:
        values: The distinct ones.
        documents: Documents that have one, ascending.
        which: Position in `values` of each document's.
    """

    values: list[Node] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    which: list[int] = field(default_factory=list)
    _index: dict[bytes, int] = field(default_factory=dict)

    def add(self, document: int, node: Node) -> None:
        """Add the value of a document, which comes after all others."""
        at = self._index.setdefault(nodes.encoded(node), len(self.values))
        if at == len(self.values):
            self.values.append(node)
        self.documents.append(document)
        self.which.append(at)

    def value(self, document: int) -> Node:
        """Return the value of a document that has one."""
        return self.values[self.which[bisect_left(self.documents, document)]]


Content: TypeAlias = "Branch | Leaf | Split | Node | None"
"""What stands at a place: a node if it is a plain value, None where a problem was found."""


@dataclass(slots=True)
class Tree:
    """A merged tree, with numbers of leaves where rows will stand.

    Attributes:
        top: An array of one node, the root.
        tensors: Where each tensor leaf stands, in state order: an array, a position in it.
        objects: Where the row of each object stands, in state order.
        ordinals: Number of a per-rank leaf to its ordinal.
        splits: Ordinal to a value that differs.
    """

    top: list[Node] = field(default_factory=list)
    tensors: list[tuple[list[Node], int]] = field(default_factory=list)
    objects: list[tuple[list[Node], int]] = field(default_factory=list)
    ordinals: dict[int, int] = field(default_factory=dict)
    splits: dict[int, Split] = field(default_factory=dict)

    @property
    def per_rank(self) -> int:
        """Number of per-rank nodes."""
        return len(self.ordinals) + len(self.splits)


def same(a: object, b: object) -> bool:
    """Return whether two values of the profile are equal, their types included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b


def is_value(content: Content) -> bool:
    """Return whether nothing at a place refers to a row, so that one rank can have it alone."""
    if type(content) is Branch:
        return all(map(is_value, content.children))
    if type(content) is not list:
        return type(content) not in (int, Leaf)
    if content[0] in CONTAINERS:
        return all(is_value(child) for _, child in children(content))
    return is_value(content[2]) if content[0] == nodes.USER else content[0] not in REFERENCES


def value_of(content: Content, document: int) -> Node:
    """Return the value that a document has at a place; keys come in the order of the union.

    Preconditions: `is_value`.
    """
    if type(content) is Split:
        return content.value(document)
    if type(content) is Branch:
        node: list[Node] = [content.kind]
        for key, child, present in zip(
            content.keys, content.children, content.present, strict=True
        ):
            if bisect_right(present, document) % 2:
                _append_key(node, key)
                node.append(value_of(child, document))
        return node
    return plain(content)


def plain(content: Content) -> Node:
    """Return what stands at a place and is neither a branch, nor a leaf, nor a split."""
    assert content is not None and not isinstance(content, Branch | Leaf | Split)
    return content


def _append_key(node: list[Node], key: Node | None) -> None:
    """Append a key of a dict; positions and metadata have none."""
    if key is not None and type(key) is not int:
        node.append(key)


def build(content: Content, out: list[Node], tree: Tree) -> None:
    """Append the node of what stands at a place to an array, and note its leaves in `tree`."""
    if type(content) is Branch:
        node: list[Node] = [content.kind]
        if content.kind == nodes.USER:
            node.append(content.label)
        for key, child in zip(content.keys, content.children, strict=True):
            _append_key(node, key)
            build(child, node, tree)
        out.append(node)
    elif type(content) is Leaf:
        _build_leaf(content, out, tree)
    elif type(content) is Split:
        ordinal = tree.per_rank
        tree.splits[ordinal] = content
        out.append([nodes.PER_RANK, ordinal])
    else:
        out.append(plain(content))


def _build_leaf(leaf: Leaf, out: list[Node], tree: Tree) -> None:
    if type(leaf.detail) is tuple:
        node: list[Node] = [nodes.OBJECT, leaf.detail[0], leaf.number]
        tree.objects.append((node, 2))
        out.append(node)
    elif leaf.kind == nodes.PER_RANK:
        ordinal = tree.per_rank
        tree.ordinals[leaf.number] = ordinal
        out.append([nodes.PER_RANK, ordinal])
    elif leaf.detail:
        assert type(leaf.detail) is int
        node = [nodes.TENSOR, leaf.number, leaf.detail]
        tree.tensors.append((node, 1))
        out.append(node)
    else:
        tree.tensors.append((out, len(out)))
        out.append(leaf.number)
