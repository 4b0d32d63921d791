"""Random small float networks by seed: what a user would bring to be quantized."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Batch = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Network:
    """A float model, batches to calibrate on, and one to compare with."""

    seed: int
    proto: onnx.ModelProto
    calibration: tuple[Batch, ...]
    feeds: Batch


@dataclass(frozen=True)
class Real:
    """A float tensor."""

    name: str
    shape: tuple[int, ...]


class Builder:
    """A network that grows layer by layer."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.made: list[Real] = []
        self.layers: list[Callable[[], None]] = [
            *(self.conv, self.conv, self.depthwise, self.pointwise, self.residual, self.add),
            *(self.mul, self.concat, self.max_pool, self.average_pool, self.reshape),
            *(self.transpose, self.sigmoid, self.softmax, self.gate, self.normalized, self.matmul),
            *(self.shift, self.shift),
        ]
        self.rng.shuffle(self.layers)

    def pick(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def constant(self, data: NDArray[np.generic]) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(data, name))
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> NDArray[np.float32]:
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        shape: tuple[int, ...],
        **attrs: int | float | str | Sequence[int],
    ) -> Real:
        result = Real(f"{op.lower()}{len(self.nodes)}", shape)
        node = helper.make_node(op, list(inputs), [result.name], name=f"n{len(self.nodes)}")
        node.attribute.extend(helper.make_attribute(k, v) for k, v in attrs.items())
        self.nodes.append(node)
        self.made.append(result)
        return result

    def image(self) -> Real:
        images = [r for r in self.made if len(r.shape) == 4 and min(r.shape[2:]) > 1]
        return images[-1] if self.chance(0.6) else images[self.pick(0, len(images) - 1)]

    def any(self) -> Real:
        return self.made[-1] if self.chance(0.6) else self.made[self.pick(0, len(self.made) - 1)]

    def activation(self, x: Real) -> Real:
        if self.chance(0.35):
            return self.node("Relu", [x.name], x.shape)
        if self.chance(0.3):
            low = self.constant(np.array(0, np.float32))
            high = self.constant(np.array(self.pick(1, 6), np.float32))
            return self.node("Clip", [x.name, low, high], x.shape)
        return x

    # -- layers -------------------------------------------------------------------------------

    def conv(self) -> None:
        x = self.image()
        groups = 2 if x.shape[1] % 2 == 0 and self.chance(0.3) else 1
        k = self.pick(1, 3)
        self.convolve(x, self.pick(1, 12) * groups, groups, (k, self.pick(1, 3)))

    def depthwise(self) -> None:
        x = self.image()
        self.convolve(x, x.shape[1], x.shape[1], (3, 3))

    def pointwise(self) -> None:
        self.convolve(self.image(), self.pick(1, 70), 1, (1, 1))

    def normalized(self) -> None:
        """A convolution with batch norm."""
        x = self.image()
        self.convolve(x, self.pick(2, 16), 1, (3, 3), norm=True)

    def convolve(
        self, x: Real, channels: int, groups: int, kernel: tuple[int, int], *, norm: bool = False
    ) -> None:
        n, c, h, w = x.shape
        stride = 2 if min(h, w) > 5 and self.chance(0.3) else 1
        dilation = 2 if min(h, w) > 5 and self.chance(0.15) else 1
        pads = [self.pick(0, k - 1) for k in (*kernel, *kernel)]
        size = []
        for i in range(2):
            free = x.shape[2 + i] + pads[i] + pads[i + 2] - (kernel[i] - 1) * dilation - 1
            if free < 0:
                return
            size.append(free // stride + 1)
        depth = c // groups * kernel[0] * kernel[1]
        spread = self.rng.uniform(0.2, 3.0, (channels, 1, 1, 1)).astype(np.float32)
        weight = self.normal(channels, c // groups, *kernel, scale=depth**-0.5) * spread
        inputs = [x.name, self.constant(weight)]
        if self.chance(0.7):
            inputs.append(self.constant(self.normal(channels, scale=0.3)))
        result = self.node(
            "Conv",
            inputs,
            (n, channels, *size),
            kernel_shape=kernel,
            strides=(stride, stride),
            pads=pads,
            dilations=(dilation, dilation),
            group=groups,
        )
        if norm:
            params = [
                self.rng.uniform(0.5, 1.5, channels).astype(np.float32),
                self.normal(channels, scale=0.2),
                self.normal(channels, scale=0.2),
                self.rng.uniform(0.5, 2.0, channels).astype(np.float32),
            ]
            names = [result.name, *map(self.constant, params)]
            result = self.node("BatchNormalization", names, result.shape, epsilon=1e-5)
        self.activation(result)

    def residual(self) -> None:
        """A block of one convolution around which its input goes, too."""
        x = self.image()
        weight = self.constant(self.normal(x.shape[1], x.shape[1], 1, 1, scale=x.shape[1] ** -0.5))
        inner = self.node("Conv", [x.name, weight], x.shape, kernel_shape=(1, 1))
        self.activation(self.node("Add", [inner.name, x.name], x.shape))

    def add(self) -> None:
        self._pairwise("Add")

    def mul(self) -> None:
        self._pairwise("Mul")

    def _pairwise(self, op: str) -> None:
        a = self.any()
        same = [r for r in self.made if r.shape == a.shape]
        b = same[self.pick(0, len(same) - 1)]
        self.activation(self.node(op, [a.name, b.name], a.shape))

    def shift(self) -> None:
        """A constant for each channel or place added, on either side."""
        x = self.image()
        _, c, h, w = x.shape
        shape = ((1, c, 1, 1), (1, 1, h, w), (1,), (c, 1, 1))[self.pick(0, 3)]
        pair = [x.name, self.constant(self.normal(*shape))]
        self.node("Add", pair[:: -1 if self.chance(0.6) else 1], x.shape)

    def gate(self) -> None:
        """Channels weighted by a sigmoid of their means."""
        x = self.image()
        mean = self.node("GlobalAveragePool", [x.name], (*x.shape[:2], 1, 1))
        weight = self.node("Sigmoid", [mean.name], mean.shape)
        self.node("Mul", [x.name, weight.name], x.shape)

    def concat(self) -> None:
        x = self.image()
        same = [r for r in self.made if r.shape[:1] + r.shape[2:] == x.shape[:1] + x.shape[2:]]
        second = same[self.pick(0, len(same) - 1)]
        if x.shape[1] + second.shape[1] <= 70:
            shape = (x.shape[0], x.shape[1] + second.shape[1], *x.shape[2:])
            self.node("Concat", [x.name, second.name], shape, axis=1)

    def max_pool(self) -> None:
        self._pool("MaxPool")

    def average_pool(self) -> None:
        self._pool("AveragePool")

    def _pool(self, op: str) -> None:
        x = self.image()
        if min(x.shape[2:]) < 3:
            return
        stride, pad = self.pick(1, 2), self.pick(0, 1)
        size = tuple((s + 2 * pad - 3) // stride + 1 for s in x.shape[2:])
        attrs = {"kernel_shape": (3, 3), "strides": (stride, stride), "pads": (pad,) * 4}
        self.node(op, [x.name], (*x.shape[:2], *size), **attrs)

    def reshape(self) -> None:
        x = self.image()
        n, c, h, w = x.shape
        shape = (n, h, c, w)
        self.node("Reshape", [x.name, self.constant(np.array(shape, np.int64))], shape)

    def transpose(self) -> None:
        x = self.image()
        perm = (0, 1, 3, 2) if self.chance(0.5) else (0, 2, 3, 1)
        self.node("Transpose", [x.name], tuple(x.shape[p] for p in perm), perm=perm)

    def sigmoid(self) -> None:
        x = self.any()
        self.node("Sigmoid", [x.name], x.shape)

    def softmax(self) -> None:
        x = self.any()
        if x.shape[-1] > 1:
            self.node("Softmax", [x.name], x.shape, axis=-1)

    def matmul(self) -> None:
        x = self.image()
        columns = self.pick(1, 20)
        weight = self.constant(self.normal(x.shape[-1], columns, scale=x.shape[-1] ** -0.5))
        self.node("MatMul", [x.name, weight], (*x.shape[:-1], columns))

    def head(self) -> None:
        """What classifiers end in."""
        x = self.image()
        if self.chance(0.5):
            x = self.node("GlobalAveragePool", [x.name], (*x.shape[:2], 1, 1))
        features = int(np.prod(x.shape[1:]))
        flat = self.node("Flatten", [x.name], (x.shape[0], features), axis=1)
        classes, transposed = self.pick(2, 40), self.chance(0.5)
        shape = (classes, features) if transposed else (features, classes)
        weight = self.constant(self.normal(*shape, scale=features**-0.5))
        inputs = [flat.name, weight, self.constant(self.normal(classes, scale=0.3))]
        result = self.node("Gemm", inputs, (x.shape[0], classes), transB=int(transposed))
        if self.chance(0.5):
            self.node("Softmax", [result.name], result.shape, axis=1)


def network(seed: int, layers: int = 6) -> Network:
    """Returns a float network by seed."""
    builder = Builder(seed)
    shape = (builder.pick(1, 3), builder.pick(1, 20), builder.pick(5, 12), builder.pick(5, 12))
    builder.made.append(Real("x", shape))
    for layer in builder.layers[:layers]:
        layer()
    if builder.chance(0.6):
        builder.head()
    last = builder.made[-1]
    outputs = [helper.make_tensor_value_info(last.name, TensorProto.FLOAT, last.shape)]
    read = {i for n in builder.nodes for i in n.input}
    # What nobody reads is an output, too: so that nothing is pruned away.
    unread = [tensor for tensor in builder.made[1:-1] if tensor.name not in read]
    outputs += [
        helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.shape)
        for tensor in unread
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(builder.nodes, "net", inputs, outputs, builder.constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto)
    batches: list[Batch] = [{"x": builder.normal(*shape)} for _ in range(2)]
    # Wider than what was calibrated on: both ends of every range are met.
    return Network(seed, proto, tuple(batches), {"x": builder.normal(*shape, scale=3.0)})
