"""A layer and the clip behind it are one kernel on codes in onnxruntime, as the plan says."""

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
from qir import pipeline

SEED = 21
SHAPE = (3, 4, 6, 6)


def network(path: Path, head: str, ends: tuple[float, float]) -> NDArray[np.float32]:
    """A layer whose reals go beyond both ends of the clip behind it."""
    rng = np.random.default_rng(SEED)
    arrays = {
        "w": rng.normal(size=(4, 4, 3, 3)) / 2,
        "bias": rng.normal(size=4),
        "low": np.array(ends[0]),
        "high": np.array(ends[1]),
    }
    operands = ["x", "w", "bias"] if head == "Conv" else ["x", "x"]
    nodes = [
        helper.make_node(head, operands, ["c"], name="layer"),
        helper.make_node("Clip", ["c", "low", "high"], ["y"], name="clip"),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy"]
    infos[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *SHAPE[1:]])
    held = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], held)
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return (rng.normal(size=SHAPE) * max(map(abs, ends))).astype(np.float32)


def run(path: Path, x: NDArray[np.float32]) -> tuple[NDArray[np.float32], Counter[str]]:
    """What onnxruntime gives, and the operators that it runs."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found = np.asarray(session.run(None, {"x": x})[0], np.float32)
    return found, Counter(n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node)


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("head", ["Conv", "Add"])
@pytest.mark.parametrize(
    "ends", [(-1, 1), (-0.5, 0.5), (-3, 3), (-0.7, 1.3), (-0.3, 0.3), (-0.01, 2), (0, 6), (-6, 0)]
)
def test_a_clip_of_codes_is_part_of_the_kernel_before_it(
    ends: tuple[float, float], head: str, form: str, tmp_path: Path
) -> None:
    source, path = tmp_path / "m.onnx", tmp_path / "q.onnx"
    x = network(source, head, ends)
    graph = pipeline.load(source)
    made = qir.quantize(graph, qir.calibrate(graph, x), target="onnxruntime")
    pipeline.save(made, path, format=form)
    found, ops = run(path, x)
    assert ops[f"QLinear{head}"] == 1, f"seed {SEED}: {dict(ops)}"
    assert not {"Conv", "FusedConv", "Add", "Clip"} & set(ops)
    step = (ends[1] - ends[0]) / 255
    wanted = np.asarray(qir.run(made, {"x": x})["y"], np.float32)
    steps = np.abs(found - wanted) / step
    assert steps.max() < 1.01, f"seed {SEED}"
    assert (steps > 0.5).mean() < 0.02, f"seed {SEED}"
    assert np.min(found) >= ends[0] - step
    assert np.max(found) <= ends[1] + step
    assert np.max(found) - np.min(found) > 254 * 0.99 * step


@pytest.mark.parametrize("ends", [(0.5, 2), (-2, -0.5)])
def test_a_clip_that_leaves_out_zero_is_real_and_the_layer_before_it_on_codes(
    ends: tuple[float, float], tmp_path: Path
) -> None:
    source, path = tmp_path / "m.onnx", tmp_path / "q.onnx"
    x = network(source, "Conv", ends)
    graph = pipeline.load(source)
    told = {d.op: d.reason for d in qir.plan(graph).decisions}
    assert told["clip"].startswith("its ends leave out 0")
    pipeline.save(qir.quantize(graph, qir.calibrate(graph, x)), path)
    _, ops = run(path, x)
    assert (ops["QLinearConv"], ops["Clip"]) == (1, 1), dict(ops)
