from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bcpformat
from bcpformat.cli import main
from bcpformat.cli.picture import MOST_RECTANGLES, MOST_TENSORS, draw
from bcpformat.cli.picture_side import MOST_BARS
from bcpformat.cli.picture_svg import colours, fitted
from bcpformat.engine.load import load_manifest
from bcpformat.errors import InvalidArgumentError
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.model.manifest import Manifest, PerRankTable, ints
from bcpformat.model.names import display
from bcpformat.model.region import Box, Region
from tests.cli.pictures import cut_matrix, grid, with_files
from tests.plan.layouts import Saved, in_own_runs

SVG = "{http://www.w3.org/2000/svg}"


def parsed(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)


def panels(picture: str) -> list[ElementTree.Element]:
    found = parsed(picture).findall(f"{SVG}svg")
    return [part for part in found if part.find(f"{SVG}text[@class='name']") is not None]


def texts(element: ElementTree.Element, kind: str) -> list[str]:
    return [part.text or "" for part in element.iter(f"{SVG}text") if part.get("class") == kind]


def drawn(panel: ElementTree.Element) -> list[ElementTree.Element]:
    """Return the rectangles that stand for regions."""
    return [part for part in panel.iter(f"{SVG}rect") if part.find(f"{SVG}title") is not None]


def tip(rectangle: ElementTree.Element) -> list[str]:
    return (rectangle.findtext(f"{SVG}title") or "").split("\n")


def area(rectangle: ElementTree.Element) -> float:
    return float(rectangle.get("width", "")) * float(rectangle.get("height", ""))


def test_each_chunk_is_a_rectangle_and_together_they_fill_the_frame() -> None:
    manifest = in_own_runs([Saved("float32", (30, 70), grid((30, 70), (2, 7)))])

    (panel,) = panels(draw(with_files(manifest, [n % 4 for n in range(14)])))

    frame = panel.find(f"{SVG}rect[@class='frame']")
    assert frame is not None
    assert len(drawn(panel)) == 14
    assert sum(map(area, drawn(panel))) == pytest.approx(area(frame), rel=1e-3)
    assert {part.get("fill") for part in drawn(panel)} == set(colours(4))


def test_a_flat_range_is_the_few_boxes_that_hold_it() -> None:
    whole = Box.whole((10, 10))
    ranges = [Region(box=whole, start=0, count=35), Region(box=whole, start=35, count=65)]

    (panel,) = panels(draw(in_own_runs([Saved("uint8", (10, 10), ranges)])))

    assert len(drawn(panel)) == 4
    assert "elements 35 to 99 of this box, in row-major order" in tip(drawn(panel)[-1])


def test_a_rectangle_says_where_it_is_and_how_it_is_stored() -> None:
    manifest = in_own_runs([Saved("float32", (4, 6), grid((4, 6), (2, 1)))])

    (panel,) = panels(draw(with_files(manifest, [0, 1])))

    assert tip(drawn(panel)[1]) == [
        "t000",
        "origin [2, 0], extent [2, 6]",
        "file 1: data/000001.bcd",
        "48 B in run 1: 48 B, raw, 48 B stored",
    ]


@pytest.mark.parametrize("shape", [(), (1, 1), (5,), (0, 3), (2, 1, 3, 1, 2)])
def test_a_tensor_of_any_number_of_axes_is_drawn(shape: tuple[int, ...]) -> None:
    whole = [] if 0 in shape else [Region.whole(Box.whole(shape))]

    (panel,) = panels(draw(in_own_runs([Saved("int4", shape, whole)])))

    assert len(drawn(panel)) == len(whole)


@pytest.mark.slow
@given(st.lists(st.text(min_size=1), min_size=1, max_size=4, unique=True), st.text())
def test_any_name_and_title_makes_a_well_formed_picture_that_shows_them(
    names: list[str], title: str
) -> None:
    names.sort(key=str.encode)
    manifest = in_own_runs([Saved("uint8", (2,), grid((2,), (2,))) for _ in names])
    manifest = replace(manifest, tensors=replace(manifest.tensors, names=names))

    picture = draw(manifest, title=title)

    shown = [texts(panel, "name")[0] for panel in panels(picture)]
    assert shown == [fitted(name, 40) for name in names]
    assert texts(parsed(picture), "title") == [fitted(title, 70) or "checkpoint"]


@given(st.text(max_size=60), st.integers(1, 50))
def test_text_fits_its_columns_and_is_whole_if_there_is_room(name: str, columns: int) -> None:
    found = fitted(name, columns)

    assert len(found) <= columns
    if len(display(name)) * 2 <= columns:
        assert found == display(name)


def test_the_longest_name_does_not_make_a_large_picture() -> None:
    manifest = in_own_runs([Saved("uint8", (1000,), grid((1000,), (1000,)))])
    manifest = replace(manifest, tensors=replace(manifest.tensors, names=["é" * 32_000]))

    assert len(draw(manifest)) < 500_000


def test_a_tensor_of_100000_chunks_in_one_file_is_one_rectangle() -> None:
    (panel,) = panels(draw(cut_matrix(250, 400, files=1)))

    assert len(drawn(panel)) == 1
    assert "neighbours of one file are drawn as one" in texts(panel, "dim")


def test_a_tensor_of_100000_chunks_in_turn_is_sampled_and_says_so() -> None:
    (panel,) = panels(draw(cut_matrix(250, 400, files=7)))

    assert 500 < len(drawn(panel)) <= MOST_RECTANGLES
    assert "many pieces: sampled on a grid, edges are not exact" in texts(panel, "dim")


def test_the_largest_tensors_are_drawn_and_the_picture_says_of_how_many() -> None:
    count = MOST_TENSORS + 5
    manifest = in_own_runs([Saved("uint8", (n + 1,), grid((n + 1,), (1,))) for n in range(count)])

    default, chosen = draw(manifest), draw(manifest, names="t*")

    assert texts(panels(default)[0], "name") == [f"t{count - 1:03}"]
    assert len(panels(default)) == 12
    assert len(panels(chosen)) == MOST_TENSORS
    assert f"drawn: the {MOST_TENSORS} largest of {count}" in chosen


def test_a_checkpoint_without_tensors_has_a_picture() -> None:
    picture = draw(in_own_runs([]))

    assert "no tensor to draw" in texts(parsed(picture), "dim")


def test_many_files_share_bars_and_few_say_their_rank() -> None:
    manifest = in_own_runs([Saved("uint8", (90,), grid((90,), (90,)))])
    many = draw(with_files(manifest, range(90)))
    of_rank = PerRankTable(
        path=ints([0]), rank=ints([7]), run=ints([1]), offset=ints([0]), nbytes=ints([1])
    )
    few = draw(replace(with_files(manifest, [n % 2 for n in range(90)]), per_rank=of_rank))

    assert 12 < len(texts(parsed(many), "label")) <= MOST_BARS
    assert texts(parsed(few), "label") == ["file 0", "file 1 (rank 7)"]


def test_colours_differ_and_beyond_few_files_run_through_the_hues() -> None:
    assert len(set(colours(10))) == 10
    assert len(set(colours(64))) == 64


# ---- who reads -------------------------------------------------------------------------------


def rows(low: int, high: int) -> Box:
    return Box(origin=(low, 0), shape=(high - low, 4))


def two_files() -> Manifest:
    return with_files(in_own_runs([Saved("uint8", (8, 4), grid((8, 4), (2, 1)))]), [0, 1])


def read_by(picture: str) -> dict[str, str | None]:
    """Return what the readers' rectangles say, and their colour."""
    (panel,) = panels(picture)
    found = {"; ".join(tip(part)): part.get("fill") for part in drawn(panel)}
    return {words: fill for words, fill in found.items() if words.startswith("read by")}


def test_readers_are_drawn_beside_the_writers() -> None:
    readers = [{"t000": [rows(0, 3)]}, {"t000": [rows(3, 8)]}, {}]

    picture = draw(two_files(), readers=readers)

    blue, orange = colours(2)
    assert read_by(picture) == {
        "read by 0; origin [0, 0], extent [3, 4]": blue,
        "read by 1; origin [3, 0], extent [5, 4]": orange,
    }
    assert texts(parsed(picture), "dim end")[2:] == [
        "12 B, 1 file",
        "20 B, 2 files",
        "0 B, 0 files",
    ]


def test_readers_of_the_same_box_share_a_grey_rectangle() -> None:
    readers = [{"t000": [rows(0, 8)]}, {"t000": [rows(0, 8), rows(0, 8)]}, {"t000": [rows(2, 4)]}]

    found = read_by(draw(two_files(), readers=readers))

    assert list(found) == [
        "read by 0-1; origin [0, 0], extent [8, 4]",
        "read by 2; origin [2, 0], extent [2, 4]",  # drawn over the first, which is larger
    ]
    assert found["read by 0-1; origin [0, 0], extent [8, 4]"] not in colours(3)


def test_many_readers_share_bars_and_are_named_in_ranges() -> None:
    of_all, of_some = {"t000": [rows(0, 8)]}, {"t000": [rows(0, 2)]}
    readers = [of_all if n < 48 else of_some if n % 3 else {} for n in range(96)]

    picture = draw(two_files(), readers=readers)

    labels = texts(parsed(picture), "label")[2:]
    assert len(labels) == MOST_BARS
    assert (labels[0], labels[-1]) == ("readers 0-3", "readers 92-95")
    assert texts(parsed(picture), "dim end")[-1] == "up to 8 B, 0-1 files"
    first, second = read_by(picture)
    assert first.startswith("read by 0-47;")
    assert second.startswith("read by 49-50, 52-53, 55-56,")
    assert "... (32 in all);" in second


def test_many_boxes_of_readers_are_merged_or_sampled_too() -> None:
    manifest = in_own_runs([Saved("uint8", (3000, 2), grid((3000, 2), (1, 1)))])
    lines = [Box(origin=(row, 0), shape=(1, 2)) for row in range(3000)]

    in_halves = draw(manifest, readers=[{"t000": lines[:1500]}, {"t000": lines[1500:]}])
    in_turn = draw(manifest, readers=[{"t000": lines[0::2]}, {"t000": lines[1::2]}])

    blue, orange = colours(2)
    assert read_by(in_halves) == {"read by 0": blue, "read by 1": orange}
    assert "neighbours of one reader are drawn as one" in in_halves
    (panel,) = panels(in_turn)
    assert 1000 < len(drawn(panel)) <= MOST_RECTANGLES + 1
    assert "many pieces: sampled on a grid, edges are not exact" in texts(panel, "dim")


@pytest.mark.parametrize(
    "reader", [{"u": [rows(0, 1)]}, {"t000": [rows(0, 9)]}, {"t000": [Box.whole((2,))]}]
)
def test_a_reader_of_what_there_is_not_is_refused(reader: dict[str, list[Box]]) -> None:
    with pytest.raises(InvalidArgumentError, match="reader 1 wants"):
        draw(two_files(), readers=[{}, reader])


# ---- the command -----------------------------------------------------------------------------


@pytest.fixture
def location(tmp_path: Path) -> str:
    w = np.ones((4, 3), np.float32)
    bcpformat.write(tmp_path / "c", {"w": w, "tied": w, "b": np.ones(5), "n": 1}, step=2)
    return str(tmp_path / "c")


def test_inspect_draws_a_checkpoint_to_a_new_file(
    location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.svg"

    assert main(["inspect", location, "--svg", str(out)]) == 0

    picture = out.read_text("utf-8")
    assert f"picture: {out}" in capsys.readouterr().out
    assert [texts(panel, "name") for panel in panels(picture)] == [["w"], ["b"]]
    store = bcpformat.LocalStore(location)
    manifest = load_manifest(store, limits=DEFAULT_LIMITS)
    assert picture == draw(manifest, title=location)


def test_inspect_draws_the_tensors_whose_name_or_alias_matches_and_prints_json_alone(
    location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.svg"

    assert main(["inspect", location, "--names", "ti*", "--json", "--svg", str(out)]) == 0

    assert json.loads(capsys.readouterr().out)["is_checkpoint"]
    assert [texts(panel, "name") for panel in panels(out.read_text("utf-8"))] == [["w"]]


def test_inspect_neither_overwrites_a_file_nor_draws_nothing(
    location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken, out = tmp_path / "taken.svg", tmp_path / "out.svg"
    taken.write_text("mine")

    assert main(["inspect", location, "--svg", str(taken)]) == 2
    assert main(["inspect", location, "--names", "x", "--svg", str(out)]) == 1

    assert taken.read_text() == "mine"
    assert not out.exists()
    assert "E_EXISTS" in capsys.readouterr().err
