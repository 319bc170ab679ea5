"""Memory and time stay bounded, and nothing is imported, whatever a valid or hostile file says."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import bcpformat
from bcpformat import ErrorCode, MemoryStore
from bcpformat.engine.read import BUFFER_BYTES
from bcpformat.model.geometry import block_counts
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.model.manifest import ints
from bcpformat.plan.resolve import ChunkIndex
from bcpformat.wire import decode_manifest, encode_manifest


def with_state(state: object, root: list[object]) -> MemoryStore:
    """Write a state, then put another state tree into its manifest."""
    source = MemoryStore()
    bcpformat.write(source, state)
    manifest = decode_manifest(
        source.read("manifest.bcp"), key="manifest.bcp", limits=DEFAULT_LIMITS
    )
    changed = encode_manifest(replace(manifest, state=root), codec="none")
    store = MemoryStore()
    for info in source.list():
        data = changed if info.key == "manifest.bcp" else source.read(info.key)
        store.put_if_absent(info.key, data)
    return store


def test_a_task_is_bounded_by_its_raw_bytes_too() -> None:
    """A megabyte of zeros takes some hundred stored bytes: gigabytes must not be one task."""
    store = MemoryStore()
    options = bcpformat.WriteOptions(codec="zstd")
    bcpformat.write(store, {"zeros": np.zeros(2**25, np.uint8)}, options=options)
    with bcpformat.open(store) as ckpt:
        manifest = ckpt.manifest
        pieces, blocks = ChunkIndex(manifest).resolve(ints([0]), {})
        plan = ckpt.reader.whole().plan(pieces, blocks)

    assert int(block_counts(manifest.runs)[0]) == 32
    assert max(task.raw_nbytes for task in plan.tasks) <= BUFFER_BYTES
    assert len(plan.tasks) > 3


def test_a_name_of_a_dtype_imports_nothing() -> None:
    """BCP-SEC-001, BCP-STA-008: torch imports parts of itself by attribute name."""
    program = (
        "import sys, torch, bcpformat.torch.framework as f\n"
        "before = set(sys.modules)\n"
        "for name in ('onnx', '_dynamo', 'float32'):\n"
        "    try: f._dtype_named(name)\n"
        "    except ValueError: pass\n"
        "print(sorted(set(sys.modules) - before))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("flags", [4, 6])
def test_integers_that_claim_a_gradient_are_read_without_one(flags: int) -> None:
    store = with_state({"w": torch.arange(3)}, [6, "w", [0, 0, flags]])

    back = bcpformat.read(store)["w"]

    assert back.tolist() == [0, 1, 2]
    assert not back.requires_grad


def test_many_bad_blocks_are_found_in_one_pass() -> None:
    store = MemoryStore()
    bcpformat.write(store, {f"t{i}": np.full(70_000, i, np.float32) for i in range(40)})
    (key,) = (i.key for i in store.list() if i.key != "manifest.bcp")
    data = bytearray(store.read(key))
    data[4096 : 4096 + 8_000_000 : 4096] = b"\xff" * len(range(4096, 4096 + 8_000_000, 4096))
    damaged = MemoryStore()
    damaged.put_if_absent(key, bytes(data))
    damaged.put_if_absent("manifest.bcp", store.read("manifest.bcp"))

    report = bcpformat.validate(damaged)

    assert {p.code for p in report.problems} == {ErrorCode.BLOCK_CHECKSUM}
    assert len(report.problems) == len({p.message for p in report.problems}) > 20


def test_a_state_tree_above_its_limit_is_refused_before_it_is_decoded() -> None:
    store = MemoryStore()
    bcpformat.write(store, {"l": [[]] * 5000})
    limits = bcpformat.Limits(state_bytes=4000)

    with pytest.raises(bcpformat.LimitError, match="state"):
        bcpformat.read(store, options=bcpformat.ReadOptions(limits=limits))


def test_errors_survive_pickling_and_copying() -> None:
    """Worker processes hand their errors to the parent as pickles."""
    store = MemoryStore()
    with pytest.raises(bcpformat.ObjectNotFoundError) as missing:
        bcpformat.read(store)
    bcpformat.write(store, {"a": 1})
    with pytest.raises(bcpformat.MismatchError) as differs:
        bcpformat.read(store, into={"b": 1})

    for error in (missing.value, differs.value):
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(again) is type(error)
            assert str(again) == str(error)
            assert again.code is error.code
    assert pickle.loads(pickle.dumps(differs.value)).problems == differs.value.problems


def test_a_conjugate_view_flips_only_signs() -> None:
    bits = torch.tensor([0x7D017D01, 0x3C003C00], dtype=torch.int32)
    store = MemoryStore()
    bcpformat.write(store, {"w": bits.view(torch.complex32).conj()})

    back = bcpformat.read(store)["w"].view(torch.int32)

    assert [v & 0xFFFFFFFF for v in back.tolist()] == [0xFD017D01, 0xBC003C00]


def test_a_tensor_of_pairs_without_an_axis_is_refused() -> None:
    pair = torch.ones((), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)

    with pytest.raises(bcpformat.InvalidArgumentError, match="'a'"):
        bcpformat.write(MemoryStore(), {"a": pair})


@pytest.mark.parametrize("user", [{"a": None}, {"a": 1.5}, {"a": -1}])
def test_user_metadata_without_a_form_is_refused_before_data_is_written(
    user: dict[str, object],
) -> None:
    store = MemoryStore()
    done: list[int] = []

    with pytest.raises(bcpformat.InvalidArgumentError):
        options = bcpformat.WriteOptions(user=user)
        bcpformat.write(store, {"w": np.ones(9)}, options=options, progress=done.append)

    assert not done


def test_a_size_without_a_form_is_refused_with_its_path() -> None:
    with pytest.raises(bcpformat.InvalidArgumentError, match="'s'") as caught:
        bcpformat.write(MemoryStore(), {"s": torch.Size([-1])})

    assert caught.value.code is ErrorCode.NO_FORM
