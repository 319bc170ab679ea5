"""Damage of every kind: one of our errors, or the right values; never anything else.

Covers BCP-RDR-001, BCP-RDR-002 and BCP-RUN-008 from the outside.
"""

from __future__ import annotations

import numpy as np
import pytest

import bcpformat
from bcpformat import ErrorCode, MemoryStore, ReadOptions
from bcpformat.engine.options import CodecName

CODECS: tuple[CodecName, ...] = ("raw", "zstd", "planes-zstd")
OPTIONS = ReadOptions(threads=1, budget_bytes=2**26)


def make_state() -> dict[str, object]:
    rng = np.random.default_rng(1)
    return {
        "w": (rng.standard_normal((10, 12)) * 0.02).astype(np.float32),
        "zeros": np.zeros(3000, np.float32),
        "b": [np.arange(5, dtype=np.int64), (None, True, -(2**70), 2.5, "text")],
        "rank": bcpformat.PerRank({"seed": 3}),
    }


def objects_of(store: MemoryStore) -> dict[str, bytes]:
    return {info.key: store.read(info.key) for info in store.list()}


def store_of(objects: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore()
    for key, data in objects.items():
        store.put_if_absent(key, data)
    return store


@pytest.fixture(scope="module", params=CODECS)
def small(request: pytest.FixtureRequest) -> dict[str, bytes]:
    store = MemoryStore()
    options = bcpformat.WriteOptions(codec=request.param)
    bcpformat.write(store, make_state(), step=1, options=options)
    return objects_of(store)


def key_of(objects: dict[str, bytes], kind: str) -> str:
    return next(k for k in objects if (k == "manifest.bcp") == (kind == "manifest"))


def same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, bcpformat.PerRank):
        return isinstance(b, bcpformat.PerRankValues) and same(a.value, b[0])
    return type(a) is type(b) and a == b


def read_or_error(objects: dict[str, bytes]) -> ErrorCode | None:
    """Read; return the code of our error, or None after checking that the values are right."""
    try:
        found = bcpformat.read(store_of(objects), as_numpy=True, options=OPTIONS)
    except bcpformat.BcpError as error:
        return error.code
    assert same(make_state(), found)
    return None


def test_the_undamaged_checkpoint_is_read(small: dict[str, bytes]) -> None:
    assert read_or_error(small) is None


def test_a_flip_of_any_byte_of_the_manifest_is_refused(small: dict[str, bytes]) -> None:
    data = small["manifest.bcp"]
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8

        code = read_or_error({**small, "manifest.bcp": bytes(changed)})

        assert code is not None, position


def test_a_flip_of_any_byte_of_a_data_file_is_found_by_full_validation(
    small: dict[str, bytes],
) -> None:
    key = key_of(small, "data")
    data = small[key]
    # the zeros after the header are sampled, all else is not
    positions = [*range(64), *range(64, 4096, 97), *range(4096, len(data))]
    undamaged = 0
    for position in positions:
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        objects = {**small, key: bytes(changed)}

        report = bcpformat.validate(store_of(objects), options=OPTIONS)
        read_or_error(objects)

        undamaged += report.ok
    # a flip inside an encoded block may decode to the same bytes: that is no damage
    with bcpformat.open(store_of(small)) as ckpt:
        raw = not (ckpt.manifest.runs.codec > 0).any()
    assert undamaged == 0 if raw else undamaged < 8


def test_every_truncation_of_any_file_is_refused(small: dict[str, bytes]) -> None:
    for key, data in small.items():
        lengths = [*range(0, len(data), 1 if len(data) < 2000 else 61), len(data) - 1]
        for length in lengths:
            code = read_or_error({**small, key: data[:length]})

            assert code is not None, (key, length)


def test_a_byte_appended_to_any_file_is_refused(small: dict[str, bytes]) -> None:
    for key, data in small.items():
        assert read_or_error({**small, key: data + b"\0"}) in (
            ErrorCode.LENGTH,
            ErrorCode.FILE_LENGTH,
        )


def test_a_lost_file_is_refused_by_its_name(small: dict[str, bytes]) -> None:
    key = key_of(small, "data")
    rest = {k: v for k, v in small.items() if k != key}

    assert read_or_error(rest) is ErrorCode.FILE_MISSING
    (problem,) = bcpformat.validate(store_of(rest)).problems
    assert problem.code is ErrorCode.FILE_MISSING
    assert problem.where == key


def test_a_lost_manifest_is_no_checkpoint(small: dict[str, bytes]) -> None:
    rest = {k: v for k, v in small.items() if k != "manifest.bcp"}

    assert read_or_error(rest) is ErrorCode.NOT_COMMITTED
    report = bcpformat.validate(store_of(rest))
    assert [p.code for p in report.problems] == [ErrorCode.NOT_COMMITTED]
    assert report.unreferenced == (key_of(small, "data"),)


def test_a_data_file_of_another_save_is_refused(small: dict[str, bytes]) -> None:
    """Files of two attempts swapped: same names and lengths, other content (BCP-DAT-005)."""
    store = MemoryStore()
    state = make_state()
    state["zeros"] = np.ones(3000, np.float32)
    bcpformat.write(store, state, step=1)
    other = objects_of(store)
    key = key_of(small, "data")

    code = read_or_error({**small, key: other[key_of(other, "data")]})

    assert code in (ErrorCode.TABLE_CHECKSUM, ErrorCode.TRUNCATED, ErrorCode.FILE_LENGTH)


def test_a_header_of_another_attempt_is_found_by_validation(small: dict[str, bytes]) -> None:
    """BCP-DAT-009: readers may leave the header unread, validators must not."""
    from bcpformat.wire.container import data_file_head

    key = key_of(small, "data")
    changed = data_file_head(bytes(range(16))) + small[key][4096:]

    assert len(changed) == len(small[key])
    report = bcpformat.validate(store_of({**small, key: changed}), level="manifest")
    assert [p.code for p in report.problems] == [ErrorCode.ID]


def test_a_read_stops_before_an_allocation_beyond_its_budget(small: dict[str, bytes]) -> None:
    with pytest.raises(bcpformat.LimitError) as caught:
        bcpformat.read(store_of(small), as_numpy=True, options=ReadOptions(budget_bytes=1000))

    assert caught.value.code is ErrorCode.BUDGET


def test_a_failed_read_into_a_template_says_what_may_have_changed() -> None:
    store = MemoryStore()
    state = {"a": np.arange(2**19), "b": np.arange(2**19)}
    bcpformat.write(store, state)
    objects = objects_of(store)
    key = key_of(objects, "data")
    changed = bytearray(objects[key])
    changed[4096 + 2**22 + 5] ^= 1
    template = {"a": np.zeros(2**19, np.int64), "b": np.zeros(2**19, np.int64)}

    with pytest.raises(bcpformat.ChecksumError) as caught:
        bcpformat.read(store_of({**objects, key: bytes(changed)}), into=template)

    assert caught.value.changed == ("a", "b")
    assert "'b'" in str(caught.value)
