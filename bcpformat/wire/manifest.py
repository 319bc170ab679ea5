"""The whole manifest: bytes to model and back (spec 5.1, 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import TypeVar, cast

from bcpformat.errors import ErrorCode
from bcpformat.model.limits import STATE_DEPTH, Limits
from bcpformat.model.manifest import (
    ChunkTable,
    FileRow,
    Manifest,
    Node,
    ObjectRow,
    PerRankTable,
    RunTable,
    TensorTable,
    Value,
)
from bcpformat.wire.chunks import check_chunk_rows, decode_chunks, encode_chunks
from bcpformat.wire.columns import (
    decode_per_rank,
    decode_runs,
    encode_per_rank,
    encode_runs,
    groups_of,
)
from bcpformat.wire.mp import decode, encode
from bcpformat.wire.root import Root, check_manifest_length, decode_root, encode_root
from bcpformat.wire.rows import (
    decode_files,
    decode_objects,
    decode_tensors,
    encode_files,
    encode_objects,
    encode_tensors,
)
from bcpformat.wire.schema import fault
from bcpformat.wire.sections import (
    Buffer,
    Codec,
    SectionRow,
    decode_section,
    pack_document,
    section_values,
)

T = TypeVar("T", bound=Sized)


def encode_manifest(manifest: Manifest, *, codec: Codec) -> bytes:
    """Return the bytes of a manifest; equal manifests have equal bytes.

    Args:
        manifest: What it says.
        codec: ``"zstd"`` to compress what gets shorter, or ``"none"``.

    Raises:
        FormatError: The root or a section breaks one of its own rules.  Rules between sections
            are those of `model.checks`.
        InvalidArgumentError: A value has no form in a document (``E_NO_FORM``), or a column has
            another length than its table.
    """
    rows: list[Value] = []
    sections: list[bytes] = []
    for kind, first, count, raw in _encode_sections(manifest):
        stored = pack_document(raw, codec=codec)
        rows.append(section_values(kind, first, count, raw, stored))
        sections.append(stored)
    return b"".join((encode_root(manifest, rows, codec=codec), *sections))


def decode_manifest(data: Buffer, *, key: str, limits: Limits) -> Manifest:
    """Return what a manifest says (spec 13, steps 2 to 4, and all rules of single sections).

    Args:
        data: The whole manifest.
        key: Its key, for messages.
        limits: Bounds, enforced before anything is allocated by what it says.

    Raises:
        FormatError: It breaks a rule; `model.checks` has those between sections.
        LimitError: It is above a limit.
    """
    root = decode_root(data, key=key, limits=limits)
    check_manifest_length(root, len(data), key=key)
    view = memoryview(data)
    sections = Sections(
        root, lambda row: view[row.position_bytes : row.end_bytes], key=key, limits=limits
    )
    tensors = sections.tensors()
    return manifest_of(
        root,
        files=sections.files(),
        tensors=tensors,
        runs=sections.runs(root.of_kind("runs")),
        chunks=sections.chunks(root.of_kind("chunks"), tensors=tensors),
        state=sections.state(),
        per_rank=sections.per_rank(root.of_kind("per_rank")),
        objects=sections.objects(),
    )


def manifest_of(
    root: Root,
    *,
    files: Sequence[FileRow],
    tensors: TensorTable,
    runs: RunTable,
    chunks: ChunkTable,
    state: Node,
    per_rank: PerRankTable,
    objects: Sequence[ObjectRow],
) -> Manifest:
    """Return what a root and the rows of its sections say, or some of the rows."""
    return Manifest(
        attempt_id=root.attempt_id,
        minor=root.minor,
        created_us=root.created_us,
        writer=root.writer,
        require=root.require,
        optional=root.optional,
        step=root.step,
        user=root.user,
        digest=root.digest,
        extra=root.extra,
        files=files,
        tensors=tensors,
        runs=runs,
        chunks=chunks,
        state=state,
        per_rank=per_rank,
        objects=objects,
    )


def encode_document(node: Node) -> bytes:
    """Return the document of one node, such as a per-rank value (spec 10).

    Raises:
        InvalidArgumentError: The profile has no form for it (``E_NO_FORM``).

    Example:
        >>> encode_document([2, 7]).hex(" ")
        '92 02 07'
    """
    return encode(cast(Value, node), max_depth=STATE_DEPTH, where="node")


def decode_document(data: Buffer, *, where: str) -> Node:
    """Return the node of a document; that it is a node is for `model.state_decode` to check.

    Args:
        data: The whole document.
        where: What it is, for messages.

    Raises:
        FormatError: It is not in the form of the profile.
    """
    # A map is no node; whoever takes the node apart refuses it (BCP-STA-001).
    return cast(Node, decode(data, max_depth=STATE_DEPTH, where=where))


class Sections:
    """The sections of one manifest, each decoded when it is asked for (BCP-MAN-012).

    Every method raises `FormatError` for the first rule that its section breaks.

    Example:
        Chunks of rows 0 to 32767 of a manifest of which only parts are in memory::

            sections = Sections(root, fetch, key=key, limits=limits)
            tensors = sections.tensors()
            chunks = sections.chunks(root.of_kind("chunks")[:1], tensors=tensors)
    """

    def __init__(
        self, root: Root, fetch: Callable[[SectionRow], Buffer], *, key: str, limits: Limits
    ) -> None:
        """Make a reader.

        Args:
            root: The root.
            fetch: Gives the stored bytes of a section.
            key: The manifest's key, for messages.
            limits: Bounds on what is allocated.
        """
        self._root = root
        self._fetch = fetch
        self._key = key
        self._limits = limits

    def files(self) -> tuple[FileRow, ...]:
        """Return the data files."""
        return self._rows(
            "files",
            lambda raw: decode_files(raw, attempt_id=self._root.attempt_id, minor=self._root.minor),
        )

    def tensors(self) -> TensorTable:
        """Return the tensors; their chunks are as many as the sections have rows (BCP-COL-007)."""
        tensors = self._rows("tensors", lambda raw: decode_tensors(raw, minor=self._root.minor))
        check_chunk_rows(tensors, self._root.rows("chunks"))
        return tensors

    def objects(self) -> tuple[ObjectRow, ...]:
        """Return the opaque objects."""
        return self._rows("objects", lambda raw: decode_objects(raw, minor=self._root.minor))

    def state(self) -> Node:
        """Return the node at the top of the state tree."""
        (row,) = self._root.of_kind("state")
        return decode_document(self._raw(row), where=f"{self._key} {row}")

    def runs(self, groups: Sequence[SectionRow]) -> RunTable:
        """Return the runs of some groups, ascending, one after the other."""
        return decode_runs(groups, self._raw, minor=self._root.minor)

    def chunks(self, groups: Sequence[SectionRow], *, tensors: TensorTable) -> ChunkTable:
        """Return the chunks of some groups, ascending, one after the other.

        Args:
            groups: The sections.
            tensors: What `tensors` has returned.
        """
        return decode_chunks(
            groups, self._raw, tensors=tensors, minor=self._root.minor, limits=self._limits
        )

    def per_rank(self, groups: Sequence[SectionRow]) -> PerRankTable:
        """Return the per-rank values of some groups, ascending, one after the other."""
        return decode_per_rank(groups, self._raw, minor=self._root.minor)

    def _raw(self, row: SectionRow) -> Buffer:
        return decode_section(row, self._fetch(row), key=self._key)

    def _rows(self, kind: str, decode_rows: Callable[[Buffer], T]) -> T:
        """Return the rows of a kind that has one section at most."""
        found = self._root.of_kind(kind)
        if not found:
            return decode_rows(b"\x90")
        (row,) = found
        rows = decode_rows(self._raw(row))
        if len(rows) != row.rows:
            text = f"the root says {row.rows} rows, found {len(rows)}"
            raise fault(ErrorCode.SECTION, f"{self._key} {row}", text)
        return rows


def _encode_sections(manifest: Manifest) -> Iterator[tuple[str, int, int, bytes]]:
    """Yield kind, first row, rows and raw bytes of each section, in their order."""
    minor, tensors = manifest.minor, manifest.tensors
    if manifest.files:
        raw = encode_files(manifest.files, attempt_id=manifest.attempt_id, minor=minor)
        yield "files", 0, len(manifest.files), raw
    if len(tensors):
        yield "tensors", 0, len(tensors), encode_tensors(tensors, minor=minor)
    for kind, count, groups in (
        ("runs", len(manifest.runs), encode_runs(manifest.runs)),
        ("chunks", len(manifest.chunks), encode_chunks(manifest.chunks, tensors)),
    ):
        for rows, raw in zip(groups_of(count), groups, strict=True):
            yield kind, rows.start, rows.stop - rows.start, raw
    yield "state", 0, 1, encode_document(manifest.state)
    ranks = manifest.per_rank
    for rows, raw in zip(groups_of(len(ranks)), encode_per_rank(ranks), strict=True):
        yield "per_rank", rows.start, rows.stop - rows.start, raw
    if manifest.objects:
        raw = encode_objects(manifest.objects, minor=minor)
        yield "objects", 0, len(manifest.objects), raw
