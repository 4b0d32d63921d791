"""Weights stored as float16: half the size, and the interpreter computes what is predicted."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import qir
from qir.backends.tflite.session import TfliteSession
from qir.backends.tflite.writer.file import to_tflite
from qir.backends.tflite.writer.forms import converted
from qir.errors import UsageError
from qir.ir.node import Value
from tests.backends.tensorflow.networks import Net, inverted, residual
from tests.cli.command import assert_one_line
from tests.cli.command import qir as command

from .written import TARGET, close, quantized_net

F = np.float32


def _weights(graph: qir.Graph) -> list[np.ndarray]:
    held = (v.constant.data for v in graph.values.values() if v.constant is not None)
    return [data for data in held if data.dtype == F and data.ndim >= 2]


@pytest.mark.parametrize("network", [residual, inverted])
def test_a_file_holds_the_weights_as_halves_and_is_read_as_such(
    network: Callable[[int], Net], tmp_path: Path
) -> None:
    net, half = network(7), tmp_path / "half.tflite"
    qir.save(qir.quantize(net.graph, weights="f16", target=TARGET), half, target=TARGET)
    back = qir.load(half)
    wanted = [data.astype(np.float16).astype(F) for data in _weights(net.graph)]
    assert sorted(map(np.sum, _weights(back))) == pytest.approx(sorted(map(np.sum, wanted)))
    assert all(np.array_equal(data, data.astype(np.float16)) for data in _weights(back))
    again, plain = (len(to_tflite(converted(g, qir.Ledger()))) for g in (back, net.graph))
    assert again == pytest.approx(half.stat().st_size, rel=0.02)
    saved = 2 * sum(data.size for data in wanted)
    assert plain - half.stat().st_size > 0.75 * saved  # the rest are names of operators


@pytest.mark.slow
@pytest.mark.parametrize("network", [residual, inverted])
def test_the_interpreter_computes_with_halves_what_is_predicted(
    network: Callable[[int], Net],
) -> None:
    pytest.importorskip("tensorflow")
    net = network(7)
    made, feeds = qir.quantize(net.graph, weights="f16", target=TARGET), net.feeds(4)
    close(made, feeds)
    exact, half = (next(iter(qir.run(graph, feeds).values())) for graph in (net.graph, made))
    apart = np.abs(np.subtract(exact, half, dtype=np.float64)).max()
    assert 0 < apart < 2e-3 * np.abs(exact).max()


def _prelu(net: Net, x: Value) -> Value:
    slope = net.graph.constant(net.rng.normal(0, 0.3, (8, 12, 12)).astype(F))
    return net.graph.add("prelu", {"x": x, "slope": slope}).result


def _layer(op: str, shape: tuple[int, ...], **attrs: object) -> Callable[[Net, Value], Value]:
    def build(net: Net, x: Value) -> Value:
        if op == "conv1d":
            x = net.op("reduce_mean", x, axes=(2,), keep=False)
        operands = {"x": x, "w": net.graph.constant(net.rng.normal(0, 1, shape).astype(F))}
        return net.graph.add(op, operands, attrs).result  # type: ignore[arg-type]

    return build


def _product(net: Net, x: Value) -> Value:
    return net.op("matmul", x, net.graph.constant(net.rng.normal(0, 1, (12, 9)).astype(F)))


def _added(net: Net, x: Value) -> Value:
    return net.op("add", x, net.graph.constant(net.rng.normal(0, 1, (8, 12, 12)).astype(F)))


LAYERS: Mapping[str, Callable[[Net, Value], Value]] = {
    "prelu": _prelu,
    "transposed": _layer("conv_transpose2d", (8, 5, 4, 4), stride=(2, 2), pad=(1, 1, 1, 1)),
    "rows": _layer("conv1d", (6, 8, 3)),
    "product": _product,
    "sum": _added,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_an_op_takes_constants_of_halves(name: str) -> None:
    pytest.importorskip("tensorflow")
    net = Net(8, 12, 3)
    net.ends(LAYERS[name](net, net.x))
    made = qir.quantize(net.graph, weights="f16", target=TARGET)
    content = to_tflite(converted(made, qir.Ledger()))
    assert b"/f16" in content
    close(made, net.feeds(3))
    TfliteSession(content, 2)(**net.feeds(2))  # another batch, by more threads


@pytest.mark.slow
@pytest.mark.parametrize("name", ["residual", *LAYERS])
def test_xnnpack_computes_what_it_computes_of_floats(name: str) -> None:
    """It leaves a layer of float16 weights with a float32 bias to slower kernels."""
    tf = pytest.importorskip("tensorflow")
    net = residual(7) if name == "residual" else Net(8, 12, 3)
    if name != "residual":
        net.ends(LAYERS[name](net, net.relu(net.conv(net.x, 8))))

    def parts(graph: qir.Graph) -> int:
        content = to_tflite(converted(graph, qir.Ledger()))
        interpreter = tf.lite.Interpreter(model_content=content, num_threads=1)
        interpreter.allocate_tensors()
        return [op["op_name"] for op in interpreter._get_ops_details()].count("DELEGATE")

    made = qir.quantize(net.graph, weights="f16", target=TARGET)
    assert parts(made) == parts(net.graph)


def test_a_layer_has_weights_and_bias_of_halves_or_neither() -> None:
    net = Net(8, 12, 3)
    net.ends(net.conv(net.x, 8))
    (conv,) = (node for node in net.graph if node.op == "conv2d")
    data = conv.operands["w"].constant
    assert data is not None
    halves = net.graph.constant(data.data.astype(np.float16).astype(F))
    net.graph.set_operand(conv, "w", halves)
    assert b"/f16" not in to_tflite(converted(net.graph, qir.Ledger()))


def test_rules_and_numbers_beyond_float16_keep_weights() -> None:
    net = inverted(7)
    first = next(node for node in net.graph if node.op == "conv2d")
    big = net.graph.constant(np.full((10, 10), 1e5, F))
    (output,) = net.graph.output.operands.values()
    net.ends(net.op("matmul", output, big))
    made = qir.quantize(
        net.graph, weights="f16", target=TARGET, rules=[f"name={first.name}: float"]
    )
    kept = [v.name for v in made.values.values() if v.constant is not None and v.type.rank >= 2]
    assert sum(str(made[name].type.dtype) == "f32" for name in kept) == 2
    plan = qir.plan(net.graph, weights="f16", target=TARGET)
    reasons = [d.reason for d in plan.decisions if "beyond float16" in d.reason]
    assert len(reasons) == 1


def test_int8_files_keep_their_float_weights_as_they_are() -> None:
    assert b"/f16" not in to_tflite(converted(quantized_net(inverted(7)), qir.Ledger()))


def test_the_command_writes_halves_and_refuses_blocks(tmp_path: Path) -> None:
    net, source = residual(7), tmp_path / "net.onnx"
    qir.save(net.graph, source)
    half, blocks = tmp_path / "half.tflite", tmp_path / "blocks.tflite"
    shown = command("quantize", source, "--weights", "f16", "--target", TARGET, "-o", half).out
    assert "weights" in shown
    assert half.stat().st_size < 0.65 * source.stat().st_size
    said = command("quantize", source, "--weights", "u4:32", "--target", TARGET, "-o", blocks)
    assert_one_line(said, 2)
    assert "weights of few bits alone" in said.err
    statistics = qir.calibrate(net.graph, [net.feeds(2)])
    with pytest.raises(UsageError, match="`weights='f16'` stores"):
        qir.quantize(net.graph, statistics, target=TARGET, float16=True)
