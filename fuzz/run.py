"""Coverage-guided fuzzing of the readers: ``make fuzz``, or ``python fuzz/run.py --seconds 600``.

Three targets take turns in one process: the manifest decoder; a whole read of a checkpoint whose
manifest or data file is damaged; and one whose sections are damaged under right digests, so that
only the rules stand between the damage and the reader.  A finding is any exception that
is not ours, a hang, or a value that differs from what was written without an error.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from contextlib import suppress

import atheris

with atheris.instrument_imports(include=["bcpformat"]):
    import msgpack
    import numpy as np

    import bcpformat
    from bcpformat.codec.digest import block_digest, document_digest
    from bcpformat.codec.zstd import decompress_frame
    from bcpformat.engine.load import load_manifest
    from bcpformat.model.limits import Limits
    from bcpformat.wire import Header, Kind, decode_root, decode_section, encode_header

LIMITS = Limits(section_bytes=2**22, root_bytes=2**20, table_bytes=2**20)
OPTIONS = bcpformat.ReadOptions(threads=1, budget_bytes=2**26, limits=LIMITS)
DEFAULT_SECONDS = 120


def make_seed(codec: str) -> tuple[bytes, dict[str, bytes], dict[str, object]]:
    """Return the manifest, the data files and the state of a small checkpoint."""
    state: dict[str, object] = {
        "w": np.arange(3000, dtype=np.float32).reshape(50, 60),
        "b": [np.arange(5, dtype=np.int64), (None, True, -(2**70), 2.5, "text")],
        "big": b"x" * 70_000,
        "rank": bcpformat.PerRank({"seed": 3}),
    }
    store = bcpformat.MemoryStore()
    options = bcpformat.WriteOptions(codec=codec)  # type: ignore[arg-type]  # one of the literals
    bcpformat.write(store, state, step=3, options=options)
    files = {i.key: store.read(i.key) for i in store.list()}
    manifest = files.pop("manifest.bcp")
    return manifest, files, state


SEEDS = [make_seed("raw"), make_seed("zstd"), make_seed("planes-zstd")]


def mend(manifest: bytes) -> bytes:
    """Return a manifest whose header and root checksums fit its content, where they can."""
    if len(manifest) < 80:
        return manifest
    head = bytearray(manifest[:64])
    stored = struct.unpack_from("<Q", head, 32)[0]
    head[56:64] = struct.pack("<Q", block_digest(bytes(head[:56])))
    if 64 + stored + 16 > len(manifest):
        return bytes(head) + manifest[64:]
    root = manifest[64 : 64 + stored]
    return bytes(head) + root + document_digest(root) + manifest[64 + stored + 16 :]


def unpacked(manifest: bytes) -> tuple[dict[str, object], list[bytes]]:
    """Return the values of the root and the raw bytes of every section of a valid manifest."""
    root = decode_root(manifest, key="seed", limits=LIMITS)
    stored, raw = struct.unpack_from("<QQ", manifest, 32)
    document = manifest[64 : 64 + stored]
    if stored != raw:
        document = decompress_frame(document, raw_bytes=raw)
    sections = [
        bytes(decode_section(row, manifest[row.position_bytes : row.end_bytes], key="seed"))
        for row in root.sections
    ]
    return msgpack.unpackb(document), sections


def packed(root: dict[str, object], sections: list[bytes], attempt_id: bytes) -> bytes:
    """Return a manifest with these sections, every length and digest right."""
    rows = root["sections"]
    assert isinstance(rows, list)
    for row, data in zip(rows, sections, strict=True):
        row[3:] = ["none", len(data), len(data), document_digest(data)]
    document = msgpack.packb(root)
    head = manifest_head(attempt_id, len(document))
    return head + document + document_digest(document) + b"".join(sections)


def manifest_head(attempt_id: bytes, nbytes: int) -> bytes:
    """Return the header of a manifest with a raw root."""
    header = Header(
        kind=Kind.MANIFEST,
        attempt_id=attempt_id,
        minor=0,
        root_stored_bytes=nbytes,
        root_raw_bytes=nbytes,
    )
    return encode_header(header)


def store_with(manifest: bytes, files: dict[str, bytes]) -> bcpformat.MemoryStore:
    """Return a store that holds these objects."""
    store = bcpformat.MemoryStore()
    for key, data in {**files, "manifest.bcp": manifest}.items():
        store.put_if_absent(key, data)
    return store


def same(a: object, b: object) -> bool:
    """Return whether two states are equal, arrays bit by bit."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, bcpformat.PerRank) and isinstance(b, bcpformat.PerRankValues):
        return same(a.value, b[0])
    return type(a) is type(b) and a == b


def damaged(data: bytes, original: bytes) -> bytes:
    """Return the original with edits that the fuzzer's bytes describe: position, new byte."""
    out = bytearray(original)
    for at in range(0, len(data) - 3, 4):
        position = int.from_bytes(data[at : at + 3], "little") % max(len(out), 1)
        out[position] = data[at + 3]
    return bytes(out)


def decode(data: bytes) -> None:
    """Decode bytes as a manifest, with checksums mended so that rules behind them are reached."""
    for manifest in (data, mend(data)):
        with suppress(bcpformat.BcpError):
            load_manifest(store_with(manifest, {}), limits=LIMITS)


def read(data: bytes) -> None:
    """Read a damaged checkpoint; only our errors or the right values may come back."""
    manifest, files, state = SEEDS[data[0] % len(SEEDS)]
    part, data = data[1] % 2, data[2:]
    if part:
        key = next(iter(files))
        changed = damaged(data, files[key])
        store = store_with(manifest, {key: changed})
    else:
        store = store_with(mend(damaged(data, manifest)), files)
    try:
        found = bcpformat.read(store, as_numpy=True, options=OPTIONS)
    except bcpformat.BcpError:
        found = None
    else:
        if part and not same(state, found):
            raise AssertionError("a damaged data file was read as another value")
    bcpformat.validate(store, options=OPTIONS)


def rules(data: bytes) -> None:
    """Read a checkpoint with a damaged section whose digests are right: only rules are left."""
    manifest, files, _ = SEEDS[data[0] % len(SEEDS)]
    root, sections = unpacked(manifest)
    chosen = data[1] % len(sections)
    sections[chosen] = damaged(data[2:], sections[chosen])
    store = store_with(packed(root, sections, manifest[16:32]), files)
    with suppress(bcpformat.BcpError):
        bcpformat.read(store, as_numpy=True, options=OPTIONS)
    bcpformat.validate(store, options=OPTIONS)


def one(data: bytes) -> None:
    """Run one input through the target its first byte names."""
    if len(data) < 4:
        return
    (decode, read, rules)[data[0] % 3](data[1:])


def corpus() -> Iterator[bytes]:
    """Yield inputs to start from."""
    for manifest, _, _ in SEEDS:
        yield b"\0" + manifest
    for row in range(6):
        yield bytes([1, row % 3, row % 2]) + struct.pack("<HBB", 100 * row, 0, row)
        yield bytes([2, row % 3, row]) + struct.pack("<HBB", 5 * row, 0, row)


def main() -> None:
    """Fuzz for some seconds."""
    import tempfile
    from pathlib import Path

    seconds = DEFAULT_SECONDS
    if "--seconds" in sys.argv:
        at = sys.argv.index("--seconds")
        seconds = int(sys.argv[at + 1])
        del sys.argv[at : at + 2]
    with tempfile.TemporaryDirectory(prefix="bcpformat-fuzz-") as folder:
        for number, data in enumerate(corpus()):
            (Path(folder) / f"seed-{number}").write_bytes(data)
        flags = [
            f"-max_total_time={seconds}",
            "-timeout=20",
            "-rss_limit_mb=4096",
            "-max_len=65536",
        ]
        atheris.Setup([sys.argv[0], *flags, *sys.argv[1:], folder], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
