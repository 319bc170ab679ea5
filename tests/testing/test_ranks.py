"""Ranks that are threads do what processes would, and count what they say."""

from __future__ import annotations

import threading

import pytest

from bcpformat.engine.coordinator import Coordinator
from bcpformat.errors import BcpError, CoordinationError, ErrorCode, InvalidArgumentError
from bcpformat.model.manifest import ints
from bcpformat.testing.coordinator_suite import COORDINATOR_CHECKS, CoordinatorCheck
from bcpformat.testing.ranks import Ranks, run_ranks

_PATIENT_S = 60.0
_SLOW = "check_rank_that_does_not_come_is_named"


def _total(ranks: Coordinator) -> int:
    return int(ranks.total(ints([1]), timeout_s=_PATIENT_S)[0])


def _caught(ranks: Coordinator) -> tuple[ErrorCode, tuple[int, ...]] | None:
    try:
        _total(ranks)
    except CoordinationError as error:
        return error.code, error.ranks
    return None


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=[pytest.mark.slow] if check.__name__ == _SLOW else [])
        for check in COORDINATOR_CHECKS
    ],
)
def test_threads_pass_the_suite(check: CoordinatorCheck) -> None:
    run_ranks(3, check)


def test_results_come_by_rank() -> None:
    assert run_ranks(4, lambda ranks: (ranks.rank, ranks.size)) == [(r, 4) for r in range(4)]


def test_errors_of_all_ranks_come_together() -> None:
    def act(ranks: Coordinator) -> None:
        if ranks.rank != 1:
            raise ValueError(f"from {ranks.rank}")

    with pytest.raises(ExceptionGroup) as caught:
        run_ranks(3, act)

    assert [str(error) for error in caught.value.exceptions] == ["from 0", "from 2"]
    assert caught.value.exceptions[1].__notes__ == ["raised on rank 2 of 3"]


def test_outcomes_tell_who_returned_and_who_raised() -> None:
    def act(ranks: Coordinator) -> str:
        if ranks.rank == 0:
            raise KeyboardInterrupt
        return "done"

    first, second = Ranks(2).outcomes(act)

    assert isinstance(first.error, KeyboardInterrupt)
    assert (second.value, second.error) == ("done", None)


def test_rank_that_raises_fails_the_sum_of_the_others_at_once() -> None:
    def act(ranks: Coordinator) -> tuple[ErrorCode, tuple[int, ...]] | None:
        if ranks.rank == 1:
            raise ValueError
        return _caught(ranks)

    outcomes = Ranks(3).outcomes(act)

    assert [o.value for o in outcomes] == [
        (ErrorCode.RANK_LOST, (1,)),
        None,
        (ErrorCode.RANK_LOST, (1,)),
    ]


def test_rank_that_returns_early_fails_the_sum_of_the_others_at_once() -> None:
    found = run_ranks(2, lambda ranks: _caught(ranks) if ranks.rank == 0 else None)

    assert found[0] == (ErrorCode.RANK_LOST, (1,))


def test_rank_that_returns_after_its_sum_does_not_spoil_it() -> None:
    ranks = Ranks(8)

    for _ in range(50):
        assert ranks.run(_total) == [8] * 8


def test_sum_after_a_failed_one_fails() -> None:
    ranks = Ranks(2)
    ranks.run(lambda end: _caught(end) if end.rank == 0 else None)

    found = ranks.run(_caught)

    assert found == [(ErrorCode.RANK_LOST, (1,))] * 2


def test_value_of_ranks_that_are_gone_is_not_waited_for() -> None:
    found = run_ranks(
        2,
        lambda ranks: ranks.take("key", timeout_s=_PATIENT_S) if ranks.rank else b"",
        timeout_s=30,
    )

    assert found == [b"", None]


def test_rank_that_hangs_is_named() -> None:
    release = threading.Event()

    with pytest.raises(TimeoutError, match=r"rank 1 not done within 0\.05 s"):
        run_ranks(2, lambda ranks: release.wait() if ranks.rank == 1 else True, timeout_s=0.05)

    release.set()


def test_bytes_are_counted_by_key() -> None:
    ranks = Ranks(3)

    def act(end: Coordinator) -> None:
        end.put(f"layout/{end.rank}", b"abc")
        end.put(f"part/{end.rank}", b"z")
        if end.rank == 0:
            for rank in range(3):
                end.take(f"layout/{rank}", timeout_s=_PATIENT_S)

    ranks.run(act)

    assert (ranks.put_bytes("layout/"), ranks.put_bytes("part/"), ranks.put_bytes()) == (9, 3, 12)
    assert (ranks.taken_bytes("layout/"), ranks.taken_bytes("part/")) == (9, 0)


def test_sums_are_counted_once_for_all_ranks() -> None:
    ranks = Ranks(3)

    ranks.run(_total)
    ranks.run(_total)

    assert ranks.totals == 2


def test_keys_that_nobody_forgot_are_listed() -> None:
    ranks = Ranks(1)

    def act(end: Coordinator) -> None:
        for key in ("b", "a", "c"):
            end.put(key, b"")
        end.forget("b")

    ranks.run(act)

    assert ranks.keys == ["a", "c"]


@pytest.mark.parametrize("key", ["", "a b", "a\n", "\u00e4"])
def test_key_that_a_store_may_refuse_is_refused(key: str) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        run_ranks(1, lambda ranks: ranks.put(key, b""))

    assert caught.group_contains(InvalidArgumentError)


def test_key_is_put_once() -> None:
    def act(ranks: Coordinator) -> None:
        ranks.put("key", b"")
        ranks.put("key", b"")

    with pytest.raises(ExceptionGroup) as caught:
        run_ranks(1, act)

    assert caught.group_contains(BcpError, match="already")
