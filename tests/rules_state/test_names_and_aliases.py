"""Names of tensors, and tensors with several (spec 11, 12), on real checkpoints."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bcpformat
from bcpformat import ErrorCode, MemoryStore
from bcpformat.model.user_types import UnknownType
from tests.rules_state.hostile import (
    accepted,
    manifest_of,
    refused,
    with_manifest,
    written,
)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (("a", "b"), "a/b"),
        (("a/b",), "a%2Fb"),
        (("50%",), "50%25"),
        (("\x00\x1f\x7f",), "%00%1F%7F"),
        (("",), "%e"),
        ((0,), "%i0"),
        ((-(2**70),), f"%i-{2**70}"),
        ((True,), "%t"),
        ((False,), "%f"),
        ((("x", 1, (True,)),), "%(x,%i1,%(%t%)%)"),
        ((("a,b",),), "%(a%2Cb%)"),
        (("..",), ".."),
        (("\\", "é\u202e"), "\\/é\u202e"),
    ],
)
def test_a_tensor_has_the_name_of_its_path(keys: tuple[Any, ...], name: str) -> None:
    """BCP-NAM-001."""
    state: Any = np.arange(3)
    for key in reversed(keys):
        state = {key: state}
    store = written(state)

    accepted(store)
    with bcpformat.open(store) as ckpt:
        assert list(ckpt) == [name]
        assert ckpt[name].read().tolist() == [0, 1, 2]


def test_positions_metadata_and_the_top_have_their_names() -> None:
    """BCP-NAM-001: a user's type adds no segment."""
    ordered: Any = OrderedDict(k=np.zeros(1))
    ordered._metadata = np.zeros(1)
    state = [ordered, (np.zeros(1), UnknownType("t", {"x": np.zeros(1)}))]

    assert set(manifest_of(written(state)).tensors.names) == {"0/%m", "0/k", "1/0", "1/1/x"}
    assert list(manifest_of(written(np.zeros(1))).tensors.names) == [""]


def test_a_name_that_is_not_formed_by_the_table_is_refused() -> None:
    """BCP-NAM-001: "w%2F" is the name of the key "w/", and "w%2f" of none."""
    store = written({"w/": np.zeros(3)})

    def named(name: str) -> MemoryStore:
        return with_manifest(store, lambda m: replace(m, tensors=replace(m.tensors, names=[name])))

    assert accepted(named("w%2F"))
    assert refused(named("w%2f")) is ErrorCode.STATE


def test_leaves_that_share_all_their_elements_are_one_tensor_and_one_object_again() -> None:
    """BCP-ALI-001."""
    w = np.arange(6.0)
    store = MemoryStore()

    report = bcpformat.write(store, {"a": w, "b": [w[:]]})
    back = accepted(store)

    assert report.raw_bytes == w.nbytes
    assert np.shares_memory(back["a"], back["b"][0])
    assert manifest_of(store).tensors.aliases == {0: ("b/0",)}


def test_leaves_without_elements_are_no_aliases() -> None:
    """BCP-ALI-001."""
    w = np.zeros((0, 3))

    assert manifest_of(written({"a": w, "b": w})).tensors.aliases == {}


@pytest.mark.parametrize(
    "other",
    [lambda w: w[1:], lambda w: w[:5], lambda w: w[::-1], lambda w: w.view(np.int64)],
)
def test_views_that_overlap_in_another_way_are_stored_by_value(other: Any) -> None:
    """BCP-ALI-002: another offset, shape, strides or data type."""
    w = np.arange(6.0)
    view = other(w)
    store = MemoryStore()

    report = bcpformat.write(store, {"a": w, "b": view})
    back = accepted(store)

    assert report.raw_bytes == w.nbytes + view.nbytes
    assert not np.shares_memory(back["a"], back["b"])
    assert back["b"].tobytes() == view.tobytes()
