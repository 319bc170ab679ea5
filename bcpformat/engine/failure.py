"""Errors on their way from one rank to the others.

An error is rebuilt from a table of our own classes; nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bcpformat import errors
from bcpformat.errors import BcpError, CoordinationError, ErrorCode, Problem
from bcpformat.model.limits import DOCUMENT_DEPTH, MAX_INTEGER
from bcpformat.model.manifest import Value
from bcpformat.wire.mp import decode, encode
from bcpformat.wire.schema import Field, fault, read_map

WHERE: Final = "the error of a rank"

_CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, BcpError)
}
_FIELDS = {
    "class": Field(value_type=str, needed=True),
    "code": Field(value_type=str, needed=True),
    "extra": Field(value_type=dict, needed=True),
    "message": Field(value_type=str, needed=True),
    "notes": Field(value_type=list, needed=True, item_type=str),
    "rank": Field(value_type=int, needed=True),
}


@dataclass(frozen=True, slots=True)
class _Attribute:
    """An attribute that some errors have.

    Attributes:
        encode: Its value to one of the profile.
        decode: The reverse; raises TypeError or ValueError for what it is not.
    """

    # Any: the value of an attribute, of the type that its class gives it.
    encode: Callable[[Any], Value]
    decode: Callable[[Any], object]


def encode_failure(rank: int, error: BaseException, *, size: int) -> bytes:
    """Return an error as bytes, for `decode_failure` on every rank.

    Args:
        rank: The rank it happened on.
        error: Of any class; one that is not ours becomes a `CoordinationError` of code
            ``E_RANK_LOST`` that names its type.
        size: Ranks in the group.
    """
    if not isinstance(error, BcpError):
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        error = CoordinationError(text, ranks=[rank], code=ErrorCode.RANK_LOST)
    attributes = vars(error)
    said = error.rank is not None
    found: dict[str, Value] = {
        "class": next((c.__name__ for c in type(error).__mro__ if c.__name__ in _CLASSES), ""),
        "code": error.code.value,
        "extra": {
            name: attribute.encode(attributes[name])
            for name, attribute in _ATTRIBUTES.items()
            if name in attributes
        },
        "message": _text(error.message if said else f"rank {rank} of {size}: {error.message}"),
        "notes": [_text(note) for note in getattr(error, "__notes__", [])],
        "rank": rank if error.rank is None else error.rank,
    }
    return encode(found, max_depth=DOCUMENT_DEPTH, where=WHERE)


def decode_failure(data: bytes) -> BcpError:
    """Return the error of another rank: same class, same code, all that it carries.

    Raises:
        FormatError: These are not the bytes of an error.
    """
    document = decode(data, max_depth=DOCUMENT_DEPTH, where=WHERE)
    found = {k: v[0] for k, v in read_map(document, _FIELDS, where=WHERE, minor=0).needed.items()}
    try:
        code = ErrorCode(found["code"])
        extra = {name: _ATTRIBUTES[name].decode(v) for name, v in found["extra"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise fault(ErrorCode.RANGE, WHERE, f"an error of another version: {error}") from error
    kind = _CLASSES.get(found["class"], BcpError)
    # not by its own arguments, which differ from class to class
    made = kind.__new__(kind, found["message"])
    made.args = (found["message"],)
    made.code = code
    made.rank = found["rank"]
    for name, value in extra.items():
        setattr(made, name, value)
    for note in found["notes"]:
        made.add_note(note)
    return made


def _text(text: object) -> str:
    """Return text that has a form, whatever a path or message of a system had in it."""
    return str(text).encode("utf-8", "backslashreplace").decode()


def _texts(values: Any) -> list[Value]:
    return [_text(value) for value in values]


def _str(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("not a str")
    return value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError("not a bool")
    return value


def _ranks(values: Any) -> tuple[int, ...]:
    if any(type(value) is not int for value in values):
        raise TypeError("not a rank")
    return tuple(values)


def _problems(values: Any) -> tuple[Problem, ...]:
    return tuple(
        Problem(code=ErrorCode(code), where=_str(where), message=_str(message))
        for code, where, message in values
    )


_ATTRIBUTES = {
    "changed": _Attribute(_texts, lambda values: tuple(map(_str, values))),
    "key": _Attribute(_text, _str),
    "problems": _Attribute(
        lambda problems: [[p.code.value, _text(p.where), _text(p.message)] for p in problems],
        _problems,
    ),
    # True, False, or None: an array of at most one
    "published": _Attribute(
        lambda value: [] if value is None else [value],
        lambda values: _bool(*values) if values else None,
    ),
    "ranks": _Attribute(lambda ranks: [r for r in ranks if 0 <= r <= MAX_INTEGER], _ranks),
    "retryable": _Attribute(bool, _bool),
}
"""Name to how it goes from rank to rank: all that classes of `errors` add."""
