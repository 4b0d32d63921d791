"""A matrix product and the activation after it are one kernel of onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import qir
from qir import pipeline

WIDTH, LAYERS = 16, 3


def perceptron(path: Path, act: str, seed: int) -> Path:
    """MatMul and Relu, or MatMul and Clip from 0 on, three times."""
    rng = np.random.default_rng(seed)
    weights = [rng.normal(0, 0.3, (WIDTH, WIDTH)).astype(np.float32) for _ in range(LAYERS)]
    held = [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
    ends = [
        numpy_helper.from_array(np.array(x, np.float32), n) for n, x in (("low", 0), ("high", 2))
    ]
    nodes, at = [], "x"
    for i in range(LAYERS):
        nodes.append(helper.make_node("MatMul", [at, f"w{i}"], [f"m{i}"]))
        more = ["low", "high"] if act == "Clip" else []
        nodes.append(helper.make_node(act, [f"m{i}", *more], [f"r{i}"]))
        at = f"r{i}"
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", WIDTH])],
        [helper.make_tensor_value_info(at, TensorProto.FLOAT, ["N", WIDTH])],
        [*held, *(ends if act == "Clip" else [])],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def ran(path: Path, x: NDArray[np.float32], kept: Path | None = None) -> NDArray[np.float32]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if kept is not None:
        options.optimized_model_filepath = str(kept)
    (out,) = onnxruntime.InferenceSession(path, options).run(None, {"x": x})
    return np.asarray(out, np.float32)


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("act", ["Relu", "Clip"])
@pytest.mark.parametrize("seed", range(3))
def test_the_runtime_has_one_kernel_for_both(
    seed: int, act: str, form: str, tmp_path: Path
) -> None:
    model = perceptron(tmp_path / "m.onnx", act, seed)
    x = np.random.default_rng(seed).normal(size=(64, WIDTH)).astype(np.float32)
    graph = qir.load(model)
    quantized = qir.quantize(graph, qir.calibrate(graph, x))
    written, kept = tmp_path / "int8.onnx", tmp_path / "kept.onnx"
    qir.save(quantized, written, format=form)
    found = ran(written, x, kept)
    ops = [node.op_type for node in onnx.load(kept).graph.node]
    assert ops == ["QuantizeLinear", *["QLinearMatMul"] * LAYERS, "DequantizeLinear"], (
        f"seed {seed}"
    )
    grouped = pipeline.optimize(quantized, "group")
    assert np.array_equal(qir.run(grouped, {"x": x})[f"r{LAYERS - 1}"], found), f"seed {seed}"


def test_the_plan_has_the_activation_in_the_kernel_of_the_product(tmp_path: Path) -> None:
    model = perceptron(tmp_path / "m.onnx", "Relu", 1)
    for target in ("onnxruntime", "onnx"):
        found = {d.node: d for d in qir.plan(qir.load(model), target=target).decisions}
        assert found["r0"].group == "m0"
        assert all(d.becomes == "integer" for d in found.values())


def test_one_that_cuts_quantized_values_stays_apart(tmp_path: Path) -> None:
    rule = "op=matmul: u8 symmetric tensor"
    model = perceptron(tmp_path / "m.onnx", "Relu", 1)
    found = {d.node: d for d in qir.plan(qir.load(model), rules=[rule]).decisions}
    assert "cuts none" in found["r0"].reason
