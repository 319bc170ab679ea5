"""Parameters that lie one after the other in a flat buffer, of which this rank has a range.

So does ZeRO keep what its ranks divide, so do FSDP1 and the distributed optimizer of Megatron.
Each parameter becomes a `Shard` with a flat range: it is stored as it lies, and nobody has to talk
to another rank for it.  What lies between the parameters, and after the last, is padding; it
belongs to no parameter and is not stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple, Never

from bcpformat.errors import InvalidArgumentError
from bcpformat.model.shards import Shard


class InBuffer(NamedTuple):
    """A parameter in a flat buffer: all of it, or the box that one rank of several has of it.

    Attributes:
        name: Its name.
        shape: Shape of what is in the buffer, in elements; they lie there in row-major order.
        offset: Position of its first element in the buffer.
        global_shape: Shape of the whole parameter; None: `shape`.
        origin: First element of the box, in the coordinates of the parameter; None: the first.

    Example:
        >>> InBuffer("w", (2, 3), 10).end
        16
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    global_shape: tuple[int, ...] | None = None
    origin: tuple[int, ...] | None = None

    @property
    def end(self) -> int:
        """The position after its last element in the buffer."""
        return self.offset + prod(self.shape)


def flat_shards(
    buffer_range: tuple[int, int],
    params: Iterable[InBuffer | Sequence[Any]],  # Any: the fields of InBuffer
    data: Any,  # Any: a tensor of any library
) -> dict[str, Shard]:
    """Return what this rank has of each parameter of a flat buffer.

    Args:
        buffer_range: First position of this rank's range in the buffer, and the end.
        params: All parameters of the buffer, in any order: `InBuffer`, or tuples of its fields,
            ``(name, shape, offset)`` as a rule.
        data: The elements of the range, 1-d: a torch tensor or a numpy array.  It may be a
            parameter of the model or of the optimizer, or a moment, or anything else that has an
            element for each of the buffer.

    Returns:
        Name to shard, by position; without the parameters of which nothing is in the range.  The
        shards are views of `data`: a read into them fills it.  A parameter without elements is
        always there.

    Raises:
        InvalidArgumentError: `data` does not fit the range, or parameters overlap or share a name.

    Source: spec, appendix B.

    Example:
        >>> import numpy
        >>> held = flat_shards((4, 8), [("a", (2, 3), 0), ("b", (5,), 6)], numpy.arange(4, 8))
        >>> [(name, shard.flat, shard.data.tolist()) for name, shard in held.items()]
        [('a', (4, 2), [4, 5]), ('b', (0, 2), [6, 7])]
    """
    first, end = buffer_range
    if first < 0 or tuple(data.shape) != (end - first,):
        text = f"data of shape {tuple(data.shape)} is not the range {first} to {end} of a buffer"
        raise InvalidArgumentError(f"{text}; it must be 1-d, padding included")
    placed = sorted((InBuffer(*each) for each in params), key=lambda part: part.offset)
    _check(placed)
    found: dict[str, Shard] = {}
    for part in placed:
        start = max(first, part.offset) - part.offset
        count = min(end, part.end) - max(first, part.offset)
        if count > 0:
            at = part.offset + start - first
            found[part.name] = _shard(part, data[at : at + count], start)
        elif part.end == part.offset:
            found[part.name] = _shard(part, data[:0], 0)
    return found


def _shard(part: InBuffer, piece: Any, start: int) -> Shard:  # Any: as in flat_shards
    whole = tuple(part.global_shape if part.global_shape is not None else part.shape)
    origin = part.origin if part.origin is not None else (0,) * len(whole)
    count = int(piece.shape[0])
    if count == part.end - part.offset:
        return Shard(piece.reshape(tuple(part.shape)), global_shape=whole, origin=origin)
    return Shard(piece, global_shape=whole, origin=origin, shape=part.shape, flat=(start, count))


def _check(placed: Sequence[InBuffer]) -> None:
    """Refuse parameters, sorted by offset, that share a name or elements."""
    names: set[str] = set()
    before: InBuffer | None = None
    for part in placed:
        if part.name in names:
            _refuse(f"two parameters of a flat buffer are named {part.name!r}")
        names.add(part.name)
        if before is not None and part.offset < before.end and part.end > part.offset:
            text = f"{part.name!r} begins at {part.offset} in a flat buffer, before the end of "
            _refuse(f"{text}{before.name!r}, {before.end}")
        if before is None or part.end > before.end:
            before = part


def _refuse(text: str) -> Never:
    raise InvalidArgumentError(text)
