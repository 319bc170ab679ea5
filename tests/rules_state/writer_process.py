"""A process that is killed while it saves: ``python -m``, a directory, the name of a codec."""

from __future__ import annotations

import sys

import numpy as np

import bcpformat
from bcpformat import WriteOptions

SIZE = 2**24


def state() -> dict[str, object]:
    """Return a state of 40 MiB in several runs, the same every time."""
    noise = np.random.default_rng(7).integers(0, 256, SIZE, dtype=np.uint8)
    return {"noise": noise, "half": noise[: SIZE // 2].copy(), "odd": noise[::3].copy(), "n": 5}


if __name__ == "__main__":
    location, codec = sys.argv[1:]
    value = state()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    bcpformat.write(location, value, step=1, options=WriteOptions(codec=codec))  # type: ignore[arg-type]  # one of the names
    sys.stdout.write("done\n")
    sys.stdout.flush()
