"""What the state of a rank says, as bytes: the part of a record that most ranks have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import numpy as np

from bcpformat.codec.digest import document_digest
from bcpformat.errors import ErrorCode, error_for
from bcpformat.model.limits import DOCUMENT_DEPTH, MAX_INTEGER, MAX_NDIM
from bcpformat.model.manifest import Ints, Value
from bcpformat.model.rank_state import ObjectRef, RankState
from bcpformat.model.state_check import check_state
from bcpformat.wire.manifest import decode_document, encode_document
from bcpformat.wire.mp import decode, encode
from bcpformat.wire.schema import Field, fault, read_map, require_ascending

_DEPTH: Final = DOCUMENT_DEPTH + 2
"""What a user says of a tensor lies two levels deeper here than in a manifest."""


class KnownStates:
    """States that were decoded already, by digest; the latest are kept.

    Example:
        >>> KnownStates(most=4).find(bytes(16)) is None
        True
    """

    def __init__(self, *, most: int = 64) -> None:
        """Make an empty memory.

        Args:
            most: States that are kept at a time.
        """
        self._most = most
        self._states: dict[bytes, RankState] = {}

    def find(self, digest: bytes) -> RankState | None:
        """Return the state of a digest, None if it is not kept."""
        return self._states.get(digest)

    def keep(self, state: RankState) -> None:
        """Keep a state, and forget the oldest of too many."""
        self._states[state.digest] = state
        if len(self._states) > self._most:
            del self._states[next(iter(self._states))]


def state_digest(state: RankState) -> bytes:
    """Return a digest that is equal for equal states, and only for these."""
    return document_digest(encode_state_record(state))


def encode_state_record(state: RankState) -> bytes:
    """Return what a state says as bytes, for `decode_state_record`.

    Raises:
        InvalidArgumentError: A value has no form in a document (``E_NO_FORM``).
    """
    kinds = {name: number for number, name in enumerate(dict.fromkeys(state.dtypes))}
    document: dict[str, Value] = {
        "aliases": [[row, list(others)] for row, others in state.aliases.items()],
        "dtype": bytes(map(kinds.__getitem__, state.dtypes)),
        "dtypes": list(kinds),
        "extra": [[row, dict(keys)] for row, keys in state.extra.items()],
        "names": list(state.names),
        "ndim": bytes(map(len, state.shapes)),
        "objects": [[o.name, o.nbytes, o.digest] for o in state.objects],
        "per_rank": state.per_rank,
        "shape": np.array([n for shape in state.shapes for n in shape], dtype="<i8").tobytes(),
        "state": encode_document(state.root),
    }
    return encode(document, max_depth=_DEPTH, where="the state of a rank")


_STATE_FIELDS = {
    "aliases": Field(value_type=list, needed=True, item_type=list),
    "dtype": Field(value_type=bytes, needed=True),
    "dtypes": Field(value_type=list, needed=True, item_type=str),
    "extra": Field(value_type=list, needed=True, item_type=list),
    "names": Field(value_type=list, needed=True, item_type=str),
    "ndim": Field(value_type=bytes, needed=True),
    "objects": Field(value_type=list, needed=True, item_type=list),
    "per_rank": Field(value_type=int, needed=True),
    "shape": Field(value_type=bytes, needed=True),
    "state": Field(value_type=bytes, needed=True),
}


def decode_state_record(data: bytes, where: str) -> RankState:
    """Return a state, with its digest; it breaks no rule of a state tree.

    Args:
        data: What `encode_state_record` returned.
        where: Whose it is, for messages.

    Raises:
        FormatError: These are not the bytes of a state.
    """
    found = read_fields(data, _STATE_FIELDS, where)
    names, ndim, dtype = found["names"], found["ndim"], found["dtype"]
    if not len(names) == len(ndim) == len(dtype) or sum(ndim) * 8 != len(found["shape"]):
        raise fault(ErrorCode.COLUMN, where, "names, data types and shapes do not fit each other")
    if max(dtype, default=0) >= max(len(found["dtypes"]), 1) or max(ndim, default=0) > MAX_NDIM:
        raise fault(ErrorCode.RANGE, where, "a data type or number of axes is out of range")
    require_ascending(names, where)
    extents = np.frombuffer(found["shape"], dtype="<i8")
    check_range(extents, where)
    left = iter(extents.tolist())
    state = RankState(
        root=decode_document(found["state"], where=where),
        names=names,
        dtypes=[found["dtypes"][number] for number in dtype],
        shapes=[tuple(islice(left, n)) for n in ndim],
        aliases={
            row: tuple(others)
            for row, others in _rows(found["aliases"], (int, list), where, below=len(names))
        },
        extra=dict(_rows(found["extra"], (int, dict), where, below=len(names))),
        objects=[
            ObjectRef(name=name, nbytes=nbytes, digest=digest)
            for name, nbytes, digest in _rows(
                found["objects"], (str, int, bytes), where, below=None
            )
        ],
        per_rank=found["per_rank"],
        digest=document_digest(data),
    )
    problems = check_state(
        state.root,
        names=state.names,
        aliases=state.aliases,
        object_names=[o.name for o in state.objects],
        per_rank_paths=state.per_rank,
    )
    if problems:
        raise error_for(replace(problems[0], where=f"{where}: {problems[0].where}"))
    return state


# Any: the values of `read_map`, which has compared their types with the fields.
def read_fields(data: bytes, expected: Mapping[str, Field], where: str) -> dict[str, Any]:
    """Return the values of a document that is a map with some keys.

    Raises:
        FormatError: It is not.
    """
    rows = read_map(decode(data, max_depth=_DEPTH, where=where), expected, where=where, minor=0)
    return {key: values[0] for key, values in rows.needed.items()}


def check_range(values: Ints, where: str) -> None:
    """Raise ``E_RANGE`` unless all numbers are integers of the format."""
    if values.view(np.uint64).max(initial=0) > MAX_INTEGER:
        raise fault(ErrorCode.RANGE, where, "a number is not in 0 to 2^53-1")


# Any: rows of several types, which are compared here.
def _rows(
    rows: Sequence[list[Any]], types: Sequence[type], where: str, *, below: int | None
) -> Sequence[list[Any]]:
    """Return rows as they are, or refuse them.

    Args:
        rows: The rows.
        types: Types of their values.
        where: Whose they are, for messages.
        below: What the first values, which are rows of tensors, are below.
    """
    for row in rows:
        fits = [type(value) for value in row] == list(types)
        if not fits or (below is not None and row[0] >= below):
            text = f"a row of {len(row)} values is of another form, or there is no such tensor"
            raise fault(ErrorCode.RANGE, where, text)
    return rows
