"""Checkpoints of version 1.0, frozen when it was: whatever reads them, reads them for ever."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import bcpformat
from bcpformat import ErrorCode, LocalStore
from bcpformat.model.manifest import MANIFEST_KEY
from bcpformat.model.state_decode import state_leaves
from bcpformat.wire import encode_manifest
from tests.golden.described import described, tensor
from tests.rules_state.hostile import manifest_of

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "1.0"
NAMES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
READABLE = [name for name in NAMES if name != "major-2"]


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / name / "expected.json").read_text("ascii"))
    return found


def test_t48_the_frozen_files_are_those_that_were_frozen() -> None:
    lines = (GOLDEN / "SHA256SUMS").read_text("ascii").splitlines()
    sums = {line[66:]: line[:64] for line in lines}

    files = [p for p in GOLDEN.rglob("*") if p.is_file() and p.name != "SHA256SUMS"]
    found = {
        p.relative_to(GOLDEN).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files
    }

    assert found == sums
    assert sum(p.stat().st_size for p in files) < 200_000


@pytest.mark.parametrize("name", READABLE)
def test_t48_a_frozen_checkpoint_has_the_values_it_had(name: str) -> None:
    """BCP-FIL-005: `expected.json` lies among its objects and is no part of it."""
    back = bcpformat.read(GOLDEN / name, as_numpy=True)

    assert json.loads(json.dumps(described(back))) == expected(name)["state"]


@pytest.mark.parametrize("name", READABLE)
def test_t48_a_frozen_checkpoint_is_valid(name: str) -> None:
    report = bcpformat.validate(GOLDEN / name)

    assert report.problems == ()
    assert report.unreferenced == ("expected.json",)


@pytest.mark.parametrize("name", READABLE)
def test_t48_every_tensor_has_its_type_shape_and_bytes_when_opened(name: str) -> None:
    def tensors(node: Any) -> list[Any]:
        if isinstance(node, list):
            if len(node) == 2 and node[0] == "tensor":
                return [node[1]]
            return [] if node[:1] == ["PerRankValues"] else [t for n in node for t in tensors(n)]
        return []

    with bcpformat.open(GOLDEN / name) as ckpt:
        found = [tensor(view.read()) for view in ckpt.values()]
        assert (ckpt.step, ckpt.user) == (10, expected(name)["user"])

    wanted = tensors(expected(name)["state"])
    assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, wanted))


def test_t48_torch_leaves_keep_their_flags() -> None:
    flags = {n: f for n, _, f in state_leaves(manifest_of(LocalStore(GOLDEN / "leaves")).state)}

    back = bcpformat.read(GOLDEN / "leaves")

    assert flags == {"plain": 0, "parameter": 6, "frozen": 2, "leaf": 4, "array": 1}
    assert isinstance(back["parameter"], torch.nn.Parameter)
    assert back["parameter"].requires_grad
    assert isinstance(back["frozen"], torch.nn.Parameter)
    assert not back["frozen"].requires_grad
    assert type(back["leaf"]) is torch.Tensor
    assert back["leaf"].requires_grad


def test_t48_tied_leaves_come_back_tied() -> None:
    back = bcpformat.read(GOLDEN / "aliases", as_numpy=True)

    assert back["embed"] is back["head"]["weight"] is back["head"]["again"][0]
    assert back["other"] is not back["embed"]


def test_t48_a_newer_minor_is_read_and_its_unknown_keys_are_kept() -> None:
    """BCP-VER-001, BCP-VER-004."""
    store = LocalStore(GOLDEN / "newer-minor")
    manifest = manifest_of(store)

    again = encode_manifest(manifest, codec="none")

    assert manifest.minor == 3
    assert manifest.extra["horizon"] == {"any": [1, True, b"x"]}
    assert manifest.files[0].extra == {"tier": "cold"}
    assert manifest.tensors.extra == {0: {"mean": "0.5"}}
    assert again == store.read(MANIFEST_KEY)


def test_t48_another_major_is_refused_and_both_versions_are_named() -> None:
    """BCP-HDR-002."""
    with pytest.raises(bcpformat.UnsupportedError) as caught:
        bcpformat.read(GOLDEN / "major-2")

    assert caught.value.code is ErrorCode.VERSION
    assert "2.0" in str(caught.value)
    assert "1.0" in str(caught.value)
