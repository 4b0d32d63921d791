"""Proofs about sums see through what moves integers, compute what constants make, and use a
Relu."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.inspect.overflow import overflow
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, I8, I16, U8
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import Array, Granularity, QuantType, TensorType
from qir.ir.verify import verify

Whole = NDArray[np.int64]
BYTES = QuantType(U8, scale=(0.5,), zero=(3,))
FINE = QuantType(I8, scale=(0.25,))


def moved(
    graph: Graph, value: Value, data: Whole, rng: np.random.Generator, kind: int | None = None
) -> tuple[Value, Whole]:
    """A random op that moves elements, and what NumPy says it gives."""
    rows, columns = data.shape
    match int(rng.integers(6)) if kind is None else kind:
        case 0:
            made = graph.add("transpose", {"x": value}, {"perm": (1, 0)})
            return made.result, data.T
        case 1:
            shape = graph.constant(Array.of(np.array([columns, rows]), "shape"))
            made = graph.add("reshape", {"x": value, "shape": shape})
            return made.result, data.reshape(columns, rows)
        case 2:
            longer = graph.add("unsqueeze", {"x": value}, {"axes": (1,)}).result
            return graph.add("squeeze", {"x": longer}, {"axes": (1,)}).result, data
        case 3:
            picked = rng.integers(0, rows, rows + 1)
            indices = graph.constant(Array.of(picked, "at"))
            made = graph.add("gather", {"x": value, "indices": indices}, {"axis": 0})
            return made.result, data[picked]
        case 4:
            attrs: dict[str, Attr] = {"starts": (1,), "ends": (columns,), "axes": (1,)}
            made = graph.add("slice", {"x": value}, {**attrs, "steps": (1,)})
            return made.result, data[:, 1:]
    return graph.add("flip", {"x": value}, {"axes": (0,)}).result, data[::-1]


def product(graph: Graph, w: Value, kind: QuantType = BYTES) -> Graph:
    """Floats of integers, moved too, times the weights."""
    depth = w.type.shape[0]
    x = graph.add("input", types=[TensorType((depth, 2), kind)], name="x").result
    floats = graph.add("dequantize", {"x": x}).result
    turned = graph.add("transpose", {"x": floats}, {"perm": (1, 0)}).result
    graph.add("output", {"y": graph.add("matmul", {"a": turned, "b": w}, name="y").result})
    return graph


def extremes(w: Whole, low: int, high: int) -> tuple[int, int]:
    """Least and greatest sum of a column, each code of the input taken as it hurts most."""
    least = np.minimum(w * low, w * high).sum(axis=0).min()
    return int(least), int(np.maximum(w * low, w * high).sum(axis=0).max())


@pytest.mark.parametrize("seed", range(40))
def test_weights_are_known_behind_whatever_moves_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = rng.integers(-128, 128, (int(rng.integers(2, 5)), int(rng.integers(4, 7))))
    graph, kind = Graph(), FINE
    if zeroed := bool(rng.integers(2)):
        zero = Array.of(rng.integers(-5, 5, len(data)).astype(np.int8), "z")
        scale = Array.of(rng.uniform(0.1, 1, len(data)).astype(np.float32), "s")
        kind = QuantType(I8, scale=scale, zero=zero, granularity=Granularity(((0, 1),)))
    held = Array(data.astype(np.int8), TensorType(data.shape, kind), "w")
    value = graph.constant(held)
    centred = data - np.asarray(kind.zeros(), np.int64).reshape(-1, 1)
    at, count = int(rng.integers(3)), int(rng.integers(1, 4))
    kinds = (2, 0, 5)[: 2 + count % 2] if zeroed else (None,) * count
    for i, move in enumerate(kinds):
        if i == at:
            value = graph.add("dequantize", {"x": value}).result
        if move is not None or centred.shape[1] > 1:
            value, centred = moved(graph, value, centred, rng, move)
    if at >= len(kinds):
        value = graph.add("dequantize", {"x": value}).result
    product(graph, value)
    (found,) = overflow(graph)
    assert found.static
    assert found.why == ""
    assert (found.least, found.greatest) == extremes(centred, -3, 252), f"seed {seed}\n{graph}"


def session(nodes: list[onnx.NodeProto], given: dict[str, object], depth: int) -> bytes:
    """A model of one input row and one result."""
    held = [numpy_helper.from_array(np.asarray(v), k) for k, v in given.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, depth))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    made: bytes = model.SerializeToString()
    return made


def test_a_sum_of_moved_weights_wraps_in_onnxruntime_as_told(tmp_path: object) -> None:
    depth, node = 70000, helper.make_node
    given: dict[str, object] = {
        "s": np.float32(1),
        "z": np.uint8(0),
        "w": np.full((1, depth), -128, np.int8),
        "zw": np.int8(0),
        "sy": np.float32(2e7),
        "zy": np.uint8(255),
    }
    model = session(
        [
            node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            node("DequantizeLinear", ["q", "s", "z"], ["xr"]),
            node("DequantizeLinear", ["w", "s", "zw"], ["wr"]),
            node("Transpose", ["wr"], ["wt"], perm=[1, 0]),
            node("MatMul", ["xr", "wt"], ["m"]),
            node("QuantizeLinear", ["m", "sy", "zy"], ["yq"]),
            node("DequantizeLinear", ["yq", "sy", "zy"], ["y"]),
        ],
        given,
        depth,
    )
    path = f"{tmp_path}/wraps.onnx"
    with open(path, "wb") as file:
        file.write(model)
    made = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (out,) = made.run(None, {"x": np.full((1, depth), 255, np.float32)})
    total = depth * 255 * -128
    assert out.item() != np.rint(total / 2e7) * 2e7  # it wrapped to a positive sum
    graph = pipeline.load(path)
    (found,) = overflow(graph)
    assert (found.least, found.greatest, found.wraps) == (total, 0, True)
    assert [f.rule for f in pipeline.verify(graph)] == ["overflow"]


def test_codes_that_a_quantize_makes_of_constants_are_those_of_onnxruntime() -> None:
    rng = np.random.default_rng(4)
    floats = rng.normal(0, 20, (7, 300)).astype(np.float32)
    model = session(
        [
            helper.make_node("Identity", ["x"], ["unused"]),
            helper.make_node("QuantizeLinear", ["w", "s", "z"], ["q"]),
            helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
        ],
        {"w": floats, "s": np.float32(0.25), "z": np.int8(0)},
        1,
    )
    made = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (quantized,) = made.run(None, {"x": np.zeros((1, 1), np.float32)})
    graph = Graph("main", "ort-1.31")
    w = graph.constant(Array.of(floats, "w"))
    turned = graph.add("transpose", {"x": w}, {"perm": (1, 0)}).result
    stored = graph.add("quantize", {"x": turned}, types=[TensorType((300, 7), FINE)]).result
    product(graph, graph.add("dequantize", {"x": stored}).result)
    (found,) = overflow(graph)
    assert (found.least, found.greatest) == extremes(quantized.T.astype(np.int64), -3, 252)
    assert [f.rule for f in verify(graph)] == []  # nobody computes here, and nobody guesses


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize(
    ("op", "attrs", "low", "high"),
    [
        ("relu", {}, 0, 32767),
        ("clip", {"min": -1.0, "max": 6.0}, -128, 768),
        ("clip", {"min": 0.0}, 0, 32767),
        ("sigmoid", {}, 0, 128),
        ("neg", {}, -32768, 32767),
    ],
)
def test_what_stands_before_a_quantize_bounds_its_codes(
    op: str, attrs: dict[str, Attr], low: int, high: int, chained: bool
) -> None:
    kind = QuantType(I16, scale=(0.0078125,))
    graph = Graph()
    x = graph.add("input", types=[TensorType((2, 600), F32)], name="x").result
    if chained:
        x = graph.add("flip", {"x": graph.add(op, {"x": x}, attrs).result}, {"axes": (1,)}).result
    else:
        x = graph.add(op, {"x": x}, attrs).result
    stored = graph.add("quantize", {"x": x}, types=[TensorType((2, 600), kind)]).result
    data = np.tile([[127], [-127]], (300, 1))
    held = Array(data.astype(np.int8), TensorType(data.shape, FINE), "w")
    a = graph.add("dequantize", {"x": stored}).result
    b = graph.add("dequantize", {"x": graph.constant(held)}).result
    graph.add("output", {"y": graph.add("matmul", {"a": a, "b": b}, name="y").result})
    (found,) = overflow(graph)
    assert (found.least, found.greatest) == extremes(data, low, high)
    assert found.wraps == (op == "neg")


def test_scales_that_a_reshape_deals_out_are_not_known() -> None:
    graph = Graph()
    scale = Array.of(np.array([0.5, 0.25], np.float32), "s")
    kind = QuantType(I8, scale=scale, granularity=Granularity(((0, 1),)))
    held = Array(np.ones((2, 6), np.int8), TensorType((2, 6), kind), "w")
    floats = graph.add("dequantize", {"x": graph.constant(held)}).result
    shape = graph.constant(Array.of(np.array([4, 3]), "shape"))
    product(graph, graph.add("reshape", {"x": floats, "shape": shape}).result)
    (found,) = overflow(graph)
    assert (found.wraps, found.why) == (None, "its scales do not keep to one axis through reshape")
    assert verify(graph) == []


def test_codes_dequantized_apart_and_joined_are_not_known() -> None:
    graph = Graph()
    floats = [
        graph.add("dequantize", {"x": graph.add("input", types=[TensorType((2, 3), k)]).result})
        for k in (BYTES, QuantType(U8, scale=(0.25,)))
    ]
    joined = graph.add("concat", {f"xs.{i}": r.result for i, r in enumerate(floats)}, {"axis": 1})
    held = Array(np.ones((6, 2), np.int8), TensorType((6, 2), FINE), "w")
    w = graph.add("dequantize", {"x": graph.constant(held)}).result
    graph.add("output", {"y": graph.add("matmul", {"a": joined.result, "b": w}).result})
    (found,) = overflow(graph)
    assert (found.wraps, found.pairs) == (None, None)
    assert found.why == "concat joins quantized tensors that are dequantized separately"
