"""The union of the state trees of several ranks, one tree after the other (spec 10, 11, 12).

Dicts are united by key, everything else must be equal wherever it is.  Nodes are compared, never
values: they hold every bit, and Python's 1, True and 1.0 are three nodes.  A node that refers to a
row of its rank becomes a `Leaf` with a number of its own; which row a number gets is known when
all trees have come.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bcpformat.errors import ErrorCode, Problem
from bcpformat.model import nodes
from bcpformat.model.disagreement import MOST_PROBLEMS
from bcpformat.model.keys import by_value
from bcpformat.model.manifest import Node
from bcpformat.model.merged_tree import (
    CONTAINERS,
    REFERENCES,
    Branch,
    Content,
    Leaf,
    Present,
    Split,
    Tree,
    build,
    is_value,
    plain,
    same,
    value_of,
)
from bcpformat.model.rank_state import ObjectRef, RankState
from bcpformat.model.state_shown import Detail, shown_container, shown_reference, shown_value
from bcpformat.model.state_walk import Path, children

_DICTS = (nodes.DICT, nodes.ORDERED_DICT)
_PLAIN_KEYS = (str, int, type(None))


@dataclass(slots=True)
class _Document:
    """The document that is being added.

    Attributes:
        number: Its number, from 0.
        rank: The lowest rank that has it.
        state: Its content.
        rows: Kind code to the number of the first leaf that refers to each row, -1 before.
        longer: Documents that had a node to those that have it now.
    """

    number: int
    rank: int
    state: RankState
    rows: dict[int, list[int]]
    longer: dict[Present, Present] = field(default_factory=dict)

    def with_it(self, present: Present) -> Present:
        """Return the documents that have a node of this one too."""
        found = self.longer.get(present)
        if found is None:
            fresh = (self.number, self.number + 1)
            found = (*present[:-1], fresh[1]) if present[-1] == self.number else present + fresh
            self.longer[present] = found
        return found


class StateUnion:
    """The trees that were added, as one.

    Attributes:
        problems: What the ranks do not agree on, at most 100.
        names: Name of every tensor leaf, by number.
        objects: Every object, by number.
        aliases: Pairs of numbers that are one tensor, to the first rank that says so.
    """

    def __init__(self, *, splits: bool) -> None:
        """Make an empty union.

        Args:
            splits: Keep plain values that differ; else they are problems.
        """
        self.problems: list[Problem] = []
        self.names: list[str] = []
        self.objects: list[ObjectRef] = []
        self.aliases: dict[tuple[int, int], int] = {}
        self._per_rank = 0
        self._splits = splits
        self._within_user = 0
        self._path = Path()
        self._top = Branch(nodes.USER)
        self._first_ranks: list[int] = []
        self._document: _Document

    def add(self, rank: int, state: RankState) -> dict[int, list[int]]:
        """Add a document, and return the numbers of its rows.

        Args:
            rank: The lowest that has it, above that of every document before.
            state: The document.

        Returns:
            Kind code 0, 18 and 19 to the number of the leaf that refers to each row or ordinal,
            that of the first leaf in state order; -1 where a problem was found.

        Preconditions: `check_state` finds nothing wrong with it.
        """
        rows = {
            nodes.TENSOR: [-1] * len(state.names),
            nodes.OBJECT: [-1] * len(state.objects),
            nodes.PER_RANK: [-1] * state.per_rank,
        }
        self._document = _Document(len(self._first_ranks), rank, state, rows)
        self._first_ranks.append(rank)
        self._put(self._top, 0, state.root)
        return rows

    def tree(self) -> Tree:
        """Return everything that was added as one tree; there is no problem."""
        tree = Tree()
        build(self._top.children[0], tree.top, tree)
        return tree

    # ---- containers ------------------------------------------------------------------------

    def _put(self, branch: Branch, key: Node | None, child: Node) -> None:
        """Unite what stands under a key with what documents before have there."""
        document = self._document
        # Keys are one key if they are equal by value, as in the dicts of any language.
        mark = key if key is None or type(key) in _PLAIN_KEYS else by_value(key)
        at = branch.index.get(mark)
        if at is None:
            branch.index[mark] = len(branch.keys)
            branch.keys.append(key)
            branch.children.append(self._new(child))
            branch.present.append((document.number, document.number + 1))
            return
        present = branch.present[at]
        if mark is not key and not same(branch.keys[at], key):
            keys = [
                f"the key {nodes.read_key(k)!r:.60}"
                for k in (branch.keys[at], key)
                if k is not None
            ]
            self._differ(keys[0], keys[1], present, "they are equal in a dict")
            return
        branch.children[at] = self._meet(branch.children[at], child, present)
        branch.present[at] = document.with_it(present)

    def _fill(self, branch: Branch, node: list[Node]) -> None:
        """Unite what stands in a container with what documents before have in it."""
        if branch.kind == nodes.USER:
            self._within_user += 1
            self._put(branch, 0, node[2])
            self._within_user -= 1
            return
        keys = self._path.keys
        keys.append(None)
        for key, child in children(node):
            keys[-1] = key
            self._put(branch, key, child)
        self._path.leave()

    def _new(self, node: Node) -> Content:
        found = self._reference(node)
        if found is not None:
            kind, row, detail = found
            return Leaf(kind, self._number(kind, row), detail)
        if type(node) is not list or not _is_branch(node):
            return node
        branch = _branch(node)
        self._fill(branch, node)
        return branch

    def _meet(self, content: Content, node: Node, present: Present) -> Content:
        """Return what stands where both have something."""
        if type(content) is Leaf:
            found = self._reference(node)
            if found is not None and (found[0], found[2]) == (content.kind, content.detail):
                self._refer(content.kind, found[1], content.number)
                return content
        elif type(content) is Branch:
            if type(node) is list and _fits(content, node):
                self._fill(content, node)
                return content
        elif type(content) is Split:
            if is_value(node):
                content.add(self._document.number, node)
                return content
        elif content is None or same(content, node):
            return content
        return self._disagree(content, node, present)

    # ---- leaves ----------------------------------------------------------------------------

    def _reference(self, node: Node) -> tuple[int, int, Detail] | None:
        """Return kind, row and what must be equal of a node that refers to a row."""
        if type(node) is int:
            return nodes.TENSOR, node, 0
        if type(node) is not list or node[0] not in REFERENCES:
            return None
        if node[0] == nodes.TENSOR:
            return nodes.TENSOR, *nodes.read_tensor(node)
        if node[0] == nodes.PER_RANK:
            return nodes.PER_RANK, nodes.read_per_rank(node), 0
        kind, row = nodes.read_object(node)
        stored = self._document.state.objects[row]
        return nodes.OBJECT, row, (kind, stored.nbytes, stored.digest)

    def _number(self, kind: int, row: int) -> int:
        """Return the number of a leaf that no document has had before."""
        state = self._document.state
        if kind == nodes.TENSOR:
            number = len(self.names)
            is_first = self._document.rows[kind][row] < 0
            self.names.append(state.names[row] if is_first else self._path.name() or "")
        elif kind == nodes.OBJECT:
            number = len(self.objects)
            self.objects.append(state.objects[row])
        else:
            number = self._per_rank
            self._per_rank += 1
        self._refer(kind, row, number)
        return number

    def _refer(self, kind: int, row: int, number: int) -> None:
        rows = self._document.rows[kind]
        if rows[row] < 0:
            rows[row] = number
        else:  # another name of the tensor
            pair = (min(rows[row], number), max(rows[row], number))
            self.aliases.setdefault(pair, self._document.rank)

    # ---- differences -----------------------------------------------------------------------

    def _disagree(self, content: Content, node: Node, present: Present) -> Content:
        are_plain = is_value(content) and is_value(node)
        if are_plain and self._splits and not self._within_user:
            if self.problems:  # nothing will come of this union
                return content
            split = Split()
            for first, stop in zip(present[::2], present[1::2], strict=True):
                for document in range(first, stop):
                    split.add(document, value_of(content, document))
            split.add(self._document.number, node)
            return split
        before, after = self._shown(content), self._shown(node)
        kinds = {_kind(content), _kind(node)}
        if are_plain and not self._within_user:
            remedy = "wrap it in PerRank, or pass disagree='per_rank'"
        elif are_plain:
            remedy = "it is part of a value of a registered type that has tensors"
        elif nodes.PER_RANK in kinds:
            remedy = "wrap it in PerRank on every rank that has it"
        elif nodes.OBJECT in kinds:
            remedy = "wrap it in PerRank, which alone allows values above 64 KiB to differ"
        else:
            remedy = "what has tensors in it must have one form on all ranks"
        self._differ(before, after + " that differs" * (before == after), present, remedy)
        return None

    def _differ(self, before: str, after: str, present: Present, remedy: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            name = self._path.name()
            where = self._path.where() if name is None else name or "the state"
            first, rank = self._first_ranks[present[0]], self._document.rank
            text = f"rank {first} has {before}, rank {rank} has {after}; {remedy}"
            self.problems.append(Problem(code=ErrorCode.DISAGREE, where=where, message=text))

    def _shown(self, content: Content) -> str:
        if type(content) is Leaf:
            return shown_reference(content.kind, content.detail)
        if type(content) is Branch:
            return shown_container(content.kind, len(content.children), content.label)
        node = content.values[0] if type(content) is Split else plain(content)
        found = self._reference(node)
        return shown_value(node) if found is None else shown_reference(found[0], found[2])


def _kind(content: Content) -> int | None:
    if isinstance(content, Leaf | Branch):
        return content.kind
    return _code(content) if type(content) is list else None


def _code(node: list[Node]) -> int:
    kind = node[0]
    assert type(kind) is int
    return kind


def _branch(node: list[Node]) -> Branch:
    """Return the branch of an array, with nothing in it yet."""
    return Branch(_code(node), str(node[1]) if node[0] == nodes.USER else "")


def _is_branch(node: list[Node]) -> bool:
    """Return whether what is in an array may differ from rank to rank, or refers to rows."""
    return node[0] in CONTAINERS or (node[0] == nodes.USER and not is_value(node))


def _fits(branch: Branch, node: list[Node]) -> bool:
    """Return whether an array is of the form of a branch, so that they are united."""
    if node[0] != branch.kind:
        return False
    if branch.kind == nodes.USER:
        return node[1] == branch.label and not is_value(node)
    return branch.kind in _DICTS or len(node) - 1 == len(branch.children)
