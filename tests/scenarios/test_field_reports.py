"""What users of other formats reported, replayed: each test carries its scenario's number.

Where the format decides otherwise than the report asked, the test's docstring says so.
"""

from __future__ import annotations

import io
import json
import shutil
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import bcpformat
from bcpformat import ErrorCode, MemoryStore
from bcpformat.cli import main as cli
from bcpformat.testing.faulty_store import FaultyStore


def only_data_file(location: Path) -> Path:
    (found,) = (location / "data").iterdir()
    return found


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_t05_a_dotted_name_and_a_nested_one_stay_distinct(tmp_path: Path) -> None:
    state = {"a.b": torch.tensor([1.0]), "a": {"b": torch.tensor([2.0])}, "a/b": torch.tensor(3)}
    bcpformat.write(tmp_path / "c", state)

    back = bcpformat.read(tmp_path / "c")

    assert list(back) == ["a.b", "a", "a/b"]
    assert back["a.b"].item() == 1
    assert back["a"]["b"].item() == 2
    assert back["a/b"].item() == 3


def test_t06_typed_keys_are_kept_apart(tmp_path: Path) -> None:
    state = {"s": {0: torch.zeros(1), "0": torch.ones(1), (0,): torch.full((1,), 2.0), True: 5}}
    del state["s"][True]
    state["s"][False, "x"] = 7
    bcpformat.write(tmp_path / "c", state)

    back = bcpformat.read(tmp_path / "c")["s"]

    assert [type(k) for k in back] == [int, str, tuple, tuple]
    assert [v.item() for v in list(back.values())[:3]] == [0, 1, 2]
    assert back[False, "x"] == 7


def test_t07_empty_containers_none_and_tuples_come_back(tmp_path: Path) -> None:
    state = {"e": {}, "l": [], "t": (), "n": None, "x": (1, torch.ones(2))}
    bcpformat.write(tmp_path / "c", state)

    back = bcpformat.read(tmp_path / "c")

    assert back["e"] == {}
    assert back["l"] == []
    assert back["t"] == ()
    assert back["n"] is None
    assert type(back["x"]) is tuple
    assert back["x"][0] == 1
    assert torch.equal(back["x"][1], torch.ones(2))


def test_t08_a_list_of_dicts_is_whole_without_a_template_and_reported_with_an_empty_one(
    tmp_path: Path,
) -> None:
    bcpformat.write(tmp_path / "c", {"k": [{"a": 1}, {"b": 2}]})

    assert bcpformat.read(tmp_path / "c") == {"k": [{"a": 1}, {"b": 2}]}
    with pytest.raises(bcpformat.MismatchError, match="empty list"):
        bcpformat.read(tmp_path / "c", into={"k": []})


@pytest.mark.parametrize("wanted", [torch.bfloat16, torch.int32])
def test_t09_a_dtype_is_never_changed_unasked(tmp_path: Path, wanted: torch.dtype) -> None:
    bcpformat.write(tmp_path / "c", {"w": torch.tensor([1.00001, 3.14159])})
    template = {"w": torch.zeros(2, dtype=wanted)}

    with pytest.raises(bcpformat.MismatchError, match="dtype"):
        bcpformat.read(tmp_path / "c", into=template)

    assert not template["w"].any()


def test_t09_floats_convert_when_asked_and_integers_need_their_own_word(tmp_path: Path) -> None:
    bcpformat.write(tmp_path / "c", {"w": torch.tensor([1.00001, 3.14159])})
    half = {"w": torch.zeros(2, dtype=torch.bfloat16)}
    whole = {"w": torch.zeros(2, dtype=torch.int32)}

    bcpformat.read(tmp_path / "c", into=half, cast=True)
    with pytest.raises(bcpformat.MismatchError, match="'any'"):
        bcpformat.read(tmp_path / "c", into=whole, cast=True)
    bcpformat.read(tmp_path / "c", into=whole, cast="any")

    assert half["w"].tolist() == torch.tensor([1.00001, 3.14159]).bfloat16().tolist()
    assert whole["w"].tolist() == [1, 3]


FLOAT8 = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (torch.bfloat16, torch.tensor([0x7FC1, -0x8000, 0x0001, 0x7F80], dtype=torch.int16)),
        (torch.uint64, torch.tensor([-1, 0], dtype=torch.int64)),
        (torch.complex64, torch.tensor([0x7FC00001_80000000, 1], dtype=torch.int64)),
        (torch.complex32, torch.tensor([0x7E01_8000, 1], dtype=torch.int32)),
        *[(getattr(torch, n), torch.arange(256).to(torch.uint8)) for n in FLOAT8],
    ],
    ids=str,
)
def test_t10_bit_patterns_survive(tmp_path: Path, dtype: torch.dtype, bits: torch.Tensor) -> None:
    bcpformat.write(tmp_path / "c", {"w": bits.view(dtype)})

    back = bcpformat.read(tmp_path / "c")["w"]

    assert back.dtype == dtype
    assert torch.equal(back.view(bits.dtype), bits)


def test_t10_complex128_bit_patterns_survive(tmp_path: Path) -> None:
    bits = torch.tensor([[0x7FF8000000000001, -(2**63)], [1, 2]], dtype=torch.int64)
    value = torch.view_as_complex(bits.view(torch.float64))
    bcpformat.write(tmp_path / "c", {"w": value})

    back = bcpformat.read(tmp_path / "c")["w"]

    assert torch.equal(torch.view_as_real(back).view(torch.int64), bits)


def test_t11_strict_lists_missing_and_unexpected_and_lenient_returns_the_same(
    tmp_path: Path,
) -> None:
    bcpformat.write(tmp_path / "c", {"a": torch.ones(2), "d": torch.ones(3)})
    template = {"a": torch.zeros(2), "c": torch.full((4,), 9.0)}

    with pytest.raises(bcpformat.MismatchError) as caught:
        bcpformat.read(tmp_path / "c", into=template)
    untouched = template["a"].tolist()
    report = bcpformat.read(tmp_path / "c", into=template, strict=False)

    assert untouched == [0, 0]
    assert [p.where for p in caught.value.problems] == ["c", "d"]
    assert list(report) == list(caught.value.problems)
    assert report.state is template
    assert template["a"].tolist() == [1, 1]
    assert template["c"].tolist() == [9] * 4


def test_t12_nothing_matched_is_an_error_that_names_the_prefix(tmp_path: Path) -> None:
    names = ["layers.0.w", "layers.1.w", "head.w"]
    bcpformat.write(tmp_path / "c", {f"module.{n}": torch.ones(2) for n in names})
    template = {n: torch.zeros(2) for n in names}

    with pytest.raises(bcpformat.MismatchError, match=r"(?s)0 of 3.*'module\.'"):
        bcpformat.read(tmp_path / "c", into=template, strict=False)
    bcpformat.read(tmp_path / "c", into=template, rename=lambda n: "module." + n)

    assert all(t.tolist() == [1, 1] for t in template.values())


def test_t13_tied_tensors_are_stored_once_and_come_back_tied(tmp_path: Path) -> None:
    w = torch.arange(300_000.0)
    report = bcpformat.write(tmp_path / "c", {"emb": w, "head": w})

    back = bcpformat.read(tmp_path / "c")

    assert report.raw_bytes == w.nbytes
    assert back["emb"] is back["head"]
    assert torch.equal(back["emb"], w)


def test_t13_tied_tensors_load_into_tied_and_untied_templates(tmp_path: Path) -> None:
    w = torch.arange(5.0)
    bcpformat.write(tmp_path / "c", {"emb": w, "head": w})
    shared = torch.zeros(5)
    tied = {"emb": shared, "head": shared}
    untied = {"emb": torch.zeros(5), "head": torch.zeros(5)}

    bcpformat.read(tmp_path / "c", into=tied)
    bcpformat.read(tmp_path / "c", into=untied)

    assert tied["emb"] is tied["head"]
    assert torch.equal(shared, w)
    assert torch.equal(untied["emb"], w)
    assert torch.equal(untied["head"], w)


def test_t13_untied_tensors_are_refused_by_a_tied_template(tmp_path: Path) -> None:
    bcpformat.write(tmp_path / "c", {"emb": torch.ones(3), "head": torch.zeros(3)})
    shared = torch.full((3,), 7.0)

    with pytest.raises(bcpformat.MismatchError, match="shares memory"):
        bcpformat.read(tmp_path / "c", into={"emb": shared, "head": shared})

    assert shared.tolist() == [7, 7, 7]


def test_t14_overlapping_views_are_stored_by_value_and_nothing_more(tmp_path: Path) -> None:
    base = torch.arange(10_000_000.0)
    report = bcpformat.write(tmp_path / "c", {"a": base[0:10], "b": base[5:15]})

    back = bcpformat.read(tmp_path / "c")

    assert report.raw_bytes == 80
    assert back["a"].tolist() == list(range(10))
    assert back["b"].tolist() == list(range(5, 15))


def test_t15_any_strides_give_the_logical_values(tmp_path: Path) -> None:
    base = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).float()
    state = {
        "transposed": base.permute(3, 1, 0, 2),
        "expanded": torch.arange(3.0).reshape(3, 1).expand(3, 7),
        "step": base.flatten()[1::2],
        "channels_last": base.contiguous(memory_format=torch.channels_last),
        "conjugate": torch.complex(base, base).conj(),
        "negative": torch.complex(base, base).conj().imag,
    }
    bcpformat.write(tmp_path / "c", state)

    back = bcpformat.read(tmp_path / "c")

    for name, value in state.items():
        assert torch.equal(back[name], value), name
        assert back[name].is_contiguous(), name


def test_t15_strided_destinations_are_filled_in_place(tmp_path: Path) -> None:
    value = torch.arange(24.0).reshape(4, 6)
    bcpformat.write(tmp_path / "c", {"w": value})
    base = torch.zeros(6, 8)
    template = {"w": base.t()[1:5]}

    bcpformat.read(tmp_path / "c", into=template)

    assert torch.equal(template["w"], value)
    assert torch.equal(base[:, 1:5].t(), value)
    assert not base[:, 5:].any()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    state = {
        "big": torch.arange(300_000.0),
        "small": torch.arange(10),
        "n": 1,
    }
    bcpformat.write(tmp_path / "small", state, step=1)
    return tmp_path / "small"


@pytest.mark.parametrize("place", ["start", "middle", "last", "manifest"])
def test_t16_one_flipped_bit_is_found_and_named(
    small: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with bcpformat.open(small) as ckpt:
        nbytes = ckpt["big"].nbytes
    positions = {"start": 4096, "middle": 4096 + nbytes // 2, "last": 4096 + nbytes - 1}
    if place == "manifest":
        flip(small / "manifest.bcp", 200)
    else:
        flip(only_data_file(small), positions[place])

    with pytest.raises(bcpformat.ChecksumError) as caught:
        bcpformat.read(small)
    status = cli(["validate", str(small), "--json"])

    assert status == 1
    found = json.loads(capsys.readouterr().out)
    assert len(found["problems"]) == 1
    if place != "manifest":
        assert "'big'" in str(caught.value)
        assert "block" in str(caught.value)
        assert found["damaged"] == ["big"]


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        ("short", ErrorCode.TRUNCATED),
        ("empty", ErrorCode.TRUNCATED),
        ("gone", ErrorCode.FILE_MISSING),
        ("long", ErrorCode.FILE_LENGTH),
    ],
)
def test_t17_a_file_that_lost_or_won_bytes_is_refused(
    small: Path, damage: str, code: ErrorCode
) -> None:
    victim = only_data_file(small)
    data = victim.read_bytes()
    if damage == "gone":
        victim.unlink()
    else:
        victim.write_bytes({"short": data[:-1], "empty": b"", "long": data + b"x"}[damage])

    with pytest.raises(bcpformat.BcpError) as caught:
        bcpformat.read(small)
    report = bcpformat.validate(small)

    assert caught.value.code is code
    assert victim.name in str(caught.value)
    assert [p.code for p in report.problems] == [code]


def test_t34_nothing_is_ever_overwritten(small: Path) -> None:
    """The format knows no overwrite: the report's flag for it does not exist."""
    before = sorted((p, p.stat().st_mtime_ns) for p in small.rglob("*"))

    with pytest.raises(bcpformat.ObjectExistsError) as caught:
        bcpformat.write(small, {"other": torch.ones(1)})

    assert caught.value.code is ErrorCode.EXISTS
    assert sorted((p, p.stat().st_mtime_ns) for p in small.rglob("*")) == before


@pytest.mark.parametrize("shape", [(3, 4), (3, 5)])
def test_t35_four_bit_elements_are_exact_at_any_index(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    bits = np.arange(shape[0] * shape[1], dtype=np.uint8).reshape(shape) % 16
    value = bits.view(ml_dtypes.float4_e2m1fn)
    bcpformat.write(tmp_path / "c", {"w": value})

    with bcpformat.open(tmp_path / "c") as ckpt:
        whole = ckpt["w"].read()
        odd = ckpt["w"][:, 1:4]
        one = ckpt["w"][2, 3]

    assert whole.dtype == value.dtype
    assert np.array_equal(whole.view(np.uint8), bits)
    assert np.array_equal(odd.view(np.uint8), bits[:, 1:4])
    assert one.view(np.uint8) == bits[2, 3]


def test_t35_pairs_of_torch_come_back_as_pairs(tmp_path: Path) -> None:
    raw = torch.arange(12, dtype=torch.uint8).reshape(3, 4)
    bcpformat.write(tmp_path / "c", {"w": raw.view(torch.float4_e2m1fn_x2)})

    back = bcpformat.read(tmp_path / "c")["w"]
    with bcpformat.open(tmp_path / "c") as ckpt:
        shape, first = ckpt["w"].shape, ckpt["w"][0, 2:4].view(np.uint8).tolist()

    assert torch.equal(back.view(torch.uint8), raw)
    assert shape == (3, 8)
    assert first == [1, 0]


ODD_NAMES = [
    "",
    "../../x",
    "a/b",
    "a\0b",
    "x" * 5000,
    "\u00e9",
    "e\u0301",
    "A",
    "a",
    "line\nbreak",
    "%2F",
    "\u202egnp.exe",
    "\x9b31m",
]


def test_t36_odd_names_round_trip_and_stay_inside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {name: torch.tensor(float(i)) for i, name in enumerate(ODD_NAMES)}
    bcpformat.write(tmp_path / "root" / "c", state)

    back = bcpformat.read(tmp_path / "root" / "c")
    assert cli(["inspect", str(tmp_path / "root" / "c")]) == 0
    shown = capsys.readouterr().out
    assert cli(["inspect", str(tmp_path / "root" / "c"), "--json"]) == 0
    parsed = json.loads(capsys.readouterr().out)

    assert list(back) == ODD_NAMES
    assert [t.item() for t in back.values()] == list(range(len(ODD_NAMES)))
    assert [p.name for p in tmp_path.iterdir()] == ["root"]
    assert not any(c in shown for c in "\0\x9b\u202e")
    assert parsed


@pytest.mark.parametrize("state", [{}, {"n": 1, "s": "text"}, {"z": torch.zeros(0, 5)}])
def test_t38_empty_and_metadata_only_checkpoints_are_valid(
    tmp_path: Path, state: dict[str, object]
) -> None:
    bcpformat.write(tmp_path / "c", state)

    assert bcpformat.validate(tmp_path / "c").ok
    back = bcpformat.read(tmp_path / "c")
    assert list(back) == list(state)


def test_t38_shapes_with_a_zero_come_back(tmp_path: Path) -> None:
    state = {"a": torch.zeros(0, 5), "b": torch.zeros(3, 0, 2, dtype=torch.int8)}
    bcpformat.write(tmp_path / "c", state)

    back = bcpformat.read(tmp_path / "c")

    assert back["a"].shape == (0, 5)
    assert back["b"].shape == (3, 0, 2)
    assert back["b"].dtype == torch.int8


def test_t41_names_and_shapes_need_no_data_file_and_one_request() -> None:
    store = FaultyStore(MemoryStore())
    bcpformat.write(store, {f"w{i}": torch.zeros(10) for i in range(100)})
    before = len(store.reads)

    with bcpformat.open(store) as ckpt:
        shapes = {name: ckpt[name].shape for name in ckpt}

    reads = store.reads[before:]
    assert len(shapes) == 100
    assert [r[0] for r in reads] == ["manifest.bcp"] * len(reads)
    assert len(reads) <= 2


def test_t46_bytes_leaves_are_whole(tmp_path: Path) -> None:
    stream = io.BytesIO(b"0123456789")
    stream.seek(5)
    bcpformat.write(tmp_path / "c", {"empty": b"", "stream": stream, "only_saved": b"x"})
    template = {"empty": b"?", "stream": io.BytesIO()}

    back = bcpformat.read(tmp_path / "c")
    with pytest.raises(bcpformat.MismatchError, match="only_saved"):
        bcpformat.read(tmp_path / "c", into=template)
    bcpformat.read(tmp_path / "c", into=template, filter=["empty", "stream"])

    assert stream.tell() == 5
    assert back["empty"] == b""
    assert back["stream"].getvalue() == b"0123456789"
    assert template["empty"] == b""
    assert template["stream"].getvalue() == b"0123456789"


def test_t49_saving_what_was_read_gives_the_same_payload(tmp_path: Path) -> None:
    state = {"w": torch.randn(400, 1000), "b": torch.randn(7), "deep": [{"x": torch.ones(3)}]}
    bcpformat.write(tmp_path / "a", state)
    bcpformat.write(tmp_path / "b", bcpformat.read(tmp_path / "a"))

    with bcpformat.open(tmp_path / "a") as a, bcpformat.open(tmp_path / "b") as b:
        assert [f.digest for f in a.manifest.files] == [f.digest for f in b.manifest.files]
        assert a.manifest.state == b.manifest.state
        assert a.manifest.tensors.names == b.manifest.tensors.names


def test_t53_damage_is_confined_to_what_it_touches(tmp_path: Path) -> None:
    value = torch.arange(2**20)  # 8 MiB: blocks of 256 KiB
    bcpformat.write(tmp_path / "c", {"w": value})
    victim = only_data_file(tmp_path / "c")
    block = 2**18
    flip(victim, 4096 + 3 * block)
    flip(victim, 4096 + 9 * block)
    rows = block // 8

    with bcpformat.open(tmp_path / "c") as ckpt:
        clean = ckpt["w"][: 3 * rows]
        between = ckpt["w"][4 * rows : 9 * rows]
        with pytest.raises(bcpformat.ChecksumError, match="block 3"):
            ckpt["w"][3 * rows]
        with pytest.raises(bcpformat.ChecksumError, match="block 9"):
            ckpt["w"][9 * rows : 9 * rows + 1]
        with pytest.raises(bcpformat.ChecksumError):
            ckpt["w"].read()

    assert np.array_equal(clean, value[: 3 * rows].numpy())
    assert np.array_equal(between, value[4 * rows : 9 * rows].numpy())


def test_t54_big_endian_arrays_are_swapped_and_nothing_else_is(tmp_path: Path) -> None:
    """The format has one byte order: arrays of the other one are swapped on write."""
    values = np.array([1.5, -2.25, 1e300], dtype=">f8")
    bcpformat.write(tmp_path / "c", {"w": values})

    back = bcpformat.read(tmp_path / "c", as_numpy=True)["w"]
    stored = only_data_file(tmp_path / "c").read_bytes()[4096 : 4096 + 24]

    assert back.dtype == np.dtype("<f8")
    assert back.tolist() == values.tolist()
    assert stored == struct.pack("<3d", 1.5, -2.25, 1e300)


def test_a_copied_checkpoint_is_valid_where_it_lies(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "elsewhere")

    assert bcpformat.validate(tmp_path / "elsewhere").ok
