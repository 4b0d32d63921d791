"""The integers that onnxruntime makes of real weights, their scale and zero point: to the byte."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir.backends.onnx.preparation.float_parameters import weight_type
from qir.numerics import affine_of, quantize
from qir.profiles import Query, profile
from tests.differential.comparison import compare
from tests.differential.runtime import optimized
from tests.installed import OPTIMIZED

SHAPES = {"Conv": (6, 4, 3, 3), "ConvTranspose": (4, 6, 3), "Gemm": (4, 30)}
COUNT, SEED = 60, 20261122
ENDS = ((-0.26010707, 0.6675475), (-0.62729025, 0.38832262), (-0.71475273, 0.48829642))
"""Ranges whose zero point in float32 is another one than that of a wider division."""
Floats = NDArray[np.float32]


def drawn(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Weights of any scale, the smallest and zeros among them, or halves of a step: many tie."""
    kind = rng.integers(6)
    if kind == 5:
        return np.asarray(rng.normal(size=shape) * rng.choice([0.0, 1e-40, 1e-37]), np.float32)
    if kind == 0:
        return np.asarray(rng.normal(size=shape) * 2.0 ** rng.uniform(-20, 8), np.float32)
    if kind == 1:
        return rng.uniform(0.1, 1.0, shape).astype(np.float32) * np.float32(rng.choice([-3.0, 2.0]))
    step, low = 2.0 ** rng.integers(-12, 3), int(rng.integers(-2 * 255, 1))
    halves = rng.integers(low, low + 511, shape)
    halves.flat[:2] = low, low + 510
    return (halves * (step / 2)).astype(np.float32)


def model(op: str, held: list[Floats]) -> onnx.ModelProto:
    """A layer of each weight: of data of 16 bits, so that dequantized integers stay in the graph.

    Their sums are shown too: other products become MatMulNBits since 1.32, which packs the
    integers.
    """
    node, first = helper.make_node, {"Gemm": (3, 4)}.get(op, (1, 4, *(5,) * (held[0].ndim - 2)))
    nodes = [node("DequantizeLinear", ["x", "step", "zero"], ["real"], "real")]
    for i in range(len(held)):
        nodes.append(node(op, ["real", f"w{i}"], [f"s{i}"], f"n{i}"))
        nodes.append(node("QuantizeLinear", [f"s{i}", "step", "zero"], [f"y{i}"], f"q{i}"))
    graph = helper.make_graph(
        nodes,
        "weights",
        [helper.make_tensor_value_info("x", TensorProto.UINT16, first)],
        [helper.make_empty_tensor_value_info(f"{n}{i}") for i in range(len(held)) for n in "ys"],
        [
            numpy_helper.from_array(np.asarray(0.01, np.float32), "step"),
            numpy_helper.from_array(np.asarray(30000, np.uint16), "zero"),
            *(numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(held)),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("op", SHAPES)
def test_real_weights_become_these_codes(op: str) -> None:
    rng = np.random.default_rng(SEED)
    held = [drawn(rng, SHAPES[op]) for _ in range(COUNT)]
    for ends, floats in zip(ENDS, held, strict=False):
        floats[:] = rng.uniform(-0.2, 0.2, floats.shape)
        floats.flat[:2] = ends
    proto = model(op, held)
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    _, shown = optimized(proto, {"x": rng.integers(0, 2**16, shape).astype(np.uint16)})
    there = {i.name: numpy_helper.to_array(i) for i in shown.graph.initializer}
    rule, ties = profile(OPTIMIZED).resolve(Query("constant")), 0
    mine: dict[str, NDArray[np.generic]] = {}
    for i, floats in enumerate(held):
        quant = weight_type(floats, rule)
        mine[f"n{i}_weight_scale"] = np.asarray(quant.scales(), np.float32)
        mine[f"n{i}_weight_zp"] = np.asarray(quant.zeros(), np.int8)
        mine[f"n{i}_weight_q"] = np.asarray(quantize(floats, affine_of(quant), rule))
        with np.errstate(all="ignore"):
            ties += int(np.count_nonzero(floats / quant.scales() % 1 == 0.5))
    found = compare(f"seed {SEED}, {op}", mine, there, mine)
    assert not found, "\n".join(map(str, found))
    assert ties > 0.05 * sum(w.size for w in held), ties
