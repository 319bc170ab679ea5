"""From a store to the bytes of a manifest, and to a checked manifest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from bcpformat.errors import ErrorCode, ObjectNotFoundError, StateError, error_for
from bcpformat.model.checks import check_manifest
from bcpformat.model.closing import Closing
from bcpformat.model.limits import Limits
from bcpformat.model.manifest import MANIFEST_KEY, Manifest
from bcpformat.storage.store import ObjectReader, Store
from bcpformat.wire import (
    Kind,
    Root,
    SectionRow,
    check_manifest_length,
    decode_header,
    decode_manifest,
    decode_root,
    root_extent,
)

FIRST_REQUEST_BYTES = 2**20
GAP_BYTES = 2**16
"""Sections that lie this near are fetched together, with what is between them."""


class ManifestBytes(Closing):
    """The bytes of one manifest: the first 1 MiB, and of a larger one the sections asked for.

    A larger one is opened once more and read through that handle alone, after its root has said
    how long it may be: its length alone may be anything.

    Attributes:
        requests: Reads so far.
        read_bytes: Bytes of them.
    """

    def __init__(self, store: Store, *, limits: Limits) -> None:
        """Do the first request.

        Raises:
            ObjectNotFoundError: There is none: code ``E_NOT_COMMITTED``.
            FormatError: The root of a larger one breaks a rule.
        """
        self.requests = 0
        self.read_bytes = 0
        self._limits = limits
        self._sections: dict[tuple[int, int], memoryview] = {}
        self._reader: ObjectReader | None = None
        try:
            self._head = store.read(MANIFEST_KEY, nbytes=FIRST_REQUEST_BYTES)
            self._nbytes = len(self._head)
            self._count(self._nbytes)
            if self._nbytes == FIRST_REQUEST_BYTES:
                self._reader = store.open_reader(MANIFEST_KEY, direct=False)
                self._nbytes = self._reader.nbytes
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(
                f"{store.describe()} holds no {MANIFEST_KEY}: it is not a checkpoint, "
                "or its save did not commit",
                key=MANIFEST_KEY,
                code=ErrorCode.NOT_COMMITTED,
            ) from error
        try:
            if self._reader is not None:
                self._fetch_root()
        except BaseException:
            self.close()
            raise

    @cached_property
    def root(self) -> Root:
        """What the root says.

        Raises:
            FormatError: It breaks a rule.
        """
        root = decode_root(self._head, key=MANIFEST_KEY, limits=self._limits)
        check_manifest_length(root, self._nbytes, key=MANIFEST_KEY)
        return root

    @property
    def is_whole(self) -> bool:
        """Whether all of it is in memory."""
        return len(self._head) == self._nbytes

    def _fetch_root(self) -> None:
        header = decode_header(self._head, key=MANIFEST_KEY, expect=Kind.MANIFEST)
        extent = root_extent(header)
        stop = min(extent, self._nbytes)
        if stop > len(self._head) and header.root_raw_bytes <= self._limits.root_bytes:
            self._head += self._read(len(self._head), stop)
        _ = self.root  # it says how long the manifest may be
        if self.is_whole:
            self.close()

    def load(self, sections: Iterable[SectionRow]) -> None:
        """Fetch those sections that are not in memory, neighbours in one request."""
        wanted = {
            (row.position_bytes, row.end_bytes)
            for row in sections
            if row.end_bytes > len(self._head)
        }
        near: list[tuple[int, int]] = []
        for span in sorted(wanted - self._sections.keys()):
            if near and span[0] - near[-1][1] > GAP_BYTES:
                self._load_spans(near)
                near = []
            near.append(span)
        if near:
            self._load_spans(near)

    def _load_spans(self, spans: Sequence[tuple[int, int]]) -> None:
        start = spans[0][0]
        view = memoryview(self._read(start, spans[-1][1]))
        for low, stop in spans:
            self._sections[low, stop] = view[low - start : stop - start]

    def section(self, row: SectionRow) -> memoryview:
        """Return the stored bytes of a section; they are fetched if they are not in memory."""
        low, stop = row.position_bytes, row.end_bytes
        if stop <= len(self._head):
            return memoryview(self._head)[low:stop]
        self.load([row])
        return self._sections[low, stop]

    def whole(self) -> bytes:
        """Return the whole manifest; of one that is not in memory the rest is one request."""
        if not self.is_whole:
            self._head += self._read(len(self._head), self._nbytes)
            self._sections.clear()
            self.close()
        return self._head

    def _read(self, low: int, stop: int) -> bytearray:
        if self._reader is None:
            raise StateError("this checkpoint is closed; open it again")
        data = bytearray(stop - low)
        self._reader.read_into(low, data)
        self._count(len(data))
        return data

    def _count(self, nbytes: int) -> None:
        self.requests += 1
        self.read_bytes += nbytes

    def close(self) -> None:
        """Close the handle; what is in memory stays."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def read_manifest_bytes(store: Store, *, limits: Limits) -> bytes:
    """Return the whole manifest, in one request if it has less than 1 MiB.

    Raises:
        ObjectNotFoundError: There is none: code ``E_NOT_COMMITTED``.
        FormatError: The root of a larger one breaks a rule.
    """
    with ManifestBytes(store, limits=limits) as found:
        return found.whole()


def load_manifest(store: Store, *, limits: Limits) -> Manifest:
    """Return the manifest, decoded and checked by every rule that needs no data file.

    Raises:
        ObjectNotFoundError: There is none.
        FormatError: It is damaged, or breaks a rule; the code says which.
    """
    manifest = decode_manifest(
        read_manifest_bytes(store, limits=limits), key=MANIFEST_KEY, limits=limits
    )
    for problem in check_manifest(manifest, limits=limits):
        raise error_for(problem)
    return manifest
