"""Layers that quantize their data while the model runs: the interpreter's floats, to the bit."""

import numpy as np
import pytest

import qir
from qir.backends.tflite.session import TfliteSession
from qir.backends.tflite.writer.file import to_tflite
from qir.backends.tflite.writer.forms import converted
from qir.ir.node import Value
from qir.target import target
from tests.backends.tensorflow.networks import Net
from tests.differential.tensorflow.kernels import HAS_VNNI

from .written import TARGET, kernels

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")


def _rows(net: Net, x: Value) -> Value:
    return net.dense(net.relu(net.dense(net.op("flatten", x), 20)), 7)


def _images(net: Net, x: Value) -> Value:
    return net.relu(net.conv(net.relu6(net.conv(x, 8, 3, 2)), 12, 3))


def _stacks(net: Net, x: Value) -> Value:
    w = net.graph.constant(net.rng.normal(0, 1, (12, 9)).astype(np.float32))
    return net.op("matmul", x, w)


@pytest.mark.parametrize("build", [_rows, _images, _stacks])
def test_what_a_dynamic_layer_computes_is_the_interpreters(build: object) -> None:
    net = Net(8, 12, 3)
    net.ends(build(net, net.x))  # type: ignore[operator]
    made = qir.quantize(net.graph, dynamic=True, target=TARGET)
    ledger = qir.Ledger()
    whole = converted(made, ledger)
    layers = [name for name in kernels(whole) if name in ("conv2d", "linear")]
    reasons = [entry.reason for entry in ledger if "its operator quantizes" in entry.reason]
    assert layers
    assert len(reasons) == len(layers)
    assert not any(node.op in ("quantize", "dequantize") for node in whole)
    feeds = net.feeds(3)
    (found,) = TfliteSession(to_tflite(whole), 1)(**feeds).values()
    (wanted,) = qir.run(whole, feeds).values()
    assert np.array_equal(np.asarray(found), wanted)
    (exact,) = qir.run(net.graph, feeds).values()
    apart = np.abs(np.subtract(exact, wanted, dtype=np.float64))
    assert 0 < apart.max() < 0.05 * np.abs(np.asarray(exact, np.float64)).max()
    taken = {v.op: v.taken for v in target(TARGET).verdicts(whole)}
    assert {taken[op] for op in layers} == {"integer"}
