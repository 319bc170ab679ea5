"""Lazy access to one checkpoint: names, shapes, slices and maps, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bcpformat.api.failures import own_failures
from bcpformat.api.load import read_whole
from bcpformat.api.save import Location
from bcpformat.api.selection import Filter
from bcpformat.engine.checkpoint_reader import CheckpointReader
from bcpformat.engine.memory import Bytes, address_of
from bcpformat.engine.options import ReadOptions
from bcpformat.engine.partial import ManifestReader
from bcpformat.engine.sink import Destinations
from bcpformat.errors import InvalidArgumentError, StateError
from bcpformat.model.checks import CODEC_RAW
from bcpformat.model.closing import Closing
from bcpformat.model.dtypes import DType, unpack_subbyte
from bcpformat.model.manifest import Manifest, Value, ints
from bcpformat.model.progress import silent
from bcpformat.model.region import Box
from bcpformat.plan.tasks import Task
from bcpformat.storage import open_store

Index: TypeAlias = (
    "int | slice | EllipsisType | tuple[int | slice | EllipsisType | None, ...] | None"
)
Array: TypeAlias = npt.NDArray[Any]  # Any: the scalar type is the tensor's
DEFAULT_READ = ReadOptions()


class TensorView:
    """One tensor of an open checkpoint; indexing reads the blocks it needs, verified.

    Attributes:
        name: Its name.
        dtype: Registry name of its data type.
        shape: Global shape in elements.
    """

    __slots__ = ("_checkpoint", "_row", "dtype", "name", "shape")

    def __init__(self, checkpoint: Checkpoint, row: int, name: str) -> None:
        table = checkpoint.outline.tensors
        self._checkpoint = checkpoint
        self._row = row
        self.name = name
        self.dtype = table.dtypes[row]
        self.shape = tuple(table.shapes[row])

    @property
    def nbytes(self) -> int:
        """Raw bytes of all elements."""
        return DType.named(self.dtype).nbytes_of(_numel(self.shape))

    def __repr__(self) -> str:
        return f"TensorView({self.name!r}, dtype={self.dtype!r}, shape={self.shape})"

    def __getitem__(self, index: Index) -> Array:
        """Return elements as a new numpy array, by numpy's rules for basic indexing.

        Raises:
            IndexError: The index does not fit the shape.
            FormatError: A block that it needs does not verify.
        """
        box, rest = _bounding_box(index, self.shape)
        found: Array = self._read(box)[rest]
        return found

    def read(self) -> Array:
        """Return all elements as a new numpy array."""
        return self._read(Box.whole(self.shape))

    def __array__(  # numpy calls it with positions
        self,
        dtype: Any = None,
        copy: bool | None = None,  # noqa: FBT001
    ) -> Array:
        if copy is False:
            raise ValueError("a tensor of a checkpoint has no array without a copy; use mmap")
        array = self.read()
        return array if dtype is None else array.astype(dtype)

    @own_failures()
    def _read(self, box: Box) -> Array:
        dtype = DType.named(self.dtype)
        reader = self._checkpoint.reader
        nbytes = dtype.nbytes_of(box.numel)
        reader.check_budget(nbytes)
        data = np.empty(nbytes, dtype=np.uint8)
        out = Destinations(
            address=ints([address_of(data)]), nbytes=ints([nbytes]), strided={}, owners=[data]
        )
        if box.numel:
            boxes = {} if box == Box.whole(self.shape) else {0: box}
            reader.read_tensors(ints([self._row]), boxes, out, progress=silent)
        if dtype.bits < 8:
            data = unpack_subbyte(data, bits=dtype.bits, numel=box.numel)
        return data.view(dtype.numpy).reshape(box.shape)

    def mmap(self) -> Array:
        """Return the elements as a read-only view of the file, without a copy, **unverified**.

        Call `verify` to check what the file holds now.  Whoever can write the file changes the
        elements of the view too, even after that, and a file that is cut short while it is mapped
        ends the process (BCP-SEC-005): map only what nobody changes, `read` all else.

        Raises:
            InvalidArgumentError: The tensor is not stored as one raw chunk, or the store has
                no maps.
        """
        reader = self._checkpoint.reader.reader_for(ints([self._row]), {})
        manifest = reader.manifest
        chunk = int(reader.index.first[self._row])
        if int(manifest.tensors.chunks[self._row]) != 1:
            text = f"{self.name!r} is stored in several chunks or none; read it instead"
            raise InvalidArgumentError(text)
        run = int(manifest.chunks.run[chunk])
        dtype = DType.named(self.dtype)
        if int(manifest.runs.codec[run]) != CODEC_RAW or dtype.bits < 8:
            raise InvalidArgumentError(f"{self.name!r} is stored encoded; read it instead")
        whole = reader.files.reader(int(manifest.runs.file[run])).map()
        if whole is None:
            raise InvalidArgumentError("this store cannot map objects; read the tensor instead")
        start = int(manifest.runs.position[run]) + int(manifest.chunks.offset[chunk])
        data = np.frombuffer(whole, dtype=np.uint8)[start : start + self.nbytes]
        return data.view(dtype.numpy).reshape(self.shape)

    @own_failures()
    def verify(self) -> None:
        """Read and check all blocks that hold the tensor, without keeping them.

        Raises:
            FormatError: One does not verify.
        """
        reader = self._checkpoint.reader.reader_for(ints([self._row]), {})
        pieces, blocks = reader.index.resolve(ints([self._row]), {})
        plan = reader.plan(pieces, blocks)

        def check(task: Task, stored: Bytes, raw: Bytes) -> None:
            filled = reader.fetch(task, plan, blocks, stored, raw)
            if not self._checkpoint.options.verify:  # else `fetch` did it
                for bad in reader.bad_blocks(task, plan, blocks, filled):
                    raise bad.error

        if plan.tasks:
            reader.for_each_task(plan, check)


class Checkpoint(Mapping[str, TensorView], Closing):
    """An open checkpoint: a mapping from the names of its tensors to views.

    Use it in a `with` statement.  Aliases are names too.

    Attributes:
        outline: What the manifest says, of which a large one is read as far as somebody asks.
        options: How it is read.

    Example:
        >>> import bcpformat, numpy
        >>> store = bcpformat.MemoryStore()
        >>> report = bcpformat.write(store, {"w": numpy.arange(6).reshape(2, 3)})
        >>> with bcpformat.open(store) as ckpt:
        ...     ckpt["w"].shape, ckpt["w"][1, :2]
        ((2, 3), array([3, 4]))
    """

    def __init__(self, location: Location, *, options: ReadOptions = DEFAULT_READ) -> None:
        if not isinstance(options, ReadOptions):
            raise InvalidArgumentError(f"options must be ReadOptions(...), got {options!r:.200}")
        self._store = open_store(location)
        self.options = options
        self._reader: CheckpointReader | None = CheckpointReader(self._store, options)
        self.outline: ManifestReader = self._reader.manifest
        table = self.outline.tensors
        self._rows = {name: row for row, name in enumerate(table.names)}
        for row, names in table.aliases.items():
            self._rows |= dict.fromkeys(names, row)

    @property
    def reader(self) -> CheckpointReader:
        """The engine's reader.

        Raises:
            StateError: The checkpoint is closed.
        """
        if self._reader is None:
            raise StateError("this checkpoint is closed; open it again")
        return self._reader

    @property
    def manifest(self) -> Manifest:
        """Everything the manifest says; what of a large one has not been read is read now.

        Raises:
            FormatError: Something in it is damaged, or breaks a rule.
            StateError: The checkpoint was closed before.
        """
        return self.outline.whole()

    @property
    def step(self) -> int | None:
        """The training step, None if none was given."""
        return self.outline.root.step

    @property
    def user(self) -> Mapping[str, Value]:
        """The user's own metadata."""
        return self.outline.root.user

    def __getitem__(self, name: str) -> TensorView:
        row = self._rows.get(name)
        if row is None:
            raise KeyError(f"no tensor is named {name!r}; there are {len(self._rows)} names")
        return TensorView(self, row, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        """Return what a debugger should show; it reads nothing."""
        outline = self.outline
        words = f"step={outline.root.step}, tensors={len(outline.tensors)}"
        if outline.is_whole:
            words += f", raw_bytes={int(outline.whole().runs.raw.sum())}"
        state = "" if self._reader is not None else ", closed"
        return f"Checkpoint({self._store.describe()!r}, {words}{state})"

    @own_failures()
    def state(self, *, filter: Filter = None, as_numpy: bool = True) -> object:
        """Return the state with numpy arrays (or torch tensors) in it."""
        return read_whole(self.reader, chosen=filter, as_numpy=as_numpy, progress=silent)

    def close(self) -> None:
        """Close the data files; views made by `mmap` must not be used any more."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


@own_failures()
def open_checkpoint(location: Location, *, options: ReadOptions = DEFAULT_READ) -> Checkpoint:
    """Open a checkpoint lazily: names, shapes and types now, elements when indexed.

    Raises:
        ObjectNotFoundError: There is no checkpoint (``E_NOT_COMMITTED``).
        FormatError: Its manifest is damaged or breaks a rule.
    """
    return Checkpoint(location, options=options)


def _numel(shape: tuple[int, ...]) -> int:
    numel = 1
    for extent in shape:
        numel *= extent
    return numel


def _check_index(parts: tuple[object, ...]) -> None:
    for part in parts:
        if isinstance(part, (bool, np.bool_)):
            raise IndexError("a bool cannot index a tensor; read it and index the array")
        if not (part is None or part is Ellipsis or isinstance(part, (slice, int, np.integer))):
            text = f"only integers, slices, ... and None can index a tensor, got {part!r}"
            raise IndexError(text)


def _bounding_box(index: Index, shape: tuple[int, ...]) -> tuple[Box, tuple[Any, ...]]:
    """Return the smallest box that holds an index, and the index to apply to that box.

    Raises:
        IndexError: The index does not fit the shape.
    """
    given = index if isinstance(index, tuple) else (index,)
    _check_index(given)
    used = sum(part is not None and part is not Ellipsis for part in given)
    if used > len(shape):
        raise IndexError(f"{used} indices for a tensor with {len(shape)} axes")
    if sum(part is Ellipsis for part in given) > 1:
        raise IndexError("an index can have only one '...'")
    full = [slice(None)] * (len(shape) - used)
    if Ellipsis in given:
        at = given.index(Ellipsis)
        parts: list[Any] = [*given[:at], *full, *given[at + 1 :]]
    else:
        parts = [*given, *full]
    origin: list[int] = []
    extent: list[int] = []
    rest: list[Any] = []
    axis = 0
    for part in parts:
        if part is None:
            rest.append(None)
            continue
        size = shape[axis]
        if isinstance(part, slice):
            steps = range(*part.indices(size))
            low = min(steps[0], steps[-1]) if steps else 0
            high = max(steps[0], steps[-1]) + 1 if steps else 0
            stop = steps.stop - low if steps.step > 0 or steps.stop >= low else None
            rest.append(slice(steps.start - low, stop, steps.step) if steps else slice(0, 0))
        else:
            at = int(part) + (size if part < 0 else 0)
            if not 0 <= at < size:
                raise IndexError(f"index {part} is out of bounds for axis {axis} of size {size}")
            low, high = at, at + 1
            rest.append(0)
        origin.append(low)
        extent.append(high - low)
        axis += 1
    return Box(origin=tuple(origin), shape=tuple(extent)), tuple(rest)
