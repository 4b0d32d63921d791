"""Linear layers as gemm: the same numbers as NumPy's, statistics kept, one int8 kernel each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

import qir
from qir import pipeline
from qir.ir.dims import symbol
from qir.ir.dtype import dtype
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.types import TensorType
from qir.passes.forms.lower_linear import LowerLinear
from qir.reference.interpreter import run
from qir.rewrite import run_passes


def layer(shape: Sequence[int | str], bias: bool = True) -> Graph:
    rng = np.random.default_rng(7)
    graph = Graph()
    sizes = tuple(symbol(s) if isinstance(s, str) else s for s in shape)
    x = graph.add("input", types=[TensorType(sizes, dtype("f32"))], name="x").result
    operands = {"x": x, "w": graph.constant(rng.normal(size=(5, 4)).astype(np.float32), name="w")}
    if bias:
        operands["bias"] = graph.constant(rng.normal(size=5).astype(np.float32), name="b")
    graph.add("output", {"y": graph.add("linear", operands, name="y").result})
    return graph


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "shape", [(3, 4), ("N", 4), (2, 3, 4), ("N", 3, 4), ("N", "L", 4), (2, 1, 3, 4), (0, 3, 4)]
)
def test_layers_of_any_rank_become_one_gemm(shape: tuple[int | str, ...], bias: bool) -> None:
    graph = layer(shape, bias)
    lowered = run_passes(graph, [LowerLinear()], qir.Ledger())
    assert [n.op for n in lowered if n.op in ("linear", "gemm", "matmul")] == ["gemm"]
    assert lowered["y"].type == graph["y"].type
    assert {v.lineage.tensor for n in lowered if n.op == "gemm" for v in n.results} == {"y"}
    x = np.random.default_rng(1).normal(size=[s if isinstance(s, int) else 6 for s in shape])
    x = x.astype(np.float32)
    w, b = graph["w"].constant, graph["b"].constant if bias else None
    assert w is not None
    wanted = np.matmul(x, w.data.T, dtype=np.float64) + (0 if b is None else b.data)
    (made,) = run(lowered, {"x": x}).values()
    assert np.abs(made - wanted).max(initial=0) < 1e-5


def test_layers_on_quantized_values_stay() -> None:
    graph = qir.parse(
        "graph main as native {\n  %x = input() : 2x4x!quant.uniform<u8:f32, 0.1:3>\n"
        "  %w = input() : 1x4x!quant.uniform<i8:f32, 0.1>\n"
        "  %y = linear(%x, %w) : 2x1xf32\n  output(y=%y)\n}\n"
    )
    assert LowerLinear().run(graph, qir.Ledger()) == 0


def test_a_layer_of_three_axes_is_one_int8_product_in_onnxruntime(tmp_path: Path) -> None:
    graph = layer(("N", 3, 4))
    x = np.random.default_rng(2).normal(size=(16, 3, 4)).astype(np.float32)
    quantized = qir.quantize(graph, qir.calibrate(graph, x))
    qir.save(quantized, tmp_path / "y.onnx", format="qoperator")
    ops = [node.op_type for node in onnx.load(tmp_path / "y.onnx").graph.node]
    assert ops.count("QGemm") == 1
    assert not {"MatMul", "Gemm", "Add"} & set(ops)


ADDED = """graph main {
  %x = input() : 2x4x3xf32
  %w = constant(@w) : 3x5xf32
  %b = constant(@b) : 5xf32
  %m = matmul(%x, %w) : 2x4x5xf32
  %s = add(%m, %b) : 2x4x5xf32
  %r = relu(%s) : 2x4x5xf32
  output(y=%r)
}"""


def test_a_matmul_with_what_is_added_to_it_is_one_product_where_the_target_has_one() -> None:
    rng = np.random.default_rng(5)
    arrays = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("w", (3, 5)), ("b", 5))}
    graph = parse(ADDED, arrays)
    x = rng.standard_normal((2, 4, 3)).astype(np.float32)
    plan = pipeline.plan(graph)
    assert {d.op for d in plan.decisions if d.integer} == {"gemm", "relu", "reshape"}
    made = pipeline.quantize(graph, pipeline.calibrate(graph, [{"x": x}]))
    (product,) = (n for n in made if n.op == "gemm")
    assert product.operands["c"].node.operands["x"].type.quant is not None
    wanted = np.maximum(x.astype(np.float64) @ arrays["w"] + arrays["b"], 0)
    found = pipeline.run(made, {"x": x})["y"]
    assert np.abs(found - wanted).max() < 0.05 * wanted.max()


def test_a_matmul_with_a_bias_that_a_target_has_no_place_for_stays_float() -> None:
    """Its weights are computed, so that no product with a bias can take its place."""
    text = (
        "graph main {\n  %x = input() : 4x3xf32\n  %w = input() : 3x5xf32\n"
        "  %b = constant([1.0, 2.0, 3.0, 4.0, 5.0]) : 5xf32\n"
        "  %y = matmul(%x, %w, bias=%b) : 4x5xf32\n  output(y=%y)\n}"
    )
    (made,) = pipeline.plan(parse(text)).decisions
    assert made.becomes == "float"
    assert made.reason == "onnxruntime has no matmul with a bias: add it after the matmul"
