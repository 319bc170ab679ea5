"""Where the elements of a read go, and the proof that all of them arrived."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from threading import Lock

import numpy as np
import numpy.typing as npt

from bcpformat.engine.memory import Bytes, address_of, byte_view, copy
from bcpformat.errors import CoverageError, ErrorCode
from bcpformat.model.dtypes import DType, pack_subbyte, unpack_subbyte
from bcpformat.model.manifest import Ints
from bcpformat.model.region import Box
from bcpformat.plan.resolve import ChunkIndex, Pieces, place_elements


@dataclass(frozen=True, slots=True)
class Destinations:
    """Where the elements of wants go; columns of shape `(wants,)`.

    Attributes:
        address: First byte of a contiguous destination, 0 for one in `strided`.
        nbytes: Bytes of the wanted elements.
        strided: Want to its elements, of the opaque type and the shape of its box.
        owners: Whatever keeps the memory alive.
    """

    address: Ints
    nbytes: Ints
    strided: Mapping[int, npt.NDArray[np.generic]]
    owners: Sequence[object]


@dataclass(frozen=True, slots=True)
class _Target:
    """The destination of a want: its box, its data type, and its elements as an array."""

    box: Box
    dtype: DType
    elements: npt.NDArray[np.generic]


class Sink:
    """Places pieces into destinations, and proves that every byte of them was written."""

    def __init__(
        self,
        index: ChunkIndex,
        tensors: Ints,
        boxes: Mapping[int, Box],
        pieces: Pieces,
        out: Destinations,
    ) -> None:
        self._index = index
        self._tensors = tensors
        self._boxes = boxes
        self._pieces = pieces
        self._out = out
        self._written = np.zeros(len(tensors), dtype=np.int64)
        self._lock = Lock()
        self._base = (out.address[pieces.want] + pieces.target).tolist()
        simple = (pieces.target >= 0) & (out.address[pieces.want] != 0)
        self._targets: dict[int, _Target] = {}  # of pieces that are not simple, as they come
        self._packed: dict[int, dict[int, Bytes]] = {}  # want to piece to its bytes
        subbyte = index.bits[tensors] < 8
        if subbyte.any():
            self._collect(np.flatnonzero(subbyte[pieces.want]), simple)
        self._simple: list[bool] = simple.tolist()

    def _collect(self, rows: Ints, simple: npt.NDArray[np.bool_]) -> None:
        """Give the pieces of sub-byte wants buffers of their own, where one is no stretch."""
        want = self._pieces.want[rows]
        odd = np.unique(want[self._pieces.target[rows] < 0])
        for piece in rows[np.isin(want, odd)].tolist():
            first, word_bytes, _ = self._words(piece)
            nbytes = int(self._pieces.nbytes[piece])
            ahead = first % word_bytes
            words = np.zeros(-(-(ahead + nbytes) // word_bytes) * word_bytes, dtype=np.uint8)
            self._packed.setdefault(int(self._pieces.want[piece]), {})[piece] = words
            self._base[piece] = address_of(words) + ahead
            simple[piece] = True

    def _words(self, piece: int) -> tuple[int, int, int]:
        """Return the first byte of a piece in its chunk, and bytes and elements of a full word.

        A word is the fewest whole bytes that hold whole elements.
        """
        chunk = int(self._pieces.chunk[piece])
        first = int(self._pieces.offset[piece]) - int(self._index.manifest.chunks.offset[chunk])
        bits = int(self._index.bits[self._tensors[self._pieces.want[piece]]])
        return first, lcm(bits, 8) // 8, lcm(bits, 8) // bits

    def count(self, pieces: Ints, placed: list[int]) -> None:
        """Add to the bytes written of the wants of some pieces."""
        with self._lock:
            np.add.at(self._written, self._pieces.want[pieces], placed)

    def place(self, piece: int, source: int, skip: int, nbytes: int) -> int:
        """Copy `nbytes` of a piece, from its byte `skip` on, from an address."""
        if self._simple[piece]:
            copy(self._base[piece] + skip, source, nbytes)
            return nbytes
        target = self._target(int(self._pieces.want[piece]))
        chunk = int(self._pieces.chunk[piece])
        first = int(self._pieces.offset[piece]) - int(self._index.manifest.chunks.offset[chunk])
        size = target.dtype.bits // 8
        elements = _memory(source, nbytes).view(target.dtype.opaque)
        region = self._index.region(chunk)
        at = (first + skip) // size
        return place_elements(region, elements, at, target.box, target.elements) * size

    def finish(self) -> None:
        """Check that all of every destination was written, and put sub-byte elements together.

        Raises:
            CoverageError: Some bytes were not.
        """
        expected = self._out.nbytes.copy()
        for want, packed in self._packed.items():
            expected[want] = self._pieces.nbytes[list(packed)].sum()
        bad = self._written != expected
        if bad.any():
            want = int(np.argmax(bad))
            name = self._index.manifest.tensors.names[int(self._tensors[want])]
            text = f"tensor {name!r}: {int(self._written[want])} of the "
            text += f"{int(expected[want])} bytes of its destination were written"
            raise CoverageError(text, code=ErrorCode.COVERAGE)
        for want in sorted(self._packed):
            self._assemble(want)

    def _target(self, want: int) -> _Target:
        target = self._targets.get(want)
        if target is None:
            tensor = int(self._tensors[want])
            box = self._box(want, tensor)
            dtype = DType.named(self._index.manifest.tensors.dtypes[tensor])
            elements = self._out.strided.get(want)
            if elements is None:
                memory = _memory(int(self._out.address[want]), int(self._out.nbytes[want]))
                elements = memory.view(dtype.opaque).reshape(box.shape)
            target = self._targets[want] = _Target(box, dtype, elements)
        return target

    def _box(self, want: int, tensor: int) -> Box:
        box = self._boxes.get(want)
        return box if box is not None else Box.whole(self._index.manifest.tensors.shapes[tensor])

    def _assemble(self, want: int) -> None:
        """Put the pieces of a sub-byte want together, element by element."""
        tensor = int(self._tensors[want])
        bits = int(self._index.bits[tensor])
        wanted = self._box(want, tensor)
        elements = np.zeros(wanted.shape, dtype=np.uint8)
        copied = 0
        for piece, words in self._packed[want].items():
            region = self._index.region(int(self._pieces.chunk[piece]))
            byte, word_bytes, per_word = self._words(piece)
            stop_byte = byte + int(self._pieces.nbytes[piece])
            # bytes at the ends may hold a part of an element that is not wanted
            first = -(-byte * 8 // bits)
            stop = min(stop_byte * 8 // bits, region.count)
            base = byte // word_bytes * per_word
            unpacked = unpack_subbyte(words, bits=bits, numel=len(words) // word_bytes * per_word)
            inside = unpacked[first - base : stop - base]
            copied += place_elements(region, inside, first, wanted, elements)
        packed = pack_subbyte(byte_view(elements), bits=bits)
        if copied != wanted.numel or len(packed) != int(self._out.nbytes[want]):
            name = self._index.manifest.tensors.names[tensor]
            text = f"tensor {name!r}: {copied} of {wanted.numel} elements were written"
            raise CoverageError(text, code=ErrorCode.COVERAGE)
        copy(int(self._out.address[want]), address_of(packed), len(packed))


def _memory(address: int, nbytes: int) -> Bytes:
    """Return bytes in memory as an array; the caller holds their owner."""
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    return np.frombuffer(memoryview(memory), dtype=np.uint8)
