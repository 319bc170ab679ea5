"""Real ranks: the pieces that they describe are the tensor that torch gathers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("ranks_job.py")

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.mark.parametrize("ranks", [4, 6])
def test_pieces_of_all_ranks_are_what_torch_gathers(ranks: int, tmp_path: Path) -> None:
    out, log = tmp_path / "found.json", tmp_path / "log"
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(JOB), str(ranks), str(tmp_path / "store"), str(out)]
    with log.open("wb") as written:
        job = subprocess.Popen(
            command,
            env=environment,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = job.wait(timeout=240)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)  # its ranks too
            job.wait()

    assert code == 0, log.read_text()[-3000:]
    found = json.loads(out.read_text())
    assert found
    assert {name: problems for name, problems in found.items() if problems} == {}
