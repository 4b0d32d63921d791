"""Stacked weights with a scale for each column: float32 in onnxruntime, unless the result is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import qir
from qir.passes.forms.group import Group
from qir.rewrite import run_passes
from qir.target import target

CASES = {
    "one matrix": ((16, 32), (3, 4, 16), True, True),
    "one matrix, one scale": ((16, 32), (3, 4, 16), False, True),
    "a stack": ((3, 16, 32), (3, 4, 16), True, False),
    "a stack, one scale": ((3, 16, 32), (3, 4, 16), False, True),
    "a stack of one": ((1, 16, 32), (4, 16), True, False),
    "two axes of matrices": ((2, 3, 16, 32), (2, 3, 4, 16), True, False),
}


def network(
    shape: tuple[int, ...], data: tuple[int, ...], *, by_column: bool, quantizes: bool
) -> onnx.ModelProto:
    rng = np.random.default_rng(3)
    scales = rng.uniform(0.005, 0.02, shape[-1]) if by_column else np.array(0.01)
    arrays: dict[str, NDArray[np.generic]] = {
        "xs": np.array(0.02, np.float32),
        "xz": np.array(128, np.uint8),
        "ws": scales.astype(np.float32),
        "wz": np.zeros(scales.shape, np.int8),
        "w": rng.integers(-127, 128, shape).astype(np.int8),
        "ys": np.array(0.05, np.float32),
        "yz": np.array(120, np.uint8),
    }
    axis: dict[str, Any] = {"axis": len(shape) - 1} if by_column else {}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], **axis),
        helper.make_node("MatMul", ["xd", "wd"], ["m" if quantizes else "y"]),
    ]
    if quantizes:
        nodes += [
            helper.make_node("QuantizeLinear", ["m", "ys", "yz"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "ys", "yz"], ["y"]),
        ]
    graph = helper.make_graph(
        nodes,
        "stacked",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, data)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(data, name) for name, data in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def kernels(path: Path) -> set[str]:
    """The operators that onnxruntime's optimizer leaves."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return {n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node}


@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize("quantizes", [True, False])
def test_a_product_is_one_kernel_where_onnxruntime_fuses_it(
    what: str, quantizes: bool, tmp_path: Path
) -> None:
    shape, data, by_column, is_fused = CASES[what]
    path = tmp_path / "m.onnx"
    onnx.save(network(shape, data, by_column=by_column, quantizes=quantizes), path)
    theirs = bool(kernels(path) & {"QLinearMatMul", "MatMulIntegerToFloat"})
    profile = target("onnxruntime").profile
    grouped = run_passes(qir.load(path), [Group(profile)], qir.Ledger())
    ours = not any(
        node.op == "matmul" and node.operands["a"].type.quant is None for node in grouped
    )
    assert theirs == ours == (is_fused or not quantizes)


def test_stacked_weights_are_quantized_with_one_scale_and_stay_on_integers() -> None:
    rng = np.random.default_rng(4)
    graph = qir.parse(
        "graph main as native { %x = input() : 3x4x16xf32 %w = constant(@w) : 3x16x32xf32 "
        "%m = matmul(%x, %w) : 3x4x32xf32 %y = relu(%m) : 3x4x32xf32 output(y=%y) }",
        {"w": rng.normal(size=(3, 16, 32)).astype(np.float32)},
    )
    statistics = qir.calibrate(graph, rng.normal(size=(3, 4, 16)).astype(np.float32))
    plan = qir.plan(graph)
    assert plan.integer_macs == 1
    quantized = qir.quantize(graph, statistics)
    (weights,) = (v.type.quant for n in quantized for v in n.results if n.op == "constant"
                  and v.type.shape == (3, 16, 32) and v.type.quant)  # fmt: skip
    assert weights.granularity is None
