"""Types that a user registered, and stand-ins for values whose type this process lacks.

A file names a type, but nothing is ever imported or called by a name in a file (BCP-STA-008): a
name is looked up here, and a value of a type that is not here is shown in its parts.
"""

from __future__ import annotations

import io
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from bcpformat.errors import InvalidArgumentError
from bcpformat.model.leaves import PerRank, PerRankValues

T = TypeVar("T")

_TORCH_FORMS = frozenset(
    ("torch", name) for name in ("Tensor", "Parameter", "Size", "dtype", "device")
)
"""Module and name of types that `bcpformat.torch` saves; this layer does not know torch."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class TorchSize:
    """A ``torch.Size``, read without torch.

    Attributes:
        shape: Its elements.
    """

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TorchDType:
    """A ``torch.dtype``, read without torch or with one that lacks it.

    Attributes:
        name: Its torch name without the prefix.

    Example:
        >>> TorchDType("bfloat16").name
        'bfloat16'
    """

    name: str


@dataclass(frozen=True, slots=True)
class TorchDevice:
    """A ``torch.device``, read without torch or with one that lacks it.

    Attributes:
        name: As torch prints it.
    """

    name: str


@dataclass(frozen=True, slots=True)
class UnknownType:
    """A value of a registered type, read where nobody has registered it; it is saved unchanged.

    Attributes:
        name: The name the type was registered under.
        value: What its encoder made of the value.
    """

    name: str
    value: Any  # Any: whatever the user's encoder returned


@dataclass(frozen=True, slots=True)
class UserType:
    """How values of one registered type are saved.

    Attributes:
        cls: The type; its subclasses are other types.
        name: What stands for it in a checkpoint.
        encode: Returns a value that has a form, such as a dict of its fields.
        decode: Returns the value again.
    """

    cls: type
    name: str
    encode: Callable[[Any], object]  # Any: a value of `cls`
    decode: Callable[[Any], object]  # Any: whatever `encode` returned


class TypeRegistry:
    """Types that users registered, by type and by name.

    Thread safety: every method may be called from any thread.

    Example:
        >>> types = TypeRegistry()
        >>> types.register_type(slice, name="slice",
        ...     encode=lambda s: (s.start, s.stop, s.step), decode=lambda parts: slice(*parts))
        >>> types.by_name("slice").decode((0, 4, None))
        slice(0, 4, None)
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_type: dict[type, UserType] = {}
        self._by_name: dict[str, UserType] = {}

    def register_type(
        self,
        cls: type[T],
        *,
        name: str,
        encode: Callable[[T], object],
        decode: Callable[[Any], T],  # Any: whatever `encode` returned
    ) -> None:
        """Make values of a type savable under a name.

        To register the same again has no effect.

        Args:
            cls: The type; only values of exactly this type are taken.
            name: Lower-case letters, digits, ``.``, ``_`` and ``-``, at most 128, beginning with a
                letter or digit.  It stands in checkpoints: do not change it.
            encode: Returns a value that has a form: nested dicts, lists, tensors, numbers and so
                on.  It must not change the value.
            decode: Returns the value that `encode` was given.

        Raises:
            InvalidArgumentError: The name is of another form, the type has a form of its own, or
                the type or the name is registered in another way.
        """
        if not isinstance(cls, type):
            raise InvalidArgumentError(f"a type is registered, got {cls!r:.100}")
        if not _NAME.fullmatch(name):
            raise InvalidArgumentError(
                f"name must match [a-z0-9][a-z0-9._-]{{0,127}}, got {name!r:.200}"
            )
        if cls in _OWN_FORM or (cls.__module__.partition(".")[0], cls.__name__) in _TORCH_FORMS:
            raise InvalidArgumentError(f"{cls.__qualname__} has a form of its own")
        made = UserType(cls=cls, name=name, encode=encode, decode=decode)
        with self._lock:
            for known in (self._by_type.get(cls), self._by_name.get(name)):
                if known is not None and known != made:
                    raise InvalidArgumentError(
                        f"{cls.__qualname__} cannot be registered as {name!r}: "
                        f"{known.cls.__qualname__} is registered as {known.name!r} already"
                    )
            self._by_type[cls] = made
            self._by_name[name] = made

    def by_type(self, cls: type) -> UserType | None:
        """Return how values of exactly that type are saved, None if it is not registered."""
        return self._by_type.get(cls)

    def by_name(self, name: str) -> UserType | None:
        """Return the type registered under that name, None if there is none."""
        return self._by_name.get(name)


def default_types() -> TypeRegistry:
    """Return the registry of this process, which ``bcpformat.register_type`` fills."""
    return _DEFAULT


def register_type(
    cls: type[T],
    *,
    name: str,
    encode: Callable[[T], object],
    decode: Callable[[Any], T],  # Any: whatever `encode` returned
) -> None:
    """Make values of a type savable in this process (see `TypeRegistry.register_type`).

    Call it before saving and before reading; a value read without it is an `UnknownType`.

    Raises:
        InvalidArgumentError: See `TypeRegistry.register_type`.
    """
    _DEFAULT.register_type(cls, name=name, encode=encode, decode=decode)


_DEFAULT = TypeRegistry()

_OWN_FORM: frozenset[type] = frozenset(
    {
        *(type(None), bool, int, float, complex, str, bytes, bytearray, io.BytesIO),
        *(dict, OrderedDict, list, tuple, set, frozenset, np.ndarray, np.memmap),
        *(PerRank, PerRankValues, TorchSize, TorchDType, TorchDevice, UnknownType),
    }
)
