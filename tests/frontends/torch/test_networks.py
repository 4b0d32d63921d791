"""Whole networks read from PyTorch: float results, dynamic sizes, and int8 in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import qir
from tests.frontends.comparison import difference

from .comparison import export, run_graph, run_module
from .networks import networks

NETWORKS = networks()
NEAR = 1e-4


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_computes_what_pytorch_computes(name: str, tmp_path: Path) -> None:
    module, inputs = NETWORKS[name]
    program = export(module, inputs)
    path = tmp_path / f"{name}.pt2"
    torch.export.save(program, path)
    theirs = run_module(module, inputs)
    for source in (program, path):
        graph = qir.load(source)
        assert not [n for n in graph if n.op == "foreign"]
        pairs = zip(run_graph(graph, inputs), theirs, strict=True)
        assert [why for a, b in pairs if (why := difference(a, b, NEAR))] == []


@pytest.mark.parametrize("name", NETWORKS)
def test_open_sizes_are_symbols(name: str) -> None:
    module, inputs = NETWORKS[name]
    batch = torch.export.Dim("batch")
    shapes = tuple({0: batch} for _ in inputs)
    graph = qir.load(export(module, inputs, dynamic_shapes=shapes))
    assert all(not isinstance(v.type.shape[0], int) for v in graph.inputs)
    assert not [n for n in graph if n.op == "foreign"]
    for count in (1, 3):
        other = [torch.cat([x] * 2)[:count] for x in inputs]
        pairs = zip(run_graph(graph, other), run_module(module, other), strict=True)
        assert [why for a, b in pairs if (why := difference(a, b, NEAR))] == []


def test_sequences_of_open_length() -> None:
    module, inputs = NETWORKS["decoder"]
    length = torch.export.Dim("length", min=2, max=60)
    graph = qir.load(export(module, inputs, dynamic_shapes=({1: length},)))
    for count in (5, 31):
        ids = torch.arange(count).reshape(1, -1).repeat(2, 1)
        (ours,), (theirs,) = run_graph(graph, [ids]), run_module(module, [ids])
        assert difference(ours, theirs, NEAR) == ""


def test_bags_of_open_number() -> None:
    """torch.export counts the indices, to say where each bag starts."""
    module, ids = nn.EmbeddingBag(20, 8, mode="mean").eval(), torch.arange(12).reshape(3, 4)
    graph = qir.load(export(module, (ids,), dynamic_shapes=({0: torch.export.Dim("n")},)))
    for count in (2, 3):
        other = ids[:count] + 5
        (ours,), (theirs,) = run_graph(graph, [other]), run_module(module, [other])
        assert difference(ours, theirs, NEAR) == ""


@pytest.mark.parametrize("name", ["resnet18", "mobilenet", "shuffle", "segment"])
def test_a_network_is_quantized_for_onnxruntime(name: str, tmp_path: Path) -> None:
    module, (image,) = NETWORKS[name]
    graph = qir.load(module, inputs=(image,))
    statistics = qir.calibrate(graph, image.numpy())
    quantized = qir.quantize(graph, statistics)
    qir.save(quantized, tmp_path / "int8.onnx")
    session = onnxruntime.InferenceSession(
        str(tmp_path / "int8.onnx"), providers=["CPUExecutionProvider"]
    )
    made = session.run(None, {graph.inputs[0].name: image.numpy()})
    for ours, theirs in zip(made, run_module(module, [image]), strict=True):
        error = np.square(ours.astype(np.float64) - theirs).mean()
        assert 10 * np.log10(np.square(theirs.astype(np.float64)).mean() / error) > 12


def test_tied_weights_are_one_constant() -> None:
    graph = qir.load(NETWORKS["decoder"][0], inputs=NETWORKS["decoder"][1])
    words = [n for n in graph if n.op == "constant" and n.result.type.shape == (50, 32)]
    assert len(words) == 1


def test_weights_share_pytorchs_memory() -> None:
    module, inputs = NETWORKS["resnet18"]
    graph = qir.load(export(module, inputs))
    data = graph["fc.weight"].constant
    assert data is not None
    assert np.shares_memory(data.data, module.get_parameter("fc.weight").detach().numpy())
