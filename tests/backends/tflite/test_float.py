"""Float networks written for TensorFlow Lite: the interpreter's results are the reference's."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import qir
from qir.backends.tflite.writer.file import to_tflite
from qir.backends.tflite.writer.forms import converted
from qir.testing.random_graphs import random_graph, sample_inputs
from tests.backends.tensorflow.networks import Net, branches, inverted, padded, residual

from .written import close

pytest.importorskip("tensorflow")
F = np.float32
UNARY = (
    "abs ceil cos elu erf erfc exp exp2 floor gelu hard_sigmoid hard_swish leaky_relu "
    "log_softmax mish neg reciprocal relu round selu sigmoid sign silu sin softmax softplus "
    "softsign square tanh"
).split()
POSITIVE = ("log", "rsqrt", "sqrt")
BINARY = "add sub mul div pow squared_difference equal greater less_equal".split()


def _graph(body: str, **shapes: str) -> qir.Graph:
    inputs = " ".join(f"%{name} = input() : {shape}" for name, shape in shapes.items())
    return qir.parse(f"graph main as native {{ {inputs} {body} output(y=%y) }}")


@pytest.mark.parametrize("build", [branches, inverted, padded, residual])
def test_a_network_computes_the_same(build: object) -> None:
    net = build(7)  # type: ignore[operator]
    close(net.graph, net.feeds(3))


@pytest.mark.parametrize("seed", [2, 4, 6])
def test_a_random_network_computes_the_same(seed: int) -> None:
    graph = random_graph(seed)
    close(graph, sample_inputs(graph, 1))


@pytest.mark.parametrize("op", UNARY + list(POSITIVE))
def test_an_op_of_one_operand_computes_the_same(op: str) -> None:
    graph = _graph(f"%y = {op}(%x) : (N)x7xf32", x="(N)x7xf32")
    x = np.random.default_rng(1).normal(0, 2, (5, 7)).astype(F)
    close(graph, {"x": np.abs(x) + F(0.1) if op in POSITIVE else x})


@pytest.mark.parametrize("op", BINARY)
def test_an_op_of_two_operands_computes_the_same(op: str) -> None:
    kind = "bool" if op in ("equal", "greater", "less_equal") else "f32"
    graph = _graph(f"%y = {op}(%a, %b) : (N)x7x{kind}", a="(N)x7xf32", b="7xf32")
    rng = np.random.default_rng(2)
    a, b = rng.integers(1, 4, (5, 7)).astype(F), rng.integers(1, 4, 7).astype(F)
    close(graph, {"a": a, "b": b})


BODIES: Mapping[str, tuple[str, str]] = {
    "layer norm": (
        "(N)x5x8xf32",
        "%g = constant([1.0, 2.0, 0.5, 1.0, 1.0, 3.0, 1.0, 0.1]) : 8xf32 "
        "%y = layer_norm(%x, %g, beta=%g) : (N)x5x8xf32",
    ),
    "two open sizes": ("(N)x(T)x8xf32", "%y = unsqueeze(%x) {axes = (2,)} : (N)x(T)x1x8xf32"),
    "strides": (
        "(N)x9x8xf32",
        "%y = slice(%x) {starts = (7, 1), ends = (0, 8), axes = (1, 2), steps = (-2, 3)} "
        ": (N)x4x3xf32",
    ),
    "arg max": ("(N)x9xf32", "%y = arg_max(%x) {axis = 1} : (N)x1xi64"),
    "reduction": ("(N)x9x4xf32", "%y = reduce_max(%x) {axes = (1,), keep = false} : (N)x4xf32"),
    "flip": ("(N)x9x4xf32", "%y = flip(%x) {axes = (1, 2)} : (N)x9x4xf32"),
    "running sum": ("(N)x9xf32", "%y = cumsum(%x) {axis = 1, reverse = true} : (N)x9xf32"),
    "local response": ("(N)x7x4x4xf32", "%y = lrn(%x) {size = 5} : (N)x7x4x4xf32"),
    "shape": ("(N)x7xf32", "%y = shape(%x) {start = 1} : 1xi64"),
    "cast": ("(N)x7xf32", "%y = cast(%x) {to = i32} : (N)x7xi32"),
    "softmax": ("(N)x7x5xf32", "%y = softmax(%x) {axis = 1} : (N)x7x5xf32"),
    "stack": ("3x4x5xf32", "%y = matmul(%x, %x) {trans_b = true} : 3x4x4xf32"),
    "turned stack": ("3x4x5xf32", "%y = matmul(%x, %x) {trans_a = true} : 3x5x5xf32"),
    "clip": ("(N)x7xf32", "%y = clip(%x) {min = -0.5} : (N)x7xf32"),
    "condition": (
        "(N)x7xf32",
        "%z = constant([0.0]) : 1xf32 %c = greater(%x, %z) : (N)x7xbool "
        "%y = where(%c, %x, %z) : (N)x7xf32",
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_small_graph_computes_the_same(name: str) -> None:
    shape, body = BODIES[name]
    graph = _graph(body, x=shape)
    sizes = [s if isinstance(s, int) else 3 for s in graph.inputs[0].type.shape]
    close(graph, {"x": np.random.default_rng(3).normal(0, 1, sizes).astype(F)})


@pytest.mark.parametrize(("axis", "largest"), [(-1, True), (1, True), (2, False), (0, False)])
def test_the_greatest_along_an_axis_are_found(axis: int, largest: bool) -> None:
    graph = _graph("%y = relu(%x) : 4x5x6xf32", x="4x5x6xf32")
    attrs = {"k": 3, "axis": axis, "largest": largest}
    values, places = graph.add("top_k", {"x": graph["y"]}, attrs).results
    graph.set_operand(graph.output, "y", values)
    graph.set_operand(graph.output, "places", places)
    # Equal elements too: of these the first comes first.
    x = np.random.default_rng(5).integers(0, 4, (4, 5, 6)).astype(F)
    close(graph, {"x": x})


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("kind", ["i32", "i64"])
def test_classes_become_rows(kind: str, axis: int) -> None:
    graph = _graph("%v = constant([-1.0, 2.5]) : 2xf32 %y = relu(%v) : 2xf32", x=f"(N)x3x{kind}")
    attrs = {"depth": 5, "axis": axis}
    operands = {"indices": graph["x"], "values": graph["v"]}
    graph.set_operand(graph.output, "y", graph.add("one_hot", operands, attrs).result)
    graph.prune()
    x = np.array([[0, 4, 2], [-1, 5, -5], [-6, 1, 9]], kind.replace("i", "int"))
    close(graph, {"x": x})


def test_a_convolution_of_rows_computes_the_same() -> None:
    for groups in (1, 4):
        rng = np.random.default_rng(groups)
        graph = _graph("%y = relu(%x) : (N)x4x20xf32", x="(N)x4x20xf32")
        w = graph.constant(rng.normal(0, 1, (8, 4 // groups, 3)).astype(F))
        attrs = {"pad": (2, 0), "dilation": (2,), "stride": (2,), "groups": groups}
        made = graph.add("conv1d", {"x": graph["y"], "w": w}, attrs).result
        graph.set_operand(graph.output, "y", made)
        close(graph, {"x": rng.normal(0, 1, (2, 4, 20)).astype(F)})


@pytest.mark.parametrize(("op", "gates"), [("lstm", 4), ("gru", 3)])
def test_the_steps_of_a_recurrent_layer_are_written(op: str, gates: int) -> None:
    rng = np.random.default_rng(4)
    graph = _graph("%y = relu(%x) : 6x2x5xf32", x="6x2x5xf32")
    w, r = (rng.normal(0, 0.5, (1, gates * 8, n)).astype(F) for n in (5, 8))
    operands = {"x": graph["y"], "w": graph.constant(w), "r": graph.constant(r)}
    made = graph.add(op, operands).results[0]
    graph.set_operand(graph.output, "y", made)
    whole = converted(graph, qir.Ledger())
    assert op not in {node.op for node in whole}
    assert len(to_tflite(whole)) < 4 * (w.size + r.size) + 40_000
    close(graph, {"x": rng.normal(0, 1, (6, 2, 5)).astype(F)})


def test_an_average_that_leaves_out_padding_computes_the_same() -> None:
    net = Net(3, 9, 1)
    net.ends(net.op("avg_pool2d", net.x, kernel=(3, 3), stride=(2, 2), pad=(1, 1, 0, 0)))
    close(net.graph, net.feeds(2))


def test_outputs_that_are_inputs_or_constants_are_copies(tmp_path: Path) -> None:
    graph = qir.parse(
        "graph main as native { %x = input() : 2x3xf32 %c = constant([1.0, 2.0]) : 2xf32 "
        "output(a=%x, b=%x, c=%c) }"
    )
    close(graph, {"x": np.arange(6, dtype=F).reshape(2, 3)})
    path = tmp_path / "copies.tflite"
    qir.save(graph, path, target="tflite")
    assert list(qir.load(path).outputs) == ["a", "b", "c"]
