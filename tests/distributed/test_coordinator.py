"""Ranks of `torch.distributed` meet, sum, and tell each other things; and name who does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bcpformat.errors import CoordinationError, ErrorCode, InvalidArgumentError
from bcpformat.testing.coordinator_suite import COORDINATOR_CHECKS
from tests.distributed.processes import Job, Outcome, run_script, spawn, values

pytestmark = [pytest.mark.torch, pytest.mark.slow]
pytest.importorskip("torch")

Outcomes = dict[str, list[Outcome]]
_CHECKS = [check.__name__ for check in COORDINATOR_CHECKS]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Four processes do all jobs; the last jobs end some of them."""
    from tests.distributed import coordinator_jobs as do

    jobs = {
        "suite": Job(do.suite),
        "suite_in_files": Job(do.suite_in_files, (str(tmp_path_factory.mktemp("c") / "store"),)),
        "caching": Job(do.caching),
        "sub_groups": Job(do.sub_groups),
        "again": Job(do.again),
        "same_store": Job(do.same_store),
        "large_value": Job(do.large_value),
        "busy_client": Job(do.busy_client),
        "late_rank": Job(do.late_rank),
        "lead_late_to_join": Job(do.late_to_join, (0,)),
        "other_late_to_join": Job(do.late_to_join, (2,)),
        "killed": Job(do.killed, lost=(3,)),
        "killed_within": Job(do.killed_within, ranks=(0, 1, 2), lost=(2,)),
        "silent_store": Job(do.silent_store, ranks=(0, 1), lost=(1,)),
    }
    return dict(zip(jobs, spawn(4, list(jobs.values())), strict=True))


@pytest.mark.parametrize("job", ["suite", "suite_in_files"])
def test_coordinator_passes_the_suite(outcomes: Outcomes, job: str) -> None:
    assert values(outcomes[job]) == [_CHECKS] * 4


def test_coordinator_works_under_torchrun() -> None:
    program = Path(__file__).with_name("torchrun_program.py")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

    output = run_script([sys.executable, *launcher, str(program)])

    said = [line for line in output.splitlines() if line.startswith("rank ")]
    assert sorted(said) == ["rank 0: [2]", "rank 1: [2]"]


def test_coordinator_is_made_once_and_lives_as_long_as_its_group(outcomes: Outcomes) -> None:
    expected = {"is_same": True, "is_gone": True}

    assert values(outcomes["caching"]) == [expected] * 4


def test_group_of_other_processes_has_ranks_of_its_own(outcomes: Outcomes) -> None:
    third, fourth = values(outcomes["sub_groups"])[2:]

    assert third["place"] == [(0, 2)] * 2
    assert fourth["place"] == [(1, 2)] * 2
    assert third["totals"] == fourth["totals"] == [5, 5]


def test_two_groups_of_the_same_processes_do_not_share_keys(outcomes: Outcomes) -> None:
    third, fourth = values(outcomes["sub_groups"])[2:]

    assert third["taken"] == fourth["taken"] == [b"of group 0", b"of group 1"]


def test_error_of_a_sub_group_names_the_global_rank(outcomes: Outcomes) -> None:
    error = values(outcomes["sub_groups"])[2]["error"]

    assert error.ranks == (1,)
    assert "rank 1 (global 3)" in error.message


def test_process_outside_a_group_is_refused(outcomes: Outcomes) -> None:
    first, second = values(outcomes["sub_groups"])[:2]

    assert isinstance(first["error"], InvalidArgumentError)
    assert isinstance(second["error"], InvalidArgumentError)


@pytest.mark.parametrize("job", ["again", "same_store"])
def test_group_made_again_sees_no_value_of_the_one_before(outcomes: Outcomes, job: str) -> None:
    assert values(outcomes[job]) == [{"totals": [4] * 3, "old": [None] * 3}] * 4


def test_thread_takes_64_mib_while_the_training_sums(outcomes: Outcomes) -> None:
    assert values(outcomes["large_value"]) == [{"waited": True, "is_whole": True}] * 4


def test_thread_takes_while_the_training_waits_with_its_client(outcomes: Outcomes) -> None:
    assert values(outcomes["busy_client"]) == [b"abc"] * 4


def test_late_rank_fails_the_sum_of_all_and_is_named(outcomes: Outcomes) -> None:
    found = [value["error"] for value in values(outcomes["late_rank"])]

    assert [error.code for error in found] == [ErrorCode.TIMEOUT] * 4
    assert [error.ranks for error in found] == [(1,)] * 4
    assert "this one, rank 1, came" in found[1].message


def test_failed_sum_leaves_the_training_and_a_new_coordinator_as_good(outcomes: Outcomes) -> None:
    found = values(outcomes["late_rank"])

    assert [value["is_new"] for value in found] == [True] * 4
    assert [value["total"] for value in found] == [4] * 4


@pytest.mark.parametrize(("job", "late"), [("lead_late_to_join", 0), ("other_late_to_join", 2)])
def test_rank_that_does_not_join_is_named_and_may_come_later(
    outcomes: Outcomes, job: str, late: int
) -> None:
    found = values(outcomes[job])
    raised = [value["error"] for rank, value in enumerate(found) if rank != late]

    assert [error.code for error in raised] == [ErrorCode.TIMEOUT] * 3
    assert [error.ranks for error in raised] == [(late,)] * 3
    assert [value["total"] for value in found] == [4] * 4


@pytest.mark.crash
def test_killed_rank_is_named_long_before_the_time_out(outcomes: Outcomes) -> None:
    *found, gone = outcomes["killed"]

    assert gone.is_gone
    for value in values(found):
        assert value["error"].code is ErrorCode.RANK_LOST
        assert value["error"].ranks == (3,)
        assert value["seconds"] < 20


@pytest.mark.crash
def test_rank_killed_within_a_sum_is_lost_though_nobody_knows_which(outcomes: Outcomes) -> None:
    for error in values(outcomes["killed_within"][:2]):
        assert isinstance(error, CoordinationError)
        assert error.code is ErrorCode.RANK_LOST
        assert error.ranks == ()


@pytest.mark.crash
def test_silent_store_ends_a_wait(outcomes: Outcomes) -> None:
    (found,) = values(outcomes["silent_store"][:1])

    assert found["stopped"].code is ErrorCode.RANK_LOST
    assert found["stopped_seconds"] < 30
    assert found["put"].code is ErrorCode.RANK_LOST


@pytest.mark.crash
def test_dead_store_ends_a_wait_at_once(outcomes: Outcomes) -> None:
    (found,) = values(outcomes["silent_store"][:1])

    assert found["killed"].code is ErrorCode.RANK_LOST
    assert found["killed_seconds"] < 30
    assert found["are_broken"] == [True, True]
