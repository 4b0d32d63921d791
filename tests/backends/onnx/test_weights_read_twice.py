"""Weights in few bits that a model reads along both axes, or in its branches too."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline

SIDE = 16
FLOAT = TensorProto.FLOAT


def run(path: Path, feeds: dict[str, NDArray[np.generic]]) -> NDArray[np.generic]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0])


def weights(quantized: str) -> NDArray[np.float32]:
    """Whole numbers of which every row and column spans the integers, so that the scale is one."""
    low, high = {"u4": (-8, 7), "i4": (-7, 7), "u8": (-128, 127), "i8": (-127, 127)}[quantized]
    row = np.round(np.linspace(low, high, SIDE))
    return np.array([np.roll(row, i) for i in range(SIDE)], np.float32)


def write(path: Path, held: NDArray[np.float32], *, branches: bool) -> None:
    data = helper.make_tensor_value_info("x", FLOAT, [2, SIDE])
    end = helper.make_tensor_value_info("y", FLOAT, [2, SIDE])
    inputs = [data]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"])]
    if branches:
        inputs.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
        bodies = {
            f"{name}_branch": helper.make_graph(
                [helper.make_node("Gemm", ["x", "w"], [name], transB=turned)],
                name,
                [],
                [helper.make_tensor_value_info(name, FLOAT, [2, SIDE])],
            )
            for turned, name in enumerate(("then", "else"))
        }
        nodes.append(helper.make_node("If", ["c"], ["k"], **bodies))
        nodes.append(helper.make_node("Add", ["h", "k"], ["y"]))
    else:
        nodes.append(helper.make_node("Gemm", ["h", "w"], ["y"], transB=1))
    made = helper.make_graph(nodes, "g", inputs, [end], [numpy_helper.from_array(held, "w")])
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(made, opset_imports=opset, ir_version=10), path)


@pytest.mark.parametrize("codes", ["u4", "i4", "u8", "i8"])
@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("by_way_of", [None, "qdq", "qir"])
def test_each_product_keeps_its_own_packed_weights(
    codes: str, branches: bool, by_way_of: str | None, tmp_path: Path
) -> None:
    source, out = tmp_path / "m.onnx", tmp_path / "n.onnx"
    write(source, weights(codes), branches=branches)
    graph = pipeline.quantize_weights(pipeline.load(source), f"{codes}:{SIDE}")
    if by_way_of is not None:
        between = tmp_path / ("between.qir" if by_way_of == "qir" else "between.onnx")
        pipeline.save(graph, between, format=None if by_way_of == "qir" else "qdq")
        graph = pipeline.load(between)
    pipeline.save(graph, out, format="nbits")
    found = [n.op_type for n in onnx.load(out).graph.node]
    assert found.count("MatMulNBits") == (1 if branches else 2)
    x = np.random.default_rng(5).integers(-3, 4, (2, SIDE)).astype(np.float32)
    for side in (True, False):
        feeds: dict[str, NDArray[np.generic]] = {"x": x}
        if branches:
            feeds["c"] = np.array(side)
        assert (run(out, feeds) == run(source, feeds)).all()
        assert (run(out, feeds) == pipeline.run(pipeline.load(out), feeds)["y"]).all()


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_a_bias_of_zeros_that_two_layers_share_is_two_biases_of_codes(
    form: str, tmp_path: Path
) -> None:
    """Equal integers mean other numbers in each, though zero is zero: one array has one map."""
    rng = np.random.default_rng(7)
    held = {n: rng.normal(size=(SIDE, SIDE)).astype(np.float32) for n in ("w", "w2")}
    held["b"] = np.zeros(SIDE, np.float32)
    data, end = (helper.make_tensor_value_info(n, FLOAT, ["N", SIDE]) for n in "xy")
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("Gemm", ["h", "w2", "b"], ["y"]),
    ]
    arrays = [numpy_helper.from_array(a, n) for n, a in held.items()]
    made = helper.make_graph(nodes, "g", [data], [end], arrays)
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(made, opset_imports=opset, ir_version=10), tmp_path / "m.onnx")
    graph, out = pipeline.load(tmp_path / "m.onnx"), tmp_path / "q.onnx"
    x = rng.normal(size=(8, SIDE)).astype(np.float32)
    pipeline.save(pipeline.quantize(graph, pipeline.calibrate(graph, [{"x": x}])), out, format=form)
    read = pipeline.load(out)
    assert not pipeline.verify(read)
    again = tmp_path / "again.onnx"
    pipeline.save(read, again, format=form)
    assert not pipeline.verify(pipeline.load(again))
    assert np.array_equal(run(again, {"x": x}), run(out, {"x": x}))
