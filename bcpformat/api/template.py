"""A template of a read: its leaves by name, and their places."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.model.limits import STATE_DEPTH
from bcpformat.model.names import segment, shortened


@dataclass(slots=True)
class Slot:
    """One leaf of a template and where its value goes back to: `container[key]`.

    Attributes:
        name: Its name in the template.
        value: What is there now.
        container: The dict or list it lies in; for a tuple, the list of which one will be made.
        key: Its key or position there.
    """

    name: str
    value: Any  # Any: whatever the user put there
    container: Any  # Any: a dict or list, by whatever keys
    key: Any


class Template:
    """The leaves of a template, and the tuples to rebuild from what was stored for them.

    Attributes:
        top: The template, alone in a list, so that it has a place too.
        slots: Its leaves, in order: whatever is no dict, list or tuple with something in it.
    """

    def __init__(self, value: object) -> None:
        self.top: list[object] = [value]
        self.slots: list[Slot] = []
        self._tuples: list[tuple[list[object], Any, Any]] = []
        self._depth = 0
        self._collect("", value, self.top, 0)

    def _collect(self, name: str, value: object, container: Any, key: Any) -> None:
        self._depth += 1
        if self._depth > STATE_DEPTH + 1:
            text = f"{shortened(name)}: the template nests deeper than {STATE_DEPTH}; "
            text += "does a container hold itself?"
            raise InvalidArgumentError(text, code=ErrorCode.DEPTH)
        self._collect_value(name, value, container, key)
        self._depth -= 1

    def _collect_value(self, name: str, value: object, container: Any, key: Any) -> None:
        kind = type(value)
        if kind in (dict, OrderedDict) and value:
            assert isinstance(value, dict)
            self._below(name, ((segment(k), k, v) for k, v in value.items()), value)
        elif kind is list and value:
            assert isinstance(value, list)
            self._below(name, ((str(i), i, v) for i, v in enumerate(value)), value)
        elif kind is tuple and value:
            assert isinstance(value, tuple)
            items = list(value)
            self._tuples.append((items, container, key))
            self._below(name, ((str(i), i, v) for i, v in enumerate(items)), items)
        else:
            self.slots.append(Slot(name, value, container, key))

    def _below(self, name: str, items: Iterable[tuple[str, Any, Any]], container: Any) -> None:
        prefix = name + "/" if name else ""
        nested = (dict, list, tuple, OrderedDict)
        append = self.slots.append
        for part, key, value in items:
            if type(value) in nested:
                self._collect(prefix + part, value, container, key)
            else:
                append(Slot(prefix + part, value, container, key))

    def rebuilt(self) -> object:
        """Return the template after its leaves were stored, with new tuples where it has some."""
        for items, container, key in reversed(self._tuples):
            made = tuple(items)
            if any(a is not b for a, b in zip(made, container[key], strict=True)):
                container[key] = made
        return self.top[0]
