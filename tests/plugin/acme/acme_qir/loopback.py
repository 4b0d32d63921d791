"""A target that writes its own form, and the frontend that reads it: what goes out comes back.

A `.loop` file is a zip of the program's text and its arrays.
"""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from qir import pipeline
from qir.atomic import replacing
from qir.capability import Capability, load
from qir.errors import InputError, QirError, UsageError
from qir.frontend import Frontend
from qir.frontend import frontend as named
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.text import array_table, parse, print_graph
from qir.ir.verify import check
from qir.ledger import Ledger
from qir.target import Executable, Target

SUFFIX = ".loop"
SAMPLE = """\
graph main as native {
  %x = input() : 2x3xf32 from loop {op = "In", name = "x"}
  %w = constant([0.5, -1.0, 2.0]) : 1x3xf32
  %m = linear(%x, %w) : 2x1xf32 from loop {op = "Dense", name = "m"}
  %r = relu(%m) : 2x1xf32 from loop {op = "Bend", name = "r"}
  output(y=%r)
}
"""
_DATE = (1980, 1, 1, 0, 0, 0)
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def write(graph: Graph, path: Path) -> None:
    """The program as a file."""
    rows: list[dict[str, object]] = []
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in array_table(graph).items():
            data = np.array(array.data, order="C")
            kind = data.dtype.name
            if kind == "object":
                texts = [x.decode() if isinstance(x, bytes) else str(x) for x in data.ravel()]
                rows.append({"name": name, "shape": data.shape, "texts": texts})
                continue
            if data.dtype.kind not in "biuf":  # an element type that NumPy itself does not know
                data = data.view(_BITS[data.dtype.itemsize])
            held = io.BytesIO()
            np.save(held, data)
            archive.writestr(zipfile.ZipInfo(f"{len(rows)}.npy", _DATE), held.getvalue())
            rows.append({"name": name, "kind": kind})
        archive.writestr(zipfile.ZipInfo("arrays", _DATE), json.dumps(rows))
        archive.writestr(zipfile.ZipInfo("program", _DATE), print_graph(graph, origins=True))


def read(path: Path) -> Graph:
    """The program of a file."""
    arrays: dict[str, NDArray[np.generic]] = {}
    with zipfile.ZipFile(path) as archive:
        for number, row in enumerate(json.loads(archive.read("arrays"))):
            if "texts" in row:
                data = np.empty(len(row["texts"]), object)
                data[:] = row["texts"]
                data = data.reshape(row["shape"])
            else:
                held = io.BytesIO(archive.read(f"{number}.npy"))
                data = np.load(held, allow_pickle=False)
                if data.dtype.name != row["kind"]:
                    data = data.view(getattr(ml_dtypes, row["kind"]))
            arrays[row["name"]] = data
        return parse(archive.read("program").decode(), arrays)


class LoopbackFrontend(Frontend):
    """Reads `.loop` files."""

    name = "loopback"
    suffixes = (SUFFIX,)

    def load(self, source: object, ledger: Ledger) -> Graph:
        path = Path(str(source))
        try:
            graph = read(path)
            check(graph)
        except QirError as error:
            raise InputError(f"{path}: {error}") from error
        except Exception as error:
            raise InputError(f"{path}: is damaged: {error}") from error
        return graph

    def samples(self, folder: Path) -> Sequence[Path]:
        path = folder / f"sample{SUFFIX}"
        write(parse(SAMPLE), path)
        return [path]

    def run_foreign(
        self, node: Node, operands: Mapping[str, NDArray[np.generic]]
    ) -> tuple[NDArray[np.generic], ...]:
        return named(str(node.attrs["framework"])).run_foreign(node, operands)


class LoopbackTarget(Target):
    """Writes `.loop` files, and runs what it reads back from them."""

    name = "loopback"
    profile = "acme-1"
    formats = ("plain",)
    suffix = SUFFIX

    def capability(self) -> Capability:
        return load(Path(__file__).with_name("capability.toml"))

    def emit(
        self,
        graph: Graph,
        path: Path,
        ledger: Ledger,
        *,
        format: str | None = None,
        lossy: bool = False,
    ) -> None:
        if format not in (None, "plain"):
            raise UsageError(f"target loopback has no format {format!r}; it has plain")
        ledger.check(lossy=lossy)
        with replacing(path) as draft:
            write(graph, draft)

    def compile(self, graph: Graph, *, threads: int | None = None) -> Executable:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"model{SUFFIX}")
            self.emit(graph, path, Ledger(), lossy=True)
            return Compiled(LoopbackFrontend().load(path, Ledger()), self.profile)


class Compiled(Executable):
    """What was read back, run by the reference."""

    def __init__(self, graph: Graph, profile: str) -> None:
        self.graph = graph
        self.profile = profile

    def __call__(self, **inputs: object) -> dict[str, object]:
        arrays = {name: np.asarray(data) for name, data in inputs.items()}
        return dict(pipeline.run(self.graph, arrays, profile=self.profile))
