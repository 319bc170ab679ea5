"""The error of one rank is the same error on every other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat import errors
from bcpformat.engine.failure import decode_failure, encode_failure
from bcpformat.errors import (
    BcpError,
    CommitError,
    CoordinationError,
    DisagreementError,
    ErrorCode,
    FormatError,
    MismatchError,
    ObjectNotFoundError,
    Problem,
    StorageError,
)
from bcpformat.wire.mp import decode, encode

PROBLEM = Problem(code=ErrorCode.DISAGREE, where="lr", message="differs")


def sent(error: BaseException, *, rank: int = 3, size: int = 8) -> BcpError:
    return decode_failure(encode_failure(rank, error, size=size))


def made(kind: type[BcpError]) -> BcpError:
    """An error of a class, with all that it may carry."""
    arguments: dict[str, dict[str, Any]] = {
        "MismatchError": {"problems": [PROBLEM]},
        "DisagreementError": {"problems": [PROBLEM]},
        "StateError": {},
        "StorageError": {"key": "data/x", "retryable": True},
        "ObjectNotFoundError": {"key": "k"},
        "ObjectExistsError": {"key": "k"},
        "CommitError": {"published": None, "code": ErrorCode.UNCERTAIN},
        "CoordinationError": {"ranks": [1, 2]},
        "InvalidArgumentError": {},
    }
    error = kind("text", **arguments.get(kind.__name__, {"code": ErrorCode.ALIGN}))
    error.changed = ("a", "b/c")
    error.add_note("while encoding")
    return error


CLASSES = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BcpError)
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_of_any_class_arrives_with_all_that_it_carries(kind: type[BcpError]) -> None:
    error = made(kind)

    back = sent(error)

    assert type(back) is kind
    assert back.message == "rank 3 of 8: text" and back.rank == 3
    expected = {**vars(error), "rank": 3}
    assert vars(back) == expected
    assert str(back) == f"rank 3 of 8: text [{error.code.value}]"


def test_a_rank_is_not_said_twice() -> None:
    back = sent(sent(FormatError("text", code=ErrorCode.ALIGN)), rank=0)

    assert back.message == "rank 3 of 8: text" and back.rank == 3


@pytest.mark.parametrize("published", [True, False, None])
def test_whether_a_manifest_was_published_is_kept(published: bool | None) -> None:  # noqa: FBT001
    back = sent(CommitError("text", published=published, code=ErrorCode.EXISTS))

    assert isinstance(back, CommitError) and back.published is published


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MemoryError(), "rank 3 of 8: MemoryError"),
        (KeyboardInterrupt(), "rank 3 of 8: KeyboardInterrupt"),
        (OSError(28, "No space left"), "rank 3 of 8: OSError: [Errno 28] No space left"),
        (KeyError("k"), "rank 3 of 8: KeyError: 'k'"),
    ],
    ids=repr,
)
def test_any_other_error_is_the_loss_of_a_rank(error: BaseException, text: str) -> None:
    back = sent(error)

    assert type(back) is CoordinationError and back.code is ErrorCode.RANK_LOST
    assert back.message == text and back.ranks == (3,) and back.rank == 3


def test_a_class_of_somebody_else_arrives_as_the_nearest_of_ours() -> None:
    class OwnError(StorageError):
        def __init__(self, text: str) -> None:
            super().__init__(text, key="k")
            self.handle = object()

    back = sent(OwnError("text"))

    assert type(back) is StorageError and back.key == "k" and not hasattr(back, "handle")


def test_text_without_a_form_arrives_escaped() -> None:
    back = sent(ObjectNotFoundError("no \udcff here", key="\ud800"))

    assert isinstance(back, ObjectNotFoundError)
    assert back.message == r"rank 3 of 8: no \udcff here" and back.key == r"\ud800"


def test_all_problems_arrive() -> None:
    back = sent(DisagreementError("text", problems=[PROBLEM] * 100))

    assert isinstance(back, DisagreementError) and back.problems == (PROBLEM,) * 100


RECORD = encode_failure(3, MismatchError("text", problems=[PROBLEM]), size=8)
DOCUMENT: Any = decode(RECORD, max_depth=16, where="")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("code", "E_UNHEARD_OF"),
        ("extra", {"unheard_of": 1}),
        ("extra", {"problems": [["E_ALIGN", "w"]]}),
        ("extra", {"problems": [["E_ALIGN", "w", 1]]}),
        ("extra", {"problems": 1}),
        ("extra", {"published": [1]}),
        ("extra", {"published": [True, True]}),
        ("extra", {"ranks": ["1"]}),
        ("extra", {"key": 1}),
        ("extra", {"retryable": 1}),
        ("extra", {"changed": [1]}),
        ("message", 1),
        ("notes", [1]),
        ("rank", True),
        ("other", 1),
    ],
)
def test_a_record_of_another_form_is_refused(key: str, value: Any) -> None:
    with pytest.raises(FormatError):
        decode_failure(encode({**DOCUMENT, key: value}, max_depth=16, where=""))


def test_an_unknown_class_is_an_error_of_ours() -> None:
    back = decode_failure(encode({**DOCUMENT, "class": "exit"}, max_depth=16, where=""))

    assert type(back) is BcpError and back.code is ErrorCode.MISMATCH


@given(st.binary(max_size=20) | st.integers(0, len(RECORD) - 1).map(lambda n: RECORD[:n]))
def test_bytes_that_are_no_error_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_failure(data)
