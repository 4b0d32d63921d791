"""A Pad of zeros before a pool is written so that onnxruntime's optimizer leaves it alone.

It would merge the Pad into the pool, which passes its own padding over: other numbers where the
data lie below zero, other sizes where a window is rounded up, an error where the padding is wide.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import qir

SEED = 5
CASES: dict[str, dict[str, int]] = {
    "MaxPool": {},
    "MaxPool, padded itself": {"pads": 1},
    "MaxPool, rounded up": {"kernel": 3, "ceil_mode": 1},
    "AveragePool": {},
    "AveragePool, padded itself": {"kernel": 3, "pads": 1, "ceil_mode": 1, "count_include_pad": 1},
    "AveragePool, of the padding alone": {"wide": 2},
}


def saved(path: Path, case: str, axes: int, opset: int, between: str = "") -> NDArray[Any]:
    """x, Pad, what is between, and the pool; x lies below zero."""
    given = dict(CASES[case])
    kernel, pad, wide = (given.pop(n, v) for n, v in (("kernel", 2), ("pads", 0), ("wide", 1)))
    attrs: dict[str, Any] = {
        "kernel_shape": [kernel] * axes,
        "strides": [2] * axes,
        "pads": [pad] * 2 * axes,
    }
    attrs |= given
    kind = TensorProto.DOUBLE if between == "Cast" else TensorProto.FLOAT
    if between == "raw codes":
        kind = TensorProto.INT8
    first = (0, *range(2, axes + 2), 1)
    middle = {
        "": [],
        "Cast": [helper.make_node("Cast", ["p"], ["q"], to=kind)],
        "Transpose": [
            helper.make_node("Transpose", ["p"], ["t"], perm=first),
            helper.make_node("Transpose", ["t"], ["q"], perm=[0, axes + 1, *range(1, axes + 1)]),
        ],
        "Mul by one": [helper.make_node("Mul", ["p", "one"], ["q"])],
        "raw codes": [],
    }[between]
    nodes = [
        helper.make_node("Pad", ["x", "pads", "zero"], ["p"]),
        *middle,
        helper.make_node(case.split(",")[0], ["q" if middle else "p"], ["y"], **attrs),
    ]
    pads = np.array([0, 0, *[wide] * axes] * 2)
    element = np.int8 if between == "raw codes" else np.float32
    arrays = {"pads": pads, "zero": np.zeros((), element), "one": np.ones((), np.float32)}
    sizes: list[str | int] = ["N", 2, *(6, 7, 5)[:axes]]
    graph = helper.make_graph(
        nodes,
        "padded",
        [
            helper.make_tensor_value_info(
                "x", helper.np_dtype_to_tensor_dtype(np.dtype(element)), sizes
            )
        ],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    sets = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=8), path)
    rng = np.random.default_rng(SEED)
    return (-1 - np.abs(rng.normal(size=(3, 2, *(6, 7, 5)[:axes])))).astype(element)


def made(path: Path, x: NDArray[Any], *, optimized: bool) -> NDArray[Any]:
    options, levels = ort.SessionOptions(), ort.GraphOptimizationLevel
    options.log_severity_level = 4
    level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    options.graph_optimization_level = level
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return np.asarray(y)


def stays(tmp_path: Path, case: str, axes: int, opset: int, between: str = "") -> None:
    """What is written gives the same with the optimizer as the source without; sums are near."""
    source, path = tmp_path / "source.onnx", tmp_path / "written.onnx"
    x = saved(source, case, axes, opset, between)
    ledger = qir.Ledger()
    other = 18 if opset < 18 else 25
    qir.save(qir.load(source), path, opset=other, ledger=ledger)
    assert any("from merging its zeros into" in entry.reason for entry in ledger)
    wanted = made(source, x, optimized=False)
    for optimized in (False, True):
        y = made(path, x, optimized=optimized)
        assert (y.dtype, y.shape) == (wanted.dtype, wanted.shape)
        assert np.abs(y - wanted).max() <= (2e-6 if case.startswith("Average") else 0)


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_zeros_before_a_pool_stay(case: str, axes: int, opset: int, tmp_path: Path) -> None:
    stays(tmp_path, case, axes, opset)


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("between", ["Cast", "Transpose", "Mul by one", "raw codes"])
def test_zeros_behind_a_move_stay(between: str, opset: int, tmp_path: Path) -> None:
    stays(tmp_path, "MaxPool", 2, opset, between)


@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer"])
def test_zeros_before_a_pool_stay_in_every_form(form: str, tmp_path: Path) -> None:
    """A network of integers, of which a Pad and a pool are moves."""
    source, path = tmp_path / "source.onnx", tmp_path / "written.onnx"
    x = saved(source, "MaxPool", 2, 17)
    model = onnx.load(source)
    rng = np.random.default_rng(SEED)
    filters = rng.normal(size=(4, 2, 2, 2)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(filters, "w"))
    model.graph.node.append(helper.make_node("Conv", ["y", "w"], ["z"]))
    model.graph.output[0].name = "z"
    onnx.save(model, source)
    graph = qir.load(source)
    qir.save(qir.quantize(graph, qir.calibrate(graph, x)), path, format=form)
    plain = made(path, x, optimized=False)
    assert np.abs(plain - made(source, x, optimized=False)).max() < 0.1
    steps = np.abs(plain - made(path, x, optimized=True))
    assert steps.max() <= (2e-6 if form == "integer" else 0.06)
    assert np.mean(steps > 1e-5) < 0.05


def test_zeros_before_others_are_merged(tmp_path: Path) -> None:
    """A convolution may have the padding: its sums are the same."""
    source, path = tmp_path / "source.onnx", tmp_path / "written.onnx"
    saved(source, "MaxPool", 2, 17)
    model = onnx.load(source)
    filters = np.ones((4, 2, 2, 2), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(filters, "w"))
    model.graph.node[1].CopyFrom(helper.make_node("Conv", ["p", "w"], ["y"]))
    onnx.save(model, source)
    ledger = qir.Ledger()
    qir.save(qir.load(source), path, opset=21, ledger=ledger)
    assert not any("merging" in entry.reason for entry in ledger)
    assert list(onnx.load(path).graph.node[0].input) == ["x", "pads", "zero"]
