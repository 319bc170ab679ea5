"""Tables of keys: what a map of a document must hold, checked one column at a time (spec 7).

The rows of a section become columns of values before anything looks at them, so a rule costs a
few calls for all rows together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from operator import itemgetter, lt
from typing import Any, NoReturn

from bcpformat.errors import BcpError, ErrorCode, Problem, error_for
from bcpformat.model.manifest import Value
from bcpformat.wire.container import MINOR

_TYPE_NAMES = {
    int: "integer",
    bool: "bool",
    str: "str",
    bytes: "bin",
    memoryview: "bin",
    list: "array",
    dict: "map",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """What the spec says of one key.

    Attributes:
        value_type: The exact type of the value.
        needed: Whether the key must be there.
        default: What an absent key stands for; a key that says the same is refused.  None for
            no default.
        least: Smallest integer.
        lengths: Bytes of a bin or items of an array; None for any number.
        item_type: The exact type of the items of an array; None for any.
    """

    value_type: type
    needed: bool = False
    default: Value | None = None
    least: int = 0
    lengths: range | None = None
    item_type: type | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Map rows as columns; the types are those of their fields.

    Attributes:
        needed: Key to its value in every row.
        given: Optional key to its value in those rows, by number, that have it.
        unknown: Row to its keys that no field describes.
    """

    # Any: `read_rows` has checked every value against its field.
    needed: Mapping[str, list[Any]]
    given: Mapping[str, Mapping[int, Any]]
    unknown: Mapping[int, Mapping[str, Value]]


def fault(code: ErrorCode, where: str, message: str) -> BcpError:
    """Return the exception for a rule that a document breaks."""
    return error_for(Problem(code=code, where=where, message=message))


def require_type(value: Value, expected: type, where: str) -> None:
    """Raise ``E_TYPE`` for a value of another type; a bool is no integer."""
    if type(value) is not expected:
        text = f"expected {_TYPE_NAMES[expected]}, found {_TYPE_NAMES[type(value)]}"
        raise fault(ErrorCode.TYPE, where, text)


def read_map(value: Value, fields: Mapping[str, Field], *, where: str, minor: int) -> Rows:
    """Return a map as `Rows` of one row, after all rules of its fields; raises as `read_rows`."""
    require_type(value, dict, where)
    return _read([value], fields, lambda _: where, minor)


def read_rows(value: Value, fields: Mapping[str, Field], *, where: str, minor: int) -> Rows:
    """Return an array of maps as columns, after all rules of their fields.

    Args:
        value: The array.
        fields: Key to what it must hold.
        where: The section, for messages.
        minor: Minor version of the file; unknown keys of a newer one are kept.

    Raises:
        FormatError: ``E_TYPE``, ``E_KEY_MISSING``, ``E_KEY_UNKNOWN``, ``E_RANGE``, or
            ``E_MP_NONCANONICAL`` for a key that says its default.
    """
    require_type(value, list, where)
    return _read(value, fields, lambda row: f"{where} row {row}", minor)


def _read(
    rows: Any,  # a list, with items of any type yet
    fields: Mapping[str, Field],
    place: Callable[[int], str],
    minor: int,
) -> Rows:
    _require_types(rows, dict, place)
    keys = set(chain.from_iterable(set(map(tuple, rows))))
    needed: dict[str, list[Any]] = {}
    given: dict[str, dict[int, Any]] = {}
    for key, field in fields.items():
        if not field.needed:
            given[key] = {}
            if key in keys:
                given[key] = {number: row[key] for number, row in enumerate(rows) if key in row}
            continue
        try:
            needed[key] = list(map(itemgetter(key), rows))
        except KeyError as error:
            number = next(i for i, row in enumerate(rows) if key not in row)
            raise fault(ErrorCode.KEY_MISSING, place(number), f"no key {key!r}") from error
    unknown = {}
    if not keys <= fields.keys():
        unknown = _unknown(rows, fields, place, minor)
    for key, field in fields.items():
        numbers = list(given[key]) if key in given else range(len(rows))
        values = list(given[key].values()) if key in given else needed[key]
        _Values(values, numbers, key, place).check(field)
    return Rows(needed, given, unknown)


def _require_types(values: list[Value], expected: type, place: Callable[[int], str]) -> None:
    """Raise ``E_TYPE`` for the first value of another type."""
    if not set(map(type, values)) <= {expected}:
        index = next(i for i, value in enumerate(values) if type(value) is not expected)
        require_type(values[index], expected, place(index))


def _unknown(
    rows: list[dict[str, Value]],
    fields: Mapping[str, Field],
    place: Callable[[int], str],
    minor: int,
) -> dict[int, dict[str, Value]]:
    """Return the unknown keys of each row that has some, or refuse them (BCP-VER-001)."""
    unknown = {}
    for number, row in enumerate(rows):
        extra = {key: value for key, value in row.items() if key not in fields}
        if extra and minor <= MINOR:
            text = f"unknown key {next(iter(extra))[:80]!r}"
            raise fault(ErrorCode.KEY_UNKNOWN, place(number), text)
        if extra:
            unknown[number] = extra
    return unknown


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of one key, to be checked.

    Attributes:
        values: The values, of any type.
        numbers: The row of each.
        key: The key.
        place: Row to where it is, for messages.
    """

    values: list[Any]
    numbers: Sequence[int]
    key: str
    place: Callable[[int], str]

    def check(self, field: Field) -> None:
        """Raise for the first value that breaks a rule of its field."""
        values = self.values
        _require_types(values, field.value_type, self._where)
        if field.item_type is not None:
            items = set(map(type, chain.from_iterable(values)))
            if not items <= {field.item_type}:
                index, item = next(
                    (index, item)
                    for index, value in enumerate(values)
                    for item in value
                    if type(item) is not field.item_type
                )
                require_type(item, field.item_type, self._where(index))
        least, lengths = field.least, field.lengths
        if least and min(values, default=least) < least:
            index = next(i for i, value in enumerate(values) if value < least)
            self._refuse(index, f"expected {least} or more, found {values[index]}")
        if lengths is not None and not all(n in lengths for n in set(map(len, values))):
            index = next(i for i, value in enumerate(values) if len(value) not in lengths)
            text = f"expected length {lengths[0]} to {lengths[-1]}, found {len(values[index])}"
            self._refuse(index, text)
        if field.default is not None and field.default in values:
            text = f"{field.default!r} is the default, so the key must be absent"
            index = values.index(field.default)
            raise fault(ErrorCode.MP_NONCANONICAL, self._where(index), text)

    def _refuse(self, index: int, text: str) -> NoReturn:
        raise fault(ErrorCode.RANGE, self._where(index), text)

    def _where(self, index: int) -> str:
        return f"{self.place(self.numbers[index])} key {self.key!r}"


def require_ascending(values: Sequence[str], where: str) -> None:
    """Raise ``E_ORDER`` unless text ascends by its UTF-8 bytes, without duplicates."""
    # The order of code points is that of the UTF-8 bytes.
    if not all(map(lt, values, islice(values, 1, None))):
        before, after = next(pair for pair in pairwise(values) if pair[0] >= pair[1])
        text = f"names must ascend without duplicates, found {after[:80]!r} after {before[:80]!r}"
        raise fault(ErrorCode.ORDER, where, text)
