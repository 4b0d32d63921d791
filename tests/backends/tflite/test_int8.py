"""Networks quantized for TensorFlow Lite: every integer is the interpreter's."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

import qir
from qir.backends.tflite.writer.forms import converted
from qir.ir.node import Value
from qir.testing.random_graphs import random_graph, sample_inputs
from tests.backends.tensorflow.networks import Net, branches, inverted, padded, residual
from tests.differential.tensorflow.kernels import HAS_VNNI

from .written import compared, kernels, quantized, quantized_net

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
NETWORKS = {"residual": residual, "inverted": inverted, "branches": branches, "padded": padded}
F = np.float32
Build = Callable[[Net, Value], Value]


@pytest.mark.parametrize("name", NETWORKS)
def test_every_quantized_tensor_is_the_interpreters(name: str) -> None:
    net = NETWORKS[name](7)
    made = quantized_net(net)
    feeds = net.feeds(8)
    feeds["x"] *= F(1.5)  # beyond what was seen: values saturate
    assert compared(made, feeds).integers > 10_000
    ops = [node.op for node in converted(made, qir.Ledger())]
    assert ops.count("quantize") == ops.count("dequantize") == 1
    assert ops.count("transpose") <= 3


@pytest.mark.parametrize("seed", [3, 5, 8])
def test_every_quantized_tensor_of_random_networks_is_the_interpreters(seed: int) -> None:
    graph = random_graph(seed)
    made = quantized(graph, *(sample_inputs(graph, i) for i in range(3)))
    compared(made, sample_inputs(graph, 9))


def _layer(op: str, shape: tuple[int, ...], bias: int = 0, **attrs: object) -> Build:
    def build(net: Net, x: Value) -> Value:
        operands = {"x": x, "w": net.graph.constant(net.rng.normal(0, 1, shape).astype(F))}
        if bias:
            operands["bias"] = net.graph.constant(net.rng.normal(0, 1, bias).astype(F))
        return net.graph.add(op, operands, attrs).result  # type: ignore[arg-type]

    return build


def _after(op: str, **attrs: object) -> Build:
    """An op on the result of a convolution."""
    return lambda net, x: net.op(op, net.conv(x, 6), **attrs)  # type: ignore[arg-type]


def _pair(op: str, **attrs: object) -> Build:
    return lambda net, x: net.op(op, net.conv(x, 6), net.conv(x, 6), **attrs)  # type: ignore[arg-type]


def _split(net: Net, x: Value) -> Value:
    parts = net.graph.add("split", {"x": net.conv(x, 6)}, {"sizes": (2, 4), "axis": 1}).results
    return net.concat(*reversed(parts))


def _squeeze_excite(net: Net, x: Value) -> Value:
    y = net.conv(x, 6)
    return net.op("mul", y, net.op("sigmoid", net.conv(net.op("global_avg_pool", y), 6, 1)))


def _shuffle(net: Net, x: Value) -> Value:
    def shaped(value: Value, *sizes: int) -> Value:
        operands = {"x": value, "shape": net.graph.constant(np.array(sizes))}
        return net.graph.add("reshape", operands).result

    y = net.op("transpose", shaped(net.conv(x, 6), 0, 2, 3, 12, 12), perm=(0, 2, 1, 3, 4))
    return shaped(y, 0, 6, 12, 12)


def _gathered(net: Net, x: Value) -> Value:
    operands = {"x": net.conv(x, 6), "indices": net.graph.constant(np.array([0, -1, 2]))}
    return net.graph.add("gather", operands, {"axis": 1}).result


def _prelu(net: Net, x: Value) -> Value:
    slope = net.graph.constant(net.rng.normal(0, 0.3, (6, 1, 1)).astype(F))
    return net.graph.add("prelu", {"x": net.conv(x, 6), "slope": slope}).result


def _plus_row(net: Net, x: Value) -> Value:
    row = net.graph.constant(net.rng.normal(0, 1, (6, 1, 1)).astype(F))
    return net.relu(net.op("add", net.op("sigmoid", net.conv(x, 6)), row))


CASES: Mapping[str, tuple[Build, list[str]]] = {
    "groups": (lambda n, x: n.conv(x, 12, 3, 2, groups=4), ["conv2d"]),
    "depthwise": (lambda n, x: n.conv(x, 24, 5, 2, groups=8), ["conv2d"]),
    "two strides": (_layer("conv2d", (8, 1, 3, 3), groups=8, stride=(2, 1)), ["conv2d"]),
    "dilation": (
        _layer("conv2d", (6, 8, 3, 2), 6, dilation=(2, 1), pad=(0, 2, 1, 0), stride=(1, 2)),
        ["conv2d"],
    ),
    "unread rows": (_layer("conv2d", (8, 8, 2, 2), stride=(4, 4)), ["conv2d"]),
    "transposed same": (
        _layer("conv_transpose2d", (8, 5, 4, 4), 5, stride=(2, 2), pad=(1, 1, 1, 1)),
        ["conv_transpose2d"],
    ),
    "transposed and cut": (
        _layer(
            "conv_transpose2d",
            (8, 9, 3, 3),
            9,
            stride=(2, 2),
            pad=(1, 1, 1, 1),
            output_pad=(1, 1),
        ),
        ["conv_transpose2d", "slice"],
    ),
    "clip": (_after("clip", min=0.0, max=8.0), ["conv2d", "clip"]),
    "leaky": (_after("leaky_relu", alpha=0.1), ["conv2d", "leaky_relu"]),
    "hard swish": (_after("hard_swish"), ["conv2d", "hard_swish"]),
    "sigmoid": (_after("sigmoid"), ["conv2d", "sigmoid"]),
    "tanh": (_after("tanh"), ["conv2d", "tanh"]),
    "gelu": (_after("gelu"), ["conv2d", "gelu"]),
    "silu": (_after("silu"), ["conv2d", "silu"]),
    "prelu": (_prelu, ["conv2d", "prelu"]),
    "softmax": (_after("softmax", axis=1), ["conv2d", "softmax"]),
    "mean": (_after("reduce_mean", axes=(2,), keep=False), ["conv2d", "reduce_mean"]),
    "average": (
        _after("avg_pool2d", kernel=(3, 3), stride=(2, 2), pad=(1, 1, 1, 1), count_pad=True),
        ["conv2d", "pad", "avg_pool2d"],
    ),
    "average of what is there": (
        _after("avg_pool2d", kernel=(3, 3), stride=(1, 1), pad=(1, 1, 1, 1)),
        ["conv2d", "avg_pool2d"],
    ),
    "maximum": (
        _after("max_pool2d", kernel=(3, 3), stride=(2, 2), pad=(1, 1, 0, 0)),
        ["conv2d", "max_pool2d"],
    ),
    "nearest": (
        _after("resize_nearest", scales=(2.0, 2.0), axes=(2, 3)),
        ["conv2d", "resize_nearest"],
    ),
    "linear": (_after("resize", scales=(2.0, 2.0), axes=(2, 3)), ["conv2d", "resize"]),
    "slice": (
        _after("slice", starts=(1, 0), ends=(9, 2**62), axes=(2, 1), steps=(2, 1)),
        ["conv2d", "slice"],
    ),
    "split": (_split, ["conv2d", "split", "concat"]),
    "shuffle": (_shuffle, ["conv2d", "reshape", "reshape"]),
    "gather": (_gathered, ["conv2d", "gather"]),
    "tile": (_after("tile", repeats=(1, 2, 1, 1)), ["conv2d", "tile"]),
    "pad": (_after("pad", pads=(0, 0, 1, 1, 0, 0, 2, 1), value=1.5), ["conv2d", "pad"]),
    "reflect": (
        _after("pad", pads=(0, 0, 1, 1, 0, 0, 2, 1), mode="reflect"),
        ["conv2d", "pad"],
    ),
    "depth to space": (
        lambda n, x: n.op("depth_to_space", n.conv(x, 8), block=2),
        ["conv2d", "depth_to_space"],
    ),
    "pixel shuffle": (
        lambda n, x: n.op("depth_to_space", n.conv(x, 12), block=2, mode="CRD"),
        ["conv2d", "depth_to_space"],
    ),
    "space to depth": (_after("space_to_depth", block=3), ["conv2d", "space_to_depth"]),
    "difference": (_pair("sub"), ["conv2d", "conv2d", "sub"]),
    "product": (_pair("mul"), ["conv2d", "conv2d", "mul"]),
    "stacks": (_pair("matmul", trans_b=True), ["conv2d", "conv2d", "matmul"]),
    "row": (_plus_row, ["conv2d", "sigmoid", "add |> relu"]),
    "squeeze and excite": (_squeeze_excite, ["conv2d", "reduce_mean", "conv2d", "sigmoid", "mul"]),
    "rows": (
        lambda n, x: n.relu(n.dense(n.op("flatten", n.conv(x, 4)), 20)),
        ["conv2d", "flatten", "linear |> relu"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_op_is_the_interpreters_kernel(name: str) -> None:
    build, wanted = CASES[name]
    net = Net(8, 12, 3)
    net.ends(build(net, net.x))
    made = quantized_net(net)
    assert kernels(converted(made, qir.Ledger())) == wanted
    found = compared(made, net.feeds(3))
    assert found.tied == 0


def test_what_xnnpack_computes_wrongly_is_computed_in_float() -> None:
    """A sum of a tensor and a row whose scales are far apart."""
    net = Net(8, 12, 3)
    y = net.op("tanh", net.conv(net.x, 6))
    y = net.op("mul", y, net.graph.constant(np.full(1, 1e-5, F)))
    row = net.graph.constant(np.linspace(2, 3, 12, dtype=F).reshape(12, 1))
    net.ends(net.op("add", y, row))
    made, ledger = quantized_net(net), qir.Ledger()
    assert "add" in kernels(converted(made, ledger))
    assert ["below 1/1024" in e.reason for e in ledger if "in float" in e.reason] == [True]
    compared(made, net.feeds(3))


def test_the_second_operand_of_a_product_has_no_zero_point() -> None:
    """XNNPACK of TensorFlow 2.21 reads it as 0."""
    net = Net(8, 12, 3)
    net.ends(net.op("matmul", net.conv(net.x, 6), net.relu(net.conv(net.x, 6)), trans_b=True))
    whole = converted(quantized_net(net), qir.Ledger())
    (node,) = (node for node in whole if node.op == "matmul")
    quant = node.operands["b"].type.quant
    assert quant is not None
    assert not np.any(quant.zeros())
