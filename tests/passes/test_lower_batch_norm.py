"""Batch norms that no layer takes in: the numbers stay, and the whole network becomes integer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import qir
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.passes.forms.lower_batch_norm import LowerBatchNorm
from qir.reference.interpreter import run
from qir.rewrite import run_passes

F = np.float32
PADDED = """graph main as native {
  %x = input() : 4x2x5x5xf32
  %w = constant(@w) : 6x2x3x3xf32
  %w2 = constant(@w2) : 3x6x3x3xf32
  %g = constant(@g) : 6xf32
  %b = constant(@b) : 6xf32
  %m = constant(@m) : 6xf32
  %v = constant(@v) : 6xf32
  %c = conv2d(%x, %w) {pad = (1, 1, 1, 1)} : 4x6x5x5xf32
  %r = relu(%c) : 4x6x5x5xf32
  %n = batch_norm(%r, %g, %b, %m, %v) : 4x6x5x5xf32
  %y = conv2d(%n, %w2) {pad = (1, 1, 1, 1)} : 4x3x5x5xf32
  output(y=%y)
}
"""


def network() -> tuple[Graph, dict[str, np.ndarray]]:
    """Returns a padded convolution after a norm with a shift, which cannot be folded into it."""
    rng = np.random.default_rng(3)
    arrays = {
        "w": rng.normal(size=(6, 2, 3, 3)).astype(F),
        "w2": rng.normal(size=(3, 6, 3, 3)).astype(F),
        "g": (rng.normal(size=6) * 4.0 ** rng.integers(-3, 3, 6)).astype(F),
        "b": rng.normal(size=6).astype(F),
        "m": rng.normal(size=6).astype(F),
        "v": rng.uniform(0.5, 2, 6).astype(F),
    }
    return qir.parse(PADDED, arrays), arrays


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_the_convolution_computes_what_the_norm_does(rank: int) -> None:
    rng = np.random.default_rng(rank)
    shape = (2, 5, *(4, 3, 2)[: rank - 2])
    x = rng.normal(size=shape).astype(F)
    rows = {name: rng.uniform(0.5, 2, 5).astype(F) for name in ("gamma", "beta", "mean", "var")}
    graph = Graph()
    data = graph.add("input", types=[qir.TensorType(shape, F32)], name="x").result
    given = {name: graph.constant(row) for name, row in rows.items()}
    made = graph.add("batch_norm", {"x": data} | given, {"eps": 0.01}, name="y").result
    graph.add("output", {"y": made})
    lowered = run_passes(graph, [LowerBatchNorm()], qir.Ledger())
    assert "batch_norm" not in {node.op for node in lowered}
    g, b, m, v = (rows[n].astype(np.float64).reshape(-1, *(1,) * (rank - 2)) for n in rows)
    wanted = (x - m) * g / np.sqrt(v + F(0.01)) + b
    assert np.abs(run(lowered, {"x": x})["y"].astype(np.float64) - wanted).max() < 1e-5


def test_a_norm_between_integer_ops_is_integer_in_onnxruntime(tmp_path: Path) -> None:
    graph, arrays = network()
    data = np.random.default_rng(4).normal(size=(64, 2, 5, 5)).astype(F)
    plan = qir.plan(graph)
    assert {decision.becomes for decision in plan.decisions} == {"integer"}
    quantized = qir.quantize(graph, qir.calibrate(graph, data))
    qir.save(quantized, tmp_path / "y.onnx", format="qoperator")
    ops = [node.op_type for node in onnx.load(tmp_path / "y.onnx").graph.node]
    assert ops.count("QLinearConv") == 3
    assert ops.count("QuantizeLinear") == 1

    session = onnxruntime.InferenceSession(tmp_path / "y.onnx")
    theirs = np.asarray(session.run(None, {"x": data[:4]})[0])
    assert np.array_equal(run(quantized, {"x": data[:4]})["y"], theirs)
    (exact,) = run(graph, {"x": data[:4]}).values()
    error = np.linalg.norm(theirs - exact) / np.linalg.norm(exact)
    assert error < 0.03, arrays["g"]  # factors of 1/16 to 16, each with a scale of its own


def test_a_norm_of_the_input_or_with_one_scale_a_weight_stays() -> None:
    graph, _ = network()
    coarse = qir.plan(graph, granularity="tensor")
    assert [d.becomes for d in coarse.decisions if d.op == "batch_norm"] == ["float"]
    text = "graph main {\n  %x = input() : 1x2x3x3xf32\n  %g = constant([1.0, 2.0]) : 2xf32\n"
    text += "  %y = batch_norm(%x, %g, %g, %g, %g) : 1x2x3x3xf32\n  output(y=%y)\n}\n"
    assert [d.becomes for d in qir.plan(qir.parse(text)).decisions] == ["float"]
