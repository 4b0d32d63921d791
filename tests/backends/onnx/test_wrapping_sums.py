"""Sums that wrap in 32 bits: no form says otherwise than the source, unless that is asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.errors import Refused
from qir.ledger import Change, Ledger

MOST = 2**31 - 1
LIMIT = MOST - 3 * 255 * 127  # the greatest bias that no input takes beyond 32 bits
UNITS = {"xs": 0.125, "ws": 0.5, "ys": 2.0**24, "bs": 0.0625}
KINDS = ("conv", "gemm")


def _model(nodes: list[onnx.NodeProto], kind: str, bias: int) -> onnx.ModelProto:
    w = np.array([[127, 127, 127], [-128, 1, -128], [1, -2, 3]], np.int8)
    held = {n: np.float32(v) for n, v in UNITS.items()} | {
        "w": w.reshape(3, 3, 1, 1) if kind == "conv" else w.T.copy(),
        "b": np.array([bias, -bias, 17], np.int32),
        "xz": np.uint8(0),
        "wz": np.int8(0),
        "yz": np.uint8(128),
    }
    shape = [1, 3, 4, 4] if kind == "conv" else [5, 3]
    ends = [helper.make_tensor_value_info(n, TensorProto.UINT8, shape) for n in ("x", "y")]
    made = [numpy_helper.from_array(np.asarray(v), n) for n, v in held.items()]
    graph = helper.make_graph(nodes, "main", ends[:1], ends[1:], made)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def integer_model(kind: str, bias: int) -> onnx.ModelProto:
    """One operator on integers: its sums have 32 bits."""
    own = {"conv": ("QLinearConv", ""), "gemm": ("QGemm", "com.microsoft")}
    op, domain = own[kind]
    sides = ["x", "xs", "xz", "w", "ws", "wz"]
    rest = ["ys", "yz", "b"] if kind == "conv" else ["b", "ys", "yz"]
    return _model([helper.make_node(op, [*sides, *rest], ["y"], domain=domain)], kind, bias)


def qdq_model(kind: str, bias: int) -> onnx.ModelProto:
    """Floats between integers: nothing wraps."""
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xr"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wr"]),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["br"]),
        helper.make_node("Conv" if kind == "conv" else "Gemm", ["xr", "wr", "br"], ["yr"]),
        helper.make_node("QuantizeLinear", ["yr", "ys", "yz"], ["y"]),
    ]
    return _model(nodes, kind, bias)


def runtime(path: Path, x: NDArray[np.uint8], *, optimize: bool = False) -> NDArray[np.uint8]:
    options = onnxruntime.SessionOptions()
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def far(kind: str) -> NDArray[np.uint8]:
    """Integers that take the sums to their ends, and others."""
    x = np.random.default_rng(0).integers(0, 256, (1, 3, 4, 4) if kind == "conv" else (5, 3))
    (x if kind == "gemm" else x[0, :, 0].T)[:3] = [[255] * 3, [0] * 3, [255, 0, 255]]
    return x.astype(np.uint8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["qdq", "integer"])
def test_sums_that_wrap_are_refused_as_floats_unless_asked_for(
    kind: str, form: str, tmp_path: Path
) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    onnx.save(integer_model(kind, MOST - 100), source)
    with pytest.raises(
        Refused, match=r"y: .*sums come to .* wrap in 32 bits; `lossy=True` allows it"
    ):
        pipeline.save(pipeline.load(source), made, format=form)
    assert not made.exists()
    ledger = Ledger()
    pipeline.save(pipeline.load(source), made, format=form, ledger=ledger, lossy=True)
    assert Change.APPROXIMATED in ledger.counts()
    x = far(kind)
    assert (runtime(source, x) != runtime(made, x)).any()  # it was refused for a reason


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["qdq", "integer", "qoperator"])
def test_sums_up_to_the_limit_are_written_in_every_form(
    kind: str, form: str, tmp_path: Path
) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    onnx.save(integer_model(kind, LIMIT), source)
    pipeline.save(pipeline.load(source), made, format=form)
    x = far(kind)
    assert (runtime(source, x) == runtime(made, x)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [LIMIT, LIMIT + 1, MOST])
@pytest.mark.parametrize("form", ["qdq", "integer", "qoperator"])
def test_floats_that_kernels_would_wrap_stay_what_they_are(
    kind: str, bias: int, form: str, tmp_path: Path
) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    onnx.save(qdq_model(kind, bias), source)
    graph, ledger = pipeline.load(source), Ledger()
    pipeline.save(graph, made, format=form, ledger=ledger)
    told = [e.subject for e in ledger if "stays float: sums come to" in e.reason]
    assert told == ["yr"] * (form == "qoperator" and bias > LIMIT)
    x = far(kind)
    wanted = runtime(source, x)
    assert (runtime(made, x) == wanted).all()
    assert (pipeline.run(graph, {"x": x})["y"] == wanted).all()
    # The profile of a file is that of the optimized model, whose kernel wraps.
    compiled = pipeline.compile(graph, target="cpu")(x=x)
    assert (np.asarray(compiled["y"]) == runtime(source, x, optimize=True)).all()
    ops = [node.op_type for node in onnx.load(made).graph.node]
    assert form != "qoperator" or (("DequantizeLinear" in ops) == (bias > LIMIT)), ops


def test_a_long_sum_is_no_sum_of_raw_integers(tmp_path: Path) -> None:
    """Without a bias, whose floats are added behind it."""
    source, made, ledger = tmp_path / "m.onnx", tmp_path / "made.onnx", Ledger()
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs"], ["xr"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wr"]),
        helper.make_node("MatMul", ["xr", "wr"], ["y"]),
    ]
    held = {"xs": np.float32(1), "ws": np.float32(1), "w": np.full((70_000, 1), 127, np.int8)}
    ends = [
        helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 70_000]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1]),
    ]
    made_of = [numpy_helper.from_array(np.asarray(v), n) for n, v in held.items()]
    graph = helper.make_graph(nodes, "main", ends[:1], ends[1:], made_of)
    sets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=8), source)
    pipeline.save(pipeline.load(source), made, format="integer", ledger=ledger)
    said = "stays float: sums come to 0..2266950000, which wrap in 32 bits"
    assert said in [e.reason for e in ledger]
    x = np.full((1, 70_000), 255, np.uint8)
    assert (runtime(made, x) == runtime(source, x)).all()
    assert runtime(made, x) > 2**31


@pytest.mark.parametrize("kind", KINDS)
def test_sums_that_wrap_stay_on_integers(kind: str, tmp_path: Path) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    onnx.save(integer_model(kind, MOST), source)
    graph = pipeline.load(source)
    pipeline.save(graph, made, format="qoperator")
    x = far(kind)
    wanted = runtime(source, x)
    assert (runtime(made, x) == wanted).all()
    for found in (pipeline.run(graph, {"x": x}), pipeline.compile(graph, target="cpu")(x=x)):
        assert (np.asarray(found["y"]) == wanted).all()
