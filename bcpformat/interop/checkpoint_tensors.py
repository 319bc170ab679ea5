"""Tensors of a checkpoint on their way out: selected, named for the other format, streamed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from bcpformat.api.opened import Checkpoint
from bcpformat.api.selection import Filter, name_filter
from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.interop.safetensors_file import Outgoing
from bcpformat.interop.safetensors_header import check_exportable
from bcpformat.interop.slices import stored_slices
from bcpformat.interop.state_items import find_node, plain_keys, state_items
from bcpformat.model.manifest import Node, Value
from bcpformat.model.names import METADATA, join

ALIASES_KEY = "bcpformat.aliases"
"""In safetensors metadata: a JSON map from names left out to the name that has the elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """What goes out.

    Attributes:
        tensors: The tensors, in state order.
        rows: The row of each in the checkpoint's table.
        aliases: Other names to the name that stands in `tensors`.
        left_out: What of the state is no tensor, in words: kind to number; without what stands
            in metadata.
        metadata: Dicts whose module metadata (`OrderedDict._metadata`) is left out.
        unselected: Tensors that the filter did not take.
    """

    tensors: list[Outgoing]
    rows: list[int]
    aliases: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    metadata: int = 0
    unselected: int = 0


def select_tensors(checkpoint: Checkpoint, *, chosen: Filter, below: str) -> Selected:
    """Return the tensors to write, each once.

    Names are those of the checkpoint, relative to `below`.  If everything below is one dict of
    str keys, as an imported model is, its keys are the names, without escapes.

    Args:
        checkpoint: The source.
        chosen: Names to take; patterns are of the checkpoint's names.
        below: Name of the container to take, ``""`` for the whole state.

    Raises:
        InvalidArgumentError: There is no such container, or nothing is selected.
    """
    root = find_node(checkpoint.manifest.state, below)
    if root is None:
        raise InvalidArgumentError(f"the checkpoint has nothing named {below!r}")
    if not checkpoint.manifest.tensors.names:
        raise InvalidArgumentError("the checkpoint holds no tensor", code=ErrorCode.MISMATCH)
    selected = _select(checkpoint, root, name_filter(chosen), below)
    if not selected.tensors:
        text = f"none of the {len(checkpoint)} names of tensors is selected"
        raise InvalidArgumentError(text, code=ErrorCode.MISMATCH)
    return selected


def _select(
    checkpoint: Checkpoint, root: Node, take: Callable[[str], bool], below: str
) -> Selected:
    table = checkpoint.manifest.tensors
    keys = plain_keys(root)
    tensors: list[Outgoing] = []
    rows: list[int] = []
    aliases: dict[str, str] = {}
    left_out: dict[str, int] = {}
    names: dict[int, str] = {}
    unselected = metadata = 0
    for item in state_items(root):
        metadata += item.segment == METADATA
        if item.kind != "tensor":
            if not item.is_container and METADATA not in item.name.split("/"):
                left_out[item.kind] = left_out.get(item.kind, 0) + 1
            continue
        if not take(join(below, item.name) if item.name else below):
            unselected += 1
            continue
        name = keys.get(item.name, item.name)
        if item.index in names:
            aliases[name] = names[item.index]
            continue
        names[item.index] = name
        view = checkpoint[table.names[item.index]]
        tensors.append(
            Outgoing(
                name=name,
                dtype=view.dtype,
                shape=view.shape,
                nbytes=view.nbytes,
                slices=partial(stored_slices, view),
            )
        )
        rows.append(item.index)
    return Selected(
        tensors=tensors,
        rows=rows,
        aliases=aliases,
        left_out=left_out,
        metadata=metadata,
        unselected=unselected,
    )


def export_metadata(
    user: Mapping[str, Value], aliases: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return safetensors metadata from a checkpoint's, and the keys that have no form there.

    ``format`` is ``pt`` if the user did not say otherwise: readers of Hugging Face ask for it.
    """
    metadata = {key: value for key, value in user.items() if isinstance(value, str)}
    metadata.setdefault("format", "pt")
    if aliases:
        metadata[ALIASES_KEY] = json.dumps(dict(aliases), ensure_ascii=False, sort_keys=True)
    return metadata, [key for key, value in user.items() if not isinstance(value, str)]


def import_metadata(metadata: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return a checkpoint's metadata from that of a safetensors file, and the aliases in it.

    Text that is no map of names is kept as metadata.
    """
    user = dict(metadata)
    try:
        found = json.loads(user.get(ALIASES_KEY, ""))
    except (ValueError, RecursionError):
        return user, {}
    if not isinstance(found, dict) or not all(isinstance(n, str) for n in found.values()):
        return user, {}
    del user[ALIASES_KEY]
    return user, found


def check_all_exportable(tensors: list[Outgoing]) -> None:
    """Refuse what safetensors cannot hold, before anything is written.

    Raises:
        InvalidArgumentError: The first tensor without a form there, and how many there are.
    """
    refused = []
    for tensor in tensors:
        try:
            check_exportable(tensor.name, tensor.dtype)
        except InvalidArgumentError as error:
            refused.append(error)
    if refused:
        more = f" (and {len(refused) - 1} more tensors)" if len(refused) > 1 else ""
        raise InvalidArgumentError(f"{refused[0].message}{more}", code=refused[0].code)
