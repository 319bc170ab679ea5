"""The state of one simulated rank: tensors that say what they are and have no memory.

It is what a training job with AdamW saves: sharded parameters and their two moments, for each
parameter a count of steps that every rank of its stage has, the settings of each parameter, and
the random generators of each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from bcpformat.cli.simulate_mesh import Mesh, held_box, stage_layers
from bcpformat.cli.simulate_models import Model, Parameter, parameters
from bcpformat.model.dtypes import DTYPES
from bcpformat.model.leaves import PerRank, TensorLeaf
from bcpformat.model.region import Region
from bcpformat.model.state import EncodedState, encode_state
from bcpformat.model.user_types import TypeRegistry

MOMENT_DTYPE = "float32"
"""Of the moments, and of the counts of steps."""

STEP = 1000

_SETTINGS = {
    "lr": 8e-5,
    "betas": (0.9, 0.95),
    "eps": 1e-8,
    "weight_decay": 0.1,
    "amsgrad": False,
    "maximize": False,
    "foreach": None,
    "capturable": False,
    "differentiable": False,
    "fused": True,
    "decoupled_weight_decay": True,
}
"""Those of torch's AdamW."""

_GENERATORS = {"cpu": 5056, "cuda": 16}
"""The random generators of torch, and the bytes of their states."""


@dataclass(slots=True, eq=False)
class SimulatedTensor:
    """A tensor without memory; its elements are zero.

    Attributes:
        dtype: Registry name.
        shape: Global shape in elements.
        parameter: What it is sharded like; None: every rank holds all of it, to be compared.
        regions: What this rank holds of it; None: all.
    """

    dtype: str
    shape: tuple[int, ...]
    parameter: Parameter | None = None
    regions: tuple[Region, ...] | None = None


class _Adapter:
    """Shows simulated tensors to the core (see `LeafAdapter`)."""

    def describe(self, value: object, path: Callable[[], str]) -> TensorLeaf:
        """Return what the core must know of a tensor; nothing is refused."""
        assert isinstance(value, SimulatedTensor)
        return TensorLeaf(
            dtype=value.dtype,
            shape=value.shape,
            flags=0,
            alias_key=None,
            value=value,
            adapter=self,
            regions=value.regions,
            is_trusted=value.regions is not None,
        )

    def array(self, leaf: TensorLeaf) -> npt.NDArray[np.generic]:
        """Return the elements of a tensor that is not sharded; there are few."""
        return np.zeros(leaf.shape, DTYPES[leaf.dtype].opaque)

    def pieces(self, leaf: TensorLeaf) -> Sequence[npt.NDArray[np.generic]]:
        """Return arrays that have one element in the place of all."""
        if leaf.regions is None:
            return [self.array(leaf)]
        zero = np.zeros((), DTYPES[leaf.dtype].opaque)
        return [np.broadcast_to(zero, region.box.shape) for region in leaf.regions]


_ADAPTER = _Adapter()


class Job:
    """A model on a mesh: the states of its ranks.

    Attributes:
        model: The model.
        mesh: The mesh.
        dtype: Data type of the parameters.
        num_parameters: Elements of all parameters.
    """

    def __init__(self, model: Model, mesh: Mesh, *, dtype: str) -> None:
        self.model = model
        self.mesh = mesh
        self.dtype = dtype
        found = parameters(model)
        self.num_parameters = sum(prod(p.shape) for p in found)
        self._stages = [
            [p for p in found if p.layer in stage_layers(model, mesh, stage)]
            for stage in range(mesh.along("pp"))
        ]
        self._known: dict[int, EncodedState] = {}  # stage to the state of one of its ranks

    def state(self, rank: int) -> dict[str, object]:
        """Return the state of a rank as its training script has it."""
        place = self.mesh.place(rank)
        stage = self._stages[place["pp"]]
        held = {p.name: _held(p, self.mesh, place) for p in stage}

        def sharded(parameter: Parameter, dtype: str) -> SimulatedTensor:
            return SimulatedTensor(dtype, parameter.shape, parameter, held[parameter.name])

        return {
            "model": {p.name: sharded(p, self.dtype) for p in stage},
            "optimizer": {
                "state": {
                    p.name: {
                        "step": SimulatedTensor(MOMENT_DTYPE, ()),
                        "exp_avg": sharded(p, MOMENT_DTYPE),
                        "exp_avg_sq": sharded(p, MOMENT_DTYPE),
                    }
                    for p in stage
                },
                "param_groups": {p.name: _SETTINGS for p in stage},
            },
            "step": STEP,
            "rng": PerRank(
                {n: SimulatedTensor("uint8", (size,)) for n, size in _GENERATORS.items()}
            ),
        }

    def encoded(self, rank: int) -> EncodedState:
        """Return the state of a rank, ready to be saved.

        What the ranks of a stage say is equal, so it is encoded once, and only what they hold of
        the tensors is found for each.
        """
        place = self.mesh.place(rank)
        known = self._known.get(place["pp"])
        if known is None:
            known = self._known[place["pp"]] = encoded(self.state(rank))
        leaves = []
        held: dict[str, tuple[Region, ...]] = {}
        for leaf in known.leaves:
            assert isinstance(leaf.value, SimulatedTensor)
            parameter = leaf.value.parameter
            if parameter is None:
                leaves.append(leaf)
                continue
            if parameter.name not in held:
                held[parameter.name] = _held(parameter, self.mesh, place)
            leaves.append(replace(leaf, regions=held[parameter.name]))
        return replace(known, leaves=leaves)


def encoded(state: Mapping[str, object]) -> EncodedState:
    """Return a state, ready to be saved."""
    return encode_state(
        state, adapters={SimulatedTensor: _ADAPTER}, encoders={}, types=TypeRegistry()
    )


def _held(parameter: Parameter, mesh: Mesh, place: Mapping[str, int]) -> tuple[Region, ...]:
    box = held_box(parameter, mesh, place)
    return () if box is None else (Region.whole(box),)
