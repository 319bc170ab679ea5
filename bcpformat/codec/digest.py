"""Digests: XXH3-64 of a block's raw bytes, XXH3-128 of a document (spec 2)."""

from __future__ import annotations

import xxhash

from bcpformat.codec.views import ReadableBytes, flat_view

DOCUMENT_DIGEST_BYTES = 16


def block_digest(data: ReadableBytes) -> int:
    """Return the XXH3-64 of the raw bytes of a block, 0 to 2^64-1.

    Args:
        data: C-contiguous memory; its item type does not matter.
    """
    # The hasher object lets other threads run; before xxhash 4 the one-shot functions did not.
    return xxhash.xxh3_64(flat_view(data)).intdigest()


def document_digest(data: ReadableBytes) -> bytes:
    """Return the XXH3-128 of a document as it is stored: low 64 bits, then high, little-endian.

    Most libraries print the reverse, the canonical big-endian form.

    Args:
        data: C-contiguous memory; its item type does not matter.

    Returns:
        16 bytes.
    """
    return xxhash.xxh3_128(flat_view(data)).intdigest().to_bytes(DOCUMENT_DIGEST_BYTES, "little")
