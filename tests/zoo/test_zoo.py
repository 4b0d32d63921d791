"""The zoo is read, quantized, written for PyTorch and onnxruntime, and run there.

Three networks are in `make test`, the others in `make test-zoo` and `make test-all`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

import qir
from qir import pipeline
from qir.backends.torch.session import engine
from qir.calibration import Statistics
from qir.ir.graph import Graph
from qir.target import target

from .compared import TOLERANCE, compare, compare_by_parts
from .networks import NETWORKS, make

Array = NDArray[np.generic]
FEW = ("mobilenet_v3_small", "squeezenet", "gpt2")
ZOO = [pytest.param(n, marks=pytest.mark.slow if n in FEW else pytest.mark.long) for n in NETWORKS]
vnni = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)


@cache
def read(name: str) -> tuple[Graph, dict[str, Array]]:
    """Returns a network as QIR reads its export, and its data."""
    net, data = make(name)
    graph = qir.load(torch.export.export(net, data))
    return graph, {v.name: x.numpy() for v, x in zip(graph.inputs, data, strict=True)}


@cache
def statistics(name: str) -> Statistics:
    """Returns the ranges of a network's tensors."""
    graph, inputs = read(name)
    return pipeline.calibrate(graph, [inputs], feeds=True)


@cache
def quantized(name: str, to: str) -> Graph:
    """Returns a network quantized for a target."""
    return pipeline.quantize(read(name)[0], statistics(name), target=to)


def wanted(name: str) -> list[Array]:
    """Returns what PyTorch computes with the float network."""
    net, data = make(name)
    with torch.no_grad():
        made = net(*data)
    return [x.numpy() for x in (made if isinstance(made, tuple) else (made,))]


@pytest.mark.parametrize("name", ZOO)
def test_the_float_network_computes_what_pytorch_does(name: str) -> None:
    graph, inputs = read(name)
    assert not [node for node in graph if node.op == "foreign"]
    for ours, theirs in zip(qir.run(graph, inputs).values(), wanted(name), strict=True):
        found = np.asarray(ours)
        assert float(np.abs(found - theirs).max()) <= TOLERANCE * float(np.abs(theirs).max())
        assert np.array_equal(found.argmax(-1), theirs.argmax(-1))


@pytest.mark.parametrize("to", ["pytorch-x86", "pt2e", "onnxruntime"])
@pytest.mark.parametrize("name", ZOO)
def test_nearly_all_multiply_adds_are_on_integers(name: str, to: str) -> None:
    assert pipeline.plan(read(name)[0], target=to).integer_macs >= 0.95


@vnni
@pytest.mark.parametrize("to", ["pytorch-x86", "pytorch-onednn", "pytorch-fbgemm", "pt2e"])
@pytest.mark.parametrize("name", ZOO)
def test_every_integer_is_that_of_pytorchs_kernels(name: str, to: str) -> None:
    graph, inputs = quantized(name, to), read(name)[1]
    found = compare(target(to), graph, inputs)
    assert found.total > 50_000
    assert found.wrong == {}


@pytest.mark.parametrize("name", ZOO)
def test_every_integer_is_that_of_onnxruntimes_kernels(name: str) -> None:
    graph, inputs = quantized(name, "onnxruntime"), read(name)[1]
    found = compare_by_parts(target("onnxruntime"), graph, inputs)
    assert found.total > 50_000
    assert found.wrong == {}


@vnni
@pytest.mark.parametrize("to", ["pytorch-x86", "pt2e"])
@pytest.mark.parametrize("name", ZOO)
def test_pytorch_runs_the_file(name: str, to: str, tmp_path: Path) -> None:
    graph, inputs = quantized(name, to), read(name)[1]
    data = [torch.from_numpy(x) for x in inputs.values()]
    path = tmp_path / f"int8{target(to).suffix}"
    pipeline.save(graph, path, target=to)
    if to == "pt2e":
        made = torch.export.load(str(path)).module()(*data)
        wanted = list(map(np.asarray, qir.run(graph, inputs).values()))
    else:
        with engine("x86"):
            made = torch.jit.load(str(path))(*data)  # type: ignore[no-untyped-call]
        wanted = list(map(np.asarray, target(to).compile(graph)(**inputs).values()))
    theirs = made if isinstance(made, (tuple, list)) else (made,)
    for ours, one in zip(wanted, theirs, strict=True):
        if to == "pt2e":
            assert _signal(one.detach().numpy(), ours) > 30
        else:
            assert np.array_equal(one.numpy(), ours)


@pytest.mark.parametrize("name", ZOO)
def test_onnxruntime_runs_the_file(name: str, tmp_path: Path) -> None:
    graph, inputs = quantized(name, "onnxruntime"), read(name)[1]
    path = tmp_path / "int8.onnx"
    pipeline.save(graph, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for ours, theirs in zip(session.run(None, inputs), wanted(name), strict=True):
        assert _signal(np.asarray(ours), theirs) > 12


def _signal(made: Array, wanted: Array) -> float:
    """Returns the ratio of a result to its error in decibels."""
    real = wanted.astype(np.float64)
    error = np.square(made.astype(np.float64) - real).mean()
    return float(10 * np.log10(np.square(real).mean() / max(error, 1e-30)))
