"""The benchmark measures and cleans up; its figures are not judged here."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path

import pytest

from bcpformat.cli import bench
from bcpformat.cli.bench_manifest import own_runs_manifest, packed_manifest
from bcpformat.cli.bench_report import (
    Goal,
    Row,
    Table,
    at_least,
    at_most,
    print_table,
    table_document,
)
from bcpformat.cli.bench_state import adam_state, llama_shapes, total_bytes
from bcpformat.cli.terminal import Style
from bcpformat.errors import InvalidArgumentError, ObjectExistsError, StorageError
from bcpformat.model.checks import check_manifest
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.wire import decode_manifest, encode_manifest

PEERS = {"torch.save + fsync", "safetensors save_file + fsync"}


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args(words))


def measured(directory: Path, *words: str) -> dict[str, dict[str, list[dict[str, object]]]]:
    out = directory / "result.json"
    assert run("--quick", "--dir", str(directory), "--json", str(out), *words) == 0
    document: dict[str, dict[str, dict[str, list[dict[str, object]]]]] = json.loads(out.read_text())
    return document["groups"]


@pytest.mark.slow
@pytest.mark.parametrize("group", bench.GROUPS)
def test_every_group_measures_prints_a_goal_and_leaves_nothing(
    group: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = measured(tmp_path, "--size", "4MB", "--only", group)

    printed = capsys.readouterr()
    assert printed.err == ""
    assert all(f"{group}: " in printed.out and word in printed.out for word in ("goal", "case"))
    assert os.listdir(tmp_path) == ["result.json"]
    assert groups
    for table in groups.values():
        assert any(case["goal"] for case in table["cases"])
        assert all({"case", "fsync", "verifies"} <= case.keys() for case in table["cases"])


@pytest.mark.slow
def test_the_document_has_the_machine_and_every_round(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    words = ("--quick", "--size", "1MB", "--rounds", "3", "--only", "write", "--dir", str(tmp_path))
    run(*words, "--json", str(out))

    document = json.loads(out.read_text())
    assert document["machine"].keys() >= {"date", "processor", "file_system", "packages", "load"}
    assert document["rounds"] == 3
    cases = document["groups"]["write"]["cases"]
    assert all(len(case["wall_seconds"]) == len(case["cpu_seconds"]) == 3 for case in cases)
    assert all(case["first_wall_seconds"] > 0 and case["ratio_to_raw"] > 0 for case in cases)


@pytest.mark.slow
def test_installed_peers_are_measured_with_fsync(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    cases = measured(tmp_path, "--size", "1MB", "--only", "write")["write"]["cases"]

    assert {case["case"] for case in cases} >= PEERS
    assert all(case["fsync"] for case in cases)


@pytest.mark.slow
def test_only_bcpformat_verifies_what_it_reads(tmp_path: Path) -> None:
    cases = measured(tmp_path, "--size", "1MB", "--only", "read")["read"]["cases"]

    assert [case["case"] for case in cases if case["verifies"]] == ["bcpformat"]


@pytest.mark.slow
def test_a_tensor_costs_its_bytes_and_the_index(tmp_path: Path) -> None:
    cases = measured(tmp_path, "--size", "8MB", "--only", "partial")["partial"]["cases"]

    tensor = cases[0]
    asked, index, nbytes = (tensor[k] for k in ("bytes_asked", "bytes_index", "nbytes"))
    assert isinstance(asked, int)
    assert isinstance(index, int)
    assert isinstance(nbytes, int)
    assert nbytes == asked - index


@pytest.mark.slow
def test_missing_peers_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bcpformat.cli import bench_contest

    monkeypatch.setattr(bench_contest, "_installed", lambda _: False)
    cases = measured(tmp_path, "--size", "1MB", "--only", "read")["read"]["cases"]

    assert "not installed: torch, safetensors" in capsys.readouterr().out
    assert [c["case"] for c in cases if not str(c["case"]).startswith("raw")] == ["bcpformat"]


@pytest.mark.slow
def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bcpformat.cli import bench_contest

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_contest, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("--quick", "--size", "1MB", "--only", "read", "--dir", str(tmp_path))

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "words",
    [
        ("--only", "write,fast"),
        ("--only", ","),
        ("--rounds", "0"),
        ("--size", "999"),
        ("--size", "x"),
    ],
)
def test_arguments_out_of_range_are_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError):
        run("--quick", "--dir", str(tmp_path), *words)


def test_a_result_is_never_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    out.write_text("kept")

    with pytest.raises(ObjectExistsError):
        run("--quick", "--dir", str(tmp_path), "--json", str(out))
    assert out.read_text() == "kept"


@pytest.mark.parametrize(("place", "size"), [(".", "100000TB"), ("absent", "1MB")])
def test_space_is_checked_before_anything_is_measured(
    place: str, size: str, tmp_path: Path
) -> None:
    with pytest.raises(StorageError):
        run("--dir", str(tmp_path / place), "--size", size, "--only", "read")


def test_goals_are_met_at_their_bound() -> None:
    assert at_most(1.25, 1.25, "1.25x") == Goal("<= 1.25x", True)
    assert at_most(1.26, 1.25, "1.25x") == Goal("<= 1.25x", False)
    assert at_least(1.45, 1.45, "1.45") == Goal(">= 1.45", True)
    assert not at_least(1.44, 1.45, "1.45").met


@pytest.mark.parametrize(("judged", "verdict"), [(True, ["met", "missed"]), (False, [])])
def test_a_table_has_verdicts_only_if_its_goals_are_judged(
    capsys: pytest.CaptureFixture[str], *, judged: bool, verdict: list[str]
) -> None:
    rows = [Row(cells=("a", "1.2"), data={}, goal=at_most(1.2, 1.25, "1.25x raw"))]
    rows += [Row(cells=("b", "1.3"), data={}, goal=Goal("<= 1.25x raw, <= 2 s", False, "<= 2 s"))]
    table = Table(name="t", title="a table", columns=("case", "x raw"), rows=rows)

    print_table(table, Style(sys.stdout), judged=judged)
    cases = table_document(table, judged=judged)["cases"]

    shown = capsys.readouterr().out
    assert shown.count("<= 1.25x raw") == 2
    assert ("missed (<= 2 s)" in shown) is judged
    assert re.findall("met|missed", shown) == verdict
    assert isinstance(cases, list)
    assert [case["goal"]["met"] for case in cases] == ([True, False] if judged else [None, None])


@pytest.mark.slow
def test_a_quick_run_says_that_it_does_not_judge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = measured(tmp_path, "--size", "1MB", "--only", "codec")["codec"]["cases"]

    shown = capsys.readouterr().out
    assert "goals are for full sizes" in shown
    assert re.findall(": met|: missed", shown) == []
    assert {case["goal"]["met"] for case in cases if isinstance(case["goal"], dict)} == {None}


@pytest.mark.parametrize("make", [packed_manifest, own_runs_manifest])
def test_the_made_manifest_is_valid(make: object) -> None:
    assert callable(make)
    manifest = make(3, 50)
    data = encode_manifest(manifest, codec="zstd")

    assert check_manifest(manifest, limits=DEFAULT_LIMITS) == []
    decoded = decode_manifest(data, key="manifest.bcp", limits=DEFAULT_LIMITS)
    assert encode_manifest(decoded, codec="zstd") == data
    assert len(decoded.chunks) == 150


@pytest.mark.parametrize("num_parameters", [10**5, 10**7, 71 * 10**6, 10**9])
def test_a_model_has_about_the_parameters_asked_for(num_parameters: int) -> None:
    total = 0
    for shape in llama_shapes(num_parameters).values():
        size = 1
        for extent in shape:
            size *= extent
        total += size

    assert total == pytest.approx(num_parameters, rel=0.02)


def test_a_state_has_about_the_bytes_asked_for_and_no_two_equal_tensors() -> None:
    arrays = adam_state(4 * 10**6)
    data = {a.tobytes() for members in arrays.values() for a in members.values()}

    assert total_bytes(arrays) == pytest.approx(4 * 10**6, rel=0.02)
    assert len(data) == sum(map(len, arrays.values()))
