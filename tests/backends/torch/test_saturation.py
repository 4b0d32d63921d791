"""Depthwise layers of 8-bit data, whose pairs of products saturate in kernels of fbgemm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import qir
from qir.ledger import Change
from qir.target import target

from .networks import Array

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)


def network(channels: int) -> tuple[qir.Graph, str, Array]:
    """A depthwise layer with a large weight beside another and a linear layer, quantized for
    TensorFlow; and data."""
    torch.manual_seed(4)
    first = nn.Conv2d(3, channels, 1)
    depthwise = nn.Conv2d(channels, channels, 3, 1, 1, groups=channels)
    last = nn.Linear(channels * 16, 5)
    model = nn.Sequential(first, nn.ReLU(), depthwise, nn.Flatten(), last).eval()
    with torch.no_grad():
        depthwise.weight[:, :, 0, :2] = 2.0
    x = np.random.default_rng(4).uniform(0, 1, (16, 3, 4, 4)).astype(np.float32)
    graph = qir.load(model, inputs=(torch.from_numpy(x),))
    name = graph.inputs[0].name
    statistics = qir.calibrate(graph, [{name: x}])
    return qir.quantize(graph, statistics, target="tensorflow-onednn"), name, x


def saturation_entries(graph: qir.Graph, engine: str) -> list[qir.ledger.Entry]:
    """What the ledger says of pairs when the file of an engine is written."""
    ledger = qir.Ledger()
    qir.build(graph, target=engine, format="torchscript", ledger=ledger)
    return [e for e in ledger if "pairs of products" in e.reason]


@pytest.mark.parametrize(
    ("engine", "channels"),
    [("pytorch-fbgemm", 8), ("pytorch-x86", 104), ("pytorch-x86", 8), ("pytorch-onednn", 8)],
)
def test_layers_that_saturate_in_torch_are_told_with_the_remedy(engine: str, channels: int) -> None:
    graph, name, x = network(channels)
    backend = target(engine)
    # Engine x86 has oneDNN compute layers of up to 100 groups, which adds in 32 bits.
    saturates = engine == "pytorch-fbgemm" or channels > 100
    entries = saturation_entries(graph, engine)
    assert len(entries) == int(saturates)
    (exact,) = qir.run(graph, {name: x}).values()
    (found,) = map(np.asarray, backend.compile(graph)(**{name: x}).values())
    off, step = np.abs(found - exact).max(), np.diff(np.unique(exact)).min()
    assert (off > 10 * step) == saturates
    if not saturates:
        assert off < 1.5 * step
        return
    (entry,) = entries
    assert entry.change is Change.APPROXIMATED
    assert f"qir quantize MODEL --target {engine} makes them 7 bits" in entry.reason
    remedied = qir.quantize(graph, target=engine)
    assert saturation_entries(remedied, engine) == []
    (mended,) = map(np.asarray, backend.compile(remedied)(**{name: x}).values())
    assert 3 * np.abs(mended - exact).max() < off
