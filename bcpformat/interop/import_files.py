"""Files of other formats become checkpoints."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from bcpformat.api.framework import load_torch
from bcpformat.api.save import Location, write
from bcpformat.engine.coordinator import SoloCoordinator
from bcpformat.engine.options import WriteOptions
from bcpformat.engine.write import WriteReport, save
from bcpformat.errors import ErrorCode, FormatError, InvalidArgumentError
from bcpformat.interop.checkpoint_tensors import import_metadata
from bcpformat.interop.safetensors_file import Bytes, SafetensorsFile
from bcpformat.interop.safetensors_shards import read_index
from bcpformat.interop.stored_leaves import StoredAdapter, StoredTensor
from bcpformat.model.progress import Progress
from bcpformat.model.state import encode_state
from bcpformat.model.user_types import default_types
from bcpformat.storage import open_store


def import_safetensors(
    files: Sequence[SafetensorsFile],
    destination: Location,
    *,
    step: int | None,
    options: WriteOptions,
    progress: Progress,
) -> WriteReport:
    """Write the tensors of files as one dict; their elements are never loaded as a whole.

    Args:
        files: Files whose names do not repeat.
        destination: Where the checkpoint goes.
        step: The training step.
        options: How to write; the files' metadata is added to ``user``.
        progress: Called with numbers of bytes as they are done.

    Raises:
        FormatError: Two files say different things of one key of their metadata, or a tied name
            refers to a tensor that is not there.
        ObjectExistsError: There is a checkpoint already.
    """
    state: dict[str, StoredTensor] = {}
    user: dict[str, str] = {}
    aliases: dict[str, str] = {}
    for file in files:
        texts, tied = import_metadata(file.header.metadata)
        _merge(user, texts, file.path)
        aliases |= tied
        for entry in file.header.entries:
            state[entry.name] = StoredTensor(
                entry.dtype, entry.shape, partial(_elements, file, entry.start_bytes, entry.nbytes)
            )
    for name, source in aliases.items():
        if source not in state or name in state:
            text = f"{name!r:.200} is tied to {source!r:.200}: one is not there, or both are"
            raise FormatError(text, code=ErrorCode.INDEX)
        state[name] = state[source]
    encoded = encode_state(
        state, adapters={StoredTensor: StoredAdapter()}, encoders={}, types=default_types()
    )
    options = replace(options, user={**user, **options.user})
    store = open_store(destination)
    return save(
        store,
        lambda: encoded,
        step=step,
        coordinator=SoloCoordinator(),
        options=options,
        progress=progress,
    )


def _elements(file: SafetensorsFile, start: int, nbytes: int) -> Bytes:
    return file.data[start : start + nbytes]


def _merge(into: dict[str, str], texts: Mapping[str, str], path: str) -> None:
    for key, value in texts.items():
        if into.setdefault(key, value) != value:
            text = f"{path!r}: metadata {key!r:.80} differs from that of another shard"
            raise FormatError(text, code=ErrorCode.INDEX)


def import_saved(
    paths: Sequence[str],
    destination: Location,
    *,
    step: int | None,
    options: WriteOptions,
    progress: Progress,
) -> WriteReport:
    """Write what `torch.save` wrote; several files are the shards of one dict.

    Only tensors and plain values are loaded; a file with anything else is refused.

    Raises:
        InvalidArgumentError: A file holds other objects, or torch is not installed.
    """
    load = saved_files().load_saved
    states = [load(path) for path in paths]
    state = states[0]
    if len(states) > 1:
        state = {}
        for path, part in zip(paths, states, strict=True):
            if not isinstance(part, dict) or not part.keys().isdisjoint(state):
                text = f"{path!r} is not a dict of names that no other shard has"
                raise FormatError(text, code=ErrorCode.INDEX)
            state.update(part)
    return write(destination, state, step=step, options=options, group=None, progress=progress)


def shards_of_index(index_path: str) -> list[str]:
    """Return the paths of the files that a ``.bin.index.json`` names.

    Raises:
        FormatError: It is no such index.
    """
    folder = os.path.dirname(index_path)
    return [os.path.join(folder, f) for f in sorted(set(read_index(index_path).values()))]


# Any: the module's functions; it is loaded by name, as only bcpformat.torch imports torch.
def saved_files() -> Any:
    """Return the module that reads and writes `torch.save` files.

    Raises:
        InvalidArgumentError: torch is not installed.
    """
    try:
        load_torch()
        return importlib.import_module("bcpformat.torch.saved_files")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        text = "torch.save files need torch: pip install 'bcpformat[torch]'"
        raise InvalidArgumentError(text) from error
