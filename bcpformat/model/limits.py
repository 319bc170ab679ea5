"""Limits: what a decoder refuses before it allocates (spec 18)."""

from __future__ import annotations

from dataclasses import dataclass

MAX_INTEGER = 2**53 - 1
"""The largest integer of the format (BCP-CNV-002)."""

GROUP_ROWS = 2**15
"""Rows of one section of runs, chunks or per-rank values (BCP-MAN-009)."""

ALIGNMENT_BYTES = 4096
"""Runs and block tables begin at multiples of this (BCP-DAT-001)."""

CHUNK_ALIGNMENT_BYTES = 64
"""Chunks begin in their run at multiples of this (BCP-RUN-005)."""

MIN_BLOCK_LOG2 = 12
MAX_BLOCK_LOG2 = 30
MAX_NDIM = 32
MAX_SPLIT_AXES = 8
MAX_NAME_BYTES = 65_535
STATE_DEPTH = 128
DOCUMENT_DEPTH = 16
OBJECT_THRESHOLD_BYTES = 65_536
"""Values of the state above this are stored as objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds a reader enforces; the defaults are the floors that every reader accepts.

    Attributes:
        files: Data files of one checkpoint.
        chunks: Chunks of one checkpoint; also bounds runs and per-rank rows.
        section_bytes: Raw bytes of all sections of a manifest together.
        state_bytes: Raw bytes of the state tree, whose values take up to 60 times as much memory.
        row_bytes: Raw bytes of the sections of files, tensors and objects together.
        root_bytes: Raw bytes of the root of a manifest.
        table_bytes: Bytes of one block table.

    Example:
        >>> Limits(files=4).files
        4
    """

    files: int = 2**20
    chunks: int = 2**26
    section_bytes: int = 2**32
    state_bytes: int = 2**26
    row_bytes: int = 2**28
    root_bytes: int = 2**26
    table_bytes: int = 2**30


DEFAULT_LIMITS = Limits()
