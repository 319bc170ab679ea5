"""Reads of checkpoints whose manifest is not read at once give what all others give.

The first request brings 64 bytes here, so that every manifest is a large one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bcpformat
from bcpformat import ErrorCode, MemoryStore, PerRank, WriteOptions
from bcpformat.engine import load
from bcpformat.engine.options import CodecName
from bcpformat.model.manifest import MANIFEST_KEY
from bcpformat.testing.faulty_store import FaultyStore
from tests.api.states import same, states

pytestmark = pytest.mark.usefixtures("small_requests")

TIED = np.arange(300, dtype=np.int16)
STATE: dict[str, Any] = {
    "model": {f"w{i}": np.arange(2000, dtype=np.float32).reshape(40, 50) + i for i in range(6)},
    "tied": [TIED, TIED],
    "large": np.arange(2**19, dtype=np.float32).reshape(512, 1024),
    "step": 7,
    "text": "x" * 70_000,
    "notes": [b"y" * 70_000, None, 0.5],
    "rng": PerRank({"seed": 3}),
}


@pytest.fixture(scope="module")
def small_requests() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "FIRST_REQUEST_BYTES", 64)
        yield


def written(codec: CodecName = "raw") -> MemoryStore:
    store = MemoryStore()
    bcpformat.write(store, STATE, step=7, options=WriteOptions(codec=codec, user={"run": "a"}))
    return store


def expected() -> dict[str, Any]:
    return {**STATE, "rng": bcpformat.PerRankValues({0: {"seed": 3}})}


def template() -> dict[str, Any]:
    def empty(value: Any) -> Any:
        return np.zeros_like(value) if isinstance(value, np.ndarray) else value

    tied = np.zeros_like(TIED)
    return {
        **STATE,
        "model": {key: empty(value) for key, value in STATE["model"].items()},
        "tied": [tied, tied],
        "large": empty(STATE["large"]),
        "text": "",
        "notes": [b"", None, 0.0],
        "rng": PerRank({}),
    }


@pytest.mark.parametrize("codec", ["raw", "zstd", "planes-zstd"])
def test_a_whole_read_is_the_state(codec: CodecName) -> None:
    assert same(bcpformat.read(written(codec), as_numpy=True), expected())


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_a_filter_reads_a_part_of_the_manifest(codec: CodecName) -> None:
    store = FaultyStore(written(codec))

    found = bcpformat.read(store, filter=["model/w2", "rng"], as_numpy=True)

    part = {"model": {"w2": STATE["model"]["w2"]}, "rng": expected()["rng"]}
    assert same(found, part)


@given(states, st.sampled_from(["raw", "zstd", "planes-zstd"]))
@settings(max_examples=40)
def test_any_state_comes_back_as_it_was(state: object, codec: CodecName) -> None:
    store = MemoryStore()
    bcpformat.write(store, state, options=WriteOptions(codec=codec))

    assert same(state, bcpformat.read(store, as_numpy=True))


def test_values_are_read_beside_tensors_of_a_feature() -> None:
    """BCP-DTY-005: what reads no tensor does not say that `subbyte` is not used."""
    store = MemoryStore()
    narrow = np.zeros(5, dtype=ml_dtypes.int4)
    bcpformat.write(store, {"narrow": narrow, "rng": PerRank(3), "text": STATE["text"]})

    found = bcpformat.read(store, filter=["rng", "text"], as_numpy=True)

    assert found == {"rng": bcpformat.PerRankValues({0: 3}), "text": STATE["text"]}


def test_a_template_is_filled() -> None:
    into = template()

    back = bcpformat.read(written(), into=into)

    assert back is into
    assert same(back["model"], STATE["model"])
    assert same(back["large"], STATE["large"])
    assert (back["text"], back["notes"]) == (STATE["text"], STATE["notes"])
    assert back["rng"].value == {"seed": 3}


def test_slices_are_those_of_the_arrays() -> None:
    with bcpformat.open(written("zstd")) as ckpt:
        assert ckpt.step == 7
        assert ckpt.user == {"run": "a"}
        assert np.array_equal(ckpt["model/w3"][5:7, ::2], STATE["model"]["w3"][5:7, ::2])
        assert np.array_equal(ckpt["tied/1"][-3:], TIED[-3:])
        assert np.array_equal(ckpt["large"][100], STATE["large"][100])
        assert same(ckpt.state(filter="model"), {"model": STATE["model"]})


def test_a_large_tensor_is_mapped_and_verified(tmp_path: Path) -> None:
    bcpformat.write(tmp_path / "c", STATE)
    with bcpformat.open(tmp_path / "c") as ckpt:
        view = ckpt["model/w1"]
        assert np.array_equal(view.mmap(), STATE["model"]["w1"])
        view.verify()


def test_a_repr_reads_nothing() -> None:
    store = FaultyStore(written())
    with bcpformat.open(store) as ckpt:
        before = len(store.operations)

        assert repr(ckpt) == "Checkpoint('memory', step=7, tensors=8)"
        assert len(store.operations) == before


def test_the_manifest_is_all_of_it() -> None:
    with bcpformat.open(written()) as ckpt:
        assert len(ckpt["model/w0"][:1]) == 1
        assert len(ckpt.manifest.chunks) == 8
        assert ckpt.manifest is ckpt.manifest


def test_a_data_file_is_opened_and_its_table_read_once() -> None:
    store = FaultyStore(written())
    with bcpformat.open(store) as ckpt:
        for name in ("model/w0", "model/w1", "large"):
            for row in range(3):
                _ = ckpt[name][row]

    opens = [o.key for o in store.operations if o.op == "open_reader"]
    tables = [o for o in store.operations if o.key != MANIFEST_KEY and o.offset_bytes > 2**21]
    assert sorted(set(opens)) == sorted(opens)
    assert len([o for o in tables if o.nbytes < 4096]) == 1


def test_a_closed_one_says_so() -> None:
    ckpt = bcpformat.open(written())
    view = ckpt["model/w0"]
    ckpt.close()

    for use in (view.read, view.mmap, view.verify, ckpt.state, lambda: ckpt.manifest):
        with pytest.raises(bcpformat.StateError, match="closed") as caught:
            use()
        assert caught.value.code is ErrorCode.CLOSED


def test_many_threads_read_one_checkpoint() -> None:
    errors: list[str] = []
    with bcpformat.open(written("zstd")) as ckpt:

        def work(seed: int) -> None:
            for number in range(4):
                name = f"w{(seed + number) % 6}"
                if not np.array_equal(ckpt[f"model/{name}"][seed:9], STATE["model"][name][seed:9]):
                    errors.append(name)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

        assert not any(thread.is_alive() for thread in threads)
    assert errors == []


def one_slice(store: bcpformat.Store) -> None:
    with bcpformat.open(store) as ckpt:
        _ = ckpt["model/w3"][:2]


@pytest.mark.parametrize(
    "call",
    [
        one_slice,
        lambda store: bcpformat.read(store, filter=["model/w2", "rng", "text"], as_numpy=True),
    ],
)
def test_a_failure_of_the_store_is_raised(call: Callable[[bcpformat.Store], object]) -> None:
    inner = written()
    count = FaultyStore(inner)
    call(count)
    for at in range(len(count.operations)):
        with pytest.raises(bcpformat.StorageError) as caught:
            call(FaultyStore(inner, fail_at=at))
        assert caught.value.code is ErrorCode.IO


def test_a_checkpoint_that_is_absent_has_no_manifest() -> None:
    with pytest.raises(bcpformat.ObjectNotFoundError) as caught:
        bcpformat.open(MemoryStore())
    assert caught.value.code is ErrorCode.NOT_COMMITTED
