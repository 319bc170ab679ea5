"""One state of the states of several ranks (spec 10, 11, 12).

Trees are united by `state_union`; here the leaves that refer to rows get the rows of the merged
tensors and objects, and what ranks say of one tensor is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from bcpformat.errors import ErrorCode, InvalidArgumentError, Problem
from bcpformat.model import nodes
from bcpformat.model.disagreement import MOST_PROBLEMS, disagreement
from bcpformat.model.manifest import Ints, Node, Value, ints
from bcpformat.model.merged_tree import Split, Tree, same
from bcpformat.model.names import shortened
from bcpformat.model.rank_state import ObjectRef, RankState
from bcpformat.model.state_union import StateUnion

Disagree: TypeAlias = Literal["error", "per_rank"]
"""What becomes of a plain value that differs: an error, or the values of single ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undeclared:
    """Values of single ranks that nobody has wrapped in `PerRank`, by path, then rank.

    Attributes:
        path: Ordinal of the per-rank node, shape `(rows,)`.
        rank: Rank that has the value, shape `(rows,)`.
        value: Position in `values` of each, shape `(rows,)`.
        values: The distinct ones, as documents of per-rank values.
    """

    path: Ints
    rank: Ints
    value: Ints
    values: Sequence[Node]

    def __len__(self) -> int:
        return len(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedState:
    """The state that several ranks have together.

    Attributes:
        root: The node at the top.
        names: Names of the tensors, ascending by their UTF-8 bytes.
        dtypes: Registry names, by row of `names`.
        shapes: Global shapes, by row of `names`.
        aliases: Row to the tensor's other names, in state order; rows with some only.
        extra: Row to other keys of its tensors row; rows with some only.
        objects: Values stored as objects, ascending by name.
        per_rank: Number of per-rank nodes.
        tensor_rows: For each document the merged row of each of its tensors.
        object_rows: For each document the merged row of each of its objects.
        ordinals: For each document the merged ordinal of each of its per-rank nodes.
        undeclared: Values that differ, which the caller stores as per-rank values.
    """

    root: Node
    names: Sequence[str]
    dtypes: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    aliases: Mapping[int, tuple[str, ...]]
    extra: Mapping[int, Mapping[str, Value]]
    objects: Sequence[ObjectRef]
    per_rank: int
    tensor_rows: Sequence[Ints]
    object_rows: Sequence[Ints]
    ordinals: Sequence[Ints]
    undeclared: Undeclared


@dataclass(slots=True)
class _Said:
    """What documents say of tensors, by number of a leaf.

    Attributes:
        forms: Data type, shape, and the rank that said so.
        extra: Other keys, and the rank that said so.
    """

    forms: dict[int, tuple[str, tuple[int, ...], int]] = field(default_factory=dict)
    extra: dict[int, tuple[Mapping[str, Value], int]] = field(default_factory=dict)


class StateMerger:
    """Merges the states of ranks, which come in ascending order of rank.

    Documents are recognised: what a second rank with the same one costs is a look-up.  Memory
    grows with what differs, not with the number of ranks.

    - Dicts are united: the keys of the lowest rank in its order, then new ones of the next.  A
      rank may lack a key.  Lists and tuples have one length, other values are equal bit by bit; a
      value of a registered type without tensors is one value.
    - Where kinds differ, such as a dict and a list, the whole value differs.
    - A value that differs is a problem, or with ``disagree="per_rank"`` becomes a per-rank node,
      unless it has tensors, objects or per-rank values in it.
    - Flags, data type, shape and other keys of a tensor are the same wherever it is; the other
      keys may be absent.  A per-rank node is one on every rank that has it.
    - Names that are one tensor on some rank (BCP-ALI-001) are one tensor in the checkpoint: its
      name is the first in the merged state order.  A rank that has several of these names must
      have one tensor under them.  A rank that has just one of them, such as a pipeline stage, has
      that same tensor, and what it stores under its name is part of it; if others stored the same
      elements under another name, then the chunks overlap, which `engine.merge` reports.

    Example:
        >>> merger = StateMerger(disagree="error", digest_of=lambda state: repr(state).encode())
        >>> for rank, name in enumerate("ba"):
        ...     root = [nodes.DICT, name, 0]
        ...     one = RankState(root=root, names=[name], dtypes=["int8"], shapes=[()])
        ...     _ = merger.add(rank, one)
        >>> merged = merger.finish()
        >>> merged.root, merged.names
        ([6, 'b', 1, 'a', 0], ['a', 'b'])
    """

    def __init__(self, *, disagree: Disagree, digest_of: Callable[[RankState], bytes]) -> None:
        """Make a merger.

        Args:
            disagree: What becomes of plain values that differ.
            digest_of: Computes the digest of a document that has none; called only if there is a
                second document.
        """
        self._digest_of = digest_of
        self._union = StateUnion(splits=disagree == "per_rank")
        self._said = _Said()
        self._problems: list[Problem] = []
        self._single: RankState | None = None  # the first, while there is no other
        self._last_rank = -1
        self._by_digest: dict[bytes, int] = {}
        self._equal_rows: dict[tuple[bytes, ...], dict[int, Ints]] = {}
        self._ranks: list[list[int]] = []
        self._rows: list[dict[int, Ints]] = []

    def add(self, rank: int, state: RankState) -> int:
        """Add what a rank has, and return the number of its document.

        Args:
            rank: Above that of every rank before.
            state: Its document.

        Raises:
            InvalidArgumentError: The ranks do not ascend.

        Preconditions: `check_state` finds nothing wrong with it.
        """
        if rank <= self._last_rank:
            text = f"ranks are added in ascending order, got {rank} after {self._last_rank}"
            raise InvalidArgumentError(text)
        self._last_rank = rank
        number = self._find(state)
        if number is None:
            number = len(self._ranks)
            self._ranks.append([])
            if number == 0:
                self._single = state
            else:
                self._absorb(rank, state)
        self._ranks[number].append(rank)
        return number

    def _find(self, state: RankState) -> int | None:
        """Return the number of a document if it is known."""
        if not self._ranks:
            return None
        if self._single is state:
            return 0
        if not self._by_digest:
            assert self._single is not None
            self._by_digest[self._single.digest or self._digest_of(self._single)] = 0
        digest = state.digest or self._digest_of(state)
        number = self._by_digest.setdefault(digest, len(self._ranks))
        return number if number < len(self._ranks) else None

    def _absorb(self, rank: int, state: RankState) -> None:
        """Unite a new document with those before."""
        if self._single is not None:
            first, self._single = self._single, None
            self._absorb(self._ranks[0][0], first)
        rows = {kind: ints(found) for kind, found in self._union.add(rank, state).items()}
        equal = tuple(found.tobytes() for found in rows.values())
        self._rows.append(self._equal_rows.setdefault(equal, rows))
        if not self._union.problems:
            self._hear(rank, state, rows[nodes.TENSOR].tolist())

    # ---- tensors ---------------------------------------------------------------------------

    def _hear(self, rank: int, state: RankState, numbers: list[int]) -> None:
        """Compare what a document says of its tensors with what others have said."""
        forms = self._said.forms
        rows = zip(numbers, state.dtypes, state.shapes, strict=True)
        for row, (number, dtype, shape) in enumerate(rows):
            known = forms.setdefault(number, (dtype, shape, rank))
            if known[0] != dtype or known[1] != shape:
                self._compare_forms(state.names[row], known, (dtype, shape, rank))
        for row, keys in state.extra.items():
            before = self._said.extra.setdefault(numbers[row], (keys, rank))
            self._compare_extra(state.names[row], before, (keys, rank))

    def _compare_forms(
        self, name: str, a: tuple[str, tuple[int, ...], int], b: tuple[str, tuple[int, ...], int]
    ) -> None:
        if a[:2] != b[:2]:
            parts = [f"rank {rank} has {shape} {dtype}" for dtype, shape, rank in (a, b)]
            self._problem(name, f"{', '.join(parts)}; a tensor has one global shape and data type")

    def _compare_extra(
        self, name: str, a: tuple[Mapping[str, Value], int], b: tuple[Mapping[str, Value], int]
    ) -> None:
        for key in sorted(a[0].keys() | b[0].keys()):
            if not same(a[0].get(key), b[0].get(key)):
                parts = [f"rank {rank} has {keys.get(key)!r:.60}" for keys, rank in (a, b)]
                self._problem(name, f"{key!r} of the tensor differs: {', '.join(parts)}")

    def _problem(self, name: str, message: str) -> None:
        if len(self._problems) < MOST_PROBLEMS:
            where = name or "the state"
            self._problems.append(Problem(code=ErrorCode.DISAGREE, where=where, message=message))

    # ---- the result ------------------------------------------------------------------------

    def finish(self) -> MergedState:
        """Return the merged state.

        Raises:
            DisagreementError: Ranks hold different things where they must hold the same; it has
                every problem, up to 100.
            InvalidArgumentError: Nothing was added.
        """
        if self._single is not None:
            return _alone(self._single)
        if not self._ranks:
            raise InvalidArgumentError("there is no state to merge")
        self._raise_problems()
        tree = self._union.tree()
        group = self._groups()
        rows, names, aliases = _tensor_rows(tree, self._union.names, group)
        merged = ints([rows[number] for number in group])
        forms = self._forms(merged, names)
        extra = self._extra(merged, names)
        self._raise_problems()
        object_row, objects = _object_rows(tree, self._union.objects)
        ordinal = ints([tree.ordinals[number] for number in range(len(tree.ordinals))])
        return MergedState(
            root=tree.top[0],
            names=names,
            dtypes=[dtype for dtype, _, _ in forms],
            shapes=[shape for _, shape, _ in forms],
            aliases=aliases,
            extra=extra,
            objects=objects,
            per_rank=tree.per_rank,
            tensor_rows=[merged[numbers[nodes.TENSOR]] for numbers in self._rows],
            object_rows=[object_row[numbers[nodes.OBJECT]] for numbers in self._rows],
            ordinals=[ordinal[numbers[nodes.PER_RANK]] for numbers in self._rows],
            undeclared=_undeclared(tree.splits, self._ranks),
        )

    def _raise_problems(self) -> None:
        problems = [*self._union.problems, *self._problems][:MOST_PROBLEMS]
        if problems:
            raise disagreement(problems)

    def _groups(self) -> list[int]:
        """Return for each tensor leaf the lowest number of those that are one tensor with it."""
        group = list(range(len(self._union.names)))

        def lowest(number: int) -> int:
            while group[number] != number:
                group[number] = group[group[number]]
                number = group[number]
            return number

        for pair in self._union.aliases:
            low, high = sorted(map(lowest, pair))
            group[high] = low
        for number in {number for pair in self._union.aliases for number in pair}:
            group[number] = lowest(number)
        if self._union.aliases:
            for rows, ranks in zip(self._rows, self._ranks, strict=True):
                self._compare_aliases(rows[nodes.TENSOR].tolist(), ranks[0], group)
        return group

    def _compare_aliases(self, numbers: list[int], rank: int, group: list[int]) -> None:
        """Find tensors of one document that are one tensor elsewhere."""
        names = self._union.names
        first: dict[int, int] = {}
        for number in numbers:
            other = first.setdefault(group[number], number)
            if other != number:
                elsewhere = min(
                    said
                    for (low, _), said in self._union.aliases.items()
                    if group[low] == group[number] and said != rank
                )
                text = f"rank {rank} has it and {shortened(names[number])} as two tensors, rank "
                text += f"{elsewhere} as one; tie them on every rank that has both, or on none"
                self._problem(names[other], text)

    def _forms(self, row: Ints, names: Sequence[str]) -> list[tuple[str, tuple[int, ...], int]]:
        """Return data type and shape of each merged tensor, and who said so."""
        found: dict[int, tuple[str, tuple[int, ...], int]] = {}
        for number, form in self._said.forms.items():
            at = int(row[number])
            self._compare_forms(names[at], found.setdefault(at, form), form)
        return [found[at] for at in range(len(names))]

    def _extra(self, row: Ints, names: Sequence[str]) -> dict[int, Mapping[str, Value]]:
        """Return other keys of the merged tensors, by row."""
        found: dict[int, tuple[Mapping[str, Value], int]] = {}
        for number, extra in self._said.extra.items():
            at = int(row[number])
            self._compare_extra(names[at], found.setdefault(at, extra), extra)
        return {at: found[at][0] for at in sorted(found)}


def _alone(state: RankState) -> MergedState:
    """Return the one document that all ranks have."""
    none = ints([])
    return MergedState(
        root=state.root,
        names=state.names,
        dtypes=state.dtypes,
        shapes=state.shapes,
        aliases=state.aliases,
        extra=state.extra,
        objects=state.objects,
        per_rank=state.per_rank,
        tensor_rows=[np.arange(len(state.names))],
        object_rows=[np.arange(len(state.objects))],
        ordinals=[np.arange(state.per_rank)],
        undeclared=Undeclared(path=none, rank=none, value=none, values=[]),
    )


def _tensor_rows(
    tree: Tree, leaf_names: Sequence[str], group: Sequence[int]
) -> tuple[dict[int, int], list[str], dict[int, tuple[str, ...]]]:
    """Name the tensors, put their rows into the tree, and return rows by group, names, aliases."""
    leaves: list[int] = [array[at] for array, at in tree.tensors]  # type: ignore[misc]  # numbers
    first: dict[int, str] = {}
    others: dict[int, list[str]] = {}
    for number in leaves:
        name = leaf_names[number]
        if group[number] in first:
            others.setdefault(group[number], []).append(name)
        else:
            first[group[number]] = name
    # Code points ascend as UTF-8 bytes do.
    rows = {one: row for row, one in enumerate(sorted(first, key=first.__getitem__))}
    for (array, at), number in zip(tree.tensors, leaves, strict=True):
        array[at] = rows[group[number]]
    aliases = {rows[one]: tuple(others[one]) for one in sorted(others, key=rows.__getitem__)}
    return rows, [first[one] for one in rows], aliases


def _object_rows(tree: Tree, objects: Sequence[ObjectRef]) -> tuple[Ints, list[ObjectRef]]:
    """Put the rows of objects into the tree, and return rows by number, and the objects."""
    order = sorted(range(len(objects)), key=lambda number: objects[number].name)
    row = np.zeros(len(order), dtype=np.int64)
    row[order] = np.arange(len(order))
    for array, at in tree.objects:
        array[at] = int(row[array[at]])  # type: ignore[index]  # a number
    return row, [objects[number] for number in order]


def _undeclared(splits: Mapping[int, Split], ranks: Sequence[Sequence[int]]) -> Undeclared:
    """Return the values of all ranks that differ."""
    rows: list[tuple[int, int, int]] = []
    values: list[Node] = []
    for ordinal, split in splits.items():
        rows += sorted(
            (ordinal, rank, len(values) + which)
            for document, which in zip(split.documents, split.which, strict=True)
            for rank in ranks[document]
        )
        values += split.values
    path, rank, value = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return Undeclared(path=path, rank=rank, value=value, values=values)
