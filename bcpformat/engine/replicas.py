"""Digests of replicas: what several ranks hold of one region must be equal, and is compared."""

from __future__ import annotations

from typing import Literal

import numpy as np

from bcpformat.codec.digest import block_digest, document_digest
from bcpformat.engine.encode import Sources, copy_piece
from bcpformat.model.manifest import Ints

SAMPLE_BYTES = 2**20
"""A piece of at most this is compared whole."""
WINDOWS = 16
WINDOW_BYTES = SAMPLE_BYTES // WINDOWS
MAX_ELEMENT_BYTES = 16
_UNIT_BYTES = 2**23


def replica_digests(pieces: Sources, *, seed: bytes, replicas: Literal["sample", "full"]) -> Ints:
    """Return a digest of each of some pieces, equal for equal pieces of all ranks.

    Args:
        pieces: Pieces that a rank holds.
        seed: Chooses the sampled windows, the same on every rank.
        replicas: ``"sample"``: at most 1 MiB of each piece; ``"full"``: every byte.

    Returns:
        The bits of XXH3-64 digests as signed integers, shape `(pieces,)`.
    """
    digests = np.zeros(len(pieces.nbytes), dtype="<u8")
    buffer = np.empty(_UNIT_BYTES if len(digests) else 0, dtype=np.uint8)
    for row, nbytes in enumerate(pieces.nbytes.tolist()):
        sampled = replicas == "sample" and nbytes > SAMPLE_BYTES
        ranges = windows(nbytes, seed) if sampled else _units(nbytes)
        parts = []
        for low, high in ranges:
            copy_piece(pieces, row, low, high, buffer[: high - low])
            parts.append(block_digest(buffer[: high - low]))
        digests[row] = block_digest(np.array(parts, dtype="<u8").view(np.uint8))
    return digests.view(np.int64)


def windows(nbytes: int, seed: bytes) -> list[tuple[int, int]]:
    """Return the sampled ranges of a piece: its ends, and one window in each equal part between.

    Args:
        nbytes: Bytes of the piece, more than `SAMPLE_BYTES`.
        seed: 16 bytes.
    """
    stride = nbytes // WINDOWS
    room = stride - WINDOW_BYTES + 1
    drawn = np.frombuffer(
        b"".join(document_digest(seed + bytes([i]))[:8] for i in range(WINDOWS)), dtype="<u8"
    )
    starts = [i * stride + int(word) % room for i, word in enumerate(drawn)]
    starts[0], starts[-1] = 0, nbytes - WINDOW_BYTES
    aligned = [start & -MAX_ELEMENT_BYTES for start in starts]  # no element is cut
    return [(start, start + WINDOW_BYTES) for start in aligned]


def _units(nbytes: int) -> list[tuple[int, int]]:
    return [(low, min(low + _UNIT_BYTES, nbytes)) for low in range(0, nbytes, _UNIT_BYTES)]
