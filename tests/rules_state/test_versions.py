"""Versions, features and extensions (spec 15), on real checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bcpformat
from bcpformat import ErrorCode, MemoryStore
from bcpformat.interop.recode import recode
from bcpformat.model.manifest import MANIFEST_KEY
from bcpformat.wire import encode_manifest
from tests.rules_state.hostile import (
    accepted,
    manifest_of,
    objects_of,
    refused,
    store_of,
    with_documents,
    written,
)

W = np.arange(64, dtype=np.float32)
STATE = {"w": W, "r": bcpformat.PerRank(7), "o": "x" * 70_000}
Change = Callable[[dict[str, Any], dict[str, Any]], None]


def base() -> MemoryStore:
    return written(STATE, step=3)


def root_key(root: dict[str, Any], _sections: dict[str, Any]) -> None:
    root["later"] = {"any": [1, b"x"]}


def writer_key(root: dict[str, Any], _sections: dict[str, Any]) -> None:
    root["writer"]["later"] = 1


def row_key(kind: str) -> Change:
    def change(_root: dict[str, Any], sections: dict[str, Any]) -> None:
        sections[kind][0]["later"] = "x"

    return change


def column(kind: str) -> Change:
    def change(_root: dict[str, Any], sections: dict[str, Any]) -> None:
        sections[kind]["later"] = bytes(8)

    return change


def section(_root: dict[str, Any], sections: dict[str, Any]) -> None:
    sections["later"] = [1, 2, 3]


UNKNOWN: list[tuple[str, Change, ErrorCode]] = [
    ("root", root_key, ErrorCode.KEY_UNKNOWN),
    ("writer", writer_key, ErrorCode.KEY_UNKNOWN),
    *((kind, row_key(kind), ErrorCode.KEY_UNKNOWN) for kind in ("files", "tensors", "objects")),
    *((kind, column(kind), ErrorCode.KEY_UNKNOWN) for kind in ("runs", "chunks", "per_rank")),
    ("section", section, ErrorCode.SECTION),
]


@pytest.mark.parametrize(("change", "code"), [(c, e) for _, c, e in UNKNOWN])
def test_what_this_version_does_not_have_is_refused(change: Change, code: ErrorCode) -> None:
    """BCP-VER-001."""
    assert refused(with_documents(base(), change)) is code


@pytest.mark.parametrize("change", [c for _, c, _ in UNKNOWN])
def test_what_a_newer_minor_has_is_ignored(change: Change) -> None:
    """BCP-VER-001."""
    back = accepted(with_documents(base(), change, minor=1))

    assert back["w"].tobytes() == W.tobytes()
    assert back["r"][0] == 7


def test_any_key_may_stand_within_user_and_ext() -> None:
    """BCP-VER-001, BCP-VER-003: extensions that a reader does not know are ignored."""

    def change(root: dict[str, Any], sections: dict[str, Any]) -> None:
        root["ext"] = {"com.example.thing": {"later": [1, True]}}
        root["user"] = {"later": 1}
        sections["files"][0]["ext"] = {"com.example.file": 1}
        sections["tensors"][0]["ext"] = {"com.example.tensor": "x"}
        sections["tensors"][0]["user"] = {"later": b"x"}

    assert accepted(with_documents(base(), change))["w"].tobytes() == W.tobytes()


def test_keys_and_extensions_survive_decoding_and_encoding() -> None:
    """BCP-VER-004."""

    def change(root: dict[str, Any], sections: dict[str, Any]) -> None:
        root["ext"] = {"com.example.thing": 1}
        root["later"] = 2
        sections["files"][0]["later"] = 3
        sections["tensors"][0]["later"] = 4

    store = with_documents(base(), change, minor=1)

    again = encode_manifest(manifest_of(store), codec="none")

    assert again == store.read(MANIFEST_KEY)


def extended(root: dict[str, Any], _sections: dict[str, Any]) -> None:
    root["ext"] = {"com.example.thing": 1}


def optional(root: dict[str, Any], _sections: dict[str, Any]) -> None:
    root["optional"] = ["com.example.thing"]


def file_extended(_root: dict[str, Any], sections: dict[str, Any]) -> None:
    sections["files"][0]["ext"] = {"com.example.thing": 1}


def media(_root: dict[str, Any], sections: dict[str, Any]) -> None:
    sections["objects"][0]["media"] = "text/plain"


@pytest.mark.parametrize(
    ("change", "minor"),
    [
        (extended, 0),
        (optional, 0),
        (file_extended, 0),
        (media, 0),
        *((change, 1) for _, change, _ in UNKNOWN),
    ],
)
def test_a_tool_that_cannot_keep_what_it_does_not_know_refuses(change: Change, minor: int) -> None:
    """BCP-VER-004: it drops nothing in silence, and writes nothing."""
    target = MemoryStore()
    with (
        bcpformat.open(with_documents(base(), change, minor=minor)) as source,
        pytest.raises(bcpformat.InvalidArgumentError) as caught,
    ):
        recode(source, target, step=None, options=bcpformat.WriteOptions(), progress=lambda _: None)

    assert caught.value.code is ErrorCode.NOT_BUILT
    assert target.list() == []


def test_a_tool_keeps_all_that_it_knows() -> None:
    """BCP-VER-004: the valid twin."""
    target = MemoryStore()
    with bcpformat.open(written(STATE, step=3, user={"any": [1]})) as source:
        recode(source, target, step=None, options=bcpformat.WriteOptions(), progress=lambda _: None)
        before = source.manifest

    after = manifest_of(target)

    assert (after.step, after.user, after.state) == (before.step, before.user, before.state)
    assert accepted(target)["o"] == "x" * 70_000


def test_a_copied_checkpoint_keeps_its_newer_minor() -> None:
    """BCP-VER-004: copying the objects copies everything."""
    store = with_documents(base(), root_key, minor=7)

    copy = store_of(objects_of(store))

    assert manifest_of(copy).minor == 7
    assert manifest_of(copy).extra == {"later": {"any": [1, b"x"]}}
    accepted(replace_attempt(copy))


def replace_attempt(store: MemoryStore) -> MemoryStore:
    """Return the same checkpoint under a name of its own; the data file keeps its attempt id."""
    manifest = manifest_of(store)
    document = encode_manifest(replace(manifest, attempt_id=bytes(16)), codec="zstd")
    return store_of({**objects_of(store), MANIFEST_KEY: document})
