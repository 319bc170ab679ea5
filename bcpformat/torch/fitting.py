"""A template of an optimizer's state, fitted to what a checkpoint has.

A job that starts anew does not know which parameters had state when the checkpoint was written,
nor which settings its groups had: a scheduler may have added one, or an older torch may lack one.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from bcpformat.api.opened import Checkpoint, TensorView
from bcpformat.model.names import join, segment, split_name
from bcpformat.model.state_walk import saved_leaves
from bcpformat.torch.dtypes import TORCH_DTYPES
from bcpformat.torch.framework import empty_on_host
from bcpformat.torch.optimizers import EMPTY, GROUPS, STATE, Named, Places, Tree, Value

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
    _take_out(tree, entries, parameters)
    here = {segment(name): name for name in tree[GROUPS]}
    plain: list[_Entry] = []
    for (section, part, key), leaves in entries.items():
        name = part if section == EMPTY else here.get(part, "")
        if not name or key in tree.get(section, {}).get(name, {}) or segment(key) != key:
            continue
        if section == STATE and name not in parameters:
            continue
        tensors = [leaf for leaf in leaves if leaf in saved]
        if not tensors:
            plain.append((section, name, key))
        elif len(leaves) == 1:
            like = parameters[name] if section == STATE else None
            _put(tree, (section, name, key), _made(saved[tensors[0]], like))
    _take_plain(tree, saved, under, plain)


def _take_out(tree: Tree, entries: Collection[_Entry], parameters: Collection[str]) -> None:
    """Take out what the checkpoint does not have of a parameter that it has."""
    in_saved = {part for section, part, _ in entries if section == GROUPS}
    for section in (STATE, GROUPS, EMPTY):
        for name, below in list(tree.get(section, {}).items()):
            is_saved = section == EMPTY or segment(name) in in_saved
            if not is_saved or (section == STATE and name not in parameters):
                continue
            for key in [k for k in below if (section, segment(name), segment(k)) not in entries]:
                del below[key]
            if not below and section != GROUPS:
                del tree[section][name]


def _put(tree: Tree, entry: _Entry, value: Value) -> None:
    section, name, key = entry
    tree.setdefault(section, {}).setdefault(name, {})[key] = value


def _entries(saved: Checkpoint, under: str) -> dict[_Entry, list[str]]:
    """Return the entries of a saved tree, each with the names of its leaves."""
    found: dict[_Entry, list[str]] = {}
    depth = len(split_name(under))
    start = join(under, "")
    for name in saved_leaves(saved.outline.state):
        if not name.startswith(start):
            continue
        parts = split_name(name)[depth:]
        if len(parts) >= 3 and parts[0] in (STATE, GROUPS, EMPTY):
            found.setdefault((parts[0], parts[1], parts[2]), []).append(name)
    return found


def _made(saved: TensorView, parameter: torch.Tensor | None) -> torch.Tensor | None:
    """Return a new tensor for a saved one: laid out as the parameter if it has its shape."""
    dtype = TORCH_DTYPES.get(saved.dtype)
    if dtype is None:
        return None  # the read says what is wrong
    if parameter is not None and tuple(parameter.shape) == saved.shape:
        return torch.zeros_like(parameter, dtype=dtype)
    return empty_on_host(dtype, saved.shape).zero_()


def _take_plain(tree: Tree, saved: Checkpoint, under: str, wanted: list[_Entry]) -> None:
    """Put plain values of the checkpoint into the tree, so that they have the form they have."""
    if not wanted:
        return
    depth = len(split_name(under)) + 3
    names = {join(under, f"{section}/{segment(name)}/{key}") for section, name, key in wanted}
    whole: Value = saved.state(filter=lambda name: "/".join(split_name(name)[:depth]) in names)
    for part in split_name(under):
        whole = whole[part]
    for section, name, key in wanted:
        _put(tree, (section, name, key), whole[section][name][key])
