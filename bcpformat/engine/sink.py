"""Where the elements of a read go, and the proof that all of them arrived."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        self._want = pieces.want.tolist()
        self._base = (out.address[pieces.want] + pieces.target).tolist()
        self._simple = (pieces.target >= 0) & (out.address[pieces.want] != 0)
        self._packed: dict[int, Bytes] = {}
        bits = index.bits[tensors][pieces.want] if len(pieces.want) else pieces.want
        odd = np.unique(pieces.want[(bits < 8) & (pieces.target < 0)])
        for piece in np.flatnonzero(np.isin(pieces.want, odd) & (bits < 8)).tolist():
            whole = np.zeros(int(pieces.nbytes[piece]), dtype=np.uint8)
            self._packed[piece] = whole
            self._base[piece] = address_of(whole)
            self._simple[piece] = True
        self._simple_list = self._simple.tolist()

    def count(self, pieces: Ints, placed: list[int]) -> None:
        """Add to the bytes written of the wants of some pieces."""
        with self._lock:
            np.add.at(self._written, self._pieces.want[pieces], placed)

    def place(self, piece: int, source: int, skip: int, nbytes: int) -> int:
        """Copy `nbytes` of a piece, from its byte `skip` on, from an address."""
        if self._simple_list[piece]:
            copy(self._base[piece] + skip, source, nbytes)
            return nbytes
        want = self._want[piece]
        chunk = int(self._pieces.chunk[piece])
        region = self._pieces.regions.get(piece) or self._index.region(chunk)
        tensor = int(self._tensors[want])
        wanted = self._box(want, tensor)
        dtype = DType.named(self._index.manifest.tensors.dtypes[tensor])
        size = dtype.bits // 8
        data = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(source))
        elements = data.view(dtype.opaque)
        target = self._out.strided.get(want)
        if target is None:
            memory = (ctypes.c_uint8 * int(self._out.nbytes[want])).from_address(
                int(self._out.address[want])
            )
            target = np.ctypeslib.as_array(memory).view(dtype.opaque).reshape(wanted.shape)
        return place_elements(region, elements, skip // size, wanted, target) * size

    def finish(self) -> None:
        """Unpack what needs it, and check that all of every destination was written.

        Raises:
            CoverageError: Some bytes were not.
        """
        for want in sorted({self._want[p] for p in self._packed}):
            self._assemble(want)
        whole = np.ones(len(self._tensors), dtype=np.bool_)
        whole[[self._want[p] for p in self._packed]] = False
        bad = whole & (self._written != self._out.nbytes)
        if bad.any():
            want = int(np.argmax(bad))
            name = self._index.manifest.tensors.names[int(self._tensors[want])]
            text = f"tensor {name!r}: {int(self._written[want])} of the "
            text += f"{int(self._out.nbytes[want])} bytes of its destination were written"
            raise CoverageError(text, code=ErrorCode.COVERAGE)

    def _box(self, want: int, tensor: int) -> Box:
        box = self._boxes.get(want)
        return box if box is not None else Box.whole(self._index.manifest.tensors.shapes[tensor])

    def _assemble(self, want: int) -> None:
        """Put the chunks of a sub-byte want together, element by element."""
        tensor = int(self._tensors[want])
        bits = DType.named(self._index.manifest.tensors.dtypes[tensor]).bits
        wanted = self._box(want, tensor)
        elements = np.zeros(wanted.shape, dtype=np.uint8)
        copied = 0
        for piece in [p for p in self._packed if self._want[p] == want]:
            region = self._index.region(int(self._pieces.chunk[piece]))
            unpacked = unpack_subbyte(self._packed[piece], bits=bits, numel=region.count)
            copied += place_elements(region, unpacked, 0, wanted, elements)
        packed = pack_subbyte(byte_view(elements), bits=bits)
        if copied != wanted.numel or len(packed) != int(self._out.nbytes[want]):
            name = self._index.manifest.tensors.names[tensor]
            text = f"tensor {name!r}: {copied} of {wanted.numel} elements were written"
            raise CoverageError(text, code=ErrorCode.COVERAGE)
        copy(int(self._out.address[want]), address_of(packed), len(packed))
