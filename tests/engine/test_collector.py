"""The garbage collector is still while needed, and as it was afterwards."""

from __future__ import annotations

import gc

import pytest

from bcpformat.engine.collector import paused_collector


def test_it_is_still_until_the_last_pause_ends() -> None:
    assert gc.isenabled()
    with paused_collector():
        with paused_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(ValueError, match="x"), paused_collector():
        raise ValueError("x")

    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    try:
        with paused_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
