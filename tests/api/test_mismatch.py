"""One error with every difference; filters, new names, lenient reads, conversions."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

import bcpformat
from bcpformat import ErrorCode, MemoryStore, MismatchError, PerRank
from bcpformat.api.framework import may_cast
from bcpformat.api.mismatch import Names, missing, prefix_hint
from bcpformat.model.dtypes import DTYPES


class Point(NamedTuple):
    """A subclass of tuple."""

    x: int


def written(state: object) -> MemoryStore:
    store = MemoryStore()
    bcpformat.write(store, state)
    return store


def problems(store: MemoryStore, template: object, **arguments: object) -> dict[str, str]:
    with pytest.raises(MismatchError) as caught:
        bcpformat.read(store, into=template, **arguments)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.MISMATCH
    return {p.where: p.message for p in caught.value.problems}


def test_one_error_lists_every_difference() -> None:
    state = {
        "shape": np.zeros(3),
        "dtype": np.zeros(3),
        "kind": np.zeros(3),
        "plain": 3,
        "rank": PerRank(1),
        "extra": {"a": 1, "b": np.zeros(2)},
        "full": [1, 2],
    }
    template = {
        "shape": np.zeros((3, 1)),
        "dtype": np.zeros(3, np.float32),
        "kind": 3,
        "plain": np.zeros(1),
        "rank": 1,
        "absent": {"x": np.zeros(1)},
        "full": [],
    }

    found = problems(written(state), template)

    assert set(found) == {
        *("shape", "dtype", "kind", "plain", "rank", "absent/x", "extra/a", "extra/b", "full")
    }
    assert "(3, 1)" in found["shape"]
    assert "(3,)" in found["shape"]
    assert "float32" in found["dtype"]
    assert "cast=True" in found["dtype"]
    assert "missing" in found["absent/x"]
    assert "unexpected" in found["extra/a"]
    assert "empty list" in found["full"]


def test_a_near_miss_is_named() -> None:
    state = {"layers": {"0": {"attention": np.zeros(1)}}, "other": 1}

    found = problems(written(state), {"layers": {"0": {"attn": np.zeros(1)}}, "other": 1})

    assert "similar: 'layers/0/attention'" in found["layers/0/attn"]


@pytest.mark.parametrize(
    ("saved", "wanted", "words"),
    [
        ({"module": {"a": 1, "b": 2}}, {"a": 1, "b": 2}, "the checkpoint's names .* 'module/'"),
        ({"a": 1, "b": 2}, {"module": {"a": 1, "b": 2}}, "the template's names .* 'module/'"),
        (
            {"model": {"module": {"a": 1, "b": 2}}},
            {"model": {"a": 1, "b": 2}},
            "'module/' after 'model/'",
        ),
    ],
)
def test_a_prefix_that_explains_all_is_hinted(saved: object, wanted: object, words: str) -> None:
    with pytest.raises(MismatchError, match=words):
        bcpformat.read(written(saved), into=wanted)


def test_many_missing_names_are_told_in_a_moment() -> None:
    saved = [f"model/layers/{i}/attention/{p}/weight" for i in range(5000) for p in "qkvo"]
    wanted = [name.replace("attention", "attn") for name in saved]
    begin = time.thread_time()

    found = missing(wanted, Names(saved))
    hint = prefix_hint(wanted, saved)

    assert time.thread_time() - begin < 5  # seconds; comparing all with all takes a minute
    assert len(found) == 20_000
    assert "similar: 'model/layers/0/attention/q/weight'" in found[0].message
    assert hint == ""


def test_the_message_is_short_and_problems_are_all() -> None:
    with pytest.raises(MismatchError, match="and 60 more") as caught:
        bcpformat.read(written({"w": 1}), into={"w": 1, **{f"v{i}": 1 for i in range(100)}})

    assert len(caught.value.problems) == 100


def test_a_filter_selects_names_on_both_sides() -> None:
    store = written({"model": {"w": np.ones(2), "b": np.ones(1)}, "optimizer": {"m": np.ones(2)}})
    template = {"model": {"w": np.zeros(2), "b": np.zeros(1)}, "epoch": 4}

    back = bcpformat.read(store, into=template, filter="model")

    assert back is template
    assert template["epoch"] == 4
    assert template["model"]["w"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("chosen", "taken"),
    [
        ("a*", {"a", "ab/c", "ab/d"}),
        (["a", "*/d"], {"a", "ab/d"}),
        (("ab/",), {"ab/c", "ab/d"}),
        (lambda name: name.endswith("c"), {"ab/c"}),
        ("[ax]", {"a"}),
        ("AB", set()),
    ],
)
def test_patterns_take_what_they_match_and_what_is_below(chosen: object, taken: set[str]) -> None:
    state = {"a": np.ones(1), "ab": {"c": np.ones(1), "d": np.ones(1)}, "z": np.ones(1)}
    template = {"a": np.zeros(1), "ab": {"c": np.zeros(1), "d": np.zeros(1)}, "z": np.zeros(1)}
    if not taken:
        with pytest.raises(bcpformat.InvalidArgumentError, match="selects none"):
            bcpformat.read(written(state), into=template, filter=chosen)  # type: ignore[arg-type]
        return

    bcpformat.read(written(state), into=template, filter=chosen)  # type: ignore[arg-type]

    leaves = {"a": template["a"], "z": template["z"]}
    leaves |= {f"ab/{k}": v for k, v in template["ab"].items()}  # type: ignore[union-attr]
    assert {name for name, v in leaves.items() if v[0]} == taken  # type: ignore[index]


def test_a_selected_name_that_the_template_lacks_is_unexpected() -> None:
    store = written({"m": {"w": np.ones(1), "v": np.ones(1)}, "o": 1})

    assert set(problems(store, {"m": {"w": np.zeros(1)}}, filter="m")) == {"m/v"}


@pytest.mark.parametrize("chosen", [5, [5], ["a", None]])
def test_what_is_no_filter_is_refused(chosen: object) -> None:
    for into in (None, {"w": np.zeros(1)}):
        with pytest.raises(bcpformat.InvalidArgumentError, match="filter must be"):
            bcpformat.read(written({"w": np.ones(1)}), into=into, filter=chosen, as_numpy=not into)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rename",
    [
        {"net": "model"},
        {"net/w": "model/w", "net/b": "model/b"},
        {"net": "wrong", "net/w": "model/w", "net/b": "model/b"},
        lambda name: name.replace("net", "model"),
    ],
)
def test_names_of_a_template_are_mapped_to_those_of_the_checkpoint(rename: object) -> None:
    template = {"net": {"w": np.zeros(2), "b": np.zeros(1)}}

    bcpformat.read(
        written({"model": {"w": np.ones(2), "b": np.ones(1)}}),
        into=template,
        rename=rename,  # type: ignore[arg-type]
    )

    assert template["net"]["w"].tolist() == [1, 1]
    assert template["net"]["b"].tolist() == [1]


@pytest.mark.parametrize("rename", [5, {"a": 1}, {1: "a"}, [("a", "b")]])
def test_what_is_no_renaming_is_refused(rename: object) -> None:
    with pytest.raises(bcpformat.InvalidArgumentError, match="rename must be"):
        bcpformat.read(written({"a": 1}), into={"a": 1}, rename=rename)  # type: ignore[arg-type]


def test_a_renaming_that_returns_no_name_is_refused() -> None:
    with pytest.raises(bcpformat.InvalidArgumentError, match="rename must return names"):
        bcpformat.read(written({"a": 1}), into={"a": 1}, rename=lambda _: None)  # type: ignore[arg-type,return-value]


def test_a_subclass_of_a_container_in_a_template_is_told() -> None:
    template = {"a": defaultdict(int, x=0), "p": Point(0)}

    found = problems(written({"a": {"x": 1}, "p": (1,)}), template)

    assert set(found) == {"a", "p"}
    assert "defaultdict" in found["a"]
    assert "make it a plain dict" in found["a"]
    assert "Point" in found["p"]


def test_two_template_leaves_may_take_the_same_saved_tensor() -> None:
    template = {"a": np.zeros(2), "b": np.zeros(2)}

    bcpformat.read(written({"w": np.ones(2)}), into=template, rename=lambda _: "w")

    assert template["a"].tolist() == template["b"].tolist() == [1, 1]


def test_a_lenient_read_takes_what_fits_and_returns_the_rest() -> None:
    template = {"a": np.zeros(2), "b": np.zeros(3), "n": 0, "new": np.zeros(1)}

    found = bcpformat.read(
        written({"a": np.ones(2), "b": np.ones(2), "n": 4, "old": 1}), into=template, strict=False
    )

    assert isinstance(found, bcpformat.Mismatches)
    assert {p.where for p in found} == {"b", "new", "old"}
    assert found.state is template
    assert template["a"].tolist() == [1, 1]
    assert template["b"].tolist() == [0, 0, 0]
    assert template["n"] == 4


def test_a_lenient_read_without_differences_returns_an_empty_list() -> None:
    template = {"a": np.zeros(2)}

    found = bcpformat.read(written({"a": np.ones(2)}), into=template, strict=False)

    assert found == []
    assert found.state is template


def test_a_lenient_read_that_matches_no_tensor_is_an_error() -> None:
    store = written({"model": {"w": np.ones(2)}, "n": 1})
    for template, chosen in (
        ({"module": {"w": np.zeros(2)}, "n": 0}, None),
        ({"module": {"w": np.zeros(2)}}, "model"),
        ({"x": 1}, None),
    ):
        with pytest.raises(MismatchError, match="0 of"):
            bcpformat.read(store, into=template, strict=False, filter=chosen)


def test_a_template_of_plain_values_may_be_filled_leniently() -> None:
    template = {"n": 0}

    bcpformat.read(written({"w": np.ones(2), "n": 3}), into=template, strict=False)

    assert template["n"] == 3


# ---- conversions -----------------------------------------------------------------------------


def test_conversions_are_floats_among_floats_and_wider_of_a_kind() -> None:
    for saved, wanted, expected in (
        ("float32", "bfloat16", True),
        ("bfloat16", "float64", True),
        ("float32", "float8_e4m3fn", True),
        ("complex128", "complex64", True),
        ("int32", "int64", True),
        ("int64", "int32", "any"),
        ("uint8", "int16", "any"),
        ("uint8", "uint16", True),
        ("bool", "int8", "any"),
        ("int8", "bool", "any"),
        ("float32", "int32", "any"),
        ("float32", "complex64", "any"),
        ("complex64", "float32", None),
        ("complex64", "int8", None),
        ("float32", "str", None),
    ):
        assert may_cast(saved, wanted, cast=False) is False
        assert may_cast(saved, wanted, cast=True) is (expected is True), (saved, wanted)
        assert may_cast(saved, wanted, cast="any") is (expected is not None), (saved, wanted)
        assert may_cast(saved, saved, cast=False)


def test_every_allowed_conversion_works_and_equals_numpys() -> None:
    saved = {n: np.array([0, 1]).astype(d.numpy) for n, d in DTYPES.items() if n != "complex32"}
    store = written(saved)
    for wanted in saved:
        if wanted.startswith("float8_e8m0"):
            continue  # has no zero
        names = [n for n in saved if may_cast(n, wanted, cast="any") and "e8m0" not in n]
        template = {n: np.zeros(2, DTYPES[wanted].numpy) for n in names}

        bcpformat.read(store, into=template, cast="any", filter=names)

        for name in names:
            assert template[name].astype(np.complex128).tolist() == [0, 1], (name, wanted)


def test_a_conversion_is_only_done_when_asked_for() -> None:
    store = written({"w": np.array([1.5, 2.5])})
    for template in (np.zeros(2, np.float32), torch.zeros(2), np.zeros(2, ml_dtypes.bfloat16)):
        assert "cast=True" in problems(store, {"w": template})["w"]
        back = bcpformat.read(store, into={"w": template}, cast=True)
        assert [float(x) for x in back["w"]] == [1.5, 2.5]


def test_torch_converts_into_strided_parameters() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3, 2, dtype=torch.bfloat16).T)

    bcpformat.read(
        written({"w": torch.arange(6.0).reshape(2, 3)}), into={"w": parameter}, cast=True
    )

    assert torch.equal(parameter.detach().float(), torch.arange(6.0).reshape(2, 3))


def test_an_imaginary_part_is_never_dropped() -> None:
    store = written({"w": np.array([1 + 2j])})
    for template in (np.zeros(1), torch.zeros(1)):
        message = problems(store, {"w": template}, cast="any")["w"]
        assert "complex128 in the checkpoint" in message
        assert "cast=" not in message


def test_text_dates_and_objects_are_no_numbers() -> None:
    store = written({"w": np.ones(1)})
    for code in ("O", "U3", "M8[s]", [("a", "f4")]):
        assert (
            "float64 in the checkpoint"
            in problems(store, {"w": np.zeros(1, code)}, cast="any")["w"]
        )


def test_a_type_that_numpy_cannot_convert_is_refused_before_anything_changes() -> None:
    state = {"a": np.ones(1), "w": torch.zeros(2, dtype=torch.int32).view(torch.complex32)}
    template = {"a": np.zeros(1), "w": np.zeros(2, np.complex64)}

    assert "complex32" in problems(written(state), template, cast=True)["w"]
    assert template["a"].tolist() == [0]


def test_a_template_that_is_a_part_gets_the_way_out() -> None:
    store = bcpformat.MemoryStore()
    bcpformat.write(store, {"model": {"w": np.ones(2)}, "optimizer": {"m": np.ones(2)}, "n": 1})
    template = {"model": {"w": np.zeros(2)}}

    with pytest.raises(bcpformat.MismatchError, match="pass filter='model'"):
        bcpformat.read(store, into=template)
    bcpformat.read(store, into=template, filter="model")

    assert template["model"]["w"].tolist() == [1, 1]
