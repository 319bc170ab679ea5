"""What a path is, by what is there; what a new path is to be, by its suffix."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum

from bcpformat.errors import (
    ErrorCode,
    InvalidArgumentError,
    ObjectNotFoundError,
    StorageError,
)
from bcpformat.interop.safetensors_shards import INDEX_SUFFIX, SINGLE_NAME
from bcpformat.model.manifest import MANIFEST_KEY

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
TORCH_INDEX_SUFFIX = ".bin.index.json"
_TORCH_SINGLE_NAME = "pytorch_model.bin"


class Kind(Enum):
    """A kind of source or target; the value is its name on the command line."""

    CHECKPOINT = "checkpoint"
    SAFETENSORS = "safetensors"
    SHARDS = "safetensors-shards"
    TORCH = "torch"
    TORCH_SHARDS = "torch-shards"

    @property
    def is_target(self) -> bool:
        """Whether it can be written."""
        return self is not Kind.TORCH_SHARDS


@dataclass(frozen=True, slots=True)
class Source:
    """Something to read.

    Attributes:
        kind: What it is.
        path: The file, the index of shards, or the directory of a checkpoint.
    """

    kind: Kind
    path: str


def detect_source(path: str) -> Source:
    """Return what is at a path.

    Raises:
        ObjectNotFoundError: Nothing is there, or nothing that this program knows.
        InvalidArgumentError: A file of an unknown kind, or several models in one directory.
    """
    if os.path.isdir(path):
        return _detect_directory(path)
    if not os.path.exists(path):
        raise ObjectNotFoundError(f"{path!r} does not exist", key=path)
    folded = path.lower()
    if folded.endswith(INDEX_SUFFIX):
        return Source(Kind.SHARDS, path)
    if folded.endswith(TORCH_INDEX_SUFFIX):
        return Source(Kind.TORCH_SHARDS, path)
    if folded.endswith(".safetensors"):
        return Source(Kind.SAFETENSORS, path)
    if folded.endswith(TORCH_SUFFIXES):
        return Source(Kind.TORCH, path)
    return Source(_sniff(path), path)


def target_kind(path: str, *, told: str | None, sharded: bool) -> Kind:
    """Return what a new path is to be.

    Args:
        path: Its name.
        told: What the user said it is.
        sharded: Whether the user gave a size of shards.

    Raises:
        InvalidArgumentError: A size of shards and another kind, or shards without a size.
    """
    kind = Kind.CHECKPOINT
    if told is not None:
        kind = Kind(told)
    elif sharded:
        kind = Kind.SHARDS
    elif path.lower().endswith(".safetensors"):
        kind = Kind.SAFETENSORS
    elif path.lower().endswith(TORCH_SUFFIXES):
        kind = Kind.TORCH
    if sharded != (kind is Kind.SHARDS):
        text = f"--max-shard-size goes with {Kind.SHARDS.value} and with nothing else"
        raise InvalidArgumentError(f"{text}, got a DST of kind {kind.value}")
    return kind


def _detect_directory(path: str) -> Source:
    names = sorted(os.listdir(path))
    if MANIFEST_KEY in names:
        return Source(Kind.CHECKPOINT, path)
    indexes = [n for n in names if n.endswith(INDEX_SUFFIX)]
    torch_indexes = [n for n in names if n.endswith(TORCH_INDEX_SUFFIX)]
    singles = [n for n in names if n.endswith(".safetensors")]
    if len(indexes) == 1:
        return Source(Kind.SHARDS, os.path.join(path, indexes[0]))
    if not indexes and (SINGLE_NAME in singles or len(singles) == 1):
        name = SINGLE_NAME if SINGLE_NAME in singles else singles[0]
        return Source(Kind.SAFETENSORS, os.path.join(path, name))
    if indexes or singles:
        text = f"{path!r} holds {len(indexes or singles)} models; name the file or the index"
        raise InvalidArgumentError(text)
    if len(torch_indexes) == 1:
        return Source(Kind.TORCH_SHARDS, os.path.join(path, torch_indexes[0]))
    if _TORCH_SINGLE_NAME in names:
        return Source(Kind.TORCH, os.path.join(path, _TORCH_SINGLE_NAME))
    raise ObjectNotFoundError(
        f"{path!r} holds no {MANIFEST_KEY}, no safetensors and no torch.save file",
        key=path,
        code=ErrorCode.NOT_COMMITTED,
    )


def _sniff(path: str) -> Kind:
    try:
        with open(path, "rb") as file:
            head = file.read(9)
    except OSError as error:
        text = f"cannot read {path!r}: {error.strerror or error}"
        raise StorageError(text, key=path) from error
    if head.startswith(b"PK\x03\x04"):
        return Kind.TORCH
    if head[8:9] == b"{":
        return Kind.SAFETENSORS
    text = f"{path!r} is neither a safetensors nor a torch.save file, by its first bytes"
    raise InvalidArgumentError(text)
