"""Rules for per-rank values when another number of ranks reads them than wrote them.

A rule is a function of the values of all ranks that wrote, by rank, and of who reads: this
process's rank and the number of ranks.  It returns this rank's value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from bcpformat.errors import ErrorCode, InvalidArgumentError


class Rule(Protocol):
    """How a rank that reads gets its value from those of the ranks that wrote."""

    def __call__(self, values: Sequence[Any], /, *, rank: int, size: int) -> Any:
        """Return the value of rank `rank` of `size`.

        Args:
            values: The saved values, by the rank that saved them.
            rank: This process's rank in the group that reads.
            size: Ranks in that group.
        """
        # Any: whatever the user's per-rank values are
        ...


class PerRankRules:
    """The rule for each per-rank value.

    Example:
        >>> rules = PerRankRules({"loader": split})
        >>> rules.of("loader/0") is split, rules.of("rng") is own
        (True, True)
    """

    def __init__(self, given: Rule | Mapping[str, Rule] | None) -> None:
        """Take one rule for all, or rules by the name of the value or of what it lies in.

        Raises:
            InvalidArgumentError: It is neither.
        """
        rules = given if isinstance(given, Mapping) else {"": given if given is not None else own}
        if not all(type(name) is str and callable(rule) for name, rule in rules.items()):
            text = f"per_rank must be a rule or a dict of names and rules, got {given!r:.200}"
            raise InvalidArgumentError(text)
        self._rules = dict(rules)

    def of(self, name: str) -> Rule:
        """Return the rule for a name: the one of the longest name that it lies in."""
        at = len(name)
        while at >= 0:
            if name[:at] in self._rules:
                return self._rules[name[:at]]
            at = name.rfind("/", 0, at)
        return self._rules.get("", own)


def own(values: Sequence[Any], /, *, rank: int, size: int) -> Any:
    """Return the value that the same rank saved; the number of ranks must not have changed.

    Raises:
        InvalidArgumentError: It has (``E_MISMATCH``).
    """
    if len(values) != size:
        raise InvalidArgumentError(changed_ranks(len(values), size), code=ErrorCode.MISMATCH)
    return values[rank]


def changed_ranks(saved: int, size: int) -> str:
    """Return the words for a number of ranks that has changed without a rule for it."""
    return (
        f"saved by {saved} ranks and read by {size}: say what is to become of the values with "
        "per_rank=, such as bcpformat.per_rank.split, merge or copy"
    )


def copy(values: Sequence[Any], /, *, rank: int, size: int) -> Any:
    """Return the value of the same rank, of the ranks that wrote in turn for the ranks beyond.

    Example:
        >>> [copy(["a", "b"], rank=rank, size=3) for rank in range(3)]
        ['a', 'b', 'a']
    """
    del size
    return values[rank % len(values)]


def split(values: Sequence[Any], /, *, rank: int, size: int) -> Any:
    """Join the values of all ranks and return this rank's equal part: lists, or dicts of lists.

    Parts differ by one item at most, the first ones are longer.  In a dict what is no list must
    be equal on all ranks and is kept.

    Raises:
        InvalidArgumentError: The values are neither, or differ where they must be equal.

    Example:
        >>> [split([[1, 2, 3], [4, 5]], rank=rank, size=3) for rank in range(3)]
        [[1, 2], [3, 4], [5]]
    """
    joined = merge(values, rank=rank, size=size)
    return _part(joined, rank, size)


def merge(values: Sequence[Any], /, *, rank: int, size: int) -> Any:
    """Join the values of all ranks, for every rank the same: lists, or dicts of lists.

    Raises:
        InvalidArgumentError: As in `split`.

    Example:
        >>> merge([{"seen": [1], "epoch": 2}, {"seen": [4], "epoch": 2}], rank=0, size=1)
        {'seen': [1, 4], 'epoch': 2}
    """
    del rank, size
    if all(type(v) is list for v in values):
        return [item for v in values for item in v]
    if all(isinstance(v, dict) and v.keys() == values[0].keys() for v in values):
        return {key: _joined(key, [v[key] for v in values]) for key in values[0]}
    text = (
        "split and merge need a list of every rank, or a dict with equal keys; pass your own rule"
    )
    raise InvalidArgumentError(text, code=ErrorCode.MISMATCH)


def _joined(key: object, values: Sequence[Any]) -> Any:
    if all(type(v) in (list, dict) for v in values):
        return merge(values, rank=0, size=1)
    try:
        equal = all(type(v) is type(values[0]) and bool(v == values[0]) for v in values)
    except (ValueError, RuntimeError):  # arrays of more than one element
        equal = False
    if not equal:
        text = f"the ranks saved different values of {key!r}, which is no list; pass your own rule"
        raise InvalidArgumentError(text, code=ErrorCode.MISMATCH)
    return values[0]


def _part(joined: Any, rank: int, size: int) -> Any:
    if type(joined) is list:
        length, longer = divmod(len(joined), size)
        first = rank * length + min(rank, longer)
        return joined[first : first + length + (rank < longer)]
    if isinstance(joined, Mapping):
        return {key: _part(value, rank, size) for key, value in joined.items()}
    return joined
