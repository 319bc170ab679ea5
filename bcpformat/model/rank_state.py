"""What the state of one rank says, as it goes to the rank that merges (spec 10, 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bcpformat.model.manifest import Node, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """A value that is stored as an object, wherever its bytes are.

    Attributes:
        name: Its name.
        nbytes: Length.
        digest: 16 bytes, XXH3-128 of its bytes.
    """

    name: str
    nbytes: int
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """What the state of one rank says, without where its bytes are: a *document* of a merge.

    Attributes:
        root: The node at the top.
        names: Names of the tensors, ascending by their UTF-8 bytes; all that the state has,
            whether this rank stores anything of them or not.
        dtypes: Registry names, by row of `names`.
        shapes: Global shapes, by row of `names`.
        aliases: Row to the tensor's other names, in state order; rows with some only.
        extra: Row to other keys of its tensors row (``user``, ``segments``); rows with some only.
        objects: Values stored as objects, ascending by name.
        per_rank: Number of per-rank nodes.
        digest: Equal for equal documents, and only for these; empty if nobody has computed it.
    """

    root: Node
    names: Sequence[str]
    dtypes: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    aliases: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    extra: Mapping[int, Mapping[str, Value]] = field(default_factory=dict)
    objects: Sequence[ObjectRef] = ()
    per_rank: int = 0
    digest: bytes = b""
