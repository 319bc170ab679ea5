"""Digests of replicas, compared part by part."""

from __future__ import annotations

import numpy as np

from bcpformat.engine.part import Part
from bcpformat.errors import ErrorCode, Problem
from bcpformat.model.disagreement import MOST_PROBLEMS
from bcpformat.model.manifest import Ints, ints
from bcpformat.model.names import shortened

_SHOWN_RANKS = 8
_NOBODY = -1


class ReplicaComparison:
    """What the parts say of groups of replicas; it keeps one digest for each group."""

    def __init__(self) -> None:
        self._digest = ints([])  # of each group, from the first rank that has it
        self._rank = np.zeros(0, dtype=np.int32)
        self._found: dict[int, tuple[str, list[int]]] = {}  # what differs, on which ranks

    def add(self, part: Part) -> None:
        """Compare the digests of a part with those of parts before."""
        checks = part.checks
        if not len(checks):
            return
        self._grow(int(checks.group.max()) + 1)
        known = self._rank[checks.group] != _NOBODY
        differs = known & (self._digest[checks.group] != checks.digest)
        fresh = checks.group[~known]
        self._digest[fresh] = checks.digest[~known]
        self._rank[fresh] = part.rank
        for row in np.flatnonzero(differs).tolist():
            self._note(part, row)

    def problems(self) -> list[Problem]:
        """Return the groups that differ, at most 100."""
        problems = []
        for group, (place, ranks) in self._found.items():
            named = ", ".join(map(str, ranks[:_SHOWN_RANKS]))
            named += ", ..." if len(ranks) > _SHOWN_RANKS else ""
            text = f"{place} differ between rank {self._rank[group]} and rank {named}"
            text += "; ranks that hold one region must hold equal elements of it"
            problems.append(Problem(code=ErrorCode.DISAGREE, where="", message=text))
        return problems

    def _grow(self, groups: int) -> None:
        more = max(groups, 2 * len(self._rank)) - len(self._rank)
        if groups > len(self._rank):
            self._digest = np.append(self._digest, np.zeros(more, dtype=np.int64))
            self._rank = np.append(self._rank, np.full(more, _NOBODY, dtype=np.int32))

    def _note(self, part: Part, row: int) -> None:
        group = int(part.checks.group[row])
        if group in self._found:
            self._found[group][1].append(part.rank)
        elif len(self._found) < MOST_PROBLEMS:
            tensor = int(part.checks.tensor[row])
            place = f"replicas of {shortened(part.state.names[tensor])} at {_origin(part, row)}"
            self._found[group] = (place, [part.rank])


def _origin(part: Part, row: int) -> tuple[int, ...]:
    """Return the origin of the piece that a row is about."""
    ndims = [len(part.state.shapes[tensor]) for tensor in part.checks.tensor[: row + 1].tolist()]
    origin: Ints = part.checks.origin[sum(ndims[:-1]) : sum(ndims)]
    return tuple(origin.tolist())
