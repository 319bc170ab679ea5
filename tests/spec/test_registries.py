"""The registries of the spec against the tables of the code, and against the schema."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bcpformat import errors
from bcpformat.codec import zstd
from bcpformat.codec.block import BlockEncoder, Codec
from bcpformat.errors import (
    ErrorCode,
    InvalidArgumentError,
    LimitError,
    Problem,
    UnsupportedError,
    error_for,
)
from bcpformat.model import limits
from bcpformat.model.checks import CODEC_FEATURES, KNOWN_FEATURES
from bcpformat.model.dtypes import DTYPES
from bcpformat.model.limits import DEFAULT_LIMITS
from bcpformat.wire.root import BLOCK_DIGEST
from spec.generate import SPEC, Row, registry
from tests.spec.text import REQUIREMENTS, TEXT, table_after

ERRORS = registry("errors")["error"]
LIMITS = {row["name"]: row for row in registry("limits")["limit"]}
CODECS = registry("codecs")["codec"]
FEATURES = registry("features")
CLASSES = (
    "io",
    "container",
    "encoding",
    "schema",
    "unsupported",
    "semantic",
    "data",
    "limit",
    "commit",
    "ranks",
    "use",
)
SCHEMA = re.sub(r";.*", "", (SPEC / "schema" / "manifest.cddl").read_text(encoding="utf-8"))

# Where the code has the number that every reader accepts.
FLOORS = {
    "integer": limits.MAX_INTEGER,
    "axes": limits.MAX_NDIM,
    "split-axes": limits.MAX_SPLIT_AXES,
    "name": limits.MAX_NAME_BYTES,
    "state-depth": limits.STATE_DEPTH,
    "document-depth": limits.DOCUMENT_DEPTH,
    "block-log2": limits.MAX_BLOCK_LOG2,
    "zstd-window": zstd.MAX_WINDOW_BYTES,
    "files": DEFAULT_LIMITS.files,
    "runs": DEFAULT_LIMITS.chunks,
    "chunks": DEFAULT_LIMITS.chunks,
    "per-rank": DEFAULT_LIMITS.chunks,
    "root": DEFAULT_LIMITS.root_bytes,
    "state": DEFAULT_LIMITS.state_bytes,
    "rows": DEFAULT_LIMITS.row_bytes,
    "sections": DEFAULT_LIMITS.section_bytes,
    "table": DEFAULT_LIMITS.table_bytes,
}
CONSTANTS = {
    "group-rows": limits.GROUP_ROWS,
    "alignment": limits.ALIGNMENT_BYTES,
    "chunk-alignment": limits.CHUNK_ALIGNMENT_BYTES,
    "object-threshold": limits.OBJECT_THRESHOLD_BYTES,
}


# ---- errors ----------------------------------------------------------------------------------


def test_the_code_has_the_error_codes_of_the_registry_in_its_order() -> None:
    """BCP-ERR-005."""
    assert [code.value for code in ErrorCode] == [row["code"] for row in ERRORS]


def test_every_error_has_a_class_a_meaning_and_steps() -> None:
    for row in ERRORS:
        assert row.keys() == {"code", "class", "steps", "meaning"}, row
        assert row["class"] in CLASSES and row["meaning"], row
        assert row["steps"] == sorted(set(row["steps"]) & set(range(1, 8))), row
        assert row["steps"] or row["class"] in ("commit", "ranks", "use"), row


def test_the_code_groups_error_codes_by_the_classes_of_the_registry() -> None:
    source = Path(errors.__file__).read_text(encoding="utf-8")
    group, grouped = "", {}
    for line in source[source.index("class ErrorCode") :].splitlines():
        if match := re.fullmatch(r"    # (\w+)(?::.*)?", line):
            group = match[1]
        elif match := re.fullmatch(r'    [A-Z_0-9]+ = "(E_[A-Z_0-9]+)"', line):
            grouped[match[1]] = group

    assert grouped == {row["code"]: row["class"] for row in ERRORS}


@pytest.mark.parametrize(
    ("group", "raised"), [("unsupported", UnsupportedError), ("limit", LimitError)]
)
def test_codes_of_a_class_that_handlers_tell_apart_raise_its_exception(
    group: str, raised: type[Exception]
) -> None:
    for row in ERRORS:
        error = error_for(Problem(code=ErrorCode(row["code"]), where="", message=""))

        assert isinstance(error, raised) == (row["class"] == group), row


def test_the_text_names_no_code_that_the_registry_lacks() -> None:
    named = set(re.findall(r"\bE_[A-Z0-9_]+\b", TEXT))

    assert named == {row["code"] for row in ERRORS}


def test_every_code_of_a_reader_is_named_by_a_requirement() -> None:
    named = set(re.findall(r"`(E_[A-Z0-9_]+)`", " ".join(REQUIREMENTS.values())))

    assert [r["code"] for r in ERRORS if r["steps"] and r["code"] not in named] == []


# ---- limits ----------------------------------------------------------------------------------


def test_the_defaults_of_the_code_are_the_floors_of_the_registry() -> None:
    """BCP-LIM-002."""
    assert {name: row["floor"] for name, row in LIMITS.items()} == FLOORS


def test_no_floor_is_above_its_hard_limit() -> None:
    assert all(row["floor"] <= row.get("hard", row["floor"]) for row in LIMITS.values())


def test_the_smallest_block_is_that_of_the_registry() -> None:
    assert LIMITS["block-log2"]["least"] == limits.MIN_BLOCK_LOG2


def test_the_constants_of_the_code_are_those_of_the_registry() -> None:
    rows = registry("limits")["constant"]

    assert {row["name"]: row["value"] for row in rows} == CONSTANTS


def test_every_limit_has_a_code_of_the_registry() -> None:
    codes = {row["code"] for row in ERRORS}

    assert {row["error"] for row in LIMITS.values()} <= codes


# ---- codecs and features ---------------------------------------------------------------------


def test_the_code_has_the_codecs_of_the_registry() -> None:
    assert {c.value: c.registry_name for c in Codec} == {c["code"]: c["name"] for c in CODECS}


@pytest.mark.parametrize("row", CODECS, ids=lambda row: row["name"])
def test_a_codec_has_the_items_of_the_registry(row: Row) -> None:
    """BCP-COD-002."""
    for item in (1, 2, 4, 8):
        if item in row["items"]:
            BlockEncoder(Codec(row["code"]), item=item)
        else:
            with pytest.raises(InvalidArgumentError):
                BlockEncoder(Codec(row["code"]), item=item)


def test_the_codecs_need_the_features_of_the_registry() -> None:
    assert {row["code"]: row.get("feature") for row in CODECS} == CODEC_FEATURES


def test_the_code_knows_the_features_of_the_registry() -> None:
    assert {row["name"] for row in FEATURES["feature"]} == KNOWN_FEATURES


def test_a_codec_or_data_type_needs_a_feature_of_the_registry_or_none() -> None:
    used = {row.get("feature") for row in CODECS} | {d.feature for d in DTYPES.values()}

    assert used - {None} == {row["name"] for row in FEATURES["feature"]}


def test_no_reserved_name_is_in_use() -> None:
    names = [row["name"] for kind in ("feature", "reserved") for row in FEATURES[kind]]

    assert len(names) == len(set(names))


def test_the_code_has_the_block_digest_of_the_registry() -> None:
    assert [row["name"] for row in registry("codecs")["digest"]] == [BLOCK_DIGEST]


# ---- schema ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "heading"),
    [
        ("root", "### 7.1"),
        ("file", "### 7.2"),
        ("tensor", "### 7.3"),
        ("object", "### 7.5"),
        ("runs", "**runs**"),
        ("chunks", "**chunks**"),
        ("per_rank", "**per_rank**"),
    ],
)
def test_the_schema_has_the_keys_of_the_text(rule: str, heading: str) -> None:
    body = re.search(rf"^{rule} = \{{\n(.*?)^\}}$", SCHEMA, re.MULTILINE | re.DOTALL)
    assert body is not None
    keys = re.findall(r'^  (?:\? )?"(\w+)":', body[1], re.MULTILINE)

    assert keys == [row[0].strip("`") for row in table_after(heading)]


def test_the_schema_has_the_node_kinds_of_the_text() -> None:
    nodes = table_after("## 10.")
    codes = {int(m[1]) for row in nodes if (m := re.match(r"`\[(\d+)", row[0]))}
    state = SCHEMA[SCHEMA.index("state = node") :]

    assert codes == set(range(22))
    assert {int(code) for code in re.findall(r"\[(\d+)[,\]]", state)} == codes
