"""Layers of rows, such as those of audio and keyword networks, as images of height 1."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

import qir
from qir.backends.tflite.session import TfliteSession
from qir.backends.tflite.writer.file import to_tflite
from qir.backends.tflite.writer.forms import converted
from qir.ir.attrs import Attr
from qir.ir.node import Value
from tests.backends.tensorflow.networks import Net
from tests.differential.tensorflow.kernels import HAS_VNNI

from .written import close, compared, kernels

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
F = np.float32


class Rows(Net):
    """A network of rows with channels second."""

    def __init__(self, channels: int, width: int, seed: int) -> None:
        super().__init__(channels, 1, seed)
        text = f"%x = input() : (N)x{channels}x{width}xf32"
        self.graph = qir.parse(f"graph main as native {{ {text}  output(y=%x) }}")
        self.x = self.graph["x"]

    def row(self, x: Value, outer: int, kernel: int, **attrs: Attr) -> Value:
        inner, groups = x.type.shape[1], attrs.get("groups", 1)
        assert isinstance(inner, int)
        assert isinstance(groups, int)
        far = (2 / (inner // groups * kernel)) ** 0.5
        w = self.rng.normal(0, far, (outer, inner // groups, kernel)).astype(F)
        b = self.rng.normal(0, 0.1, outer).astype(F)
        operands = {"x": x, "w": self.graph.constant(w), "bias": self.graph.constant(b)}
        return self.graph.add("conv1d", operands, attrs).result


def _network(net: Rows) -> Value:
    x = net.relu(net.row(net.x, 8, 5, stride=(2,), pad=(2, 2)))
    x = net.op("max_pool1d", x, kernel=(3,), stride=(2,), pad=(1, 1))
    y = net.relu6(net.row(x, 8, 3, groups=8, dilation=(2,), pad=(2, 2)))
    x = net.relu(net.op("add", x, net.row(y, 8, 1)))
    x = net.op("avg_pool1d", x, kernel=(2,), stride=(2,))
    x = net.row(x, 5, 3, pad=(2, 0))
    return net.dense(net.op("flatten", net.op("global_avg_pool", x)), 7)


BUILDS: Mapping[str, Callable[[Rows], Value]] = {
    "network": _network,
    "depthwise": lambda net: net.row(net.x, 12, 3, groups=6, stride=(2,), pad=(1, 1)),
    "groups": lambda net: net.row(net.x, 8, 4, groups=2, stride=(3,), pad=(0, 1)),
    "counted": lambda net: net.op(
        "avg_pool1d", net.row(net.x, 4, 3), kernel=(3,), stride=(2,), pad=(1, 1), count_pad=True
    ),
    "rounded up": lambda net: net.op(
        "max_pool1d", net.row(net.x, 4, 3), kernel=(3,), stride=(4,), ceil=True
    ),
    "two readers": lambda net: net.op("add", y := net.row(net.x, 4, 3), net.op("sigmoid", y)),
}


@pytest.mark.parametrize("target", ["tflite", "tflite-16x8"])
@pytest.mark.parametrize("name", BUILDS)
def test_rows_on_integers_are_the_interpreters(name: str, target: str) -> None:
    net = Rows(6, 40, 3)
    net.ends(BUILDS[name](net))
    statistics = qir.calibrate(net.graph, [net.feeds(4)])
    made = qir.quantize(net.graph, statistics, target=target)
    assert compared(made, net.feeds(3)).tied == 0
    whole = converted(made, qir.Ledger())
    assert [n.op for n in whole].count("dequantize") == 1
    assert not any("1d" in op for op in kernels(whole))


@pytest.mark.parametrize("name", BUILDS)
def test_rows_of_floats_are_what_the_reference_computes(name: str) -> None:
    net = Rows(6, 40, 3)
    net.ends(BUILDS[name](net))
    close(net.graph, net.feeds(3))
    close(qir.quantize(net.graph, weights="f16", target="tflite"), net.feeds(3))


def test_rows_that_are_quantized_while_they_run_are_the_interpreters() -> None:
    net = Rows(6, 40, 3)
    net.ends(_network(net))
    whole = converted(qir.quantize(net.graph, dynamic=True, target="tflite"), qir.Ledger())
    layers = [n for n in whole if n.op == "conv2d"]
    assert len(layers) == 4
    assert all(n.operands["w"].type.quant is not None for n in layers)
    feeds = net.feeds(3)
    (found,) = TfliteSession(to_tflite(whole), 1)(**feeds).values()
    (wanted,) = qir.run(whole, feeds).values()
    assert np.array_equal(np.asarray(found), wanted)


def test_rows_between_two_layers_stay_images() -> None:
    net = Rows(6, 40, 3)
    x = net.relu(net.row(net.x, 8, 5))
    net.ends(net.row(net.op("max_pool1d", x, kernel=(2,), stride=(2,)), 8, 3))
    ops = [n.op for n in converted(net.graph, qir.Ledger())]
    assert (ops.count("unsqueeze"), ops.count("squeeze"), ops.count("transpose")) == (1, 1, 2)
