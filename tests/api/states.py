"""Random states, and an equality that is as strict as the format's promise."""

from __future__ import annotations

import io
import struct
from collections import OrderedDict

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

import bcpformat

NUMPY_DTYPES = [
    *(np.dtype(c) for c in "?bhiqBHIQefdFD"),
    *(
        np.dtype(getattr(ml_dtypes, name))
        for name in (
            "bfloat16",
            "float8_e4m3fn",
            "float8_e5m2",
            "float8_e4m3fnuz",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
        )
    ),
]
SUBBYTE = {
    "int2": 2,
    "uint2": 2,
    "int4": 4,
    "uint4": 4,
    "float4_e2m1fn": 4,
    "float6_e2m3fn": 6,
    "float6_e3m2fn": 6,
}

shapes = st.lists(st.integers(0, 7), max_size=4).map(tuple)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Arrays of any data type, any bits, and many kinds of strides."""
    shape = draw(shapes)
    count = int(np.prod(shape, dtype=np.int64))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    if draw(st.integers(0, 4)) == 0:
        name = draw(st.sampled_from(sorted(SUBBYTE)))
        bits = rng.integers(0, 2 ** SUBBYTE[name], count, dtype=np.uint8)
        return bits.view(getattr(ml_dtypes, name)).reshape(shape)
    dtype = draw(st.sampled_from(NUMPY_DTYPES))
    if dtype == np.bool_:
        return rng.integers(0, 2, count).astype(bool).reshape(shape)
    array = rng.bytes(count * dtype.itemsize)
    value = np.frombuffer(bytearray(array), dtype=dtype).reshape(shape)
    kind = draw(st.integers(0, 4))
    if kind == 1:
        value = value.T
    elif kind == 2 and shape and shape[0]:
        value = value[::-1]
    elif kind == 3 and shape:
        value = value[..., ::2]
    elif kind == 4 and value.dtype.isbuiltin == 1:
        value = value.astype(value.dtype.newbyteorder(">"))
    return value


keys = st.recursive(
    st.text(max_size=8).filter(lambda s: s.isascii() or True)
    | st.integers(-(2**70), 2**70)
    | st.booleans(),
    lambda inner: st.lists(inner, max_size=2).map(tuple),
    max_leaves=3,
)


def _large(kind: str | bytes | int) -> str | bytes | int:
    """A value above 64 KiB, which is stored as an object."""
    return 1 << 8 * 70_000 if isinstance(kind, int) else kind * 70_000


floats = st.integers(0, 2**64 - 1).map(lambda n: struct.unpack("<d", struct.pack("<Q", n))[0])
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | floats
    | st.complex_numbers()
    | st.text(max_size=10)
    | st.binary(max_size=10)
    | st.binary(max_size=10).map(bytearray)
    | st.binary(max_size=10).map(io.BytesIO)
    | st.sampled_from([np.float32(1.5), np.int8(-3), np.bool_(True), ml_dtypes.bfloat16(2.5)])
    | st.frozensets(st.integers(0, 9), max_size=3)
    | st.sets(st.text(max_size=3), max_size=3)
    | st.sampled_from(["x", b"y", 1]).map(_large)
    | st.integers(0, 5).map(bcpformat.PerRank)
)


def _ordered(items: dict[object, object]) -> OrderedDict[object, object]:
    made = OrderedDict(items)
    made._metadata = OrderedDict({"": {"version": 1}})  # type: ignore[attr-defined]
    return made


states = st.recursive(
    plain | arrays(),
    lambda inner: (
        st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=3).map(_ordered)
        | st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
    ),
    max_leaves=12,
)


def same(a: object, b: object) -> bool:
    """Return whether a state came back as it was: types, order, keys and every bit."""
    if isinstance(a, bcpformat.PerRank):
        return isinstance(b, bcpformat.PerRankValues) and list(b) == [0] and same(a.value, b[0])
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and a.dtype.newbyteorder("=") == b.dtype
            and a.shape == b.shape
            and a.astype(b.dtype).tobytes() == b.tobytes()
            if a.dtype.byteorder == ">"
            else isinstance(b, np.ndarray)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.tobytes() == b.tobytes()
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        assert isinstance(b, dict)
        pairs = zip(a.items(), b.items(), strict=False)
        return (
            len(a) == len(b)
            and all(same(k, m) and same(v, w) for (k, v), (m, w) in pairs)
            and same(getattr(a, "_metadata", None), getattr(b, "_metadata", None))
        )
    if isinstance(a, (list, tuple)):
        assert isinstance(b, (list, tuple))
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, io.BytesIO):
        assert isinstance(b, io.BytesIO)
        return a.getvalue() == b.getvalue()
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, complex):
        assert isinstance(b, complex)
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, np.generic):
        return a.tobytes() == b.tobytes()  # type: ignore[attr-defined]
    return bool(a == b)
