"""The checks every store makes of what it is given: keys, memory, ranges."""

from __future__ import annotations

import numpy as np

from bcpformat.errors import ErrorCode, FormatError, InvalidArgumentError
from bcpformat.storage.store import ReadableBytes, WritableBytes


def check_key(key: str) -> tuple[str, ...]:
    """Return the parts of a key.

    Raises:
        InvalidArgumentError: The key is absolute, has an empty, ``.`` or ``..`` part, a
            backslash or a NUL, or is not encodable.

    Example:
        >>> check_key("data/x.bcd")
        ('data', 'x.bcd')
    """
    parts = tuple(key.split("/"))
    fault = _fault(key)
    if key.startswith("/"):
        fault = "an absolute path"
    elif "" in parts:
        fault = "an empty part"
    elif "." in parts or ".." in parts:
        fault = "a '.' or '..' part"
    if fault:
        raise InvalidArgumentError(
            f"expected a relative '/'-separated key, found {fault} in {key!r}"
        )
    return parts


def check_prefix(prefix: str) -> tuple[str, ...]:
    """Return the parts of the deepest directory that holds every key with this prefix.

    Raises:
        InvalidArgumentError: No key can start with `prefix`.

    Example:
        >>> check_prefix("data/x")
        ('data',)
    """
    directory, slash, _ = prefix.rpartition("/")
    fault = _fault(prefix)
    if fault:
        raise InvalidArgumentError(f"expected the start of a key, found {fault} in {prefix!r}")
    return check_key(directory) if slash else ()


def _fault(key: str) -> str:
    if "\\" in key:
        return "a backslash"
    if "\0" in key:
        return "a NUL"
    try:
        key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return "an unpaired surrogate"
    return ""


def byte_view(data: ReadableBytes | WritableBytes, *, writable: bool) -> memoryview:
    """Return C-contiguous memory as a flat view of bytes; nothing is copied.

    Raises:
        InvalidArgumentError: The memory is not contiguous, or read-only and to be written.

    Example:
        >>> byte_view(np.zeros((2, 3), np.int16), writable=True).nbytes
        12
    """
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise InvalidArgumentError(
                f"expected C-contiguous memory, found an array with strides {data.strides}"
            )
        view = data.reshape(-1).view(np.uint8).data
    else:
        view = memoryview(data)
        if not view.c_contiguous:
            raise InvalidArgumentError(
                f"expected C-contiguous memory, found a view with strides {view.strides}"
            )
        if view.nbytes == 0:
            return memoryview(bytearray())
        if view.ndim != 1 or view.format != "B":
            view = view.cast("B")
    if writable and view.readonly:
        raise InvalidArgumentError("expected writable memory, found read-only memory")
    return view


def check_alignment(offset_bytes: int, view: memoryview, *, alignment: int) -> None:
    """Check that offset, length and address are multiples of `alignment`.

    Raises:
        InvalidArgumentError: One is not, or the offset is negative.
    """
    if offset_bytes < 0:
        raise InvalidArgumentError(f"offset_bytes must be at least 0, got {offset_bytes}")
    if alignment == 1 or len(view) == 0:
        return
    address = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    for name, value in (("offset", offset_bytes), ("length", len(view)), ("address", address)):
        if value % alignment:
            raise InvalidArgumentError(
                f"expected a {name} that is a multiple of {alignment} bytes, found {value}"
            )


def check_range(
    key: str, *, nbytes: int, offset_bytes: int, wanted_bytes: int, alignment: int
) -> int:
    """Return how many of the wanted bytes an object of `nbytes` must fill.

    Fewer than wanted only where an aligned read ends in the object's last page.

    Raises:
        FormatError: The object ends too early (E_TRUNCATED).
    """
    found = max(0, min(wanted_bytes, nbytes - offset_bytes))
    if found == wanted_bytes or (found and wanted_bytes - found < alignment):
        return found
    raise truncated(key, offset_bytes=offset_bytes, wanted_bytes=wanted_bytes, found_bytes=found)


def truncated(key: str, *, offset_bytes: int, wanted_bytes: int, found_bytes: int) -> FormatError:
    """Return the error for an object that ends before the wanted range does."""
    return FormatError(
        f"object {key!r}: expected {wanted_bytes} bytes at byte {offset_bytes}, "
        f"found {found_bytes} before its end",
        code=ErrorCode.TRUNCATED,
    )


def check_finish(key: str, *, nbytes: int, end_bytes: int) -> None:
    """Check that writes reached the size an object is finished at."""
    if not 0 <= nbytes <= end_bytes:
        raise InvalidArgumentError(
            f"object {key!r}: expected to finish at 0 to {end_bytes} bytes, where its writes end, "
            f"got {nbytes}"
        )


def check_read(offset_bytes: int, nbytes: int | None) -> None:
    """Check the range of a short read."""
    if offset_bytes < 0:
        raise InvalidArgumentError(f"offset_bytes must be at least 0, got {offset_bytes}")
    if nbytes is not None and nbytes < 0:
        raise InvalidArgumentError(f"nbytes must be at least 0, got {nbytes}")
