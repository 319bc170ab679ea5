"""Keys, names and types of the files of a checkpoint (spec 4)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import bcpformat
from bcpformat import BcpError, LocalStore, MemoryStore
from tests.oracle.make_checkpoint import PLANES, ZSTD, Run
from tests.rules.build import EARLIER, EXPECTED, ONES, ZEROS, Draft, Objects, base
from tests.rules.samples import linked
from tests.rules.verdicts import (
    OPTIONS,
    accept,
    problems,
    read,
    refuse,
    refuse_to_open,
    shown,
    store_of,
)


def write(directory: Path, objects: Objects) -> Path:
    """Write the objects of a checkpoint below a directory, and return it."""
    for key, data in objects.items():
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return directory


def read_at(directory: Path) -> object:
    """Return the values of a checkpoint in a directory."""
    return shown(bcpformat.read(directory, as_numpy=True, options=OPTIONS))


def codes_at(directory: Path) -> list[str]:
    """Return the codes that reading and validation refuse a directory with, in this order."""
    with pytest.raises(BcpError) as caught:
        read_at(directory)
    report = bcpformat.validate(directory, options=OPTIONS)
    return [caught.value.code.value, *(problem.code.value for problem in report.problems)]


def test_a_manifest_with_another_key_is_none() -> None:
    """BCP-FIL-001: E_NOT_COMMITTED."""
    objects = base().encoded()
    for key in ("manifest", "MANIFEST.BCP", "data/manifest.bcp", "manifest.bcp.tmp"):
        moved = {key: objects["manifest.bcp"], **objects}
        del moved["manifest.bcp"]

        refuse_to_open(moved, "E_NOT_COMMITTED")


def test_a_data_file_with_another_key_is_missing() -> None:
    """BCP-FIL-001: E_FILE_MISSING."""
    objects = base().encoded()
    for key in ("a.bcd", "data/A.bcd", "data/data/a.bcd", "Data/a.bcd"):
        moved = {key: objects["data/a.bcd"], **objects}
        del moved["data/a.bcd"]

        refuse(moved, "E_FILE_MISSING")


def renamed(name: str) -> Draft:
    """Return `base()` whose second file has another name, which stands behind ``a.bcd``."""
    draft = base()
    draft.data[name] = draft.data.pop("b.bcd")
    draft.files[1]["name"] = name
    return draft


@pytest.mark.parametrize(
    "name", ["b.bcd", "b-.bcd", "b" * 96 + ".bcd", "b0-9.bcd", "ff" * 16 + "-999999-999999.bcd"]
)
def test_a_name_of_the_form_is_accepted(name: str) -> None:
    """BCP-FIL-002, BCP-FIL-003: whatever it seems to say of attempt and rank."""
    accept(renamed(name))


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".bcd",
        "b",
        "-b.bcd",
        "b.BCD",
        "B.bcd",
        "b.bcd\n",
        "b.bcd ",
        " b.bcd",
        "b.bcdx",
        "b" * 97 + ".bcd",
        "b_c.bcd",
        "b.c.bcd",
        "b/c.bcd",
        "../b.bcd",
        "/etc/b.bcd",
        "b\\c.bcd",
        "b\0.bcd",
        "\u00e9.bcd",
        "\u0661.bcd",
    ],
    ids=repr,
)
def test_a_name_of_another_form_is_refused(name: str) -> None:
    """BCP-FIL-002: E_FILE_NAME, as a whole and before any file is opened."""
    draft = base()
    draft.files[1]["name"] = name

    refuse_to_open(draft, "E_FILE_NAME")


def test_names_of_files_mean_nothing() -> None:
    """BCP-FIL-003: two files that change names change keys, and that is all."""
    draft = base()
    first, second = draft.data.values()
    draft.data = {"a.bcd": second, "b.bcd": first}
    draft.files.reverse()
    draft.files[0]["name"], draft.files[1]["name"] = "a.bcd", "b.bcd"
    draft.runs = [row | {"file": 1 - row["file"]} for row in draft.runs[2:] + draft.runs[:2]]
    for row in (*draft.chunks, *draft.per_rank, *draft.objects):
        row["run"] = (row["run"] + 2) % 4

    accept(draft)


def _link(path: Path) -> None:
    target = path.with_name("target")
    path.rename(target)
    path.symlink_to(target.name)


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("change", [_link, _dangling, _directory, _fifo])
@pytest.mark.parametrize("key", ["manifest.bcp", "data/a.bcd"])
def test_only_regular_files_are_read(
    tmp_path: Path, key: str, change: Callable[[Path], None]
) -> None:
    """BCP-FIL-004: E_FILE_TYPE, without waiting for a FIFO."""
    directory = write(tmp_path / "step", base().encoded())
    assert read_at(directory) == EXPECTED

    change(directory / key)
    assert codes_at(directory) == ["E_FILE_TYPE", "E_FILE_TYPE"]


def test_a_device_is_not_read(tmp_path: Path) -> None:
    """BCP-FIL-004: E_FILE_TYPE; the device is reached by a link, as few may make one."""
    directory = write(tmp_path / "step", base().encoded())
    (directory / "manifest.bcp").unlink()
    (directory / "manifest.bcp").symlink_to("/dev/zero")

    assert codes_at(directory) == ["E_FILE_TYPE", "E_FILE_TYPE"]


def test_a_link_in_place_of_data_is_refused(tmp_path: Path) -> None:
    """BCP-FIL-004: E_FILE_TYPE for every file in it."""
    directory = write(tmp_path / "step", base().encoded())
    (directory / "data").rename(tmp_path / "elsewhere")
    (directory / "data").symlink_to(tmp_path / "elsewhere")

    assert codes_at(directory) == ["E_FILE_TYPE"] * 3


def test_the_prefix_itself_may_be_a_link(tmp_path: Path) -> None:
    """BCP-FIL-004: the rule is about what lies below it."""
    directory = write(tmp_path / "step", base().encoded())
    (tmp_path / "link").symlink_to(directory)

    assert read_at(tmp_path / "link") == EXPECTED


def test_objects_that_the_manifest_does_not_name_are_ignored(tmp_path: Path) -> None:
    """BCP-FIL-005: whatever they are."""
    others = {"data/c.bcd": b"", "data/a.bcd.tmp": b"x", "README": b"", "x/manifest.bcp": b""}
    objects = base().encoded() | others
    directory = write(tmp_path / "step", objects)
    (directory / "data" / "link").symlink_to("/dev/zero")

    accept(objects)
    assert read_at(directory) == EXPECTED
    report = bcpformat.validate(store_of(objects), options=OPTIONS)
    assert sorted(report.unreferenced) == sorted(others)


def test_a_checkpoint_is_read_where_its_objects_were_copied_to(tmp_path: Path) -> None:
    """BCP-FIL-006: to another directory, another store, or below another name."""
    directory = write(tmp_path / "step", base().encoded())
    shutil.copytree(directory, tmp_path / "a" / "copy")
    (tmp_path / "b").mkdir()
    shutil.move(directory, tmp_path / "b" / "moved")
    memory = MemoryStore()
    for info in LocalStore(tmp_path / "b" / "moved").list():
        memory.put_if_absent(info.key, (tmp_path / "b" / "moved" / info.key).read_bytes())

    assert read_at(tmp_path / "a" / "copy") == EXPECTED
    assert read_at(tmp_path / "b" / "moved") == EXPECTED
    assert shown(bcpformat.read(memory, as_numpy=True)) == EXPECTED


def test_two_attempts_never_write_files_of_one_name() -> None:
    """BCP-FIL-007: of the same state, under the same prefix."""
    names = set()
    for _ in range(8):
        store = MemoryStore()
        bcpformat.write(store, {"w": np.zeros(4)})
        names |= {info.key for info in store.list()}

    assert len(names) == 1 + 8


def test_a_file_linked_from_an_earlier_checkpoint_is_part_of_both(tmp_path: Path) -> None:
    """BCP-DAT-009, BCP-MAN-016: with `attempt` and `unused` in its row, and one file on disk."""
    objects = linked().encoded()
    directory = write(tmp_path / "new", objects)
    earlier = tmp_path / "earlier" / "data"
    earlier.mkdir(parents=True)
    (directory / "data" / "b.bcd").rename(earlier / "b.bcd")
    os.link(earlier / "b.bcd", directory / "data" / "b.bcd")

    assert read_at(directory) == EXPECTED
    assert bcpformat.validate(directory, options=OPTIONS).ok


@pytest.mark.slow
def test_a_large_file_may_have_unused_ranges_at_any_position(tmp_path: Path) -> None:
    """BCP-DAT-004: files that are read past the page cache are read at multiples of 4096."""
    draft, whole = base(), Draft(state=None)
    runs = [Run([bytes(2**26)]), Run([ZEROS], codec=ZSTD, block=12)]
    whole.add_file("b.bcd", [*runs, Run([ONES], codec=PLANES, item=2, block=13)], attempt=EARLIER)
    ranges = [4096 + 10, 2**26 - 20]
    draft.files[1] = whole.files[0] | {"unused": ranges}
    draft.data["b.bcd"] = whole.data["b.bcd"]
    draft.runs[2:] = [row | {"file": 1} for row in whole.runs[1:]]
    directory = write(tmp_path / "step", draft.encoded())
    assert read_at(directory) == EXPECTED
    assert bcpformat.validate(directory, options=OPTIONS).ok

    with (directory / "data" / "b.bcd").open("r+b") as file:
        file.seek(ranges[0] - 1)
        file.write(b"\1")
    (problem,) = bcpformat.validate(directory, options=OPTIONS).problems
    assert problem.code.value == "E_PADDING"


def test_damage_of_a_part_that_is_not_used_is_none() -> None:
    """BCP-MAN-016: only what this checkpoint uses is verified; the rest has no meaning for it."""
    draft = linked()
    unused = draft.files[1]["unused"]
    draft.data["b.bcd"].parts[unused[0]] = bytes(unused[1])

    assert read(draft) == EXPECTED
    assert problems(draft) == []
