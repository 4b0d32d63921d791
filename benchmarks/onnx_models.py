"""ONNX models of known sizes with weights of random numbers, as exporters write them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT


class Builder:
    """Adds nodes and weights, one after the other."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(0)

    def weight(self, *shape: int) -> str:
        """Adds a tensor of random numbers; returns its name."""
        name = f"w{len(self.weights)}"
        data = self.rng.random(shape, np.float32)
        tensor = TensorProto(name=name, data_type=FLOAT, dims=shape, raw_data=data.tobytes())
        self.weights.append(tensor)
        return name

    def integers(self, values: Sequence[int]) -> str:
        """Adds a tensor of integers; returns its name."""
        name = f"i{len(self.weights)}"
        self.weights.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], values))
        return name

    def node(self, op: str, *inputs: str, **attrs: object) -> str:
        """Adds a node of one result; returns its name."""
        output = f"{op}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op, inputs, [output], f"/{op}_{len(self.nodes)}", **attrs)
        )
        return output

    def model(self, x: onnx.ValueInfoProto, y: str, shape: Sequence[object]) -> onnx.ModelProto:
        """Returns the model of all that was added, from one input to one output."""
        output = helper.make_tensor_value_info(y, FLOAT, shape)
        graph = helper.make_graph(self.nodes, "main", [x], [output], self.weights)
        opset = helper.make_opsetid("", 17)
        return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def resnet50() -> onnx.ModelProto:
    """Returns ResNet-50 with its batch norms: 25.6 million weights."""
    b = Builder()

    def conv(x: str, in_channels: int, out_channels: int, size: int, stride: int = 1) -> str:
        pad, strides = [size // 2] * 4, [stride] * 2
        y = b.node(
            "Conv", x, b.weight(out_channels, in_channels, size, size), pads=pad, strides=strides
        )
        return b.node("BatchNormalization", y, *(b.weight(out_channels) for _ in range(4)))

    x = b.node("Relu", conv("x", 3, 64, 7, 2))
    x = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    width = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        inner = 64 << stage
        for i in range(count):
            stride = 2 if stage and not i else 1
            y = b.node("Relu", conv(x, width, inner, 1))
            y = b.node("Relu", conv(y, inner, inner, 3, stride))
            y = conv(y, inner, 4 * inner, 1)
            shortcut = x if i else conv(x, width, 4 * inner, 1, stride)
            x, width = b.node("Relu", b.node("Add", y, shortcut)), 4 * inner
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    y = b.node("Gemm", x, b.weight(1000, 2048), b.weight(1000), transB=1)
    x_info = helper.make_tensor_value_info("x", FLOAT, ["N", 3, 224, 224])
    return b.model(x_info, y, ["N", 1000])


def bert(layers: int = 12, width: int = 768, words: int = 30522) -> onnx.ModelProto:
    """Returns an encoder of BERT-base's size: 110 million weights."""
    b = Builder()
    heads = width // 64

    def dense(x: str, in_width: int, out_width: int) -> str:
        return b.node(
            "Add", b.node("MatMul", x, b.weight(in_width, out_width)), b.weight(out_width)
        )

    def norm(x: str) -> str:
        return b.node("LayerNormalization", x, b.weight(width), b.weight(width))

    x = norm(b.node("Add", b.node("Gather", b.weight(words, width), "x"), b.weight(128, width)))
    split, merge = b.integers([0, 0, heads, 64]), b.integers([0, 0, width])
    for _ in range(layers):
        q, k, v = (
            b.node("Transpose", b.node("Reshape", dense(x, width, width), split), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = b.node("Softmax", b.node("Div", b.node("MatMul", q, k), b.weight(1)))
        mixed = b.node("Transpose", b.node("MatMul", scores, v), perm=[0, 2, 1, 3])
        x = norm(b.node("Add", dense(b.node("Reshape", mixed, merge), width, width), x))
        h = dense(x, width, 4 * width)
        # GELU as exporters write it: x * (1 + erf(x / sqrt(2))) * 0.5.
        half = b.node("Add", b.node("Erf", b.node("Div", h, b.weight(1))), b.weight(1))
        h = b.node("Mul", b.node("Mul", h, half), b.weight(1))
        x = norm(b.node("Add", dense(h, 4 * width, width), x))
    x_info = helper.make_tensor_value_info("x", TensorProto.INT64, ["N", 128])
    return b.model(x_info, x, ["N", 128, width])


def many_ops(count: int) -> onnx.ModelProto:
    """Returns a chain of `count` nodes of ten kinds, each layer with its own weights."""
    b = Builder()
    x = "x"
    for _ in range(count // 10):
        y = b.node("Relu", b.node("Conv", x, b.weight(8, 8, 1, 1), b.weight(8)))
        y = b.node("Add", y, x)
        y = b.node("Transpose", b.node("Tanh", y), perm=[0, 1, 3, 2])
        y = b.node("MaxPool", y, kernel_shape=[3, 3], pads=[1] * 4)
        y = b.node("Add", b.node("Mul", y, b.weight(1)), b.weight(8, 1, 1))
        x = b.node("Mul", y, b.node("Sigmoid", y))
    return b.model(helper.make_tensor_value_info("x", FLOAT, [1, 8, 16, 16]), x, [1, 8, 16, 16])


def write_with_external_data(path: Path, size: int, part: int = 64 << 20) -> None:
    """Writes a model whose weights, `size` bytes in all, are in an external data file."""
    b, width = Builder(), 4096
    rows = part // 4 // width
    data = path.with_suffix(".data")
    x = "x"
    with data.open("wb") as stream:
        for i in range(-(-size // part)):
            tensor = TensorProto(name=f"w{i}", data_type=FLOAT, dims=[width, rows])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", data.name), ("offset", i * part), ("length", part)):
                tensor.external_data.add(key=key, value=str(value))
            stream.write(b.rng.random(part // 4, np.float32).tobytes())
            b.weights.append(tensor)
            x = b.node("Relu", b.node("MatMul", x, tensor.name))
    x_info = helper.make_tensor_value_info("x", FLOAT, ["N", width])
    path.write_bytes(b.model(x_info, x, ["N", rows]).SerializeToString())
