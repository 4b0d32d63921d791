"""What the reference is held against: onnxruntime, and bounds on float64 results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

Array: TypeAlias = NDArray[np.generic]
Exact: TypeAlias = NDArray[np.float64]

HALF_ULP = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LEAST = {"float64": 5e-324, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}


def onnxruntime_runs(op: str, operands: Sequence[Array | None], **attrs: Any) -> Array:
    """The first result of one ONNX node, optimizer off, one thread."""
    count = onnx.defs.get_schema(op, 21).min_output
    outputs = ["y", *(f"y{i}" for i in range(1, count))]
    named = [(f"i{k}", x) for k, x in enumerate(operands)]
    node = helper.make_node(op, ["" if x is None else n for n, x in named], outputs, **attrs)
    feeds = {n: x for n, x in named if x is not None}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in feeds.items()
    ]
    graph = helper.make_graph([node], "one", inputs, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    result: Array = session.run(None, feeds)[0]
    return result


def assert_rounded_once(got: Array, exact: Exact, magnitude: Exact, note: str) -> None:
    """Each element is `exact` rounded once, but for float64's own error on the magnitude."""
    assert got.shape == exact.shape, f"{note}: shape {got.shape}, expected {exact.shape}"
    kind = got.dtype.name
    bound = HALF_ULP[kind] * (1 + 2.0**-20) * np.abs(exact) + LEAST[kind] / 2
    bound = bound + 2.0**-46 * magnitude
    error = np.abs(got.astype(np.float64) - exact)
    assert (error <= bound).all(), f"{note}: off by {np.max(error / bound)} times the bound"


def assert_near(got: Array, other: Array, magnitude: Exact, terms: int, note: str) -> None:
    """`other` was summed in float32: each term may have cost it an ulp of the magnitude."""
    assert got.dtype == other.dtype, f"{note}: {got.dtype}, expected {other.dtype}"
    assert got.shape == other.shape, f"{note}: shape {got.shape}, expected {other.shape}"
    bound = (terms + 4) * 2.0**-23 * magnitude + 2.0**-140
    error = np.abs(got.astype(np.float64) - other.astype(np.float64))
    assert (error <= bound).all(), f"{note}: off by {np.max(error / bound)} times the bound"


def assert_close(got: Array, other: Array, tolerance: float, note: str = "") -> None:
    """Of one type and shape, and no further apart than float32 functions of one name are."""
    assert got.dtype == other.dtype, f"{note}: {got.dtype}, expected {other.dtype}"
    assert got.shape == other.shape, f"{note}: shape {got.shape}, expected {other.shape}"
    a, b = got.astype(np.float64), other.astype(np.float64)
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=note)


def frozen(x: Array) -> Array:
    """A copy that nothing may write to."""
    x = x.copy()
    x.setflags(write=False)
    return x
