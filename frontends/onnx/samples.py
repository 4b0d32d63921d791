"""Small models that hold what the frontend reads, for those who check it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

_F32 = onnx.TensorProto.FLOAT


def write(folder: Path) -> Sequence[Path]:
    """Writes them into a folder and gives their paths."""
    paths = []
    for name, make in _MODELS.items():
        paths.append(folder / f"{name}.onnx")
        paths[-1].write_bytes(make().SerializeToString(deterministic=True))
    return paths


def _model(
    nodes: Sequence[onnx.NodeProto], arrays: Mapping[str, object], output_shape: Sequence[int]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "sample",
        [helper.make_tensor_value_info("x", _F32, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", _F32, output_shape)],
        [numpy_helper.from_array(np.asarray(data), name) for name, data in arrays.items()],
    )
    imports = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _node(op: str, inputs: str, output: str, **attrs: object) -> onnx.NodeProto:
    node = helper.make_node(op, inputs.split(), [output], f"/{output}/{op}")
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attrs.items())
    return node


def _weights(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(0).normal(0, 0.3, shape).astype(np.float32)


def _float() -> onnx.ModelProto:
    nodes = [
        _node("Conv", "x w b", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        _node("Relu", "c", "r"),
        _node("GlobalAveragePool", "r", "p"),
        _node("Flatten", "p", "f"),
        _node("Gemm", "f v k", "s", transB=1),
        _node("Softmax", "s", "y"),
    ]
    arrays = {"w": _weights(4, 3, 3, 3), "b": _weights(4), "v": _weights(5, 4), "k": _weights(5)}
    return _model(nodes, arrays, [1, 5])


def _qdq() -> onnx.ModelProto:
    nodes = [
        _node("QuantizeLinear", "x xs xz", "xq"),
        _node("DequantizeLinear", "xq xs xz", "xd"),
        _node("DequantizeLinear", "wq ws wz", "wd", axis=0),
        _node("Conv", "xd wd", "c", kernel_shape=[1, 1]),
        _node("Relu", "c", "r"),
        _node("QuantizeLinear", "r ys yz", "yq"),
        _node("DequantizeLinear", "yq ys yz", "y"),
    ]
    weights = np.random.default_rng(1).integers(-127, 128, (4, 3, 1, 1)).astype(np.int8)
    arrays = {
        **{"xs": np.float32(0.03), "xz": np.uint8(128), "ys": np.float32(0.02), "yz": np.uint8(0)},
        **{"wq": weights, "ws": np.full(4, 0.01, np.float32), "wz": np.zeros(4, np.int8)},
    }
    return _model(nodes, arrays, [1, 4, 8, 8])


def _dynamic() -> onnx.ModelProto:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "/q"),
        _node("DequantizeLinear", "q s z", "d"),
        _node("Sigmoid", "d", "y"),
    ]
    return _model(nodes, {}, [1, 3, 8, 8])


_MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "float": _float,
    "qdq": _qdq,
    "dynamic": _dynamic,
}
