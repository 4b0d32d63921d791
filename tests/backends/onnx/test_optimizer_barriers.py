"""Layers of floats between integers compute on floats in onnxruntime, whatever it would fuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from qir import pipeline
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, U8
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import TensorType, uniform

SEED = 14
Make = Callable[[Graph, Value], Value]


def held(graph: Graph, *shape: int) -> Value:
    size = int(np.prod(shape))
    rng = np.random.default_rng([SEED, size, len(list(graph))])
    return graph.constant((rng.normal(size=shape) / 4).astype(np.float32))


def conv(graph: Graph, x: Value, lines: int, *, turned: bool = False, bias: bool = True) -> Value:
    operands = {"x": x, "w": held(graph, 4, 4, *(3,) * lines)}
    if bias:
        operands["bias"] = held(graph, 4)
    return graph.add(f"conv_transpose{lines}d" if turned else f"conv{lines}d", operands).result


def then(graph: Graph, x: Value, op: str, **attrs: Attr) -> Value:
    return graph.add(op, {"x": x}, attrs).result


def product(graph: Graph, x: Value) -> Value:
    made = graph.add("matmul", {"a": x, "b": held(graph, 4, 4)}).result
    return graph.add("add", {"a": made, "b": held(graph, 4)}).result


def sized(graph: Graph, x: Value, *sizes: int) -> Value:
    shape = graph.constant(np.array(sizes))
    return graph.add("reshape", {"x": x, "shape": shape}).result


def normed(graph: Graph, x: Value) -> Value:
    numbers = {name: held(graph, 4) for name in ("gamma", "beta", "mean")}
    numbers["var"] = graph.constant(np.full(4, 0.7, np.float32))
    return graph.add("batch_norm", {"x": conv(graph, x, 2, bias=False), **numbers}).result


def scaled(graph: Graph, x: Value) -> Value:
    half = graph.constant(np.float32(0.5))
    return graph.add("mul", {"a": conv(graph, x, 2), "b": half}).result


def straight(lines: int, *, turned: bool) -> Make:
    return lambda graph, x: conv(graph, x, lines, turned=turned)


LAYERS: dict[str, tuple[tuple[int, ...], Make]] = {
    **{f"conv{n}d": ((2, 4, *(6,) * n), straight(n, turned=False)) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": ((2, 4, *(6,) * n), straight(n, turned=True)) for n in (1, 2, 3)},
    "turned, relu": (
        (2, 4, 6, 6),
        lambda g, x: then(g, conv(g, x, 2, turned=True), "relu"),
    ),
    "gemm": (
        (3, 4),
        lambda g, x: g.add("gemm", {"a": x, "b": held(g, 4, 4), "c": held(g, 4)}).result,
    ),
    "product and sum": ((3, 4), product),
    "products and sum": ((2, 3, 4), product),
    "reshaped before": ((2, 4, 36), lambda g, x: conv(g, sized(g, x, 2, 4, 6, 6), 2)),
    "reshaped behind": ((2, 4, 6, 6), lambda g, x: sized(g, conv(g, x, 2), 2, -1)),
    "turned, transposed": (
        (2, 4, 6, 6),
        lambda g, x: then(g, conv(g, x, 2, turned=True), "transpose", perm=(0, 2, 3, 1)),
    ),
    "pooled": ((2, 4, 6, 6), lambda g, x: then(g, conv(g, x, 2), "max_pool2d", kernel=(2, 2))),
    "normed": ((2, 4, 6, 6), normed),
    "scaled": ((2, 4, 6, 6), scaled),
}


def network(shape: tuple[int, ...], make: Make) -> Graph:
    """A layer of floats, what it takes and what it makes rounded to integers."""
    graph = Graph("kept", "ort-1.31")
    x = graph.add("input", types=(TensorType(shape, F32),), name="x").result
    for scale, between in ((0.03, make), (0.002, None)):
        quantized = uniform(U8, np.float32(scale), 128)
        given = graph.add("quantize", {"x": x}, types=(x.type.with_element(quantized),)).result
        x = graph.add("dequantize", {"x": given}).result
        x = between(graph, x) if between else x
    graph.add("output", {"y": x})
    return graph


def run(path: Path, x: NDArray[np.float32], level: str) -> NDArray[np.float32]:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    options.optimized_model_filepath = str(path.with_suffix(f".{level}.onnx"))
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0], np.float32)


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("layer", LAYERS)
def test_no_weight_of_a_layer_of_reals_becomes_codes(layer: str, form: str, tmp_path: Path) -> None:
    shape, make = LAYERS[layer]
    path = tmp_path / "m.onnx"
    pipeline.save(network(shape, make), path, format=form)
    x = np.random.default_rng(SEED).normal(size=shape).astype(np.float32)
    found, plain = run(path, x, "ENABLE_ALL"), run(path, x, "DISABLE_ALL")
    held = onnx.load(path.with_suffix(".ENABLE_ALL.onnx")).graph
    many = [t.name for t in held.initializer if t.data_type in (2, 3, 6) and np.prod(t.dims) > 1]
    assert many == []
    assert not {"QLinearConv", "QGemm", "QLinearMatMul"} & {n.op_type for n in held.node}
    steps = np.abs(found - plain) / np.float32(0.002)
    assert steps.max() < 1.01, f"seed {SEED}"
    assert (steps > 0.5).mean() < 0.01, f"seed {SEED}"
