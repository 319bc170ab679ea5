"""Tensors as ``.npy`` files in one directory, with an index from names to files.

A data type that numpy has no portable name for (bfloat16, float8, complex32, sub-byte types) is
stored as unsigned integers of its bits, a sub-byte element in a byte of its own; the index has
the real one: ``numpy.load(file).view(ml_dtypes.bfloat16)`` gives the elements back.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from bcpformat.api.opened import Checkpoint, TensorView
from bcpformat.errors import BcpError, ErrorCode, FormatError, LimitError
from bcpformat.interop.output import new_directory, new_file
from bcpformat.interop.slices import SLICE_BYTES, as_bytes, row_major_indexes
from bcpformat.model.dtypes import DType
from bcpformat.model.progress import Progress

INDEX_NAME = "index.json"
_NUMPY_TYPES = frozenset(
    {
        "bool",
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
        *("float16", "float32", "float64", "complex64", "complex128"),
    }
)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_STEM_CHARACTERS = 100
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """What was written.

    Attributes:
        files: Name of a tensor to its file.
        damaged: Name of a tensor to why it was left out.
        nbytes: Bytes of elements written.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    damaged: Mapping[str, BcpError] = field(default_factory=dict)
    nbytes: int = 0


def file_names(names: Sequence[str]) -> dict[str, str]:
    """Return a safe file name for each name of a tensor, all different in any case of letters.

    Example:
        >>> file_names(["model/w", "model.w", "../../etc/passwd"])
        {'model/w': 'model.w.npy', 'model.w': 'model.w-2.npy', '../../etc/passwd': 'etc.passwd.npy'}
    """
    taken: set[str] = set()
    next_number: dict[str, int] = {}
    found = {}
    for name in names:
        stem = _UNSAFE.sub("_", name.replace("/", "."))[:_STEM_CHARACTERS].strip(".") or "tensor"
        if _RESERVED.fullmatch(stem):
            stem = f"_{stem}"
        folded = stem.lower()
        number = next_number.get(folded, 1)
        candidate = stem if number == 1 else f"{stem}-{number}"
        while candidate.lower() in taken:
            number += 1
            candidate = f"{stem}-{number}"
        next_number[folded] = number + 1
        taken.add(candidate.lower())
        found[name] = f"{candidate}.npy"
    return found


def extract_npy(
    checkpoint: Checkpoint,
    rows: Sequence[int],
    folder: str,
    *,
    skip_damaged: bool,
    progress: Progress,
) -> Extracted:
    """Write tensors to a new directory, the index last.

    Args:
        checkpoint: The source.
        rows: Rows of its table of tensors.
        folder: A directory that is not there, or is empty.
        skip_damaged: Leave out what does not verify, in place of raising.
        progress: Called with numbers of bytes as they are done.

    Raises:
        FormatError: A tensor does not verify, and it is not to be left out.
        ObjectExistsError: The directory holds something.
    """
    table = checkpoint.manifest.tensors
    files = file_names([table.names[row] for row in rows])
    new_directory(folder)
    written: dict[str, str] = {}
    damaged: dict[str, BcpError] = {}
    tensors = []
    nbytes = 0
    for row in rows:
        view = checkpoint[table.names[row]]
        file_name = files[view.name]
        try:
            with new_file(os.path.join(folder, file_name)) as file:
                _write_npy(file, view, progress)
        except BcpError as error:
            if not (skip_damaged and is_damage(error)):
                raise
            damaged[view.name] = error
            continue
        written[view.name] = file_name
        nbytes += view.nbytes
        tensors.append(
            {
                "name": view.name,
                "file": file_name,
                "dtype": view.dtype,
                "stored_as": str(npy_type(view.dtype)),
                "shape": list(view.shape),
                "aliases": list(table.aliases.get(row, ())),
            }
        )
    document = {
        "format": "npy",
        "step": checkpoint.step,
        "tensors": tensors,
        "damaged": [
            {"name": name, "code": error.code.value, "message": error.message}
            for name, error in damaged.items()
        ],
    }
    with new_file(os.path.join(folder, INDEX_NAME)) as file:
        file.write(json.dumps(document, indent=2).encode() + b"\n")
    return Extracted(files=written, damaged=damaged, nbytes=nbytes)


def npy_type(dtype: str) -> np.dtype[Any]:  # Any: as `DType.numpy`
    """Return the numpy type a data type is stored as: its own, or integers of its bits."""
    found = DType.named(dtype)
    return found.numpy if dtype in _NUMPY_TYPES else found.opaque


def check_whole(view: TensorView) -> BcpError | None:
    """Return why a tensor cannot be read, None if all of it verifies."""
    try:
        view.verify()
    except BcpError as error:
        if not is_damage(error):
            raise
        return error
    return None


def is_damage(error: BcpError) -> bool:
    """Return whether an error says that bytes are wrong or gone, not that reading failed."""
    if isinstance(error, LimitError):
        return False
    gone = (ErrorCode.FILE_MISSING, ErrorCode.FILE_TYPE)
    return isinstance(error, FormatError) or error.code in gone


def _write_npy(file: BinaryIO, view: TensorView, progress: Progress) -> None:
    kind = npy_type(view.dtype)
    header = {"descr": kind.str, "fortran_order": False, "shape": view.shape}
    np.lib.format.write_array_header_1_0(file, header)
    for part in _parts(view, kind):
        file.write(part.data)
        progress(part.size)


def _parts(view: TensorView, kind: np.dtype[Any]) -> Iterator[npt.NDArray[np.uint8]]:
    # Any: as `npy_type`.  Elements of numpy's own are as wide as stored ones.
    elements = max(SLICE_BYTES // max(kind.itemsize, 1), 1)
    if DType.named(view.dtype).bits < 8:
        yield as_bytes(view.read().view(np.uint8))
        return
    for index in row_major_indexes(view.shape, max_elements=elements):
        yield as_bytes(view[index] if index else view.read())
