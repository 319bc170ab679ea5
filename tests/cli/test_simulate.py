from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat import MemoryStore, WriteOptions
from bcpformat.cli import main
from bcpformat.cli.simulate_mesh import Mesh, held_box, spread_ranks, stage_layers
from bcpformat.cli.simulate_models import MODELS, Parameter, parameters
from bcpformat.cli.simulate_read import read
from bcpformat.cli.simulate_save import Saved, plan, save
from bcpformat.cli.simulate_state import STEP, Job, encoded
from bcpformat.engine import write as engine_write
from bcpformat.engine.coordinator import Coordinator
from bcpformat.engine.load import load_manifest
from bcpformat.errors import InvalidArgumentError
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.model.manifest import MANIFEST_KEY, Manifest
from bcpformat.model.progress import silent
from bcpformat.testing.ranks import run_ranks
from bcpformat.wire import decode_manifest, encode_manifest

MESHES = ["pp=2,fsdp=3,tp=2", "tp=2,dp=2,pp=2", "fsdp=1", "fsdp=5,pp=3"]


def quiet(_text: str) -> None:
    pass


def tiny(mesh: str, dtype: str = "float32") -> Job:
    return Job(MODELS["tiny"], Mesh.of(mesh), dtype=dtype)


def simulated(job: Job, *, tile: bool = False) -> Saved:
    return save(job, plan(job, quiet), quiet, tile=tile, trace=False)


def document_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["simulate", "--model", "tiny", "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


# ---- models and meshes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("llama-8b", 8_030_261_248),
        ("llama-70b", 70_553_706_496),
        ("llama-405b", 405_853_388_800),
    ],
)
def test_a_model_has_the_parameters_that_were_published(name: str, count: int) -> None:
    assert sum(prod(p.shape) for p in parameters(MODELS[name])) == count


@given(
    sizes=st.permutations(["pp", "dp", "fsdp", "tp"]).flatmap(
        lambda axes: st.fixed_dictionaries(dict.fromkeys(axes, st.integers(1, 5)))
    ),
    shape=st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple),
    data=st.data(),
)
def test_the_ranks_of_a_stage_hold_every_element_as_often_as_there_are_replicas(
    sizes: dict[str, int], shape: tuple[int, ...], data: st.DataObject
) -> None:
    tp_axis = data.draw(st.none() | st.integers(0, len(shape) - 1))
    parameter = Parameter(name="w", shape=shape, layer=0, tp_axis=tp_axis)
    mesh = Mesh(sizes)
    held = np.zeros(shape, dtype=np.int64)
    for rank in range(len(mesh)):
        place = mesh.place(rank)
        box = held_box(parameter, mesh, place)
        if place["pp"] == 0 and box is not None:
            held[tuple(slice(o, e) for o, e in zip(box.origin, box.end, strict=True))] += 1

    replicas = sizes["dp"] * (sizes["tp"] if tp_axis is None else 1)
    assert (held == replicas).all()


def test_ranks_are_numbered_along_the_last_axis_first() -> None:
    mesh = Mesh.of("tp=2, pp=3")

    places = [(place["tp"], place["pp"]) for place in map(mesh.place, range(6))]

    assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("stages", [1, 3, 4])
def test_every_layer_belongs_to_one_stage(stages: int) -> None:
    mesh = Mesh.of(f"pp={stages}")

    layers = [n for s in range(stages) for n in stage_layers(MODELS["tiny"], mesh, s)]

    assert layers == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_spread_ranks_differ_and_lie_within_the_mesh(count: int) -> None:
    found = spread_ranks(Mesh.of("fsdp=5"), count)

    assert len(set(found)) == min(count, 5) and found[0] == 0 and max(found) <= 4


@pytest.mark.parametrize(
    "text", ["", "fsdp", "fsdp=", "fsdp=0", "fsdp=-1", "ep=2", "tp=2,tp=2", "fsdp=1048577", "tp=2,"]
)
def test_what_is_no_mesh_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        Mesh.of(text)


# ---- the save ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", MESHES)
def test_the_state_of_a_rank_is_the_same_whether_its_stage_was_encoded_before(mesh: str) -> None:
    job = tiny(mesh)
    for rank in range(len(job.mesh)):
        once, again = encoded(job.state(rank)), job.encoded(rank)

        assert (once.root, once.names, once.per_rank) == (again.root, again.names, again.per_rank)
        for first, second in zip(once.leaves, again.leaves, strict=True):
            assert (first.dtype, first.shape, first.regions) == (
                second.dtype,
                second.shape,
                second.regions,
            )


def really_saved(job: Job, *, tile: bool) -> tuple[MemoryStore, Manifest]:
    store = MemoryStore()

    def act(ranks: Coordinator) -> None:
        engine_write.save(
            store,
            lambda: job.encoded(ranks.rank),
            step=STEP,
            coordinator=ranks,
            options=WriteOptions(tile=tile, threads=1),
            progress=silent,
        )

    run_ranks(len(job.mesh), act)
    return store, load_manifest(store, limits=DEFAULT_LIMITS)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mesh", MESHES)
def test_the_manifest_is_that_of_a_save_but_for_what_is_made_up(mesh: str, dtype: str) -> None:
    job = tiny(mesh, dtype)
    _, real = really_saved(job, tile=False)
    found = decode_manifest(simulated(job).document, key=MANIFEST_KEY, limits=DEFAULT_LIMITS)

    made_up = {
        name: getattr(found, name) for name in ("attempt_id", "created_us", "writer", "files")
    }
    assert encode_manifest(replace(real, **made_up), codec="none") == encode_manifest(
        found, codec="none"
    )
    for one, other in zip(real.files, found.files, strict=True):
        assert one.name.partition("-")[2] == other.name.partition("-")[2]
        assert (one.table_bytes, one.blocks, one.lengths) == (
            other.table_bytes,
            other.blocks,
            other.lengths,
        )


@pytest.mark.slow
def test_tiles_are_cut_as_in_a_save() -> None:
    model = replace(MODELS["tiny"], hidden=2048, ffn=1024, heads=4, kv_heads=1, layers=1)
    job = Job(model, Mesh.of("fsdp=2"), dtype="float32")
    _, real = really_saved(job, tile=True)
    found = decode_manifest(
        simulated(job, tile=True).document, key=MANIFEST_KEY, limits=DEFAULT_LIMITS
    )

    assert found.tensors.chunks.max() > 2
    for table in ("tensors", "runs", "chunks"):
        for name in type(getattr(real, table)).__slots__:
            one, other = getattr(getattr(real, table), name), getattr(getattr(found, table), name)
            assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


def test_bytes_and_records_of_all_ranks_are_counted() -> None:
    job = tiny("pp=2,fsdp=3,tp=2")
    planned = plan(job, quiet)
    saved = save(job, planned, quiet, tile=False, trace=True)

    state_bytes = 3 * 4 * job.num_parameters + 4 * len(parameters(job.model))
    assert int(planned.stored.sum()) == state_bytes
    assert saved.stored_bytes > state_bytes  # the generators of each rank
    assert saved.files == 12
    assert saved.merge_peak_bytes is not None and saved.merge_peak_bytes > saved.raw_bytes


# ---- the read ----------------------------------------------------------------------------------


def test_a_rank_that_reads_what_it_wrote_alone_reads_little_more() -> None:
    job = tiny("fsdp=1")

    (found,) = read(simulated(job).document, job, ranks=3, say=quiet).ranks

    assert found.wanted_bytes == 12 * job.num_parameters + 4 * len(parameters(job.model))
    assert found.wanted_bytes <= found.block_bytes < 1.01 * found.wanted_bytes
    assert (found.files, found.reads) == (1, 1)


@pytest.mark.parametrize("mesh", MESHES)
def test_ranks_of_any_mesh_find_all_they_want(mesh: str) -> None:
    document = simulated(tiny("pp=2,fsdp=3,tp=2")).document
    found = read(document, tiny(mesh), ranks=7, say=quiet)

    assert len(found.ranks) == min(7, len(Mesh.of(mesh)))
    assert all(rank.block_bytes >= rank.wanted_bytes for rank in found.ranks)
    assert found.amplification <= found.worst_amplification


# ---- the command -------------------------------------------------------------------------------


@pytest.mark.slow
def test_programs_get_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    found = document_of(capsys, "--mesh", "pp=2,fsdp=4,tp=2", "--readers", "2")

    assert (found["ranks"], found["chunks"], found["files"]) == (16, 867, 16)
    assert [r["mesh"] for r in found["reads"]] == [f"pp=2,fsdp={n},tp=2" for n in (3, 5, 8)]
    assert found["read_amplification"] == max(r["read_amplification"] for r in found["reads"])
    for name, value in found.items():
        if name.endswith(("_seconds", "_bytes", "_rank", "_min", "_max")):
            assert value > 0, name


def test_all_but_times_and_memory_is_the_same_every_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--mesh", "fsdp=2,pp=2", "--read-mesh", "tp=3", "--readers", "2", "--no-memory")
    first, second = (document_of(capsys, *words) for _ in range(2))

    assert first["merge_peak_bytes"] is None
    for found in (first, second, *first["reads"], *second["reads"]):
        for name in [name for name in found if "seconds" in name]:
            del found[name]
    assert first == second


def test_people_get_tables(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--mesh", "fsdp=2", "--read-mesh", "tp=2", "--read-mesh", "pp=4", "--dtype=bfloat16"]
    assert main(["simulate", "--model", "tiny", *words]) == 0

    shown = capsys.readouterr().out
    assert shown.startswith("tiny on fsdp=2: 2 ranks, 229,952 parameters")
    assert "x raw)" in shown
    assert [line.split()[:2] for line in shown.splitlines()[-2:]] == [["tp=2", "2"], ["pp=4", "4"]]


@pytest.mark.parametrize(
    "words",
    [
        ["--mesh", "pp=5"],
        ["--mesh", "fsdp=2", "--read-mesh", "pp=5"],
        ["--mesh", "rows=2"],
        ["--mesh", "fsdp=2", "--readers", "0"],
    ],
)
def test_what_cannot_be_simulated_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--model", "tiny", *words]) == 2

    assert "E_ARGUMENT" in capsys.readouterr().err


@pytest.mark.slow
def test_torch_is_not_needed() -> None:
    code = "import sys; from bcpformat.cli import main; code = main(sys.argv[1:])\n"
    code += "assert 'torch' not in sys.modules; sys.exit(code)"
    words = ["simulate", "--model", "tiny", "--mesh", "fsdp=2"]

    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
