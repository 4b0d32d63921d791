"""Networks quantized for MXNet, what is written of them, and what QIR computes of each tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import qir
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.reference.interpreter import run
from qir.rewrite import run_passes

TARGET = "mxnet-onednn"
PROFILE = "mxnet-1.9"
RECORDED = Path(__file__).with_name("recorded") / "int8.npz"
Arrays = Mapping[str, NDArray[Any]]


def quantized(graph: Graph, x: NDArray[np.float32]) -> Graph:
    """Returns a network quantized for MXNet, with statistics of smaller data: some saturate.

    Its scores too: their range is not widened. One that is quantized already stays as it is.
    """
    if any(value.type.quant is not None for value in graph.values.values()):
        return graph
    statistics = qir.calibrate(graph, x * np.float32(0.6))
    return qir.quantize(graph, statistics, target=TARGET, corrections="correct-bias")


def files(graph: Graph, folder: Path, ledger: Ledger | None = None) -> Path:
    """Writes a network and returns the path of its symbol."""
    path = folder / "model-symbol.json"
    qir.save(graph, path, target=TARGET, ledger=ledger, force=True)
    return path


def digest(path: Path) -> str:
    """Returns what tells the two files of a model from others."""
    parts = path, path.with_name("model-0000.params")
    return hashlib.sha256(b"".join(p.read_bytes() for p in parts)).hexdigest()


def integers(graph: Graph, x: NDArray[np.float32]) -> Arrays:
    """Returns the quantized tensors that QIR foresees for MXNet, by their names."""
    grouped = run_passes(graph, [Group(PROFILE)], Ledger())
    made: dict[str, NDArray[Any]] = {}

    def see(value: Value, data: object) -> None:
        if value.type.quant is not None and value.constant is None:
            made[value.name] = np.asarray(data)

    run(grouped, {graph.inputs[0].name: x}, observe=see)
    return made


def of_mxnet(results: Arrays) -> Arrays:
    """Returns the quantized tensors among the results of nodes, by the names that QIR has."""
    return {
        name.removesuffix("_output0").removesuffix("_output"): array
        for name, array in results.items()
        if array.dtype in (np.int8, np.uint8)
    }


def differing(ours: Arrays, theirs: Arrays) -> list[str]:
    """Returns which tensors are missing or have other types, shapes or elements."""
    return [
        name
        for name, wanted in theirs.items()
        if name not in ours
        or ours[name].dtype != wanted.dtype
        or not np.array_equal(ours[name], wanted)
    ]


def recorded(name: str) -> tuple[str, Arrays]:
    """Returns the digest of the files that MXNet ran, and the tensors it made."""
    start = f"{name}.tensor."
    with np.load(RECORDED) as held:
        tensors = {k.removeprefix(start): held[k] for k in held.files if k.startswith(start)}
        return str(held[f"{name}.digest"]), tensors
