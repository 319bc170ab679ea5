"""Group `partial`: how much is read for a part of a large checkpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from bcpformat.api.opened import Checkpoint, open_checkpoint
from bcpformat.api.save import write
from bcpformat.cli.bench_counting import CountingStore, kernel_bytes_read
from bcpformat.cli.bench_measure import Setup, evict
from bcpformat.cli.bench_report import Goal, Row, Table, at_most
from bcpformat.cli.bench_state import Array, make_noise
from bcpformat.errors import StateError
from bcpformat.model.manifest import DATA_PREFIX, MANIFEST_KEY, Manifest
from bcpformat.storage import LocalStore

TENSOR_RATIO = 1.02
SLICE_RATIO = 1.1
SMALL_TENSORS = 256
SMALL_BYTES = 4096

_SHIFT_BYTES = 64
_SLICES = 8


@dataclass(frozen=True, slots=True)
class _Reading:
    """What one read cost; bytes.

    Attributes:
        seconds: From opening the checkpoint to the elements.
        asked: Asked of the store, everything.
        index: The part of it that is manifest and block tables.
        kernel: Counted by the kernel, None where it does not count.
    """

    seconds: float
    asked: int
    index: int
    kernel: int | None

    @property
    def total(self) -> int:
        """The larger of both counts."""
        return max(self.asked, self.kernel or 0)

    @property
    def data(self) -> int:
        """Bytes of blocks."""
        return self.asked - self.index


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of the checkpoint.

    Attributes:
        words: For people.
        take: Reads it.
        expected: What must come back.
        goal: Judges a reading by the bytes of the part.
    """

    words: str
    take: Callable[[Checkpoint], Array]
    expected: Array
    goal: Callable[[_Reading, int], Goal]


def partial_group(setup: Setup) -> list[Table]:
    """Measure the bytes read for a tensor, an eighth of its rows, and a small tensor."""
    sizes = setup.sizes
    location = os.path.join(setup.folder, "checkpoint")
    state = _state(sizes.partial_tensors, sizes.partial_bytes)
    setup.say("partial: writing the checkpoint")
    write(location, state, group=None)
    block_bytes = _small_block_bytes(location)
    rows = [_row(setup, location, part) for part in _parts(state, block_bytes)]
    total = sum(array.nbytes for array in state.values())
    title = (
        f"partial: from {total / 1e9:.3g} GB, {sizes.partial_tensors} tensors of "
        f"{sizes.partial_bytes / 2**20:.4g} MiB and {SMALL_TENSORS} of 4 KiB"
    )
    notes = [
        "bytes read: the larger of what is asked of the store and the kernel's count (rchar)",
        "manifest and block tables are counted; only the goal of the small tensor leaves them out",
        "verified; from a cold cache, the checkpoint is opened for each",
    ]
    columns = ("case", "bytes", "bytes read", "x bytes", "of it index", "s", "verifies")
    return [Table(name="partial", title=title, columns=columns, rows=rows, notes=notes)]


def _state(num_tensors: int, nbytes: int) -> dict[str, Array]:
    """Return large tensors that overlap in memory, so that they need that of one, and small ones.

    No two are equal or lie at the same place; the checkpoint stores each in full.
    """
    small_bytes = SMALL_TENSORS * SMALL_BYTES
    memory = make_noise(max(nbytes + num_tensors * _SHIFT_BYTES, small_bytes))
    state: dict[str, Array] = {}
    for number in range(num_tensors):
        start = number * _SHIFT_BYTES
        part = memory[start : start + nbytes]
        # As many rows as a multiple of 8, so that an eighth of them is an eighth of the bytes.
        state[f"large.{number:02d}"] = part.view(np.int32).reshape(_rows(nbytes), -1)
    for number in range(SMALL_TENSORS):
        part = memory[number * SMALL_BYTES : (number + 1) * SMALL_BYTES]
        state[f"small.{number:03d}"] = part.view(np.int32)
    return state


def _rows(nbytes: int) -> int:
    """Return about the square root of the elements, a power of two from 8 on."""
    rows = 8
    while 4 * rows * rows < nbytes // 4 and nbytes % (8 * rows) == 0:
        rows *= 2
    return rows


def _parts(state: dict[str, Array], block_bytes: int) -> list[_Part]:
    num_large = len(state) - SMALL_TENSORS
    large, small = f"large.{num_large // 2:02d}", f"small.{SMALL_TENSORS // 2:03d}"
    rows = state[large].shape[0]
    fourth = slice(3 * rows // _SLICES, 4 * rows // _SLICES)

    def of_tensor(reading: _Reading, nbytes: int) -> Goal:
        return at_most(reading.total / nbytes, TENSOR_RATIO, f"{TENSOR_RATIO}x bytes")

    def of_slice(reading: _Reading, nbytes: int) -> Goal:
        return at_most(reading.total / nbytes, SLICE_RATIO, f"{SLICE_RATIO}x bytes")

    def of_small(reading: _Reading, nbytes: int) -> Goal:
        return at_most(reading.data - nbytes, block_bytes, "1 block more, without index")

    return [
        _Part(
            words="one tensor",
            take=lambda opened: opened[large].read(),
            expected=state[large],
            goal=of_tensor,
        ),
        _Part(
            words="1/8 of its rows",
            take=lambda opened: opened[large][fourth],
            expected=state[large][fourth],
            goal=of_slice,
        ),
        _Part(
            words="one tensor of 4 KiB",
            take=lambda opened: opened[small].read(),
            expected=state[small],
            goal=of_small,
        ),
    ]


def _row(setup: Setup, location: str, part: _Part) -> Row:
    readings = []
    for number in range(setup.rounds + 1):
        setup.say(f"partial: {part.words}, round {number} of {setup.rounds}")
        evict(location)
        readings.append(_read(location, part))
    found, later = readings[-1], readings[1:]
    nbytes = part.expected.nbytes
    seconds = [reading.seconds for reading in later]
    cells = (
        part.words,
        str(nbytes),
        str(found.total),
        f"{found.total / nbytes:.3f}",
        str(found.index),
        f"{median(seconds):.4f}",
        "yes",
    )
    data = {
        "case": part.words,
        "fsync": False,
        "verifies": True,
        "nbytes": nbytes,
        "bytes_asked": found.asked,
        "bytes_kernel": found.kernel,
        "bytes_index": found.index,
        "ratio": found.total / nbytes,
        "first_wall_seconds": readings[0].seconds,
        "wall_seconds": seconds,
        "median_wall_seconds": median(seconds),
    }
    return Row(cells=cells, data=data, goal=part.goal(found, nbytes))


def _read(location: str, part: _Part) -> _Reading:
    store = CountingStore(LocalStore(location))
    before = kernel_bytes_read()
    start = time.perf_counter()
    with open_checkpoint(store) as opened:
        array = part.take(opened)
        seconds = time.perf_counter() - start
        after = kernel_bytes_read()
        manifest = opened.manifest
    if not np.array_equal(array, part.expected):
        raise StateError(f"{part.words} was not read as it was written")
    kernel = after - before if before is not None and after is not None else None
    return _Reading(seconds, store.bytes_read, _index_bytes(store, manifest), kernel)


def _index_bytes(store: CountingStore, manifest: Manifest) -> int:
    """Return the bytes of the reads that lie in the manifest or in block tables."""
    tables = {DATA_PREFIX + row.name: row.table_bytes for row in manifest.files}
    return sum(
        nbytes
        for key, start, nbytes in store.reads
        if key == MANIFEST_KEY or start >= tables.get(key, 0)
    )


def _small_block_bytes(location: str) -> int:
    with open_checkpoint(location) as opened:
        manifest = opened.manifest
        row = list(manifest.tensors.names).index(f"small.{SMALL_TENSORS // 2:03d}")
        chunk = int(manifest.tensors.chunks[:row].sum())
        run = int(manifest.chunks.run[chunk])
        return 1 << int(manifest.runs.block_log2[run])
