"""Segments, names, and how they are shown."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.names import (
    MAX,
    display,
    is_too_long,
    join,
    segment,
    shortened,
    split_name,
)

# Characters that mean something in a name are drawn often.
TEXTS = st.text(st.sampled_from("a0%/,()eitf-\\.\x00\n\x1f\x7f\x80\u2028é\U0001f600")) | st.text()
KEYS = st.recursive(
    TEXTS | st.integers() | st.booleans(), lambda inner: st.lists(inner, max_size=4).map(tuple)
)
PATHS = st.lists(KEYS, max_size=4)


def name_of(path: list[object]) -> str:
    name = ""
    for key in path:
        name = join(name, segment(key))
    return name


def typed(key: object) -> object:
    """Return what tells 1, True, "1" and (1,) apart."""
    return tuple(map(typed, key)) if type(key) is tuple else (type(key), key)


def parsed_text(text: str) -> str:
    return re.sub("%([0-9A-F]{2})", lambda match: chr(int(match[1], 16)), text)


def parsed(text: str) -> tuple[object, str]:
    """Return the key that a segment begins with, and the rest: the table read backwards."""
    if text.startswith("%("):
        parts, text = [], text[2:]
        while not text.startswith("%)"):
            part, text = parsed(text.removeprefix(","))
            parts.append(part)
        return tuple(parts), text[2:]
    token = re.match(r"(?:[^%,]|%[0-9A-F]{2}|%e|%i-?[0-9]+|%[tf])*", text)[0]
    rest = text[len(token) :]
    if token.startswith("%i"):
        return int(token[2:]), rest
    special = {"%e": "", "%t": True, "%f": False}
    return special.get(token, parsed_text(token)), rest


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("w", "w"),
        ("layers.0.weight", "layers.0.weight"),
        ("a/b", "a%2Fb"),
        ("100%", "100%25"),
        ("", "%e"),
        ("a\x00b\n", "a%00b%0A"),
        ("\x1f\x7f", "%1F%7F"),
        ("\x80\u2028 é", "\x80\u2028 é"),
        ("a,b", "a,b"),
        ("../../x", "..%2F..%2Fx"),
        ("%m", "%25m"),
        (0, "%i0"),
        (-12, "%i-12"),
        (True, "%t"),
        (False, "%f"),
        ((), "%(%)"),
        (("",), "%(%e%)"),
        (("a,b", 1, (True, "c")), "%(a%2Cb,%i1,%(%t,c%)%)"),
    ],
)
def test_a_key_has_the_segment_of_the_table(key: object, expected: str) -> None:
    assert segment(key) == expected


@pytest.mark.slow
@given(PATHS, PATHS)
def test_paths_that_differ_have_names_that_differ(a: list[object], b: list[object]) -> None:
    assume(typed(tuple(a)) != typed(tuple(b)))

    assert name_of(a) != name_of(b)


@pytest.mark.slow
@given(PATHS)
def test_a_name_gives_back_its_path(path: list[object]) -> None:
    parts = [
        parsed(part.replace(",", "%2C") if part[:2] != "%(" else part)[0]
        for part in split_name(name_of(path))
    ]

    assert typed(tuple(parts)) == typed(tuple(path))


@pytest.mark.slow
@given(PATHS)
def test_a_name_has_no_control_and_no_empty_segment(path: list[object]) -> None:
    name = name_of(path)

    assert not re.search(r"[\x00-\x1f\x7f]", name)
    assert all(split_name(name)) and len(split_name(name)) == len(path)


def test_the_name_of_the_top_is_empty_and_has_no_segments() -> None:
    assert split_name("") == [] and join("", "a") == "a"


@pytest.mark.parametrize("key", ["\ud800", "a\udfffb", ("\udc80",)])
def test_a_surrogate_has_no_form(key: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        segment(key)

    assert caught.value.code is ErrorCode.NO_FORM


class _Text(str):
    __slots__ = ()


@pytest.mark.parametrize("key", [None, 1.0, b"a", frozenset(), _Text("a"), (1, None)])
def test_a_key_of_another_type_has_no_form(key: object) -> None:
    with pytest.raises(InvalidArgumentError, match="keys are str, int, bool") as caught:
        segment(key)

    assert caught.value.code is ErrorCode.NO_FORM


def test_an_int_key_beyond_the_digits_python_converts_at_once_has_a_segment() -> None:
    number = 10**5000 + 7 * 10**600

    assert segment(-number) == "%i-1" + "0" * 4399 + "7" + "0" * 600


def test_an_int_key_of_more_digits_than_a_name_has_no_form() -> None:
    with pytest.raises(InvalidArgumentError, match="65535 bytes"):
        segment(10**70_000)


def test_an_int_key_is_converted_whatever_python_was_told_to_refuse() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        made = segment(10**2000)
    finally:
        sys.set_int_max_str_digits(before)

    assert made == "%i1" + "0" * 2000


def test_tuples_that_nest_too_deep_are_refused() -> None:
    key: object = ()
    for _ in range(127):
        key = (key,)

    assert segment(key) == "%(" * 128 + "%)" * 128
    with pytest.raises(InvalidArgumentError) as caught:
        segment((key,))
    assert caught.value.code is ErrorCode.DEPTH


@pytest.mark.parametrize(
    "longest", ["a" * MAX, "é" * (MAX // 2), "\U0001f600" * (MAX // 4)], ids=["1", "2", "4"]
)
def test_a_name_is_too_long_by_its_bytes(longest: str) -> None:
    assert not is_too_long(longest)
    assert is_too_long(longest + longest[0])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model/w", "model/w"),
        ("a\\b", "a\\\\b"),
        ("a\x9b31m", "a\\x9b31m"),
        ("a\u2028\u202eb", "a\\u2028\\u202eb"),
        ("a\U000e0001", "a\\U000e0001"),
        ("a\xa0b c", "a\\xa0b c"),
        ("é漢", "é漢"),
    ],
)
def test_a_name_is_displayed_without_what_acts_on_a_terminal(name: str, expected: str) -> None:
    assert display(name) == expected


@given(st.text(), st.text())
def test_names_that_differ_are_displayed_differently(a: str, b: str) -> None:
    assert display(a).isprintable()
    assert (display(a) == display(b)) is (a == b)


def test_a_long_name_is_cut_in_the_middle_for_a_message() -> None:
    shown = shortened("a" * 5000 + "\nb")

    assert len(shown) < 420 and shown.endswith("a\\nb'") and shortened("a") == "'a'"
