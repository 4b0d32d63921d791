"""What the guide says of signed codes that go through a move to reals: onnxruntime, by itself."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

CONSTANTS = {
    "s": np.array(0.1, np.float32),
    "z": np.array(3, np.int8),
    "a": np.array([0]),
    "b": np.array([2]),
    "axis": np.array([1]),
}


def opens(opset: int, *, optimize: bool = True) -> bool:
    """Whether onnxruntime takes i8 codes, their reals, a Slice and a Sigmoid of that set."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Slice", ["d", "a", "b", "axis"], ["t"]),
        helper.make_node("Sigmoid", ["t"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "signed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(data, name) for name, data in CONSTANTS.items()],
    )
    sets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=10).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors share no base of their own
        assert "output_dtype INT8 does not match y_zero_point type UINT8" in str(error)
        return False
    return True


@pytest.mark.parametrize("opset", [17, 20, 21])
def test_the_optimizer_refuses_signed_codes_behind_a_move_from_set_21_on(opset: int) -> None:
    assert opens(opset) is (opset < 21)
    assert opens(opset, optimize=False)
