"""Registration of types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bcpformat.errors import InvalidArgumentError
from bcpformat.model.user_types import TypeRegistry, default_types, register_type


class Point:
    """A type without a form."""


class Other:
    """Another one."""


def encode(value: Any) -> object:
    return vars(value)


def decode(_parts: Any) -> Any:
    return Point()


def test_a_registered_type_is_found_by_type_and_by_name() -> None:
    types = TypeRegistry()
    types.register_type(Point, name="point", encode=encode, decode=decode)

    found = types.by_type(Point)

    assert found is not None and found is types.by_name("point")
    assert (found.cls, found.name, found.encode, found.decode) == (Point, "point", encode, decode)
    assert types.by_type(Other) is None and types.by_name("other") is None


def test_registering_the_same_again_changes_nothing() -> None:
    types = TypeRegistry()
    for _ in range(2):
        types.register_type(Point, name="point", encode=encode, decode=decode)

    assert types.by_type(Point) is not None


@pytest.mark.parametrize(
    "again",
    [
        {"cls": Point, "name": "point", "encode": repr},
        {"cls": Point, "name": "point", "decode": repr},
        {"cls": Point, "name": "other"},
        {"cls": Other, "name": "point"},
    ],
)
def test_a_type_or_name_is_not_registered_in_two_ways(again: dict[str, Any]) -> None:
    types = TypeRegistry()
    types.register_type(Point, name="point", encode=encode, decode=decode)

    with pytest.raises(InvalidArgumentError, match="already"):
        types.register_type(**{"encode": encode, "decode": decode, **again})
    assert types.by_type(Other) is None and types.by_name("other") is None


@pytest.mark.parametrize("name", ["", "Point", "a b", "-a", ".a", "é", "a" * 129, "a\n"])
def test_a_name_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="name must match"):
        TypeRegistry().register_type(Point, name=name, encode=encode, decode=decode)


@pytest.mark.parametrize("name", ["0", "my.project_v2-x", "a" * 128])
def test_a_name_of_the_form_is_taken(name: str) -> None:
    types = TypeRegistry()

    types.register_type(Point, name=name, encode=encode, decode=decode)

    assert types.by_name(name) is not None


@pytest.mark.parametrize("cls", [dict, int, type(None), np.ndarray])
def test_a_type_with_a_form_of_its_own_is_not_registered(cls: type) -> None:
    with pytest.raises(InvalidArgumentError, match="a form of its own"):
        TypeRegistry().register_type(cls, name="a", encode=encode, decode=decode)


def test_what_is_no_type_is_not_registered() -> None:
    with pytest.raises(InvalidArgumentError, match="a type is registered"):
        TypeRegistry().register_type("Point", name="a", encode=encode, decode=decode)  # type: ignore[arg-type]


def test_this_process_has_one_registry() -> None:
    class Local:
        """Nobody else registers this."""

    register_type(Local, name="test.local", encode=encode, decode=decode)

    assert default_types() is default_types()
    assert default_types().by_type(Local) is default_types().by_name("test.local")
