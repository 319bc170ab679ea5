"""Warm buffers: aligned, reused, and scarce on purpose."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from bcpformat.errors import InvalidArgumentError, StateError
from bcpformat.storage import AlignedBuffer, BufferPool, get_pool


@pytest.mark.parametrize("nbytes", [1, 100, 4096, 4097, 3 << 20])
def test_buffer_is_aligned_and_zero_and_of_the_size_asked_for(nbytes: int) -> None:
    with AlignedBuffer(nbytes, touch=True) as buffer:
        assert buffer.array.ctypes.data % 4096 == 0
        assert buffer.array.shape == (nbytes,)
        assert buffer.array.dtype == np.uint8
        assert buffer.nbytes == nbytes
        assert not buffer.array.any()


def test_view_and_array_are_the_same_memory() -> None:
    with AlignedBuffer(4096) as buffer:
        buffer.view[5] = 9

        assert buffer.array[5] == 9


def test_touching_keeps_the_content() -> None:
    with AlignedBuffer(16384) as buffer:
        buffer.array[:] = 7

        buffer.touch(start_bytes=4096)
        buffer.touch(start_bytes=0, stop_bytes=8192)

        assert (buffer.array == 7).all()


def test_touched_pages_are_resident() -> None:
    def resident_bytes() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    before = resident_bytes()
    with AlignedBuffer(32 << 20, touch=True):
        assert resident_bytes() - before > 24 << 20


def test_closed_buffer_has_no_memory_but_its_views_live_on() -> None:
    buffer = AlignedBuffer(4096)
    view = buffer.array
    buffer.close()
    buffer.close()

    view[0] = 1
    assert view[0] == 1
    for get in (lambda: buffer.array, lambda: buffer.view, buffer.touch):
        with pytest.raises(StateError, match="is closed"):
            get()


@pytest.mark.parametrize("nbytes", [0, -1])
def test_buffer_without_bytes_is_refused(nbytes: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"got {nbytes}"):
        AlignedBuffer(nbytes)


def test_buffer_beyond_the_address_space_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="cannot reserve a buffer"):
        AlignedBuffer(1 << 60)


def test_pool_gives_the_last_released_buffer_first() -> None:
    with BufferPool(3, 4096) as pool:
        first, second = pool.acquire(), pool.acquire()
        pool.release(second)
        pool.release(first)

        assert pool.acquire() is first
        assert pool.acquire() is second


def test_pool_makes_no_more_buffers_than_are_needed() -> None:
    with BufferPool(8, 4096) as pool:
        seen = set()
        for _ in range(5):
            with pool.borrow() as buffer:
                seen.add(id(buffer))

        assert len(seen) == 1


def test_empty_pool_makes_the_next_one_wait() -> None:
    with BufferPool(1, 4096) as pool:
        held = pool.acquire()
        got: list[AlignedBuffer] = []
        waiter = threading.Thread(target=lambda: got.append(pool.acquire()))
        waiter.start()
        waiter.join(0.01)
        waited = waiter.is_alive()
        pool.release(held)
        waiter.join(10)

        assert waited
        assert got == [held]


def test_many_threads_never_hold_one_buffer_together() -> None:
    holders: dict[int, int] = {}
    most = 0
    lock = threading.Lock()

    def work(pool: BufferPool) -> None:
        nonlocal most
        for _ in range(50):
            with pool.borrow() as buffer:
                with lock:
                    assert holders.setdefault(id(buffer), 0) == 0
                    holders[id(buffer)] = 1
                    most = max(most, sum(holders.values()))
                with lock:
                    holders[id(buffer)] = 0

    with BufferPool(3, 4096) as pool:
        threads = [threading.Thread(target=work, args=(pool,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(holders) <= 3
    assert most <= 3


def test_closing_a_pool_wakes_those_that_wait() -> None:
    pool = BufferPool(1, 4096)
    held = pool.acquire()
    raised: list[StateError] = []

    def wait() -> None:
        try:
            pool.acquire()
        except StateError as error:
            raised.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    waiter.join(0.01)
    pool.close()
    pool.close()
    waiter.join(10)
    pool.release(held)

    assert len(raised) == 1
    with pytest.raises(StateError):
        held.view  # noqa: B018 - the property raises


def test_pool_takes_back_only_what_it_gave_and_only_once() -> None:
    with BufferPool(1, 4096) as pool, AlignedBuffer(4096) as foreign:
        with pytest.raises(InvalidArgumentError, match="found another"):
            pool.release(foreign)
        buffer = pool.acquire()
        pool.release(buffer)
        with pytest.raises(InvalidArgumentError, match="found another"):
            pool.release(buffer)


def test_buffer_that_cannot_be_made_leaves_its_place_to_the_next() -> None:
    with BufferPool(1, 1 << 60) as pool:
        for _ in range(2):
            with pytest.raises(MemoryError):
                pool.acquire()


@pytest.mark.parametrize(("num", "nbytes"), [(0, 1), (1, 0)])
def test_pool_of_nothing_is_refused(num: int, nbytes: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"got {num} of {nbytes}"):
        BufferPool(num, nbytes)


def test_shared_pool_keeps_its_buffers_between_calls() -> None:
    with get_pool(2, 8192).borrow() as first:
        pass
    with get_pool(2, 8192).borrow() as second:
        assert second is first
    get_pool(2, 8192).close()


def test_shared_pool_closed_by_one_is_made_anew() -> None:
    closed = get_pool(1, 8192)
    closed.close()

    fresh = get_pool(1, 8192)
    with fresh.borrow():
        assert fresh is not closed
    fresh.close()
