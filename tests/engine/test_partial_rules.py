"""A reader of a part applies every rule to the rows it uses (BCP-RDR-003).

The first request brings 64 bytes here, so that every manifest is a large one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import bcpformat
from bcpformat import ErrorCode
from bcpformat.engine import load
from bcpformat.model.checks import check_manifest
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.model.manifest import Manifest, ints
from tests.engine.manifests import opened, slab_manifest, slabs, store_of

pytestmark = pytest.mark.usefixtures("small_requests")
Change = Callable[[Manifest], Manifest]


@pytest.fixture(scope="module")
def small_requests() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "FIRST_REQUEST_BYTES", 64)
        yield


def column(table: str, name: str, rows: int | slice, value: int) -> Change:
    """Return what changes values of a column."""

    def change(manifest: Manifest) -> Manifest:
        found = getattr(manifest, table)
        values = getattr(found, name).copy()
        values[rows] = value
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
    ("a file that does not exist", column("runs", "file", slice(8, 12), 3), ErrorCode.INDEX),
    ("a file of another kind", file_row(1, kind="parity"), ErrorCode.INDEX),
    ("more stored than raw", column("runs", "stored", 4, 513), ErrorCode.RAW_LENGTH),
    ("fewer stored than raw", column("runs", "stored", 4, 511), ErrorCode.RAW_LENGTH),
    ("a part of an element", column("runs", "raw", 4, 510), ErrorCode.RAW_LENGTH),
    ("a run at any byte", column("runs", "position", 4, 4097), ErrorCode.ALIGN),
    ("a run in the header", column("runs", "position", 4, 0), ErrorCode.ALIGN),
    ("a run in the table", file_row(1, table_bytes=4096), ErrorCode.EXTENT_OVERLAP),
    ("a table at any byte", file_row(1, table_bytes=20481), ErrorCode.ALIGN),
    ("a block beyond the table", column("runs", "block0", 4, 9), ErrorCode.TABLE),
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


@pytest.mark.parametrize(("change", "code"), [r[1:] for r in RULES], ids=[r[0] for r in RULES])
def test_a_rule_is_applied_to_the_rows_that_are_used(change: Change, code: ErrorCode) -> None:
    """BCP-RDR-003."""
    manifest = change(slab_manifest(tensors=3, ranks=3))

    with pytest.raises(bcpformat.FormatError) as caught, opened(store_of(manifest)) as reader:
        reader.excerpt(ints([0]), {})

    assert caught.value.code is code
    found = check_manifest(manifest, limits=DEFAULT_LIMITS)
    assert code in [problem.code for problem in found]


@pytest.mark.parametrize("change", [r[1] for r in CHUNK_RULES], ids=[r[0] for r in CHUNK_RULES])
def test_a_rule_is_not_applied_to_the_rows_of_others(change: Change) -> None:
    manifest = change(slab_manifest(tensors=3, ranks=3))

    with opened(store_of(manifest)) as reader:
        found = reader.excerpt(ints([2]), {}).manifest

    assert found.runs.position.tolist() == [3 * 4096] * 3
    assert check_manifest(manifest, limits=DEFAULT_LIMITS) != []


def test_all_regions_of_a_tensor_are_checked_where_a_part_is_wanted() -> None:
    manifest = column("chunks", "origin", 4, 15)(slab_manifest(tensors=3, ranks=3))

    with opened(store_of(manifest)) as reader, pytest.raises(bcpformat.FormatError) as caught:
        reader.excerpt(ints([0]), slabs(0))

    assert caught.value.code is ErrorCode.COVERAGE


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (column("per_rank", "run", 1, 12), ErrorCode.INDEX),
        (column("per_rank", "offset", 1, 8), ErrorCode.ALIGN),
        (column("per_rank", "nbytes", 1, 11), ErrorCode.EXTENT_BOUNDS),
        (column("per_rank", "run", 1, 4), ErrorCode.ITEM),
        (column("per_rank", "path", 2, 2), ErrorCode.INDEX),
        (column("per_rank", "run", 1, 3), ErrorCode.EXTENT_OVERLAP),
    ],
)
def test_a_rule_is_applied_to_the_values_that_are_used(change: Change, code: ErrorCode) -> None:
    store = store_of(change(slab_manifest(tensors=3, ranks=3)))

    with opened(store) as reader, pytest.raises(bcpformat.FormatError) as caught:
        reader.values(per_rank=ints([0, 1]), objects=ints([]))

    assert caught.value.code is code


def test_names_that_are_equal_are_refused_at_once() -> None:
    """BCP-MAN-018."""
    manifest = slab_manifest(tensors=3, ranks=3)
    tensors = replace(manifest.tensors, aliases={0: ("t00001",)})

    with pytest.raises(bcpformat.FormatError) as caught:
        opened(store_of(replace(manifest, tensors=tensors)))

    assert caught.value.code is ErrorCode.NAME


def test_messages_number_rows_as_the_manifest_does() -> None:
    manifest = column("chunks", "offset", 7, 64)(slab_manifest(tensors=3, ranks=3))

    with (
        opened(store_of(manifest)) as reader,
        pytest.raises(bcpformat.FormatError, match=r"chunk 7 of tensor 't00002'.*run 6"),
    ):
        reader.excerpt(ints([2]), slabs(1))
