"""Reads into a template: in place, strict, with one error that lists every difference."""

from __future__ import annotations

import io
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bcpformat.api.framework import Cast, Framework, Target, frameworks, may_cast
from bcpformat.api.load import StateBuilder
from bcpformat.api.mismatch import (
    Names,
    mismatch,
    mismatch_error,
    missing,
    part_hint,
    prefix_hint,
    unexpected,
)
from bcpformat.api.overlap import Memory, settle
from bcpformat.api.per_rank import PerRankRules, Rule, changed_ranks, copy, own
from bcpformat.api.selection import Filter, Rename, name_filter, name_map
from bcpformat.api.template import Slot, Template
from bcpformat.engine.checkpoint_reader import CheckpointReader
from bcpformat.engine.meeting import Meeting, in_step, together
from bcpformat.engine.shared import reads_together
from bcpformat.engine.sink import Destinations
from bcpformat.errors import BcpError, ErrorCode, InvalidArgumentError, Problem
from bcpformat.model.dtypes import DTYPES, DType
from bcpformat.model.geometry import tensor_nbytes
from bcpformat.model.leaves import PerRank
from bcpformat.model.manifest import Ints, Node, ints
from bcpformat.model.nodes import LIST, PER_RANK, TENSOR
from bcpformat.model.progress import Progress, silent
from bcpformat.model.region import Box
from bcpformat.model.state_walk import saved_leaves


class Mismatches(list[Problem]):
    """What `strict=False` returns: every difference, in the order of the template.

    Attributes:
        state: The state that was read into.
    """

    state: object = None


@dataclass(slots=True)
class _Want:
    """A template tensor, or a box of one, that will be filled.

    Attributes:
        name: Its name in the checkpoint.
        row: Row of the tensor.
        address: First byte of contiguous memory, 0 if there is none.
        box: The wanted box; None: all of the tensor.
        strided: Its elements as opaque ones, where they are not contiguous.
        memory: The leaf's own memory where that is not what `address` says.
        is_late: Whether the leaf changes only when all has been read.
    """

    name: str
    row: int
    address: int
    box: Box | None = None
    strided: npt.NDArray[np.generic] | None = None
    memory: Memory | None = None
    is_late: bool = False


@dataclass(slots=True)
class _Plan:
    wants: list[_Want] = field(default_factory=list)
    targets: list[tuple[str, Slot, Target]] = field(default_factory=list)
    shared: list[tuple[Slot, object]] = field(default_factory=list)
    ties: dict[tuple[int, Hashable], object] = field(
        default_factory=dict
    )  # what replaces tied leaves
    plain: list[tuple[Slot, Node]] = field(default_factory=list)
    ranks: list[tuple[Slot, Rule, Ints]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    arrays: int = 0
    is_selected: bool = True  # whether the filter selects anything


class TemplateReader:
    """Reads one checkpoint into templates."""

    def __init__(
        self,
        reader: CheckpointReader,
        *,
        chosen: Filter,
        rename: Rename,
        cast: Cast,
        rules: PerRankRules,
        rank: int,
        size: int,
        progress: Progress,
    ) -> None:
        self._reader = reader
        self._chosen = chosen
        self._take = name_filter(chosen)
        self._renamed = name_map(rename)
        self._cast: Cast = cast
        self._rules = rules
        self._rank = rank
        self._size = size
        self._progress = progress
        self._libraries: dict[type, Framework] = {
            kind: library for library in frameworks() for kind in library.adapters
        }
        self._builder = StateBuilder(reader, as_numpy=False)
        self._nbytes = tensor_nbytes(reader.manifest.tensors)

    def read(self, template: object, *, strict: bool, meeting: Meeting | None = None) -> object:
        """Fill a template and return it; with `strict` False return the differences.

        Args:
            template: Its leaves are filled in place.
            strict: Raise an error for differences, before anything is changed.
            meeting: That of the ranks which read together; every one of them calls this.

        Raises:
            MismatchError: Something differs, on some rank; nothing has been changed.
            FormatError: Something does not verify; `.changed` names the destinations that
                may have changed.
        """
        with in_step(meeting):
            leaves = Template(template)
            saved = saved_leaves(self._reader.manifest.state)
            plan = self._match(leaves.slots, saved)
            lacking = self._lacking(plan.used, saved)
            # alone, the template must have something of it too; of a group, another rank may
            plan.is_selected = self._chosen is None or (
                bool(plan.used) if meeting is None else any(map(self._take, saved))
            )
        extra = self._lacked_by_all(lacking, list(saved), meeting)
        problems = plan.problems
        if plan.absent:
            problems += missing(plan.absent, Names(saved))
        problems += unexpected(extra)
        together(meeting, self._refusal(plan, leaves, problems, extra, strict=strict))
        with in_step(meeting):
            self._fill(plan, meeting)
        if strict:
            return leaves.rebuilt()
        result = Mismatches(problems)
        result.state = leaves.rebuilt()
        return result

    def _lacking(self, used: set[str], saved: Mapping[str, Node]) -> list[str]:
        """Return the selected names of the checkpoint that the template does not have."""
        extra = [n for n in saved if n not in used and self._take(n)]
        return [n for n in extra if not _covered(n, used)]

    def _lacked_by_all(
        self, lacking: list[str], saved: list[str], meeting: Meeting | None
    ) -> list[str]:
        """Return those of some names of the checkpoint that no rank of the group has."""
        if meeting is None:
            return lacking
        mine = set(lacking)
        lacked = meeting.total(ints([n in mine for n in saved]))
        return [n for n, ranks in zip(saved, lacked.tolist(), strict=True) if ranks == self._size]

    def _refusal(
        self,
        plan: _Plan,
        leaves: Template,
        problems: list[Problem],
        extra: list[str],
        *,
        strict: bool,
    ) -> BcpError | None:
        """Return why nothing is read at all, None if something is."""
        hint = prefix_hint(plan.absent, extra) or part_hint([s.name for s in leaves.slots], extra)
        nothing = not (plan.targets or plan.wants or plan.plain or plan.ranks)
        if nothing and not problems and not plan.is_selected:
            text = f"filter {self._chosen!r:.200} selects none of the names of this checkpoint"
            return InvalidArgumentError(text, code=ErrorCode.MISMATCH)
        unmatched = plan.arrays > 0 and not (plan.targets or plan.wants)
        if problems and (strict or nothing or unmatched):
            if not strict:
                hint = f"0 of {plan.arrays} tensors of the template matched. {hint}"
            return mismatch_error(problems, hint)
        return None

    def _match(self, slots: list[Slot], saved: Mapping[str, Node]) -> _Plan:
        plan = _Plan()
        table = self._reader.manifest.tensors
        dtypes, shapes = table.dtypes, table.shapes
        for slot in slots:
            library = self._libraries.get(type(slot.value))
            name = self._renamed(slot.name)
            if type(name) is not str:
                text = f"rename must return names, got {name!r:.200} for {slot.name!r:.200}"
                raise InvalidArgumentError(text)
            if not self._take(name):
                continue
            plan.arrays += library is not None
            node = saved.get(name)
            if node is None:
                self._match_absent(plan, slot, name, saved)
                continue
            plan.used.add(name)
            if library is not None and type(node) is int:
                address = library.direct(slot.value, dtypes[node], shapes[node])
                if address:
                    plan.wants.append(_Want(name, node, address))
                    continue
            self._match_leaf(plan, slot, name, node, library)
        self._check_overlaps(plan)
        _check_places(plan)
        return plan

    def _match_absent(self, plan: _Plan, slot: Slot, name: str, saved: Mapping[str, Node]) -> None:
        """Note a leaf that the checkpoint lacks; an empty container needs nothing there."""
        if isinstance(slot.value, (dict, list, tuple)) and not slot.value:
            below = name + "/" if name else ""
            # in a group, other ranks may have what lies below
            if self._size == 1 and any(n.startswith(below) for n in saved):
                text = f"the template has an empty {type(slot.value).__name__}, "
                text += "the checkpoint has values below it; read them without a template"
                plan.problems.append(mismatch(name, text))
                plan.used.add(name)
            return
        if isinstance(slot.value, (dict, list, tuple)):  # a subclass: others are walked
            text = f"the template has {_words(slot.value)}, which is taken as one value, and the "
            text += "checkpoint has none of that name; make it a plain dict, list or tuple"
            plan.problems.append(mismatch(name, text))
            plan.used.add(name)
            return
        plan.absent.append(name)

    def _match_leaf(
        self, plan: _Plan, slot: Slot, name: str, node: Node, library: Framework | None
    ) -> None:
        row = _tensor_row(node)
        per_rank = node[1] if isinstance(node, list) and node[0] == PER_RANK else None
        if isinstance(slot.value, PerRank) != (per_rank is not None):
            have = "a per-rank value" if per_rank is not None else "one value for all ranks"
            text = f"the checkpoint has {have}, the template has {_words(slot.value)}"
            plan.problems.append(mismatch(name, text))
        elif per_rank is not None:
            assert isinstance(per_rank, int)
            self._match_rank(plan, slot, name, per_rank)
        elif (row is not None) != (library is not None):
            have = "a tensor" if row is not None else "a plain value"
            text = f"the checkpoint has {have}, the template has {_words(slot.value)}"
            plan.problems.append(mismatch(name, text))
        elif row is not None and library is not None:
            self._match_tensor(plan, slot, name, row, library)
        else:
            plan.plain.append((slot, node))

    def _match_rank(self, plan: _Plan, slot: Slot, name: str, path: int) -> None:
        table = self._reader.manifest.per_rank
        rows = np.flatnonzero(table.path == path)
        ranks = table.rank[rows].tolist()
        # the highest rank with a value of any name; not every rank need have every value
        saved = int(table.rank.max()) + 1
        rule = self._rules.of(name)
        if saved == self._size:
            if self._rank in ranks:
                plan.ranks.append((slot, copy, rows[[ranks.index(self._rank)]]))
                return
            text = f"no value of rank {self._rank}; the checkpoint has those of ranks {ranks[:8]}"
            plan.problems.append(mismatch(name, text))
        elif rule is own:
            plan.problems.append(mismatch(name, changed_ranks(saved, self._size)))
        else:
            plan.ranks.append((slot, rule, rows))

    def _match_tensor(
        self, plan: _Plan, slot: Slot, name: str, row: int, library: Framework
    ) -> None:
        table = self._reader.manifest.tensors
        saved = DType.named(table.dtypes[row])
        target = library.target(slot.value, self._cast, saved)
        shape = table.shapes[row]
        if target.refusal is not None:
            text = f"cannot be a destination: {target.refusal}"
        elif target.shape != shape:
            text = f"shape {target.shape} in the template, {shape} in the checkpoint"
        elif not may_cast(saved.name, target.dtype, cast=self._cast):
            text = f"dtype {target.dtype} in the template, {saved.name} in the checkpoint"
            if may_cast(saved.name, target.dtype, cast=True):
                text += "; pass cast=True to convert"
            elif may_cast(saved.name, target.dtype, cast="any"):
                text += "; pass cast='any' to convert"
        else:
            if target.tie is not None and (row, target.tie) in plan.ties:
                plan.shared.append((slot, plan.ties[row, target.tie]))
                return
            if target.tie is not None:
                plan.ties[row, target.tie] = target.value
            plan.targets.append((name, slot, target))
            is_late = target.after is not None
            if target.parts is None:
                want = _Want(name, row, target.address, None, target.strided, target.memory)
                want.is_late = is_late
                plan.wants.append(want)
            else:
                plan.wants += [
                    _Want(name, row, p.address, p.box, p.strided, p.memory, is_late)
                    for p in target.parts
                ]
            return
        plan.problems.append(mismatch(name, text))

    def _check_overlaps(self, plan: _Plan) -> None:
        """Refuse destinations that share memory but stand for different tensors.

        Destinations of one tensor that share all of it are one destination.
        """
        wants = plan.wants
        contents: dict[tuple[int, Box], int] = {}  # boxes of tensors, numbered after the tensors
        beyond = len(self._nbytes)
        rows = ints(
            [
                w.row
                if w.box is None
                else beyond + contents.setdefault((w.row, w.box), len(contents))
                for w in wants
            ]
        )
        memory = {i: w.memory for i, w in enumerate(wants) if w.memory is not None}
        repeats, clashes = settle(
            ints([w.address for w in wants]), self._want_nbytes(wants), rows, memory
        )
        for clash in clashes:
            first, second = wants[clash.first], wants[clash.second]
            text = f"shares memory with {first.name!r}, but the checkpoint has two different "
            text += "tensors; untie them in the template"
            if first.row == second.row:
                text = f"shares only a part of its memory with {first.name!r}"
            plan.problems.append(mismatch(second.name, text))
        # what a late one copies to its leaf in the end must have been read, so it stays
        plan.wants = [w for i, w in enumerate(wants) if i not in repeats or w.is_late]

    def _want_nbytes(self, wants: list[_Want]) -> Ints:
        """Return the bytes of each want."""
        nbytes = self._nbytes[ints([w.row for w in wants])]
        dtypes = self._reader.manifest.tensors.dtypes
        for i, want in enumerate(wants):
            if want.box is not None:
                nbytes[i] = DTYPES[dtypes[want.row]].nbytes_of(want.box.numel)
        return nbytes

    def _fill(self, plan: _Plan, meeting: Meeting | None) -> None:
        """Read plain values, then elements, and only then put plain values in their places."""
        changed: list[str] = []
        try:
            with reads_together(self._reader, meeting) as read_tensors:
                plain = self._plain(plan)
                ranks = self._per_rank(plan)
                wants = plan.wants
                out = Destinations(
                    address=ints([w.address for w in wants]),
                    nbytes=self._want_nbytes(wants),
                    strided={i: w.strided for i, w in enumerate(wants) if w.strided is not None},
                    owners=plan.targets,
                )
                changed += dict.fromkeys(w.name for w in wants if not w.is_late)
                rows = ints([w.row for w in wants])
                boxes = {i: w.box for i, w in enumerate(wants) if w.box is not None}
                read_tensors(rows, boxes, out, progress=self._progress)
            for name, slot, target in plan.targets:
                if target.after is not None:
                    changed.append(name)
                    target.after()
                if target.value is not None:
                    slot.container[slot.key] = target.value
            for slot, value in plan.shared:
                slot.container[slot.key] = value
        except BcpError as error:
            error.changed = tuple(changed)
            if changed:
                shown = ", ".join(repr(n) for n in changed[:5])
                more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
                error.add_note(f"destinations that may have changed: {shown}{more}")
            raise
        for (slot, _), value in zip(plan.plain, plain, strict=True):
            slot.container[slot.key] = _kept(slot.value, value)
        for (slot, _, _), value in zip(plan.ranks, ranks, strict=True):
            slot.container[slot.key] = PerRank(value)

    def _per_rank(self, plan: _Plan) -> list[object]:
        """Return this rank's value at each per-rank node."""
        if not plan.ranks:
            return []
        rows = np.concatenate([rows for _, _, rows in plan.ranks])
        values = iter(self._builder.per_rank_rows(rows))
        return [
            rule([next(values) for _ in range(len(rows))], rank=self._rank, size=self._size)
            for _, rule, rows in plan.ranks
        ]

    def _plain(self, plan: _Plan) -> list[object]:
        """Return the values of the plain slots, made together: one plan, not one for each."""
        if [slot.name for slot, _ in plan.plain] == [""]:
            return [self._builder.build(plan.plain[0][1], silent)]
        made = self._builder.build([LIST, *(node for _, node in plan.plain)], silent)
        assert isinstance(made, list)
        return made


def _check_places(plan: _Plan) -> None:
    """Refuse two different values for one place: an object that the template holds twice.

    Such an object is a container of leaves, or a leaf that keeps its identity (see `_kept`).
    """
    places: dict[tuple[int, object], tuple[Slot, object]] = {}
    ranks = [
        (slot, ("per-rank values", id(rule), tuple(rows.tolist())))
        for slot, rule, rows in plan.ranks
    ]
    for slot, source in [*plan.plain, *ranks]:
        keys: list[tuple[int, object]] = [(id(slot.container), slot.key)]
        if type(slot.value) in (bytearray, io.BytesIO):
            keys.append((id(slot.value), None))
        for key in keys:
            first, known = places.setdefault(key, (slot, source))
            if known != source:
                text = f"is the same place as {first.name!r}, but the checkpoint has two different "
                text += "values; untie them in the template"
                plan.problems.append(mismatch(slot.name, text))


def _kept(old: object, new: object) -> object:
    """Return the template's own object with the new content where it can hold it."""
    if type(old) is bytearray and type(new) is bytearray:
        old[:] = new
        return old
    if type(old) is io.BytesIO and type(new) is io.BytesIO:
        old.seek(0)
        old.truncate()
        old.write(new.getvalue())
        old.seek(0)
        return old
    if type(old) is type(new) and isinstance(old, (dict, list)) and not old and not new:
        return old
    return new


def _covered(name: str, used: set[str]) -> bool:
    """Return whether a name lies below a leaf of the template that was already judged."""
    at = name.rfind("/")
    while at >= 0:
        if name[:at] in used:
            return True
        at = name.rfind("/", 0, at)
    return "" in used and name != ""


def _tensor_row(node: Node) -> int | None:
    if type(node) is int:
        return node
    if isinstance(node, list) and node[0] == TENSOR:
        row = node[1]
        assert isinstance(row, int)
        return row
    return None


def _words(value: object) -> str:
    return f"a {type(value).__name__}"
