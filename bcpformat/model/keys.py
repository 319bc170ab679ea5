"""Keys of a dict and elements of a set: what they may be, and which are equal (spec 10).

Equality is that of numbers, whatever their kinds, because it is that of every language that has
such containers: a file with both 1 and true in one set would have no value.
"""

from __future__ import annotations

import struct
from cmath import isnan
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from itertools import pairwise

from bcpformat.errors import ErrorCode, LimitError
from bcpformat.model.limits import MAX_INTEGER
from bcpformat.model.manifest import Node
from bcpformat.model.nodes import (
    BIG_INT,
    COMPLEX,
    FLOAT,
    FROZENSET,
    INT,
    NONE,
    TUPLE,
    VALUES,
    array_head,
    describe,
    encoded,
    int_bytes,
    read_complex,
    read_float,
    read_key,
    refuse,
)

_MOST_OF_ONE_HASH = 256
"""Values of one container may share a hash so often; more take time that grows with the square."""


def check_hashes(values: Collection[Hashable]) -> None:
    """Refuse values that were chosen to make a dict or set of them slow (BCP-RDR-002).

    Raises:
        LimitError: More than 256 of them have one hash in this process (`E_LIMIT`).
    """
    if len(values) > _MOST_OF_ONE_HASH:
        ((_, most),) = Counter(map(hash, values)).most_common(1)
        if most > _MOST_OF_ONE_HASH:
            text = f"{most} keys or elements of one hash, the limit is {_MOST_OF_ONE_HASH}"
            raise LimitError(text, code=ErrorCode.LIMIT)


def check_keys(keys: Sequence[Node]) -> None:
    """Check the keys of one dict (BCP-STA-002).

    Raises:
        FormatError: One is no key, or two are equal as encoded or by value (`E_STATE`).
    """
    texts = {key for key in keys if type(key) is str}
    if len(texts) == len(keys):
        return
    others = [key for key in keys if type(key) is not str]
    for key in others:
        read_key(key)
    if len(texts) + len({by_value(key) for key in others}) != len(keys):
        refuse("a dict has two equal keys (numbers by value: false is 0, true is 1)")


def check_elements(elements: Sequence[Node]) -> None:
    """Check the elements of one set (BCP-STA-003).

    Raises:
        FormatError: One cannot be an element, two are equal as encoded or by value, or they are
            not in the order of their encoded bytes (`E_STATE`).
    """
    _ascending([_element(node) for node in elements])
    _differ_by_value(elements)


def _element(node: Node) -> bytes:
    """Check an element of a set, and return it encoded."""
    if type(node) is str or type(node) is bytes or type(node) is bool:
        return encoded(node)
    if type(node) is list and node and type(node[0]) is int:
        kind = node[0]
        if kind in (TUPLE, FROZENSET):
            parts = [_element(part) for part in node[1:]]
            if kind == FROZENSET:
                _ascending(parts)
                _differ_by_value(node[1:])
            return array_head(len(node)) + encoded(kind) + b"".join(parts)
        if NONE <= kind <= COMPLEX:
            VALUES[kind](node)
            return encoded(node)
    refuse(f"{describe(node)} cannot be an element of a set")


def _ascending(parts: Sequence[bytes]) -> None:
    if any(before >= after for before, after in pairwise(parts)):
        refuse("elements of a set are not in ascending order, each once")


def _differ_by_value(elements: Sequence[Node]) -> None:
    numbers = [node for node in elements if type(node) is list or type(node) is bool]
    if len(set(map(by_value, numbers))) != len(numbers):
        refuse("a set has two elements that are equal as numbers, such as 1, true and 1.0")


def by_value(node: Node) -> bytes:
    """Return bytes that are equal for keys or elements that are equal by value, and only then.

    Numbers of all kinds compare as numbers: false is 0, true is 1, 1.0 is 1, -0.0 is 0.0; a NaN
    equals its own bits alone.  (Hashes of the values themselves would do, if nobody could choose
    many values of one hash.)

    Preconditions: the node is a key or an element.
    """
    if type(node) is bool:
        return encoded([INT, int(node)])
    if type(node) is not list:
        return encoded(node)
    kind = node[0]
    if kind == FLOAT:
        return _float_by_value(read_float(node), node)
    if kind == COMPLEX:
        return _complex_by_value(read_complex(node), node)
    if kind in (TUPLE, FROZENSET):
        parts = list(map(by_value, node[1:]))
        if kind == FROZENSET:
            parts.sort()
        return array_head(len(node)) + encoded(kind) + b"".join(parts)
    return encoded(node)


def _float_by_value(value: float, node: Node) -> bytes:
    if not value.is_integer():
        return encoded(node)
    whole = int(value)
    small = 0 <= whole <= MAX_INTEGER
    return encoded([INT, whole] if small else [BIG_INT, int_bytes(whole)])


def _complex_by_value(value: complex, node: Node) -> bytes:
    if isnan(value):
        return encoded(node)
    real = _float_by_value(value.real, [FLOAT, struct.pack("<d", value.real)])
    if not value.imag:
        return real
    imaginary = _float_by_value(value.imag, [FLOAT, struct.pack("<d", value.imag)])
    return array_head(3) + encoded(COMPLEX) + real + imaginary
