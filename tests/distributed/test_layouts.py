"""What real processes save in one layout, others load in another; groups of some of them too."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]
pytest.importorskip("torch")

from bcpformat.errors import (  # noqa: E402  # needs torch
    CoordinationError,
    DisagreementError,
    ErrorCode,
    InvalidArgumentError,
)
from tests.conftest import REPOSITORY  # noqa: E402
from tests.distributed import group_jobs  # noqa: E402
from tests.distributed.layout_jobs import LAYOUTS, MOST_RANKS  # noqa: E402
from tests.distributed.layout_table import (  # noqa: E402
    matrix,
    matrix_jobs,
    selection,
    table_in,
    table_of,
    with_table,
)
from tests.distributed.processes import Job, Outcome, spawn, values  # noqa: E402

_PAIRS = selection()
_FOUR = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class Done:
    """What one set of processes did.

    Attributes:
        matrix: What is wrong with each pair of layouts, "" if nothing.
        groups: Outcomes of the jobs of `group_jobs`, by name and process.
    """

    matrix: dict[tuple[str, str], str]
    groups: dict[str, list[Outcome]]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Eight processes do all jobs, on as many of them as each layout needs."""
    place = str(tmp_path_factory.mktemp("layouts"))
    groups = {
        name: Job(function, (f"{place}/{name}",), _FOUR)
        for name, function in (
            ("sub_group", group_jobs.sub_group),
            ("replicas", group_jobs.replicas),
            ("late", group_jobs.late),
        )
    }
    jobs = matrix_jobs(_PAIRS, place)
    outcomes = spawn(MOST_RANKS, [*jobs, *groups.values()], timeout_s=900.0)
    return Done(
        matrix=matrix(_PAIRS, outcomes[: len(jobs)]),
        groups={n: o[:4] for n, o in zip(groups, outcomes[len(jobs) :], strict=True)},
    )


# ---- layouts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("saved", "loaded"), _PAIRS, ids=[" to ".join(pair) for pair in _PAIRS])
def test_every_rank_loads_every_element_that_is_its_own(
    done: Done, saved: str, loaded: str
) -> None:
    assert done.matrix[saved, loaded] == ""


def test_the_selection_saves_and_loads_every_layout_more_than_once() -> None:
    saved, loaded = (Counter(pair[side] for pair in _PAIRS) for side in (0, 1))

    assert saved.keys() == loaded.keys() == LAYOUTS.keys()
    assert min(*saved.values(), *loaded.values()) >= 2
    assert max(Counter(_PAIRS).values()) == 1


def test_the_readme_shows_every_pair_of_layouts() -> None:
    table = table_in((REPOSITORY / "README.md").read_text(encoding="utf-8"))

    assert table.keys() == {(saved, loaded) for saved in LAYOUTS for loaded in LAYOUTS}
    assert set(table.values()) == {"ok"}


def test_the_table_says_what_is_wrong_with_a_pair() -> None:
    pairs = [(saved, loaded) for saved in ("a", "b") for loaded in ("a", "b")]
    wrong = {**dict.fromkeys(pairs, ""), ("a", "b"): "w differs"}
    empty = "above\n<!-- layouts -->\n<!-- end of layouts -->\nbelow\n"

    text = with_table(with_table(empty, table_of(wrong)), table_of(wrong))

    assert table_in(text) == {**dict.fromkeys(pairs, "ok"), ("a", "b"): "no: 1"}
    assert text.count("1. w differs") == 1
    assert text.startswith("above\n") and text.endswith("below\n")


# ---- groups --------------------------------------------------------------------------------------


def test_t26_a_group_of_the_processes_2_and_3_saves_and_loads(done: Done) -> None:
    *_, third, fourth = values(done.groups["sub_group"])

    assert third["rows"] == [0, 1, 2, 3]
    assert fourth["rows"] == [4, 5, 6]
    assert (third["has_published"], fourth["has_published"]) == (True, False)


def test_processes_outside_of_a_group_are_refused_and_may_read(done: Done) -> None:
    for found in values(done.groups["sub_group"])[:2]:
        assert isinstance(found["error"], InvalidArgumentError)
        assert found["whole"] == list(range(7))


def test_replicas_of_a_dtensor_are_trusted_unless_all_are_to_be_compared(done: Done) -> None:
    for found in values(done.groups["replicas"]):
        assert found["trusted"] is None
        assert found["equal"] is None
        assert isinstance(found["full"], DisagreementError)
        assert "'w'" in found["full"].message
        assert "rank 3" in found["full"].message


def test_rank_that_does_not_come_to_the_first_save_is_named_after_its_time_out(done: Done) -> None:
    found = values(done.groups["late"])

    for value in (found[0], *found[2:]):
        assert isinstance(value["error"], CoordinationError)
        assert value["error"].code is ErrorCode.TIMEOUT
        assert value["error"].ranks == (1,)
        assert value["seconds"] < 60


def test_save_after_one_that_a_rank_has_missed_succeeds(done: Done) -> None:
    for value in values(done.groups["late"]):
        assert value["next"] is None
        assert value["whole"] == [0, 1, 2, 3, 4]
