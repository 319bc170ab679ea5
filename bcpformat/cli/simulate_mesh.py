"""Meshes of ranks by plain arithmetic: which box of a parameter each rank holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from bcpformat.cli.simulate_models import Model, Parameter
from bcpformat.errors import InvalidArgumentError
from bcpformat.model.region import Box

AXES = {
    "pp": "pipeline stages, which own layers",
    "dp": "replicas of everything",
    "fsdp": "parts of the rows that tensor parallelism has left",
    "tp": "tensor parallelism",
}
"""Axis of a mesh to what the ranks along it have of a model."""

MAX_RANKS = 2**20


@dataclass(frozen=True, slots=True)
class Mesh:
    """The ranks of a job.

    Attributes:
        sizes: Axis to the ranks along it, the axis whose ranks lie farthest apart first.

    Example:
        >>> mesh = Mesh.of("pp=2,tp=3")
        >>> len(mesh), str(mesh), mesh.place(4)
        (6, 'pp=2,tp=3', {'pp': 1, 'dp': 0, 'fsdp': 0, 'tp': 1})
    """

    sizes: Mapping[str, int]

    @classmethod
    def of(cls, text: str) -> Mesh:
        """Return the mesh of ``axis=ranks`` pairs with commas between them.

        Raises:
            InvalidArgumentError: There is no such axis, or a number is out of range.
        """
        sizes: dict[str, int] = {}
        for pair in text.split(","):
            axis, _, ranks = pair.strip().partition("=")
            if axis not in AXES or axis in sizes or not ranks.isdecimal() or int(ranks) < 1:
                usage = f"expected AXIS=RANKS pairs of the axes {', '.join(AXES)}"
                raise InvalidArgumentError(f"mesh {text!r}: {usage}, found {pair!r}")
            sizes[axis] = int(ranks)
        if prod(sizes.values()) > MAX_RANKS:
            raise InvalidArgumentError(f"mesh {text!r} has more than {MAX_RANKS} ranks")
        return cls(sizes)

    def __len__(self) -> int:
        return prod(self.sizes.values())

    def __str__(self) -> str:
        return ",".join(f"{axis}={ranks}" for axis, ranks in self.sizes.items())

    def along(self, axis: str) -> int:
        """Return the ranks along an axis, 1 if the mesh does not have it."""
        return self.sizes.get(axis, 1)

    def with_ranks(self, axis: str, ranks: int) -> Mesh:
        """Return this mesh with other ranks along an axis."""
        return Mesh({**self.sizes, axis: ranks})

    def place(self, rank: int) -> dict[str, int]:
        """Return the coordinate of a rank on every axis, 0 on those the mesh does not have."""
        found = dict.fromkeys(AXES, 0)
        for axis, ranks in reversed(list(self.sizes.items())):
            rank, found[axis] = divmod(rank, ranks)
        return found


def spread_ranks(mesh: Mesh, count: int) -> list[int]:
    """Return some ranks of a mesh, the first and the last among them, at equal distances.

    Example:
        >>> spread_ranks(Mesh.of("fsdp=9"), 3)
        [0, 4, 8]
    """
    count = min(count, len(mesh))
    return [step * (len(mesh) - 1) // max(count - 1, 1) for step in range(count)]


def stage_layers(model: Model, mesh: Mesh, stage: int) -> range:
    """Return the layers of a pipeline stage: as equally many as can be."""
    stages = mesh.along("pp")
    return range(stage * model.layers // stages, (stage + 1) * model.layers // stages)


def held_box(parameter: Parameter, mesh: Mesh, place: Mapping[str, int]) -> Box | None:
    """Return what a rank of the parameter's stage holds of it, None if that is nothing.

    Tensor parallelism splits first; FSDP splits the rows of what it leaves.  Both do so as
    `torch.chunk` does: parts of the rounded-up size, the last ones smaller or empty.

    Args:
        parameter: The parameter.
        mesh: The mesh.
        place: Coordinate of the rank on every axis.

    Example:
        >>> parameter = Parameter(name="w", shape=(8, 3), layer=0, tp_axis=0)
        >>> held_box(parameter, Mesh.of("fsdp=3,tp=2"), {"fsdp": 2, "tp": 1})
        >>> held_box(parameter, Mesh.of("fsdp=3,tp=2"), {"fsdp": 1, "tp": 1})
        Box(origin=(6, 0), shape=(2, 3))
    """
    origin, shape = [0] * len(parameter.shape), list(parameter.shape)
    for axis, name in ((parameter.tp_axis, "tp"), (0, "fsdp")):
        if axis is None:
            continue
        step = -(-shape[axis] // mesh.along(name))
        low = min(shape[axis], step * place[name])
        origin[axis] += low
        shape[axis] = min(step, shape[axis] - low)
    return Box(origin=tuple(origin), shape=tuple(shape)) if all(shape) else None
