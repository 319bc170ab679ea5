"""What ranks of torch held when they wrote checkpoints, written here and read in other layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]
torch = pytest.importorskip("torch")


import bcpformat  # noqa: E402  # needs torch, as what follows
from bcpformat import MemoryStore  # noqa: E402
from bcpformat.testing.ranks import run_ranks  # noqa: E402
from tests.distributed.torch_fixture_states import (  # noqa: E402
    State,
    cleared,
    flat_ranks,
    held,
    locals_of,
    truth,
    wrongly_recorded,
)

ONE_MODEL = (
    "torch-fsdp2-2r",
    "torch-fsdp2-tp-2x2",
    "torch-tp-3r",
    "torch-hsdp-2x2",
    "torch-fsdp2-3r",
)
"""Fixtures whose tensors have the same names."""

NEIGHBOURS = list(zip(ONE_MODEL, (*ONE_MODEL[1:], ONE_MODEL[0]), strict=True))

OTHERS = ("torch-fsdp2-flatopt-4r", "torch-pp-fsdp2-2x2")
WRONG = "torch-fsdp2-tp-wrong-chunks-3x2"


def save(states: list[State]) -> MemoryStore:
    """Write what each rank has, together."""
    store = MemoryStore()
    run_ranks(len(states), lambda end: bcpformat.write(store, states[end.rank], group=end))
    return store


def load(store: MemoryStore, states: list[State]) -> None:
    """Read into what each rank has, together."""
    run_ranks(len(states), lambda end: bcpformat.read(store, into=states[end.rank], group=end))


def differences(found: State, expected: State) -> list[str]:
    """Return the names of what is not the same in the memory of a rank."""
    first, second = locals_of(found), locals_of(expected)
    assert first.keys() == second.keys()
    assert found["step"] == expected["step"]
    return [name for name, tensor in first.items() if not torch.equal(tensor, second[name])]


@pytest.mark.parametrize("name", [*ONE_MODEL, *OTHERS])
def test_what_the_ranks_held_is_the_whole_state(name: str, fixtures_dir: Path) -> None:
    expected = truth(fixtures_dir / name)

    found = bcpformat.read(save(held(fixtures_dir / name)))

    assert found.pop("step") == 3
    assert found.keys() == expected.keys()
    assert [n for n, value in found.items() if not torch.equal(value, expected[n])] == []


@pytest.mark.parametrize(
    ("saved", "loaded"), NEIGHBOURS, ids=[" to ".join(pair) for pair in NEIGHBOURS]
)
def test_ranks_of_one_layout_get_what_those_of_another_held(
    saved: str, loaded: str, fixtures_dir: Path
) -> None:
    store = save(held(fixtures_dir / saved))
    states = cleared(lambda: held(fixtures_dir / loaded))

    load(store, states)

    expected = held(fixtures_dir / loaded, elements=fixtures_dir / saved)
    assert [differences(*pair) for pair in zip(states, expected, strict=True)] == [[]] * len(states)


@pytest.mark.parametrize("name", [*ONE_MODEL[1:3], *OTHERS])
def test_flat_ranges_get_what_the_ranks_held_and_give_it_back(
    name: str, fixtures_dir: Path
) -> None:
    fixture = fixtures_dir / name
    flat = cleared(lambda: flat_ranks(truth(fixture), 3))
    load(save(held(fixture)), flat)
    states = cleared(lambda: held(fixture))

    load(save(flat), states)

    expected = [*flat_ranks(truth(fixture), 3), *held(fixture)]
    found = [differences(*pair) for pair in zip([*flat, *states], expected, strict=True)]
    assert found == [[]] * len(expected)


def test_ranks_whose_sizes_torch_records_wrongly_are_saved_and_loaded(fixtures_dir: Path) -> None:
    whole = truth(fixtures_dir / WRONG)
    store = save(wrongly_recorded(fixtures_dir / WRONG))
    states = cleared(lambda: wrongly_recorded(fixtures_dir / WRONG))

    load(store, states)

    found = bcpformat.read(store)
    assert [n for n, tensor in whole.items() if not torch.equal(found[n], tensor)] == []
    expected = wrongly_recorded(fixtures_dir / WRONG)
    assert [differences(*pair) for pair in zip(states, expected, strict=True)] == [[]] * 6
