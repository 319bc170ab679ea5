"""One of three ranks is killed, hangs or is late at each step of a save: nothing is half there."""

from __future__ import annotations

import signal

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.crash]
pytest.importorskip("torch")

from bcpformat.errors import (  # noqa: E402  # needs torch
    CommitError,
    CoordinationError,
    ErrorCode,
)
from tests.distributed.kill_jobs import TIMEOUT_S, Loss, Scenario, lose  # noqa: E402
from tests.distributed.processes import Job, spawn, values  # noqa: E402

_PROCESSES = 6

FOLLOWER_LOST = (
    Scenario(1, "before the sum"),
    Scenario(2, "after the sum"),
    Scenario(1, "after its layout"),
    Scenario(2, "within its data file"),
    Scenario(1, "before its part record"),
    Scenario(1, "before the sum", "hung"),
    Scenario(2, "before its part record", "hung"),
)
"""Nothing is published, and the others know why."""

LEAD_LOST_EARLY = (Scenario(0, "before the sum"), Scenario(0, "after the sum"))
"""The same of rank 0."""

LEAD_LOST = (
    Scenario(0, "within its data file"),
    Scenario(0, "before merging"),
    Scenario(0, "before publishing"),
    Scenario(0, "before publishing", hosts=True),
    Scenario(0, "before merging", "hung"),
)
"""Nothing is published, but the others cannot know that nothing will be."""

PUBLISHED = (
    Scenario(2, "before the outcome"),
    Scenario(0, "after publishing"),
    Scenario(0, "before the outcome"),
    Scenario(0, "after publishing", hosts=True),
)
"""The checkpoint is there, and the others find that out."""

LATE_FOLLOWER = Scenario(2, "before its part record", "late")
LATE_LEAD = Scenario(0, "before publishing", "late")
LATE_LEAD_ALONE = Scenario(0, "before publishing", "late", again=False)

# Those that take long come first.
SCENARIOS = (
    *LEAD_LOST,
    LATE_LEAD,
    LATE_LEAD_ALONE,
    *PUBLISHED,
    *LEAD_LOST_EARLY,
    LATE_FOLLOWER,
    *FOLLOWER_LOST,
)


def each(*scenarios: Scenario) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("scenario", scenarios, ids=str)


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[Scenario, Loss]:
    """Play all scenarios, some at the same time: their ranks mostly wait."""
    place = tmp_path_factory.mktemp("kills")
    jobs = [
        Job(lose, (scenario, str(place / str(number))), (number % _PROCESSES,))
        for number, scenario in enumerate(SCENARIOS)
    ]
    outcomes = spawn(_PROCESSES, jobs, timeout_s=900.0)
    found = [
        values(outcome[number % _PROCESSES :][:1])[0] for number, outcome in enumerate(outcomes)
    ]
    return dict(zip(SCENARIOS, found, strict=True))


@each(*SCENARIOS)
def test_rank_is_lost_where_it_should_be(losses: dict[Scenario, Loss], scenario: Scenario) -> None:
    expected = {"killed": signal.SIGKILL, "hung": signal.SIGTERM, "late": 0}[scenario.fate]

    assert losses[scenario].signal == expected


@each(*FOLLOWER_LOST, *LEAD_LOST_EARLY, LATE_FOLLOWER)
def test_t25_others_raise_an_error_that_names_the_rank(
    losses: dict[Scenario, Loss], scenario: Scenario
) -> None:
    for seen in losses[scenario].others:
        assert isinstance(seen.error, CoordinationError)
        assert seen.error.ranks == (scenario.rank,)
        assert f"rank {scenario.rank}" in seen.error.message
        gone = scenario.step == "before the sum" and scenario.fate == "killed"
        assert seen.error.code is (ErrorCode.RANK_LOST if gone else ErrorCode.TIMEOUT)


@each(*LEAD_LOST, LATE_LEAD, LATE_LEAD_ALONE)
def test_others_say_that_the_outcome_is_unknown_if_the_lead_is_lost_late(
    losses: dict[Scenario, Loss], scenario: Scenario
) -> None:
    for seen in losses[scenario].others:
        assert isinstance(seen.error, CommitError)
        assert seen.error.code is ErrorCode.UNCERTAIN
        assert seen.error.published is None
        assert "rank 0" in seen.error.message


@each(*PUBLISHED)
def test_save_that_was_published_succeeds_whoever_is_lost_then(
    losses: dict[Scenario, Loss], scenario: Scenario
) -> None:
    loss = losses[scenario]

    assert [seen.error for seen in loss.others] == [None, None]
    assert [seen.read for seen in loss.others] == [1, 1]
    assert [seen.second.code for seen in loss.others if seen.second] == [ErrorCode.EXISTS] * 2
    assert (loss.read, loss.is_valid) == (1, True)


@each(*SCENARIOS)
def test_others_wait_no_longer_than_their_time_out_says(
    losses: dict[Scenario, Loss], scenario: Scenario
) -> None:
    # Rank 0 waits one time-out for another rank and the others one more for rank 0; it then waits
    # until all have heard the outcome.  The rest is for a machine that is busy.
    longest = max(seen.seconds for seen in losses[scenario].others)

    assert longest < 2 * TIMEOUT_S + 10 + 30


@each(*FOLLOWER_LOST, *LEAD_LOST_EARLY, *LEAD_LOST, LATE_FOLLOWER, LATE_LEAD)
def test_nothing_is_published_without_all_ranks_and_a_second_save_succeeds(
    losses: dict[Scenario, Loss], scenario: Scenario
) -> None:
    loss = losses[scenario]

    assert [seen.read for seen in loss.others] == [0, 0]
    assert [seen.second for seen in loss.others] == [None, None]
    assert (loss.read, loss.is_valid) == (2, True)


@each(*FOLLOWER_LOST, *LEAD_LOST_EARLY)
def test_only_the_lost_rank_leaves_a_file(losses: dict[Scenario, Loss], scenario: Scenario) -> None:
    for seen in losses[scenario].others:
        assert all(f"-{scenario.rank:06d}-" in key for key in seen.left)
        assert len(seen.left) <= 1


def test_late_rank_hears_that_the_others_have_given_it_up(losses: dict[Scenario, Loss]) -> None:
    error = losses[LATE_FOLLOWER].error

    assert isinstance(error, CoordinationError)
    assert error.ranks == (2,)


def test_late_lead_does_not_publish_over_a_later_save(losses: dict[Scenario, Loss]) -> None:
    loss = losses[LATE_LEAD]

    assert isinstance(loss.error, CommitError)
    assert loss.error.code is ErrorCode.EXISTS
    assert (loss.read, loss.is_valid) == (2, True)


def test_what_a_late_lead_publishes_is_whole(losses: dict[Scenario, Loss]) -> None:
    loss = losses[LATE_LEAD_ALONE]

    assert loss.error is None
    assert (loss.read, loss.is_valid) == (1, True)
