"""What a manifest says, as plain data with stable keys."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from bcpformat.cli.terminal import iso_time
from bcpformat.codec.block import Codec
from bcpformat.interop.state_items import Item, value_text
from bcpformat.model.dtypes import DType
from bcpformat.model.manifest import DATA_PREFIX, MANIFEST_KEY, Manifest, Value
from bcpformat.model.names import split_name
from bcpformat.storage import open_store

Row: TypeAlias = dict[str, Any]  # Any: a JSON map
MAX_FOUND = 1000
"""Objects listed of a place that is no checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """One checkpoint; every row is a JSON map.

    Attributes:
        head: Location, step, writer and totals, of the whole and of what is selected.
        by_key: Bytes by top-level key of the state, of what is selected.
        by_dtype: Bytes by data type, of what is selected.
        tensors: All tensors, by row of the manifest.
        values: All values of the state that are no tensors.
        files: Data files.
        objects: Values stored apart, by row.
        per_rank: Per-rank values, by ordinal.
        unreferenced: Objects that the manifest does not name.
        bytes_below: Name of a container to the selected bytes below it.
    """

    head: Row
    by_key: list[Row]
    by_dtype: list[Row]
    tensors: list[Row]
    values: list[Row]
    files: list[Row]
    objects: list[Row]
    per_rank: list[Row]
    unreferenced: list[Row]
    bytes_below: dict[str, int]

    def document(self) -> Row:
        """Return one JSON document."""
        return {
            **self.head,
            "by_key": self.by_key,
            "by_dtype": self.by_dtype,
            "tensors": self.tensors,
            "values": self.values,
            "files": self.files,
            "objects": self.objects,
            "per_rank": self.per_rank,
            "unreferenced": self.unreferenced,
        }


def describe(
    manifest: Manifest, location: str, *, items: list[Item], take: Callable[[str], bool]
) -> Description:
    """Return what a checkpoint holds.

    Args:
        manifest: Its manifest.
        location: Where it is.
        items: All items of its state.
        take: Whether a name is selected: what the totals count.
    """
    tensors = _tensors(manifest)
    objects = [{"name": o.name, "bytes": o.nbytes, "media": o.media} for o in manifest.objects]
    per_rank = _per_rank(manifest, items)
    files = _files(manifest)
    keys = {MANIFEST_KEY, *(DATA_PREFIX + row.name for row in manifest.files)}
    listed = open_store(location).list()
    selected = [row for row in tensors if any(map(take, (row["name"], *row["aliases"])))]
    sizes = [(row["name"], row["bytes"], 1) for row in selected]
    sizes += [(r["name"], r["bytes"], 0) for r in [*objects, *per_rank] if take(r["name"])]
    return Description(
        head=_head(manifest, location, tensors, selected, files),
        by_key=_by_key(sizes),
        by_dtype=_by_dtype(selected),
        tensors=tensors,
        values=[_value(item) for item in items if not item.is_container and item.kind != "tensor"],
        files=files,
        objects=objects,
        per_rank=per_rank,
        unreferenced=[{"key": i.key, "bytes": i.nbytes} for i in listed if i.key not in keys],
        bytes_below=_bytes_below(sizes),
    )


def describe_missing(location: str) -> Row:
    """Return what is at a place that holds no checkpoint."""
    store = open_store(location)
    listed: list[Row] = [{"key": i.key, "bytes": i.nbytes} for i in store.list()]
    below = sorted(
        row["key"].removesuffix(f"/{MANIFEST_KEY}")
        for row in listed
        if row["key"].endswith(f"/{MANIFEST_KEY}")
    )
    prefixes = tuple(f"{name}/" for name in below)
    leftovers = [
        row
        for row in listed
        if row["key"].endswith(".bcd") and not (prefixes and row["key"].startswith(prefixes))
    ]
    return {
        "location": location,
        "is_checkpoint": False,
        "checkpoints": below,
        "leftovers": leftovers[:MAX_FOUND],
        "others": [
            row
            for row in listed
            if row not in leftovers and not (prefixes and row["key"].startswith(prefixes))
        ][:MAX_FOUND],
        "found_objects": len(listed),
    }


def plain_value(value: Value | Mapping[str, Value]) -> object:
    """Return metadata as JSON; bytes become ``{"base64": text}``."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {key: plain_value(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [plain_value(entry) for entry in value]
    return value


def _head(
    manifest: Manifest,
    location: str,
    tensors: list[Row],
    selected: list[Row],
    files: list[Row],
) -> Row:
    return {
        "location": location,
        "is_checkpoint": True,
        "format": f"1.{manifest.minor}",
        "step": manifest.step,
        "created": iso_time(manifest.created_us),
        "created_us": manifest.created_us,
        "writer": {"name": manifest.writer.name, "version": manifest.writer.version},
        "attempt_id": manifest.attempt_id.hex(),
        "digest": manifest.digest,
        "require": list(manifest.require),
        "optional": list(manifest.optional),
        "user": plain_value(manifest.user),
        "totals": {
            **_sums(tensors),
            "chunks": len(manifest.chunks),
            "files": len(files),
            "file_bytes": sum(row["bytes"] for row in files),
            "raw_bytes": int(manifest.runs.raw.sum()),
            "stored_bytes": int(manifest.runs.stored.sum()),
        },
        "selected": _sums(selected),
    }


def _sums(tensors: list[Row]) -> Row:
    return {
        "tensors": len(tensors),
        "elements": sum(prod(row["shape"]) for row in tensors),
        "tensor_bytes": sum(row["bytes"] for row in tensors),
    }


def _tensors(manifest: Manifest) -> list[Row]:
    table = manifest.tensors
    return [
        {
            "name": name,
            "aliases": list(table.aliases.get(row, ())),
            "dtype": table.dtypes[row],
            "shape": list(table.shapes[row]),
            "bytes": DType.named(table.dtypes[row]).nbytes_of(prod(table.shapes[row])),
            "chunks": int(table.chunks[row]),
        }
        for row, name in enumerate(table.names)
    ]


def _value(item: Item) -> Row:
    row: Row = {"name": item.name, "kind": item.kind, "text": value_text(item.node)}
    if item.registered:
        row["registered"] = item.registered
    return row


def _per_rank(manifest: Manifest, items: list[Item]) -> list[Row]:
    table = manifest.per_rank
    rows = []
    for item in items:
        if item.kind == "per-rank":
            mine = table.path == item.index
            rows.append(
                {
                    "name": item.name,
                    "ranks": table.rank[mine].tolist(),
                    "bytes": int(table.nbytes[mine].sum()),
                }
            )
    return rows


def _files(manifest: Manifest) -> list[Row]:
    runs = manifest.runs
    found = []
    for number, file in enumerate(manifest.files):
        mine = runs.file == number
        codecs = []
        for codec in Codec:
            these = mine & (runs.codec == codec)
            if not these.any():
                continue
            codecs.append(
                {
                    "codec": codec.registry_name,
                    "runs": int(these.sum()),
                    "raw_bytes": int(runs.raw[these].sum()),
                    "stored_bytes": int(runs.stored[these].sum()),
                }
            )
        found.append(
            {
                "name": DATA_PREFIX + file.name,
                "kind": file.kind,
                "bytes": file.nbytes,
                "attempt_id": file.attempt_id.hex(),
                "runs": int(mine.sum()),
                "blocks": file.blocks,
                "raw_bytes": int(runs.raw[mine].sum()),
                "stored_bytes": int(runs.stored[mine].sum()),
                "codecs": codecs,
            }
        )
    return found


def _by_key(sizes: list[tuple[str, int, int]]) -> list[Row]:
    rows: dict[str, Row] = {}
    for name, nbytes, tensors in sizes:
        key = (split_name(name) or [""])[0]
        row = rows.setdefault(key, {"key": key, "tensors": 0, "bytes": 0})
        row["tensors"] += tensors
        row["bytes"] += nbytes
    return sorted(rows.values(), key=lambda row: -row["bytes"])


def _by_dtype(tensors: list[Row]) -> list[Row]:
    rows: dict[str, Row] = {}
    for tensor in tensors:
        row = rows.setdefault(
            tensor["dtype"], {"dtype": tensor["dtype"], "tensors": 0, "elements": 0, "bytes": 0}
        )
        row["tensors"] += 1
        row["elements"] += prod(tensor["shape"])
        row["bytes"] += tensor["bytes"]
    return sorted(rows.values(), key=lambda row: -row["bytes"])


def _bytes_below(sizes: list[tuple[str, int, int]]) -> dict[str, int]:
    """Return container to bytes; a tied tensor counts where its name is."""
    found: dict[str, int] = {}
    for name, nbytes, _ in sizes:
        parent = name
        while parent:
            parent = parent.rpartition("/")[0]
            found[parent] = found.get(parent, 0) + nbytes
    return found
