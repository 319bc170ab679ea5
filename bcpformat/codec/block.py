"""Blocks: the unit of encoding, digest and random access (spec 9)."""

from __future__ import annotations

import threading
from enum import IntEnum

import numpy as np

from bcpformat.codec.planes import PLANE_ITEMS, decode_planes, encode_planes
from bcpformat.codec.views import Bytes, ReadableBytes, Scratch, flat_view
from bcpformat.codec.zstd import decompress_frame_into, make_compressor
from bcpformat.errors import ErrorCode, FormatError, InvalidArgumentError


class Codec(IntEnum):
    """A codec of the registry, by its code (spec 9.1).

    Example:
        >>> Codec.from_name("planes-zstd")
        <Codec.PLANES_ZSTD: 2>
        >>> Codec(2).registry_name
        'planes-zstd'
    """

    RAW = 0
    ZSTD = 1
    PLANES_ZSTD = 2

    @property
    def registry_name(self) -> str:
        """The name in the registry."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def from_name(cls, name: str) -> Codec:
        """Return the codec of a name of the registry.

        Raises:
            InvalidArgumentError: There is none.
        """
        for codec in cls:
            if codec.registry_name == name:
                return codec
        known = ", ".join(repr(codec.registry_name) for codec in cls)
        raise InvalidArgumentError(f"codec must be one of {known}, got {name!r}")


class BlockEncoder:
    """Turns blocks into stored bytes, with compressors and memory that it reuses.

    Thread safety: none; every thread owns its own.

    Example:
        >>> encoder = BlockEncoder(Codec.ZSTD, item=4)
        >>> len(encoder.encode(bytes(1 << 20))) < 100
        True
        >>> bytes(encoder.encode(b"noise"))
        b'noise'
    """

    def __init__(self, codec: Codec, *, item: int, level: int = 1) -> None:
        """Make the compressors.

        Args:
            codec: How blocks are encoded.
            item: The run's item size in bytes, 1, 2, 4 or 8; `planes-zstd` has no form for 1.
            level: zstd level, 1 to 22; with `planes-zstd` that of blocks that repeat themselves.

        Raises:
            InvalidArgumentError: `item` or `level` is out of range.
        """
        items = PLANE_ITEMS if codec is Codec.PLANES_ZSTD else (1, *PLANE_ITEMS)
        if item not in items:
            raise InvalidArgumentError(
                f"item of codec {codec.registry_name!r} must be one of {items}, got {item}"
            )
        self._codec = codec
        self._item = item
        self._default = make_compressor(level=level, profile="default")
        self._huffman = make_compressor(level=level, profile="huffman")
        self._scratch = Scratch()

    def encode(self, raw: ReadableBytes) -> bytes | memoryview:
        """Return the stored bytes of a block, never more than its raw bytes.

        Args:
            raw: The block, C-contiguous; with `planes-zstd` a multiple of the item size.

        Returns:
            The encoded block, the caller's own; or, where that is not shorter, a view of `raw`.

        Raises:
            InvalidArgumentError: `raw` is not a multiple of the item size.
        """
        view = flat_view(raw)
        encoded: bytes | None = None
        if self._codec is Codec.ZSTD:
            encoded = self._default.compress(view)
        elif self._codec is Codec.PLANES_ZSTD:
            encoded = self._encode_planes(view)
        return encoded if encoded is not None and len(encoded) < len(view) else view

    def _encode_planes(self, view: memoryview) -> bytes | None:
        if len(view) % self._item:
            raise InvalidArgumentError(
                f"a block must be a multiple of its item, {self._item} bytes, got {len(view)}"
            )
        if not view:
            return None
        return encode_planes(
            np.frombuffer(view, np.uint8),
            item=self._item,
            varied=self._huffman,
            repetitive=self._default,
            scratch=self._scratch,
        )


def decode_block(stored: ReadableBytes, out: Bytes, *, codec: Codec, item: int) -> None:
    """Fill `out` with the raw bytes of a stored block; its digest is not looked at.

    Args:
        stored: The stored bytes of the block, not overlapping `out`.
        out: As long as the raw bytes.  Its content is unspecified after an error.
        codec: The run's codec.
        item: The run's item size in bytes.

    Raises:
        FormatError: E_BLOCK_ENCODING; `stored` is not the encoding of so many bytes.
    """
    view = flat_view(stored)
    if len(view) == len(out):
        # BCP-RUN-002: such a block is raw, whatever the codec.
        out[:] = np.frombuffer(view, np.uint8)
    elif codec is Codec.RAW or len(view) > len(out):
        raise FormatError(
            f"codec {codec.registry_name!r}: found {len(view)} stored bytes "
            f"for {len(out)} raw bytes",
            code=ErrorCode.BLOCK_ENCODING,
        )
    elif codec is Codec.ZSTD:
        decompress_frame_into(view, out)
    else:
        decode_planes(view, out, item=item, scratch=_PER_THREAD.scratch)


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.scratch = Scratch()


_PER_THREAD = _PerThread()
