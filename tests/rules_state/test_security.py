"""Security considerations (spec 19), from the outside and over the source."""

from __future__ import annotations

import ast
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bcpformat
from bcpformat import ErrorCode, LocalStore, MemoryStore
from bcpformat.cli import main as cli
from bcpformat.model.manifest import DATA_PREFIX, MANIFEST_KEY
from bcpformat.testing.faulty_store import FaultyStore, Operation
from tests.rules_state.hostile import (
    OPTIONS,
    data_key,
    manifest_of,
    objects_of,
    read,
    store_of,
    with_documents,
    written,
)

PACKAGE = Path(bcpformat.__file__).parent
W = np.arange(2**19, dtype=np.float32)
STATE = {"w": W, "small": np.arange(5), "r": bcpformat.PerRank(7), "o": "x" * 70_000}


def operations(call: Any, store: MemoryStore) -> list[Operation]:
    """Return the operations of a call on a store."""
    recorded = FaultyStore(store)
    call(recorded)
    return recorded.operations


# ---- nothing is executed -----------------------------------------------------------------------


EXECUTES = frozenset({"eval", "exec", "compile", "__import__", "loads", "Unpickler"})
"""Names of functions that make values of any type; `json.loads` alone is none of them."""


def test_the_package_has_nothing_that_executes_bytes() -> None:
    """BCP-SEC-001: no unpickler, no eval; modules are imported by names of this package only."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for call in (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)):
            source = ast.unparse(call.func)
            name = source.rpartition(".")[2]
            if name in EXECUTES and source not in ("json.loads", "re.compile"):
                found.append(f"{path.name}: {source}")
            if name == "load" and source.startswith(("pickle", "torch")):
                keywords = {k.arg: ast.unparse(k.value) for k in call.keywords}
                assert keywords.get("weights_only") == "True", path
            # the program loads commands, and the package its names, from tables of their own
            if (
                name == "import_module"
                and path.parent.name not in ("cli", PACKAGE.name)
                and (path.name != "__init__.py")
            ):
                assert [type(a) for a in call.args] == [ast.Constant], path

    assert found == []


def test_pickle_bytes_in_place_of_a_value_are_bytes() -> None:
    """BCP-SEC-001: whatever the bytes would do elsewhere."""
    bomb = b"cos\nsystem\n(S'touch /tmp/bcp-was-here'\ntR."
    state = {"a": bomb, "b": bcpformat.PerRank(bomb), "c": np.frombuffer(bomb, np.uint8)}

    back = read(written(state))

    assert (back["a"], back["b"][0], back["c"].tobytes()) == (bomb, bomb, bomb)
    assert not os.path.exists("/tmp/bcp-was-here")


def test_a_module_named_like_something_in_a_file_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BCP-SEC-001: neither by the name of a type, a feature, a media type nor a writer."""
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))

    def change(root: dict[str, Any], sections: dict[str, Any]) -> None:
        root["writer"] = {"name": "evil", "version": "evil"}
        root["optional"] = ["evil"]
        root["ext"] = {"evil": {"evil": "evil"}}
        sections["objects"][0]["media"] = "evil"
        sections["state"] += ["u", [20, "evil", [15, "evil"]]]

    back = read(with_documents(written({"o": "x" * 70_000}), change))

    assert "evil" not in sys.modules
    assert back["o"] == "x" * 70_000


# ---- no second way -----------------------------------------------------------------------------


def test_a_refusal_is_final() -> None:
    """BCP-SEC-002: nothing is read again and less strictly after a block that does not verify."""
    store = written({"w": W})
    objects = objects_of(store)
    data = bytearray(objects[data_key(store)])
    data[int(manifest_of(store).runs.position[0])] ^= 1
    damaged = FaultyStore(store_of({**objects, data_key(store): bytes(data)}))
    before = operations(read, store)

    with pytest.raises(bcpformat.ChecksumError):
        read(damaged)

    assert damaged.operations == before[: len(damaged.operations)]


def test_a_file_is_opened_once_and_read_through_what_was_checked() -> None:
    """BCP-SEC-003: header, block table and blocks come through one handle."""
    store = written(STATE)
    key = data_key(store)

    for call in (read, lambda s: bcpformat.validate(s, options=OPTIONS)):
        names = [o.op for o in operations(call, store) if o.key == key]
        assert names.count("open_reader") == 1
        assert "read" not in names


def test_a_file_that_is_replaced_after_it_was_opened_is_not_read(tmp_path: Path) -> None:
    """BCP-SEC-003."""
    bcpformat.write(tmp_path / "c", {"w": W})
    (path,) = (tmp_path / "c" / "data").iterdir()
    with bcpformat.open(tmp_path / "c") as ckpt:
        assert ckpt["w"][0] == 0
        path.unlink()
        path.write_bytes(b"\xff" * (2**22))

        assert ckpt["w"].read().tobytes() == W.tobytes()

    with pytest.raises(bcpformat.FormatError):
        bcpformat.read(tmp_path / "c")


@pytest.mark.parametrize("name", [MANIFEST_KEY, "data"])
def test_links_are_not_followed(tmp_path: Path, name: str) -> None:
    """BCP-SEC-003, BCP-FIL-004: of a manifest and of `data`, and of a data file below."""
    bcpformat.write(tmp_path / "c", STATE)
    (tmp_path / "c" / name).rename(tmp_path / "elsewhere")
    (tmp_path / "c" / name).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(bcpformat.StorageError) as caught:
        bcpformat.read(tmp_path / "c")

    assert caught.value.code is ErrorCode.FILE_TYPE


def test_bytes_are_read_once_and_the_verified_copy_is_used() -> None:
    """BCP-SEC-004: no byte of a data file is fetched a second time after it was verified."""
    store = written(STATE, codec="zstd")
    key = data_key(store)

    ranges = sorted(
        (o.offset_bytes, o.offset_bytes + o.nbytes)
        for o in operations(lambda s: bcpformat.read(s, filter="w", as_numpy=True), store)
        if o.op == "read_into" and o.key == key
    )

    assert ranges
    assert all(a[1] <= b[0] for a, b in pairwise(ranges))


class ChangingStore(MemoryStore):
    """A store whose data changes after every read, as by somebody else."""

    def open_reader(self, key: str, *, direct: bool) -> Any:
        reader = super().open_reader(key, direct=direct)
        seen: set[int] = set()

        class Reader:
            nbytes = reader.nbytes
            alignment = reader.alignment

            def read_into(self, offset_bytes: int, out: Any) -> int:
                count = reader.read_into(offset_bytes, out)
                if offset_bytes in seen:
                    memoryview(out)[:] = bytes(len(out))
                seen.add(offset_bytes)
                return count

            def close(self) -> None:
                reader.close()

        return Reader()


def test_what_was_verified_is_what_is_returned() -> None:
    """BCP-SEC-004."""
    store = ChangingStore()
    for key, data in objects_of(written({"w": W})).items():
        store.put_if_absent(key, data)

    assert read(store)["w"].tobytes() == W.tobytes()


def test_mapped_memory_is_called_unverified_until_it_is_verified(tmp_path: Path) -> None:
    """BCP-SEC-005: and the documentation says what can happen even then."""
    bcpformat.write(tmp_path / "c", {"w": W})
    (path,) = (tmp_path / "c" / "data").iterdir()
    with bcpformat.open(tmp_path / "c") as ckpt:
        view = ckpt["w"]
        mapped = view.mmap()
        view.verify()
        with path.open("r+b") as file:
            file.seek(int(ckpt.manifest.runs.position[0]))
            file.write(b"\xff")

        assert mapped[0] != 0
        assert not mapped.flags.writeable
        with pytest.raises(bcpformat.ChecksumError):
            view.verify()
    text = " ".join((bcpformat.TensorView.mmap.__doc__ or "").split())
    assert "**unverified**" in text
    assert "changes the elements of the view too, even after that" in text
    assert "cut short while it is mapped ends the process" in text


def test_only_the_manifest_and_the_files_it_names_are_opened() -> None:
    """BCP-SEC-006: whatever else lies there."""
    store = written(STATE)
    allowed = {MANIFEST_KEY, data_key(store)}
    for key in ("data/a.bcd", "secret", "data/x/secret.bcd"):
        store.put_if_absent(key, b"secret")

    for call in (read, lambda s: bcpformat.validate(s, options=OPTIONS)):
        opened = {o.key for o in operations(call, store) if o.op in ("open_reader", "read")}
        assert opened == allowed


@pytest.mark.parametrize("name", ["../secret.bcd", "/etc/passwd", "a/b.bcd", "..", "x.txt", ""])
def test_a_file_row_cannot_name_anything_outside_of_data(tmp_path: Path, name: str) -> None:
    """BCP-SEC-006, BCP-FIL-002."""

    def change(_root: dict[str, Any], sections: dict[str, Any]) -> None:
        sections["files"][0]["name"] = name

    recorded = FaultyStore(with_documents(written(STATE), change))

    with pytest.raises(bcpformat.FormatError) as caught:
        read(recorded)

    assert caught.value.code is ErrorCode.FILE_NAME
    assert {o.key for o in recorded.operations} == {MANIFEST_KEY}


def test_a_tool_escapes_what_could_act_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """BCP-SEC-007: in names, values, metadata and messages."""
    bad = "\x1b\u202e\u200b\u2066\x07\r"
    state = {f"k{bad}": np.zeros(2), "v": bad, "t": bcpformat.PerRank(bad)}
    options = bcpformat.WriteOptions(user={f"u{bad}": bad})
    bcpformat.write(tmp_path / "c", state, options=options)

    for words in (["inspect"], ["validate"], ["inspect", "--json"]):
        cli([words[0], str(tmp_path / "c"), *words[1:]])
        shown = "".join(capsys.readouterr())
        assert "k" in shown or words == ["validate"]
        assert not set(bad) & set(shown)


def test_every_key_that_is_opened_is_below_the_two_of_the_format(tmp_path: Path) -> None:
    """BCP-SEC-006: on a directory too."""
    bcpformat.write(tmp_path / "c", STATE)
    recorded = FaultyStore(LocalStore(tmp_path / "c"))

    read(recorded)

    keys = {o.key for o in recorded.operations}
    assert all(key == MANIFEST_KEY or key.startswith(DATA_PREFIX) for key in keys)
