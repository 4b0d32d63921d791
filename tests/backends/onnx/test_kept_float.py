"""An op kept in float stays float in onnxruntime, whose optimizer would like to quantize it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import qir

SEED = 7


def network(path: Path) -> NDArray[np.float32]:
    """Three convolutions, one channel of the middle one a hundred times larger than the others."""
    rng = np.random.default_rng(SEED)
    nodes, arrays = [], []
    name = "x"
    for i, (inner, outer) in enumerate(((3, 8), (8, 8), (8, 5))):
        weights = rng.normal(size=(outer, inner, 3, 3)).astype(np.float32) / 5
        if i == 1:
            weights[0] *= 100
        bias = rng.normal(size=outer).astype(np.float32)
        arrays += [
            numpy_helper.from_array(weights, f"w{i}"),
            numpy_helper.from_array(bias, f"b{i}"),
        ]
        nodes.append(helper.make_node("Conv", [name, f"w{i}", f"b{i}"], [f"c{i}"], name=f"conv{i}"))
        nodes.append(helper.make_node("Clip", [f"c{i}", "low", "high"], [f"r{i}"], name=f"clip{i}"))
        name = f"r{i}"
    arrays += [
        numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("low", 0), ("high", 6))
    ]
    graph = helper.make_graph(
        nodes,
        "kept",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 12, 12])],
        [helper.make_tensor_value_info("r2", TensorProto.FLOAT, ["N", 5, 6, 6])],
        arrays,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return rng.normal(size=(4, 3, 12, 12)).astype(np.float32)


def outputs(
    path: Path, x: NDArray[np.float32], level: str
) -> tuple[NDArray[np.float32], Counter[str]]:
    """What onnxruntime gives, and the operators it runs."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return y, Counter(n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node)


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_a_layer_kept_float_is_float_in_onnxruntime(form: str, tmp_path: Path) -> None:
    source, path = tmp_path / "float.onnx", tmp_path / "kept.onnx"
    x = network(source)
    graph = qir.load(source)
    quantized = qir.quantize(graph, qir.calibrate(graph, x), rules=["name=conv1: float"])
    ledger = qir.Ledger()
    qir.save(quantized, path, format=form, ledger=ledger)
    (told,) = [entry for entry in ledger if "optimizer" in entry.reason]
    assert (told.change, told.subject) == (qir.ledger.Change.EXACT, "r1")
    assert told.reason.startswith("stays float: a Max of one operand between it and its quantize")

    y, ops = outputs(path, x, "ENABLE_ALL")
    assert ops["QLinearConv"] == 2
    assert ops["Conv"] + ops["FusedConv"] == 1
    plain, _ = outputs(path, x, "DISABLE_ALL")
    wanted = qir.run(quantized, {"x": x})["r2"].astype(np.float32)
    step = np.abs(wanted[wanted != 0]).min()
    for found in (y, plain):
        steps = np.abs(found - wanted) / step
        assert steps.max() <= 1.01, f"seed {SEED}"
        assert (steps > 0.5).mean() < 0.02, f"seed {SEED}"


def test_a_source_that_leaves_weights_to_the_runtime_is_written_back_as_it_was(
    tmp_path: Path,
) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Conv", ["d", "w"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "s", "z"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "s", "z"], ["y"]),
    ]
    arrays = [
        numpy_helper.from_array(np.ones((2, 2, 1, 1), np.float32), "w"),
        numpy_helper.from_array(np.array(0.5, np.float32), "s"),
        numpy_helper.from_array(np.array(3, np.uint8), "z"),
    ]
    shape = [1, 2, 4, 4]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], arrays)
    source, path = tmp_path / "source.onnx", tmp_path / "again.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), source)
    qir.save(qir.load(source), path)
    assert [n.op_type for n in onnx.load(path).graph.node] == [n.op_type for n in nodes]
