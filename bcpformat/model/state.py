"""The state tree: nested values of a training job as nodes, tensors apart (spec 10, 11, 12).

One walk makes the nodes, names every leaf and finds the aliases.  Types are looked up exactly, in
one table: a subclass means more than its base, and whoever drops that silently loses data, so what
the table does not have is refused with its path (BCP-STA-007).
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from bcpformat.errors import InvalidArgumentError
from bcpformat.model import nodes
from bcpformat.model.dtypes import DType
from bcpformat.model.leaves import LeafAdapter, PerRank, PerRankValues, TensorLeaf, opaque
from bcpformat.model.limits import MAX_INTEGER, OBJECT_THRESHOLD_BYTES
from bcpformat.model.manifest import Node
from bcpformat.model.names import MAX, METADATA, is_plain, join
from bcpformat.model.state_values import (
    NodeEncoder,
    check_enter,
    check_leaf,
    check_name,
    check_nesting,
    complex_node,
    float_node,
    key_node,
    key_segment,
    refuse,
    scalar_types,
    set_node,
    shown,
    str_node,
    type_name,
    utf8,
)
from bcpformat.model.user_types import (
    TorchDevice,
    TorchDType,
    TorchSize,
    TypeRegistry,
    UnknownType,
)

# Any: a value of the type that the function stands for in its table.
_Handler: TypeAlias = Callable[[Any, str, int, list[Node]], None]
"""Appends the node of a value.  Arguments: the value, its name, how deep its array would nest (1 at
the top), and the array to append to."""

_SMALL_CHARACTERS = OBJECT_THRESHOLD_BYTES // 4
"""A str of at most so many characters is below the threshold in any case."""
_SHORT_NAME = MAX // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedState:
    """A state, ready to be saved.

    Attributes:
        root: The node at the top.
        names: Names of the tensors, ascending by their UTF-8 bytes.
        leaves: The tensors, in the order of `names`: the first leaf of each.
        aliases: Row of `names` to the tensor's other names, in state order; rows with some only.
        objects: Names and bytes of the values stored as objects, ascending by name.
        per_rank: Name and document of each per-rank value, by ordinal.
    """

    root: Node
    names: list[str]
    leaves: list[TensorLeaf]
    aliases: dict[int, tuple[str, ...]]
    objects: list[tuple[str, bytes]]
    per_rank: list[tuple[str, Node]]


def encode_state(
    value: object,
    *,
    adapters: Mapping[type, LeafAdapter],
    encoders: Mapping[type, NodeEncoder],
    types: TypeRegistry,
) -> EncodedState:
    """Return a state as nodes, with its tensors, objects and per-rank values apart.

    Args:
        value: The state.
        adapters: Exact type of a tensor to what describes it.
        encoders: Exact type of another library's plain value to the function that makes its node.
        types: Types that users registered.

    Returns:
        The encoded state.  It refers to the tensors, and to the bytes of large values; other
        values are copied.

    Raises:
        InvalidArgumentError: A value has no form (`E_NO_FORM`) or nests too deep (`E_DEPTH`), as
            a container that holds itself does; the message has its path.

    Example:
        >>> encode_state({"lr": [1, True]}, adapters={}, encoders={}, types=TypeRegistry()).root
        [6, 'lr', [8, [2, 1], True]]
    """
    encoder = _Encoder(adapters, encoders, types, inline=False)
    top = encoder.encode(value, "")
    return encoder.finish(top)


class _Encoder:
    """One walk over a state, or over one per-rank value (`inline`)."""

    def __init__(
        self,
        adapters: Mapping[type, LeafAdapter],
        encoders: Mapping[type, NodeEncoder],
        types: TypeRegistry,
        *,
        inline: bool,
    ) -> None:
        self._types = types
        self._is_inline = inline
        self._values = (
            self if inline else _Encoder(adapters, encoders, types, inline=True)
        )  # encodes per-rank values
        self._name = ""  # of the tensor that an adapter describes right now
        self._names: list[str] = []
        self._leaves: list[TensorLeaf] = []
        self._first: dict[Hashable, int] = {}
        self._aliases: dict[int, list[str]] = {}
        self._slots: list[tuple[list[Node], int]] = []  # where tensor indices stand
        self._objects: list[tuple[str, bytes, list[Node]]] = []
        self._per_rank: list[tuple[str, Node]] = []
        self._handlers: dict[type, _Handler] = {
            type(None): _append(lambda _: [nodes.NONE]),
            bool: _append(lambda value: value),
            float: _append(float_node),
            complex: _append(complex_node),
            int: self._int,
            str: self._str,
            bytes: self._bytes,
            bytearray: self._bytearray,
            io.BytesIO: self._bytes_io,
            dict: self._dict,
            OrderedDict: self._ordered_dict,
            list: self._list,
            tuple: self._tuple,
            set: self._set,
            frozenset: self._frozenset,
            PerRank: self._per_rank_value,
            PerRankValues: self._per_rank_values,
            TorchSize: _append(lambda value: [nodes.TORCH_SIZE, *value.shape]),
            TorchDType: _append(lambda value: [nodes.TORCH_DTYPE, value.name]),
            TorchDevice: _append(lambda value: [nodes.TORCH_DEVICE, value.name]),
            UnknownType: self._unknown_type,
        }
        self._handlers |= dict.fromkeys(scalar_types(), self._numpy_scalar)
        self._handlers |= {cls: _append(encode) for cls, encode in encoders.items()}
        tensor = self._inline_handler if inline else self._tensor_handler
        self._handlers |= {cls: tensor(adapter) for cls, adapter in adapters.items()}

    def encode(self, value: object, name: str) -> list[Node]:
        """Return an array of one node, that of a value at the top of its document."""
        top: list[Node] = []
        self._handlers.get(type(value), self._other)(value, name, 1, top)
        return top

    def finish(self, top: list[Node]) -> EncodedState:
        """Put tensors and objects into the order of their names, and return everything."""
        for name, leaf in zip(self._names, self._leaves, strict=True):
            check_leaf(leaf, name)
        names = self._names
        # Code points ascend as UTF-8 bytes do.
        order = sorted(range(len(names)), key=names.__getitem__)
        row = [0] * len(order)
        for position, index in enumerate(order):
            row[index] = position
        for array, position in self._slots:
            array[position] = row[array[position]]  # type: ignore[index]  # an int: see _slots
        self._objects.sort(key=itemgetter(0))
        for position, (_, _, node) in enumerate(self._objects):
            node[2] = position
        return EncodedState(
            root=top[0],
            names=[names[index] for index in order],
            leaves=[self._leaves[index] for index in order],
            aliases={row[index]: tuple(others) for index, others in self._aliases.items()},
            objects=[(name, data) for name, data, _ in self._objects],
            per_rank=self._per_rank,
        )

    # ---- tensors ---------------------------------------------------------------------------

    def _path(self) -> str:
        return self._name

    def _tensor_handler(self, adapter: LeafAdapter) -> _Handler:
        describe, path = adapter.describe, self._path
        names, leaves, first, slots = self._names, self._leaves, self._first, self._slots

        def handle(value: object, name: str, _depth: int, out: list[Node]) -> None:
            self._name = name
            leaf = describe(value, path)
            new = len(leaves)
            key = leaf.alias_key
            index = new if key is None else first.setdefault(key, new)
            if index == new:
                leaves.append(leaf)
                names.append(name)
            else:
                self._aliases.setdefault(index, []).append(name)
            if len(name) > _SHORT_NAME:
                check_name(name)
            if leaf.flags:
                node: list[Node] = [nodes.TENSOR, index, leaf.flags]
                slots.append((node, 1))
                out.append(node)
            else:
                slots.append((out, len(out)))
                out.append(index)

        return handle

    def _inline_handler(self, adapter: LeafAdapter) -> _Handler:
        def handle(value: object, name: str, _depth: int, out: list[Node]) -> None:
            self._name = name
            leaf = adapter.describe(value, self._path)
            check_leaf(leaf, name)
            data = adapter.array(leaf).tobytes()
            out.append([nodes.INLINE, leaf.flags, leaf.dtype, list(leaf.shape), data])

        return handle

    # ---- containers ------------------------------------------------------------------------

    def _dict(self, value: dict[Any, Any], name: str, depth: int, out: list[Node]) -> None:
        node: list[Node] = [nodes.DICT]
        self._items(value, name, depth, node)
        out.append(node)

    def _ordered_dict(
        self, value: OrderedDict[Any, Any], name: str, depth: int, out: list[Node]
    ) -> None:
        check_enter(name, depth)
        node: list[Node] = [nodes.ORDERED_DICT]
        attributes = vars(value)
        if attributes.keys() - {"_metadata"}:
            other = sorted(attributes.keys() - {"_metadata"})[0]
            refuse(name, f"the attribute {other!r} of an OrderedDict has no form in a checkpoint")
        metadata = attributes.get("_metadata")
        handler = self._handlers.get(type(metadata), self._other)
        handler(metadata, join(name, METADATA), depth + 1, node)
        self._items(value, name, depth, node)
        out.append(node)

    def _items(self, value: Mapping[Any, Any], name: str, depth: int, node: list[Node]) -> None:
        check_enter(name, depth)
        prefix = name + "/" if name else ""
        find, other, inner = self._handlers.get, self._other, depth + 1
        for key, item in value.items():
            if type(key) is str and is_plain(key):
                node.append(key)
                child = prefix + key
            else:
                child = prefix + key_segment(key, name)
                node.append(key_node(key, name, depth))
            find(type(item), other)(item, child, inner, node)
        check_nesting(node, name, depth)

    def _list(self, value: list[Any], name: str, depth: int, out: list[Node]) -> None:
        self._sequence([nodes.LIST], value, name, depth, out)

    def _tuple(self, value: tuple[Any, ...], name: str, depth: int, out: list[Node]) -> None:
        self._sequence([nodes.TUPLE], value, name, depth, out)

    def _sequence(
        self, node: list[Node], value: Iterable[Any], name: str, depth: int, out: list[Node]
    ) -> None:
        check_enter(name, depth)
        prefix = name + "/" if name else ""
        find, other, inner = self._handlers.get, self._other, depth + 1
        for position, item in enumerate(value):
            find(type(item), other)(item, f"{prefix}{position}", inner, node)
        check_nesting(node, name, depth)
        out.append(node)

    def _set(self, value: set[Any], name: str, depth: int, out: list[Node]) -> None:
        out.append(set_node(nodes.SET, value, name, depth))

    def _frozenset(self, value: frozenset[Any], name: str, depth: int, out: list[Node]) -> None:
        out.append(set_node(nodes.FROZENSET, value, name, depth))

    # ---- values of any size ----------------------------------------------------------------

    def _str(self, value: str, name: str, _depth: int, out: list[Node]) -> None:
        if len(value) <= _SMALL_CHARACTERS:
            out.append(str_node(value, name))
        elif not self._as_object(nodes.OBJECT_STR, utf8(value, name), name, out):
            out.append(value)

    def _bytes(self, value: bytes, name: str, _depth: int, out: list[Node]) -> None:
        if not self._as_object(nodes.OBJECT_BYTES, value, name, out):
            out.append(value)

    def _bytearray(self, value: bytearray, name: str, _depth: int, out: list[Node]) -> None:
        data = bytes(value)
        if not self._as_object(nodes.OBJECT_BYTEARRAY, data, name, out):
            out.append([nodes.BYTEARRAY, data])

    def _bytes_io(self, value: io.BytesIO, name: str, _depth: int, out: list[Node]) -> None:
        if value.closed:
            refuse(name, "a closed BytesIO has no content")
        data = value.getvalue()
        if not self._as_object(nodes.OBJECT_BYTES_IO, data, name, out):
            out.append([nodes.BYTES_IO, data])

    def _int(self, value: int, name: str, _depth: int, out: list[Node]) -> None:
        if 0 <= value <= MAX_INTEGER:
            out.append([nodes.INT, value])
            return
        data = nodes.int_bytes(value)
        if not self._as_object(nodes.OBJECT_INT, data, name, out):
            out.append([nodes.BIG_INT, data])

    def _as_object(self, kind: int, data: bytes, name: str, out: list[Node]) -> bool:
        """Store a value as an object if it is large, and return whether it is."""
        if len(data) <= OBJECT_THRESHOLD_BYTES or self._is_inline:
            return False
        check_name(name)
        node: list[Node] = [nodes.OBJECT, kind, 0]  # the row is set when all names are known
        self._objects.append((name, data, node))
        out.append(node)
        return True

    # ---- the rest --------------------------------------------------------------------------

    def _numpy_scalar(self, value: np.generic, name: str, _depth: int, out: list[Node]) -> None:
        try:
            dtype = DType.from_numpy(value.dtype)
        except InvalidArgumentError as error:
            refuse(name, f"a scalar of {error.message}")
        data = opaque(np.asarray(value), dtype).tobytes()
        out.append([nodes.NUMPY_SCALAR, dtype.name, data])

    def _per_rank_value(self, value: PerRank, name: str, _depth: int, out: list[Node]) -> None:
        if self._is_inline:
            refuse(name, "a per-rank value within a per-rank value has no form in a checkpoint")
        out.append([nodes.PER_RANK, len(self._per_rank)])
        self._per_rank.append((name, self._values.encode(value.value, name)[0]))

    def _per_rank_values(
        self, value: PerRankValues, name: str, _depth: int, _out: list[Node]
    ) -> None:
        text = f"the values of {len(value)} ranks are not saved by one; pass PerRank(values[rank])"
        refuse(name, text)

    def _unknown_type(self, value: UnknownType, name: str, depth: int, out: list[Node]) -> None:
        self._user(value.name, value.value, name, depth, out)

    def _user(self, type_name: str, value: object, name: str, depth: int, out: list[Node]) -> None:
        check_enter(name, depth)
        node: list[Node] = [nodes.USER, type_name]
        self._handlers.get(type(value), self._other)(value, name, depth + 1, node)
        check_nesting(node, name, depth)
        out.append(node)

    def _other(self, value: object, name: str, depth: int, out: list[Node]) -> None:
        """Append the node of a value whose type the table does not have, or refuse it."""
        cls = type(value)
        user = self._types.by_type(cls)
        if user is None:
            refuse(
                name,
                f"a value of type {type_name(cls)} has no form in a checkpoint; "
                f"{self._way_out(cls)}",
            )
        try:
            plain = user.encode(value)
        except Exception as error:
            error.add_note(f"while {user.name!r} encoded the value at {shown(name)}")
            raise
        self._user(user.name, plain, name, depth, out)

    def _way_out(self, cls: type) -> str:
        register = "name its codec with bcpformat.register_type"
        for base in cls.__mro__[1:]:
            if base in self._handlers:
                return f"make it a {type_name(base)}, or {register}"
        return register


def _append(encode: NodeEncoder) -> _Handler:
    def handle(value: Any, name: str, _depth: int, out: list[Node]) -> None:
        try:
            out.append(encode(value))
        except InvalidArgumentError as error:
            refuse(name, error.message, code=error.code)

    return handle
