"""The fault-injecting store: what it records, and what each fault leaves behind."""

from __future__ import annotations

import pytest

from bcpformat.errors import StorageError
from bcpformat.storage import MemoryStore
from bcpformat.storage.store import Store
from bcpformat.testing.faulty_store import FaultyStore


def save(store: Store) -> None:
    """Save something in five operations, the last of which commits."""
    with store.create("data/x", nbytes_hint=None) as writer:
        writer.write_at(0, b"0123456789")
        writer.finish(10)
    store.sync()
    store.put_if_absent("m", b"manifest")


def test_every_operation_is_recorded_in_order() -> None:
    store = FaultyStore(MemoryStore())
    save(store)
    with store.open_reader("data/x", direct=True) as reader:
        reader.read_into(2, bytearray(3))
        reader.map()
    store.read("m", offset_bytes=4, nbytes=100)
    store.child("data").delete("x")
    store.list("data/")
    store.children()

    assert store.operations == [
        ("create", "data/x", 0, 0),
        ("write_at", "data/x", 0, 10),
        ("finish", "data/x", 0, 10),
        ("sync", "", 0, 0),
        ("put_if_absent", "m", 0, 8),
        ("open_reader", "data/x", 0, 0),
        ("read_into", "data/x", 2, 3),
        ("map", "data/x", 0, 10),
        ("read", "m", 4, 4),
        ("delete", "data/x", 0, 0),
        ("list", "data/", 0, 0),
        ("children", "", 0, 0),
    ]
    assert store.reads == [("data/x", 2, 3), ("m", 4, 4)]
    assert store.bytes_read == 7
    assert store.bytes_written == 18


@pytest.mark.parametrize("fail_at", range(5))
def test_crash_at_any_operation_leaves_what_was_done_before(fail_at: int) -> None:
    inner = MemoryStore()

    with pytest.raises(StorageError, match=f"injected fault at operation {fail_at}"):
        save(FaultyStore(inner, fail_at=fail_at, crash=True))

    assert [info.key for info in inner.list()] == (["data/x"] if fail_at else [])


def test_failure_without_a_crash_lets_the_writer_clean_up() -> None:
    inner = MemoryStore()

    with pytest.raises(StorageError):
        save(FaultyStore(inner, fail_at=1))

    assert inner.list() == []


def test_late_failure_has_done_its_work() -> None:
    inner = MemoryStore()

    with pytest.raises(StorageError):
        save(FaultyStore(inner, fail_at=4, effect="late"))

    assert inner.read("m") == b"manifest"


def test_given_error_is_raised() -> None:
    error = KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt) as raised:
        save(FaultyStore(MemoryStore(), fail_at=3, error=error))
    assert raised.value is error


def test_short_write_loses_its_second_half_and_tells_nobody() -> None:
    store = FaultyStore(MemoryStore(), fail_at=1, effect="short")

    save(store)

    assert store.read("data/x") == b"01234" + bytes(5)


def test_torn_publication_has_half_of_its_bytes() -> None:
    inner = MemoryStore()

    with pytest.raises(StorageError):
        save(FaultyStore(inner, fail_at=4, effect="short", crash=True))

    assert inner.read("m") == b"mani"


def test_short_reads_return_half() -> None:
    inner = MemoryStore()
    save(inner)
    out = bytearray(10)

    assert FaultyStore(inner, fail_at=0, effect="short").read("m") == b"mani"
    with FaultyStore(inner, fail_at=1, effect="short").open_reader(
        "data/x", direct=False
    ) as reader:
        assert reader.read_into(0, out) == 5
    assert out == b"01234" + bytes(5)


def test_short_delete_removes_nothing() -> None:
    inner = MemoryStore()
    save(inner)

    FaultyStore(inner, fail_at=0, effect="short").delete("m")

    assert inner.read("m") == b"manifest"


def test_children_share_the_record_and_the_fault() -> None:
    store = FaultyStore(MemoryStore(), fail_at=1)
    store.child("a").child("b").put_if_absent("x", b"1")

    with pytest.raises(StorageError, match="'a/y'"):
        store.child("a").put_if_absent("y", b"1")
    assert store.operations[0] == ("put_if_absent", "a/b/x", 0, 1)
