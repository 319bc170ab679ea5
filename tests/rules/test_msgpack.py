"""The msgpack profile, as it stands in every document of a checkpoint (spec 2, 6)."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

import bcpformat
from bcpformat import BcpError
from tests.oracle.make_checkpoint import Run
from tests.rules.build import BLOB, EXPECTED, RANKS, Draft, Parts, base, pack
from tests.rules.verdicts import OPTIONS, accept, refuse, refuse_to_open, store_of

HERE = b"the value of a test goes here"
PLACES = ("root", "tensors", "state", "per_rank")


def placed(encoded: bytes, place: str) -> Draft | Parts:
    """Return a checkpoint with some bytes as a value of a document.

    It is a value of `user` in the root, or in a tensor's row, or the value of the key ``epoch``
    in the state, or the whole of a per-rank value.
    """
    draft = base()
    if place == "per_rank":
        return with_per_rank_value(encoded)
    if place == "state":
        draft.state[4] = HERE
    target = {"root": draft.root, "tensors": draft.tensors[0], "state": {}}[place]
    target["user"] = {"k": HERE}
    parts = draft.parts()
    if place == "root":
        parts.root = parts.root_raw().replace(pack(HERE), encoded)
    else:
        section = parts.of(place)
        section.raw = section.raw.replace(pack(HERE), encoded)
    return parts


def with_per_rank_value(document: bytes) -> Draft:
    """Return `base()` with other bytes as the per-rank value of rank 3."""
    draft = base()
    blocks = Run([RANKS[0], document, BLOB])
    made = Draft(state=None)
    made.add_file("a.bcd", [Run([b"\0" * 12, b"\0" * 12], item=4), blocks])
    first = draft.data["a.bcd"]
    draft.data["a.bcd"] = made.data["a.bcd"]
    draft.data["a.bcd"].parts[4096] = first.parts[4096]
    draft.data["a.bcd"].digests[0] = first.digests[0]
    draft.files[0], draft.runs[:2] = made.files[0], made.runs
    draft.per_rank[1]["nbytes"] = len(document)
    draft.objects[0]["offset"] = blocks.offsets[2]
    return draft


def nested(depth: int) -> bytes:
    """Return so many arrays within each other; in the state, lists (each has a kind code)."""
    return b"\x91" * (depth - 1) + b"\x90"


@pytest.mark.parametrize(
    "encoded",
    [
        b"\x00",
        b"\x7f",
        b"\xcc\x80",
        b"\xcd\x01\x00",
        b"\xce\x00\x01\x00\x00",
        b"\xcf\x00\x1f\xff\xff\xff\xff\xff\xff",
        b"\xc2",
        b"\xc3",
        b"\xa0",
        b"\xd9\x20" + b"x" * 32,
        b"\xda\x01\x00" + b"x" * 256,
        b"\xdb\x00\x01\x00\x00" + b"x" * 65536,
        b"\xc4\x00",
        b"\xc5\x01\x00" + b"x" * 256,
        b"\xc6\x00\x01\x00\x00" + b"x" * 65536,
        b"\x90",
        b"\xdc\x00\x10" + b"\x00" * 16,
        b"\xdd\x00\x01\x00\x00" + b"\x00" * 65536,
        b"\x80",
        b"\xde\x00\x10" + b"".join(b"\xa1" + bytes([97 + i]) + b"\x00" for i in range(16)),
    ],
    ids=lambda encoded: encoded[:3].hex(),
)
@pytest.mark.parametrize("place", ["root", "tensors"])
def test_every_type_and_every_shortest_form_is_read(encoded: bytes, place: str) -> None:
    """BCP-MSG-002, BCP-MSG-003, BCP-CNV-002: all that the profile has."""
    accept(placed(encoded, place))


REFUSED = {
    "nil": ("E_MP_TYPE", b"\xc0"),
    "unused byte": ("E_MP_TYPE", b"\xc1"),
    "negative fixint": ("E_MP_TYPE", b"\xff"),
    "int8": ("E_MP_TYPE", b"\xd0\xff"),
    "positive int64": ("E_MP_TYPE", b"\xd3\x00\x00\x00\x01\x00\x00\x00\x00"),
    "float32": ("E_MP_TYPE", b"\xca" + bytes(4)),
    "float64": ("E_MP_TYPE", b"\xcb" + bytes(8)),
    "ext": ("E_MP_TYPE", b"\xd4\x00\x00"),
    "timestamp": ("E_MP_TYPE", b"\xd6\xff" + bytes(4)),
    "ext8": ("E_MP_TYPE", b"\xc7\x00\x00"),
    "uint8 of 127": ("E_MP_NONCANONICAL", b"\xcc\x7f"),
    "uint16 of 255": ("E_MP_NONCANONICAL", b"\xcd\x00\xff"),
    "uint32 of 65535": ("E_MP_NONCANONICAL", b"\xce\x00\x00\xff\xff"),
    "uint64 of 2^32-1": ("E_MP_NONCANONICAL", b"\xcf" + bytes(4) + b"\xff" * 4),
    "str8 of 31": ("E_MP_NONCANONICAL", b"\xd9\x1f" + b"x" * 31),
    "str16 of 255": ("E_MP_NONCANONICAL", b"\xda\x00\xff" + b"x" * 255),
    "str32 of 0": ("E_MP_NONCANONICAL", b"\xdb\x00\x00\x00\x00"),
    "bin16 of 255": ("E_MP_NONCANONICAL", b"\xc5\x00\xff" + b"x" * 255),
    "bin32 of 0": ("E_MP_NONCANONICAL", b"\xc6\x00\x00\x00\x00"),
    "array16 of 15": ("E_MP_NONCANONICAL", b"\xdc\x00\x0f" + bytes(15)),
    "array32 of 0": ("E_MP_NONCANONICAL", b"\xdd\x00\x00\x00\x00"),
    "map16 of 0": ("E_MP_NONCANONICAL", b"\xde\x00\x00"),
    "map32 of 0": ("E_MP_NONCANONICAL", b"\xdf\x00\x00\x00\x00"),
    "keys descend": ("E_MP_NONCANONICAL", b"\x82\xa1b\x00\xa1a\x00"),
    "key twice": ("E_MP_NONCANONICAL", b"\x82\xa1a\x00\xa1a\x00"),
    "shorter key after longer": ("E_MP_NONCANONICAL", b"\x82\xa2ab\x00\xa1a\x00"),
    "key is integer": ("E_MP_TYPE", b"\x81\x00\x00"),
    "key is bin": ("E_MP_TYPE", b"\x81\xc4\x01a\x00"),
    "str is not UTF-8": ("E_MP_MALFORMED", b"\xa1\xff"),
    "surrogate": ("E_MP_MALFORMED", b"\xa3\xed\xa0\x80"),
    "overlong slash": ("E_MP_MALFORMED", b"\xa2\xc0\xaf"),
    "above U+10FFFF": ("E_MP_MALFORMED", b"\xa4\xf4\x90\x80\x80"),
    "2^53": ("E_RANGE", b"\xcf\x00\x20" + bytes(6)),
    "2^64-1": ("E_RANGE", b"\xcf" + b"\xff" * 8),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_not_of_the_profile_is_refused_in_every_document(name: str, place: str) -> None:
    """BCP-MSG-002, BCP-MSG-003, BCP-MSG-004, BCP-MSG-005, BCP-MSG-007, BCP-CNV-002, BCP-CNV-004."""
    code, encoded = REFUSED[name]
    made = placed(encoded, place)

    refuse(made, code)


@pytest.mark.parametrize("kind", ["files", "tensors", "runs", "chunks", "state", "objects"])
def test_a_document_is_one_value(kind: str) -> None:
    """BCP-MSG-001: nothing comes after it, and it does not end early."""
    longer, shorter, empty = base().parts(), base().parts(), base().parts()
    longer.of(kind).raw += b"\x00"
    shorter.of(kind).raw = shorter.of(kind).raw[:-1]
    empty.of(kind).raw = b""

    for made in (longer, shorter, empty):
        refuse_to_open(made, "E_MP_MALFORMED")


def test_a_root_is_one_value() -> None:
    """BCP-MSG-001: the root as well."""
    longer, shorter = base().parts(), base().parts()
    longer.root = longer.root_raw() + b"\x00"
    shorter.root = shorter.root_raw()[:-1]

    for made in (longer, shorter):
        refuse_to_open(made, "E_MP_MALFORMED")


@pytest.mark.parametrize("document", [RANKS[3] + b"\x00", RANKS[3][:-1]], ids=["longer", "shorter"])
def test_a_per_rank_value_is_one_value(document: bytes) -> None:
    """BCP-MSG-001: a per-rank value as well, for readers and for full validation."""
    refuse(with_per_rank_value(document), "E_MP_MALFORMED")


def test_keys_ascend_by_their_bytes() -> None:
    """BCP-MSG-004: not by length, and not as UTF-16 sorts them."""
    keys = ["", "B", "a", "ab", "b", "\uffff", "\U00010000"]
    draft = base()
    draft.root["user"] = dict.fromkeys(keys, 1)

    accept(draft)
    with bcpformat.open(store_of(draft), options=OPTIONS) as checkpoint:
        assert list(checkpoint.user) == keys


def test_text_is_compared_byte_by_byte() -> None:
    """BCP-CNV-004: without normalisation, composed and decomposed text differ."""
    composed, decomposed = "\u00e9", "e\u0301"
    draft = base()
    draft.root["user"] = {composed: 1, decomposed: 2}

    accept(draft)
    with bcpformat.open(store_of(draft), options=OPTIONS) as checkpoint:
        assert dict(checkpoint.user) == {composed: 1, decomposed: 2}


@pytest.mark.parametrize(("place", "outside"), [("root", 2), ("tensors", 3)])
def test_other_documents_nest_up_to_16_deep(place: str, outside: int) -> None:
    """BCP-MSG-006: the outermost has depth 1; `outside` are around the value of the test."""
    accept(placed(nested(16 - outside), place))
    refuse_to_open(placed(nested(17 - outside), place), "E_DEPTH")


def lists(depth: int) -> object:
    """Return a state of so many lists within each other."""
    node: list[object] = [8]
    for _ in range(depth - 1):
        node = [8, node]
    return node


def test_the_state_nests_up_to_128_deep() -> None:
    """BCP-MSG-006: the dict at the top has depth 1."""
    deepest: object = []
    for _ in range(126):
        deepest = [deepest]
    right, wrong = base(), base()
    right.state[4], wrong.state[4] = lists(127), lists(128)

    accept(right, EXPECTED | {"epoch": deepest})
    refuse_to_open(wrong, "E_DEPTH")


def test_a_per_rank_value_nests_up_to_128_deep() -> None:
    """BCP-MSG-006: its outermost node has depth 1."""
    deepest: object = []
    for _ in range(127):
        deepest = [deepest]

    accept(with_per_rank_value(pack(lists(128))), EXPECTED | {"rank": {0: 5, 3: deepest}})
    refuse(with_per_rank_value(b"\x92\x08" * 128 + b"\x91\x08"), "E_DEPTH")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("tag", [0xDB, 0xC6, 0xDD, 0xDF], ids=["str", "bin", "array", "map"])
def test_a_declared_length_is_compared_with_what_is_left_before_memory_is_taken(
    tag: int, place: str
) -> None:
    """BCP-MSG-008: 4 GiB are declared, a few bytes are there."""
    made = placed(struct.pack(">BI", tag, 2**32 - 1), place)
    store = store_of(made)
    tracemalloc.start()
    with pytest.raises(BcpError):
        bcpformat.read(store, as_numpy=True, options=OPTIONS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 2**24
    refuse(made, "E_MP_MALFORMED")


def test_nested_arrays_that_declare_much_take_no_memory() -> None:
    """BCP-MSG-008: what each declares fits the document, what they declare together does not."""
    claims = b"\xdc\xff\xff" * 10 + bytes(2**16)
    made = placed(claims, "root")
    store = store_of(made)
    tracemalloc.start()
    with pytest.raises(BcpError):
        bcpformat.open(store, options=OPTIONS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 2**23
    refuse(made, "E_MP_MALFORMED")
