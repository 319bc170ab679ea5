"""States of ranks, merged, as tests look at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bcpformat.errors import DisagreementError, ErrorCode
from bcpformat.model.leaves import NumpyAdapter
from bcpformat.model.rank_state import ObjectRef, RankState
from bcpformat.model.state import encode_state
from bcpformat.model.state_check import check_per_rank_value, check_state
from bcpformat.model.state_decode import decode_state
from bcpformat.model.state_merge import Disagree, MergedState, StateMerger
from bcpformat.model.user_types import TypeRegistry


class Point:
    """A type that is registered."""

    def __init__(self, parts: Any) -> None:
        self.parts = parts


TYPES = TypeRegistry()
TYPES.register_type(Point, name="point", encode=lambda p: p.parts, decode=Point)


def described(value: object) -> RankState:
    """The document of a rank that holds a value."""
    state = encode_state(value, adapters={np.ndarray: NumpyAdapter()}, encoders={}, types=TYPES)
    return RankState(
        root=state.root,
        names=state.names,
        dtypes=[leaf.dtype for leaf in state.leaves],
        shapes=[leaf.shape for leaf in state.leaves],
        aliases=state.aliases,
        objects=[ObjectRef(name=n, nbytes=len(d), digest=d[:1] * 16) for n, d in state.objects],
        per_rank=len(state.per_rank),
    )


def digest_of(state: RankState) -> bytes:
    return repr(state).encode()


def merged(
    *values: object, disagree: Disagree = "error", states: Sequence[RankState] | None = None
) -> MergedState:
    """The merged state of ranks 0, 1 and so on, after all rules of a state."""
    merger = StateMerger(disagree=disagree, digest_of=digest_of)
    for rank, state in enumerate(states or map(described, values)):
        merger.add(rank, state)
    result = merger.finish()
    problems = check_state(
        result.root,
        names=result.names,
        aliases=result.aliases,
        object_names=[o.name for o in result.objects],
        per_rank_paths=result.per_rank,
    )
    assert problems == []
    assert [p for node in result.undeclared.values for p in check_per_rank_value(node)] == []
    return result


def value_of(state: MergedState) -> Any:
    """A merged state as a value: tensors as their names, per-rank nodes by ordinal."""
    return decode_state(
        state.root,
        tensor=lambda row, _flags: ("tensor", state.names[row]),
        read_object=lambda row: state.objects[row].name.encode(),
        per_rank=lambda ordinal: ("per rank", ordinal),
        builders={},
        types=TYPES,
    )


def problems_of(*values: object, disagree: Disagree = "error") -> dict[str, str]:
    """Place to message of everything that ranks do not agree on."""
    with pytest.raises(DisagreementError) as caught:
        merged(*values, disagree=disagree)
    assert caught.value.code is ErrorCode.DISAGREE
    assert all(p.code is ErrorCode.DISAGREE for p in caught.value.problems)
    return {p.where: p.message for p in caught.value.problems}


def w(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.zeros(shape or (2,), dtype)


def problems_free(*values: object) -> bool:
    merged(*values)
    return True


def undeclared(state: MergedState) -> dict[int, dict[int, Any]]:
    """Ordinal to rank to value."""
    found: dict[int, dict[int, Any]] = {}
    rows = state.undeclared
    for path, rank, value in zip(
        rows.path.tolist(), rows.rank.tolist(), rows.value.tolist(), strict=True
    ):
        node = rows.values[value]
        found.setdefault(path, {})[rank] = decode_state(
            node, tensor=no, read_object=no, per_rank=no, builders={}, types=TYPES
        )
    assert len(rows) == sum(map(len, found.values()))
    return found


def no(*_: object) -> Any:
    raise AssertionError("nothing of this kind is in a value")
