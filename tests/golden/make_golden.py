"""Wrote the frozen checkpoints of version 1.0, once: ``python -m tests.golden.make_golden``.

They are never written again: a reader that cannot read them is broken.  What is there already is
left alone, and the program ends with an error.  `expected.json` is made from the states
themselves, not from what a reader says.
"""

from __future__ import annotations

import io
import json
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

import bcpformat
from bcpformat import LocalStore, MemoryStore, PerRank, PerRankValues, WriteOptions
from bcpformat.codec.digest import block_digest
from bcpformat.engine.options import CodecName
from bcpformat.model.manifest import MANIFEST_KEY, ChunkTable, Manifest, PerRankTable, ints
from bcpformat.model.user_types import TorchDevice, TorchDType, TorchSize, UnknownType
from tests.golden.described import described
from tests.rules_state.hostile import objects_of, store_of, with_documents, with_manifest

GOLDEN = Path(__file__).resolve().parent / "1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """One checkpoint to freeze.

    Attributes:
        state: What is written.
        codec: How its blocks are encoded.
        change: What is then made of the checkpoint.
        expected: The state that a reader returns with numpy arrays; None for `state` itself.
    """

    state: Any
    codec: CodecName = "raw"
    change: Callable[[MemoryStore], MemoryStore] = lambda store: store
    expected: Any = None


def raw() -> Golden:
    """Return every data type of at least a byte, arrays of no axes and of no elements."""
    rng = np.random.default_rng(1)
    names = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
    types = [np.dtype(code) for code in "?bhiqBHIQefdFD"]
    types += [np.dtype(getattr(ml_dtypes, name)) for name in [*names, "float8_e8m0fnu"]]
    state: dict[str, Any] = {}
    for dtype in types:
        data = bytearray(rng.bytes(15 * dtype.itemsize))
        if dtype == np.bool_:
            data = bytearray(byte & 1 for byte in data)
        state[dtype.name] = np.frombuffer(data, dtype).reshape(3, 5)
    state["no axes"] = np.array(7, np.int16)
    state["no elements"] = np.zeros((2, 0, 3), np.float32)
    state["nan"] = np.array([0x7F800001, 0xFFC12345, 0x80000000], np.uint32).view(np.float32)
    return Golden(state=state)


def compressible() -> dict[str, Any]:
    """Return arrays that get shorter, some with a block that does not."""
    rng = np.random.default_rng(2)
    return {
        "zeros": np.zeros(70_000, np.float64),
        "steps": np.arange(3000, dtype=np.int32),
        "weights": (rng.standard_normal(4000) * 0.02).astype(ml_dtypes.bfloat16),
        "noise": np.frombuffer(rng.bytes(600), np.uint8),
        "half": np.linspace(0, 1, 2000, dtype=np.float16),
    }


def subbyte() -> Golden:
    """Return every data type of less than a byte, with lengths that leave unused bits."""
    sizes = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}
    sizes |= {"float6_e2m3fn": 6, "float6_e3m2fn": 6}
    state = {}
    for name, bits in sizes.items():
        values = (np.arange(21) * 5 % 2**bits).astype(np.uint8)
        if name in ("int2", "int4"):
            values = ((values << (8 - bits)).view(np.int8) >> (8 - bits)).view(np.uint8)
        state[name] = values.view(getattr(ml_dtypes, name)).reshape(3, 7)
    return Golden(state=state)


def kinds() -> Golden:
    """Return every kind of node but objects and per-rank values, and every kind of key."""
    ordered: Any = OrderedDict(b=1, a=np.arange(2))
    ordered._metadata = OrderedDict({"": {"version": 1}})
    nan = struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0]
    state = {
        "none": None,
        "bools": [True, False],
        "ints": [0, 2**53 - 1, 2**53, -1, -(2**70), 10**50],
        "floats": [0.0, -0.0, 1.5, float("inf"), nan],
        "complex": complex(1.5, -0.0),
        "text": ["", "plain", "é\u202e\U0001f600", "\x00"],
        "bytes": [b"", b"\x00\xff", bytearray(b"abc"), io.BytesIO(b"whole")],
        "ordered": ordered,
        "no metadata": OrderedDict(),
        "containers": [{}, [], (), (1, (2,)), set(), frozenset({1}), {"x", b"x", None, (1, "y")}],
        "torch": [TorchSize((2, 3)), TorchDType("bfloat16"), TorchDevice("cuda:0")],
        "scalars": [np.float32(1.5), np.int8(-3), np.bool_(True), ml_dtypes.bfloat16(2.5)],
        "user": UnknownType("com.example.plan", {"steps": [1, np.arange(3)]}),
        "keys": {"": 1, 0: 2, -5: 3, True: 4, ("a", (1, False)): 5, "a/b": 6, "50%": 7, "0": 8},
        "a/b": {"..": np.arange(3), "\n": np.arange(4)},
    }
    return Golden(state=state)


def leaves() -> Golden:
    """Return torch tensors with all their flags; a reader without torch shows arrays."""
    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    state = {
        "plain": weight,
        "parameter": torch.nn.Parameter(weight + 1),
        "frozen": torch.nn.Parameter(weight + 2, requires_grad=False),
        "leaf": (weight + 3).requires_grad_(),
        "array": np.arange(3),
    }
    return Golden(state=state, expected={k: np.array(_array(v)) for k, v in state.items()})


def _array(value: Any) -> Any:
    return value.detach().numpy() if isinstance(value, torch.Tensor) else value


def objects() -> Golden:
    """Return values above 64 KiB of every kind that an object stands for."""
    data = b"0123456789abcdef" * 5000
    state = {
        "str": "é" * 40_000,
        "bytes": data,
        "bytearray": bytearray(data[1:]),
        "file": io.BytesIO(data[2:]),
        "int": -int.from_bytes(data[3:], "little"),
        "small": b"not one",
    }
    return Golden(state=state, codec="zstd")


def per_rank() -> Golden:
    """Return one value of each of two ranks, a tensor among them."""
    values = {0: {"seed": 7, "rng": np.arange(3, dtype=np.uint8)}, 5: [None, 2.5]}

    def change(store: MemoryStore) -> MemoryStore:
        def join(m: Manifest) -> Manifest:
            table = m.per_rank
            rows = PerRankTable(
                path=ints([0, 0]),
                rank=ints([0, 5]),
                run=table.run,
                offset=table.offset,
                nbytes=table.nbytes,
            )
            return replace(m, per_rank=rows, state=[6, "value", [19, 0]])

        return with_manifest(store, join)

    state = {"a": PerRank(values[0]), "b": PerRank(values[5])}
    return Golden(state=state, change=change, expected={"value": PerRankValues(values)})


def aliases() -> Golden:
    """Return a tensor with three names."""
    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    return Golden(state={"embed": w, "head": {"weight": w, "again": [w]}, "other": w.copy()})


def chunks() -> Golden:
    """Return tensors in boxes and flat ranges, as several writers would store them."""
    rng = np.random.default_rng(3)
    pieces = [np.frombuffer(rng.bytes(n * 4), np.float32).copy() for n in (16, 16, 32, 7, 41)]
    boxes = np.empty((4, 16), np.float32)
    boxes[:2, :8], boxes[:2, 8:] = pieces[0].reshape(2, 8), pieces[1].reshape(2, 8)
    boxes[2:] = pieces[2].reshape(2, 16)
    flat = np.concatenate(pieces[3:]).reshape(6, 8)

    def change(store: MemoryStore) -> MemoryStore:
        def cut(m: Manifest) -> Manifest:
            table = ChunkTable(
                run=m.chunks.run,
                offset=m.chunks.offset,
                origin=ints([0, 0, 0, 8, 2, 0, 0, 0, 0, 0]),
                extent=ints([2, 8, 2, 8, 2, 16, 6, 8, 6, 8]),
                start=ints([0, 0, 0, 0, 7]),
                count=ints([16, 16, 32, 7, 41]),
            )
            tensors = replace(
                m.tensors,
                names=["boxes", "flat"],
                dtypes=["float32"] * 2,
                shapes=[(4, 16), (6, 8)],
                chunks=ints([3, 2]),
            )
            return replace(m, tensors=tensors, chunks=table, state=[6, "boxes", 0, "flat", 1])

        return with_manifest(store, cut)

    state = {str(n): piece for n, piece in enumerate(pieces)}
    return Golden(state=state, change=change, expected={"boxes": boxes, "flat": flat})


def newer_minor() -> Golden:
    """Return a checkpoint of version 1.3 with keys and a section that 1.0 does not have."""

    def change(store: MemoryStore) -> MemoryStore:
        def extend(root: dict[str, Any], sections: dict[str, Any]) -> None:
            root["horizon"] = {"any": [1, True, b"x"]}
            root["ext"] = {"com.example.thing": 1}
            sections["files"][0]["tier"] = "cold"
            sections["tensors"][0]["mean"] = "0.5"

        return with_documents(store, extend, minor=3)

    return Golden(state={"w": np.arange(5, dtype=np.float32), "n": 1}, change=change)


def major_2() -> Golden:
    """Return a checkpoint that says it is of version 2.0."""

    def change(store: MemoryStore) -> MemoryStore:
        found = objects_of(store)
        manifest = bytearray(found[MANIFEST_KEY])
        manifest[8:10] = struct.pack("<H", 2)
        manifest[56:64] = struct.pack("<Q", block_digest(bytes(manifest[:56])))
        return store_of({**found, MANIFEST_KEY: bytes(manifest)})

    return Golden(state={"w": np.arange(5, dtype=np.float32)}, change=change)


CHECKPOINTS: dict[str, Callable[[], Golden]] = {
    "raw": raw,
    "zstd": lambda: Golden(state=compressible(), codec="zstd"),
    "planes-zstd": lambda: Golden(state=compressible(), codec="planes-zstd"),
    "sub-byte": subbyte,
    "state": kinds,
    "leaves": leaves,
    "objects": objects,
    "per-rank": per_rank,
    "aliases": aliases,
    "chunks": chunks,
    "newer-minor": newer_minor,
    "major-2": major_2,
}


def freeze(name: str, golden: Golden) -> None:
    """Write one checkpoint and what it holds; nothing is ever overwritten."""
    directory = GOLDEN / name
    store = MemoryStore()
    options = WriteOptions(codec=golden.codec, user={"golden": name})
    bcpformat.write(store, golden.state, step=10, options=options)
    directory.mkdir(parents=True)
    target = LocalStore(directory)
    for key, data in objects_of(golden.change(store)).items():
        target.put_if_absent(key, data)
    expected = golden.state if golden.expected is None else golden.expected
    document = {"step": 10, "user": {"golden": name}, "state": described(expected)}
    text = json.dumps(document, indent=1, ensure_ascii=True)
    with (directory / "expected.json").open("x", encoding="ascii") as file:
        file.write(text + "\n")


def main() -> int:
    """Freeze what is not there; return 1 if something was."""
    there = [name for name in CHECKPOINTS if (GOLDEN / name).exists()]
    for name, make in CHECKPOINTS.items():
        if name not in there:
            freeze(name, make())
    if there:
        sys.stderr.write(f"frozen, not written again: {', '.join(there)}\n")
    return 1 if there else 0


if __name__ == "__main__":
    sys.exit(main())
