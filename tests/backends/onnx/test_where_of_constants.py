"""A where that chooses between integers and a real constant, as onnxruntime's optimizer takes
it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.ir.text import parse
from qir.ledger import Ledger

SHAPE = [4, 5]
FEEDS = {
    "c": np.random.default_rng(3).random(SHAPE) < 0.5,
    "x": np.random.default_rng(4).normal(0, 3, SHAPE).astype(np.float32),
}
CASES = {
    "zero": (0.0, (), "uint8", False),
    "above": (1.3, (), "uint8", False),
    "below": (-1.3, (), "uint8", True),
    "a mask": (-1e4, (), "uint8", True),
    "a mask of -inf": (-np.inf, (), "uint8", False),
    "one axis": (1.3, (1,), "uint8", False),
    "many": (1.3, (4, 5), "uint8", False),
    "signed": (1.3, (), "int8", False),
}


def model(path: Path, case: str) -> Path:
    value, shape, kind, first = CASES[case]
    zeros = np.array([128, 100]).astype(kind) if kind == "uint8" else np.array([3, -5], kind)
    held = {"xs": np.float32(0.05), "xz": zeros[0], "ys": np.float32(0.04), "yz": zeros[1]}
    held["k"] = np.full(shape, value, np.float32)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("Where", ["c", *(["k", "xd"] if first else ["xd", "k"])], ["w"]),
        helper.make_node("QuantizeLinear", ["w", "ys", "yz"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "ys", "yz"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, SHAPE),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE),
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, SHAPE)
    constants = [numpy_helper.from_array(np.asarray(v), n) for n, v in held.items()]
    graph = helper.make_graph(nodes, "g", ends, [result], constants)
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    return path


def optimized(path: Path) -> tuple[list[str], np.ndarray]:
    """The operators that onnxruntime makes of a model, and what they give."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path.with_suffix(".opt.onnx"))
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    made = onnx.load(options.optimized_model_filepath)
    return [node.op_type for node in made.graph.node], session.run(None, FEEDS)[0]


@pytest.mark.parametrize("case", CASES)
def test_it_is_told_as_onnxruntime_computes_it(case: str, tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", case)
    ops, result = optimized(path)
    graph = pipeline.load(path)
    verdict = next(v for v in pipeline.op_verdicts(graph) if v.op == "where")
    assert (verdict.taken == "integer") == ("QLinearWhere" in ops), (verdict, ops)
    decision = next(d for d in pipeline.plan(graph).decisions if d.op == "where")
    assert decision.integer == (verdict.taken == "integer")
    np.testing.assert_array_equal(pipeline.run(graph, FEEDS)["y"], result)


@pytest.mark.parametrize("number", ["0.0", "-1.5", "[0.5, 1.0, 1.5, 2.0, 2.5]"])
def test_a_plan_gives_codes_to_the_number_too(number: str, tmp_path: Path) -> None:
    kind = "5xf32" if number[0] == "[" else "f32"
    text = f"""graph main {{
  %c = input() : 4x5xbool
  %x = input() : 4x5xf32
  %w = constant(@w) : 5x5xf32
  %p = matmul(%x, %w) : 4x5xf32
  %k = constant({number}) : {kind}
  %z = where(%c, %p, %k) : 4x5xf32
  %y = matmul(%z, %w) : 4x5xf32
  output(y=%y)
}}
"""
    rng = np.random.default_rng(5)
    graph = parse(text, {"w": rng.normal(size=(5, 5)).astype(np.float32)})
    assert all(d.integer for d in pipeline.plan(graph).decisions)
    made = pipeline.quantize(graph, pipeline.calibrate(graph, [FEEDS]))
    pipeline.save(made, tmp_path / "q.onnx")
    read = pipeline.load(tmp_path / "q.onnx")
    ops, result = optimized(tmp_path / "q.onnx")
    assert "QLinearWhere" in ops
    assert all(v.taken == "integer" for v in pipeline.op_verdicts(read))
    np.testing.assert_array_equal(pipeline.run(read, FEEDS)["y"], result)


@pytest.mark.parametrize("case", CASES)
def test_the_form_of_operators_has_it_on_codes(case: str, tmp_path: Path) -> None:
    graph = pipeline.load(model(tmp_path / "m.onnx", case))
    ledger = Ledger()
    pipeline.save(graph, tmp_path / "q.onnx", format="qoperator", ledger=ledger)
    made = onnx.load(tmp_path / "q.onnx").graph
    ops = [node.op_type for node in made.node]
    assert ops == ["QuantizeLinear", "QLinearWhere", "DequantizeLinear"]
    assert {node.input[0] for node in made.node} == {"x", "c", made.node[1].output[0]}
    assert any("is quantized by the parameters of the result" in entry.reason for entry in ledger)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    found = [
        onnxruntime.InferenceSession(str(tmp_path / f"{name}.onnx"), options).run(None, FEEDS)[0]
        for name in "mq"
    ]
    np.testing.assert_array_equal(*found)
    read = pipeline.load(tmp_path / "q.onnx")
    np.testing.assert_array_equal(pipeline.run(read, FEEDS)["y"], found[0])


def test_a_constant_with_a_nan_stays_beside_its_codes(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", "zero")
    made = onnx.load(path)
    held = next(t for t in made.graph.initializer if t.name == "k")
    held.CopyFrom(numpy_helper.from_array(np.array(np.nan, np.float32), "k"))
    onnx.save(made, path)
    pipeline.save(pipeline.load(path), tmp_path / "q.onnx", format="qoperator")
    assert "Where" in [node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node]


def test_onnx_has_no_such_operator(tmp_path: Path) -> None:
    graph = pipeline.load(model(tmp_path / "m.onnx", "above"))
    pipeline.save(graph, tmp_path / "q.onnx", format="qoperator", target="onnx")
    assert "Where" in [node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node]
