"""Integers of one map in another, by the rule of native: what onnxruntime gives for the same."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir.ir.dtype import dtype
from qir.ir.graph import Graph
from qir.ir.types import TensorType, uniform
from qir.reference.interpreter import run as compute
from tests.differential.comparison import compare
from tests.differential.runtime import run

KINDS: dict[str, type[np.integer[Any]]] = {
    "u8": np.uint8,
    "i8": np.int8,
    "u16": np.uint16,
    "i16": np.int16,
}
RATIOS = ("3/2", "1/2", "5/2", "7/4", "1/4", "3/10")
"""Of two scales, as real numbers just so: many integers fall half way between two others."""
Codes = NDArray[np.integer[Any]]
Map = tuple[NDArray[np.float32], Codes]


def maps(
    rng: np.random.Generator, given: str, made: str, number: int, channels: int
) -> tuple[Map, Map]:
    """Scales and odd zero points of an operand and a result that is narrower, mostly."""
    span = {k: np.iinfo(t) for k, t in KINDS.items()}
    wide = float(2 ** (8 * (np.dtype(KINDS[given]).itemsize - np.dtype(KINDS[made]).itemsize)))
    if number % 3:
        ratio = float(Fraction(RATIOS[number % len(RATIOS)])) * wide
        of_y = np.float32(2.0 ** rng.integers(-9, 3))
        of_x = (of_y * np.float32(ratio)) * np.ones(channels, np.float32)
    else:
        of_y = np.float32(np.exp(rng.uniform(-6, 1)))
        of_x = (of_y * wide * rng.uniform(0.3, 3, channels)).astype(np.float32)
    of_x = of_x.astype(np.float32)
    zeros = []
    for kind, share in ((given, 0.1), (made, 0.25)):
        middle = (span[kind].min + span[kind].max) // 2
        off = rng.integers(-1, 2) * int(share * (span[kind].max - middle))
        zeros.append(np.asarray((middle + off) | 1, KINDS[kind]))
    shape = (channels,) if channels > 1 else ()
    at = np.full(shape, zeros[0], KINDS[given])
    return (of_x.reshape(shape), at), (np.asarray(of_y), zeros[1])


def judge(x: Codes, of_x: Map, of_y: Map) -> NDArray[np.generic]:
    """DequantizeLinear and QuantizeLinear, each as it stands."""
    kind = helper.np_dtype_to_tensor_dtype
    given = {"xs": of_x[0], "xz": of_x[1], "ys": of_y[0], "yz": of_y[1]}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["r"], axis=0),
        helper.make_node("QuantizeLinear", ["r", "ys", "yz"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "pair",
        [helper.make_tensor_value_info("x", kind(x.dtype), x.shape)],
        [helper.make_tensor_value_info("y", kind(of_y[1].dtype), x.shape)],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in given.items()],
    )
    assert graph.output[0].type.tensor_type.elem_type != TensorProto.FLOAT
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    return run(model, {"x": x}, optimize=False)["y"]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("made", KINDS)
@pytest.mark.parametrize("given", KINDS)
def test_codes_in_another_map_are_those_of_onnxruntimes_pair(
    given: str, made: str, channels: int
) -> None:
    for number in range(24):
        rng = np.random.default_rng(number)
        of_x, of_y = maps(rng, given, made, number, channels)
        span = np.iinfo(KINDS[given])
        every = np.arange(span.min, span.max + 1).astype(KINDS[given])
        every = every if every.size < 1000 else rng.choice(every, 1500)
        x = np.resize(every, (channels, every.size // channels))
        graph = Graph(profile="native")
        axis = 0 if channels > 1 else None
        kind = TensorType(x.shape, uniform(dtype(given), of_x[0], of_x[1], axis=axis))
        quantized = graph.add("input", types=[kind], name="x").result
        out = TensorType(x.shape, uniform(dtype(made), of_y[0], of_y[1]))
        graph.add("output", {"y": graph.add("requantize", {"x": quantized}, types=[out]).result})
        where = f"{given} to {made}, map {number}"
        found = compare(where, compute(graph, {"x": x}), {"y": judge(x, of_x, of_y)}, ["y"])
        assert not found, found[0]
