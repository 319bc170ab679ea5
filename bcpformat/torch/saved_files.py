"""Files that `torch.save` wrote: only tensors and plain values are ever loaded."""

from __future__ import annotations

import os
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pickle import UnpicklingError  # only the error: torch.load raises it
from typing import Any

import numpy as np
import torch

from bcpformat.errors import (
    ErrorCode,
    FormatError,
    InvalidArgumentError,
    ObjectNotFoundError,
    StorageError,
)
from bcpformat.model.leaves import PerRankValues


def load_saved(path: str) -> Any:  # Any: whatever was saved
    """Return what a file holds, its tensors mapped where the file allows it.

    Args:
        path: A file that `torch.save` wrote.

    Raises:
        InvalidArgumentError: It holds objects other than tensors and plain values (`E_NO_FORM`).
        FormatError: It is damaged, or not such a file.
        StorageError: It cannot be read.
    """
    try:
        mapped = zipfile.is_zipfile(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except FileNotFoundError as error:
        raise ObjectNotFoundError(f"{path!r} does not exist", key=path) from error
    except UnpicklingError as error:
        text = (
            f"{path!r} holds objects other than tensors and plain values, or is damaged; "
            f"nothing else is ever unpickled: {_first_line(error)}"
        )
        raise InvalidArgumentError(text, code=ErrorCode.NO_FORM) from error
    except OSError as error:
        raise StorageError(f"cannot read {path!r}: {error.strerror or error}", key=path) from error
    except Exception as error:  # a damaged pickle may raise anything
        text = f"{path!r} is not a file of torch.save, or is damaged: {_first_line(error)}"
        raise FormatError(text, code=ErrorCode.TYPE) from error


def save_state(path: str, state: object) -> None:
    """Write a state with `torch.save`, and check that it can be loaded without other objects.

    numpy arrays and scalars become tensors and numbers, per-rank values a dict by rank.

    Args:
        path: A new file.
        state: The state.

    Raises:
        InvalidArgumentError: Something in it would need the unpickling of other objects
            (`E_NO_FORM`); the file is removed.
    """
    torch.save(_portable(state), path)
    try:
        load_saved(path)
    except InvalidArgumentError:
        os.unlink(path)
        raise


def _portable(value: Any) -> Any:  # Any: a value of the state, and what stands for it
    if isinstance(value, np.ndarray):
        try:
            return torch.from_numpy(value)
        except TypeError as error:
            text = f"torch has no type for a numpy array of {value.dtype}"
            raise InvalidArgumentError(text, code=ErrorCode.NO_FORM) from error
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, PerRankValues):
        return {rank: _portable(value[rank]) for rank in value}
    if type(value) is OrderedDict:
        made = OrderedDict((key, _portable(entry)) for key, entry in value.items())
        if hasattr(value, "_metadata"):
            made._metadata = value._metadata  # type: ignore[attr-defined]  # as torch sets it
        return made
    if isinstance(value, Mapping):
        return {key: _portable(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_portable(entry) for entry in value)
    return value


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]
