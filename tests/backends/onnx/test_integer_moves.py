"""Leaky relu, squeeze, unsqueeze and slice on integers, as onnxruntime does them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir.backends.onnx import OnnxRuntimeTarget
from qir.backends.onnx.writer.graph import to_model
from qir.frontends.onnx import OnnxFrontend
from qir.ir.dtype import I8, U8
from qir.ir.graph import Graph
from qir.ir.types import TensorType, uniform
from qir.ledger import Ledger
from qir.passes.forms.fuse_qdq import FuseQdq
from qir.reference.interpreter import run
from tests.frontends.onnx.models import model, save

FLOAT = TensorProto.FLOAT
LISTS: dict[str, tuple[list[int], ...]] = {
    "Squeeze": ([0],),
    "Unsqueeze": ([1, -1],),
    "Slice": ([1, -1], [3, -9], [1, 2], [1, -2]),
}


def onnxruntime_runs(proto: onnx.ModelProto, x: NDArray[Any], kept: Path | None = None) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if kept is not None:
        options.optimized_model_filepath = str(kept)
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def qdq(op: str, scales: tuple[float, float], **attrs: float) -> onnx.ModelProto:
    """Quantize, dequantize, the op, quantize, dequantize."""
    node = helper.make_node
    lists = {f"l{i}": np.array(v, np.int64) for i, v in enumerate(LISTS.get(op, ()))}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node(op, ["d", *lists], ["r"]),
        node("QuantizeLinear", ["r", "t", "z"], ["p"]),
        node("DequantizeLinear", ["p", "t", "z"], ["y"]),
    ]
    nodes[2].attribute.extend(helper.make_attribute(n, v) for n, v in attrs.items())
    constants: dict[str, NDArray[Any]] = {**lists, "z": np.array(77, np.uint8)}
    constants |= {n: np.array(v, np.float32) for n, v in zip("st", scales, strict=True)}
    return model(nodes, {"x": (FLOAT, [1, 4, 5])}, {"y": (FLOAT, None)}, constants)


@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_leaky_relu_of_every_code_is_onnxruntimes(kind: str) -> None:
    storage, carrier = (U8, np.uint8) if kind == "u8" else (I8, np.int8)
    low, high = storage.bounds
    quantized = np.arange(low, high + 1).astype(carrier)
    for seed in range(120):
        rng = np.random.default_rng(seed)
        # Powers of two make ties that round.
        scales = 2.0 ** -rng.integers(3, 8, 2) if seed % 2 else rng.uniform(0.003, 0.3, 2)
        of, out = (
            uniform(storage, np.float32(s), int(rng.integers(low, high + 1))) for s in scales
        )
        alpha = float(np.float32([0.5, 0.125, 0.01, rng.uniform(-1, 2)][seed % 4]))
        graph = Graph("g", "ort-1.31")
        x = graph.add("input", types=[TensorType((256,), of)], name="x").result
        made = graph.add("leaky_relu", {"x": x}, {"alpha": alpha}, types=[TensorType((256,), out)])
        graph.add("output", {"y": made.result})
        written: onnx.ModelProto = to_model(graph, Ledger())
        assert [n.op_type for n in written.graph.node] == ["QLinearLeakyRelu"]
        wanted = onnxruntime_runs(written, quantized)
        assert run(graph, {"x": quantized})["y"].tobytes() == wanted.tobytes(), f"seed {seed}"


def test_the_operator_on_codes_is_read_and_written(tmp_path: Path) -> None:
    names = ["x", "s", "z", "t", "w"]
    node = helper.make_node(
        "QLinearLeakyRelu", names, ["y"], "leaky", domain="com.microsoft", alpha=0.25
    )
    numbers = {n: np.array(v, np.float32) for n, v in (("s", 0.05), ("t", 0.03))}
    zeros = {n: np.array(v, np.uint8) for n, v in (("z", 120), ("w", 30))}
    u8 = TensorProto.UINT8
    proto = model(
        [node], {"x": (u8, [256])}, {"y": (u8, [256])}, numbers | zeros, domains=["com.microsoft"]
    )
    graph = OnnxFrontend().load(save(proto, tmp_path), Ledger())
    assert [n.op for n in graph if n.op == "foreign"] == []
    quantized = np.arange(256).astype(np.uint8)
    written: onnx.ModelProto = to_model(graph, Ledger())
    assert [(n.op_type, list(n.input)) for n in written.graph.node] == [("QLinearLeakyRelu", names)]
    wanted = onnxruntime_runs(proto, quantized)
    assert onnxruntime_runs(written, quantized).tobytes() == wanted.tobytes()
    assert run(graph, {"x": quantized})["y"].tobytes() == wanted.tobytes()


@pytest.mark.parametrize("op", [*LISTS, "LeakyRelu"])
def test_models_are_fused_as_onnxruntime_fuses_them(op: str, tmp_path: Path) -> None:
    moves = op != "LeakyRelu"
    kernel = op if moves else "QLinearLeakyRelu"
    for scales in ((0.05, 0.05), (0.05, 0.02)):
        attrs = {} if moves else {"alpha": 0.125}
        proto = qdq(op, scales, **attrs)
        x = np.random.default_rng(3).normal(size=(1, 4, 5)).astype(np.float32) * 9
        wanted = onnxruntime_runs(proto, x, tmp_path / "o.onnx")
        nodes = onnx.load(tmp_path / "o.onnx").graph.node
        makers = {name: n.op_type for n in nodes for name in n.output}
        found = [n for n in nodes if n.op_type == kernel]
        quantized_kernels = bool(found) and makers.get(found[0].input[0]) != "DequantizeLinear"
        graph = OnnxFrontend().load(save(proto, tmp_path), Ledger())
        assert run(graph, {"x": x})["y"].tobytes() == wanted.tobytes()
        FuseQdq().run(graph, Ledger())
        name = {"LeakyRelu": "leaky_relu"}.get(op, op.lower())
        (node,) = (n for n in graph if n.op == name)
        assert (
            (node.result.type.quant is not None)
            == quantized_kernels
            == (not moves or len(set(scales)) == 1)
        )
        assert run(graph, {"x": x})["y"].tobytes() == wanted.tobytes(), f"{op} {scales}"
        path = tmp_path / "w.onnx"
        OnnxRuntimeTarget().emit(graph, path, Ledger(), format="qoperator")
        assert onnxruntime_runs(onnx.load(path), x).tobytes() == wanted.tobytes(), f"{op} {scales}"


def test_codes_that_only_their_readers_give_a_meaning_are_moved(tmp_path: Path) -> None:
    """A QOperator model: raw integers come in, are squeezed and cut, and are dequantized."""
    constants: dict[str, NDArray[Any]] = {
        n: np.array([v]) for n, v in zip("abc", (0, 1, 3), strict=True)
    }
    constants |= {"s": np.array(0.05, np.float32), "z": np.array(77, np.uint8)}
    nodes = [
        helper.make_node("Squeeze", ["x", "a"], ["m"]),
        helper.make_node("Slice", ["m", "b", "c"], ["n"]),
        helper.make_node("DequantizeLinear", ["n", "s", "z"], ["y"]),
    ]
    u8 = TensorProto.UINT8
    proto = model(nodes, {"x": (u8, [1, 4, 5])}, {"y": (FLOAT, None)}, constants)
    graph = OnnxFrontend().load(save(proto, tmp_path), Ledger())
    assert [n.op for n in graph if n.op not in ("input", "constant", "output")] == [
        "squeeze",
        "slice",
        "dequantize",
    ]
    assert all(graph[name].type.quant for name in ("x", "m", "n"))
    quantized = np.arange(20).astype(np.uint8).reshape(1, 4, 5)
    wanted = onnxruntime_runs(proto, quantized)
    assert run(graph, {"x": quantized})["y"].tobytes() == wanted.tobytes()
    written: onnx.ModelProto = to_model(graph, Ledger())
    assert [n.op_type for n in written.graph.node] == ["Squeeze", "Slice", "DequantizeLinear"]
    assert onnxruntime_runs(written, quantized).tobytes() == wanted.tobytes()
    assert numpy_helper.to_array(written.graph.initializer[0]).tolist() == [0]
