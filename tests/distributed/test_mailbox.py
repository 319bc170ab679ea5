"""Values in a store of c10d: of any size, removed whole, and no wait without an end."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.errors import CoordinationError, ErrorCode

pytestmark = pytest.mark.torch
dist = pytest.importorskip("torch.distributed")

from bcpformat.torch.mailbox import Mailbox  # noqa: E402  # needs torch

_KIB = 1 << 10
_SIZES = (0, 1, 64 * _KIB, 64 * _KIB + 1, 1024 * _KIB, 1024 * _KIB + 1, 3 * 1024 * _KIB)


class _PythonStore(dist.Store):  # type: ignore[misc,name-defined]  # torch may be missing
    """A store that cannot be cloned, counts what it is asked, and may fall silent."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, bytes] = {}
        self.questions = 0
        self.is_dead = False
        self.may_answer = threading.Event()
        self.may_answer.set()

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        self.may_answer.wait()
        self.questions += 1
        if self.is_dead:
            raise RuntimeError("connection reset")
        return all(key in self.values for key in keys)

    def deleteKey(self, key: str) -> bool:
        return self.values.pop(key, None) is not None


def _mailbox(store: Any, *, answer_s: float = 60.0) -> Mailbox:
    return Mailbox(store, "prefix", size=1, answer_s=answer_s)


@pytest.mark.parametrize("nbytes", _SIZES)
def test_value_comes_back_whatever_its_size(nbytes: int) -> None:
    mailbox = _mailbox(dist.HashStore())
    value = bytes(range(256)) * (nbytes // 256) + b"x" * (nbytes % 256)

    mailbox.put("key", value)

    assert mailbox.take("key", timeout_s=0.0) == value


@pytest.mark.parametrize("nbytes", _SIZES)
def test_forgotten_value_leaves_no_key(nbytes: int) -> None:
    store = _PythonStore()
    mailbox = _mailbox(store)
    mailbox.put("key", bytes(nbytes))

    mailbox.forget("key")

    assert store.values == {}


def test_no_message_to_a_store_is_large() -> None:
    store = _PythonStore()

    _mailbox(store).put("key", bytes(5 << 20))

    assert max(map(len, store.values.values())) <= 1 << 20


@given(st.sets(st.integers(0, 199), max_size=20), st.integers(0, 200))
def test_absent_keys_are_those_nobody_set(missing: set[int], count: int) -> None:
    mailbox = _mailbox(store := _PythonStore())
    keys = [f"key/{number}" for number in range(count)]
    store.values = {
        f"prefix/{key}": b"" for number, key in enumerate(keys) if number not in missing
    }

    assert mailbox.absent(keys) == sorted(number for number in missing if number < count)


def test_few_absent_keys_are_found_with_few_questions() -> None:
    mailbox = _mailbox(store := _PythonStore())
    keys = [f"key/{number}" for number in range(20_000)]
    store.values = {f"prefix/{key}": b"" for key in keys if key != "key/12345"}

    assert mailbox.absent(keys) == [12345]
    assert store.questions < 40


def test_store_that_does_not_answer_is_given_up() -> None:
    mailbox = _mailbox(store := _PythonStore(), answer_s=0.05)
    store.may_answer.clear()

    with pytest.raises(CoordinationError, match=r"no answer within 0\.05 s") as caught:
        mailbox.take("key", timeout_s=0.0)

    store.may_answer.set()
    assert caught.value.code is ErrorCode.RANK_LOST
    assert mailbox.is_lost


def test_lost_store_is_not_asked_again() -> None:
    mailbox = _mailbox(store := _PythonStore())
    store.is_dead = True
    with pytest.raises(CoordinationError, match="connection reset"):
        mailbox.take("key", timeout_s=0.0)
    store.is_dead = False

    with pytest.raises(CoordinationError) as caught:
        mailbox.take("key", timeout_s=0.0)

    assert caught.value.code is ErrorCode.RANK_LOST
    assert store.questions == 1


def test_thread_of_a_mailbox_ends_with_it() -> None:
    before = set(threading.enumerate())
    mailbox = _mailbox(dist.HashStore())
    (thread,) = set(threading.enumerate()) - before

    del mailbox

    thread.join(60.0)
    assert not thread.is_alive()
