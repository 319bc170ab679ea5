r"""Names of leaves: the path from the top, escaped so that no two paths share one (spec 11).

A name holds any other character, among them ``..`` and ``\``; it is never the name of a file,
and it is shown through `display`.
"""

from __future__ import annotations

import re

from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.limits import MAX_NAME_BYTES, STATE_DEPTH

MAX = MAX_NAME_BYTES
"""Bytes of the longest name, as UTF-8."""

METADATA = "%m"
"""The segment of the metadata of an OrderedDict."""

_ESCAPED = re.compile(r"[%/\x00-\x1f\x7f]")
_ESCAPED_IN_TUPLE = re.compile(r"[%/,\x00-\x1f\x7f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_SHOWN = 200
_DIGITS = 600
"""Decimal digits converted at a time; Python may be told to refuse more than 640,
see ``sys.set_int_max_str_digits``."""
_MAX_INT_BITS = 217_702
"""An int with more bits has more than `MAX` decimal digits."""


def segment(key: object) -> str:
    """Return the segment for a key of a dict (BCP-NAM-001).

    Args:
        key: A str, int, bool, or tuple of these; of exactly these types.

    Returns:
        The segment; never empty, without ``/``.

    Raises:
        InvalidArgumentError: The key has no form (`E_NO_FORM`): it is of another type, it holds a
            surrogate, or its segment alone is longer than a name may be; or tuples nest deeper
            than 128 (`E_DEPTH`).  The message says what the key is, not where.

    Example:
        >>> segment("a/b"), segment(0), segment("0"), segment(("x", True))
        ('a%2Fb', '%i0', '0', '%(x,%t%)')
    """
    if type(key) is str and is_plain(key):
        return key
    return _segment(key, _ESCAPED, STATE_DEPTH)


def is_plain(key: str) -> bool:
    """Return whether a str key is certainly its own segment; False says nothing."""
    # A printable str has no control and no surrogate; this is the fastest way to see that.
    return key.isprintable() and "/" not in key and "%" not in key and key != ""


def join(name: str, segment: str) -> str:
    """Return the name of what stands under a segment in the container of that name."""
    return f"{name}/{segment}" if name else segment


def split_name(name: str) -> list[str]:
    """Return the segments of a name, none for the empty name of the top.

    Example:
        >>> split_name("model/a%2Fb/0")
        ['model', 'a%2Fb', '0']
    """
    return name.split("/") if name else []


def is_too_long(name: str) -> bool:
    """Return whether a name has more than `MAX` bytes (BCP-MAN-020)."""
    if len(name) * 4 <= MAX:
        return False
    return len(name) > MAX or len(name.encode("utf-8", "surrogatepass")) > MAX


def shortened(name: str) -> str:
    """Return a name, quoted and cut to at most some hundred characters, for a message."""
    return repr(name) if len(name) <= 2 * _SHOWN else f"{name[:_SHOWN] + '...' + name[-_SHOWN:]!r}"


def display(name: str) -> str:
    r"""Return a name for a terminal or a log: one line, without effect on what is around it.

    Controls, line separators, bidirectional and other invisible characters, spaces other than
    U+0020, and what is not assigned become ``\x9b``, ``\u2028`` and the like, ``\`` becomes
    ``\\``: names that differ are displayed differently.

    Example:
        >>> print(display("a\u202eb"))
        a\u202eb
    """
    if name.isprintable() and "\\" not in name:
        return name
    return "".join(map(_displayed, name))


def _displayed(character: str) -> str:
    if character == "\\":
        return r"\\"
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _segment(key: object, escaped: re.Pattern[str], levels: int) -> str:
    """Return a segment; `levels` is how deep tuples may still nest."""
    if type(key) is str:
        if _SURROGATE.search(key):
            raise _no_form(f"key {key!r:.100} holds a surrogate, which UTF-8 does not have")
        return escaped.sub(_escape, key) if key else "%e"
    if type(key) is bool:
        return "%t" if key else "%f"
    if type(key) is int:
        return f"%i{_decimal(key)}"
    if type(key) is tuple:
        if not levels:
            text = f"tuples in a key nest deeper than {STATE_DEPTH}"
            raise InvalidArgumentError(text, code=ErrorCode.DEPTH)
        parts = (_segment(element, _ESCAPED_IN_TUPLE, levels - 1) for element in key)
        return f"%({','.join(parts)}%)"
    kind = type(key)
    raise _no_form(
        f"a key of type {kind.__module__}.{kind.__qualname__} has no form in a checkpoint; "
        "keys are str, int, bool, or tuples of these"
    )


def _escape(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"


def _decimal(number: int) -> str:
    if number.bit_length() < _DIGITS:  # fewer bits, so fewer digits
        return str(number)
    if number.bit_length() > _MAX_INT_BITS:
        text = f"an int key of {number.bit_length()} bits makes a name of more than {MAX} bytes"
        raise _no_form(text)
    digits = abs(number)
    parts = []
    while digits >= 10**_DIGITS:
        digits, low = divmod(digits, 10**_DIGITS)
        parts.append(f"{low:0{_DIGITS}d}")
    parts.append("-" * (number < 0) + str(digits))
    return "".join(reversed(parts))


def _no_form(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(text, code=ErrorCode.NO_FORM)
