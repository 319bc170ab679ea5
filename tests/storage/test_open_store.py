"""Locations: paths, URLs and stores; keys that mean nothing outside a store."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.errors import ErrorCode, InvalidArgumentError
from bcpformat.storage import LocalStore, MemoryStore, check_key, open_store
from bcpformat.testing.faulty_store import FaultyStore


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/srv/a", "/srv/a"),
        (Path("/srv/a"), "/srv/a"),
        ("/srv/a/../b/", "/srv/b"),
        ("file:///srv/a", "/srv/a"),
        ("FILE://localhost/srv/a", "/srv/a"),
        ("file:///srv/a%20b%23c", "/srv/a b#c"),
        ("/srv/step:10", "/srv/step:10"),
    ],
)
def test_paths_and_file_urls_are_local(location: str | Path, path: str) -> None:
    store = open_store(location)

    assert isinstance(store, LocalStore)
    assert store.describe() == path


def test_stores_are_taken_as_they_are() -> None:
    for store in (MemoryStore(), LocalStore("/srv"), FaultyStore(MemoryStore())):
        assert open_store(store) is store


@pytest.mark.parametrize("scheme", ["s3", "gs", "memory", "https"])
def test_other_schemes_are_named_as_not_built(scheme: str) -> None:
    with pytest.raises(InvalidArgumentError, match=repr(scheme)) as refused:
        open_store(f"{scheme}://bucket/prefix")
    assert refused.value.code is ErrorCode.NOT_BUILT


@pytest.mark.parametrize("location", ["file://host/srv", "file://srv", "file://", ""])
def test_urls_of_other_hosts_and_empty_paths_are_refused(location: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        open_store(location)
    assert refused.value.code is ErrorCode.ARGUMENT


@pytest.mark.parametrize("location", [None, 3, b"/srv", object()])
def test_other_objects_are_refused(location: object) -> None:
    with pytest.raises(InvalidArgumentError, match="expected a path, a URL or a store"):
        open_store(location)  # type: ignore[arg-type]  # the mistake under test


@given(st.lists(st.text("ab./\\\0", min_size=0, max_size=3), max_size=4).map("/".join))
def test_a_key_is_valid_when_each_of_its_parts_is(key: str) -> None:
    valid = all(part not in ("", ".", "..") for part in key.split("/"))
    valid = valid and not set(key) & {"\\", "\0"}

    if valid:
        assert "/".join(check_key(key)) == key
    else:
        with pytest.raises(InvalidArgumentError):
            check_key(key)


def test_names_that_are_not_utf8_are_listed_and_can_be_deleted(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    Path(tmp_path, "odd-\udcff").write_bytes(b"")

    (info,) = store.list()
    store.delete(info.key)

    assert store.list() == []
