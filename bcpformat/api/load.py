"""Whole reads: the state as it was, or the selected part of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bcpformat.api.framework import NUMPY, Allocated, Framework, load_torch, torch_installed
from bcpformat.api.selection import Filter, name_filter
from bcpformat.engine.checkpoint_reader import CheckpointReader
from bcpformat.engine.memory import address_of, copy
from bcpformat.engine.sink import Destinations
from bcpformat.errors import ErrorCode, FormatError, InvalidArgumentError
from bcpformat.model.dtypes import DType
from bcpformat.model.geometry import tensor_nbytes
from bcpformat.model.leaves import FLAG_NUMPY, PerRankValues
from bcpformat.model.manifest import Node, ints
from bcpformat.model.nodes import TORCH_DEVICE, TORCH_DTYPE, TORCH_SIZE
from bcpformat.model.progress import Progress
from bcpformat.model.state_decode import decode_state, prune_state, state_leaves
from bcpformat.model.user_types import default_types
from bcpformat.wire import decode_document


@dataclass(slots=True)
class _Made:
    """A tensor of the result before its elements are there."""

    allocated: Allocated
    library: Framework
    leaves: list[tuple[int, Any]]  # Any: what `finish` made of it


class StateBuilder:
    """Makes the values of a state tree, and fills their elements with one planned read."""

    def __init__(self, reader: CheckpointReader, *, as_numpy: bool) -> None:
        self._reader = reader
        self._manifest = reader.manifest
        self._nbytes = tensor_nbytes(self._manifest.tensors)
        self._may_use_torch = not as_numpy and torch_installed()
        self._torch: Framework | None = None  # imported when a value needs it

    def whole(self, chosen: Filter, progress: Progress) -> object:
        """Return the state, or the part of it that a filter selects."""
        take = name_filter(chosen)
        root = self._manifest.state if chosen is None else prune_state(self._manifest.state, take)
        if root is None:
            text = f"filter {chosen!r} selects none of the names of this checkpoint"
            raise InvalidArgumentError(text, code=ErrorCode.MISMATCH)
        return self.build(root, progress)

    def build(self, root: Node, progress: Progress) -> object:
        """Return the value of a node of the state, its tensors filled."""
        tensors = self._allocate(root)
        self._fill(tensors, progress)

        def tensor(index: int, flags: int) -> object:
            made = tensors[index, self._library(flags).name]
            for known, leaf in made.leaves:
                if known == flags:
                    return leaf
            leaf = made.library.finish(made.allocated.value, flags)
            made.leaves.append((flags, leaf))
            return leaf

        return decode_state(
            root,
            tensor=tensor,
            read_object=self.read_object,
            per_rank=self.per_rank_values,
            builders=self._builders(),
            types=default_types(),
        )

    def _library(self, flags: int) -> Framework:
        if flags & FLAG_NUMPY or not self._may_use_torch:
            return NUMPY
        if self._torch is None:
            self._torch = load_torch()
        return self._torch

    def _builders(self) -> Mapping[int, Callable[[Any], object]]:  # Any: see `Builder`
        """Return what makes values of torch's own types; torch is imported for the first one."""
        if not self._may_use_torch:
            return {}
        kinds = (TORCH_SIZE, TORCH_DTYPE, TORCH_DEVICE)
        return {kind: partial(_build, kind) for kind in kinds}

    def _allocate(self, root: Node) -> dict[tuple[int, str], _Made]:
        table = self._manifest.tensors
        wanted = {
            (index, self._library(flags).name): flags for _, index, flags in state_leaves(root)
        }
        self._reader.check_budget(int(self._nbytes[ints([i for i, _ in wanted])].sum()))
        made = {}
        for (index, name), flags in wanted.items():
            library = self._library(flags)
            dtype = DType.named(table.dtypes[index])
            allocated = library.allocate(dtype, table.shapes[index])
            made[index, name] = _Made(allocated=allocated, library=library, leaves=[])
        return made

    def _fill(self, tensors: dict[tuple[int, str], _Made], progress: Progress) -> None:
        rows = ints([index for index, _ in tensors])
        made = list(tensors.values())
        out = Destinations(
            address=ints([m.allocated.address for m in made]),
            nbytes=self._nbytes[rows],
            strided={},
            owners=made,
        )
        self._reader.read_tensors(rows, {}, out, progress=progress)
        for entry in made:
            if entry.allocated.after is not None:
                value = entry.allocated.after()
                entry.allocated = Allocated(value=value, address=0)

    def read_object(self, row: int) -> bytes:
        """Return the bytes of an object."""
        return self._reader.read_object(row).tobytes()

    def per_rank_values(self, path: int) -> PerRankValues:
        """Return the values of all ranks at a per-rank node."""
        table = self._manifest.per_rank
        rows = np.flatnonzero(table.path == path)
        ranks = table.rank[rows].tolist()
        return PerRankValues(dict(zip(ranks, self.per_rank_rows(rows), strict=True)))

    def per_rank_rows(self, rows: Any) -> list[object]:  # Any: an integer array
        """Return the values of some rows of the per-rank table."""
        documents = self._reader.read_per_rank(rows)
        return [self._decode_per_rank(data.tobytes()) for data in documents]

    def _decode_per_rank(self, data: bytes) -> object:
        node = decode_document(data, where="per-rank value")

        def refuse(*_: object) -> object:
            text = "a per-rank value refers to a tensor, an object or another per-rank value"
            raise FormatError(text, code=ErrorCode.STATE)

        return decode_state(
            node,
            tensor=refuse,
            read_object=_refuse_object,
            per_rank=refuse,
            builders=self._builders(),
            types=default_types(),
            inline=self._inline,
        )

    def _inline(self, flags: int, dtype: str, shape: tuple[int, ...], data: bytes) -> object:
        """Return a tensor that lies within a per-rank value."""
        library = self._library(flags)
        allocated = library.allocate(DType.named(dtype), shape)
        if data:
            copy(allocated.address, address_of(np.frombuffer(data, dtype=np.uint8)), len(data))
        value = allocated.after() if allocated.after is not None else allocated.value
        return library.finish(value, flags)


def _build(kind: int, value: Any) -> object:  # Any: see `Builder`
    return load_torch().builders[kind](value)


def _refuse_object(_row: int) -> bytes:
    raise FormatError("a per-rank value refers to an object", code=ErrorCode.STATE)


def read_whole(
    reader: CheckpointReader,
    *,
    chosen: Filter,
    as_numpy: bool,
    progress: Progress,
) -> object:
    """Return the whole state, or what a filter selects of it."""
    return StateBuilder(reader, as_numpy=as_numpy).whole(chosen, progress)
