"""What every coordinator must do, as checks that anyone can run on one of their own.

A check is called on every rank of a group at the same time, with that rank's end of it.  It raises
AssertionError (or whatever the coordinator raised) where that is wrong.  The last check leaves a
group that is of no use any more.  The module needs no test framework:

    check_coordinator(MyCoordinator(...))     # on every rank
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np

from bcpformat.engine.coordinator import Coordinator
from bcpformat.engine.memory import Bytes
from bcpformat.errors import CoordinationError, ErrorCode
from bcpformat.model.manifest import ints

CoordinatorCheck: TypeAlias = Callable[[Coordinator], None]

_PATIENT_S = 60.0
_SHORT_S = 2.0
_LARGE_BYTES = (9 << 20) + 1


def check_coordinator(ranks: Coordinator) -> None:
    """Run every check; every rank calls it, and the group is of no use after it.

    Args:
        ranks: This rank's end of a group of at least two, that nobody else uses.

    Raises:
        AssertionError: The coordinator does not do what it must.

    Example:
        >>> from bcpformat.testing.ranks import run_ranks
        >>> run_ranks(2, check_value_may_be_taken_again)
        [None, None]
    """
    for check in COORDINATOR_CHECKS:
        check(ranks)


def check_total_is_the_sum_of_all_ranks(ranks: Coordinator) -> None:
    """Check that sums are exact up to 63 bits, and leave their argument alone."""
    values = ints([1, ranks.rank, -(ranks.rank**2), (1 << 62) if ranks.rank == 0 else 0])
    before = values.copy()
    found = ranks.total(values, timeout_s=_PATIENT_S)
    everyone = range(ranks.size)
    expected = [ranks.size, sum(everyone), -sum(rank**2 for rank in everyone), 1 << 62]
    assert found.dtype == np.int64
    assert found.tolist() == expected
    assert values.tolist() == before.tolist()


def check_no_value_is_a_sum_too(ranks: Coordinator) -> None:
    """Check that nothing sums to nothing."""
    assert ranks.total(ints([]), timeout_s=_PATIENT_S).tolist() == []


def check_exchange_gives_every_rank_its_part(ranks: Coordinator) -> None:
    """Check parts of other sizes for every pair of ranks, and that no argument is changed."""
    sizes = [[100 * giver + taker for taker in range(ranks.size)] for giver in range(ranks.size)]
    parts = [_bytes_between(ranks.rank, taker, n) for taker, n in enumerate(sizes[ranks.rank])]
    before = [part.copy() for part in parts]
    found = ranks.exchange(parts, timeout_s=_PATIENT_S)
    for giver, part in enumerate(found):
        expected = _bytes_between(giver, ranks.rank, sizes[giver][ranks.rank])
        assert part.dtype == np.uint8
        assert part.tolist() == expected.tolist()
    assert all(np.array_equal(a, b) for a, b in zip(parts, before, strict=True))


def check_exchange_of_nothing_is_one_too(ranks: Coordinator) -> None:
    """Check that a rank may give nothing to some or all others."""
    nothing = np.zeros(0, dtype=np.uint8)
    found = ranks.exchange([nothing] * ranks.size, timeout_s=_PATIENT_S)
    assert [len(part) for part in found] == [0] * ranks.size
    given = [nothing] * ranks.size
    given[(ranks.rank + 1) % ranks.size] = np.full(3, ranks.rank, dtype=np.uint8)
    before = (ranks.rank - 1) % ranks.size
    found = ranks.exchange(given, timeout_s=_PATIENT_S)
    assert [p.tolist() for p in found if len(p)] == [[before] * 3]
    assert found[before].tolist() == [before] * 3


def check_exchange_takes_large_parts(ranks: Coordinator) -> None:
    """Check many bytes from one rank to all, the same ones, and few from the others."""
    large = np.frombuffer(_large(), dtype=np.uint8)
    mine = large if ranks.rank == ranks.size - 1 else large[: ranks.rank]
    found = ranks.exchange([mine] * ranks.size, timeout_s=_PATIENT_S)
    assert [len(part) for part in found[:-1]] == list(range(ranks.size - 1))
    assert np.array_equal(found[-1], large)


def _bytes_between(giver: int, taker: int, nbytes: int) -> Bytes:
    return np.arange(giver + 3 * taker, giver + 3 * taker + nbytes).astype(np.uint8)


def check_value_is_taken_by_all_ranks(ranks: Coordinator) -> None:
    """Check that what any rank has put, before or after it is waited for, comes to all."""
    ranks.put(f"one/{ranks.rank}", bytes([ranks.rank]) * 3)
    for rank in range(ranks.size):
        assert ranks.take(f"one/{rank}", timeout_s=_PATIENT_S) == bytes([rank]) * 3
    _meet(ranks)


def check_value_may_be_taken_again(ranks: Coordinator) -> None:
    """Check that to take a value does not remove it."""
    if ranks.rank == 0:
        ranks.put("again", b"abc")
    for _ in range(2):
        assert ranks.take("again", timeout_s=_PATIENT_S) == b"abc"
    _meet(ranks)


def check_value_may_have_any_size(ranks: Coordinator) -> None:
    """Check an empty value and a large one."""
    last = ranks.size - 1
    if ranks.rank == last:
        ranks.put("size/none", b"")
        ranks.put("size/large", _large())
    assert ranks.take("size/none", timeout_s=_PATIENT_S) == b""
    assert ranks.take("size/large", timeout_s=_PATIENT_S) == _large()
    _meet(ranks)


def check_value_nobody_put_does_not_come(ranks: Coordinator) -> None:
    """Check that the wait for a value has an end, and that none is needed to look."""
    start = time.monotonic()
    assert ranks.take("nobody", timeout_s=0.0) is None
    assert ranks.take("nobody", timeout_s=0.05) is None
    assert time.monotonic() - start < _PATIENT_S
    _meet(ranks)


def check_forgotten_value_is_gone(ranks: Coordinator) -> None:
    """Check that values of any size can be removed, and what is not there too."""
    if ranks.rank == 0:
        for key, value in (("gone/small", b"abc"), ("gone/large", _large())):
            ranks.put(key, value)
            ranks.forget(key)
            ranks.forget(key)
    _meet(ranks)
    assert ranks.take("gone/small", timeout_s=0.0) is None
    assert ranks.take("gone/large", timeout_s=0.0) is None
    _meet(ranks)


def check_thread_takes_while_ranks_sum(ranks: Coordinator) -> None:
    """Check that a wait on a background thread stands in nobody's way."""
    with ThreadPoolExecutor(1) as background:
        waiting = background.submit(ranks.take, "late", timeout_s=_PATIENT_S)
        for number in range(20):
            found = ranks.total(ints([number]), timeout_s=_PATIENT_S)
            assert found.tolist() == [number * ranks.size]
        assert not waiting.done()
        _meet(ranks)
        if ranks.rank == 0:
            ranks.put("late", b"at last")
        assert waiting.result() == b"at last"
    _meet(ranks)


def check_rank_that_does_not_come_is_named(ranks: Coordinator) -> None:
    """Check that a sum fails in time on all ranks, names who is missing, and stays failed."""
    late = ranks.size - 1
    if ranks.rank == late:
        for rank in range(late):
            assert ranks.take(f"over/{rank}", timeout_s=_PATIENT_S) == b"1"
    errors = [_error_of_total(ranks), _error_of_total(ranks), _error_of_exchange(ranks)]
    if ranks.rank != late:
        ranks.put(f"over/{ranks.rank}", b"1")
        # Nobody leaves before the late rank has seen it too: whoever is gone is another case.
        assert ranks.take("seen", timeout_s=_PATIENT_S) == b"1"
    else:
        ranks.put("seen", b"1")
    for error in errors:
        assert error.code is ErrorCode.TIMEOUT
        assert error.ranks == (late,)
        assert f"rank {late}" in error.message


def _error_of_total(ranks: Coordinator) -> CoordinationError:
    try:
        ranks.total(ints([1]), timeout_s=_SHORT_S)
    except CoordinationError as error:
        return error
    raise AssertionError("a sum without all ranks returned")


def _error_of_exchange(ranks: Coordinator) -> CoordinationError:
    try:
        ranks.exchange([np.zeros(1, dtype=np.uint8)] * ranks.size, timeout_s=_SHORT_S)
    except CoordinationError as error:
        return error
    raise AssertionError("an exchange in a group that is of no use returned")


def _meet(ranks: Coordinator) -> None:
    ranks.total(ints([0]), timeout_s=_PATIENT_S)


def _large() -> bytes:
    return np.arange(_LARGE_BYTES, dtype=np.uint32).astype(np.uint8).tobytes()


COORDINATOR_CHECKS: tuple[CoordinatorCheck, ...] = (
    check_total_is_the_sum_of_all_ranks,
    check_no_value_is_a_sum_too,
    check_exchange_gives_every_rank_its_part,
    check_exchange_of_nothing_is_one_too,
    check_exchange_takes_large_parts,
    check_value_is_taken_by_all_ranks,
    check_value_may_be_taken_again,
    check_value_may_have_any_size,
    check_value_nobody_put_does_not_come,
    check_forgotten_value_is_gone,
    check_thread_takes_while_ranks_sum,
    check_rank_that_does_not_come_is_named,
)
"""All checks, in the order in which `check_coordinator` runs them; the last one ends the group."""
