"""The independent reader against hand-made checkpoints."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.oracle.bcp_oracle import read_checkpoint
from tests.oracle.make_checkpoint import SAMPLES, Content, Run, build, write


def refusal(prefix: Path) -> str:
    """Return the code with which the reader refuses the checkpoint under `prefix`."""
    with pytest.raises(ValueError) as caught:
        read_checkpoint(prefix)
    return str(caught.value.args[0])


def code_of(tmp_path: Path, content: Content) -> str:
    """Return the code with which the reader refuses `content`."""
    return refusal(write(tmp_path, build(content)))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_hand_made_checkpoint_reads_as_written(tmp_path: Path, name: str) -> None:
    sample = SAMPLES[name]()
    write(tmp_path, build(sample.content))

    found = read_checkpoint(tmp_path)

    assert found == {
        "step": sample.content.root.get("step"),
        "user": sample.content.root.get("user", {}),
        "tensors": sample.tensors,
        "aliases": sample.aliases,
        "objects": sample.objects,
        "per_rank": sample.per_rank,
        "state": sample.content.state,
    }


@pytest.mark.parametrize("name", SAMPLES)
def test_every_flipped_byte_is_refused(tmp_path: Path, name: str) -> None:
    files = build(SAMPLES[name]().content)
    write(tmp_path, files)

    for key, data in files.items():
        for position in range(len(data)):
            if position % 61 and not any(data[max(0, position - 8) : position + 8]):
                continue  # long stretches of zeros are all alike
            damaged = bytearray(data)
            damaged[position] ^= 0x10
            (tmp_path / key).write_bytes(damaged)
            assert refusal(tmp_path).startswith("E_"), (key, position)
        (tmp_path / key).write_bytes(data)
