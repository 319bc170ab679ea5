"""Every store of ours passes the suite that others run on theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bcpformat.storage import LocalStore, MemoryStore
from bcpformat.storage.store import Store
from bcpformat.testing import store_suite
from bcpformat.testing.faulty_store import FaultyStore
from bcpformat.testing.store_suite import STORE_CHECKS, MakeStore, StoreCheck

KINDS = ("local", "local_child", "memory", "memory_child", "faulty_local", "faulty_memory")


def maker(kind: str, root: Path) -> MakeStore:
    """Return a function that makes a fresh, empty store of a kind at each call."""
    made = 0

    def make() -> Store:
        nonlocal made
        made += 1
        local = LocalStore(root / str(made) / "not" / "there")
        stores: dict[str, Store] = {
            "local": local,
            "local_child": local.child("a/b"),
            "memory": MemoryStore(),
            "memory_child": MemoryStore().child("a/b"),
            "faulty_local": FaultyStore(local),
            "faulty_memory": FaultyStore(MemoryStore()).child("a"),
        }
        return stores[kind]

    return make


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
def test_store_passes_the_suite(check: StoreCheck, kind: str, tmp_path: Path) -> None:
    check(maker(kind, tmp_path))


def test_every_check_of_the_suite_is_listed() -> None:
    written = {name for name in vars(store_suite) if name.startswith("check_")} - {"check_store"}

    assert {check.__name__ for check in STORE_CHECKS} == written


def test_suite_catches_a_store_that_replaces() -> None:
    class Replacing(MemoryStore):
        def put_if_absent(self, key: str, data: bytes) -> None:
            if any(info.key == key for info in self.list()):
                self.delete(key)
            super().put_if_absent(key, data)

    with pytest.raises(AssertionError, match="expected ObjectExistsError"):
        store_suite.check_store(Replacing)


def test_suite_catches_a_device_that_loses_half_a_write() -> None:
    with pytest.raises(AssertionError):
        store_suite.check_written_object_reads_back(
            lambda: FaultyStore(MemoryStore(), fail_at=1, effect="short")
        )
