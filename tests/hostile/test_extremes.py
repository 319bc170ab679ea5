"""Every field of a checkpoint set to extreme values: the right values, or an error that is ours.

The digests and lengths around a changed field are right, so that only its own rules can tell.
Covers BCP-RDR-001, BCP-RDR-002, BCP-ERR-002 and BCP-LIM-002 from the outside.
"""

from __future__ import annotations

import re
import resource
import time
import tomllib
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bcpformat
from bcpformat import BcpError, ErrorCode, MemoryStore, ReadOptions, TensorView
from bcpformat.model.dtypes import DType, pack_subbyte
from tests.conftest import REPOSITORY
from tests.golden.described import described
from tests.hostile import samples
from tests.hostile.extreme_bytes import (
    ABOVE,
    of_block_tables,
    of_cells,
    of_columns,
    of_headers,
    of_section_list,
    of_unknown_section,
)
from tests.hostile.extremes import (
    OUTSIDE,
    Fields,
    of_absent_keys,
    of_node,
    of_root,
    of_rows,
    of_state,
    packed,
)
from tests.oracle.bcp_oracle import BITS, read_checkpoint
from tests.oracle.make_checkpoint import write
from tests.rules.build import Draft
from tests.rules.verdicts import store_of

pytestmark = pytest.mark.slow  # a test is of some hundred checkpoints

OPTIONS = ReadOptions(threads=1, budget_bytes=2**26)
MAX_SECONDS = 2.0
MAX_BYTES = 2**29
"""What the tests together may take from the system, and so what a field may make a reader take."""

# ---- what may come of a change -----------------------------------------------------------------

REFUSED = "refused by the reader and by full validation"
SAME = "read and validated as before"
FOUND = "read as before, refused by full validation"
CHANGED = "read as other values, and validated"
CUT = "read as other values, refused by full validation"

NEW_KEYS = [f"{kind}.~ added" for kind in ("root", "writer", "files", "tensors", "objects")]
NEW_KEYS += [f"{kind}.~ added" for kind in ("runs", "chunks", "per_rank")]
UNREAD = ("attempt", "checksum", "flags", "kind", "magic", "major", "raw", "reserved", "stored")

ALLOWED: list[tuple[list[str], set[str], str]] = [
    (["manifest header.minor"], {SAME}, "what a newer minor adds may be ignored (BCP-VER-001)"),
    ([*NEW_KEYS, "unknown section"], {SAME}, "in a file of a newer minor (BCP-VER-001)"),
    (["data header.minor"], {SAME}, "it has no meaning (BCP-HDR-004)"),
    (
        [*(f"data header.{name}" for name in UNREAD), "files[].attempt"],
        {FOUND},
        "a reader that verified the block table need not read the header (BCP-DAT-009)",
    ),
    (["block table digests"], {SAME}, "one is of a block that the checkpoint does not use"),
    (
        ["root.created", "root.writer.name", "root.writer.version"],
        {SAME},
        "advisory, and not part of the state",
    ),
    (
        ["root.optional", "root.optional[]"],
        {SAME},
        "features that a reader may ignore (spec 7.1)",
    ),
    (
        [
            *(f"{kind}.ext added" for kind in ("root", "files", "tensors")),
            *("root.ext", "root.ext.com.example.mesh", "root.ext.com.example.mesh.axes"),
            *("root.ext.com.example.mesh.axes[]", "files[].ext", "files[].ext.com.example.host"),
            *("tensors[].ext", "tensors[].ext.com.example.note"),
        ],
        {SAME},
        "extensions that are not known are ignored (BCP-VER-003)",
    ),
    (
        ["root.step", "root.step added", "root.user", "root.user.run", "root.user.run[]"],
        {CHANGED},
        "the step and the user's metadata are what the root says",
    ),
    (["root.user added"], {SAME, CHANGED}, "an empty map is as none (BCP-MAN-014)"),
    (
        ["tensors[].user", "tensors[].user.lr", "tensors.user added"],
        {SAME},
        "the user's metadata, which is not part of the state",
    ),
    (
        ["tensors[].segments", "tensors[].segments[]", "tensors[].segments[][]"],
        {SAME},
        "advice (spec 7.3)",
    ),
    (
        ["references: state", "references: state 'tensor'"],
        set(),
        "rows to which no node refers are refused (BCP-STA-004, BCP-STA-005)",
    ),
    (["objects[].media"], {SAME}, "nothing is decoded by it (BCP-OBJ-002)"),
    (
        ["files[].unused[]"],
        {SAME, FOUND},
        "ranges may be wrong by less than a page; the bytes that they leave must be zero",
    ),
    (["runs.block", "layout: runs column block"], {SAME}, "a run of one block has no second"),
    (
        ["chunks.extent"],
        {SAME},
        "a longer or shorter box whose flat range holds the same elements (spec 8.2)",
    ),
    (
        ["tensors[].dtype"],
        {CHANGED, CUT},
        "only the row says what the bits are; a narrower sub-byte type leaves some over",
    ),
    (
        ["tensors[].shape", "tensors[].shape[]"],
        {CHANGED},
        "only the row says the shape of a tensor without elements",
    ),
    (
        ["objects[].nbytes"],
        {CHANGED, CUT},
        "only the row says where an object ends; the zeros behind it may belong to it",
    ),
    (["per_rank.rank", "per_rank column rank"], {CHANGED}, "only the row says whose a value is"),
    (
        ["state 'flagged'", "state 'again'"],
        {SAME},
        "flags tell torch tensors apart, and numpy arrays have none",
    ),
    (
        ["per-rank 'inline'", "per-rank 'inline uint4'"],
        {SAME, CHANGED},
        "the node is the value; its flags are as above",
    ),
]
"""Fields that may be other than refused, what must come of some of their values, and why."""


def allowed(checkpoint: str, field: str) -> set[str]:
    """Return what must come of the changes of a field, refusals apart."""
    if field.endswith(tuple(CODES)):
        return set()
    for fields, verdicts, _ in ALLOWED:
        if field in fields or f"{checkpoint}: {field}" in fields:
            return verdicts
    # All else about a state is what its nodes say.
    return {CHANGED} if field.startswith(("state", "per-rank")) else set()


CODES = {
    OUTSIDE: {ErrorCode.MP_TYPE, ErrorCode.MP_MALFORMED, ErrorCode.DEPTH, ErrorCode.RANGE},
    ABOVE: {ErrorCode.RANGE},
}
"""End of the name of a field to the codes that its changes may have (BCP-CNV-002, section 6)."""


# ---- checkpoints and their fields --------------------------------------------------------------


def of_per_rank_value() -> Fields:
    return of_node(
        samples.RANK_STATE, "per-rank", lambda made: samples.of_ranks([packed(made)]).encoded()
    )


LAYOUT, BOXES, SMALLEST = samples.layout(), samples.boxes(), samples.smallest()
REFERENCES, NEWER = samples.references(), samples.references()
CHECKPOINTS: dict[str, tuple[Draft, list[Fields]]] = {
    "layout": (
        LAYOUT,
        [
            *(of_rows(LAYOUT, "files"), of_section_list(LAYOUT), of_block_tables(LAYOUT)),
            *(of_cells(LAYOUT), of_columns(LAYOUT)),
        ],
    ),
    "boxes": (BOXES, [of_headers(BOXES), of_rows(BOXES, "tensors"), of_cells(BOXES)]),
    "smallest": (SMALLEST, [of_absent_keys(SMALLEST), of_columns(SMALLEST)]),
    "values": (samples.values(), [of_state(samples.values())]),
    "references": (
        REFERENCES,
        [of_root(REFERENCES), of_state(REFERENCES), of_rows(REFERENCES, "objects")],
    ),
    "newer": (NEWER, [of_absent_keys(NEWER, minor=65_535), of_unknown_section(NEWER)]),
    "ranks": (samples.ranks(), [of_per_rank_value()]),
}
FIELDS = {
    name: {field: changes for part in parts for field, changes in part.items()}
    for name, (_, parts) in CHECKPOINTS.items()
}
CASES = [(name, field) for name, fields in FIELDS.items() for field in fields]


@pytest.fixture(scope="module")
def originals() -> dict[str, Any]:
    """Return what is read of each checkpoint as it is; each is valid."""
    stores = {name: store_of(draft) for name, (draft, _) in CHECKPOINTS.items()}
    assert all(bcpformat.validate(store).ok for store in stores.values())
    return {name: (outcome(read, s)[1], outcome(opened, s)[1]) for name, s in stores.items()}


@pytest.fixture(scope="module", autouse=True)
def _bounded_memory() -> Iterator[None]:
    """Let the system refuse what no reader may ask for, also where nothing would be touched."""
    sizes = Path("/proc/self/statm")
    if not sizes.exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(sizes.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MAX_BYTES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# ---- verdicts ----------------------------------------------------------------------------------

STEPS: dict[str, list[int]] = {
    row["code"]: row["steps"]
    for row in tomllib.loads((REPOSITORY / "spec/registry/errors.toml").read_text())["error"]
}
"""Code of the registry to the steps of a reader that can end with it (spec 13)."""

FIRST_STEPS = {"manifest": 2, "root": 3, "writer": 3, "sections": 3, "unknown": 3}
FIRST_STEPS |= {"data": 6, "block": 6, "per-rank": 7}
"""First word of a field to the step that reads it; all others are in sections, which are 4."""

OTHERS: dict[ErrorCode, set[ErrorCode]] = {
    # A table may be refused for its size before the length of its file is looked at.
    ErrorCode.LIMIT: {ErrorCode.TRUNCATED},
}
"""Code of the reader to others that the validator may have found in its place."""


def outcome(call: Callable[[MemoryStore], Any], store: MemoryStore) -> tuple[ErrorCode | None, Any]:
    """Return the code of our error, or None and what a call returned, as plain values."""
    try:
        return None, described(call(store))
    except BcpError as error:
        assert error.code is not ErrorCode.IO
        # ours, but only after the system had said no
        assert not isinstance(error.__cause__, MemoryError | RecursionError)
        return error.code, None


def read(store: MemoryStore) -> Any:
    """Return the whole state."""
    return bcpformat.read(store, as_numpy=True, options=OPTIONS)


def opened_state(store: MemoryStore) -> Any:
    """Return the whole state of an open checkpoint."""
    with bcpformat.open(store, options=OPTIONS) as checkpoint:
        return checkpoint.state()


def opened(store: MemoryStore) -> Any:
    """Return the step and the user's metadata, after a look at every tensor."""
    with bcpformat.open(store, options=OPTIONS) as checkpoint:
        for view in checkpoint.values():
            view.read()
        return checkpoint.step, dict(checkpoint.user)


def verdict(store: MemoryStore, original: Any, seen: set[ErrorCode]) -> str:
    """Return what comes of a changed checkpoint.

    Args:
        store: It is there.
        original: What `read` and `opened` give of it as it was.
        seen: Codes of refusals that an open checkpoint was seen to agree with; grows.
    """
    start = time.perf_counter()
    code, state = outcome(read, store)
    found = {problem.code for problem in bcpformat.validate(store, options=OPTIONS).problems}
    if code is not None:
        if code not in seen:
            seen.add(code)
            assert outcome(opened_state, store)[0] is code
        assert code in found or found & OTHERS.get(code, set())
        verdict = REFUSED
    else:
        refusal, rest = outcome(opened, store)
        assert refusal is None
        if (state, rest) == original:
            verdict = FOUND if found else SAME
        else:
            verdict = CUT if found else CHANGED
    assert time.perf_counter() - start < MAX_SECONDS
    return verdict


@pytest.mark.parametrize(("checkpoint", "field"), CASES, ids=map(": ".join, CASES))
def test_a_field_of_an_extreme_value_is_refused_or_harmless(
    checkpoint: str, field: str, originals: dict[str, Any]
) -> None:
    seen: set[ErrorCode] = set()
    verdicts: set[str] = set()
    first_step = FIRST_STEPS.get(re.split("[^a-z-]", field)[0], 4)
    for what, objects in FIELDS[checkpoint][field]():
        try:
            verdicts.add(verdict(store_of(objects), originals[checkpoint], seen))
        except Exception as error:
            error.add_note(f"where {what}")
            raise

    assert verdicts - {REFUSED} == allowed(checkpoint, field)
    assert {code for code in seen if max(STEPS[code.value], default=0) < first_step} == set()
    for end, codes in CODES.items():
        assert not field.endswith(end) or seen <= codes


def test_every_exception_is_that_of_a_field() -> None:
    names = {field for _, field in CASES} | set(map(": ".join, CASES))

    assert {field for fields, _, _ in ALLOWED for field in fields} <= names


@pytest.mark.parametrize("field", ["tensors[].dtype", "tensors[].shape", "tensors[].shape[]"])
def test_a_tensor_with_another_row_is_what_the_specification_says(
    field: str, tmp_path: Path
) -> None:
    """What is read as other values, against a decoder that was written from the text alone."""
    for number, (what, objects) in enumerate(FIELDS["boxes"][field]()):
        store = store_of(objects)
        if bcpformat.validate(store, options=OPTIONS).problems:
            continue

        expected = read_checkpoint(write(tmp_path / str(number), objects))["tensors"]
        for dtype, shape, _ in expected.values():
            assert prod(max(dim, 1) for dim in shape) * BITS[dtype] < 2**56, what  # BCP-CNV-003

        with bcpformat.open(store, options=OPTIONS) as checkpoint:
            found = {name: tensor(checkpoint[name]) for name in expected}
        assert found == expected, what


def tensor(view: TensorView) -> tuple[str, tuple[int, ...], bytes]:
    """Return data type, shape and stored bytes of a tensor."""
    bits, elements = DType.named(view.dtype).bits, view.read()
    if bits < 8:
        elements = pack_subbyte(elements.reshape(-1).view(np.uint8), bits)
    return view.dtype, view.shape, elements.tobytes()
