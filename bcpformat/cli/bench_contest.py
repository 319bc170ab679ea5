"""One state and all that can write and read it: raw storage, bcpformat, other libraries."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from bcpformat.api.read import read
from bcpformat.api.save import write
from bcpformat.cli.bench_measure import Case, evict, make_durable
from bcpformat.cli.bench_raw import RawFile
from bcpformat.cli.bench_state import Arrays, check_equal, clear, flat, total_bytes, zeros_like
from bcpformat.model.closing import Closing

OURS = "bcpformat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Another library that can save and load the state.

    Attributes:
        name: How it saves, for people.
        file: Name of the file it writes.
        save: Saves the state to a path.
        loads: Name of a way to load to the function that loads from a path into the target.
    """

    name: str
    file: str
    save: Callable[[str], None]
    loads: Mapping[str, Callable[[str], None]]


class Contest(Closing):
    """One state, a target of the same shapes, and all that can write and read them."""

    def __init__(self, folder: str, arrays: Arrays) -> None:
        self._folder = folder
        self._arrays = arrays
        self._target = zeros_like(arrays)
        self.nbytes = total_bytes(arrays)
        self.raw = RawFile(self._path("raw"), self.nbytes)
        self.missing: list[str] = []
        self._state: Mapping[str, Mapping[str, Any]] = arrays  # Any: arrays, or tensors over them
        self._into: Mapping[str, Mapping[str, Any]] = self._target
        self._libraries = self._find_libraries()

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _find_libraries(self) -> list[Library]:
        if not _installed("torch"):
            self.missing = ["torch", "safetensors (measured with torch)"]
            return []
        from bcpformat.torch import peers as torch_peers

        tensors, target = (
            {
                group: {name: torch_peers.tensor_over(array) for name, array in members.items()}
                for group, members in groups.items()
            }
            for groups in (self._arrays, self._target)
        )
        self._state, self._into = tensors, target
        found = [
            Library(
                name="torch.save",
                file="torch.pt",
                save=lambda path: torch_peers.save(tensors, path),
                loads={
                    "torch.load + copy": lambda path: torch_peers.load_into(
                        target, path, mmap=False
                    ),
                    "torch.load(mmap=True) + copy": lambda path: torch_peers.load_into(
                        target, path, mmap=True
                    ),
                },
            )
        ]
        if not _installed("safetensors"):
            self.missing = ["safetensors"]
            return found
        from bcpformat.interop import peers as safetensors_peers

        named, named_target = flat(tensors), flat(target)
        found.append(
            Library(
                name="safetensors save_file",
                file="flat.safetensors",
                save=lambda path: safetensors_peers.save(named, path),
                loads={
                    "safetensors safe_open + copy": lambda path: safetensors_peers.load_into(
                        named_target, path
                    )
                },
            )
        )
        return found

    def _raw_name(self, threads: int) -> str:
        way = "O_DIRECT" if self.raw.direct else "page cache"
        return f"raw, {way}, {threads} thread{'s' if threads > 1 else ''}"

    def writers(self) -> list[Case]:
        """Return the ways to write, each beginning with an empty folder."""
        cases = [
            Case(
                name=self._raw_name(threads),
                run=partial(self.raw.write, threads=threads),
                prepare=self.empty,
                is_raw=True,
                makes_durable=True,
            )
            for threads in (1, 2)
        ]
        cases.append(Case(name=OURS, run=self._write_ours, prepare=self.empty, makes_durable=True))
        cases += [
            Case(
                name=f"{library.name} + fsync",
                run=partial(self._save_durably, library),
                prepare=self.empty,
                makes_durable=True,
            )
            for library in self._libraries
        ]
        return cases

    def readers(self, *, also_one_thread: bool) -> list[Case]:
        """Return the ways to read what `write_all` wrote, each from a cold cache.

        Args:
            also_one_thread: Let the other libraries copy with torch's default threads, and once
                more with one.
        """
        cases = [
            Case(
                name=self._raw_name(threads),
                run=partial(self.raw.read, threads=threads),
                prepare=partial(evict, self._path("raw")),
                is_raw=True,
            )
            for threads in (1, 2)
        ]
        cases.append(
            Case(
                name=OURS,
                run=self._read_ours,
                prepare=partial(evict, self._path("checkpoint")),
                check=self._check,
                verifies=True,
            )
        )
        for library in self._libraries:
            for name, load in library.loads.items():
                run = partial(load, self._path(library.file))
                cases.append(self._peer_reader(name, run, library))
                if also_one_thread:
                    run = partial(_with_one_thread, run)
                    cases.append(self._peer_reader(f"{name}, 1 thread", run, library))
        return cases

    def _peer_reader(self, name: str, run: Callable[[], None], library: Library) -> Case:
        prepare = partial(evict, self._path(library.file))
        return Case(name=name, run=run, prepare=prepare, check=self._check)

    def write_all(self) -> None:
        """Write the files that the readers read."""
        self.empty()
        self.raw.write(threads=2)
        self._write_ours()
        for library in self._libraries:
            self._save_durably(library)

    def _write_ours(self) -> None:
        write(self._path("checkpoint"), self._state, group=None)

    def _read_ours(self) -> None:
        read(self._path("checkpoint"), into=self._into, group=None)

    def _save_durably(self, library: Library) -> None:
        path = self._path(library.file)
        library.save(path)
        make_durable(path)

    def _check(self) -> None:
        check_equal(self._arrays, self._target)
        clear(self._target)

    def empty(self) -> None:
        """Delete every file, and let the system finish what it still has to write."""
        for entry in list(os.scandir(self._folder)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
        os.sync()

    def close(self) -> None:
        """Delete the files and free the buffers."""
        self.empty()
        self.raw.close()

    def notes(self, *sentences: str) -> list[str]:
        """Return sentences below a table, and those that every table needs."""
        found = list(sentences)
        if not self.raw.direct:
            found.append("this file system has no O_DIRECT: raw goes through the page cache")
        if self.missing:
            found.append(f"not installed: {', '.join(self.missing)}")
        return found


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _with_one_thread(run: Callable[[], None]) -> None:
    from bcpformat.torch.peers import one_thread

    with one_thread():
        run()
