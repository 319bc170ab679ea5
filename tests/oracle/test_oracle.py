"""The independent reader against hand-made checkpoints, sound and faulty."""

import ast
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from spec.generate import registry
from tests.oracle import bcp_oracle
from tests.oracle.bcp_oracle import read_checkpoint
from tests.oracle.make_checkpoint import (
    SAMPLES,
    ZSTD,
    Content,
    Run,
    boxes_and_ranges,
    build,
    header,
    one_raw,
    packed_chunks,
    planes_run,
    references,
    sub_byte,
    write,
    xxh64,
    xxh128,
)

EXAMPLES = Path(__file__).resolve().parents[2] / "spec" / "examples"
SOURCE = Path(bcp_oracle.__file__).read_text(encoding="utf-8")


def refusal(prefix: Path) -> str:
    """Return the code with which the reader refuses the checkpoint under `prefix`."""
    with pytest.raises(ValueError) as caught:
        read_checkpoint(prefix)
    return str(caught.value.args[0])


def code_of(prefix: Path, content: Content) -> str:
    """Return the code with which the reader refuses `content`."""
    return refusal(write(prefix, build(content)))


def test_the_reader_has_fewer_than_200_lines() -> None:
    assert len(SOURCE.splitlines()) < 200


def test_the_reader_imports_struct_msgpack_xxhash_and_zstandard_only() -> None:
    nodes = list(ast.walk(ast.parse(SOURCE)))
    imports = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}

    assert imports == {"struct", "msgpack", "xxhash", "zstandard"}
    assert not any(isinstance(node, ast.ImportFrom) for node in nodes)
    assert "__import__" not in SOURCE


def test_the_reader_knows_the_data_types_of_the_registry() -> None:
    bits = {row["name"]: row["bits"] for row in registry("dtypes")["dtype"]}

    assert bits == bcp_oracle.BITS


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
def test_the_state_gives_the_names_of_the_rows(name: str) -> None:
    content = SAMPLES[name]().content

    found = list(references(content.state))

    tensors = {i: [str(row["name"])] for i, row in enumerate(content.tensors)}
    for i, row in enumerate(content.tensors):
        aliases = row.get("aliases", [])
        assert isinstance(aliases, list)
        tensors[i] += aliases
    names = {i: [path for kind, row, path in found if (kind, row) == (0, i)] for i in tensors}
    objects = [path for kind, _, path in found if kind == 18]
    assert names == tensors
    assert objects == [name for name, _, _ in content.objects]


def test_names_escape_what_would_be_ambiguous() -> None:
    keys = ["a/b%", "", [2, 3], [3, b"\xfe"], True, [9, "x,y", [9]], "\x7f"]
    state = [6, *(item for key in keys for item in (key, 0))]

    names = [name for _, _, name in references([7, [6, "m", 1], "k", state])]

    assert names == [
        "%m/m",
        *(f"k/{part}" for part in ["a%2Fb%25", "%e", "%i3", "%i-2", "%t"]),
        "k/%(x%2Cy,%(%)%)",
        "k/%7F",
    ]


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path, name: str) -> None:
    files = build(SAMPLES[name]().content)
    write(tmp_path, files)
    sound = read_checkpoint(tmp_path)

    for key, data in files.items():
        stride = max(1, len(data) // 41)
        for position in {*range(0, len(data), stride), *range(0, 64, 3)}:
            damaged = bytearray(data)
            damaged[position] ^= 1 << position % 8
            (tmp_path / key).write_bytes(damaged)
            try:  # a bit of a zstd frame may mean nothing: the digests are of raw bytes
                assert read_checkpoint(tmp_path) == sound
                assert "data" in key, (key, position)
                assert any(run.codec for run in SAMPLES[name]().content.files[key[5:]])
            except (ValueError, zstandard.ZstdError):
                continue
        (tmp_path / key).write_bytes(data)


@pytest.mark.parametrize("key", ["manifest.bcp", "data/a.bcd"])
def test_a_file_that_is_cut_short_is_truncated(tmp_path: Path, key: str) -> None:
    files = build(one_raw().content)
    write(tmp_path, files | {key: files[key][:-1]})

    assert refusal(tmp_path) == "E_TRUNCATED"


@pytest.mark.parametrize(
    ("key", "code"), [("manifest.bcp", "E_LENGTH"), ("data/a.bcd", "E_FILE_LENGTH")]
)
def test_a_file_with_a_byte_too_many_is_refused(tmp_path: Path, key: str, code: str) -> None:
    files = build(one_raw().content)
    write(tmp_path, files | {key: files[key] + b"\0"})

    assert refusal(tmp_path) == code


def test_an_overlap_and_a_hole_of_the_same_size_are_refused(tmp_path: Path) -> None:
    content = boxes_and_ranges().content
    chunks = [content.chunks[0], content.chunks[1], (0, [0, 2], [4, 3], 6, 5, 1, 0)]

    assert code_of(tmp_path, replace(content, chunks=chunks)) == "E_COVERAGE"


def test_an_element_in_two_chunks_is_refused(tmp_path: Path) -> None:
    content = boxes_and_ranges().content
    runs = [content.files["a.bcd"][0], Run([bytes(6)], codec=ZSTD)]
    chunks = [*content.chunks[:2], (0, [0, 2], [4, 3], 6, 6, 1, 0)]
    files = {"a.bcd": runs[:1], "b.bcd": runs[1:]}

    assert code_of(tmp_path, replace(content, files=files, chunks=chunks)) == "E_COVERAGE"


def test_an_element_in_no_chunk_is_refused(tmp_path: Path) -> None:
    content = boxes_and_ranges().content
    runs = [content.files["a.bcd"][0], Run([bytes(4)], codec=ZSTD)]
    chunks = [*content.chunks[:2], (0, [0, 2], [4, 3], 8, 4, 1, 0)]
    files = {"a.bcd": runs[:1], "b.bcd": runs[1:]}

    assert code_of(tmp_path, replace(content, files=files, chunks=chunks)) == "E_COVERAGE"


def test_a_box_that_leaves_the_tensor_is_refused(tmp_path: Path) -> None:
    content = boxes_and_ranges().content
    chunks = [(0, [1, 0], [4, 2], 0, 8, 0, 0), *content.chunks[1:]]

    assert code_of(tmp_path, replace(content, chunks=chunks)) == "E_BOUNDS"


def test_a_flat_range_that_leaves_its_box_is_refused(tmp_path: Path) -> None:
    content = boxes_and_ranges().content
    chunks = [*content.chunks[:2], (0, [0, 2], [4, 3], 8, 5, 1, 0)]

    assert code_of(tmp_path, replace(content, chunks=chunks)) == "E_BOUNDS"


def test_a_run_with_bytes_that_nothing_uses_is_refused(tmp_path: Path) -> None:
    content = packed_chunks().content
    run = Run([*content.files["a.bcd"][0].pieces, bytes(64)], item=4)

    assert code_of(tmp_path, replace(content, files={"a.bcd": [run]})) == "E_EXTENT_HOLE"


def test_a_chunk_that_ends_after_its_run_is_refused(tmp_path: Path) -> None:
    content = packed_chunks().content
    run = Run([b"\1\0\0\0" * 3, b""], item=4)

    assert code_of(tmp_path, replace(content, files={"a.bcd": [run]})) == "E_EXTENT_BOUNDS"


def test_two_chunks_in_the_same_bytes_are_refused(tmp_path: Path) -> None:
    content = packed_chunks().content
    chunks = [content.chunks[0], (1, [], [], 0, 1, 0, 0)]

    assert code_of(tmp_path, replace(content, chunks=chunks)) == "E_EXTENT_OVERLAP"


def test_a_gap_between_chunks_that_is_not_zero_is_refused(tmp_path: Path) -> None:
    content = packed_chunks().content
    run = Run([b"\1\0\0\0" * 3 + b"\7", b"\2\0\0\0"], item=4)

    assert code_of(tmp_path, replace(content, files={"a.bcd": [run]})) == "E_PADDING"


def test_a_bit_after_the_last_element_is_refused(tmp_path: Path) -> None:
    content = sub_byte().content
    pieces = [*content.files["s.bcd"][0].pieces[:1], b"\x21\x13", b"\x54"]

    assert code_of(tmp_path, replace(content, files={"s.bcd": [Run(pieces)]})) == "E_PADDING"


def test_a_feature_that_is_not_known_is_refused(tmp_path: Path) -> None:
    content = replace(planes_run().content, root={"require": ["planes-zstd", "telepathy"]})

    assert code_of(tmp_path, content) == "E_FEATURE"


def test_a_data_file_outside_the_prefix_is_refused(tmp_path: Path) -> None:
    content = one_raw().content

    assert (
        code_of(tmp_path / "p", replace(content, files={"../a.bcd": content.files["a.bcd"]}))
        == "E_FILE_NAME"
    )


def test_a_data_file_of_another_attempt_is_refused(tmp_path: Path) -> None:
    files = build(one_raw().content)
    data = files["data/a.bcd"]
    header = data[:16] + bytes(16) + data[32:56]
    write(tmp_path, files | {"data/a.bcd": header + xxh64(header) + data[64:]})

    assert refusal(tmp_path) == "E_ID"


class TwoFrames(Run):
    """A zstd run whose blocks have an empty frame after the first."""

    __slots__ = ()

    def encode(self, block: bytes) -> bytes:
        """Return the block as one frame and another one."""
        return super().encode(block) + b"\x28\xb5\x2f\xfd\x20\x00\x01\x00\x00"


def test_a_block_of_two_frames_is_refused(tmp_path: Path) -> None:
    content = one_raw().content
    row = {"name": "w", "dtype": "uint8", "shape": [900]}
    run = TwoFrames([bytes(900)], codec=ZSTD)
    files, chunks = {"a.bcd": [run]}, [(0, [0], [900], 0, 900, 0, 0)]

    faulty = replace(content, files=files, tensors=[row], chunks=chunks)
    write(tmp_path, build(faulty))

    with pytest.raises(zstandard.ZstdError):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("key", ["manifest.bcp", "data/a.bcd"])
def test_a_file_that_is_absent_is_missed(tmp_path: Path, key: str) -> None:
    write(tmp_path, build(one_raw().content))
    (tmp_path / key).unlink()

    with pytest.raises(FileNotFoundError):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("root", [b"\x82\xa1b\0\xa1a\0", b"\x82\xa1a\0\xa1a\0", b"\xcc\0"])
def test_a_document_that_is_not_in_its_only_form_is_refused(tmp_path: Path, root: bytes) -> None:
    size = len(root)
    start = header(kind=1, stored=size, raw=size)
    write(tmp_path, {"manifest.bcp": start + root + xxh128(root)})

    assert refusal(tmp_path) == "E_MP_NONCANONICAL"


def test_a_run_that_holds_nothing_is_refused(tmp_path: Path) -> None:
    content = one_raw().content
    files = {"a.bcd": [*content.files["a.bcd"], Run([bytes(8)])]}

    assert code_of(tmp_path, replace(content, files=files)) == "E_EXTENT_HOLE"


def test_the_worked_example_of_the_specification_reads_as_it_says() -> None:
    found = read_checkpoint(EXAMPLES / "minimal")

    assert found["tensors"] == {"w": ("float32", (2, 3), struct.pack("<6f", 1, 2, 3, 4, 5, 6))}
    assert (found["step"], found["state"]) == (1000, [6, "epoch", [2, 3], "w", 0])
