"""Values as JSON, so that what a frozen checkpoint holds can be read by a person and compared."""

from __future__ import annotations

import hashlib
import io
import struct
from collections import OrderedDict
from typing import Any

import numpy as np

from bcpformat import PerRankValues
from bcpformat.model.dtypes import DType
from bcpformat.model.user_types import TorchDevice, TorchDType, TorchSize, UnknownType

SHORT = 40


def tensor(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return data type, shape and the SHA-256 of the elements in row-major order.

    Elements of less than a byte count as one byte each, their upper bits zero.
    """
    dtype = DType.from_numpy(array.dtype)
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if dtype.bits < 8:
        data = data & ((1 << dtype.bits) - 1)
    digest = hashlib.sha256(data.tobytes()).hexdigest()
    return {"dtype": dtype.name, "shape": list(array.shape), "sha256": digest}


def described(value: Any) -> Any:  # noqa: PLR0912  # one case for each type
    """Return a value of a state as JSON: a pair of its type's name and its content."""
    cls = type(value).__name__
    match value:
        case None | bool() | str() if len(str(value)) <= SHORT:
            return value
        case str():
            return [cls, len(value), hashlib.sha256(value.encode()).hexdigest()]
        case int():
            text = str(value) if value.bit_length() < 2000 else ""
            size = value.bit_length() // 8 + 1
            data = value.to_bytes(size, "little", signed=True)
            return [cls, text or hashlib.sha256(data).hexdigest()]
        case np.generic():
            return [cls, value.tobytes().hex()]
        case float():
            return [cls, struct.pack("<d", value).hex()]
        case complex():
            return [cls, struct.pack("<dd", value.real, value.imag).hex()]
        case bytes() | bytearray():
            return [cls, _bytes(bytes(value))]
        case io.BytesIO():
            return [cls, _bytes(value.getvalue())]
        case OrderedDict():
            return [cls, described(getattr(value, "_metadata", None)), _items(value)]
        case dict():
            return [cls, _items(value)]
        case list() | tuple():
            return [cls, [described(item) for item in value]]
        case set() | frozenset():
            return [cls, sorted((described(item) for item in value), key=str)]
        case np.ndarray():
            return ["tensor", tensor(value)]
        case PerRankValues():
            return [cls, {str(rank): described(item) for rank, item in value.items()}]
        case TorchSize():
            return [cls, list(value.shape)]
        case TorchDType() | TorchDevice():
            return [cls, value.name]
        case UnknownType():
            return [cls, value.name, described(value.value)]
    raise TypeError(cls)


def _items(value: dict[Any, Any]) -> list[Any]:
    return [[described(key), described(item)] for key, item in value.items()]


def _bytes(data: bytes) -> Any:
    if len(data) <= SHORT:
        return data.hex()
    return [len(data), hashlib.sha256(data).hexdigest()]
