"""Models for the tests, built with onnx alone and quantized by onnxruntime's own tool."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str | None]]],
    outputs: Mapping[str, tuple[int, Sequence[int | str | None] | None]],
    constants: Mapping[str, NDArray[Any]] | None = None,
    opset: int = 17,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """Returns a model of those nodes."""
    graph = helper.make_graph(
        list(nodes),
        "net",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def save(proto: onnx.ModelProto, folder: Path, name: str = "m.onnx") -> Path:
    """Writes a model unchanged and returns its path."""
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def conv_net(seed: int, opset: int = 17) -> onnx.ModelProto:
    """Returns a small residual network with a depthwise block, pools, a concat, a gemm and a
    softmax.
    """
    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> NDArray[np.float32]:
        values = rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
        return np.asarray(values, np.float32)

    constants = {
        "w1": weights(8, 3, 3, 3),
        "b1": weights(8),
        "w2": weights(8, 1, 3, 3),
        "w3": weights(8, 8, 1, 1),
        "b3": weights(8),
        "w4": weights(10, 16),
        "b4": weights(10),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c1"], ["r1"], "relu1"),
        node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1, 1, 1, 1], group=8),
        node("Conv", ["c2", "w3", "b3"], ["c3"], "conv3"),
        node("Add", ["c3", "r1"], ["a1"], "add1"),
        node("Relu", ["a1"], ["r2"], "relu2"),
        node("MaxPool", ["r2"], ["p1"], "pool1", kernel_shape=[2, 2], strides=[2, 2]),
        node("AveragePool", ["r2"], ["p2"], "pool2", kernel_shape=[2, 2], strides=[2, 2]),
        node("Concat", ["p1", "p2"], ["k"], "concat", axis=1),
        node("GlobalAveragePool", ["k"], ["g"], "gap"),
        node("Flatten", ["g"], ["f"], "flat", axis=1),
        node("Gemm", ["f", "w4", "b4"], ["z"], "fc", transB=1),
        node("Softmax", ["z"], ["y"], "soft", axis=1),
    ]
    return model(
        nodes,
        {"x": (TensorProto.FLOAT, ["N", 3, 8, 8])},
        {"y": (TensorProto.FLOAT, ["N", 10])},
        constants,
        opset,
    )


class Batches(CalibrationDataReader):  # type: ignore[misc]
    """Calibration data of a fixed seed."""

    def __init__(self, name: str, shape: Sequence[int], seed: int, count: int = 4) -> None:
        rng = np.random.default_rng(seed)
        batches = [{name: rng.normal(size=shape).astype(np.float32)} for _ in range(count)]
        self._left: Iterator[dict[str, NDArray[np.float32]]] = iter(batches)

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        return next(self._left, None)


def quantized(
    proto: onnx.ModelProto,
    shape: Sequence[int],
    seed: int,
    *,
    qdq: bool,
    per_channel: bool,
    activation: str = "u8",
) -> onnx.ModelProto:
    """Returns the model after onnxruntime's static quantization."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        quantize_static(
            str(save(proto, folder)),
            str(folder / "q.onnx"),
            Batches(proto.graph.input[0].name, shape, seed),
            quant_format=QuantFormat.QDQ if qdq else QuantFormat.QOperator,
            activation_type=QuantType.QUInt8 if activation == "u8" else QuantType.QInt8,
            weight_type=QuantType.QInt8,
            per_channel=per_channel,
        )
        return onnx.load(folder / "q.onnx")
