"""Scales and zero points in lists of one: onnxruntime takes them for one for the whole tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir.reference.interpreter import run
from tests.counting import note
from tests.differential.fusion import INTEGER, grouped
from tests.differential.runtime import optimized

Array = NDArray[np.generic]
LAYERS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "depthwise": ("Conv", (2, 32, 9, 9), (32, 1, 3, 3), {"group": 32}),
    "one channel": ("Conv", (2, 1, 9, 9), (8, 1, 3, 3), {}),
    "one channel of a line": ("Conv", (2, 1, 39), (8, 1, 3), {}),
    "one result": ("Conv", (2, 4, 9, 9), (1, 4, 3, 3), {}),
    "gemm of one column": ("Gemm", (200, 7), (7, 1), {}),
    "gemm of one term": ("Gemm", (200, 1), (9, 1), {"transB": 1}),
    "matmul of one column": ("MatMul", (200, 7), (7, 1), {}),
}


def layer(name: str, opset: int, lists: str, axis: int | None) -> tuple[onnx.ModelProto, Array]:
    """A layer between integers, with lists of one at the places named, and integers for it."""
    op, shape, held, attrs = LAYERS[name]
    rng = np.random.default_rng([opset, len(name), len(lists)])
    w = rng.integers(-127, 128, held).astype(np.int8)
    arrays: dict[str, Array] = {"w": w}
    rows = {"x": (0.1, np.uint8(100)), "w": (0.03, np.int8(0)), "y": (0.072, np.uint8(91))}
    for place, (scale, zero) in rows.items():
        sizes = (1,) if place in lists else ()
        arrays[f"{place}_scale"] = np.full(sizes, scale, np.float32)
        arrays[f"{place}_zero"] = np.full(sizes, zero)
    along: dict[str, Any] = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["xr"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wr"], **along),
        helper.make_node(op, ["xr", "wr"], ["yr"], **attrs),
        helper.make_node("QuantizeLinear", ["yr", "y_scale", "y_zero"], ["y"]),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.UINT8, shape)]
    made = [helper.make_tensor_value_info("y", TensorProto.UINT8, None)]
    constants = [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "lists", given, made, constants)
    sets = [helper.make_opsetid("", opset)]
    proto = helper.make_model(graph, opset_imports=sets, ir_version=8)
    return proto, rng.integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("lists", ["x", "w", "y", "xwy"])
@pytest.mark.parametrize("opset", [12, 13, 17, 21])
@pytest.mark.parametrize("name", LAYERS)
def test_a_list_of_one_is_one_scale_for_all(name: str, opset: int, lists: str) -> None:
    for axis in (None, 0) if opset > 12 and "w" in lists else (None,):
        proto, x = layer(name, opset, lists, axis)
        wanted, made = optimized(proto, {"x": x})
        graph = grouped(proto)
        found = np.asarray(run(graph, {"x": x})["y"])
        note(found, wanted["y"])
        assert (found == wanted["y"]).all(), f"{np.count_nonzero(found != wanted['y'])} differ"
        kernels = [n.op_type for n in made.graph.node]
        there = any(k.startswith("QLinear") or k in INTEGER[1:] for k in kernels)
        heads = [v.node.op for v in graph.values.values() if v.name == "y"]
        assert (heads != ["quantize"]) == there, f"{heads} here, {kernels} there"


def test_what_is_read_has_one_scale() -> None:
    for name in LAYERS:
        graph = grouped(layer(name, 13, "xwy", None)[0])
        maps = [v.type.quant for v in graph.values.values() if v.type.quant]
        assert maps
        assert not any(quant.granularity for quant in maps)
