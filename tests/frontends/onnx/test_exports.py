"""What torch's exporter writes is read as ops of the language, whatever the file leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray

import qir
from qir.ir.graph import Graph
from qir.reference.interpreter import run

from .exports import Net, export, nets

Arrays = list[NDArray[Any]]
NETS = nets()
CLOSE = 2e-6
"""onnxruntime computes places in a picture in 32 bits."""


def foreign(graph: Graph) -> list[str]:
    """The ops that are kept as the file has them, in bodies too."""
    return [str(n.attrs["op"]) for _, g in graph.walk() for n in g if n.op == "foreign"]


def in_runtime(model: bytes, feed: Mapping[str, NDArray[np.generic]]) -> Arrays:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return [np.asarray(a) for a in session.run(None, {n: feed[n] for n in names})]


def written_anew(graph: Graph, folder: Path) -> bytes:
    qir.save(graph.copy(), folder / "back.onnx")
    return (folder / "back.onnx").read_bytes()


def made(name: str) -> tuple[Net, dict[str, NDArray[np.generic]]]:
    torch.manual_seed(sorted(NETS).index(name))
    net = NETS[name]()
    return net, {f"in{i}": given.numpy() for i, given in enumerate(net.given)}


def check(model: bytes, feed: Mapping[str, NDArray[np.generic]], folder: Path) -> Graph:
    """Reads a model; it gives what onnxruntime gives, here and when it is written again."""
    (folder / "m.onnx").write_bytes(model)
    graph = qir.load(folder / "m.onnx")
    wanted = in_runtime(model, feed)
    found: Arrays = list(run(graph, {v.name: feed[v.name] for v in graph.inputs}).values())
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, CLOSE, CLOSE)
    for got, want in zip(in_runtime(written_anew(graph, folder), feed), wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    return graph


@pytest.mark.parametrize("name", NETS)
def test_an_export_holds_ops_of_the_language_alone_and_gives_its_numbers(
    name: str, tmp_path: Path
) -> None:
    net, feed = made(name)
    assert foreign(check(export(net, dynamic=False), feed, tmp_path)) == []


@pytest.mark.parametrize("name", NETS)
def test_an_export_whose_sizes_are_open_does_too(name: str, tmp_path: Path) -> None:
    net, feed = made(name)
    assert foreign(check(export(net, dynamic=True), feed, tmp_path)) == []
