"""Writes `.params` files with MXNet 1.9.1: dense of each element type, sparse, and V3.

`python -m tests.oracles.mxnet_files FOLDER`, in the environment of `make oracle-mxnet`. MXNet 1.9
does not write version V1 any more: that file is written here by hand, and MXNet reads it. What the
arrays hold is in `files.npz`, as `FILE.NAME`.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

SEED = 20261125
KINDS = "float32 float64 float16 uint8 int32 int8 int64".split()


def old(held: dict[str, Any]) -> bytes:
    """Returns a file of version V1, which has no storage types."""
    parts = [struct.pack("<QQQ", 0x112, 0, len(held))]
    for data in held.values():
        head = struct.pack("<II", 0xF993FAC8, data.ndim)
        parts.append(head + struct.pack(f"<{data.ndim}q", *data.shape))
        parts.append(struct.pack("<iii", 1, 0, 0) + data.tobytes())
    parts.append(struct.pack("<Q", len(held)))
    parts += [struct.pack("<Q", len(name)) + name.encode() for name in held]
    return b"".join(parts)


def unwaited(held: bytes) -> bytes:
    """Returns the sparse file as MXNet often writes it without a `waitall`: with stored sizes of 0.

    MXNet notes how much an array stores before it waits for its elements.
    """
    for storage, axes in ((1, 2), (2, 1)):
        before, found, after = held.partition(struct.pack("<Iii", 0xF993FAC9, storage, axes))
        assert found
        held = before + found + struct.pack("<q", 0) + after[8:]
    return held


def main(folder: str) -> None:
    rng, place = np.random.RandomState(SEED), Path(folder)
    dense = {kind: rng.randint(0, 100, (3, 5)).astype(kind) for kind in KINDS}
    held = {f"arg:{n}": mx.nd.array(d, dtype=d.dtype) for n, d in dense.items()}
    mx.nd.save(str(place / "dense.params"), held)
    rows = np.zeros((6, 3), np.float32)
    rows[[1, 4]] = rng.randn(2, 3)
    spread = np.where(rng.uniform(size=(4, 7)) < 0.3, rng.randn(4, 7), 0).astype(np.float32)
    sparse = {"rows": rows, "csr": spread}
    stored = {
        "arg:rows": mx.nd.array(rows).tostype("row_sparse"),
        "aux:csr": mx.nd.array(spread).tostype("csr"),
    }
    mx.nd.waitall()
    mx.nd.save(str(place / "sparse.params"), stored)
    again = mx.nd.load(str(place / "sparse.params"))
    assert all(np.array_equal(again[n].asnumpy(), sparse[n[4:]]) for n in stored)
    (place / "unwaited.params").write_bytes(unwaited((place / "sparse.params").read_bytes()))
    again = mx.nd.load(str(place / "unwaited.params"))
    assert all(np.array_equal(again[n].asnumpy(), sparse[n[4:]]) for n in stored)
    shaped = {"one": np.float32(2.5), "none": np.zeros((0, 3), np.float32), "two": rows}
    mx.npx.set_np()
    values = {n: mx.np.array(d, dtype=np.float32) for n, d in shaped.items()}
    mx.npx.save(str(place / "shaped.params"), values)
    mx.npx.reset_np()
    first = {"w": rng.randn(2, 3).astype(np.float32), "b": rng.randn(4).astype(np.float32)}
    (place / "first.params").write_bytes(old(first))
    again = mx.nd.load(str(place / "first.params"))
    assert all(np.array_equal(again[name].asnumpy(), data) for name, data in first.items())
    files: dict[str, dict[str, Any]] = {
        "dense": dense,
        "sparse": sparse,
        "unwaited": sparse,
        "shaped": shaped,
        "first": first,
    }
    entries = {f"{file}.{name}": d for file, named in files.items() for name, d in named.items()}
    np.savez_compressed(place / "files.npz", **entries)


if __name__ == "__main__":
    main(sys.argv[1])
