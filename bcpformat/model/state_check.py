"""The rules of the state tree, one walk without values (spec 10, 11).

The nodes come from bytes that anybody may have written.  Time and memory stay within a small
multiple of the tree's size: names are made for leaves that have one in the manifest and compared
with it, and a check that keeps finding faults ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from bcpformat.errors import ErrorCode, FormatError, Problem
from bcpformat.model import keys, nodes
from bcpformat.model.manifest import Node
from bcpformat.model.names import shortened
from bcpformat.model.state_walk import Path, children, plain_names

A = TypeVar("A")

_MOST_PROBLEMS = 100


def check_state(
    root: Node,
    *,
    names: Sequence[str],
    aliases: Mapping[int, tuple[str, ...]],
    object_names: Sequence[str],
    per_rank_paths: int,
) -> list[Problem]:
    """Return what is wrong with a state tree: BCP-STA-001 to 006 and 009.

    Args:
        root: The node at the top, a value of the profile.
        names: Names of the tensors, by row.
        aliases: Row to the tensor's other names, in state order.
        object_names: Names of the objects, by row.
        per_rank_paths: Number of ordinals that the per-rank table refers to.

    Returns:
        Every problem in state order, at most 100; none if the tree is valid.

    Example:
        >>> check = check_state([6, "w", 0], names=["v"], aliases={}, object_names=[],
        ...                     per_rank_paths=0)
        >>> print(check[0])
        E_STATE state 'w': the leaf refers to tensor 0, whose name is 'v'
    """
    rows = _Rows(names, aliases, object_names)
    checker = _Checker(rows)
    if checker.run(root):
        checker.check_counts(rows, per_rank_paths)
    return checker.problems


def check_per_rank_value(root: Node) -> list[Problem]:
    """Return what is wrong with the document of one rank at a per-rank node (spec 10).

    Returns:
        Every problem in state order, at most 100; none if it is valid.

    Example:
        >>> [str(p) for p in check_per_rank_value([8, 0])]
        ["E_STATE state '0': a tensor of the checkpoint within a per-rank value"]
    """
    checker = _Checker(None)
    checker.run(root)
    return checker.problems


class _EnoughError(Exception):
    """There are as many problems as anybody will read."""


@dataclass(slots=True)
class _Rows:
    """What the nodes of a state refer to, and how often they have done so."""

    names: Sequence[str]
    aliases: Mapping[int, tuple[str, ...]]
    object_names: Sequence[str]
    uses: dict[int, int] = field(default_factory=dict)
    ordinals: int = 0


class _Checker:
    """A walk over a state, or over a per-rank value, which refers to no rows (None)."""

    def __init__(self, rows: _Rows | None) -> None:
        self.problems: list[Problem] = []
        self._rows = rows
        self._path = Path()
        self._kinds: dict[int, Callable[[list[Node]], None]] = {
            nodes.TENSOR: self._flagged,
            nodes.DICT: self._dict,
            nodes.ORDERED_DICT: self._dict,
            nodes.LIST: self._children,
            nodes.TUPLE: self._children,
            nodes.SET: self._set,
            nodes.FROZENSET: self._set,
            nodes.OBJECT: self._object,
            nodes.PER_RANK: self._per_rank,
            nodes.USER: self._user,
            nodes.INLINE: self._inline,
        }

    def run(self, root: Node) -> bool:
        """Walk over a tree, and return whether the walk came to its end."""
        try:
            if not self._accept(nodes.check_depth, root):
                return False
            self._node(root)
        except _EnoughError:
            return False
        return True

    def check_counts(self, rows: _Rows, per_rank_paths: int) -> None:
        """Check that the nodes refer to every row, as often as the manifest says."""
        with suppress(_EnoughError):
            if rows.aliases or len(rows.uses) != len(rows.names) or {*rows.uses.values()} - {1}:
                self._check_uses(rows)
            if rows.ordinals < per_rank_paths:
                text = f"path {per_rank_paths - 1} of the per-rank rows: the state has "
                self._found(f"{text}{rows.ordinals} per-rank nodes", code=ErrorCode.INDEX)
            elif rows.ordinals > per_rank_paths:
                text = f"{rows.ordinals} per-rank nodes, {per_rank_paths} of them have rows"
                self._found(text)

    def _check_uses(self, rows: _Rows) -> None:
        for index, name in enumerate(rows.names):
            expected = 1 + len(rows.aliases.get(index, ()))
            found = rows.uses.get(index, 0)
            if found != expected:
                text = f"tensor {shortened(name)} has {expected} names, {found} leaves refer to it"
                self._found(text)

    # ---- nodes that refer to rows ----------------------------------------------------------

    def _tensor(self, index: int) -> None:
        rows = self._rows
        if rows is None:
            self._found("a tensor of the checkpoint within a per-rank value")
            return
        if not 0 <= index < len(rows.names):
            text = f"tensor {nodes.describe(index)} does not exist, there are {len(rows.names)}"
            self._found(text, code=ErrorCode.INDEX)
            return
        uses = rows.uses.get(index, 0)
        rows.uses[index] = uses + 1
        if not uses:
            expected = rows.names[index]
        else:
            others = rows.aliases.get(index, ())
            if uses > len(others):
                return  # counted: one problem a tensor, not one a leaf
            expected = others[uses - 1]
        if self._path.name() != expected:
            which = f"alias {uses - 1}" if uses else "name"
            text = f"the leaf refers to tensor {index}, whose {which} is {shortened(expected)}"
            self._found(text)

    def _object(self, node: list[Node]) -> None:
        if not self._accept(nodes.read_object, node):
            return
        rows, row = self._rows, nodes.read_object(node)[1]
        if rows is None:
            self._found("an object of the checkpoint within a per-rank value")
        elif not 0 <= row < len(rows.object_names):
            text = f"object {nodes.describe(row)} does not exist, there are "
            self._found(f"{text}{len(rows.object_names)}")
        elif self._path.name() != rows.object_names[row]:
            expected = shortened(rows.object_names[row])
            self._found(f"the node refers to object {row}, whose name is {expected}")

    def _per_rank(self, node: list[Node]) -> None:
        if not self._accept(nodes.read_per_rank, node):
            return
        rows, ordinal = self._rows, nodes.read_per_rank(node)
        if rows is None:
            self._found("a per-rank value within a per-rank value")
            return
        if ordinal != rows.ordinals:
            text = f"expected per-rank ordinal {rows.ordinals}, found {nodes.describe(ordinal)}"
            self._found(text)
        rows.ordinals += 1

    def _inline(self, node: list[Node]) -> None:
        if self._rows is not None:
            self._found("an inline tensor outside of a per-rank value")
        else:
            self._accept(nodes.read_inline, node)

    # ---- the walk --------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        if type(node) is int:
            self._tensor(node)
        elif type(node) is list:
            self._array(node)
        elif type(node) not in (str, bytes, bool):
            self._found(f"{nodes.describe(node)} is no node")

    def _array(self, node: list[Node]) -> None:
        kind = node[0] if node else None
        if type(kind) is not int:
            self._found(f"{nodes.describe(node)} is no node")
            return
        read = nodes.VALUES.get(kind)
        if read is not None:
            self._accept(read, node)
            return
        walk = self._kinds.get(kind)
        if walk is None:
            self._found(f"kind {nodes.describe(kind)} is not in the table")
            return
        walk(node)

    def _flagged(self, node: list[Node]) -> None:
        if self._accept(nodes.read_tensor, node):
            self._tensor(nodes.read_tensor(node)[0])

    def _user(self, node: list[Node]) -> None:
        if self._accept(nodes.read_user, node):
            self._node(nodes.read_user(node)[1])

    def _set(self, node: list[Node]) -> None:
        self._accept(keys.check_elements, node[1:])

    def _dict(self, node: list[Node]) -> None:
        start = 1 if node[0] == nodes.DICT else 2
        if len(node) < start or (len(node) - start) % 2:
            form = "[6, key, value, ...]" if start == 1 else "[7, metadata, key, value, ...]"
            self._found(f"expected {form}, found {nodes.describe(node)}")
        elif self._accept(keys.check_keys, node[start::2]) and not self._all_leaves(node):
            self._children(node)

    def _all_leaves(self, node: list[Node]) -> bool:
        """Return whether all children of a dict are tensors named by their paths, and count them.

        A dict of which this does not hold is walked over; this finds no problem itself.
        """
        rows, rest = self._rows, node[2::2]
        if rows is None or node[0] != nodes.DICT or set(map(type, rest)) != {int}:
            return False
        leaves: list[int] = rest  # type: ignore[assignment]  # looked at
        names = plain_names(self._path.name() if self._path.keys else None, node[1::2])
        if names is None or min(leaves) < 0 or max(leaves) >= len(rows.names):
            return False
        fresh = dict.fromkeys(leaves, 1)
        if len(fresh) != len(leaves) or not rows.uses.keys().isdisjoint(fresh):
            return False
        if names != list(map(rows.names.__getitem__, leaves)):
            return False
        rows.uses.update(fresh)
        return True

    def _children(self, node: list[Node]) -> None:
        here = self._path.keys
        here.append(None)
        for key, child in children(node):
            here[-1] = key
            if type(child) is int:
                self._tensor(child)
            else:
                self._node(child)
        self._path.leave()

    # ---- findings --------------------------------------------------------------------------

    def _accept(self, read: Callable[[A], object], argument: A) -> bool:
        """Return whether a function of `nodes` accepts its argument."""
        try:
            read(argument)
        except FormatError as error:
            self._found(error.message, code=error.code)
            return False
        return True

    def _found(self, message: str, *, code: ErrorCode = ErrorCode.STATE) -> None:
        self.problems.append(Problem(code=code, where=self._path.where(), message=message))
        if len(self.problems) == _MOST_PROBLEMS:
            raise _EnoughError
