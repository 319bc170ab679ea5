"""Digests: XXH3-64 of a block's raw bytes, XXH3-128 of a document (spec 2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash

from bcpformat.codec.views import ReadableBytes, flat_view
from bcpformat.errors import InvalidArgumentError

DOCUMENT_DIGEST_BYTES = 16


def block_digest(data: ReadableBytes) -> int:
    """Return the XXH3-64 of the raw bytes of a block, 0 to 2^64-1.

    Args:
        data: C-contiguous memory; its item type does not matter.
    """
    # The hasher object lets other threads run; before xxhash 4 the one-shot functions did not.
    return xxhash.xxh3_64(flat_view(data)).intdigest()


def block_digests(data: ReadableBytes, *, block_bytes: int) -> npt.NDArray[np.uint64]:
    """Return the XXH3-64 of every block of a run's raw bytes.

    Args:
        data: The raw bytes of a run, or of some whole blocks of it.
        block_bytes: Size of a block, at least 1; the last one may be shorter.

    Returns:
        Shape ``(ceil(nbytes / block_bytes),)``, in the order of the blocks.

    Raises:
        InvalidArgumentError: `block_bytes` is below 1.
    """
    if block_bytes < 1:
        raise InvalidArgumentError(f"block_bytes must be at least 1, got {block_bytes}")
    view = flat_view(data)
    digests = [
        block_digest(view[start : start + block_bytes])
        for start in range(0, len(view), block_bytes)
    ]
    return np.array(digests, np.uint64)


def document_digest(data: ReadableBytes) -> bytes:
    """Return the XXH3-128 of a document as it is stored: low 64 bits, then high, little-endian.

    Most libraries print the reverse, the canonical big-endian form.

    Args:
        data: C-contiguous memory; its item type does not matter.

    Returns:
        16 bytes.
    """
    return xxhash.xxh3_128(flat_view(data)).intdigest().to_bytes(DOCUMENT_DIGEST_BYTES, "little")
