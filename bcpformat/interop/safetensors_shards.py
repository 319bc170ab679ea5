"""Sharded safetensors as Hugging Face lays them: files and an index from names to files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from bcpformat.errors import (
    ErrorCode,
    FormatError,
    InvalidArgumentError,
    LimitError,
    ObjectNotFoundError,
    StorageError,
)
from bcpformat.interop.output import new_directory, new_file
from bcpformat.interop.safetensors_file import (
    Outgoing,
    SafetensorsFile,
    open_safetensors,
    write_safetensors,
)
from bcpformat.model.progress import Progress

INDEX_SUFFIX = ".safetensors.index.json"
INDEX_NAME = f"model{INDEX_SUFFIX}"
SINGLE_NAME = "model.safetensors"
MAX_INDEX_BYTES = 100_000_000

_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip


def read_index(path: str) -> dict[str, str]:
    """Return the map from tensors' names to files' names of an index, checked.

    Raises:
        FormatError: It is no such index, or names a file outside its directory.
        StorageError: It cannot be read.
    """
    where = repr(path)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_INDEX_BYTES + 1)
    except FileNotFoundError as error:
        raise ObjectNotFoundError(f"{where} does not exist", key=path) from error
    except OSError as error:
        raise StorageError(f"cannot read {where}: {error.strerror or error}", key=path) from error
    if len(data) > MAX_INDEX_BYTES:
        text = f"{where} is larger than {MAX_INDEX_BYTES} bytes"
        raise LimitError(text, code=ErrorCode.LIMIT)
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} is not JSON: {error!s:.200}", code=ErrorCode.TYPE) from error
    names = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(names, dict):
        raise FormatError(f"{where} has no map 'weight_map'", code=ErrorCode.KEY_MISSING)
    for name, file_name in names.items():
        if not isinstance(file_name, str):
            text = f"{where}: the file of {name!r:.100} is not a text"
            raise FormatError(text, code=ErrorCode.TYPE)
        if os.path.basename(file_name) != file_name or file_name in ("", ".", ".."):
            text = f"{where}: {file_name!r:.200} is not the name of a file beside the index"
            raise FormatError(text, code=ErrorCode.FILE_NAME)
    return names


def open_shards(index_path: str) -> list[SafetensorsFile]:
    """Open all files of an index, in the order of their names.

    Raises:
        FormatError: A file is damaged, or files and index do not hold the same names.
        StorageError: A file is missing or cannot be read.
    """
    names = read_index(index_path)
    folder = os.path.dirname(index_path)
    files = [open_safetensors(os.path.join(folder, f)) for f in sorted(set(names.values()))]
    found: dict[str, str] = {}
    for file in files:
        for entry in file.header.entries:
            if entry.name in found:
                text = f"{entry.name!r:.200} is in {found[entry.name]!r} and in {file.path!r}"
                raise FormatError(text, code=ErrorCode.EXTENT_OVERLAP)
            found[entry.name] = os.path.basename(file.path)
    wrong = sorted(n for n in {*names, *found} if names.get(n) != found.get(n))
    if wrong:
        name = wrong[0]
        text = (
            f"{index_path!r}: {name!r:.200} is in {found.get(name)!r}, the index says "
            f"{names.get(name)!r}; {len(wrong)} names do not agree"
        )
        raise FormatError(text, code=ErrorCode.INDEX)
    return files


def parse_size(text: str) -> int:
    """Return bytes from a text such as ``5GB`` (10^9) or ``512MiB`` (2^20).

    Raises:
        InvalidArgumentError: It is no size of at least 1 byte.

    Example:
        >>> parse_size("5GB"), parse_size("1.5 KiB")
        (5000000000, 1536)
    """
    digits = text.strip().rstrip("iIbBkKmMgGtT ")
    unit = text.strip()[len(digits) :].strip().upper()
    try:
        size = int(float(digits) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError) as error:
        text = f"expected a size such as 5GB or 512MiB, got {text!r}"
        raise InvalidArgumentError(text) from error
    if size < 1:
        raise InvalidArgumentError(f"expected a size of at least 1 byte, got {text!r}")
    return size


def split_into_shards(tensors: Sequence[Outgoing], *, max_bytes: int) -> list[list[Outgoing]]:
    """Return the tensors in shards, in order; one larger than a shard has its own."""
    shards: list[list[Outgoing]] = [[]]
    filled = 0
    for tensor in tensors:
        if shards[-1] and filled + tensor.nbytes > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.nbytes
    return shards


def write_shards(
    folder: str,
    tensors: Sequence[Outgoing],
    metadata: Mapping[str, str],
    *,
    max_bytes: int,
    progress: Progress,
) -> list[str]:
    """Write a directory of shards, the index last, and return the names of its files.

    What fits one shard becomes ``model.safetensors`` without an index.

    Raises:
        InvalidArgumentError: A tensor has no form in safetensors (`E_NO_FORM`).
        ObjectExistsError: The directory holds something.
        StorageError: Something cannot be written.
    """
    new_directory(folder)
    shards = split_into_shards(tensors, max_bytes=max_bytes)
    if len(shards) == 1:
        path = os.path.join(folder, SINGLE_NAME)
        write_safetensors(path, shards[0], metadata, progress=progress)
        return [SINGLE_NAME]
    names = []
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(os.path.join(folder, name), shard, metadata, progress=progress)
        names.append(name)
        weight_map |= dict.fromkeys((t.name for t in shard), name)
    total = sum(t.nbytes for t in tensors)
    document = {
        "metadata": {"total_size": total},
        "weight_map": dict(sorted(weight_map.items())),
    }
    with new_file(os.path.join(folder, INDEX_NAME)) as file:
        file.write(json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n")
    return [*names, INDEX_NAME]
