"""One safetensors file: read through a map of its pages, written tensor by tensor."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bcpformat.errors import ErrorCode, FormatError, ObjectNotFoundError, StorageError
from bcpformat.interop.output import new_file
from bcpformat.interop.safetensors_header import (
    Entry,
    Header,
    build_header,
    check_exportable,
    parse_header,
    parse_length,
)
from bcpformat.model.dtypes import DType
from bcpformat.model.progress import Progress

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """An open file; the map lives as long as the views of it.

    Attributes:
        path: Where it is.
        header: What it holds.
        data: Its data, read-only, shape `(header.data_bytes,)`; pages are read when touched.
    """

    path: str
    header: Header
    data: Bytes

    def elements(self, entry: Entry) -> Bytes:
        """Return the bytes of a tensor as a view of the map."""
        return self.data[entry.start_bytes : entry.start_bytes + entry.nbytes]


def open_safetensors(path: str) -> SafetensorsFile:
    """Open a file and check its header in full.

    Raises:
        FormatError: The header breaks a rule, or the file is no regular file.
        StorageError: It cannot be read.
    """
    where = repr(path)
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise FormatError(f"{where} is not a regular file", code=ErrorCode.FILE_TYPE)
        with open(path, "rb") as file:
            length = parse_length(file.read(8), file_bytes=found.st_size, where=where)
            document = file.read(length)
            data_bytes = found.st_size - 8 - length
            if len(document) != length:
                raise FormatError(f"{where}: the header ends early", code=ErrorCode.TRUNCATED)
            header = parse_header(document, data_bytes=data_bytes, where=where)
            data: Bytes = np.empty(0, np.uint8)
            if data_bytes:
                # A plain view: the type memmap has no use here, its map stays alive as the base.
                data = np.asarray(
                    np.memmap(file, np.uint8, "r", offset=8 + length, shape=(data_bytes,))
                )
    except FileNotFoundError as error:
        raise ObjectNotFoundError(f"{where} does not exist", key=path) from error
    except OSError as error:
        raise StorageError(f"cannot read {where}: {error.strerror or error}", key=path) from error
    return SafetensorsFile(path=path, header=header, data=data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A tensor to write.

    Attributes:
        name: Its name in the file.
        dtype: Registry name of its data type.
        shape: Shape in elements.
        nbytes: Bytes of its elements.
        slices: Yields its bytes in order, a few MiB at a time.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    slices: Callable[[], Iterator[Bytes]]


def write_safetensors(
    path: str,
    tensors: Sequence[Outgoing],
    metadata: Mapping[str, str],
    *,
    progress: Progress,
) -> int:
    """Write one file and return its size in bytes.

    Tensors lie by falling element size, then by name, as the safetensors library lays them: so
    every tensor is aligned to its elements.

    Raises:
        InvalidArgumentError: A tensor has no form in safetensors (`E_NO_FORM`).
        ObjectExistsError: The file exists.
        StorageError: It cannot be written.
    """
    ordered = sorted(tensors, key=lambda t: (-_rank(t.dtype), t.name))
    entries = []
    position = 0
    for tensor in ordered:
        check_exportable(tensor.name, tensor.dtype)
        entries.append(
            Entry(
                name=tensor.name,
                dtype=tensor.dtype,
                shape=tensor.shape,
                start_bytes=position,
                nbytes=tensor.nbytes,
            )
        )
        position += tensor.nbytes
    header = build_header(entries, metadata)
    with new_file(path) as file:
        file.write(header)
        for tensor in ordered:
            _write_tensor(file.write, tensor, progress)
    return len(header) + position


def _write_tensor(
    write: Callable[[memoryview], object], tensor: Outgoing, progress: Progress
) -> None:
    written = 0
    for part in _nonempty(tensor.slices()):
        write(part.data)
        written += part.size
        progress(part.size)
    if written != tensor.nbytes:
        text = f"{tensor.name!r}: expected {tensor.nbytes} bytes, got {written}"
        raise FormatError(text, code=ErrorCode.RAW_LENGTH)


def _nonempty(parts: Iterable[Bytes]) -> Iterator[Bytes]:
    return (part for part in parts if part.size)


def _rank(dtype: str) -> int:
    """Return the place of a data type in the library's order, which begins with the last."""
    return DType.named(dtype).bits
