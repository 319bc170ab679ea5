"""The root, its sections and the sections that are arrays of maps (spec 7.1 to 7.3, 7.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import bcpformat
from bcpformat import Limits, ReadOptions
from bcpformat.wire.manifest import Sections
from bcpformat.wire.root import decode_root
from bcpformat.wire.sections import SectionRow
from tests.oracle.make_checkpoint import Run, xxh128
from tests.rules.build import (
    ATTEMPT,
    EARLIER,
    EXPECTED,
    FLOATS,
    Draft,
    Parts,
    Section,
    base,
    compressed,
    pack,
    root,
)
from tests.rules.samples import single
from tests.rules.verdicts import OPTIONS, accept, read, refuse, refuse_to_open, store_of

# ---- keys, types and ranges --------------------------------------------------------------------

NEEDED = [
    *(("root", key) for key in ("created", "digest", "id", "optional", "require", "writer")),
    *(("writer", key) for key in ("name", "version")),
    *(("files", key) for key in ("blocks", "digest", "name", "table")),
    *(("tensors", key) for key in ("dtype", "name", "shape")),
    *(("objects", key) for key in ("name", "nbytes", "offset", "run")),
]


@pytest.mark.parametrize(("where", "key"), NEEDED)
def test_a_key_that_is_needed_must_be_there(where: str, key: str) -> None:
    """BCP-MAN-005: E_KEY_MISSING, in the root and in every row."""
    draft = base()
    row = draft.first(where)
    if where == "files":
        row[key] = None
    else:
        del row[key]

    refuse_to_open(draft, "E_KEY_MISSING")


def test_a_root_without_sections_misses_a_key() -> None:
    """BCP-MAN-005: the last key that is needed."""
    parts = base().parts()
    parts.root = pack(base().root)

    refuse_to_open(parts, "E_KEY_MISSING")


@pytest.mark.parametrize(
    ("where", "key", "value"),
    [
        ("root", "created", "now"),
        ("root", "created", True),
        ("root", "digest", b"xxh3-64"),
        ("root", "ext", []),
        ("root", "id", "0" * 16),
        ("root", "optional", {}),
        ("root", "optional", [1]),
        ("root", "require", "planes-zstd"),
        ("root", "require", [b"planes-zstd"]),
        ("root", "sections", {}),
        ("root", "step", False),
        ("root", "user", "none"),
        ("root", "writer", "me"),
        ("writer", "name", 1),
        ("writer", "version", 1),
        ("files", "attempt", "0" * 16),
        ("files", "blocks", "3"),
        ("files", "digest", "0" * 16),
        ("files", "ext", []),
        ("files", "kind", 0),
        ("files", "lengths", 1),
        ("files", "name", b"a.bcd"),
        ("files", "table", b""),
        ("files", "unused", {}),
        ("files", "unused", [4096, "1"]),
        ("tensors", "aliases", "q"),
        ("tensors", "aliases", [1]),
        ("tensors", "chunks", True),
        ("tensors", "dtype", 1),
        ("tensors", "ext", []),
        ("tensors", "name", b"p"),
        ("tensors", "segments", {}),
        ("tensors", "segments", [1]),
        ("tensors", "segments", [["q", 0, 0, b""]]),
        ("tensors", "segments", [[0, 0, 0, 1]]),
        ("tensors", "shape", 4096),
        ("tensors", "shape", ["4096"]),
        ("tensors", "user", []),
        ("objects", "media", b""),
        ("objects", "name", b"blob"),
        ("objects", "nbytes", "100"),
        ("objects", "offset", [128]),
        ("objects", "run", "1"),
    ],
)
def test_a_value_must_have_the_type_of_its_key(where: str, key: str, value: object) -> None:
    """BCP-MAN-005: E_TYPE; a bool is no integer and bin is no str."""
    draft = base()
    draft.first(where)[key] = value

    refuse_to_open(draft, "E_TYPE")


@pytest.mark.parametrize(
    ("where", "key", "value"),
    [
        ("root", "id", ATTEMPT[:15]),
        ("root", "id", ATTEMPT + b"\0"),
        ("files", "attempt", EARLIER[:15]),
        ("files", "digest", bytes(17)),
        ("files", "digest", b""),
        ("tensors", "shape", [4096, *[1] * 32]),
        ("tensors", "segments", [["q", 0, 0]]),
        ("tensors", "segments", [["q", 0, 0, 1, 1]]),
        ("objects", "nbytes", 0),
    ],
)
def test_a_value_must_lie_in_its_range_and_length(where: str, key: str, value: object) -> None:
    """BCP-MAN-005: E_RANGE."""
    draft = base()
    draft.first(where)[key] = value

    refuse_to_open(draft, "E_RANGE")


def test_everything_that_is_optional_may_be_there() -> None:
    """BCP-MAN-005: a valid case with every key."""
    draft = base()
    draft.root |= {"ext": {"com.example.a": 1}, "user": {"lr": "3e-4"}, "step": 0}
    draft.root["optional"] = ["com.example.b", "com.example.c"]
    draft.files[0]["ext"] = {"com.example.a": [1]}
    draft.tensors[0] |= {"ext": {"com.example.a": {}}, "user": {"note": b""}}
    draft.tensors[0]["segments"] = [["q", 0, 0, 2048], ["k", 0, 2048, 2048]]
    draft.objects[0]["media"] = "text/plain"

    accept(draft)


@pytest.mark.parametrize("where", ["files", "tensors", "objects"])
def test_a_section_of_rows_is_an_array_of_maps(where: str) -> None:
    """BCP-MAN-005: E_TYPE for the section and for a row."""
    rows, row = base().parts(), base().parts()
    rows.of(where).raw = pack({})
    row.of(where).raw = pack([[]])

    refuse_to_open(rows, "E_TYPE")
    refuse_to_open(row, "E_TYPE")


def test_the_root_is_a_map() -> None:
    """BCP-MAN-005: E_TYPE for anything else."""
    parts = base().parts()
    parts.root = pack([])

    refuse_to_open(parts, "E_TYPE")


# ---- features and the block digest -------------------------------------------------------------


@pytest.mark.parametrize(
    ("require", "optional"),
    [
        (["planes-zstd", "planes-zstd"], []),
        (["planes-zstd"], ["b", "a"]),
        (["planes-zstd"], ["a", "a"]),
        (["planes-zstd"], ["planes-zstd"]),
    ],
    ids=["twice required", "descending", "twice optional", "in both"],
)
def test_names_of_features_ascend_and_occur_once(require: list[str], optional: list[str]) -> None:
    """BCP-MAN-006: E_ORDER, also for a name in both lists."""
    draft = base()
    draft.root |= {"require": require, "optional": optional}

    refuse_to_open(draft, "E_ORDER")


def test_a_feature_that_may_be_ignored_is_ignored() -> None:
    """BCP-MAN-006, BCP-MAN-007: `optional` holds any name."""
    draft = base()
    draft.root["optional"] = ["A", "a", "nobody-knows", "\u00e4"]

    accept(draft)


@pytest.mark.parametrize("name", ["xor-parity", "", "Planes-zstd", "zz"])
def test_a_required_feature_that_the_reader_lacks_is_refused_before_any_section(name: str) -> None:
    """BCP-MAN-007: the sections are damaged, but the feature comes first."""
    parts = base().parts()
    parts.root = base().root | {"require": sorted(["planes-zstd", name])}
    for section in parts.sections:
        section.stored = bytes(len(section.raw))
        section.wrong = {6: xxh128(section.raw)}

    refuse_to_open(parts, "E_FEATURE")


@pytest.mark.parametrize("name", ["xxh3-128", "XXH3-64", ""])
def test_another_block_digest_is_refused(name: str) -> None:
    """BCP-MAN-008: E_DIGEST."""
    draft = base()
    draft.root["digest"] = name

    refuse_to_open(draft, "E_DIGEST")


# ---- sections ----------------------------------------------------------------------------------


def _swapped(kind: str, other: str) -> Callable[[list[Section]], object]:
    def change(sections: list[Section]) -> None:
        first, second = (
            next(i for i, s in enumerate(sections) if s.kind == k) for k in (kind, other)
        )
        sections[first], sections[second] = sections[second], sections[first]

    return change


def _row(kind: str, place: int, value: int) -> Callable[[list[Section]], object]:
    def change(sections: list[Section]) -> None:
        next(s for s in sections if s.kind == kind).wrong[place] = value

    return change


def _doubled(kind: str) -> Callable[[list[Section]], object]:
    def change(sections: list[Section]) -> None:
        index = next(i for i, s in enumerate(sections) if s.kind == kind)
        sections.insert(index, sections[index])

    return change


SECTION_FAULTS: dict[str, Callable[[list[Section]], object]] = {
    "files after tensors": _swapped("files", "tensors"),
    "objects before per_rank": _swapped("objects", "per_rank"),
    "no state": lambda sections: sections.pop(4),
    "two states": _doubled("state"),
    "two files": _doubled("files"),
    "two tensors": _doubled("tensors"),
    "two objects": _doubled("objects"),
    "two runs from row 0": _doubled("runs"),
    "two per_rank from row 0": _doubled("per_rank"),
    "state of two rows": _row("state", 2, 2),
    "state from row 1": _row("state", 1, 1),
    "files from row 1": _row("files", 1, 1),
    "tensors of no rows": _row("tensors", 2, 0),
    "chunks from row 32768": _row("chunks", 1, 32768),
    "runs of 32769 rows": _row("runs", 2, 32769),
    "files have fewer rows": _row("files", 2, 3),
    "tensors have more rows": _row("tensors", 2, 2),
    "unknown kind": lambda sections: sections.append(Section("parity", 0, 1, b"\x80")),
    "empty section": lambda sections: sections.insert(6, Section("per_rank", 2, 0, b"\x80")),
    "no sections": lambda sections: sections.clear(),
}


@pytest.mark.parametrize("name", SECTION_FAULTS)
def test_sections_are_those_of_the_list(name: str) -> None:
    """BCP-MAN-009: kinds, order, number, first rows and rows."""
    parts = base().parts()
    SECTION_FAULTS[name](parts.sections)

    refuse_to_open(parts, "E_SECTION")


def test_a_checkpoint_may_have_a_state_and_nothing_else() -> None:
    """BCP-MAN-009: kinds without rows have no section."""
    accept(Draft(state=[9, [1], "text"], root=root()), (None, "text"))


def many(tensors: int) -> Draft:
    """Return a checkpoint of so many tensors of one byte, in one run."""
    draft = Draft(state=[8, *range(tensors)], root=root())
    names = sorted(str(number) for number in range(tensors))
    rows = {name: row for row, name in enumerate(names)}
    draft.state = [8, *(rows[str(number)] for number in range(tensors))]
    draft.add_file("t.bcd", [Run([bytes([number % 256]) for number in range(tensors)])])
    draft.tensors = [{"name": name, "dtype": "uint8", "shape": [1]} for name in names]
    for row, name in enumerate(names):
        draft.add_chunk(row, run=0, offset=64 * int(name))
    return draft


def grouped(draft: Draft, sizes: list[int]) -> Parts:
    """Return a checkpoint whose chunks are in sections of so many rows."""
    parts = draft.parts()
    index = parts.sections.index(parts.of("chunks"))
    first, groups = 0, []
    for rows in sizes:
        part = Draft(state=None, tensors=draft.tensors)
        part.chunks = draft.chunks[first : first + rows]
        groups.append(Section("chunks", first, rows, part.parts().of("chunks").raw))
        first += rows
    parts.sections[index : index + 1] = groups
    return parts


@pytest.mark.slow
def test_chunks_are_cut_into_groups_of_32768_rows() -> None:
    """BCP-MAN-009: all full but the last; each has the columns of its own rows."""
    draft = many(32769)
    accept(grouped(draft, [32768, 1]), [("uint8", (1,), bytes([n % 256])) for n in range(32769)])

    for sizes in ([32769], [32767, 2], [1, 32768]):
        refuse_to_open(grouped(draft, sizes), "E_SECTION")


@pytest.mark.slow
def test_rows_ascend_from_one_group_to_the_next() -> None:
    """BCP-COL-004: E_ORDER between the last row of a group and the first of the next."""
    rows = 32769
    draft = single("int8", [rows], [bytes([number % 256]) for number in range(rows)])
    accept(grouped(draft, [32768, 1]), {"t": ("int8", (rows,), bytes(range(256)) * 128 + b"\0")})

    draft.chunks[-2:] = reversed(draft.chunks[-2:])
    refuse_to_open(grouped(draft, [32768, 1]), "E_ORDER")


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({3: "lz4"}, "E_CODEC"),
        ({3: "zstd"}, "E_MANIFEST_ENCODING"),
        ({3: "none", 5: 4}, "E_MANIFEST_ENCODING"),
        ({5: 1}, "E_MANIFEST_ENCODING"),
    ],
)
def test_the_lengths_of_a_section_fit_its_codec(wrong: dict[int, Any], code: str) -> None:
    """BCP-MAN-010: `none` has equal lengths, `zstd` a shorter stored one."""
    parts = base().parts()
    parts.of("tensors").wrong = wrong

    refuse_to_open(parts, code)


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame + b"\0",
        lambda frame: frame[:-1],
        lambda frame: b"\x50\x2a\x4d\x18\0\0\0\0" + frame,
        lambda frame: bytes(len(frame)),
    ],
    ids=["trailing byte", "cut", "skippable frame", "no frame"],
)
def test_a_compressed_section_is_exactly_one_frame(change: Callable[[bytes], bytes]) -> None:
    """BCP-MAN-010, BCP-COD-003, BCP-COD-006: E_MANIFEST_ENCODING in a manifest."""
    draft = base()
    draft.tensors[0]["user"] = {"pad": "a" * 2000}
    parts = draft.parts()
    section = parts.of("tensors")
    section.codec, section.stored = "zstd", change(compressed(section.raw))

    refuse_to_open(parts, "E_MANIFEST_ENCODING")


@pytest.mark.parametrize("error", [-1, 1])
def test_a_section_decodes_to_its_raw_length(error: int) -> None:
    """BCP-MAN-010: E_MANIFEST_ENCODING."""
    draft = base()
    draft.tensors[0]["user"] = {"pad": "a" * 2000}
    parts = draft.parts()
    section = parts.of("tensors")
    section.codec, section.stored = "zstd", compressed(section.raw)
    section.wrong = {5: len(section.raw) + error}

    refuse_to_open(parts, "E_MANIFEST_ENCODING")


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("value", [[], {}])
def test_a_section_row_has_the_types_of_its_places(place: int, value: object) -> None:
    """BCP-MAN-005: E_TYPE."""
    parts = base().parts()
    parts.of("runs").wrong = {place: value}

    refuse_to_open(parts, "E_TYPE")


def test_a_section_row_has_seven_values_and_a_digest_of_16_bytes() -> None:
    """BCP-MAN-005: E_RANGE, and E_TYPE if it is no array."""
    no_array = base().parts()
    no_array.root = base().root | {"sections": [no_array.sections[0].row(), {}]}
    refuse_to_open(no_array, "E_TYPE")

    short, long = base().parts(), base().parts()
    rows = [section.row() for section in short.sections]
    short.root = base().root | {"sections": [rows[0][:6], *rows[1:]]}
    long.of("runs").wrong = {6: bytes(17)}

    refuse_to_open(short, "E_RANGE")
    refuse_to_open(long, "E_RANGE")


@pytest.mark.parametrize(
    "kind", ["files", "tensors", "runs", "chunks", "state", "per_rank", "objects"]
)
def test_the_digest_of_a_section_is_checked_before_it_is_decoded(kind: str) -> None:
    """BCP-MAN-011: the stored bytes are no document either."""
    parts = base().parts()
    section = parts.of(kind)
    section.wrong = {6: xxh128(section.raw)}
    section.stored = b"\xc1" * len(section.raw)

    refuse_to_open(parts, "E_MANIFEST_CHECKSUM")


def test_the_raw_lengths_of_all_sections_are_compared_with_the_limit_first() -> None:
    """BCP-MAN-011: one byte less than the sum is too little, whatever the sections hold."""
    parts = base().parts()
    total = sum(len(section.raw) for section in parts.sections)
    enough = ReadOptions(threads=1, limits=Limits(section_bytes=total))
    too_little = ReadOptions(threads=1, limits=Limits(section_bytes=total - 1))

    assert read(parts, options=enough) == EXPECTED
    with pytest.raises(bcpformat.LimitError) as caught:
        read(parts, options=too_little)
    assert caught.value.code.value == "E_LIMIT"


def test_a_section_that_claims_more_than_the_limit_is_not_decoded() -> None:
    """BCP-MAN-011: 2^40 bytes out of a few."""
    draft = base()
    draft.tensors[0]["user"] = {"pad": "a" * 2000}
    parts = draft.parts()
    section = parts.of("tensors")
    section.codec, section.stored = "zstd", compressed(section.raw)
    section.wrong = {5: 2**40}

    refuse_to_open(parts, "E_LIMIT")


def test_one_tensor_is_read_with_the_sections_that_hold_its_rows() -> None:
    """BCP-MAN-012: `files`, `tensors`, and the groups of `runs` and `chunks` it is in."""
    parts = grouped(many(32769), [32768, 1])
    manifest = parts.manifest()
    made = decode_root(manifest, key="manifest.bcp", limits=Limits())
    fetched = []

    def fetch(row: SectionRow) -> bytes:
        fetched.append((row.kind, row.first))
        return manifest[row.position_bytes : row.end_bytes]

    sections = Sections(made, fetch, key="manifest.bcp", limits=Limits())
    sections.files()
    tensors = sections.tensors()
    (run,) = sections.runs(made.of_kind("runs")).raw.tolist()
    chunks = sections.chunks(made.of_kind("chunks")[1:], tensors=tensors)

    assert fetched == [("files", 0), ("tensors", 0), ("runs", 0), ("chunks", 32768)]
    assert (chunks.run.tolist(), chunks.offset.tolist()) == ([0], [64 * int(tensors.names[-1])])
    assert run == 64 * 32768 + 1


def test_one_tensor_is_read_though_other_data_is_damaged() -> None:
    """BCP-MAN-012, BCP-RUN-008: blocks that are not asked for are not read."""
    draft = base()
    draft.data["b.bcd"].digests[0] = bytes(8)
    store = store_of(draft)

    found = bcpformat.read(store, filter=["w"], as_numpy=True, options=OPTIONS)
    assert found["w"].tobytes() == FLOATS
    refuse(draft, "E_BLOCK_CHECKSUM")
