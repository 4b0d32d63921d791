"""Resizes between layers on integers, as onnxruntime's optimizer runs what is written of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

import qir
from qir.backends.onnx.writer.graph import to_model
from qir.ir.parser import parse
from qir.ledger import Ledger

NETWORK = """
graph upscaled {
  %x = input() : <batch>x3x9x10xf32
  %w = constant(@w) : 8x3x3x3xf32
  %first = conv2d(%x, %w) : <batch>x8x7x8xf32
  <sizes>
  %larger = <op>(%first<operand>) {axes = (2, 3), <attrs>} : <batch>x8x<h>x<w>xf32
  %v = constant(@v) : 4x8x3x3xf32
  %y = conv2d(%larger, %v) : <batch>x4x<less>xf32
  output(y=%y)
}
"""
BY_SCALES = {"sizes": "", "operand": "", "h": "14", "w": "13", "less": "12x11"}
BY_SIZES = {
    "sizes": "%sizes = constant([15, 11]) : 2xi64",
    "operand": ", sizes=%sizes",
    "h": "15",
    "w": "11",
    "less": "13x9",
}
NEAREST = 'coordinates = "asymmetric", rounding = "floor"'
CASES = {
    "nearest by scales": ("resize_nearest", BY_SCALES, f"{NEAREST}, scales = (2.0, 1.7)"),
    "nearest by sizes": ("resize_nearest", BY_SIZES, NEAREST),
    "linear by scales": ("resize", BY_SCALES, "scales = (2.0, 1.7)"),
    "linear by sizes": ("resize", BY_SIZES, 'coordinates = "align_corners"'),
}


def _network(case: str, batch: str) -> str:
    op, shapes, attrs = CASES[case]
    text = NETWORK
    for name, said in {**shapes, "op": op, "attrs": attrs, "batch": batch}.items():
        text = text.replace(f"<{name}>", said)
    return text


def _run(path: Path, x: NDArray[np.float32], *, optimized: bool) -> NDArray[np.float32]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (made,) = ort.InferenceSession(path, options).run(None, {"x": x})
    return np.asarray(made, np.float32)


@pytest.mark.parametrize("batch", ["2", "(n)"])
@pytest.mark.parametrize("case", CASES)
def test_the_optimizer_computes_a_resize_between_int8_layers(
    case: str, batch: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(7)
    arrays = {
        "w": rng.normal(size=(8, 3, 3, 3)).astype(np.float32),
        "v": rng.normal(size=(4, 8, 3, 3)).astype(np.float32),
    }
    x = rng.normal(size=(2, 3, 9, 10)).astype(np.float32)
    graph = parse(_network(case, batch), arrays)
    before = str(graph)
    made = qir.quantize(graph, qir.calibrate(graph, [x]), target="onnxruntime")
    plain = tmp_path / "plain.onnx"
    qir.save(graph, plain, target="onnxruntime", opset=17)
    assert str(graph) == before
    found = {}
    for form in ("qdq", "qoperator"):
        path = tmp_path / f"{form}.onnx"
        qir.save(made, path, target="onnxruntime", format=form, opset=17)
        (node,) = (n for n in onnx.load(path).graph.node if n.op_type == "Resize")
        assert "axes" not in [a.name for a in node.attribute]
        found[form] = _run(path, x, optimized=True)
    unoptimized = _run(tmp_path / "qoperator.onnx", x, optimized=False)
    assert np.array_equal(found["qoperator"], unoptimized)
    assert np.array_equal(found["qdq"], unoptimized)
    wanted = _run(plain, x, optimized=True)
    assert np.abs(unoptimized - wanted).max() < np.abs(wanted).max() / 20
    onnx.save(to_model(made, Ledger()), tmp_path / "direct.onnx")
    direct = _run(tmp_path / "direct.onnx", x, optimized=True)
    assert np.abs(direct - wanted).max() < np.abs(wanted).max() / 20
