"""Lazy access: indexing as numpy does it, few bytes, maps, names, and what a closed one says."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bcpformat
from bcpformat import MemoryStore, ReadOptions, WriteOptions
from bcpformat.testing.faulty_store import FaultyStore
from tests.api.indices import indices
from tests.api.states import SUBBYTE, arrays, same


def written(state: object, *, codec: str = "raw") -> MemoryStore:
    store = MemoryStore()
    bcpformat.write(store, state, options=WriteOptions(codec=codec))  # type: ignore[arg-type]
    return store


def damaged(store: MemoryStore, *, at: int) -> MemoryStore:
    """A copy with one bit of the data file changed."""
    copy = MemoryStore()
    for info in store.list():
        data = bytearray(store.read(info.key))
        if info.key.startswith("data/"):
            data[at] ^= 1
        copy.put_if_absent(info.key, bytes(data))
    return copy


@given(arrays(), st.sampled_from(["raw", "zstd", "planes-zstd"]), st.data())
@settings(max_examples=100)
def test_indexing_gives_what_numpy_gives(
    array: np.ndarray, codec: str, data: st.DataObject
) -> None:
    index = data.draw(indices(array.shape))
    wanted = array[index]
    with bcpformat.open(written({"w": array}, codec=codec)) as ckpt:
        found = ckpt["w"][index]

    native = np.asarray(wanted)
    if native.dtype.byteorder == ">":
        native = native.astype(native.dtype.newbyteorder("<"))
    assert np.shape(found) == np.shape(wanted)
    assert np.asarray(found).dtype == native.dtype
    assert significant(found) == significant(native)


def significant(array: np.ndarray) -> bytes:
    """The bytes of an array, without the bits that a narrow type does not use."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    bits = SUBBYTE.get(str(array.dtype), 8)
    return (flat & (2**bits - 1)).tobytes()


@given(st.lists(st.integers(0, 4), max_size=3).map(tuple), st.data())
def test_what_numpy_refuses_is_refused(shape: tuple[int, ...], data: st.DataObject) -> None:
    parts = st.integers(-9, 9) | st.none() | st.just(...) | st.just(slice(None))
    index = tuple(data.draw(st.lists(parts, max_size=5)))
    array = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    with bcpformat.open(written({"w": array})) as ckpt:
        try:
            wanted = array[index]
        except IndexError:
            with pytest.raises(IndexError):
                ckpt["w"][index]
        else:
            assert np.array_equal(ckpt["w"][index], wanted)


@pytest.mark.parametrize("index", [True, np.True_, [0], np.array([0]), "a", 1.0, (0, True)])
def test_what_is_no_basic_index_is_an_index_error(index: object) -> None:
    with bcpformat.open(written({"w": np.zeros((2, 2))})) as ckpt, pytest.raises(IndexError):
        ckpt["w"][index]  # type: ignore[index]


def test_an_index_error_says_axis_and_size() -> None:
    with (
        bcpformat.open(written({"w": np.zeros((2, 3))})) as ckpt,
        pytest.raises(IndexError, match=r"index 3 .* axis 1 .* size 3"),
    ):
        ckpt["w"][0, 3]


def test_a_row_of_a_large_tensor_costs_one_block() -> None:
    array = np.arange(2**20, dtype=np.float32).reshape(1024, 1024)  # 16 blocks of 256 KiB
    store = FaultyStore(written({"w": array, "other": array + 1}))
    with bcpformat.open(store) as ckpt:
        _ = ckpt["w"][0, 0]
        before = store.bytes_read

        row = ckpt["w"][700]

        assert store.bytes_read - before == 2**18
    assert np.array_equal(row, array[700])


def test_opening_reads_the_manifest_and_nothing_else() -> None:
    store = FaultyStore(written({"w": np.zeros(2**16)}))

    with bcpformat.open(store) as ckpt:
        assert ckpt["w"].shape == (2**16,)
        assert ckpt["w"].dtype == "float64"
        assert ckpt["w"].nbytes == 2**19

    assert {o.key for o in store.operations} == {"manifest.bcp"}


def test_an_empty_slice_reads_nothing() -> None:
    store = FaultyStore(written({"w": np.zeros((4, 5), np.float32)}))
    with bcpformat.open(store) as ckpt:
        before = store.bytes_read

        found = ckpt["w"][2:2, ::-1]

        assert found.shape == (0, 5)
        assert found.dtype == np.float32
        assert store.bytes_read == before


def test_names_iterate_and_aliases_are_names() -> None:
    tied = np.arange(3)
    with bcpformat.open(written({"a": {"w": tied}, "b": tied, "c": np.ones(1)})) as ckpt:
        assert sorted(ckpt) == ["a/w", "b", "c"]
        assert len(ckpt) == 3
        assert "b" in ckpt
        assert "a" not in ckpt
        assert ckpt.get("x") is None
        assert np.array_equal(ckpt["b"].read(), tied)
        assert ckpt["b"].name == "b"


def test_an_unknown_name_is_a_key_error_with_that_name() -> None:
    with bcpformat.open(written({"w": np.ones(1)})) as ckpt, pytest.raises(KeyError, match="'v'"):
        ckpt["v"]


def test_step_user_and_manifest_are_at_hand() -> None:
    store = MemoryStore()
    options = WriteOptions(user={"run": "r1", "tags": ["a", {"b": True}]})
    bcpformat.write(store, {}, step=7, options=options)

    with bcpformat.open(store) as ckpt:
        assert ckpt.step == 7
        assert ckpt.user == {"run": "r1", "tags": ["a", {"b": True}]}
        assert ckpt.manifest.writer.name == "bcpformat"


def test_a_view_is_an_array_for_numpy() -> None:
    with bcpformat.open(written({"w": np.arange(3)})) as ckpt:
        assert np.array_equal(np.asarray(ckpt["w"]), [0, 1, 2])
        assert np.asarray(ckpt["w"], dtype=np.float32).dtype == np.float32
        assert "shape=(3,)" in repr(ckpt["w"])
        with pytest.raises(ValueError, match="copy"):
            np.array(ckpt["w"], copy=False)


def test_state_gives_the_tree_or_a_part_of_it() -> None:
    state = {"m": {"w": np.arange(3), "v": [np.ones(2), None]}, "lr": 0.5}
    with bcpformat.open(written(state)) as ckpt:
        assert same(ckpt.state(), state)
        assert same(ckpt.state(filter="m/w"), {"m": {"w": np.arange(3)}})
        with pytest.raises(bcpformat.InvalidArgumentError, match="selects none"):
            ckpt.state(filter="x")


def test_a_closed_checkpoint_says_so() -> None:
    ckpt = bcpformat.open(written({"w": np.ones(1)}))
    view = ckpt["w"]
    ckpt.close()
    ckpt.close()

    for use in (view.read, view.mmap, view.verify, ckpt.state, lambda: view[0]):
        with pytest.raises(bcpformat.StateError, match="closed") as caught:
            use()
        assert caught.value.code is bcpformat.ErrorCode.CLOSED


def test_a_map_shows_the_file_unverified_until_asked(tmp_path: Path) -> None:
    array = np.arange(500, dtype=np.int64)
    bcpformat.write(tmp_path / "c", {"w": array})
    with bcpformat.open(tmp_path / "c") as ckpt:
        view = ckpt["w"].mmap()
        ckpt["w"].verify()

        assert np.array_equal(view, array)
        assert not view.flags.writeable
    (path,) = (tmp_path / "c" / "data").iterdir()
    data = bytearray(path.read_bytes())
    data[4096 + 8] ^= 1
    path.write_bytes(data)
    with bcpformat.open(tmp_path / "c") as ckpt:
        assert ckpt["w"].mmap()[1] == 0
        with pytest.raises(bcpformat.ChecksumError, match="'w'"):
            ckpt["w"].verify()


def test_verify_checks_even_where_reads_do_not() -> None:
    bad = damaged(written({"w": np.zeros(9)}), at=4096)

    with bcpformat.open(bad, options=ReadOptions(verify=False)) as ckpt:
        assert ckpt["w"][0] != 0
        with pytest.raises(bcpformat.ChecksumError):
            ckpt["w"].verify()


@pytest.mark.parametrize("codec", ["zstd", "planes-zstd"])
def test_an_encoded_tensor_is_verified_but_not_mapped(codec: str) -> None:
    with bcpformat.open(written({"w": np.zeros(9)}, codec=codec)) as ckpt:
        ckpt["w"].verify()
        with pytest.raises(bcpformat.InvalidArgumentError, match="encoded"):
            ckpt["w"].mmap()


def test_a_tensor_without_elements_has_no_map() -> None:
    with bcpformat.open(written({"w": np.zeros((0, 3))})) as ckpt:
        ckpt["w"].verify()
        assert ckpt["w"].read().shape == (0, 3)
        with pytest.raises(bcpformat.InvalidArgumentError):
            ckpt["w"].mmap()


def test_a_read_beyond_the_budget_is_refused_before_it_allocates() -> None:
    options = ReadOptions(budget_bytes=2**25)
    with bcpformat.open(written({"w": np.zeros(2**22 + 1)}), options=options) as ckpt:
        with pytest.raises(bcpformat.LimitError) as caught:
            ckpt["w"].read()
        assert caught.value.code is bcpformat.ErrorCode.BUDGET


def test_what_is_no_options_is_refused() -> None:
    with pytest.raises(bcpformat.InvalidArgumentError, match="ReadOptions"):
        bcpformat.open(MemoryStore(), options={"verify": True})  # type: ignore[arg-type]


def test_many_threads_read_one_checkpoint() -> None:
    array = np.arange(2**19, dtype=np.int64).reshape(512, 1024)
    store = written({f"w{i}": array + i for i in range(3)}, codec="zstd")
    errors: list[str] = []
    with bcpformat.open(store) as ckpt:

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(6):
                low, number = int(rng.integers(0, 500)), int(rng.integers(0, 3))
                found = ckpt[f"w{number}"][low : low + 9, ::3]
                if not np.array_equal(found, array[low : low + 9, ::3] + number):
                    errors.append(f"rows {low} of {number}")

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

        assert not any(thread.is_alive() for thread in threads)
    assert errors == []


def test_a_repr_says_where_it_is_and_how_much_it_holds_and_whether_it_is_closed() -> None:
    w = np.zeros(3)
    with bcpformat.open(written({"w": w, "tied": w, "v": w + 1})) as ckpt:
        shown = repr(ckpt)

    assert shown == "Checkpoint('memory', step=None, tensors=2, raw_bytes=88)"
    assert repr(ckpt) == "Checkpoint('memory', step=None, tensors=2, raw_bytes=88, closed)"
