"""Settings and fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parent.parent

# "ci" runs the same examples every time; `pytest --hypothesis-profile=dev` looks for new ones.
settings.register_profile(
    "ci", derandomize=True, deadline=None, database=None, max_examples=100, print_blob=True
)
settings.register_profile(
    "dev", derandomize=False, deadline=None, max_examples=1000, print_blob=True
)
settings.load_profile("ci")


@pytest.fixture(scope="session")
def fixtures_dir() -> Path:
    """Return the directory of checkpoints that other frameworks wrote, or skip."""
    directory = Path(
        os.environ.get("BCPFORMAT_FIXTURES", REPOSITORY.parent / "shared" / "fixtures")
    )
    if not directory.is_dir():
        pytest.skip(
            f"no checkpoints of other frameworks at {str(directory)!r}; "
            "set BCPFORMAT_FIXTURES to the directory that holds them"
        )
    return directory
