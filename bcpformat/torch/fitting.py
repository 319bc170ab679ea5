"""A template of an optimizer's state, fitted to what a checkpoint has.

A job that starts anew does not know which parameters had state when the checkpoint was written,
nor which settings its groups had: a scheduler may have added one, or an older torch may lack one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from bcpformat.api.opened import Checkpoint
from bcpformat.model.manifest import Node
from bcpformat.model.names import join, segment, split_name
from bcpformat.model.nodes import TENSOR
from bcpformat.model.state_walk import saved_leaves
from bcpformat.torch.dtypes import TORCH_DTYPES
from bcpformat.torch.framework import empty_on_host
from bcpformat.torch.optimizers import EMPTY, GROUPS, STATE, Named, Places, Tree

_Entry = tuple[str, str, str]
"""Section of the tree, name there, and key below."""


def fit(tree: Tree, places: Places, saved: Checkpoint, *, under: str) -> None:
    """Give the tree of `optimizer_tree` the entries that a checkpoint has, and no others.

    What the checkpoint has of parameters that the optimizers have, and the tree lacks, is made,
    tensors with zeros; what the checkpoint lacks is taken out.  Parameters that the checkpoint
    does not have at all stay, and a read reports them; so does the state of those in flat buffers.

    Args:
        tree: Changed.
        places: The place of every parameter.
        saved: The checkpoint.
        under: Name of the tree in the checkpoint.
    """
    entries = _entries(saved, under)
    parameters = {place.names[0]: p for p, place in places.items() if type(place) is Named}
    in_saved = {part for section, part, _ in entries if section == GROUPS}
    for section, name, key in list(_live(tree)):
        may_go = section == EMPTY or segment(name) in in_saved
        if section == STATE and name not in parameters:
            may_go = False
        if may_go and (section, segment(name), segment(key)) not in entries:
            del tree[section][name][key]
    for section in (STATE, EMPTY):
        for name in [name for name, below in tree.get(section, {}).items() if not below]:
            del tree[section][name]
    here = {segment(name): name for name in tree[GROUPS]}
    plain: list[_Entry] = []
    for (section, part, key), leaves in entries.items():
        name = part if section == EMPTY else here.get(part, "")
        known = tree.get(section, {}).get(name, {})
        if not name or key in known or segment(key) != key:
            continue
        rows = [_row(node) for node in leaves.values()]
        if all(row is None for row in rows) and (section != STATE or name in parameters):
            plain.append((section, name, key))
        elif len(rows) == 1 and rows[0] is not None:
            if section != STATE:
                _put(tree, (section, name, key), _made(saved, rows[0], None))
            elif name in parameters:
                _put(tree, (section, name, key), _made(saved, rows[0], parameters[name]))
    _take_plain(tree, saved, under, plain)


def _put(tree: Tree, entry: _Entry, value: Any) -> None:
    section, name, key = entry
    tree.setdefault(section, {}).setdefault(name, {})[key] = value


def _entries(saved: Checkpoint, under: str) -> dict[_Entry, dict[str, Node]]:
    """Return the entries of a saved tree, each with its leaves by name."""
    found: dict[_Entry, dict[str, Node]] = {}
    depth = len(split_name(under))
    start = join(under, "")
    for name, node in saved_leaves(saved.manifest.state).items():
        if not name.startswith(start):
            continue
        parts = split_name(name)[depth:]
        if len(parts) >= 3 and parts[0] in (STATE, GROUPS, EMPTY):
            found.setdefault((parts[0], parts[1], parts[2]), {})[name] = node
    return found


def _live(tree: Tree) -> Iterator[tuple[str, str, Any]]:
    for section in (STATE, GROUPS, EMPTY):
        for name, below in tree.get(section, {}).items():
            for key in below:
                yield section, name, key


def _row(node: Node) -> int | None:
    """Return the row of a tensor's node, None for any other."""
    if type(node) is int:
        return node
    if isinstance(node, list) and node and node[0] == TENSOR and isinstance(node[1], int):
        return node[1]
    return None


def _made(saved: Checkpoint, row: int, parameter: torch.Tensor | None) -> torch.Tensor | None:
    """Return a new tensor for a saved one: laid out as the parameter if it has its shape."""
    table = saved.manifest.tensors
    shape, dtype = tuple(table.shapes[row]), TORCH_DTYPES.get(table.dtypes[row])
    if dtype is None:
        return None  # the read says what is wrong
    if parameter is not None and tuple(parameter.shape) == shape:
        return torch.zeros_like(parameter, dtype=dtype)
    return empty_on_host(dtype, shape).zero_()


def _take_plain(tree: Tree, saved: Checkpoint, under: str, wanted: list[_Entry]) -> None:
    """Put plain values of the checkpoint into the tree, so that they have the form they have."""
    if not wanted:
        return
    depth = len(split_name(under)) + 3
    names = {join(under, f"{section}/{segment(name)}/{key}") for section, name, key in wanted}
    whole: Any = saved.state(filter=lambda name: "/".join(split_name(name)[:depth]) in names)
    for part in split_name(under):
        whole = whole[part]
    for section, name, key in wanted:
        _put(tree, (section, name, key), whole[section][name][key])
