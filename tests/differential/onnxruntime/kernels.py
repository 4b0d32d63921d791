"""Onnxruntime's integer operators one at a time, its optimizer off, as functions on arrays."""

from collections.abc import Sequence

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir.numerics import Affine

Array = NDArray[np.generic]

MS = "com.microsoft"
_KINDS = {
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.float32): TensorProto.FLOAT,
}


def numbers(mapping: Affine) -> tuple[Array, Array]:
    """Returns scale and zero point as an operator takes them."""
    return np.asarray(mapping.scale, np.float32), np.asarray(mapping.zero).astype(mapping.carrier)


def run_operator(
    op: str,
    operands: Sequence[Array | None],
    result: np.dtype[np.generic] | type[np.generic],
    *,
    inputs_at: tuple[int, ...] = (0,),
    domain: str = "",
    **attrs: float | Sequence[int],
) -> Array:
    """One operator on operands in order (None: absent); those at the places `fed` are inputs."""
    names = [f"o{i}" if data is not None else "" for i, data in enumerate(operands)]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(op, names, ["y"], domain=domain)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attrs.items())
    present = {i: data for i, data in enumerate(operands) if data is not None}
    declared = [
        helper.make_tensor_value_info(f"o{i}", _KINDS[present[i].dtype], present[i].shape)
        for i in inputs_at
    ]
    constants = [
        numpy_helper.from_array(np.asarray(d), f"o{i}")
        for i, d in present.items()
        if i not in inputs_at
    ]
    output = helper.make_tensor_value_info("y", _KINDS[np.dtype(result)], None)
    model = helper.make_model(
        helper.make_graph([node], "one", declared, [output], constants),
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)],
        ir_version=10,
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (array,) = session.run(None, {f"o{i}": present[i] for i in inputs_at})
    return np.asarray(array)
