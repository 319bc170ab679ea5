"""Walks over the nodes of a state tree by name, without making values (spec 10, 11).

A name is made only when one is asked for: a tree of a few bytes a node may hang below a key of
many megabytes, and the names of all its nodes would take more memory than any file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from bcpformat.errors import ErrorCode, InvalidArgumentError, LimitError
from bcpformat.model import nodes
from bcpformat.model.manifest import Node
from bcpformat.model.names import MAX, METADATA, is_plain, is_too_long, segment, shortened

_CONTAINERS = (nodes.DICT, nodes.ORDERED_DICT, nodes.LIST, nodes.TUPLE)
"""Kinds whose children have names of their own."""

_SHORT = MAX // 4
_MOST_CHARACTERS = 2**30
"""Names of leaves that are kept at a time may have so many characters together."""


class Path:
    """Where a walk is.

    Attributes:
        keys: For each container around, from the top, which child the walk is at: the node of a
            key that `keys.check_keys` accepts, an int for a position, None for metadata.  The
            walk appends on entering a container, sets the last at each child, and calls `leave`.

    Example:
        >>> path = Path()
        >>> path.keys += ["layers", 3, [2, 7]]
        >>> path.name()
        'layers/3/%i7'
    """

    __slots__ = ("_prefixes", "keys")

    def __init__(self) -> None:
        self.keys: list[Node | None] = []
        # For each container, what its children's names begin with; shorter than `keys` where
        # nobody has asked yet, None where it is too long for a name.
        self._prefixes: list[str | None] = [""]

    def leave(self) -> None:
        """Leave the innermost container."""
        self.keys.pop()
        del self._prefixes[max(len(self.keys), 1) :]

    def name(self) -> str | None:
        """Return the name of the node the walk is at, None if it is longer than a name may be."""
        keys, prefixes = self.keys, self._prefixes
        if not keys:
            return ""
        if len(prefixes) == len(keys) and type(keys[-1]) is str and prefixes[-1] is not None:
            plain = prefixes[-1] + keys[-1]
            if len(plain) <= _SHORT and is_plain(keys[-1]):  # most leaves
                return plain
        for level in range(len(prefixes), len(keys)):
            name = _extended(prefixes[level - 1], keys[level - 1])
            prefixes.append(None if name is None else name + "/")
        return _extended(prefixes[-1], keys[-1])

    def where(self) -> str:
        """Return the place of the node for a message."""
        name = self.name()
        if name is None:
            return f"state, below a name of more than {MAX} bytes,"
        if not name:
            return "state"
        return f"state {shortened(name)}"


def _extended(prefix: str | None, key: Node | None) -> str | None:
    if prefix is None or (type(key) is str and len(key) > MAX):
        return None
    try:
        name = prefix + _segment(key)
    except InvalidArgumentError:  # an int of more digits than a name may have
        return None
    return None if is_too_long(name) else name


def _segment(key: Node | None) -> str:
    if type(key) is str:
        return segment(key)
    if type(key) is int:
        return str(key)
    return METADATA if key is None else segment(nodes.read_key(key))


def children(node: list[Node]) -> Iterable[tuple[Node | None, Node]]:
    """Return the key (see `Path`) and node of each child of a dict, list or tuple, in order.

    Preconditions: the node is of one of these kinds and of its form.
    """
    if node[0] == nodes.DICT:
        return zip(node[1::2], node[2::2], strict=True)
    if node[0] == nodes.ORDERED_DICT:
        return [(None, node[1]), *zip(node[2::2], node[3::2], strict=True)]
    return enumerate(node[1:])


def plain_names(container: str | None, keys: list[Node]) -> list[str] | None:
    """Return the names of a dict's children if all its keys are plain str, else None.

    This is what most dicts with many children are, and several times faster than one at a time.

    Args:
        container: Name of the dict, None for the one at the top.
        keys: Nodes of its keys.
    """
    if set(map(type, keys)) != {str}:
        return None
    texts: list[str] = keys  # type: ignore[assignment]  # looked at
    prefix = "" if container is None else container + "/"
    # none is empty, no character needs a look, and no name is near the limit
    if not (
        all(texts) and is_plain("".join(texts)) and len(prefix) + len(max(texts, key=len)) < _SHORT
    ):
        return None
    return list(map(prefix.__add__, texts))


def state_leaves(root: Node) -> Iterator[tuple[str, int, int]]:
    """Yield name, row of `tensors` and flags of every tensor leaf, in state order.

    Preconditions: `check_state` found nothing wrong.

    Example:
        >>> list(state_leaves([6, "w", 1, "b", [8, [0, 0, 2]]]))
        [('w', 1, 0), ('b/0', 0, 2)]
    """
    return _leaves(root, Path())


def _leaves(node: Node, path: Path) -> Iterator[tuple[str, int, int]]:
    if type(node) is int:
        yield _named(path), node, 0
    elif type(node) is list and node[0] == nodes.TENSOR:
        index, flags = nodes.read_tensor(node)
        yield _named(path), index, flags
    elif type(node) is list and node[0] == nodes.USER:
        yield from _leaves(node[2], path)
    elif type(node) is list and node[0] in _CONTAINERS:
        path.keys.append(None)
        for key, child in children(node):
            path.keys[-1] = key
            if type(child) is int:
                yield _named(path), child, 0
            elif type(child) is list:
                yield from _leaves(child, path)
        path.leave()


def _named(path: Path) -> str:
    name = path.name()
    assert name is not None  # that of a tensor: compared by `check_state`
    return name


def prune_state(root: Node, take: Callable[[str], bool]) -> Node | None:
    """Return the part of a tree whose names are taken, None if none is.

    Args:
        root: The node at the top of a state.
        take: Says whether to take the leaf of a name; also asked about empty containers.

    Returns:
        A tree, which shares nodes with `root`.  Dicts keep the keys with something taken below.
        Lists and tuples keep their length, so that whatever is taken stands at the path of its
        name: an element with nothing taken is None.  A set is taken whole or not at all.  A value
        of a user's type is taken whole if its name, or anything in it, is taken.  Metadata is
        taken by its own names.  What has no name, because it would be too long, is not taken.

    Preconditions: `check_state` found nothing wrong.

    Example:
        >>> prune_state([6, "a", 0, "b", [8, 1, 2]], lambda name: name == "b/1")
        [6, 'b', [8, [1], 2]]
    """
    return _pruned(root, Path(), take)


def _pruned(node: Node, path: Path, take: Callable[[str], bool]) -> Node | None:
    if type(node) is list and _has_children(node):
        return _pruned_container(node, path, take)
    if type(node) is list and node[0] == nodes.USER and _pruned(node[2], path, take) is not None:
        return node
    name = path.name()
    return node if name is not None and take(name) else None


def _has_children(node: list[Node]) -> bool:
    """Return whether something stands below a node; metadata alone does not count."""
    return node[0] in _CONTAINERS and len(node) > 1 + (node[0] == nodes.ORDERED_DICT)


def _pruned_container(node: list[Node], path: Path, take: Callable[[str], bool]) -> Node | None:
    path.keys.append(None)
    kept: list[tuple[Node | None, Node | None]] = []
    for key, child in children(node):
        path.keys[-1] = key
        kept.append((key, _pruned(child, path, take)))
    path.leave()
    if all(child is None for _, child in kept):
        return None
    out: list[Node] = [node[0]]
    for key, pruned in kept:
        if key is None or type(key) is int:  # metadata, or an element
            out.append([nodes.NONE] if pruned is None else pruned)
        elif pruned is not None:
            out += (key, pruned)
    return out


def saved_leaves(root: Node) -> dict[str, Node]:
    """Return name to node of everything that a template can have a value for, in state order.

    That is every node but dicts, lists and tuples with something in them, and metadata.  What has
    no name, because it would be too long, is left out.

    Preconditions: `check_state` found nothing wrong.

    Raises:
        LimitError: The names have more than 2^30 characters together (`E_LIMIT`).

    Example:
        >>> saved_leaves([6, "a", 0, "b", [8], "c", [9, [1], True]])
        {'a': 0, 'b': [8], 'c/0': [1], 'c/1': True}
    """
    found: dict[str, Node] = {}
    characters = 0
    for names, children in _nameable(root, Path()):
        characters += sum(map(len, names))
        if characters > _MOST_CHARACTERS:
            text = f"names of the state have more than {_MOST_CHARACTERS} characters together"
            raise LimitError(text, code=ErrorCode.LIMIT)
        found.update(zip(names, children, strict=True))
    return found


def _nameable(node: Node, path: Path) -> Iterator[tuple[list[str], list[Node]]]:
    """Yield names and their nodes, many at a time where they are children of one dict."""
    if type(node) is list and _has_children(node):
        if node[0] == nodes.DICT and list not in set(map(type, node[2::2])):
            names = plain_names(path.name() if path.keys else None, node[1::2])
            if names is not None:
                yield names, node[2::2]
                return
        path.keys.append(None)
        for key, child in children(node):
            if key is not None:
                path.keys[-1] = key
                yield from _nameable(child, path)
        path.leave()
    elif (name := path.name()) is not None:
        yield [name], [node]
