"""A large manifest is read as far as a read needs it, and what is read is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import bcpformat
from bcpformat import ErrorCode
from bcpformat.engine import load, partial
from bcpformat.model.checks import check_manifest
from bcpformat.model.excerpt import Excerpt
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.model.manifest import MANIFEST_KEY, Ints, Manifest, ints
from bcpformat.model.region import Box
from bcpformat.plan.resolve import ChunkIndex
from bcpformat.testing.faulty_store import FaultyStore
from bcpformat.wire import decode_root, encode_manifest
from tests.engine.manifests import SLAB, opened, slab_manifest, slabs, store_of
from tests.plan.painted import Read, reads

TENSORS, RANKS = 200, 500  # 100,000 chunks in 4 groups, 100,500 runs in 4 groups
WHOLE: Mapping[int, Box] = {}


@pytest.fixture(scope="module")
def large() -> Manifest:
    return slab_manifest(tensors=TENSORS, ranks=RANKS)


@pytest.fixture(scope="module")
def document(large: Manifest) -> bytes:
    assert check_manifest(large, limits=DEFAULT_LIMITS) == []
    return encode_manifest(large, codec="none")


# ---- what is fetched ---------------------------------------------------------------------------


def test_a_small_manifest_costs_one_request() -> None:
    store = FaultyStore(store_of(slab_manifest(tensors=2, ranks=2)))

    with opened(store) as reader:
        excerpt = reader.excerpt(ints([0]), WHOLE)
        values = reader.per_rank

    assert [o.op for o in store.operations] == ["read"]
    assert excerpt.is_whole
    assert len(values) == 2
    assert reader.requests == 1


def test_a_part_of_a_tensor_costs_three_requests(document: bytes) -> None:
    """BCP-MAN-012: the start, its group of chunks, and the group of runs that has the part."""
    store = FaultyStore(store_of(document))

    with opened(store) as reader:
        excerpt = reader.excerpt(ints([TENSORS - 1]), slabs(RANKS - 2))

    groups = {(row.kind, row.first): row for row in reader.root.sections}
    wanted = [groups["chunks", 98304], groups["runs", 98304]]
    assert store.reads == [
        (MANIFEST_KEY, 0, 2**20),
        *((MANIFEST_KEY, row.position_bytes, row.stored_bytes) for row in wanted),
    ]
    assert (reader.requests, reader.read_bytes) == (3, store.bytes_read)
    assert excerpt.manifest.chunks.run.tolist() == [0]
    assert excerpt.chunks is not None
    assert excerpt.chunks.tolist() == [TENSORS * RANKS - 2]


def test_neighbours_are_fetched_together(document: bytes) -> None:
    store = FaultyStore(store_of(document))
    with opened(store) as reader:
        before = len(store.reads)
        reader.excerpt(np.arange(TENSORS), slabs(*[1] * TENSORS))

    chunks = [row for row in reader.root.sections if row.kind == "chunks"]
    assert store.reads[before:] == [
        (MANIFEST_KEY, chunks[0].position_bytes, sum(row.stored_bytes for row in chunks))
    ]


def test_what_lies_apart_is_fetched_apart(document: bytes) -> None:
    store = FaultyStore(store_of(document))
    with opened(store) as reader:
        before = len(store.reads)
        reader.excerpt(ints([0, TENSORS - 1]), slabs(1, 1))

    starts = [offset for _, offset, _ in store.reads[before:]]
    groups = [row.position_bytes for row in reader.root.sections if row.kind == "chunks"]
    assert starts == [groups[0], groups[-1]]


def test_the_state_is_fetched_when_somebody_asks(document: bytes, large: Manifest) -> None:
    with opened(store_of(document)) as reader:
        before = reader.requests
        found = (reader.state, reader.per_rank.rank.tolist(), reader.objects)

        assert reader.requests == before + 1
    assert found == (large.state, large.per_rank.rank.tolist(), tuple(large.objects))


def test_groups_that_are_in_memory_are_not_fetched_again(document: bytes) -> None:
    with opened(store_of(document)) as reader:
        reader.excerpt(ints([TENSORS - 1]), slabs(RANKS - 1))
        before = reader.requests

        reader.excerpt(ints([TENSORS - 2]), slabs(RANKS - 3))

        assert reader.requests == before


def test_wants_of_most_chunks_get_the_rest_in_one_request(document: bytes) -> None:
    with opened(store_of(document)) as reader:
        excerpt = reader.excerpt(np.arange(TENSORS // 2 + 1), WHOLE)

        assert excerpt.is_whole
        assert (reader.requests, reader.read_bytes) == (2, len(document))


def test_after_half_of_the_groups_the_rest_comes_in_one_request(document: bytes) -> None:
    with opened(store_of(document)) as reader:
        for tensor, rank in ((0, 0), (70, 200), (199, 499)):
            assert not reader.excerpt(ints([tensor]), slabs(rank)).is_whole
        before = reader.requests

        assert reader.excerpt(ints([0]), slabs(0)).is_whole
        assert reader.requests == before + 1
        assert reader.is_whole


def test_after_many_excerpts_the_rest_comes_in_one_request(
    document: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial, "MOST_EXCERPTS", 3)
    with opened(store_of(document)) as reader:
        for rank in range(3):
            assert not reader.excerpt(ints([0]), slabs(rank)).is_whole

        assert reader.excerpt(ints([0]), slabs(0)).is_whole


def test_a_closed_manifest_tells_what_it_has_and_no_more(document: bytes) -> None:
    reader = opened(store_of(document))
    with reader:
        found = reader.state
    reader.close()

    assert reader.state is found
    assert len(reader.files) == RANKS
    with pytest.raises(bcpformat.StateError, match="closed"):
        reader.excerpt(ints([TENSORS - 1]), WHOLE)
    with pytest.raises(bcpformat.StateError, match="closed"):
        reader.whole()


# ---- what is found -----------------------------------------------------------------------------


def resolved(excerpt: Excerpt, tensors: Ints, boxes: Mapping[int, Box]) -> tuple[Any, ...]:
    """Return the pieces and blocks of wants, by rows of the whole manifest."""
    pieces, blocks = ChunkIndex(excerpt.manifest).resolve(tensors, boxes)
    columns = [getattr(pieces, f.name).tolist() for f in fields(pieces)]
    columns[0] = list(map(excerpt.chunk, columns[0]))
    columns[2] = list(map(excerpt.run, columns[2]))
    runs = list(map(excerpt.run, blocks.run.tolist()))
    rest = (blocks.index.tolist(), blocks.raw.tolist(), blocks.table.tolist())
    return sorted(zip(*columns, strict=True)), list(zip(runs, *rest, strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_wants_resolve_as_with_the_whole_manifest(
    seed: int, document: bytes, large: Manifest
) -> None:
    rng = np.random.default_rng(seed)
    tensors = ints(rng.integers(0, TENSORS, 40))
    boxes = {}
    for want in rng.choice(40, 30, replace=False).tolist():
        low = rng.integers(0, (SLAB[0] * RANKS, SLAB[1]))
        size = rng.integers(1, np.minimum((SLAB[0] * RANKS, SLAB[1]) - low, 300) + 1)
        boxes[want] = Box(origin=tuple(low.tolist()), shape=tuple(size.tolist()))

    with opened(store_of(document)) as reader:
        excerpt = reader.excerpt(tensors, boxes)

    assert not excerpt.is_whole
    whole = resolved(Excerpt(manifest=large), tensors, boxes)
    assert resolved(excerpt, tensors, boxes) == whole


@given(reads())
@settings(max_examples=50)
def test_any_regions_resolve_as_with_the_whole_manifest(read: Read) -> None:
    files = [replace(row, digest=bytes(16)) for row in read.manifest.files]
    manifest = replace(read.manifest, files=files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "FIRST_REQUEST_BYTES", 64)
        with opened(store_of(manifest)) as reader:
            excerpt = reader.excerpt(read.tensors, read.boxes)

    assert not excerpt.is_whole or not read.boxes or read.whole
    found = resolved(excerpt, read.tensors, read.boxes)
    assert found == resolved(Excerpt(manifest=manifest), read.tensors, read.boxes)


def test_values_come_with_their_runs(document: bytes, large: Manifest) -> None:
    with opened(store_of(document)) as reader:
        before = reader.requests
        excerpt = reader.values(per_rank=ints([0, 3, 499]), objects=ints([0]))

        assert reader.requests == before + 2  # the state, and the last group of runs
    found = excerpt.manifest
    assert found.per_rank.rank.tolist() == [0, 3, 499]
    assert [excerpt.run(row) for row in found.per_rank.run.tolist()] == [200, 803, 100499]
    assert found.runs.raw.tolist() == [84, 10, 10]
    assert [(o.name, o.run, o.offset_bytes) for o in found.objects] == [("object", 0, 64)]


def test_the_whole_manifest_is_there_for_whoever_asks(document: bytes, large: Manifest) -> None:
    with opened(store_of(document)) as reader:
        whole = reader.whole()

        assert reader.requests == 2
    assert encode_manifest(whole, codec="none") == document


# ---- damage ------------------------------------------------------------------------------------


def with_damage(document: bytes, kind: str, first: int) -> bytes:
    """Return a manifest with a bit of a section flipped."""
    root = decode_root(document, key=MANIFEST_KEY, limits=DEFAULT_LIMITS)
    (row,) = (row for row in root.sections if (row.kind, row.first) == (kind, first))
    data = bytearray(document)
    data[row.end_bytes - 1] ^= 1
    return bytes(data)


@pytest.mark.parametrize("kind", ["chunks", "runs"])
def test_damage_in_a_group_that_is_needed_is_refused(kind: str, document: bytes) -> None:
    store = store_of(with_damage(document, kind, 98304))

    with opened(store) as reader, pytest.raises(bcpformat.FormatError) as caught:
        reader.excerpt(ints([TENSORS - 1]), slabs(RANKS - 1))

    assert caught.value.code is ErrorCode.MANIFEST_CHECKSUM


@pytest.mark.parametrize(("kind", "first"), [("chunks", 98304), ("runs", 98304), ("state", 0)])
def test_damage_elsewhere_does_not_matter_but_is_found_by_validation(
    kind: str, first: int, document: bytes
) -> None:
    """BCP-RDR-003; however much has been asked for."""
    store = store_of(with_damage(document, kind, first))

    with opened(store) as reader:
        for tensor, rank in ((0, 0), (70, 200), (130, 300), (1, 0), (70, 1)):
            excerpt = reader.excerpt(ints([tensor]), slabs(rank))
            assert excerpt.manifest.runs.position.tolist() == [4096 * (tensor + 1)]
    report = bcpformat.validate(store, level="manifest")

    assert [p.code for p in report.problems] == [ErrorCode.MANIFEST_CHECKSUM]


def test_a_damaged_state_is_refused_when_somebody_asks(document: bytes) -> None:
    with opened(store_of(with_damage(document, "state", 0))) as reader:
        with pytest.raises(bcpformat.FormatError) as caught:
            _ = reader.per_rank

        assert caught.value.code is ErrorCode.MANIFEST_CHECKSUM
