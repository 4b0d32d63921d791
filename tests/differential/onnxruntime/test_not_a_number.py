"""NaN where onnxruntime passes over it: what the guide to ONNX says of both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from qir import pipeline

Attrs = dict[str, float | list[int]]
N = np.nan
IMAGE = np.array([[[[1, N, -2, 3], [4, 5, N, N], [N, N, 0, -1], [N, N, 7, 8]]]], np.float32)
ROWS = IMAGE.reshape(4, 4)
HELD = np.isnan(ROWS)
CASES: dict[str, tuple[Attrs, NDArray[np.float32]]] = {
    "ThresholdedRelu": ({"alpha": 1.0}, np.where(HELD, N, np.where(ROWS > 1, ROWS, 0))),
    "Shrink": ({"lambd": 0.5}, ROWS),
    "MaxPool": (
        {"kernel_shape": [2, 2]},
        np.array([np.max(ROWS[i : i + 2, j : j + 2]) for i in range(3) for j in range(3)]),
    ),
    "GlobalMaxPool": ({}, np.array([N])),
    "ReduceMax": ({"axes": [3]}, ROWS.max(1)),
    "ReduceMin": ({"axes": [3]}, ROWS.min(1)),
    "ArgMax": ({"axis": 3}, ROWS.argmax(1)),
    "ArgMin": ({"axis": 3}, ROWS.argmin(1)),
}


@pytest.mark.parametrize("op", CASES)
def test_what_is_no_number_stays_none(tmp_path: Path, op: str) -> None:
    attrs, wanted = CASES[op]
    node = helper.make_node(op, ["x"], ["y"], "it", None, None, None, **attrs)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, IMAGE.shape)
    kind = TensorProto.INT64 if op.startswith("Arg") else TensorProto.FLOAT
    graph = helper.make_graph([node], "g", [x], [helper.make_tensor_value_info("y", kind, None)])
    of = [helper.make_opsetid("", 17)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=of, ir_version=8), path)
    (got,) = pipeline.run(pipeline.load(path), {"x": IMAGE}).values()
    assert np.array_equal(np.ravel(got).astype(np.float64), np.ravel(wanted), equal_nan=True)
    theirs = onnxruntime.InferenceSession(str(path)).run(None, {"x": IMAGE})[0]
    other = np.ravel(np.asarray(theirs)).astype(np.float64)
    assert not np.array_equal(other, np.ravel(wanted), equal_nan=True), "it is no exception now"
