"""Saving: arguments, places, what is refused, and what dead attempts leave behind."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import bcpformat
from bcpformat import ErrorCode, InvalidArgumentError, LocalStore, MemoryStore, WriteOptions
from bcpformat.testing.faulty_store import FaultyStore
from tests.api.states import same


@pytest.mark.parametrize("step", [-1, 2**53, True, False, 1.0, "1", np.float32(1), np.True_])
def test_a_step_is_an_integer_of_the_format(step: object) -> None:
    store = MemoryStore()

    with pytest.raises(InvalidArgumentError, match="step must be"):
        bcpformat.write(store, {}, step=step)  # type: ignore[arg-type]

    assert store.list() == []


@pytest.mark.parametrize("step", [0, 2**53 - 1, np.int32(7), None])
def test_steps_come_back(step: int | None) -> None:
    store = MemoryStore()
    bcpformat.write(store, {}, step=step)

    with bcpformat.open(store) as ckpt:
        assert ckpt.step == step
        assert type(ckpt.step) in (int, type(None))


@pytest.mark.parametrize(
    ("user", "path"),
    [
        ({"a": 1.5}, "['a']"),
        ({"a": [1, {"b": None}]}, "['a'][1]['b']"),
        ({"a": -1}, "['a']"),
        ({"a": 2**53}, "['a']"),
        ({"a": np.int64(3)}, "['a']"),
        ({"a": (1, 2)}, "['a']"),
        ({"a": "\ud800"}, "['a']"),
        ({1: 2}, "map key 1"),
        ({"a": {"b": {2: 1}}}, "['a']['b']"),
    ],
)
def test_user_metadata_that_has_no_form_is_refused_with_its_path(user: object, path: str) -> None:
    store = MemoryStore()

    with pytest.raises(InvalidArgumentError) as caught:
        bcpformat.write(store, {"w": np.ones(3)}, options=WriteOptions(user=user))  # type: ignore[arg-type]

    assert path in str(caught.value)
    assert store.list() == []


def test_user_metadata_that_holds_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)

    with pytest.raises(InvalidArgumentError):
        bcpformat.write(MemoryStore(), {}, options=WriteOptions(user={"a": loop}))  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "arguments",
    [
        {"codec": "lz4"},
        {"codec": None},
        {"codec": ["raw"]},
        {"capture": "later"},
        {"level": 0},
        {"level": 20},
        {"level": 1.5},
        {"level": True},
        {"threads": 0},
        {"threads": 1.0},
        {"threads": "2"},
        {"threads": 10**9},
        {"user": [1]},
        {"user": "text"},
    ],
)
def test_options_of_writing_are_checked(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(arguments))):
        WriteOptions(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        {"threads": 0},
        {"threads": 2.0},
        {"budget_bytes": 0},
        {"budget_bytes": 1.5},
        {"verify": "no"},
        {"limits": 3},
    ],
)
def test_options_of_reading_are_checked(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(arguments))):
        bcpformat.ReadOptions(**arguments)  # type: ignore[arg-type]


def test_what_is_no_options_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="WriteOptions"):
        bcpformat.write(MemoryStore(), {}, options={"codec": "raw"})  # type: ignore[arg-type]


def test_a_group_that_is_none_is_refused() -> None:
    for call in (
        lambda: bcpformat.write(MemoryStore(), {}, group=object()),
        lambda: bcpformat.read(MemoryStore(), into={}, group=object()),
    ):
        with pytest.raises(InvalidArgumentError, match="group") as caught:
            call()
        assert caught.value.code is ErrorCode.ARGUMENT


def test_every_kind_of_location_is_the_same_place(tmp_path: Path) -> None:
    state = {"w": np.arange(3)}
    path = tmp_path / "a b" / "step%201"
    url = path.as_uri()
    bcpformat.write(path, state)

    for location in (path, str(path), url, LocalStore(str(path))):
        assert same(bcpformat.read(location, as_numpy=True), state)
        assert bcpformat.validate(location).ok
        with pytest.raises(bcpformat.ObjectExistsError):
            bcpformat.write(location, state)


@pytest.mark.parametrize("location", [None, 5, b"x", "", ["x"]])
def test_what_is_no_location_is_refused(location: object) -> None:
    for call in (
        lambda: bcpformat.write(location, {}),  # type: ignore[arg-type]
        lambda: bcpformat.read(location),  # type: ignore[arg-type]
        lambda: bcpformat.open(location),  # type: ignore[arg-type]
        lambda: bcpformat.validate(location),  # type: ignore[arg-type]
        lambda: bcpformat.latest(location),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgumentError):
            call()


def test_other_schemes_are_not_built_yet() -> None:
    with pytest.raises(InvalidArgumentError, match="s3") as caught:
        bcpformat.write("s3://bucket/key", {})
    assert caught.value.code is ErrorCode.NOT_BUILT


def test_a_file_is_no_place_for_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")

    for location in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(bcpformat.StorageError) as caught:
            bcpformat.write(location, {"w": np.ones(3)})
        assert caught.value.code is ErrorCode.FILE_TYPE

    assert (tmp_path / "file").read_text() == "precious"


def test_nothing_there_is_not_committed(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for location in (tmp_path / "empty", tmp_path / "nothing", MemoryStore()):
        for call in (bcpformat.read, bcpformat.open):
            with pytest.raises(bcpformat.ObjectNotFoundError) as caught:
                call(location)
            assert caught.value.code is ErrorCode.NOT_COMMITTED
            assert isinstance(caught.value, FileNotFoundError)


def test_a_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    bcpformat.write(tmp_path, {"w": np.ones(3)}, step=1)
    before = sorted((p, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file())

    with pytest.raises(bcpformat.ObjectExistsError, match="ever overwritten") as caught:
        bcpformat.write(tmp_path, {"w": np.zeros(3)}, step=2)

    assert caught.value.code is ErrorCode.EXISTS
    assert isinstance(caught.value, FileExistsError)
    assert sorted((p, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file()) == before


def test_left_overs_of_dead_attempts_are_never_in_the_way(tmp_path: Path) -> None:
    state = {"w": np.arange(100), "v": np.zeros(2**18)}
    clean = FaultyStore(LocalStore(str(tmp_path / "clean")))
    bcpformat.write(clean, state)
    place = str(tmp_path / "c")
    for dies_at in range(len(clean.operations) - 1):
        dead = FaultyStore(LocalStore(place), fail_at=dies_at, crash=True)
        with pytest.raises(bcpformat.BcpError):
            bcpformat.write(dead, state)
        if bcpformat.validate(place, level="manifest").ok:
            break

    if not bcpformat.validate(place).ok:
        bcpformat.write(place, state)

    report = bcpformat.validate(place)
    assert report.ok
    assert report.unreferenced
    assert same(bcpformat.read(place, as_numpy=True), state)


@pytest.mark.parametrize("effect", ["fail", "late"])
def test_a_failed_save_cleans_up_or_tells_that_it_is_there(effect: str) -> None:
    state = {"w": np.arange(100), "v": np.zeros(2**18)}
    clean = FaultyStore(MemoryStore())
    bcpformat.write(clean, state)
    for number in range(len(clean.operations)):
        inner = MemoryStore()
        store = FaultyStore(inner, fail_at=number, effect=effect)  # type: ignore[arg-type]
        try:
            bcpformat.write(store, state)
        except bcpformat.CommitError as error:
            assert error.published is None
            continue
        except bcpformat.BcpError:
            assert inner.list() == [], number
            continue
        assert bcpformat.validate(inner).ok, number


def test_a_state_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="a/1"):
        bcpformat.write(tmp_path / "c", {"w": np.ones(2**18), "a": [1, object()]})

    assert not (tmp_path / "c").exists()


def test_progress_counts_the_raw_bytes() -> None:
    state = {"w": np.zeros(2**21), "v": np.zeros(3, np.int8), "r": bcpformat.PerRank(1)}
    for codec in ("raw", "zstd"):
        store, written, read = MemoryStore(), [], []
        options = WriteOptions(codec=codec)  # type: ignore[arg-type]
        report = bcpformat.write(store, state, options=options, progress=written.append)
        bcpformat.read(store, as_numpy=True, progress=read.append)

        assert 0 <= sum(written) - report.raw_bytes < 64  # a gap between packed values
        assert sum(read) == 2**24 + 3
        assert report.files[0].startswith("data/")
        assert report.manifest_bytes == len(store.read("manifest.bcp"))


def test_what_changes_after_the_save_is_not_in_it() -> None:
    state = {
        "a": bytearray(b"x" * 70_000),
        "w": np.zeros(4),
        "t": torch.zeros(4),
        "l": [1],
    }
    store = MemoryStore()
    bcpformat.write(store, state)
    state["a"][:] = b""
    state["w"][:] = 1
    state["t"].fill_(1)
    state["l"].append(2)

    back = bcpformat.read(store)

    assert back["a"] == b"x" * 70_000
    assert not back["w"].any()
    assert not back["t"].any()
    assert back["l"] == [1]


def test_several_saves_at_once_do_not_disturb_each_other() -> None:
    rng = np.random.default_rng(0)
    states = [{"w": rng.integers(0, 9, 2**21), "t": rng.random((100, 7)).T} for _ in range(4)]
    stores = [MemoryStore() for _ in states]
    codecs = ["raw", "zstd", "planes-zstd", "raw"]
    threads = [
        threading.Thread(
            target=bcpformat.write,
            args=(store, state),
            kwargs={"options": WriteOptions(codec=codec, threads=3)},  # type: ignore[arg-type]
        )
        for store, state, codec in zip(stores, states, codecs, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert not any(thread.is_alive() for thread in threads)
    for store, state in zip(stores, states, strict=True):
        assert same(bcpformat.read(store, as_numpy=True), state)


def test_of_two_saves_to_one_place_one_wins() -> None:
    store, outcomes = MemoryStore(), []
    gate = threading.Barrier(4)

    def work(number: int) -> None:
        gate.wait()
        try:
            bcpformat.write(store, {"w": np.full(1000, number)}, step=number)
        except (bcpformat.CommitError, bcpformat.ObjectExistsError) as error:
            assert error.code is ErrorCode.EXISTS
        else:
            outcomes.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    (winner,) = outcomes
    report = bcpformat.validate(store)
    assert report.ok
    assert report.unreferenced == ()
    assert bcpformat.read(store, as_numpy=True)["w"].tolist() == [winner] * 1000


def test_states_that_are_the_same_have_the_same_bytes_but_for_time_and_id() -> None:
    state = {"b": np.arange(70), "a": [1, {"z": 2.5}]}
    files = []
    for _ in range(2):
        store = MemoryStore()
        bcpformat.write(store, state)
        (key,) = [i.key for i in store.list() if i.key.startswith("data/")]
        files.append(store.read(key)[4096:])

    assert files[0] == files[1]


def test_the_repr_of_a_report_is_one_short_line_of_text_and_numbers() -> None:
    report = bcpformat.write(MemoryStore(), {"w": np.zeros(3)})

    assert repr(report) == (
        f"WriteReport(attempt_id={report.attempt_id.hex()}, raw_bytes={report.raw_bytes}, "
        f"stored_bytes={report.stored_bytes}, manifest_bytes={report.manifest_bytes}, files=1)"
    )
