"""What the guide says of signed codes that go through a move to reals: onnxruntime, by itself."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

CONSTANTS: dict[str, NDArray[np.generic]] = {
    "s": np.array(0.1, np.float32),
    "z": np.array(3, np.int8),
    "a": np.array([0]),
    "b": np.array([2]),
    "axis": np.array([1]),
}


def opened(opset: int, *, optimize: bool = True) -> None:
    """Has onnxruntime open i8 codes, their reals, a Slice and a Sigmoid of that set."""
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
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("opset", [17, 20])
def test_signed_codes_behind_a_move_are_taken_up_to_set_20(opset: int) -> None:
    opened(opset)


def test_the_optimizer_refuses_them_from_set_21_on() -> None:
    with pytest.raises(Exception, match="output_dtype INT8 does not match y_zero_point type UINT8"):
        opened(21)
    opened(21, optimize=False)
