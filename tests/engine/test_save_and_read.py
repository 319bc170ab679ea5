"""What is special about size and shape: runs of many units, strides, borders, and failures."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bcpformat
from bcpformat import MemoryStore, ReadOptions, StorageError, WriteOptions
from bcpformat.testing.faulty_store import FaultyStore
from tests.oracle.bcp_oracle import read_checkpoint

MIB = 2**20
CODECS = ["raw", "zstd", "planes-zstd"]


def strided(rng: np.random.Generator, shape: tuple[int, int], code: str, kind: int) -> np.ndarray:
    """An array of random bits that is contiguous, transposed, reversed, or every other column."""
    size = np.dtype(code).itemsize
    rows, columns = shape

    def made(*extents: int) -> np.ndarray:
        return np.frombuffer(rng.bytes(int(np.prod(extents)) * size), code).reshape(extents)

    match kind % 4:
        case 0:
            return made(rows, columns)
        case 1:
            return made(columns, rows).T
        case 2:
            return made(rows, columns)[::-1]
        case _:
            return made(rows, 2 * columns)[:, ::2]


def check(state: dict[str, np.ndarray], codec: str, *, threads: int = 2) -> None:
    store = MemoryStore()
    options = WriteOptions(codec=codec, threads=threads)  # type: ignore[arg-type]
    bcpformat.write(store, state, options=options)
    template = {name: np.zeros(a.shape[::-1], a.dtype).T for name, a in state.items()}

    back = bcpformat.read(store, as_numpy=True, options=ReadOptions(threads=threads))
    bcpformat.read(store, into=template, options=ReadOptions(threads=threads))

    for name, array in state.items():
        wanted = array.tobytes()
        assert back[name].tobytes() == wanted, name
        assert template[name].tobytes() == wanted, name
    assert bcpformat.validate(store).ok


@pytest.mark.parametrize("codec", CODECS)
def test_small_strided_tensors_across_the_borders_of_units_come_back(codec: str) -> None:
    """Packed runs of about 12 MiB, whose blocks and units end in the middle of a tensor."""
    rng = np.random.default_rng(1)
    state = {
        f"{code}{n}": strided(rng, (int(rng.integers(1, 90)), int(rng.integers(1, 150))), code, n)
        for code in ("<u4", "<c16", "|u1", "<u2")
        for n in range(250)
    }

    check(state, codec)


@pytest.mark.slow
def test_packed_runs_beyond_64_mib_come_back() -> None:
    rng = np.random.default_rng(2)
    state = {f"t{n}": strided(rng, (250, 519), "<f8", n) for n in range(75)}
    store = MemoryStore()
    bcpformat.write(store, state)

    with bcpformat.open(store) as ckpt:
        assert ckpt.manifest.runs.raw.max() > 60 * MIB
        assert len(ckpt.manifest.runs) == 2
    check(state, "raw", threads=3)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("code", ["<c16", "<f4"])
def test_large_strided_tensors_come_back(code: str, codec: str) -> None:
    rng = np.random.default_rng(3)
    rows = 11 * MIB // (1031 * np.dtype(code).itemsize)
    state = {f"t{kind}": strided(rng, (rows, 1031), code, kind) for kind in range(4)}

    check(state, codec)


@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 2**18 - 1, 2**18, 2**18 + 1, MIB - 1, MIB])
@pytest.mark.parametrize("more", [0, 1])
def test_sizes_at_the_borders_come_back(nbytes: int, more: int) -> None:
    rng = np.random.default_rng(nbytes)
    state = {f"t{n}": np.frombuffer(rng.bytes(nbytes + more), np.uint8) for n in range(5)}

    check(state, "raw")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["|u1", "<u2", "<u4", "<u8", "<c16"]),
            st.integers(0, 70),
            st.integers(0, 70),
            st.integers(0, 3),
        ),
        max_size=12,
    ),
    st.sampled_from(CODECS),
)
@settings(max_examples=20)
def test_any_mix_of_small_tensors_is_what_a_stranger_reads(
    tmp_path_factory: pytest.TempPathFactory,
    given_tensors: list[tuple[str, int, int, int]],
    codec: str,
) -> None:
    rng = np.random.default_rng(4)
    state = {
        f"t{n}": strided(rng, (rows, columns), code, kind)
        for n, (code, rows, columns, kind) in enumerate(given_tensors)
    }
    place = tmp_path_factory.mktemp("mix") / "c"
    bcpformat.write(place, state, options=WriteOptions(codec=codec))  # type: ignore[arg-type]

    found = read_checkpoint(str(place))["tensors"]

    assert {name: bytes(data) for name, (_, _, data) in found.items()} == {
        name: array.tobytes() for name, array in state.items()
    }


def test_a_tensor_is_written_from_where_it_lies_block_by_block() -> None:
    """No second copy of a large state: the bytes written are the raw bytes and the padding."""
    store = FaultyStore(MemoryStore())
    state = {f"w{n}": np.zeros(MIB, np.float32) for n in range(4)}

    report = bcpformat.write(store, state)

    assert report.raw_bytes == report.stored_bytes == 16 * MIB
    assert store.bytes_written < 16 * MIB + 2**14
    assert max(o.nbytes for o in store.operations if o.op == "write_at") <= 8 * MIB


def test_a_whole_read_fetches_every_byte_once() -> None:
    store = FaultyStore(MemoryStore())
    bcpformat.write(store, {f"w{n}": np.zeros(MIB, np.float32) for n in range(4)})
    before = store.bytes_read

    bcpformat.read(store, as_numpy=True)

    assert store.bytes_read - before < 16 * MIB + 2**14


@pytest.mark.parametrize("codec", CODECS)
def test_failed_saves_and_reads_give_their_buffers_back(codec: str) -> None:
    """A buffer lost at an error would sooner or later leave everybody waiting."""
    state = {f"w{n}": np.arange(MIB, dtype=np.int64) for n in range(2)}
    options = WriteOptions(codec=codec)  # type: ignore[arg-type]
    good = FaultyStore(MemoryStore())
    bcpformat.write(good, state, options=options)
    writes = [i for i, o in enumerate(good.operations) if o.op == "write_at"]
    good.operations.clear()
    bcpformat.read(good, as_numpy=True)
    reads = [i for i, o in enumerate(good.operations) if o.op == "read_into"]

    def work() -> None:
        for number in writes[:5] * 2:
            with pytest.raises(StorageError):
                bcpformat.write(FaultyStore(MemoryStore(), fail_at=number), state, options=options)
        for number in reads * 4:
            with pytest.raises(StorageError):
                bcpformat.read(FaultyStore(good, fail_at=number), as_numpy=True)
        bcpformat.write(MemoryStore(), state, options=options)
        bcpformat.read(good, as_numpy=True)
        done.append(True)

    done: list[bool] = []
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)

    assert done == [True]


def test_saves_and_reads_at_once_never_wait_for_each_other_for_ever() -> None:
    state = {f"w{n}": np.arange(MIB, dtype=np.int64) + n for n in range(2)}
    source = MemoryStore()
    bcpformat.write(source, state, options=WriteOptions(codec="zstd"))
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(2):
                if number % 2:
                    bcpformat.write(MemoryStore(), state)
                else:
                    back = bcpformat.read(source, as_numpy=True)
                    assert np.array_equal(back["w1"], state["w1"])
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert not any(thread.is_alive() for thread in threads)
    assert failed == []
