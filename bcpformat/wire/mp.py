"""The msgpack profile: canonical or rejected (spec 6).

A value of the profile has one encoding only, so "decode, then encode, and compare" decides
whether a document is canonical, and msgpack does both in C.  What comparing does not show
(types that are well-formed msgpack but not of the profile, the order of keys, depth) is checked
one level of the tree at a time, with no Python code per value.  A document that fails any of it
goes to `walk`, which alone decides and finds the fault.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import msgpack

from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.limits import MAX_INTEGER
from bcpformat.model.manifest import Value
from bcpformat.wire.walk import walk

_CONTAINERS = frozenset({list, dict})
_TYPES = frozenset({int, bool, str, bytes}) | _CONTAINERS

MAX_LOOKS = 2**13
"""Bytes that could begin an array, at most, for the fast way; more are not worth looking at."""


def encode(value: Value, *, max_depth: int, where: str) -> bytes:
    """Return the one encoding of a value; the keys of its maps may come in any order.

    Args:
        value: Made of exactly the types `int`, `bool`, `str`, `bytes`, `list` and `dict`.
        max_depth: Nested lists and dicts, at most.
        where: What the value is, for messages.

    Raises:
        InvalidArgumentError: The profile has no form for it (``E_NO_FORM``).

    Example:
        >>> encode({"b": 1, "a": [True, b""]}, max_depth=16, where="example").hex(" ")
        '82 a1 61 92 c3 c4 00 a1 62 01'
    """
    if not _conforms(value, max_depth):
        value = _canonical(value, max_depth, where)
    try:
        return _pack(value)
    except UnicodeEncodeError:
        return _pack(_canonical(value, max_depth, where))


def decode(data: bytes | memoryview, *, max_depth: int, where: str) -> Value:
    """Return the value of a document.

    Args:
        data: The whole document.
        max_depth: Nested arrays and maps, at most.
        where: What the document is, for messages.

    Raises:
        FormatError: It is not in the form of the profile (``E_MP_MALFORMED``, ``E_MP_TYPE``,
            ``E_MP_NONCANONICAL``, ``E_DEPTH``) or holds an integer above 2^53-1 (``E_RANGE``).

    Example:
        >>> decode(bytes.fromhex("82 a1 61 92 c3 c4 00 a1 62 01"), max_depth=16, where="example")
        {'a': [True, b''], 'b': 1}
    """
    data = bytes(data)
    if _may_overallocate(data):
        return walk(data, max_depth=max_depth, where=where)
    try:
        # Any: what comes out of msgpack is checked right after.
        value: Any = msgpack.unpackb(data, raw=False, strict_map_key=True)
        if _conforms(value, max_depth) and _pack(value) == data:
            return value  # type: ignore[no-any-return]  # _conforms has looked
    except (ValueError, OverflowError):
        pass  # walk finds the fault and says where
    return walk(data, max_depth=max_depth, where=where)


def _pack(value: Value) -> bytes:
    return msgpack.packb(value, use_bin_type=True)  # type: ignore[no-any-return]  # untyped


def _may_overallocate(data: bytes) -> bool:
    """Return whether decoding in C could allocate much more than the document's size.

    msgpack makes the list of an array before it has read the items, and holds a declared length
    only against the length of the document.  So nested arrays of a few bytes each that claim
    much cost memory without end (BCP-MSG-008).  This adds up what the arrays of 16 or more items
    claim, and what looks like one in the bytes of something else.  Claims that msgpack itself
    refuses do not count.
    """
    # The bytes of indices and names look like claims of some ten times their number.
    claims = 32 * len(data) + 2**16
    looks = MAX_LOOKS
    for tag, nbytes in ((b"\xdc", 2), (b"\xdd", 4)):
        position = data.find(tag)
        while position >= 0:
            claim = int.from_bytes(data[position + 1 : position + 1 + nbytes], "big")
            claims -= claim if claim <= len(data) else 0
            looks -= 1
            if claims < 0 or looks < 0:
                return True
            position = data.find(tag, position + 1)
    return False


def _conforms(value: object, max_depth: int) -> bool:
    """Return whether a value has only types, integers, keys and depth of the profile.

    The order of the keys counts; whether text is well-formed is not looked at.
    """
    # Any: the types of a level are those that `types` lists.
    level: list[Any] = [value]
    depth = 0
    while level:
        types = set(map(type, level))
        if not types <= _TYPES:
            return False
        if int in types:
            numbers = _of_type(int, level, types)
            if min(numbers) < 0 or max(numbers) > MAX_INTEGER:
                return False
        if types.isdisjoint(_CONTAINERS):
            return True
        depth += 1
        if depth > max_depth:
            return False
        lists, maps = _of_type(list, level, types), _of_type(dict, level, types)
        if not all(map(_ascend, set(map(tuple, maps)))):
            return False
        level = list(chain(*lists, *map(dict.values, maps)))
    return True


def _of_type(wanted: type, level: list[Any], types: set[type]) -> list[Any]:
    """Return the values of a level of one type; `types` has those there are."""
    if wanted not in types:
        return []
    return level if len(types) == 1 else [value for value in level if type(value) is wanted]


def _ascend(keys: tuple[object, ...]) -> bool:
    # The order of code points is that of the UTF-8 bytes.
    return set(map(type, keys)) <= {str} and list(keys) == sorted(keys)  # type: ignore[type-var]


def _canonical(value: object, max_depth: int, path: str) -> Value:
    """Return a copy with its keys in order.

    Raises:
        InvalidArgumentError: As for `encode`; the path leads to the fault.
    """
    if isinstance(value, list | dict) and max_depth == 0:
        raise _no_form(path, "nests too deep")
    match value:
        case bool() | bytes() if type(value) in _TYPES:
            return value
        case int() if type(value) is int:
            if not 0 <= value <= MAX_INTEGER:
                raise _no_form(path, f"integer {value} is not in 0 to {MAX_INTEGER}")
            return value
        case str() if type(value) is str:
            _require_text(value, path)
            return value
        case list() if type(value) is list:
            return [_canonical(v, max_depth - 1, f"{path}[{i}]") for i, v in enumerate(value)]
        case dict() if type(value) is dict:
            for key in value:
                if type(key) is not str:
                    raise _no_form(path, f"map key {key!r} is not str")
                _require_text(key, path)
            return {
                key: _canonical(value[key], max_depth - 1, f"{path}[{key!r}]")
                for key in sorted(value)
            }
    raise _no_form(path, f"type {type(value).__name__!r} is not of the profile")


def _require_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _no_form(path, f"str cannot be UTF-8: {error.reason}") from error


def _no_form(path: str, text: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{path}: {text}", code=ErrorCode.NO_FORM)
