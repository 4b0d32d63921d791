"""Results of a fixed scale that are joined with wider data: nothing is clipped."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

import qir
from qir.backends.tflite.writer.forms import converted
from qir.ir.node import Value
from qir.ir.types import QuantType
from tests.backends.tensorflow.networks import Net
from tests.differential.tensorflow.kernels import HAS_VNNI

from .test_sixteen import decibels
from .written import compared, kernels

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
LEAST = {"tflite": 35.0, "tflite-16x8": 45.0}
"""Decibels: of clipped values there are about 2."""
Build = Callable[[Net], Value]


def _wide(net: Net) -> Value:
    """A convolution around 5, which is far beyond 0..1 and -1..1."""
    w = net.rng.normal(0, 0.3, (4, 8, 1, 1)).astype(np.float32)
    bias = net.graph.constant(np.full(4, 5, np.float32))
    operands = {"x": _features(net), "w": net.graph.constant(w), "bias": bias}
    return net.graph.add("conv2d", operands).result


def _features(net: Net) -> Value:
    return net.relu(net.conv(net.x, 8))


def _made(net: Net, op: str) -> Value:
    return net.op(op, net.conv(_features(net), 4, 1), **({"axis": 1} if op == "softmax" else {}))


def _shaped(net: Net, x: Value) -> Value:
    shape = net.graph.constant(np.array([0, 4, 64]))
    return net.graph.add("reshape", {"x": x, "shape": shape}).result


def _stacked(net: Net) -> Value:
    parts = [
        net.graph.add("unsqueeze", {"x": x}, {"axes": (1,)}).result
        for x in (_made(net, "tanh"), _wide(net))
    ]
    return net.concat(*parts)


def _moved(net: Net) -> Value:
    moved = net.op("transpose", _shaped(net, _made(net, "sigmoid")), perm=(0, 2, 1))
    return net.concat(moved, net.op("transpose", _shaped(net, _wide(net)), perm=(0, 2, 1)))


def _pooled(net: Net) -> Value:
    both = net.concat(_made(net, "sigmoid"), _wide(net))
    return net.op("max_pool2d", both, kernel=(2, 2), stride=(2, 2))


def _twice(net: Net) -> Value:
    made = _made(net, "sigmoid")
    return net.concat(made, _wide(net), made, net.op("mul", made, _wide(net)))


CASES: Mapping[str, Build] = {
    "sigmoid": lambda n: n.concat(_wide(n), _made(n, "sigmoid")),
    "softmax": lambda n: n.concat(_made(n, "softmax"), _wide(n)),
    "stacked tanh": _stacked,
    "two scales": lambda n: n.concat(_made(n, "tanh"), _made(n, "sigmoid"), _wide(n)),
    "moved before": _moved,
    "moved after": _pooled,
    "two joins": lambda n: n.concat(_wide(n), n.concat(_made(n, "sigmoid"), _made(n, "sigmoid"))),
    "read twice": _twice,
}


def _net(build: Build) -> Net:
    net = Net(3, 8, 5)
    net.ends(build(net))
    return net


def _quantized(net: Net, target: str, *rules: str) -> qir.Graph:
    statistics = qir.calibrate(net.graph, [net.feeds(8)])
    return qir.quantize(net.graph, statistics, target=target, rules=rules)


def _held(graph: qir.Graph, op: str) -> list[QuantType]:
    """The quantized types of the results of an op."""
    whole = converted(graph, qir.Ledger())
    found = [n.result.type.quant for n in whole if op in (n.op, *(s.op for s in n.stages))]
    return [quant for quant in found if quant is not None]


@pytest.mark.parametrize("target", LEAST)
@pytest.mark.parametrize("name", CASES)
def test_what_is_joined_with_wider_data_is_quantized_again(name: str, target: str) -> None:
    net = _net(CASES[name])
    made, feeds = _quantized(net, target), net.feeds(4)
    compared(made, feeds)
    exact, found = (qir.run(graph, feeds)["y"] for graph in (net.graph, made))
    assert decibels(exact, found) > LEAST[target]
    whole = converted(made, qir.Ledger())
    ops = [node.op for node in whole]
    assert ops.count("quantize") == ops.count("dequantize") == 1, "all between is integers"
    assert "requantize" in kernels(made)


@pytest.mark.parametrize("target", LEAST)
def test_what_fits_the_fixed_scale_shares_it(target: str) -> None:
    def build(net: Net) -> Value:
        clipped = net.op("clip", net.conv(net.x, 4), min=0.0, max=1.0)
        parts = _made(net, "sigmoid"), _made(net, "softmax"), clipped
        return net.concat(net.concat(*parts), _made(net, "sigmoid"))

    net = _net(build)
    made, feeds = _quantized(net, target), net.feeds(4)
    compared(made, feeds)
    assert "requantize" not in kernels(made)
    fixed = 2**-15 if target == "tflite-16x8" else 2**-8
    assert {float(quant.scales()) for quant in _held(made, "concat")} == {fixed}


def test_an_8_bit_result_is_joined_with_16_bit_data() -> None:
    net = _net(CASES["sigmoid"])
    made, feeds = _quantized(net, "tflite", "op=concat: i16 symmetric tensor"), net.feeds(4)
    compared(made, feeds)
    exact, found = (qir.run(graph, feeds)["y"] for graph in (net.graph, made))
    assert decibels(exact, found) > LEAST["tflite"]


def test_the_plan_says_which_operand_is_quantized_again() -> None:
    net = _net(CASES["sigmoid"])
    plan = qir.plan(net.graph, target="tflite")
    joined = next(d for d in plan.decisions if d.op == "concat")
    made = next(d for d in plan.decisions if d.op == "sigmoid")
    name = next(n.result.name for n in net.graph if n.op == "sigmoid")
    assert not joined.reason
    assert "fixed" in made.schemes["result"]
    assert joined.schemes["xs.1"] == joined.schemes["xs.0"] == joined.schemes["result"]
    assert "fixed" not in joined.schemes["result"]
    assert all(name not in names for names in plan.shared)
