"""Checkpoints become files of other formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bcpformat.api.load import read_whole
from bcpformat.api.opened import Checkpoint
from bcpformat.api.selection import Filter, name_filter
from bcpformat.errors import BcpError
from bcpformat.interop.checkpoint_tensors import (
    Selected,
    check_all_exportable,
    export_metadata,
    select_tensors,
)
from bcpformat.interop.import_files import saved_files
from bcpformat.interop.npy_files import check_whole
from bcpformat.interop.output import new_file
from bcpformat.interop.safetensors_file import Outgoing, write_safetensors
from bcpformat.interop.safetensors_shards import write_shards
from bcpformat.model.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written.

    Attributes:
        tensors: Number of tensors.
        nbytes: Bytes of their elements.
        files: Names of the files.
        left_out: What the target format has no place for, in words.
        damaged: Name of a tensor to why it was left out.
    """

    tensors: int
    nbytes: int
    files: Sequence[str]
    left_out: Sequence[str] = ()
    damaged: Mapping[str, BcpError] = field(default_factory=dict)


def export_safetensors(
    checkpoint: Checkpoint,
    path: str,
    *,
    chosen: Filter,
    below: str,
    max_shard_bytes: int | None,
    skip_damaged: bool,
    progress: Progress,
) -> Exported:
    """Write tensors as one safetensors file, or as a directory of shards.

    Args:
        checkpoint: The source.
        path: The new file, or with `max_shard_bytes` the new directory.
        chosen: Names to take.
        below: The container to take, ``""`` for all.
        max_shard_bytes: Bytes of elements of one shard.
        skip_damaged: Leave out what does not verify; everything is then read twice.
        progress: Called with numbers of bytes as they are done.

    Raises:
        InvalidArgumentError: A tensor has no form in safetensors; nothing has been written.
        FormatError: A tensor does not verify, and it is not to be left out.
        ObjectExistsError: There is something of that name already.
    """
    selected = select_tensors(checkpoint, chosen=chosen, below=below)
    check_all_exportable(selected.tensors)
    damaged: dict[str, BcpError] = {}
    tensors = selected.tensors
    if skip_damaged:
        tensors, damaged = _whole_ones(checkpoint, selected)
    kept = {tensor.name for tensor in tensors}
    aliases = {n: source for n, source in selected.aliases.items() if source in kept}
    metadata, dropped = export_metadata(checkpoint.user, aliases)
    if max_shard_bytes is None:
        write_safetensors(path, tensors, metadata, progress=progress)
        files = [path]
    else:
        files = write_shards(path, tensors, metadata, max_bytes=max_shard_bytes, progress=progress)
    return Exported(
        tensors=len(tensors),
        nbytes=sum(t.nbytes for t in tensors),
        files=files,
        left_out=_left_out(checkpoint, selected, aliases, dropped),
        damaged=damaged,
    )


def export_saved(
    checkpoint: Checkpoint, path: str, *, chosen: Filter, progress: Progress
) -> Exported:
    """Write the state with `torch.save`.

    Raises:
        InvalidArgumentError: It holds something that only unpickling of objects could load.
        ObjectExistsError: The file exists.
    """
    saved = saved_files()
    state = read_whole(checkpoint.reader, chosen=chosen, as_numpy=False, progress=progress)
    with new_file(path) as file:
        saved.save_state(file.name, state)
    take = name_filter(chosen)
    names = [name for name in checkpoint.manifest.tensors.names if take(name)]
    lost = ["the checkpoint's user metadata"] if checkpoint.user else []
    if len(checkpoint.manifest.per_rank):
        lost.append("marks of per-rank values: they are dicts by rank")
    return Exported(
        tensors=len(names),
        nbytes=sum(checkpoint[name].nbytes for name in names),
        files=[path],
        left_out=lost,
    )


def _whole_ones(
    checkpoint: Checkpoint, selected: Selected
) -> tuple[list[Outgoing], dict[str, BcpError]]:
    tensors = []
    damaged: dict[str, BcpError] = {}
    names = checkpoint.manifest.tensors.names
    for tensor, row in zip(selected.tensors, selected.rows, strict=True):
        error = check_whole(checkpoint[names[row]])
        if error is None:
            tensors.append(tensor)
        else:
            damaged[tensor.name] = error
    return tensors, damaged


def _left_out(
    checkpoint: Checkpoint,
    selected: Selected,
    aliases: Mapping[str, str],
    dropped: Sequence[str],
) -> list[str]:
    words = [f"{number} x {kind}" for kind, number in sorted(selected.left_out.items())]
    if selected.metadata:
        dicts = "OrderedDict" if selected.metadata == 1 else "OrderedDicts"
        words.append(f"module metadata: _metadata of {selected.metadata} {dicts}")
    if selected.unselected:
        words.append(f"{selected.unselected} tensors that were not selected")
    if aliases:
        words.append(f"{len(aliases)} other names of tied tensors (noted in the metadata)")
    if checkpoint.step is not None:
        words.append(f"the step ({checkpoint.step})")
    words += [f"user metadata {key!r}, which is no text" for key in dropped]
    return words
