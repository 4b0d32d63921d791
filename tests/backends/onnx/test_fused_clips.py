"""A layer and the clip behind it are one kernel on integers in onnxruntime, as the plan says."""

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
from qir.errors import SchemeError

SEED = 21
SHAPE = (3, 4, 6, 6)


def network(path: Path, head: str, ends: tuple[float, float]) -> NDArray[np.float32]:
    """A layer whose floats go beyond both ends of the clip behind it."""
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
    assert told["clip"].startswith("its range leaves out 0")
    pipeline.save(qir.quantize(graph, qir.calibrate(graph, x)), path)
    _, ops = run(path, x)
    assert (ops["QLinearConv"], ops["Clip"]) == (1, 1), dict(ops)


def behind(path: Path, first: str) -> NDArray[np.float32]:
    """A layer, a relu or a clip from 0 to 6 behind it, and a second layer; seeded data."""
    rng = np.random.default_rng(SEED)
    arrays = {"w": rng.normal(size=(4, 4, 3, 3)) / 2, "low": np.array(0.0), "high": np.array(6.0)}
    ends = ["low", "high"] if first == "Clip" else []
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="layer"),
        helper.make_node(first, ["c", *ends], ["k"], name="bound"),
        helper.make_node("MaxPool", ["k"], ["p"], name="pool", kernel_shape=[2, 2]),
        helper.make_node("Conv", ["p", "w"], ["y"], name="last"),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy"]
    infos[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4, 12, 12])
    held = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], held)
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return (rng.normal(size=(2, 4, 12, 12)) * 3).astype(np.float32)


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("first", ["Clip", "Relu"])
@pytest.mark.parametrize(
    ("rule", "cut"),
    [
        ("name=pool: u8 affine tensor fixed(0.1:0)", (True, False)),
        ("name=pool: u8 affine tensor fixed(0.01:0)", (False, False)),
        ("name=pool: u8 affine tensor fixed(0.02:3)", (True, True)),
        ("name=last slot=x: u8 symmetric tensor", (True, True)),
        ("name=layer: u8 affine tensor", (False, False)),
    ],
)
def test_what_cuts_codes_of_a_map_that_a_rule_fixes_is_planned_real(
    rule: str, cut: tuple[bool, bool], first: str, form: str, tmp_path: Path
) -> None:
    source, path = tmp_path / "m.onnx", tmp_path / "q.onnx"
    x = behind(source, first)
    graph = pipeline.load(source)
    told = {d.node: d for d in qir.plan(graph, rules=[rule]).decisions}
    made = qir.quantize(graph, qir.calibrate(graph, x), rules=[rule])
    pipeline.save(made, path, format=form)
    found = {v.node: v.taken for v in pipeline.op_verdicts(made)}
    _, ops = run(path, x)
    real = cut[first == "Relu"]
    assert found == {n: "float" if n == "k" and real else "integer" for n in "ckpy"}
    assert {n: d.integer for n, d in told.items()} == {n: found[n] == "integer" for n in "ckpy"}
    assert told["k"].reason.startswith("it clamps quantized values that are u8") == real
    assert (ops["QLinearConv"], ops[first], ops["FusedConv"]) == (2, int(real), 0), dict(ops)


@pytest.mark.parametrize("target", ["onnxruntime", "onnx"])
@pytest.mark.parametrize("kind", ["u8 symmetric tensor", "u8 affine tensor fixed(0.1:0)"])
def test_a_rule_for_what_cuts_its_codes_is_refused(kind: str, target: str, tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    behind(source, "Clip")
    with pytest.raises(SchemeError, match=r"k stays float: it clamps quantized values .*cuts none"):
        qir.plan(pipeline.load(source), target=target, rules=[f"name=bound: {kind}"])


@pytest.mark.parametrize(("target", "profile"), [("onnx", ""), ("onnxruntime", "ort-1.31")])
@pytest.mark.parametrize("first", ["Clip", "Relu"])
def test_other_tables_of_the_same_kernels_ask_as_much(
    first: str, target: str, profile: str, tmp_path: Path
) -> None:
    source, rules = tmp_path / "m.onnx", ["name=last slot=x: u8 symmetric tensor"]
    x = behind(source, first)
    graph = pipeline.load(source)
    plan = qir.plan(graph, target=target, profile=profile, rules=rules)
    told = {d.node: d.integer for d in plan.decisions}
    statistics = qir.calibrate(graph, x)
    made = qir.quantize(graph, statistics, target=target, profile=profile, rules=rules)
    found = {v.node: v.taken == "integer" for v in pipeline.op_verdicts(made)}
    assert told == found == {"c": True, "k": False, "p": True, "y": True}
