"""Parts of all ranks become one manifest that keeps every rule, or an error that names ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcpformat.engine.merge import Merger, StoredValues
from bcpformat.engine.part import Part, ReplicaChecks, decode_part, encode_part
from bcpformat.engine.state_record import KnownStates
from bcpformat.errors import DisagreementError, ErrorCode, InvalidArgumentError
from bcpformat.model.checks import check_manifest, used_features
from bcpformat.model.leaves import PerRank
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.model.manifest import FileRow, Manifest, RunTable, Writer, ints
from bcpformat.model.state_merge import Disagree, Undeclared
from bcpformat.wire import decode_manifest, encode_document, encode_manifest
from tests.engine.parts import ATTEMPT, Piece, Rank, part_of


def merger_of(parts: Sequence[Part], *, disagree: Disagree = "error") -> Merger:
    merger = Merger(attempt_id=ATTEMPT, size=len(parts), disagree=disagree)
    for part in parts:
        merger.add(part)
    return merger


def parts_of(*ranks: Rank) -> list[Part]:
    return [part_of(rank, has) for rank, has in enumerate(ranks)]


def valid(manifest: Manifest) -> Manifest:
    """A manifest with what its writer says of it, after all rules."""
    made = replace(
        manifest,
        created_us=1,
        writer=Writer(name="test", version="1"),
        require=used_features(manifest),
    )
    assert check_manifest(made, limits=DEFAULT_LIMITS) == []
    document = encode_manifest(made, codec="none")
    back = decode_manifest(document, key="m", limits=DEFAULT_LIMITS)
    assert encode_manifest(back, codec="none") == document
    return made


def merged(*ranks: Rank) -> Manifest:
    return valid(merger_of(parts_of(*ranks)).finish())


def chunks_of(manifest: Manifest) -> list[tuple[Any, ...]]:
    """Name, origin, extent, start, count and rank of every chunk."""
    rows, axis = [], 0
    chunks, tensors = manifest.chunks, manifest.tensors
    tensor = np.repeat(np.arange(len(tensors)), tensors.chunks).tolist()
    for row, of in enumerate(tensor):
        shape = tensors.shapes[of]
        axes = slice(axis, axis + len(shape))
        axis = axes.stop
        extent = shape if chunks.extent is None else tuple(chunks.extent[axes].tolist())
        run = int(chunks.run[row])
        rows.append(
            (
                tensors.names[of],
                (0,) * len(shape) if chunks.origin is None else tuple(chunks.origin[axes].tolist()),
                extent,
                0 if chunks.start is None else int(chunks.start[row]),
                prod(extent) if chunks.count is None else int(chunks.count[row]),
                int(manifest.files[int(manifest.runs.file[run])].name.split("-")[1]),
            )
        )
    return rows


def w(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.zeros(shape, dtype)


# ---- chunks ------------------------------------------------------------------------------------

shapes = st.lists(st.integers(1, 5), max_size=3).map(tuple)


@st.composite
def tilings(draw: st.DrawFn, name: str, shape: tuple[int, ...]) -> list[Piece]:
    """Pieces that tile a tensor: boxes, some of them cut into flat ranges."""
    boxes = [((0,) * len(shape), shape)]
    if draw(st.booleans()):
        return [Piece(name, *boxes[0])]
    for axis in range(len(shape)):
        cuts = sorted({0, shape[axis], *draw(st.lists(st.integers(0, shape[axis]), max_size=2))})
        boxes = [
            (
                (*origin[:axis], low, *origin[axis + 1 :]),
                (*extent[:axis], high - low, *extent[axis + 1 :]),
            )
            for origin, extent in boxes
            for low, high in pairwise(cuts)
        ]
    pieces = []
    for origin, extent in boxes:
        total = prod(extent)
        flat = draw(st.lists(st.integers(0, total), max_size=2)) if draw(st.booleans()) else []
        cuts = sorted({0, total, *flat})
        pieces += [
            Piece(name, origin, extent, low, high - low if len(cuts) > 2 else None)
            for low, high in pairwise(cuts)
        ]
    return pieces


@st.composite
def saves(draw: st.DrawFn) -> list[Rank]:
    """Ranks that store all tensors of a state together, each some pieces."""
    size = draw(st.integers(1, 4))
    names = draw(st.lists(st.sampled_from("abcdefg"), unique=True, max_size=4))
    held: list[dict[str, np.ndarray]] = [{} for _ in range(size)]
    pieces: list[list[Piece]] = [[] for _ in range(size)]
    for name in names:
        shape = draw(shapes)
        dtype = draw(st.sampled_from(["float32", "int8", "complex128"]))
        for piece in draw(tilings(name, shape)):
            rank = draw(st.integers(0, size - 1))
            held[rank][name] = w(*shape, dtype=dtype)
            pieces[rank].append(piece)
        also = draw(st.integers(0, size - 1))  # holds it, whether it stores some of it or not
        held[also].setdefault(name, w(*shape, dtype=dtype))
    values: list[dict[str, object]] = [
        {**tensors, **({"r": PerRank(rank)} if draw(st.booleans()) else {})}
        for rank, tensors in enumerate(held)
    ]
    ranks = []
    for value, stored in zip(values, pieces, strict=True):
        is_whole = all(
            p.count is None and not any(p.origin) and p.extent == value[p.name].shape  # type: ignore[attr-defined]
            for p in stored
        )
        ranks.append(Rank(value, stored, with_columns=not is_whole))
    return ranks


@given(saves(), st.booleans())
def test_chunks_of_all_ranks_are_in_the_order_of_the_manifest(
    ranks: list[Rank],
    travel: bool,  # noqa: FBT001
) -> None:
    parts = parts_of(*ranks)
    known = KnownStates()
    if travel:
        parts = [decode_part(encode_part(part), where="", known=known) for part in parts]

    merger = merger_of(parts)
    manifest = valid(merger.finish())

    expected = sorted(
        (p.name, p.origin, p.extent, p.start, p.elements, rank)
        for rank, has in enumerate(ranks)
        for p in has.pieces or ()
    )
    expected.sort(key=lambda row: (row[0], row[1], row[3]))
    assert chunks_of(manifest) == expected
    assert merger.raw_bytes == sum(part.raw_bytes for part in parts)
    holders = [rank for rank, has in enumerate(ranks) if "r" in has.value]  # type: ignore[operator]
    assert manifest.per_rank.rank.tolist() == holders


def test_the_columns_of_one_part_are_used_as_they_are() -> None:
    (part,) = parts_of(Rank({"a": w(3), "b": w(2, 2)}, with_columns=False))

    manifest = valid(merger_of([part]).finish())

    assert manifest.chunks.offset is part.chunks.offset and manifest.chunks.origin is None
    assert manifest.runs.raw is part.runs.raw and manifest.tensors.names is part.state.names


def test_a_tensor_without_elements_has_a_row_and_no_chunk() -> None:
    manifest = merged(Rank({"none": w(0, 3)}), Rank({"none": w(0, 3), "w": w(2)}))

    assert manifest.tensors.names == ["none", "w"] and manifest.tensors.chunks.tolist() == [0, 1]


def test_a_state_without_anything_to_store_has_no_file() -> None:
    manifest = merged(Rank({"n": 1}), Rank({"m": 2}))

    assert manifest.files == [] and len(manifest.runs) == 0 and len(manifest.chunks) == 0


def test_origins_too_many_for_one_number_are_sorted_by_two() -> None:
    """3,000 tensors of 2^52 elements: a row and an element do not fit in 63 bits together."""
    names = [f"{n:04d}" for n in range(3000)]
    shape = (2**26, 2**26)
    part = part_of(0, Rank({name: w(1, 1) for name in names}))
    state = replace(part.state, shapes=[shape] * len(names))
    rows = np.random.default_rng(0).permutation(2 * len(names))
    chunks = replace(
        part.chunks,
        run=np.zeros_like(rows),
        offset=rows,
        origin=np.stack([rows % 2 * 2**25, np.zeros_like(rows)], axis=1).reshape(-1),
        extent=np.full(2 * len(rows), 2**25),
    )

    part = replace(part, state=state, chunks=chunks, chunk_tensor=rows // 2)
    manifest = merger_of([part]).finish()

    assert manifest.chunks.offset.tolist() == list(range(len(rows)))


# ---- other tables ------------------------------------------------------------------------------


def test_files_are_in_the_order_of_their_names_and_runs_in_that_of_files() -> None:
    parts = parts_of(Rank({"a": w(9)}), Rank({"b": w(8)}), Rank({"c": w(7)}))
    parts = [
        replace(p, files=[replace(p.files[0], name=f"{name}.bcd")])
        for p, name in zip(parts, "yxz", strict=True)
    ]

    manifest = valid(merger_of(parts).finish())

    assert [f.name for f in manifest.files] == ["x.bcd", "y.bcd", "z.bcd"]
    assert manifest.runs.raw.tolist() == [32, 36, 28]
    assert manifest.chunks.run.tolist() == [1, 0, 2]


def test_per_rank_values_are_in_the_order_of_path_and_rank() -> None:
    manifest = merged(
        Rank({"a": PerRank("a0"), "w": w(3), "b": PerRank("b" * 99)}),
        Rank({"b": PerRank("b")}),
        Rank({"b": PerRank("b"), "w": w(3), "a": PerRank("a")}, pieces=[]),
    )

    assert manifest.per_rank.path.tolist() == [0, 0, 1, 1, 1]
    assert manifest.per_rank.rank.tolist() == [0, 2, 0, 1, 2]
    assert manifest.per_rank.nbytes.tolist() == [3, 2, 101, 2, 2]


def test_objects_are_in_the_order_of_their_names_where_they_were_stored() -> None:
    b, a = b"b" * 70_000, b"a" * 80_000
    manifest = merged(Rank({"b": b, "a": a}, objects=["b"]), Rank({"a": a, "b": b}, objects=["a"]))

    assert [(o.name, o.nbytes, o.run) for o in manifest.objects] == [
        ("a", 80_000, 1),
        ("b", 70_000, 0),
    ]


def test_an_object_that_two_ranks_stored_is_refused() -> None:
    has = Rank({"a": b"a" * 70_000})

    with pytest.raises(InvalidArgumentError, match="'a' was stored by rank 0 and rank 1"):
        merger_of(parts_of(has, has)).finish()


def test_an_object_that_nobody_stored_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'a' was stored by no rank"):
        merger_of(parts_of(Rank({"a": b"a" * 70_000}, objects=[]))).finish()


def test_other_keys_of_tensors_are_kept() -> None:
    extra = {0: {"user": {"k": 1}}}
    part = part_of(0, Rank({"w": w(3)}), extra=extra)

    manifest = valid(merger_of([part, part_of(1, Rank({"x": w(3)}))]).finish())

    assert manifest.tensors.extra == extra


# ---- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rank": 2}, "rank 2 in a save of 2 ranks"),
        ({"rank": 0}, "got 0 after 0"),
        ({"attempt_id": bytes(16)}, "rank 1 wrote for attempt 00000000000000000000000000000000"),
    ],
)
def test_a_part_that_does_not_belong_here_is_refused(changes: dict[str, Any], text: str) -> None:
    first, second = parts_of(Rank({}), Rank({}))
    merger = Merger(attempt_id=ATTEMPT, size=2, disagree="error")
    merger.add(first)

    with pytest.raises(InvalidArgumentError, match=text):
        merger.add(replace(second, **changes))


def test_elements_stored_twice_under_one_name_are_left_to_the_rules_of_the_manifest() -> None:
    t = w(4)
    parts = parts_of(Rank({"emb": t, "head": t, "x": w(2)}), Rank({"x": w(2)}))

    manifest = merger_of(parts).finish()

    problems = check_manifest(manifest, limits=DEFAULT_LIMITS)
    assert [(p.code, p.where) for p in problems] == [(ErrorCode.COVERAGE, "tensor 'x'")]


def test_states_that_differ_are_an_error_with_all_places() -> None:
    parts = parts_of(Rank({"lr": 1, "w": w(2)}), Rank({"lr": 2, "w": w(3)}))

    with pytest.raises(DisagreementError) as caught:
        merger_of(parts).finish()

    assert [p.where for p in caught.value.problems] == ["lr"]
    parts = parts_of(Rank({"lr": 1, "w": w(2)}), Rank({"lr": 1, "w": w(3)}))
    with pytest.raises(DisagreementError, match=r"w: rank 0 has \(2,\) float32, rank 1 has \(3,\)"):
        merger_of(parts).finish()


def test_elements_stored_under_two_names_of_a_tensor_are_refused() -> None:
    t = w(4)
    parts = parts_of(Rank({"emb": t, "head": t}), Rank({"x": w(1)}), Rank({"head": w(4)}))

    with pytest.raises(DisagreementError) as caught:
        merger_of(parts).finish()

    ((problem,),) = (caught.value.problems,)
    assert problem.where == "emb"
    assert problem.message.startswith("rank 2 stored elements that a rank before it stored under")
    assert "(also 'head')" in problem.message


def test_parts_stored_under_two_names_of_a_tensor_are_one_tensor() -> None:
    t = w(4)
    manifest = merged(
        Rank({"emb": t, "head": t}, [Piece("emb", (2,), (2,))]),
        Rank({"head": w(4)}, [Piece("head", (0,), (2,))]),
    )

    assert chunks_of(manifest) == [
        ("emb", (0,), (2,), 0, 2, 1),
        ("emb", (2,), (2,), 0, 2, 0),
    ]
    assert manifest.tensors.aliases == {0: ("head",)}


# ---- replicas ----------------------------------------------------------------------------------


def checked(*rows: tuple[int, int, int, tuple[int, ...]]) -> Rank:
    """A rank with digests of replicas: group, digest, tensor, origin."""
    group, digest, tensor, origins = zip(*rows, strict=True)
    return Rank(
        {"v": w(4), "w": w(4, 4)},
        [],
        checks=ReplicaChecks(
            group=ints(group),
            digest=ints(digest),
            tensor=ints(tensor),
            origin=ints([n for origin in origins for n in origin]),
        ),
    )


def problems_of(*ranks: Rank) -> list[str]:
    with pytest.raises(DisagreementError) as caught:
        merger_of(parts_of(*ranks)).finish()
    assert all(p.code is ErrorCode.DISAGREE for p in caught.value.problems)
    return [p.message for p in caught.value.problems]


def test_replicas_with_equal_digests_agree() -> None:
    parts = parts_of(
        checked((0, -5, 1, (0, 0)), (3, 7, 0, (2,))),
        Rank({"v": w(4), "w": w(4, 4)}),
        checked((3, 7, 0, (2,)), (1, 9, 0, (1,)), (0, -5, 1, (0, 0))),
    )

    valid(merger_of(parts).finish())


def test_replicas_with_other_digests_are_refused_with_tensor_place_and_ranks() -> None:
    found = problems_of(
        checked((0, 1, 1, (0, 0)), (9, 1, 0, (2,))),
        checked((0, 1, 1, (0, 0))),
        checked((9, 2, 0, (2,)), (0, 2, 1, (0, 2))),
        checked((0, 3, 1, (0, 0))),
    )

    assert len(found) == 2
    assert found[0].startswith("replicas of 'v' at (2,) differ between rank 0 and rank 2;")
    assert found[1].startswith("replicas of 'w' at (0, 2) differ between rank 0 and rank 2, 3;")


def test_many_ranks_that_differ_are_shown_in_part() -> None:
    (found,) = problems_of(*(checked((0, n, 0, (0,))) for n in range(20)))

    assert "rank 0 and rank 1, 2, 3, 4, 5, 6, 7, 8, ...;" in found


def test_at_most_a_hundred_groups_of_replicas_are_reported() -> None:
    one, two = (checked(*((g, d, 0, (0,)) for g in range(150))) for d in (0, 1))

    assert len(problems_of(one, two)) == 100


def test_differences_of_states_and_of_replicas_are_reported_together() -> None:
    one, two = checked((0, 0, 0, (0,))), checked((0, 1, 0, (0,)))
    two.value = {"v": w(4), "w": w(4, 5)}

    found = problems_of(one, two)

    assert found[0].startswith("rank 0 has (4, 4)") and found[1].startswith("replicas of 'v'")


# ---- values that nobody declared ---------------------------------------------------------------


def stored(values: Undeclared, *, rank: int) -> StoredValues:
    """What a rank says when it has stored them in one run of one file."""
    lengths = ints([len(encode_document(values.values[v])) for v in values.value.tolist()])
    padded = -(-lengths // 64) * 64
    offset = np.cumsum(padded) - padded
    raw = ints([offset[-1] + lengths[-1]])
    file = FileRow(
        name=f"{ATTEMPT.hex()}-{rank:06d}-000001.bcd",
        attempt_id=ATTEMPT,
        table_bytes=8192,
        blocks=1,
        digest=bytes(16),
    )
    one = ints([1])
    runs = RunTable(
        file=0 * one,
        position=4096 * one,
        raw=raw,
        stored=raw,
        codec=0 * one,
        item=one,
        block_log2=18 * one,
        block0=0 * one,
    )
    return StoredValues(
        files=[file], runs=runs, run=np.zeros_like(lengths), offset=offset, nbytes=lengths
    )


def test_values_that_differ_become_per_rank_rows_once_they_are_stored() -> None:
    ranks = [
        {"r": PerRank(rank), "lr": rank % 2, "w": w(2, 2), "seed": [rank] * rank}
        for rank in range(3)
    ]
    parts = parts_of(*(Rank(value, None if not n else []) for n, value in enumerate(ranks)))
    merger = merger_of(parts, disagree="per_rank")

    values = merger.undeclared()
    manifest = valid(merger.finish(stored=stored(values, rank=0)))

    assert manifest.per_rank.path.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert manifest.per_rank.rank.tolist() == [0, 1, 2] * 3
    files = [
        manifest.files[file].name[33:-4]
        for file in manifest.runs.file[manifest.per_rank.run].tolist()
    ]
    own = ["000000-000000", "000001-000000", "000002-000000"]
    assert files == own + ["000000-000001"] * 6


def test_values_that_differ_must_be_stored() -> None:
    merger = merger_of(parts_of(Rank({"lr": 1}), Rank({"lr": 2})), disagree="per_rank")

    with pytest.raises(InvalidArgumentError, match="2 values that differ have to be stored first"):
        merger.finish()
