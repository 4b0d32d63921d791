"""Cases of data files: `.npz` and `.npy`, broken or of other arrays than a model takes."""

from __future__ import annotations

import io
import random
import warnings
import zipfile
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from qir import pipeline
from qir.calibration import open_data
from qir.calibration.data import DataSource
from qir.calibration.runner import GraphProgram
from qir.ir.graph import Graph
from qir.ir.text import parse
from tests.fuzzing.breaking import break_bytes
from tests.fuzzing.judging import LONGEST, Try, refused

MODEL = """graph main as native {
  %x = input() : (N)x3x4xf32
  %n = input() : (N)x2xi64
  %f = cast(%n) {to = f32} : (N)x2xf32
  %m = reduce_mean(%x) {axes = (1, 2), keep = false} : (N)xf32
  %y = reduce_mean(%f) {axes = (1,), keep = false} : (N)xf32
  %z = add(%m, %y) : (N)xf32
  output(z=%z)
}"""
KINDS = ("f4", "f8", "f2", "i8", "i4", "u1", "?", "c8", ">f4", "U3", "S2", "O", "M8[s]", "V4")
HEADERS = (
    "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 3, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 3, 4), }",
    "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3, 4), }",
    "{'descr': '<f4', 'shape': (2, 3, 4)}",
    "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 'a'), }",
    "((((((((((((((((((((((((((((((((((((((((",
    "[" * 3000,
    "__import__('os')",
    "",
)


@lru_cache(1)
def model() -> Graph:
    return parse(MODEL)


def array(rng: random.Random, shape: tuple[int, ...], kind: str) -> NDArray[np.generic]:
    data = np.zeros(shape, kind)
    if data.dtype.kind in "fiu" and data.size:
        data.flat[0] = rng.choice((1, 3, 100))
    if data.dtype.kind == "f" and data.size and rng.random() < 0.1:
        data.flat[-1] = rng.choice((np.nan, np.inf, -np.inf, 6e4))
    return data


def arrays(rng: random.Random) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Yields what the model takes, now and then with another name, shape or type."""
    count = rng.choice((1, 2, 5, 40))
    for name, sizes, kind in (("x", (3, 4), "f4"), ("n", (2,), "i8")):
        shape = (count, *sizes)
        match rng.randrange(12):
            case 0:
                name = rng.choice(("", "y", "../x", "x.npy", "é", "a\nb", "N" * 300))
            case 1:
                shape = rng.choice(((), (0,), (0, *sizes), sizes, (count, *sizes[::-1]), (count,)))
            case 2:
                kind = rng.choice(KINDS)
            case 3:
                shape = (count + 1, *sizes)
            case 4:
                continue
        yield name, array(rng, shape, kind)
    if rng.random() < 0.1:
        yield "more", array(rng, (count,), "f4")


def npy(rng: random.Random, data: NDArray[np.generic]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, data, allow_pickle=True)
    raw = buffer.getvalue()
    if rng.random() < 0.06:
        head = rng.choice(HEADERS).encode()
        return b"\x93NUMPY\x01\x00" + (len(head) % 65536).to_bytes(2, "little") + head + raw[128:]
    return break_bytes(rng, raw) if rng.random() < 0.15 else raw


def npz(rng: random.Random) -> bytes:
    buffer = io.BytesIO()
    compression = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in arrays(rng):
            suffix = ".npy" if rng.random() < 0.97 else rng.choice((".txt", "/", ".npy.npy"))
            with warnings.catch_warnings(action="ignore"):  # of a name that is there already
                archive.writestr(f"{name}{suffix}", npy(rng, data))
    raw = buffer.getvalue()
    return break_bytes(rng, raw) if rng.random() < 0.5 else raw


def npz_case(attempt: Try) -> None:
    """A data file is refused in one line, or gives batches that the model takes."""
    rng, folder = attempt.rng, attempt.folder / "data"
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    several = rng.random() < 0.3
    for number in range(rng.choice((2, 3)) if several else 1):
        if rng.random() < 0.85:
            (folder / f"{number}.npz").write_bytes(npz(rng))
        else:
            (folder / f"{number}.npy").write_bytes(npy(rng, array(rng, (2, 3, 4), "f4")))
    source = folder if several else next(folder.iterdir())
    program = GraphProgram(model())
    batch, limit = rng.choice((None, 1, 3, 64)), rng.choice((None, None, 1, 7))

    def read() -> DataSource:
        return open_data(source, program.inputs, batch=batch, limit=limit)

    longest = 2 * LONGEST + len(str(source))
    data_source = refused(read, longest)
    if data_source is None:
        return
    refused(data_source.digest, longest)
    refused(lambda: sum(len(batch) for batch in data_source), longest)
    if rng.random() < 0.2:
        refused(lambda: pipeline.calibrate(model(), source, batch=batch, limit=limit), longest)
