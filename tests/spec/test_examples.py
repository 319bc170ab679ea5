"""Every example of the spec is executed, and every generated part is up to date."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from itertools import pairwise, product
from math import prod
from pathlib import Path

import numpy as np
import xxhash
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import bcpformat
from bcpformat.codec.block import Codec, decode_block
from bcpformat.codec.digest import block_digest, document_digest
from bcpformat.wire.container import MAGIC
from spec import generate
from spec.examples import make_example
from tests.spec.text import TEXT, bytes_of, fenced, table_after

MINIMAL = make_example.DIRECTORY
LISTINGS = [bytes_of(block) for block in fenced("hex")]
DIGESTS, DATA, MANIFEST, FRAME, PLANES = LISTINGS

Box = tuple[tuple[int, ...], tuple[int, ...]]


# ---- generated parts ---------------------------------------------------------------------------


def test_the_generated_parts_of_the_text_are_up_to_date() -> None:
    assert list(generate.stale(TEXT)) == [], "run: python spec/generate.py"


def test_a_stale_part_is_found() -> None:
    assert list(generate.stale(TEXT.replace("| `E_MAGIC` |", "| `E_MAGICK` |"))) == ["errors"]


def test_generating_twice_changes_nothing() -> None:
    assert generate.generate(TEXT) == TEXT


def test_the_text_says_what_is_generated() -> None:
    found = [match[1] for match in generate.BLOCK.finditer(TEXT)]

    assert sorted(found) == sorted(generate.BLOCKS)


def test_the_check_of_the_script_agrees() -> None:
    script = Path(generate.__file__)

    subprocess.run([sys.executable, script, "--check"], check=True, timeout=60)


# ---- the worked example ------------------------------------------------------------------------


def test_the_example_is_made_again_byte_for_byte() -> None:
    make_example.check()
    made = {key: make_example.joined(parts) for key, parts in make_example.files().items()}
    there = {
        path.relative_to(MINIMAL).as_posix(): path.read_bytes()
        for path in MINIMAL.rglob("*")
        if path.is_file()
    }

    assert made == there


def test_the_listings_of_the_text_are_the_files() -> None:
    assert (MINIMAL / "manifest.bcp").read_bytes() == MANIFEST
    assert (MINIMAL / "data" / make_example.FILE_NAME).read_bytes() == DATA
    assert f"`data/{make_example.FILE_NAME}`, {len(DATA)} bytes" in TEXT


def test_the_example_uses_nothing_of_the_implementation() -> None:
    source = Path(make_example.__file__).read_text(encoding="utf-8")
    imports = set(re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE))

    assert imports - set(sys.stdlib_module_names) == {"msgpack", "xxhash", "zstandard"}


def test_the_implementation_finds_the_example_valid() -> None:
    assert bcpformat.validate(MINIMAL, level="full").problems == ()


def test_the_implementation_reads_the_example() -> None:
    state = bcpformat.read(MINIMAL, as_numpy=True, group=None)

    assert list(state) == ["epoch", "w"]
    assert state["epoch"] == 3
    assert state["w"].dtype == np.float32
    assert state["w"].tolist() == [[1, 2, 3], [4, 5, 6]]


# ---- other examples ----------------------------------------------------------------------------


def test_the_digests_of_nothing_are_those_of_the_text() -> None:
    assert struct.pack("<Q", xxhash.xxh3_64_intdigest(b"")) == DIGESTS[:8]
    assert xxhash.xxh3_64_digest(b"")[::-1] == DIGESTS[:8]
    assert xxhash.xxh3_128_digest(b"")[::-1] == DIGESTS[8:]
    assert block_digest(b"") == int.from_bytes(DIGESTS[:8], "little")
    assert document_digest(b"") == DIGESTS[8:]
    assert f"printed {xxhash.xxh3_64_hexdigest(b'')}" in TEXT


def test_the_frame_of_the_text_is_4096_zeros() -> None:
    out = np.ones(4096, np.uint8)
    decode_block(FRAME, out, codec=Codec.ZSTD, item=1)

    assert zstandard.decompress(FRAME) == bytes(4096) == out.tobytes()


def test_the_planes_of_the_text_are_4096_times_one() -> None:
    out = np.zeros(8192, np.uint8)
    decode_block(PLANES, out, codec=Codec.PLANES_ZSTD, item=2)

    assert out.tobytes() == struct.pack("<H", 0x3F80) * 4096


def test_the_header_table_has_64_bytes_without_gap() -> None:
    rows = [(int(row[0]), int(row[1])) for row in table_after("## 5. Container")]

    assert rows[0][0] == 0
    assert [at + size for at, size in rows] == [at for at, _ in rows[1:]] + [64]


def test_the_header_of_the_example_is_that_of_the_table() -> None:
    rows = table_after("## 5. Container")
    fields = {row[2]: MANIFEST[int(row[0]) : int(row[0]) + int(row[1])] for row in rows}

    assert fields["magic"] == bytes.fromhex(rows[0][3].strip("`")) == MAGIC
    assert fields["major"] == b"\1\0" and fields["kind"] == b"\1\0"
    assert not any(fields["minor"] + fields["flags"] + fields["reserved"])
    assert fields["attempt id"] == make_example.ATTEMPT_ID
    assert fields["checksum"] == struct.pack("<Q", xxhash.xxh3_64_intdigest(MANIFEST[:56]))


def test_the_flat_range_of_the_text_has_the_elements_it_says() -> None:
    example = re.search(
        r"shape \((4, 6)\).*?origin \((.*?)\), extent \((.*?)\), start (\d+) and count (\d+)\."
        r"\nIts elements are, in this order, those at (.*?)\.$",
        TEXT,
        re.DOTALL | re.MULTILINE,
    )
    assert example is not None
    shape, origin, extent = (tuple(map(int, example[i].split(", "))) for i in (1, 2, 3))
    start, count = int(example[4]), int(example[5])
    told = [tuple(map(int, pair.split(", "))) for pair in re.findall(r"\((.*?)\)", example[6])]
    box = [tuple(map(sum, zip(origin, p, strict=True))) for p in np.ndindex(*extent)]

    assert all(x < n for p in box for x, n in zip(p, shape, strict=True))
    assert box[start : start + count] == told


# ---- the proof of coverage, as the text of section 8.2 has it ----------------------------------


def cut(origin: tuple[int, ...], extent: tuple[int, ...], a: int, b: int) -> list[Box]:
    if not extent:
        return [(origin, extent)]
    inner = prod(extent[1:])
    if a >= b:
        return []

    def row(r: int, low: int, high: int) -> list[Box]:
        return [((origin[0] + r, *o), (1, *e)) for o, e in cut(origin[1:], extent[1:], low, high)]

    first, last = a // inner, (b - 1) // inner
    if first == last:
        return row(first, a - first * inner, b - first * inner)
    out: list[Box] = []
    if a % inner != 0:
        out += row(first, a - first * inner, inner)
        first += 1
    whole = b // inner
    if first < whole:
        out.append(((origin[0] + first, *origin[1:]), (whole - first, *extent[1:])))
    if b % inner != 0:
        out += row(whole, 0, b - whole * inner)
    return out


def tiles(shape: tuple[int, ...], boxes: list[Box]) -> bool:
    total: dict[tuple[int, ...], int] = {}
    for sign, (origin, extent) in [*((1, b) for b in boxes), (-1, ((0,) * len(shape), shape))]:
        for subset in product((0, 1), repeat=len(shape)):
            corner = tuple(o + e * s for o, e, s in zip(origin, extent, subset, strict=True))
            total[corner] = total.get(corner, 0) + sign * (-1) ** sum(subset)
    return not any(total.values())


def painted(shape: tuple[int, ...], boxes: list[Box]) -> np.ndarray:
    times = np.zeros(shape, int)
    for origin, extent in boxes:
        times[tuple(slice(o, o + e) for o, e in zip(origin, extent, strict=True))] += 1
    return times


SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)


@given(SHAPES, st.data())
def test_cutting_a_flat_range_gives_its_elements_in_few_boxes(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    """BCP-REG-002."""
    size = prod(shape)
    a = data.draw(st.integers(0, size - 1))
    b = data.draw(st.integers(a + 1, size))
    boxes = cut((0,) * len(shape), shape, a, b)

    expected = ((np.arange(size) >= a) & (np.arange(size) < b)).reshape(shape).astype(int)
    assert painted(shape, boxes).tolist() == expected.tolist()
    assert len(boxes) <= max(1, 2 * len(shape) - 1)


@given(SHAPES, st.data())
def test_signed_corners_decide_tiling(shape: tuple[int, ...], data: st.DataObject) -> None:
    """BCP-REG-003."""
    size = prod(shape)
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, size), max_size=4))), size]
    pairs = [(a, b) for a, b in pairwise(cuts) if a < b]
    if data.draw(st.booleans()):
        pairs[data.draw(st.integers(0, len(pairs) - 1))] = data.draw(st.sampled_from(pairs))
    boxes = [box for a, b in pairs for box in cut((0,) * len(shape), shape, a, b)]

    assert tiles(shape, boxes) == bool((painted(shape, boxes) == 1).all())
