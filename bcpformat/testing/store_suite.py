"""What every store must do, as checks that anyone can run on a store of their own.

A check takes a function that makes a fresh, empty store, and raises AssertionError (or
whatever the store raised) where the store is wrong.  The module needs no test framework:

    check_store(lambda: MyStore(new_bucket()))                       # all of them
    @pytest.mark.parametrize("check", STORE_CHECKS)                  # or one by one
    def test_my_store(check): check(lambda: MyStore(new_bucket()))
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np

from bcpformat.errors import (
    BcpError,
    ErrorCode,
    FormatError,
    InvalidArgumentError,
    ObjectExistsError,
    ObjectNotFoundError,
    StateError,
)
from bcpformat.storage.buffers import AlignedBuffer
from bcpformat.storage.store import ObjectInfo, ObjectReader, ObjectWriter, Store

MakeStore: TypeAlias = Callable[[], Store]
StoreCheck: TypeAlias = Callable[[MakeStore], None]
_Error = TypeVar("_Error", bound=BcpError)

_BAD_KEYS = ("", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\\b", "a\0b", "\ud800")
_DATA = bytes(range(256)) * 40
_LARGE_BYTES = 1 << 30


def check_store(make_store: MakeStore) -> None:
    """Run every check.

    Args:
        make_store: Returns a fresh, empty store at each call.

    Raises:
        AssertionError: The store does not do what a store must.

    Example:
        >>> from bcpformat.storage import MemoryStore
        >>> check_store(MemoryStore)
    """
    for check in STORE_CHECKS:
        check(make_store)


def check_is_a_store(make_store: MakeStore) -> None:
    """Check that all methods are there and that it can be named in messages."""
    store = make_store()
    assert isinstance(store, Store)
    assert store.describe() != ""


def check_empty_store_lists_nothing(make_store: MakeStore) -> None:
    """Check that a store nobody wrote to is empty and can be synced."""
    store = make_store()
    store.sync()
    assert store.list() == []
    assert store.list("data/") == []
    assert store.children() == []


def check_written_object_reads_back(make_store: MakeStore) -> None:
    """Check that what was written, in any order of pieces, is what is read."""
    store = make_store()
    with store.create("data/x", nbytes_hint=None) as writer:
        step = 4096
        for start in reversed(range(0, len(_DATA), step)):
            _write_piece(writer, start, _DATA[start : start + step])
        writer.finish(len(_DATA))
    store.sync()
    assert store.read("data/x") == _DATA
    assert store.list() == [ObjectInfo("data/x", len(_DATA))]


def check_object_with_a_large_hint_reads_back(make_store: MakeStore) -> None:
    """Check that the hint of a size binds nobody, and that both ways of reading agree."""
    store = make_store()
    with store.create("data/x", nbytes_hint=_LARGE_BYTES) as writer:
        assert writer.alignment in (1, 4096)
        _write_piece(writer, 0, _DATA)
        writer.finish(len(_DATA))
    for direct in (False, True):
        with store.open_reader("data/x", direct=direct) as reader:
            assert reader.alignment in (1, 4096)
            assert reader.key == "data/x"
            assert _read_all(reader) == _DATA


def check_ranges_never_written_read_as_zero(make_store: MakeStore) -> None:
    """Check that gaps between writes are zero."""
    store = make_store()
    with store.create("x", nbytes_hint=None) as writer:
        _write_piece(writer, 8192, b"end")
        writer.finish(8195)
    assert store.read("x") == bytes(8192) + b"end"


def check_empty_object_exists(make_store: MakeStore) -> None:
    """Check that an object without bytes is an object."""
    store = make_store()
    with store.create("x", nbytes_hint=0) as writer:
        writer.write_at(0, b"")
        writer.finish(0)
    assert store.list() == [ObjectInfo("x", 0)]
    assert store.read("x") == b""
    with store.open_reader("x", direct=False) as reader:
        assert reader.read_into(0, bytearray()) == 0
        mapped = reader.map()
        assert mapped is None or mapped.nbytes == 0


def check_many_threads_write_one_object(make_store: MakeStore) -> None:
    """Check that pieces written at the same time all arrive."""
    store = make_store()
    pieces = [bytes([number]) * 4096 for number in range(16)]
    with store.create("x", nbytes_hint=None) as writer:

        def write(number: int) -> None:
            _write_piece(writer, number * 4096, pieces[number])

        _in_threads(write, len(pieces))
        writer.finish(16 * 4096)
    assert store.read("x") == b"".join(pieces)


def check_create_refuses_what_exists(make_store: MakeStore) -> None:
    """Check that an object is created once, finished or not."""
    store = make_store()
    with store.create("x", nbytes_hint=None) as writer:
        _expect(ObjectExistsError, lambda: store.create("x", nbytes_hint=None))
        _write_piece(writer, 0, b"first")
        writer.finish(5)
    _expect(ObjectExistsError, lambda: store.create("x", nbytes_hint=None))
    assert store.read("x") == b"first"


def check_abort_removes_the_object(make_store: MakeStore) -> None:
    """Check that an aborted object is gone and its key free."""
    store = make_store()
    writer = store.create("data/x", nbytes_hint=None)
    _write_piece(writer, 0, _DATA)
    writer.abort()
    writer.abort()
    assert store.list() == []
    _expect(StateError, lambda: writer.finish(0))
    _put(store, "data/x", b"again")
    assert store.read("data/x") == b"again"


def check_abort_leaves_another_object(make_store: MakeStore) -> None:
    """Check that aborting a deleted object spares the one that took its key."""
    store = make_store()
    writer = store.create("x", nbytes_hint=None)
    store.delete("x")
    store.put_if_absent("x", b"theirs")
    writer.abort()
    assert store.read("x") == b"theirs"


def check_leaving_without_finish_aborts(make_store: MakeStore) -> None:
    """Check that an unfinished object does not outlive its writer's context."""
    store = make_store()
    with store.create("x", nbytes_hint=None) as writer:
        _write_piece(writer, 0, b"half")
    assert store.list() == []


def check_finished_writer_is_closed(make_store: MakeStore) -> None:
    """Check that nothing changes an object after `finish`."""
    store = make_store()
    writer = store.create("x", nbytes_hint=None)
    _write_piece(writer, 0, b"abc")
    writer.finish(3)
    _expect(StateError, lambda: _write_piece(writer, 0, b"xyz"))
    _expect(StateError, lambda: writer.finish(3))
    writer.abort()
    assert store.read("x") == b"abc"


def check_finish_refuses_bytes_never_written(make_store: MakeStore) -> None:
    """Check that an object is not silently lengthened."""
    store = make_store()
    with store.create("x", nbytes_hint=None) as writer:
        _write_piece(writer, 0, _DATA[:4096])
        _expect(InvalidArgumentError, lambda: writer.finish(4097))
        writer.finish(4000)
    assert store.read("x") == _DATA[:4000]


def check_read_returns_what_is_there(make_store: MakeStore) -> None:
    """Check ranges of `read`, which ends where the object ends."""
    store = make_store()
    store.put_if_absent("x", b"0123456789")
    assert store.read("x", offset_bytes=3) == b"3456789"
    assert store.read("x", offset_bytes=3, nbytes=2) == b"34"
    assert store.read("x", offset_bytes=8, nbytes=100) == b"89"
    assert store.read("x", offset_bytes=50, nbytes=1) == b""
    _expect(InvalidArgumentError, lambda: store.read("x", offset_bytes=-1))
    _expect(InvalidArgumentError, lambda: store.read("x", nbytes=-1))


def check_read_into_refuses_a_short_object(make_store: MakeStore) -> None:
    """Check that a buffer is filled or the truncation named."""
    store = make_store()
    store.put_if_absent("x", b"0123456789")
    with store.open_reader("x", direct=False) as reader:
        out = bytearray(4)
        assert reader.read_into(3, out) == 4
        assert out == b"3456"
        short = _expect(FormatError, lambda: reader.read_into(8, bytearray(4)))
        assert short.code is ErrorCode.TRUNCATED
        assert "'x'" in str(short)
        beyond = _expect(FormatError, lambda: reader.read_into(11, bytearray(1)))
        assert beyond.code is ErrorCode.TRUNCATED


def check_read_into_takes_arrays(make_store: MakeStore) -> None:
    """Check that contiguous arrays of any type are filled, others refused."""
    store = make_store()
    expected = np.arange(64, dtype=np.int32).reshape(8, 8)
    _put(store, "x", expected.tobytes())
    with store.open_reader("x", direct=False) as reader:
        out = np.zeros((8, 8), np.int32)
        assert reader.read_into(0, out) == out.nbytes
        assert np.array_equal(out, expected)
        _expect(InvalidArgumentError, lambda: reader.read_into(0, out[:, ::2]))
        _expect(InvalidArgumentError, lambda: reader.read_into(0, memoryview(bytes(4))))


def check_many_threads_read_one_object(make_store: MakeStore) -> None:
    """Check that reads at the same time do not disturb each other."""
    store = make_store()
    _put(store, "x", _DATA)
    with store.open_reader("x", direct=False) as reader:

        def read(number: int) -> None:
            out = bytearray(512)
            reader.read_into(number * 512, out)
            assert out == _DATA[number * 512 : (number + 1) * 512]

        _in_threads(read, 16)


def check_map_is_the_object(make_store: MakeStore) -> None:
    """Check that mapped memory is read-only and outlives its reader."""
    store = make_store()
    _put(store, "x", _DATA)
    with store.open_reader("x", direct=False) as reader:
        mapped = reader.map()
    if mapped is not None:
        assert mapped.readonly
        assert mapped == _DATA


def check_closed_reader_reads_nothing(make_store: MakeStore) -> None:
    """Check that a reader can be closed twice and is closed then."""
    store = make_store()
    _put(store, "x", _DATA)
    reader = store.open_reader("x", direct=False)
    reader.close()
    reader.close()
    _expect(StateError, lambda: reader.read_into(0, bytearray(1)))


def check_missing_objects_are_named(make_store: MakeStore) -> None:
    """Check that a key without an object raises ObjectNotFoundError with that key."""
    store = make_store()
    store.put_if_absent("data/x", b"")
    actions: tuple[Callable[[str], object], ...] = (
        store.read,
        store.delete,
        lambda key: store.open_reader(key, direct=False),
    )
    for action in actions:
        for key in ("y", "data/y", "none/y"):
            error = _expect(ObjectNotFoundError, partial(action, key))
            assert error.key == key
            assert error.code is ErrorCode.FILE_MISSING


def check_put_if_absent_never_replaces(make_store: MakeStore) -> None:
    """Check that the first to publish stays."""
    store = make_store()
    store.put_if_absent("data/x", b"first")
    error = _expect(ObjectExistsError, lambda: store.put_if_absent("data/x", b"second"))
    assert error.key == "data/x"
    assert store.read("data/x") == b"first"
    assert store.list() == [ObjectInfo("data/x", 5)]


def check_one_of_many_publishers_wins(make_store: MakeStore) -> None:
    """Check that of eight threads that publish one key exactly one succeeds, whole."""
    store = make_store()
    won: list[int] = []

    def publish(number: int) -> None:
        try:
            store.put_if_absent("data/x", bytes([number]) * 1000)
        except ObjectExistsError:
            return
        won.append(number)

    _in_threads(publish, 8)
    assert len(won) == 1
    assert store.read("data/x") == bytes(won) * 1000
    assert [info.key for info in store.list()] == ["data/x"]


def check_list_is_sorted_and_filtered(make_store: MakeStore) -> None:
    """Check that a listing holds all depths in order of keys and obeys the prefix."""
    store = make_store()
    keys = ["b", "a/y", "a/x/z", "a-b", "data/10", "data/9", "data2/q"]
    for number, key in enumerate(keys):
        store.put_if_absent(key, bytes(number))
    listed = store.list()
    assert [info.key for info in listed] == sorted(keys)
    assert {info.key: info.nbytes for info in listed} == {k: n for n, k in enumerate(keys)}
    for prefix in ("a", "a/", "a/x", "a/x/", "data", "data/", "data/1", "none", "none/x"):
        found = [info.key for info in store.list(prefix)]
        assert found == sorted(key for key in keys if key.startswith(prefix)), prefix


def check_delete_removes_one_object(make_store: MakeStore) -> None:
    """Check that a deleted object is gone and can be created again."""
    store = make_store()
    store.put_if_absent("data/x", b"1")
    store.put_if_absent("data/y", b"2")
    store.delete("data/x")
    assert [info.key for info in store.list()] == ["data/y"]
    store.put_if_absent("data/x", b"3")
    assert store.read("data/x") == b"3"


def check_child_is_the_part_below_a_prefix(make_store: MakeStore) -> None:
    """Check that a child's keys are relative and that both see the same objects."""
    store = make_store()
    child = store.child("run/step-1")
    assert child.list() == []
    child.put_if_absent("data/x", b"x")
    store.put_if_absent("run/step-2/m", b"m")
    store.put_if_absent("top", b"")
    assert store.read("run/step-1/data/x") == b"x"
    assert child.list() == [ObjectInfo("data/x", 1)]
    assert store.child("run").child("step-2").read("m") == b"m"
    assert store.children() == ["run"]
    assert store.child("run").children() == ["step-1", "step-2"]
    error = _expect(ObjectNotFoundError, lambda: child.read("m"))
    assert error.key == "m"


def check_bad_keys_are_refused(make_store: MakeStore) -> None:
    """Check that no method takes a key that could mean something outside the store."""
    store = make_store()
    actions: tuple[Callable[[str], object], ...] = (
        store.read,
        store.delete,
        store.child,
        lambda key: store.open_reader(key, direct=False),
        lambda key: store.create(key, nbytes_hint=None),
        lambda key: store.put_if_absent(key, b""),
    )
    for action in actions:
        for key in _BAD_KEYS:
            _expect(InvalidArgumentError, partial(action, key))
    for prefix in ("/a", "../", "a/../", "a\0", "a\\"):
        _expect(InvalidArgumentError, partial(store.list, prefix))
    assert store.list() == []


STORE_CHECKS: tuple[StoreCheck, ...] = (
    check_is_a_store,
    check_empty_store_lists_nothing,
    check_written_object_reads_back,
    check_object_with_a_large_hint_reads_back,
    check_ranges_never_written_read_as_zero,
    check_empty_object_exists,
    check_many_threads_write_one_object,
    check_create_refuses_what_exists,
    check_abort_removes_the_object,
    check_abort_leaves_another_object,
    check_leaving_without_finish_aborts,
    check_finished_writer_is_closed,
    check_finish_refuses_bytes_never_written,
    check_read_returns_what_is_there,
    check_read_into_refuses_a_short_object,
    check_read_into_takes_arrays,
    check_many_threads_read_one_object,
    check_map_is_the_object,
    check_closed_reader_reads_nothing,
    check_missing_objects_are_named,
    check_put_if_absent_never_replaces,
    check_one_of_many_publishers_wins,
    check_list_is_sorted_and_filtered,
    check_delete_removes_one_object,
    check_child_is_the_part_below_a_prefix,
    check_bad_keys_are_refused,
)
"""Every check, in an order that starts with what the later ones build on."""


def _write_piece(writer: ObjectWriter, offset_bytes: int, data: bytes) -> None:
    """Write bytes as the writer wants them: padded, from aligned memory."""
    if writer.alignment == 1 or not data:
        writer.write_at(offset_bytes, data)
        return
    with AlignedBuffer(-(-len(data) // writer.alignment) * writer.alignment) as buffer:
        buffer.view[: len(data)] = data
        writer.write_at(offset_bytes, buffer.array)


def _put(store: Store, key: str, data: bytes) -> None:
    with store.create(key, nbytes_hint=len(data)) as writer:
        _write_piece(writer, 0, data)
        writer.finish(len(data))


def _read_all(reader: ObjectReader) -> bytes:
    """Read an object with one call into aligned memory that may end behind it."""
    size = -(-reader.nbytes // reader.alignment) * reader.alignment
    with AlignedBuffer(size) as buffer:
        filled = reader.read_into(0, buffer.array)
        return bytes(buffer.view[:filled])


def _in_threads(action: Callable[[int], None], count: int) -> None:
    """Run an action in threads that start together; raise the first error of any."""
    start = threading.Barrier(count)

    def run(number: int) -> None:
        start.wait()
        action(number)

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(run, range(count)))


def _expect(kind: type[_Error], action: Callable[[], object]) -> _Error:
    """Return the error an action raises, which must be of that kind."""
    try:
        action()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, but the call succeeded")
