"""Models that take and give integers: onnxruntime's are those of the model with floats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

import qir
from qir.ir.types import QuantType
from qir.passes.forms.integer_io import IntegerIo
from tests.backends.tensorflow.networks import Net, branches, inverted, padded, residual

NETWORKS = {"residual": residual, "inverted": inverted, "branches": branches, "padded": padded}
KINDS = {
    "u8": onnx.TensorProto.UINT8,
    "i8": onnx.TensorProto.INT8,
    "u16": onnx.TensorProto.UINT16,
    "f32": onnx.TensorProto.FLOAT,
}


def run(path: Path, data: NDArray[np.generic]) -> NDArray[np.generic]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: data})
    return np.asarray(found)


def quantized(net: Net, io: str, target: str = "onnxruntime") -> qir.Graph:
    _, *sample = net.graph["x"].type.shape
    sizes = [size for size in sample if isinstance(size, int)]
    feeds = {"x": np.random.default_rng(4).normal(0, 1, (4, *sizes)).astype(np.float32)}
    return qir.quantize(net.graph, qir.calibrate(net.graph, [feeds]), target=target, io=io)


def ends(graph: qir.Graph) -> list[QuantType | None]:
    """The types of the only input and the only output."""
    return [value.type.quant for value in (*graph.inputs, *graph.outputs.values())]


def random_integers(graph: qir.Graph, quant: QuantType) -> NDArray[np.generic]:
    _, *sample = graph.inputs[0].type.shape
    sizes = [size for size in sample if isinstance(size, int)]
    rng = np.random.default_rng(5)
    integers = rng.integers(quant.low, quant.high, (8, *sizes), endpoint=True)
    return integers.astype(quant.storage.carrier)


def meaning(quant: QuantType, integers: NDArray[np.generic]) -> NDArray[np.float32]:
    made: NDArray[np.float32] = np.float32(quant.scales()) * (
        integers.astype(np.int32) - int(quant.zeros())
    ).astype(np.float32)
    return made


CASES = [
    *[("onnxruntime", form, io) for form in ("qdq", "qoperator") for io in ("integer", "i8")],
    ("onnx", "qoperator", "integer"),
    ("onnx", "qdq", "u8"),
    ("onnxruntime-w8a16", "qdq", "integer"),
]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("target", "form", "io"), CASES)
def test_onnxruntime_gives_the_integers_of_the_model_with_floats(
    name: str, target: str, form: str, io: str, tmp_path: Path
) -> None:
    net = NETWORKS[name](7)
    plain, integer = quantized(net, "float", target), quantized(net, io, target)
    for graph, file in ((plain, "floats.onnx"), (integer, "integers.onnx")):
        qir.save(graph, tmp_path / file, target=target, format=form)
    x, y = ends(integer)
    assert x is not None
    assert y is not None
    held = onnx.load(tmp_path / "integers.onnx").graph
    kinds = [each.type.tensor_type.elem_type for each in (*held.input, *held.output)]
    storage = {"integer": "u16" if "w8a16" in target else "u8"}.get(io, io)
    assert kinds == [KINDS[storage]] * 2
    # The floats that integers mean are quantized to these integers, however they are rounded.
    given = random_integers(integer, x)
    found = run(tmp_path / "integers.onnx", given)
    assert len(np.unique(found)) > 20
    assert np.array_equal(meaning(y, found), run(tmp_path / "floats.onnx", meaning(x, given)))
    back = qir.load(tmp_path / "integers.onnx")
    assert [str(quant) for quant in ends(back)] == [str(x), str(y)], "read back as written"
    if storage != "u16":  # onnxruntime computes layers of 16-bit data in float
        assert np.array_equal(found, qir.run(back, {"x": given})["y"])


def test_no_operator_of_a_qdq_model_is_outside_its_layers(tmp_path: Path) -> None:
    qir.save(quantized(inverted(7), "integer"), tmp_path / "integers.onnx")
    graph = onnx.load(tmp_path / "integers.onnx").graph
    readers = [node.op_type for node in graph.node if graph.input[0].name in node.input]
    makers = [node.op_type for node in graph.node if graph.output[0].name in node.output]
    assert (set(readers), makers) == ({"DequantizeLinear"}, ["QuantizeLinear"])


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_a_quantized_model_is_given_integer_ends_by_the_pass(form: str, tmp_path: Path) -> None:
    net = residual(3)
    qir.save(quantized(net, "float"), tmp_path / "floats.onnx", format=form)
    made = qir.optimize(qir.load(tmp_path / "floats.onnx"), [IntegerIo(outputs="float")])
    qir.save(made, tmp_path / "later.onnx", format=form)
    x, _ = ends(made)
    assert x is not None
    given = random_integers(made, x)
    wanted = run(tmp_path / "floats.onnx", meaning(x, given))
    assert np.array_equal(run(tmp_path / "later.onnx", given), wanted)


def test_what_a_target_cannot_take_is_refused_with_those_that_can() -> None:
    said: Any = "target mxnet-onednn takes and gives floats: .* for another target: .*onnxruntime"
    with pytest.raises(qir.errors.UsageError, match=said):
        quantized(residual(3), "integer", "mxnet-onednn")


def test_an_output_that_is_computed_in_float_stays_float() -> None:
    net = residual(3)
    net.graph.set_operand(net.graph.output, "y", net.op("softmax", net.graph.output.operands["y"]))
    ledger = qir.Ledger()
    feeds = {"x": np.random.default_rng(4).normal(0, 1, (4, 3, 24, 24)).astype(np.float32)}
    made = qir.quantize(
        net.graph,
        qir.calibrate(net.graph, [feeds]),
        rules=["op=softmax: float"],
        io="integer",
        ledger=ledger,
    )
    assert [quant is None for quant in ends(made)] == [False, True]
    reasons = {e.subject: e.reason for e in ledger if e.step == "integer-io"}
    assert reasons["y"].startswith("stays float: softmax")
