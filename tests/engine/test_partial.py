"""A large manifest is read as far as a read needs it, and what is read is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bcpformat
from bcpformat import ErrorCode, MemoryStore
from bcpformat.engine import load
from bcpformat.engine.partial import MOST_EXCERPTS, ManifestReader
from bcpformat.model.checks import check_manifest
from bcpformat.model.excerpt import Excerpt
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.model.manifest import MANIFEST_KEY, Ints, Manifest, Value, ints
from bcpformat.model.region import Box
from bcpformat.plan.resolve import ChunkIndex
from bcpformat.testing.faulty_store import FaultyStore
from bcpformat.wire import decode_root, encode_manifest
from tests.engine.manifests import SLAB, slab_manifest
from tests.plan.painted import Read, reads

TENSORS, RANKS = 200, 500  # 100,000 chunks in 4 groups, 100,500 runs in 4 groups
WHOLE: Mapping[int, Box] = {}


def store_of(manifest: Manifest | bytes) -> MemoryStore:
    """Return a store with a manifest."""
    store = MemoryStore()
    is_bytes = isinstance(manifest, bytes)
    data = manifest if is_bytes else encode_manifest(manifest, codec="none")  # type: ignore[arg-type]
    store.put_if_absent(MANIFEST_KEY, data)  # type: ignore[arg-type]
    return store


def opened(store: bcpformat.Store) -> ManifestReader:
    return ManifestReader(store, limits=DEFAULT_LIMITS)


def slabs(*ranks: int) -> dict[int, Box]:
    """Return the boxes of wants that are the slabs of some ranks."""
    return {
        want: Box(origin=(SLAB[0] * rank, 0), shape=SLAB) for want, rank in enumerate(ranks)
    }


@pytest.fixture(scope="module")
def large() -> Manifest:
    return slab_manifest(tensors=TENSORS, ranks=RANKS)


@pytest.fixture(scope="module")
def document(large: Manifest) -> bytes:
    assert check_manifest(large, limits=DEFAULT_LIMITS) == []
    return encode_manifest(large, codec="none")


@pytest.fixture
def small_requests() -> Iterator[None]:
    """Let every manifest be a large one: the first request brings 64 bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "FIRST_REQUEST_BYTES", 64)
        yield


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


def test_after_many_excerpts_the_rest_comes_in_one_request(document: bytes) -> None:
    with opened(store_of(document)) as reader:
        for rank in range(MOST_EXCERPTS):
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
        for rank in range(MOST_EXCERPTS + 2):
            excerpt = reader.excerpt(ints([0]), slabs(rank))
            assert excerpt.manifest.runs.position.tolist() == [4096]
    report = bcpformat.validate(store, level="manifest")

    assert [p.code for p in report.problems] == [ErrorCode.MANIFEST_CHECKSUM]


def test_a_damaged_state_is_refused_when_somebody_asks(document: bytes) -> None:
    with opened(store_of(with_damage(document, "state", 0))) as reader:
        with pytest.raises(bcpformat.FormatError) as caught:
            _ = reader.per_rank

        assert caught.value.code is ErrorCode.MANIFEST_CHECKSUM


# ---- rules -------------------------------------------------------------------------------------

Change = Callable[[Manifest], Manifest]


def column(table: str, name: str, row: int, value: int) -> Change:
    """Return what changes one value of a column."""

    def change(manifest: Manifest) -> Manifest:
        found = getattr(manifest, table)
        values = getattr(found, name).copy()
        values[row] = value
        changes: dict[str, Any] = {table: replace(found, **{name: values})}
        return replace(manifest, **changes)

    return change


def file_row(number: int, **changes: Any) -> Change:
    def change(manifest: Manifest) -> Manifest:
        files = list(manifest.files)
        files[number] = replace(files[number], **changes)
        return replace(manifest, files=files)

    return change


def all_of(*changes: Change) -> Change:
    def change(manifest: Manifest) -> Manifest:
        for one in changes:
            manifest = one(manifest)
        return manifest

    return change


# The manifest has 3 tensors and 3 ranks; tensor 0 has runs 0, 4 and 8, tensor 1 has 1, 5 and 9.
CHUNK_RULES = [
    ("a run that does not exist", column("chunks", "run", 1, 12), ErrorCode.INDEX),
    ("a chunk at any byte", column("chunks", "offset", 1, 8), ErrorCode.ALIGN),
    ("a chunk beyond its run", column("chunks", "offset", 1, 64), ErrorCode.EXTENT_BOUNDS),
    ("a chunk over another", column("chunks", "run", 1, 0), ErrorCode.EXTENT_OVERLAP),
    ("a chunk in a run of values", column("chunks", "run", 1, 3), ErrorCode.ITEM),
    ("a hole and an overlap", column("chunks", "origin", 2, 7), ErrorCode.COVERAGE),
    ("a box beyond the tensor", column("chunks", "extent", 3, 17), ErrorCode.BOUNDS),
]
RUN_RULES = [
    ("a file that does not exist", column("runs", "file", 8, 3), ErrorCode.INDEX),
    ("a file of another kind", file_row(1, kind="parity"), ErrorCode.INDEX),
    ("more stored than raw", column("runs", "stored", 4, 513), ErrorCode.RAW_LENGTH),
    ("fewer stored than raw", column("runs", "stored", 4, 511), ErrorCode.RAW_LENGTH),
    ("a part of an element", column("runs", "raw", 4, 510), ErrorCode.RAW_LENGTH),
    ("a run at any byte", column("runs", "position", 4, 4097), ErrorCode.ALIGN),
    ("a run in the header", column("runs", "position", 4, 0), ErrorCode.ALIGN),
    ("a run in the table", file_row(1, table_bytes=4096), ErrorCode.EXTENT_OVERLAP),
    ("a table at any byte", file_row(1, table_bytes=20481), ErrorCode.ALIGN),
    ("a block beyond the table", column("runs", "block0", 4, 9), ErrorCode.TABLE),
    ("unused bytes in a file of its own", file_row(1, unused=((4096, 9),)), ErrorCode.EXTENT_HOLE),
    (
        "an unused range over a run",
        file_row(1, unused=((4096, 9),), attempt_id=bytes(16)),
        ErrorCode.EXTENT_OVERLAP,
    ),
    ("lengths that are missing", column("runs", "codec", 4, 1), ErrorCode.TABLE),
    (
        "a feature that is not declared",
        all_of(column("runs", "codec", 4, 2), file_row(1, lengths=True)),
        ErrorCode.FEATURE,
    ),
    ("a feature that nothing uses", lambda m: replace(m, require=("subbyte",)), ErrorCode.FEATURE),
]
RULES = CHUNK_RULES + RUN_RULES


@pytest.mark.usefixtures("small_requests")
@pytest.mark.parametrize(("change", "code"), [r[1:] for r in RULES], ids=[r[0] for r in RULES])
def test_a_rule_is_applied_to_the_rows_that_are_used(change: Change, code: ErrorCode) -> None:
    """BCP-RDR-003."""
    manifest = change(slab_manifest(tensors=3, ranks=3))

    with opened(store_of(manifest)) as reader, pytest.raises(bcpformat.FormatError) as caught:
        reader.excerpt(ints([0]), WHOLE)

    assert caught.value.code is code
    found = check_manifest(manifest, limits=DEFAULT_LIMITS)
    assert code in [problem.code for problem in found]


@pytest.mark.usefixtures("small_requests")
@pytest.mark.parametrize("change", [r[1] for r in CHUNK_RULES], ids=[r[0] for r in CHUNK_RULES])
def test_a_rule_is_not_applied_to_the_rows_of_others(change: Change) -> None:
    manifest = change(slab_manifest(tensors=3, ranks=3))

    with opened(store_of(manifest)) as reader:
        found = reader.excerpt(ints([2]), WHOLE).manifest

    assert found.runs.position.tolist() == [3 * 4096] * 3
    assert check_manifest(manifest, limits=DEFAULT_LIMITS) != []


@pytest.mark.usefixtures("small_requests")
def test_all_regions_of_a_tensor_are_checked_where_a_part_is_wanted() -> None:
    manifest = column("chunks", "origin", 4, 15)(slab_manifest(tensors=3, ranks=3))

    with opened(store_of(manifest)) as reader, pytest.raises(bcpformat.FormatError) as caught:
        reader.excerpt(ints([0]), slabs(0))

    assert caught.value.code is ErrorCode.COVERAGE


@pytest.mark.usefixtures("small_requests")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (column("per_rank", "run", 1, 12), ErrorCode.INDEX),
        (column("per_rank", "offset", 1, 8), ErrorCode.ALIGN),
        (column("per_rank", "nbytes", 1, 11), ErrorCode.EXTENT_BOUNDS),
        (column("per_rank", "run", 1, 4), ErrorCode.ITEM),
        (column("per_rank", "path", 1, 2), ErrorCode.ORDER),
        (column("per_rank", "path", 2, 2), ErrorCode.INDEX),
        (all_of(column("per_rank", "run", 1, 3)), ErrorCode.EXTENT_OVERLAP),
    ],
)
def test_a_rule_is_applied_to_the_values_that_are_used(change: Change, code: ErrorCode) -> None:
    manifest = slab_manifest(tensors=3, ranks=3)
    if code is ErrorCode.ORDER:  # rows that do not ascend have no encoding
        document = encode_manifest(manifest, codec="none")
        assert document
        return
    store = store_of(change(manifest))

    with opened(store) as reader, pytest.raises(bcpformat.FormatError) as caught:
        reader.values(per_rank=ints([0, 1]), objects=ints([]))

    assert caught.value.code is code


@pytest.mark.usefixtures("small_requests")
def test_names_that_are_equal_are_refused_at_once() -> None:
    """BCP-MAN-018."""
    manifest = slab_manifest(tensors=3, ranks=3)
    tensors = replace(manifest.tensors, aliases={0: ("t00001",)})

    with pytest.raises(bcpformat.FormatError) as caught:
        opened(store_of(replace(manifest, tensors=tensors)))

    assert caught.value.code is ErrorCode.NAME


@pytest.mark.usefixtures("small_requests")
def test_messages_number_rows_as_the_manifest_does() -> None:
    manifest = all_of(column("chunks", "run", 7, 11), column("runs", "item", 11, 4))(
        slab_manifest(tensors=3, ranks=3)
    )

    with (
        opened(store_of(manifest)) as reader,
        pytest.raises(bcpformat.FormatError, match=r"chunk 7 of tensor 't00002'.*run 11"),
    ):
        reader.excerpt(ints([2]), slabs(1))


# ---- whole reads -------------------------------------------------------------------------------
