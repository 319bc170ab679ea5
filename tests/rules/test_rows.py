"""Rows of data files, tensors and objects (spec 7.2, 7.3, 7.5)."""

from __future__ import annotations

import pytest

from tests.oracle.make_checkpoint import Run
from tests.rules.build import (
    ATTEMPT,
    BLOB,
    EXPECTED,
    FLOATS,
    Draft,
    base,
    root,
)
from tests.rules.samples import linked, single
from tests.rules.verdicts import accept, refuse_to_open

# ---- files -------------------------------------------------------------------------------------


def test_files_ascend_by_name() -> None:
    """BCP-MAN-013: E_ORDER, also for two of one name."""
    descending, twice = base(), base()
    descending.files[0]["name"], descending.files[1]["name"] = "b.bcd", "a.bcd"
    twice.files[1]["name"] = "a.bcd"

    refuse_to_open(descending, "E_ORDER")
    refuse_to_open(twice, "E_ORDER")


@pytest.mark.parametrize(
    ("where", "key", "value"),
    [
        ("files", "attempt", ATTEMPT),
        ("files", "ext", {}),
        ("files", "kind", "data"),
        ("files", "lengths", False),
        ("files", "unused", []),
        ("tensors", "aliases", []),
        ("tensors", "chunks", 1),
        ("tensors", "ext", {}),
        ("tensors", "segments", []),
        ("tensors", "user", {}),
        ("objects", "media", "application/octet-stream"),
    ],
)
def test_a_default_is_not_written_out(where: str, key: str, value: object) -> None:
    """BCP-MAN-014: E_MP_NONCANONICAL."""
    draft = base()
    draft.first(where)[key] = value

    refuse_to_open(draft, "E_MP_NONCANONICAL")


def test_a_tensor_without_elements_has_0_chunks_by_default() -> None:
    """BCP-MAN-014: the default depends on the shape."""
    right, wrong = base(), base()
    for draft in (right, wrong):
        draft.tensors.insert(0, {"name": "e", "dtype": "int8", "shape": [3, 0]})
        draft.state = [6, "e", 0, *draft.state[1:5], "p", 1, "rank", [19, 0], "w", 2, "z", 3]
        for chunk in draft.chunks:
            chunk["tensor"] += 1
    wrong.tensors[0]["chunks"] = 0

    accept(right, {"e": ("int8", (3, 0), b""), **EXPECTED})
    refuse_to_open(wrong, "E_MP_NONCANONICAL")


@pytest.mark.parametrize("key", ["ext", "user"])
def test_empty_maps_of_the_root_are_allowed(key: str) -> None:
    """BCP-MAN-014: the rule is about rows."""
    draft = base()
    draft.root[key] = {}

    accept(draft)


PARITY = {"name": "p.bcd", "kind": "parity", "blocks": 0, "table": 5, "digest": bytes(16)}


def test_a_file_of_an_unknown_kind_is_ignored() -> None:
    """BCP-MAN-015: it is not opened, and its rows are not understood."""
    draft = base()
    draft.files.append(dict(PARITY))

    accept(draft)


def test_a_run_lies_in_a_file_of_kind_data() -> None:
    """BCP-MAN-015: E_INDEX."""
    draft = base()
    draft.files[1]["kind"] = "parity"

    refuse_to_open(draft, "E_INDEX")


def test_a_file_of_kind_data_has_a_run() -> None:
    """BCP-MAN-015: E_INDEX."""
    draft = base()
    draft.add_file("c.bcd", [])

    refuse_to_open(draft, "E_INDEX")


def test_a_file_of_an_earlier_attempt_may_hold_what_is_not_used() -> None:
    """BCP-MAN-016, BCP-MAN-021, BCP-DAT-002, BCP-DAT-008: the row has `attempt` and `unused`."""
    accept(linked())


def test_a_file_of_this_attempt_has_nothing_unused() -> None:
    """BCP-MAN-016: E_EXTENT_HOLE."""
    draft = linked()
    del draft.files[1]["attempt"]
    draft.data["b.bcd"].header.attempt = ATTEMPT

    refuse_to_open(draft, "E_EXTENT_HOLE")


def test_unused_ranges_are_pairs_of_at_least_a_byte() -> None:
    """BCP-MAN-021: E_RANGE."""
    odd, empty = linked(), linked()
    odd.files[1]["unused"].append(2**40)
    empty.files[1]["unused"][3:] = [0]

    refuse_to_open(odd, "E_RANGE")
    refuse_to_open(empty, "E_RANGE")


def test_unused_ranges_ascend() -> None:
    """BCP-MAN-021: E_ORDER, also for two of one position."""
    descending, twice = linked(), linked()
    ranges = descending.files[1]["unused"]
    descending.files[1]["unused"] = ranges[2:] + ranges[:2]
    twice.files[1]["unused"] = ranges[:2] + ranges

    refuse_to_open(descending, "E_ORDER")
    refuse_to_open(twice, "E_ORDER")


# ---- tensors and objects -----------------------------------------------------------------------


def test_tensors_ascend_by_the_bytes_of_their_names() -> None:
    """BCP-MAN-017: U+FFFF stands before U+10000, which UTF-16 sorts the other way round."""
    draft = Draft(state=[6, "\uffff", 0, "\U00010000", 1], root=root())
    draft.add_file("t.bcd", [Run([b"\1", b"\2"])])
    names = ["\uffff", "\U00010000"]
    draft.tensors = [{"name": name, "dtype": "int8", "shape": []} for name in names]
    draft.add_chunk(0, run=0)
    draft.add_chunk(1, run=0, offset=64)
    accept(draft, {names[0]: ("int8", (), b"\1"), names[1]: ("int8", (), b"\2")})

    draft.tensors.reverse()
    draft.state[2::2] = [1, 0]
    draft.chunks[0]["offset"], draft.chunks[1]["offset"] = 64, 0
    refuse_to_open(draft, "E_ORDER")


def test_names_of_tensors_aliases_and_objects_all_differ() -> None:
    """BCP-MAN-018: E_NAME."""
    right, alias, other, thing = base(), base(), base(), base()
    right.tensors[0]["aliases"] = ["q"]
    right.state += ["q", [0, 0, 4]]
    accept(right, {**EXPECTED, "q": EXPECTED["p"]})

    alias.tensors[0]["aliases"] = ["q", "q"]
    other.tensors[0]["aliases"] = ["w"]
    thing.objects[0]["name"] = "w"
    for draft in (alias, other, thing):
        refuse_to_open(draft, "E_NAME")


@pytest.mark.parametrize("dtype", ["", "float31", "Float32", "bf16", "torch.bfloat16", "object"])
def test_a_data_type_that_is_not_in_the_registry_is_refused(dtype: str) -> None:
    """BCP-MAN-019: E_DTYPE."""
    draft = base()
    draft.tensors[0]["dtype"] = dtype

    refuse_to_open(draft, "E_DTYPE")


def named(name: str) -> Draft:
    """Return a checkpoint of one tensor with a name, at that key of the state."""
    draft = single("float32", [6], [FLOATS])
    draft.tensors[0]["name"] = name
    draft.state[1] = name
    return draft


@pytest.mark.parametrize("name", ["x" * 65535, "\u00e9" * 32767, "..", "\u0080", "\\"])
def test_a_name_has_up_to_65535_bytes_and_no_control_character(name: str) -> None:
    """BCP-MAN-020: valid ones."""
    accept(named(name), {name: ("float32", (6,), FLOATS)})


@pytest.mark.parametrize(
    "name", ["x" * 65536, "\u00e9" * 32768, "a\0", "\x1f", "a\x7fb", "\n"], ids=repr
)
def test_a_longer_name_or_one_with_a_control_character_is_refused(name: str) -> None:
    """BCP-MAN-020: E_NAME."""
    refuse_to_open(named(name[:70000]), "E_NAME")


@pytest.mark.parametrize("where", ["aliases", "objects"])
def test_the_same_holds_for_names_of_aliases_and_objects(where: str) -> None:
    """BCP-MAN-020: E_NAME."""
    draft = base()
    if where == "aliases":
        draft.tensors[0]["aliases"] = ["q\n"]
    else:
        draft.objects[0]["name"] = "blob\n"

    refuse_to_open(draft, "E_NAME")


def with_objects(*names: str) -> Draft:
    """Return a checkpoint of objects that no node refers to, each of the same bytes."""
    draft = Draft(state=[1], root=root())
    run = Run([BLOB] * len(names))
    draft.add_file("o.bcd", [run])
    draft.objects = [
        {"name": name, "run": 0, "offset": offset, "nbytes": len(BLOB)}
        for name, offset in zip(names, run.offsets, strict=True)
    ]
    return draft


def test_objects_ascend_by_the_bytes_of_their_names() -> None:
    """BCP-OBJ-001: E_ORDER; two of one name have none either."""
    accept(with_objects("", "B", "a", "\uffff", "\U00010000"), None)

    refuse_to_open(with_objects("b", "a"), "E_ORDER")
    refuse_to_open(with_objects("\U00010000", "\uffff"), "E_ORDER")


def test_two_objects_of_one_name_are_refused() -> None:
    """BCP-OBJ-001: E_ORDER."""
    refuse_to_open(with_objects("a", "a"), "E_ORDER")


@pytest.mark.parametrize("media", ["application/x-python-pickle", "text/x-python", "", "image/png"])
def test_an_object_is_bytes_whatever_its_media_type_says(media: str) -> None:
    """BCP-OBJ-002: a reader does not decode it, and does not execute it."""
    draft = base()
    draft.objects[0]["media"] = media

    accept(draft)
