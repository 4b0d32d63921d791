"""Networks of Gluon's zoo: float results as recorded, and int8 in onnxruntime."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import qir
from qir.frontends.mxnet.samples import parameter_bytes
from tests.frontends.comparison import difference
from tests.oracles.mxnet_weights import images, weights

from .recorded_cases import RECORDED, Array

NEAR = 1e-4
SMALL = ("mobilenet0_25", "mobilenet_v2_0_25")
LARGE = ("resnet18_v1", "resnet18_v2", "squeezenet1_1")
EACH = [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)]


@dataclass(frozen=True)
class Network:
    """A recorded network: its symbol, shapes of parameters, pixels of a side, and results."""

    symbol: str
    shapes: dict[str, list[int]]
    side: int
    out: Array

    def write(self, folder: Path) -> Path:
        """Writes its files, the weights drawn by the seed of the recording."""
        path = folder / "network-symbol.json"
        path.write_text(self.symbol)
        held = parameter_bytes(weights(self.shapes))
        (folder / "network-0000.params").write_bytes(held)
        return path


@lru_cache
def network(name: str) -> Network:
    with np.load(RECORDED / "zoo.npz") as held:
        symbol, shapes = str(held[f"{name}.symbol"]), json.loads(str(held[f"{name}.shapes"]))
        return Network(symbol, shapes, int(held[f"{name}.side"]), held[f"{name}.out"])


@pytest.mark.parametrize("name", EACH)
def test_a_network_computes_what_mxnet_computed(name: str, tmp_path: Path) -> None:
    held = network(name)
    graph = qir.load(held.write(tmp_path))
    (made,) = qir.run(graph, {"data": images(2, held.side)}).values()
    assert difference(made, held.out, NEAR) == ""


@pytest.mark.parametrize("name", EACH)
def test_a_network_is_quantized_for_onnxruntime(name: str, tmp_path: Path) -> None:
    held = network(name)
    graph = qir.load(held.write(tmp_path))
    x = images(4, held.side)
    quantized = qir.quantize(graph, qir.calibrate(graph, x), corrections="none")
    qir.save(quantized, tmp_path / "int8.onnx")
    session = onnxruntime.InferenceSession(
        str(tmp_path / "int8.onnx"), providers=["CPUExecutionProvider"]
    )
    (made,) = session.run(None, {"data": x[:2]})
    error = np.square(made.astype(np.float64) - held.out).mean()
    # untrained weights of depthwise layers have channels of very different ranges
    assert 10 * np.log10(np.square(held.out.astype(np.float64)).mean() / error) > 9
