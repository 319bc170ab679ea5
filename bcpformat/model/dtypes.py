"""Data types: the table of ``spec/registry/dtypes.toml`` and packing of sub-byte elements.

Elements are opaque bits.  A data type says how wide they are, how a codec may take them
apart, and which numpy type shows them; nothing here converts a value.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bcpformat.errors import ErrorCode, InvalidArgumentError, UnsupportedError

Kind = Literal["bool", "int", "uint", "float", "complex"]

# Any: the scalar type of a numpy dtype is known only at run time, and never looked at.
NumpyDType = np.dtype[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DType:
    """One data type of the registry (spec 8.1).

    Attributes:
        name: The registry's name, which is that of ml_dtypes.
        bits: Bits of one element.
        item: The codec's word in bytes: the size of an element, of the component of a complex
            element, or 1 for a sub-byte element.
        feature: The feature a checkpoint with this type must require, if any.
        kind: What the bits mean, for display and for casts.
        opaque: The numpy type of the same width for copies that keep every bit.
        is_extension: Whether `numpy` is a type of ml_dtypes.

    Example:
        >>> DType.named("bfloat16").nbytes_of(3)
        6
    """

    name: str
    bits: int
    item: int = field(compare=False)
    feature: str | None = field(compare=False)
    kind: Kind = field(compare=False)
    opaque: NumpyDType = field(compare=False)
    is_extension: bool = field(default=False, compare=False)

    @property
    def numpy(self) -> NumpyDType:
        """The little-endian numpy type of an array of such elements.

        A sub-byte element takes one byte there.  ``complex32`` is an unstructured ``V4``, as
        numpy has no such type: two float16, real then imaginary.
        """
        return _numpy_type(self.name)

    @staticmethod
    def named(name: str) -> DType:
        """Return the data type of that name in the registry.

        Raises:
            UnsupportedError: The registry has no such name (`E_DTYPE`).
        """
        found = DTYPES.get(name)
        if found is None:
            raise UnsupportedError(
                f"dtype {name!r} is not in the registry{_hint(name)}", code=ErrorCode.DTYPE
            )
        return found

    @staticmethod
    def from_numpy(dtype: NumpyDType) -> DType:
        """Return the data type of the elements of a numpy array of type ``dtype``.

        Args:
            dtype: Of either byte order; the caller swaps the elements if it is big-endian.
                An unstructured ``V4`` is taken as ``complex32``.

        Raises:
            InvalidArgumentError: The registry has no type for it (`E_NO_FORM`): objects, text,
                dates, structures, extended precision.
        """
        found = _by_numpy(with_extensions="ml_dtypes" in sys.modules).get(dtype)
        if found is None:
            raise InvalidArgumentError(
                f"numpy dtype {str(dtype)!r} has no form in a checkpoint",
                code=ErrorCode.NO_FORM,
            )
        return found

    def nbytes_of(self, numel: int) -> int:
        """Return the bytes of ``numel`` elements as one chunk (BCP-DTY-004)."""
        return (numel * self.bits + 7) // 8


_CODES = {"complex32": "V4"}
"""Name to numpy code where numpy does not know the name."""


@cache
def _numpy_type(name: str) -> NumpyDType:
    """Return the numpy type of a data type.

    ml_dtypes is imported for the first type of its own: that takes longer than all the rest.
    """
    if DTYPES[name].is_extension:
        import ml_dtypes

        made: NumpyDType = np.dtype(getattr(ml_dtypes, name))
        return made
    return np.dtype("<" + np.dtype(_CODES.get(name, name)).str[1:])


@cache
def _by_numpy(*, with_extensions: bool) -> dict[NumpyDType, DType]:
    """Return numpy type to data type; an array can have a type of ml_dtypes once that is loaded."""
    found: dict[NumpyDType, DType] = {}
    for dtype in DTYPES.values():
        if with_extensions or not dtype.is_extension:
            found[dtype.numpy] = found[dtype.numpy.newbyteorder(">")] = dtype
    if with_extensions:
        import ml_dtypes

        if hasattr(ml_dtypes, "complex32"):  # older releases lack it
            found[np.dtype(ml_dtypes.complex32)] = DTYPES["complex32"]
    return found


def _plain(name: str, kind: Kind, code: str) -> DType:
    nbytes = np.dtype(code).itemsize
    return DType(
        name=name,
        bits=nbytes * 8,
        item=nbytes,
        feature=None,
        kind=kind,
        opaque=np.dtype(f"<u{nbytes}"),
    )


def _complex(name: str, nbytes: int, opaque_code: str) -> DType:
    return DType(
        name=name,
        bits=nbytes * 8,
        item=nbytes // 2,
        feature=None,
        kind="complex",
        opaque=np.dtype(opaque_code),
    )


def _exotic(name: str, nbytes: int) -> DType:
    return DType(
        name=name,
        bits=nbytes * 8,
        item=nbytes,
        feature=None,
        kind="float",
        opaque=np.dtype(f"<u{nbytes}"),
        is_extension=True,
    )


def _subbyte(name: str, kind: Kind, bits: int) -> DType:
    return DType(
        name=name,
        bits=bits,
        item=1,
        feature="subbyte",
        kind=kind,
        opaque=np.dtype("u1"),
        is_extension=True,
    )


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        _plain("bool", "bool", "?"),
        _plain("int8", "int", "i1"),
        _plain("int16", "int", "i2"),
        _plain("int32", "int", "i4"),
        _plain("int64", "int", "i8"),
        _plain("uint8", "uint", "u1"),
        _plain("uint16", "uint", "u2"),
        _plain("uint32", "uint", "u4"),
        _plain("uint64", "uint", "u8"),
        _plain("float16", "float", "f2"),
        _plain("float32", "float", "f4"),
        _plain("float64", "float", "f8"),
        _exotic("bfloat16", 2),
        _exotic("float8_e4m3fn", 1),
        _exotic("float8_e5m2", 1),
        _exotic("float8_e4m3fnuz", 1),
        _exotic("float8_e5m2fnuz", 1),
        _exotic("float8_e8m0fnu", 1),
        _complex("complex32", 4, "<u4"),
        _complex("complex64", 8, "<u8"),
        _complex("complex128", 16, "V16"),
        _subbyte("int2", "int", 2),
        _subbyte("uint2", "uint", 2),
        _subbyte("int4", "int", 4),
        _subbyte("uint4", "uint", 4),
        _subbyte("float4_e2m1fn", "float", 4),
        _subbyte("float6_e2m3fn", "float", 6),
        _subbyte("float6_e3m2fn", "float", 6),
    )
}
"""All data types by name, in the order of the registry."""

_OTHER_NAMES = {
    "bf16": "bfloat16",
    "half": "float16",
    "fp16": "float16",
    "f16": "float16",
    "float": "float32",
    "fp32": "float32",
    "f32": "float32",
    "double": "float64",
    "fp64": "float64",
    "f64": "float64",
    "long": "int64",
    "i64": "int64",
    "int": "int32",
    "i32": "int32",
    "short": "int16",
    "byte": "uint8",
    "u8": "uint8",
    "bool_": "bool",
    "boolean": "bool",
    "chalf": "complex32",
    "cfloat": "complex64",
    "cdouble": "complex128",
    "fp8": "float8_e4m3fn",
    "f8_e4m3": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
    "f8_e8m0": "float8_e8m0fnu",
    "fp4": "float4_e2m1fn",
    "f4": "float4_e2m1fn",
    "float4_e2m1fn_x2": "float4_e2m1fn",
}
"""Names of other projects, to suggest the registry's; none of them is accepted."""


def _hint(name: str) -> str:
    import difflib  # for an error only

    folded = name.lower().removeprefix("torch.")
    near = [_OTHER_NAMES[folded]] if folded in _OTHER_NAMES else []
    near += difflib.get_close_matches(folded, DTYPES, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def dtype_from_name(name: str) -> DType:
    """Return the data type of that name, as `DType.named` does."""
    return DType.named(name)


def pack_subbyte(values: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Return sub-byte elements packed into one bit stream (BCP-DTY-003).

    Args:
        values: One element per byte, in its low bits; higher bits are dropped.  Any shape,
            taken in row-major order.
        bits: 2, 4 or 6.

    Returns:
        A new array of ``ceil(n * bits / 8)`` bytes: least significant bit first, unused high
        bits of the last byte zero.

    Raises:
        InvalidArgumentError: ``bits`` is none of these.

    Example:
        >>> pack_subbyte(np.array([1, 2, 3], np.uint8), 4).tolist()
        [33, 3]
    """
    per_word, word_bytes = _word(bits)
    flat = values.reshape(-1)
    words = np.zeros(-(-flat.size // per_word), np.dtype("<u4"))
    for lane in range(per_word):
        elements = flat[lane::per_word]
        words[: elements.size] |= (elements & ((1 << bits) - 1)).astype(np.uint32) << (bits * lane)
    stream = np.ascontiguousarray(words.view(np.uint8).reshape(-1, 4)[:, :word_bytes]).reshape(-1)
    return stream[: (flat.size * bits + 7) // 8]


def unpack_subbyte(packed: npt.NDArray[np.uint8], bits: int, numel: int) -> npt.NDArray[np.uint8]:
    """Return the elements of a bit stream, the reverse of `pack_subbyte`.

    Args:
        packed: Shape `(ceil(numel * bits / 8),)`.  Unused high bits are not looked at.
        bits: 2, 4 or 6.
        numel: Elements, at least 0.

    Returns:
        A new array of shape `(numel,)`: one element per byte in its low bits, the others zero,
        which is how ml_dtypes holds it.

    Raises:
        InvalidArgumentError: ``bits`` is none of these, or ``packed`` has another length.

    Example:
        >>> unpack_subbyte(np.array([33, 3], np.uint8), 4, 3).tolist()
        [1, 2, 3]
    """
    per_word, word_bytes = _word(bits)
    expected = (numel * bits + 7) // 8
    if packed.size != expected:
        raise InvalidArgumentError(
            f"{numel} elements of {bits} bits take {expected} bytes, got {packed.size}"
        )
    words = np.zeros(-(-numel // per_word), np.uint32)
    for lane in range(word_bytes):
        octets = packed[lane::word_bytes]
        words[: octets.size] |= octets.astype(np.uint32) << (8 * lane)
    out = np.empty((words.size, per_word), np.uint8)
    for lane in range(per_word):
        out[:, lane] = (words >> (bits * lane)) & ((1 << bits) - 1)
    return out.reshape(-1)[:numel]


def _word(bits: int) -> tuple[int, int]:
    """Return how many elements of ``bits`` fill how many whole bytes."""
    match bits:
        case 2 | 4:
            return 8 // bits, 1
        case 6:
            return 4, 3
        case _:
            raise InvalidArgumentError(f"bits must be 2, 4 or 6, got {bits}")
