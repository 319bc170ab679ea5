"""Nodes of the state tree as values (spec 10).

`decode_state` trusts nothing about a node but that it is a value of the profile.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Never, TypeAlias, TypeVar

from bcpformat.errors import ErrorCode, FormatError, Problem, error_for
from bcpformat.model import keys as rules
from bcpformat.model import nodes
from bcpformat.model.manifest import Node
from bcpformat.model.state_check import check_per_rank_value, check_state
from bcpformat.model.state_walk import Path, prune_state, saved_leaves, state_leaves
from bcpformat.model.user_types import (
    TorchDevice,
    TorchDType,
    TorchSize,
    TypeRegistry,
    UnknownType,
)

__all__ = [
    "check_per_rank_value",
    "check_state",
    "decode_state",
    "prune_state",
    "saved_leaves",
    "state_leaves",
]

# Any: the value of a library the core does not know, made of a tuple of int or a str.
Builder: TypeAlias = Callable[[Any], object]
Inline: TypeAlias = Callable[[int, str, tuple[int, ...], bytes], object]
"""Makes a tensor of its flags, data type, shape and packed elements."""

A = TypeVar("A")
R = TypeVar("R")


def decode_state(
    root: Node,
    *,
    tensor: Callable[[int, int], object],
    read_object: Callable[[int], bytes],
    per_rank: Callable[[int], object],
    builders: Mapping[int, Builder],
    types: TypeRegistry,
    inline: Inline | None = None,
) -> object:
    """Return the value of a node.

    Args:
        root: The node at the top of the state, or of a per-rank value.
        tensor: Returns the tensor of a leaf, by row of `tensors` and flags; called once for each
            leaf, in state order.
        read_object: Returns the bytes of a row of `objects`.
        per_rank: Returns what stands for a per-rank node, by ordinal.
        builders: Kind code 14, 15 or 16 to the function that makes the value of its shape or
            name; where it is absent, or has no such value, a stand-in of `user_types` is returned.
        types: Types that users registered; a value of any other becomes an `UnknownType`.
        inline: Returns a tensor that lies within a per-rank value; None for a state, which has
            none.

    Returns:
        A new value; it shares no container with `root`.

    Raises:
        FormatError: A node has another form than the table gives (`E_STATE`), or nests too deep.

    Example:
        >>> decode_state([6, "lr", [8, [2, 1], True]], tensor=print, read_object=print,
        ...     per_rank=print, builders={}, types=TypeRegistry())
        {'lr': [1, True]}
    """
    return _Decoder(tensor, read_object, per_rank, builders, types, inline).whole(root)


class _Decoder:
    """One walk that makes values."""

    def __init__(
        self,
        tensor: Callable[[int, int], object],
        read_object: Callable[[int], bytes],
        per_rank: Callable[[int], object],
        builders: Mapping[int, Builder],
        types: TypeRegistry,
        inline: Inline | None,
    ) -> None:
        self._tensor = tensor
        self._read_object = read_object
        self._per_rank = per_rank
        self._types = types
        self._inline = inline
        self._path = Path()
        self._arrays: dict[int, Callable[[list[Node]], object]] = {
            **{kind: self._plain(read) for kind, read in nodes.VALUES.items()},
            nodes.TENSOR: self._flagged,
            nodes.DICT: self._dict,
            nodes.ORDERED_DICT: self._ordered_dict,
            nodes.LIST: self._list,
            nodes.TUPLE: lambda node: tuple(self._list(node)),
            nodes.SET: self._set,
            nodes.FROZENSET: lambda node: frozenset(self._set(node)),
            nodes.OBJECT: self._object,
            nodes.PER_RANK: self._per_rank_value,
            nodes.USER: self._user,
            nodes.INLINE: self._inline_tensor,
        }
        for kind, build in builders.items():
            self._arrays[kind] = self._built(build, self._arrays[kind])

    def whole(self, root: Node) -> object:
        """Return the value of the node at the top."""
        self._checked(nodes.check_depth, root)
        return self.value(root)

    def value(self, node: Node) -> object:
        """Return the value of a node."""
        kind = type(node)
        if kind is int:
            return self._tensor(node, 0)  # type: ignore[arg-type]  # an int: looked at
        if kind is list:
            return self._array(node)  # type: ignore[arg-type]  # a list: looked at
        if kind is str or kind is bytes or kind is bool:
            return node
        self._refuse(f"{nodes.describe(node)} is no node")

    def _array(self, node: list[Node]) -> object:
        code = node[0] if node else None
        make = self._arrays.get(code) if type(code) is int else None
        if make is None:
            self._refuse(f"{nodes.describe(node)} is no node")
        return make(node)

    # ---- containers ------------------------------------------------------------------------

    def _dict(self, node: list[Node]) -> dict[Any, object]:
        out: dict[Any, object] = {}
        self._items(node, 1, out)
        return out

    def _ordered_dict(self, node: list[Node]) -> OrderedDict[Any, object]:
        out: OrderedDict[Any, object] = OrderedDict()
        if len(node) < 2:
            self._refuse(f"expected [7, metadata, key, value, ...], found {nodes.describe(node)}")
        if node[1] != [nodes.NONE]:
            self._path.keys.append(None)
            vars(out)["_metadata"] = self.value(node[1])
            self._path.leave()
        self._items(node, 2, out)
        return out

    def _items(self, node: list[Node], start: int, out: dict[Any, object]) -> None:
        if (len(node) - start) % 2:
            self._refuse("a dict has a key without a value")
        keys = node[start::2]
        self._checked(rules.check_keys, keys)
        others = {at: nodes.read_key(key) for at, key in enumerate(keys) if type(key) is not str}
        self._checked(rules.check_hashes, others.values())
        here = self._path.keys
        here.append(None)
        value, tensor = self.value, self._tensor
        for at, (key, child) in enumerate(zip(keys, node[start + 1 :: 2], strict=True)):
            here[-1] = key
            real = key if type(key) is str else others[at]
            out[real] = tensor(child, 0) if type(child) is int else value(child)
        self._path.leave()

    def _list(self, node: list[Node]) -> list[object]:
        here = self._path.keys
        here.append(0)
        out = []
        for position, child in enumerate(node[1:]):
            here[-1] = position
            out.append(self.value(child))
        self._path.leave()
        return out

    def _set(self, node: list[Node]) -> set[object]:
        self._checked(rules.check_elements, node[1:])
        return self._elements(node)

    def _elements(self, node: list[Node]) -> set[object]:
        elements = [self._element(child) for child in node[1:]]
        self._checked(rules.check_hashes, elements)
        return set(elements)

    def _element(self, node: Node) -> object:
        """Return an element of a set that was checked as a whole."""
        if type(node) is list and node[0] == nodes.TUPLE:
            return tuple(self._element(child) for child in node[1:])
        if type(node) is list and node[0] == nodes.FROZENSET:
            return frozenset(self._elements(node))
        return self.value(node)

    # ---- values that come from elsewhere ---------------------------------------------------

    def _flagged(self, node: list[Node]) -> object:
        index, flags = self._checked(nodes.read_tensor, node)
        return self._tensor(index, flags)

    def _object(self, node: list[Node]) -> object:
        kind, row = self._checked(nodes.read_object, node)
        data = self._read_object(row)
        match kind:
            case nodes.OBJECT_STR:
                try:
                    return data.decode()
                except UnicodeDecodeError as error:
                    self._refuse(f"object {row} is not UTF-8: {error.reason} at {error.start}")
            case nodes.OBJECT_BYTES:
                return data
            case nodes.OBJECT_BYTEARRAY:
                return bytearray(data)
            case nodes.OBJECT_BYTES_IO:
                return io.BytesIO(data)
            case _:
                return self._checked(nodes.big_int, data)

    def _per_rank_value(self, node: list[Node]) -> object:
        return self._per_rank(self._checked(nodes.read_per_rank, node))

    def _inline_tensor(self, node: list[Node]) -> object:
        if self._inline is None:
            self._refuse("an inline tensor outside of a per-rank value")
        return self._inline(*self._checked(nodes.read_inline, node))

    def _user(self, node: list[Node]) -> object:
        name, inner = self._checked(nodes.read_user, node)
        plain = self.value(inner)
        user = self._types.by_name(name)
        if user is None:
            return UnknownType(name, plain)
        try:
            return user.decode(plain)
        except Exception as error:
            error.add_note(f"while {name!r} decoded the value at {self._path.where()}")
            raise

    def _built(
        self, build: Builder, stand_in: Callable[[list[Node]], object]
    ) -> Callable[[list[Node]], object]:
        def make(node: list[Node]) -> object:
            missing = stand_in(node)
            assert isinstance(missing, TorchSize | TorchDType | TorchDevice)
            try:
                return build(missing.shape if isinstance(missing, TorchSize) else missing.name)
            except (ValueError, TypeError, RuntimeError):
                return missing  # BCP-STA-008: the library has no such data type or device

        return make

    # ---- refusals --------------------------------------------------------------------------

    def _plain(self, read: Callable[[list[Node]], object]) -> Callable[[list[Node]], object]:
        return lambda node: self._checked(read, node)

    def _checked(self, read: Callable[[A], R], argument: A) -> R:
        """Return what a function of `nodes` returns; its error gets the place."""
        try:
            return read(argument)
        except FormatError as error:
            self._refuse(error.message, code=error.code)

    def _refuse(self, message: str, *, code: ErrorCode = ErrorCode.STATE) -> Never:
        raise error_for(Problem(code=code, where=self._path.where(), message=message))
