"""The training of the demo: how it deals out what each rank has of its own."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.torch

WAITING = list(range(100, 116))
"""Samples in the order in which they are to come."""


def saved(name: str) -> list[dict[str, Any]]:
    """Return the queues that the ranks of a layout save, by rank."""
    from examples.train_ranks import LAYOUTS

    layout = LAYOUTS[name]
    workers = [layout.worker(rank) for rank in range(layout.ranks)]
    return [{"worker": w, "queue": WAITING[w :: layout.dp]} for w in workers]


@pytest.mark.parametrize("before", ["fsdp2-x-tp", "fsdp2", "tp", "one-process"])
@pytest.mark.parametrize("after", ["fsdp2-x-tp", "fsdp2", "tp", "one-process"])
def test_queues_are_dealt_as_the_new_layout_would_have_had_them(before: str, after: str) -> None:
    from examples.train_ranks import LAYOUTS

    layout = LAYOUTS[after]

    dealt = [layout.dealt(saved(before), rank=r, size=layout.ranks) for r in range(layout.ranks)]

    assert dealt == saved(after)


def test_a_worker_goes_on_with_the_random_state_of_the_same_number() -> None:
    from examples.train_ranks import LAYOUTS

    states = [{"worker": rank // 2, "state": f"of {rank // 2}"} for rank in range(4)]

    streams = [LAYOUTS["fsdp2"].stream(states, rank=rank, size=2) for rank in range(2)]

    assert streams == [{"worker": 0, "state": "of 0"}, {"worker": 1, "state": "of 1"}]
