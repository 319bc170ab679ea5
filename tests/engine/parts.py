"""Parts of several ranks with all that belongs together, and what their manifest must say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from bcpformat.codec.digest import document_digest
from bcpformat.engine.part import Part, ReplicaChecks, StoredObjects
from bcpformat.engine.state_record import state_digest
from bcpformat.model.leaves import NumpyAdapter
from bcpformat.model.manifest import ChunkTable, FileRow, PerRankTable, RunTable, ints
from bcpformat.model.rank_state import ObjectRef, RankState
from bcpformat.model.state import EncodedState, encode_state
from bcpformat.model.user_types import TypeRegistry
from bcpformat.plan.pack import pack
from bcpformat.wire import encode_document

ATTEMPT = bytes(range(16))


@dataclass(frozen=True)
class Piece:
    """One chunk: where it is in its tensor."""

    name: str
    origin: tuple[int, ...]
    extent: tuple[int, ...]
    start: int = 0
    count: int | None = None

    @property
    def elements(self) -> int:
        return prod(self.extent) if self.count is None else self.count


def encoded(value: object) -> EncodedState:
    types = TypeRegistry()
    return encode_state(value, adapters={np.ndarray: NumpyAdapter()}, encoders={}, types=types)


def described(state: EncodedState, *, with_digest: bool = True) -> RankState:
    made = RankState(
        root=state.root,
        names=state.names,
        dtypes=[leaf.dtype for leaf in state.leaves],
        shapes=[leaf.shape for leaf in state.leaves],
        aliases=state.aliases,
        objects=[
            ObjectRef(name=name, nbytes=len(data), digest=document_digest(data))
            for name, data in state.objects
        ],
        per_rank=len(state.per_rank),
    )
    return replace(made, digest=state_digest(made)) if with_digest else made


def whole(state: EncodedState) -> list[Piece]:
    """Every tensor as one chunk."""
    return [
        Piece(name, (0,) * len(leaf.shape), leaf.shape)
        for name, leaf in zip(state.names, state.leaves, strict=True)
        if 0 not in leaf.shape
    ]


@dataclass
class Rank:
    """What one rank holds and stores, before it is a part."""

    value: object
    pieces: Sequence[Piece] | None = None
    objects: Sequence[str] | None = None
    checks: ReplicaChecks = field(default_factory=ReplicaChecks)
    with_columns: bool = True


def part_of(rank: int, has: Rank, *, extra: Mapping[int, Any] | None = None) -> Part:
    """The part of a rank whose data files are packed as the writer packs them."""
    state = encoded(has.value)
    row = {name: number for number, name in enumerate(state.names)}
    pieces = sorted(
        has.pieces if has.pieces is not None else whole(state), key=lambda p: row[p.name]
    )
    objects = [
        number
        for number, (name, _) in enumerate(state.objects)
        if has.objects is None or name in has.objects
    ]
    nbytes = [p.elements * state.leaves[row[p.name]].value.dtype.itemsize for p in pieces]
    item = [min(state.leaves[row[p.name]].value.dtype.itemsize, 8) for p in pieces]
    chunks, ranks = len(pieces), len(state.per_rank)
    nbytes += [len(encode_document(node)) for _, node in state.per_rank]
    nbytes += [len(state.objects[number][1]) for number in objects]
    packing = pack(ints(nbytes), ints([*item, *[1] * (len(nbytes) - chunks)]))
    raw = packing.run_raw
    padded = -(-raw // 4096) * 4096
    blocks = ((raw - 1) >> packing.run_block_log2) + 1
    files = [
        FileRow(
            name=f"{ATTEMPT.hex()}-{rank:06d}-000000.bcd",
            attempt_id=ATTEMPT,
            table_bytes=4096 + int(padded.sum()),
            blocks=int(blocks.sum()),
            digest=bytes([rank % 256]) * 16,
        )
    ][: len(raw)]
    is_plain = not has.with_columns or not pieces
    described_state = described(state)
    if extra is not None:
        described_state = replace(described_state, extra=extra, digest=b"")
    return Part(
        rank=rank,
        attempt_id=ATTEMPT,
        state=described_state,
        files=files,
        runs=RunTable(
            file=np.zeros_like(raw),
            position=4096 + np.cumsum(padded) - padded,
            raw=raw,
            stored=raw,
            codec=np.zeros_like(raw),
            item=packing.run_item,
            block_log2=packing.run_block_log2,
            block0=np.cumsum(blocks) - blocks,
        ),
        chunk_tensor=ints([row[p.name] for p in pieces]),
        chunks=ChunkTable(
            run=packing.run[:chunks],
            offset=packing.offset[:chunks],
            origin=None if is_plain else ints([n for p in pieces for n in p.origin]),
            extent=None if is_plain else ints([n for p in pieces for n in p.extent]),
            start=ints([p.start for p in pieces]) if any(p.count for p in pieces) else None,
            count=ints([p.elements for p in pieces]) if any(p.count for p in pieces) else None,
        ),
        per_rank=PerRankTable(
            path=np.arange(ranks),
            rank=np.full(ranks, rank),
            run=packing.run[chunks : chunks + ranks],
            offset=packing.offset[chunks : chunks + ranks],
            nbytes=ints(nbytes[chunks : chunks + ranks]),
        ),
        objects=StoredObjects(
            object=ints(objects),
            run=packing.run[chunks + ranks :],
            offset=packing.offset[chunks + ranks :],
        ),
        checks=has.checks,
        raw_bytes=sum(nbytes),
    )
