"""The msgpack profile, read byte by byte: canonical or rejected, with the exact fault (spec 6).

This is the authority for what a document may hold.  `mp` has a faster way for documents without
fault and comes here with everything else.
"""

from __future__ import annotations

from dataclasses import dataclass

from bcpformat.errors import ErrorCode, FormatError
from bcpformat.model.limits import MAX_INTEGER
from bcpformat.model.manifest import Value

_STR, _BIN, _ARRAY, _MAP = "str", "bin", "array", "map"

# Tag to what it opens, the bytes of its length, and the smallest length of that form (BCP-MSG-003).
_LENGTHS = {
    0xC4: (_BIN, 1, 0),
    0xC5: (_BIN, 2, 2**8),
    0xC6: (_BIN, 4, 2**16),
    0xD9: (_STR, 1, 2**5),
    0xDA: (_STR, 2, 2**8),
    0xDB: (_STR, 4, 2**16),
    0xDC: (_ARRAY, 2, 2**4),
    0xDD: (_ARRAY, 4, 2**16),
    0xDE: (_MAP, 2, 2**4),
    0xDF: (_MAP, 4, 2**16),
}
_INTEGERS = {0xCC: (1, 2**7), 0xCD: (2, 2**8), 0xCE: (4, 2**16), 0xCF: (8, 2**32)}
_REFUSED = {
    0xC0: "nil",
    0xC1: "the unused byte c1",
    0xCA: "a float",
    0xCB: "a float",
    **dict.fromkeys((0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8), "an ext type"),
    **dict.fromkeys((0xD0, 0xD1, 0xD2, 0xD3), "a signed integer"),
}
_FIRST_NEGATIVE = 0xE0


@dataclass(slots=True)
class _Open:
    """An array or map of which some items are not read yet.

    Attributes:
        value: What was read of it.
        left: Items left, at least 1; of a map, pairs.
        key: Of a map, the key whose value comes next.
        key_bytes: That key as encoded; None before the first, and in an array.
    """

    value: list[Value] | dict[str, Value]
    left: int
    key: str = ""
    key_bytes: bytes | None = None


def walk(data: bytes | memoryview, *, max_depth: int, where: str, views: bool = False) -> Value:
    """Return the one value of a document.

    Args:
        data: The whole document.
        max_depth: Nested arrays and maps, at most.
        where: What the document is, for messages.
        views: Whether a bin is a `memoryview` of `data`, not `bytes` of its own.

    Raises:
        FormatError: The document is not in the form of the profile; the code and the position
            are those of the first fault.
    """
    return _Walker(memoryview(data), where, views=views).document(max_depth)


class _Walker:
    """A position in a document; every method reads on from there."""

    def __init__(self, data: memoryview, where: str, *, views: bool) -> None:
        self._data = data
        self._end = len(data)
        self._pos = 0
        self._where = where
        self._views = views

    def document(self, max_depth: int) -> Value:
        """Return the value, with an explicit stack: a deep document costs no recursion."""
        stack: list[_Open] = []
        while True:
            start = self._pos
            tag = self._tag()
            kind, length = self._head(tag, start)
            if kind is _ARRAY or kind is _MAP:
                value = self._open(kind, length, start, stack, max_depth)
                if length:
                    continue
            else:
                value = self._scalar(tag, kind, length, start)
            while stack:
                top = stack[-1]
                if isinstance(top.value, dict):
                    top.value[top.key] = value
                else:
                    top.value.append(value)
                top.left -= 1
                if top.left:
                    if isinstance(top.value, dict):
                        self._read_key(top)
                    break
                value = stack.pop().value
            else:
                if self._pos != self._end:
                    text = f"{self._end - self._pos} bytes after the value"
                    raise self._error(ErrorCode.MP_MALFORMED, self._pos, text)
                return value

    def _open(
        self, kind: str, length: int, start: int, stack: list[_Open], max_depth: int
    ) -> Value:
        """Return an empty array or map, on the stack if something comes into it."""
        if len(stack) == max_depth:
            text = f"arrays and maps nest deeper than {max_depth}"
            raise self._error(ErrorCode.DEPTH, start, text)
        self._need(length if kind is _ARRAY else 2 * length, start, f"{kind} of {length}")
        value: list[Value] | dict[str, Value] = [] if kind is _ARRAY else {}
        if length:
            stack.append(_Open(value, length))
            if kind is _MAP:
                self._read_key(stack[-1])
        return value

    def _read_key(self, parent: _Open) -> None:
        start = self._pos
        kind, length = self._head(self._tag(), start)
        if kind is not _STR:
            raise self._error(ErrorCode.MP_TYPE, start, "map key must be str")
        encoded = bytes(self._take(length, start, kind))
        if parent.key_bytes is not None and encoded <= parent.key_bytes:
            relation = "is there twice" if encoded == parent.key_bytes else "does not ascend"
            raise self._error(
                ErrorCode.MP_NONCANONICAL, start, f"map key {encoded[:80]!r} {relation}"
            )
        parent.key = self._text(encoded, start)
        parent.key_bytes = encoded

    def _scalar(self, tag: int, kind: str, length: int, start: int) -> Value:
        if kind is _STR:
            return self._text(bytes(self._take(length, start, kind)), start)
        if kind is _BIN:
            view = self._take(length, start, kind)
            # An ignore: a view is no `Value`, but the caller has asked for it.
            return view if self._views else bytes(view)  # type: ignore[return-value]
        return length if kind else tag == 0xC3

    def _head(self, tag: int, start: int) -> tuple[str, int]:
        """Return what the tag opens and its length; for an integer "int" and its value.

        Returns:
            The kind is "" for false and true.
        """
        if tag < 0x80:
            return "int", tag
        if tag < 0x90:
            return _MAP, tag & 0x0F
        if tag < 0xA0:
            return _ARRAY, tag & 0x0F
        if tag < 0xC0:
            return _STR, tag & 0x1F
        if tag in _LENGTHS:
            kind, nbytes, least = _LENGTHS[tag]
            length = self._number(nbytes, start)
            if length < least:
                text = f"{kind} of {length} has a shorter form"
                raise self._error(ErrorCode.MP_NONCANONICAL, start, text)
            return kind, length
        if tag in _INTEGERS:
            nbytes, least = _INTEGERS[tag]
            value = self._number(nbytes, start)
            if value < least:
                text = f"integer {value} has a shorter form"
                raise self._error(ErrorCode.MP_NONCANONICAL, start, text)
            if value > MAX_INTEGER:
                text = f"integer {value} is above {MAX_INTEGER}"
                raise self._error(ErrorCode.RANGE, start, text)
            return "int", value
        if tag in _REFUSED or tag >= _FIRST_NEGATIVE:
            text = f"{_REFUSED.get(tag, 'a signed integer')} is not of the profile"
            raise self._error(ErrorCode.MP_TYPE, start, text)
        return "", 0

    def _tag(self) -> int:
        return self._take(1, self._pos, "value")[0]

    def _number(self, nbytes: int, start: int) -> int:
        return int.from_bytes(self._take(nbytes, start, "length"), "big")

    def _take(self, nbytes: int, start: int, what: str) -> memoryview:
        self._need(nbytes, start, what)
        self._pos += nbytes
        return self._data[self._pos - nbytes : self._pos]

    def _need(self, nbytes: int, start: int, what: str) -> None:
        """Refuse what cannot fit, before anything is allocated for it (BCP-MSG-008)."""
        left = self._end - self._pos
        if nbytes > left:
            text = f"{what} needs {nbytes} bytes or more, only {left} are left"
            raise self._error(ErrorCode.MP_MALFORMED, start, text)

    def _text(self, encoded: bytes, start: int) -> str:
        try:
            return encoded.decode()
        except UnicodeDecodeError as error:
            text = f"str is not well-formed UTF-8: {error.reason}"
            raise self._error(ErrorCode.MP_MALFORMED, start, text) from error

    def _error(self, code: ErrorCode, position: int, text: str) -> FormatError:
        return FormatError(f"{self._where} at byte {position}: {text}", code=code)
