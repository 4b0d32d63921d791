"""Seven well-known networks as ONNX files, with weights from one seed; speed asks for no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx_models import FLOAT, Builder

IMAGE = 224
TOKENS = 128
WORDS = 30522


@dataclass(frozen=True, slots=True)
class Size:
    """How much of a network is made: `quick` cuts layers of transformers and shrinks images."""

    batch: int
    image: int = IMAGE
    layers: int | None = None


class Layers(Builder):
    """Layers one after the other; batch norms are folded, as in files for inference."""

    def drawn(self, *shape: int, gain: float = 2.0) -> str:
        """Adds weights whose products keep the size of their operands."""
        name = f"w{len(self.weights)}"
        fan = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        data = self.rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(gain / fan))
        return self._keep(name, data)

    def value(self, data: object) -> str:
        """Adds a constant of these numbers."""
        return self._keep(f"w{len(self.weights)}", np.asarray(data, np.float32))

    def _keep(self, name: str, data: NDArray[np.float32]) -> str:
        self.weights.append(onnx.numpy_helper.from_array(data, name))
        return name

    def conv(
        self,
        x: str,
        in_channels: int,
        out_channels: int,
        size: int,
        stride: int = 1,
        groups: int = 1,
    ) -> str:
        """Adds a convolution with "same" padding and a bias."""
        bias = self.value(0.1 * self.rng.standard_normal(out_channels))
        weight = self.drawn(out_channels, in_channels // groups, size, size)
        pads, strides = [size // 2] * 4, [stride] * 2
        return self.node("Conv", x, weight, bias, pads=pads, strides=strides, group=groups)

    def dense(self, x: str, in_width: int, out_width: int, gain: float = 1.0) -> str:
        """Adds x @ w + b, as exporters write it for more than two axes."""
        bias = self.value(0.1 * self.rng.standard_normal(out_width))
        return self.node(
            "Add", self.node("MatMul", x, self.drawn(in_width, out_width, gain=gain)), bias
        )

    def head(self, x: str, in_width: int, out_width: int = 1000) -> str:
        """Adds the layer of the classes."""
        return self.node(
            "Gemm", x, self.drawn(in_width, out_width, gain=1.0), self.value(np.zeros(out_width))
        )

    def pooled(self, x: str) -> str:
        return self.node("Flatten", self.node("GlobalAveragePool", x))

    def squeezed(self, x: str, channels: int, inner_channels: int, gates: Sequence[str]) -> str:
        """Adds squeeze and excite: channels times gates that their means give."""
        mean = self.node("GlobalAveragePool", x)
        small = self.activated(self.conv(mean, channels, inner_channels, 1), gates[0])
        return self.node(
            "Mul", x, self.activated(self.conv(small, inner_channels, channels, 1), gates[1])
        )

    def activated(self, x: str, activation: str) -> str:
        """Adds an activation by its name; `SiLU` is x * sigmoid(x)."""
        if activation == "SiLU":
            return self.node("Mul", x, self.node("Sigmoid", x))
        if activation == "Relu6":
            return self.node("Clip", x, self.value(0.0), self.value(6.0))
        if activation == "HardSigmoid":
            return self.node("HardSigmoid", x, alpha=1 / 6, beta=0.5)
        return self.node(activation, x) if activation else x


def _image(size: Size) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info("x", FLOAT, [size.batch, 3, size.image, size.image])


def _classes(b: Layers, y: str, size: Size) -> onnx.ModelProto:
    return b.model(_image(size), y, [size.batch, 1000])


def mobilenet_v2(size: Size) -> onnx.ModelProto:
    """MobileNetV2."""
    b = Layers()
    x, width = b.activated(b.conv("x", 3, 32, 3, 2), "Relu6"), 32
    blocks = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
              (6, 160, 3, 2), (6, 320, 1, 1)]  # fmt: skip
    for expansion, out_channels, count, first_stride in blocks:
        for i in range(count):
            stride, inner = (first_stride if i == 0 else 1), width * expansion
            y = x if expansion == 1 else b.activated(b.conv(x, width, inner, 1), "Relu6")
            y = b.activated(b.conv(y, inner, inner, 3, stride, inner), "Relu6")
            y = b.conv(y, inner, out_channels, 1)
            x = b.node("Add", x, y) if stride == 1 and width == out_channels else y
            width = out_channels
    x = b.activated(b.conv(x, width, 1280, 1), "Relu6")
    return _classes(b, b.head(b.pooled(x), 1280), size)


def resnet50(size: Size) -> onnx.ModelProto:
    """ResNet-50, the stride at the 3x3."""
    return _bottlenecks(size, 64, 1)


def resnext50(size: Size) -> onnx.ModelProto:
    """ResNeXt-50 32x4d."""
    return _bottlenecks(size, 128, 32)


def _bottlenecks(size: Size, first_width: int, groups: int) -> onnx.ModelProto:
    b = Layers()
    x = b.activated(b.conv("x", 3, 64, 7, 2), "Relu")
    x, width = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    for out, count, first_stride in ((256, 3, 1), (512, 4, 2), (1024, 6, 2), (2048, 3, 2)):
        inner = first_width * out // 256
        for i in range(count):
            stride = first_stride if i == 0 else 1
            y = b.activated(b.conv(x, width, inner, 1), "Relu")
            y = b.activated(b.conv(y, inner, inner, 3, stride, groups), "Relu")
            y = b.conv(y, inner, out, 1)
            x = b.conv(x, width, out, 1, stride) if i == 0 else x
            x, width = b.activated(b.node("Add", y, x), "Relu"), out
    return _classes(b, b.head(b.pooled(x), width), size)


def vgg16(size: Size) -> onnx.ModelProto:
    """VGG16."""
    b = Layers()
    x, width = "x", 3
    for out_channels, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            x, width = b.activated(b.conv(x, width, out_channels, 3), "Relu"), out_channels
        x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x, width = b.node("Flatten", x), 512 * (size.image // 32) ** 2
    for _ in range(2):
        x, width = b.activated(b.head(x, width, 4096), "Relu"), 4096
    return _classes(b, b.head(x, width), size)


def efficientnet_b0(size: Size) -> onnx.ModelProto:
    """EfficientNet-B0."""
    b = Layers()
    x, width = b.activated(b.conv("x", 3, 32, 3, 2), "SiLU"), 32
    blocks = [(1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
              (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)]  # fmt: skip
    for expansion, out_channels, count, first_stride, kernel in blocks:
        for i in range(count):
            stride, inner = (first_stride if i == 0 else 1), width * expansion
            # A block that does not expand has no first convolution.
            y = x if expansion == 1 else b.activated(b.conv(x, width, inner, 1), "SiLU")
            y = b.activated(b.conv(y, inner, inner, kernel, stride, inner), "SiLU")
            y = b.squeezed(y, inner, max(1, width // 4), ("SiLU", "Sigmoid"))
            y = b.conv(y, inner, out_channels, 1)
            x = b.node("Add", x, y) if stride == 1 and width == out_channels else y
            width = out_channels
    x = b.activated(b.conv(x, width, 1280, 1), "SiLU")
    return _classes(b, b.head(b.pooled(x), 1280), size)


def mobilenet_v3_large(size: Size) -> onnx.ModelProto:
    """MobileNetV3-large."""
    b = Layers()
    x, width = b.activated(b.conv("x", 3, 16, 3, 2), "HardSwish"), 16
    blocks = [
        (3, 16, 16, "", "Relu", 1), (3, 64, 24, "", "Relu", 2), (3, 72, 24, "", "Relu", 1),
        (5, 72, 40, "se", "Relu", 2), (5, 120, 40, "se", "Relu", 1), (5, 120, 40, "se", "Relu", 1),
        (3, 240, 80, "", "HardSwish", 2), (3, 200, 80, "", "HardSwish", 1),
        (3, 184, 80, "", "HardSwish", 1), (3, 184, 80, "", "HardSwish", 1),
        (3, 480, 112, "se", "HardSwish", 1), (3, 672, 112, "se", "HardSwish", 1),
        (5, 672, 160, "se", "HardSwish", 2), (5, 960, 160, "se", "HardSwish", 1),
        (5, 960, 160, "se", "HardSwish", 1),
    ]  # fmt: skip
    for kernel, inner, out_channels, squeeze, activation, stride in blocks:
        y = x if inner == width else b.activated(b.conv(x, width, inner, 1), activation)
        y = b.activated(b.conv(y, inner, inner, kernel, stride, inner), activation)
        if squeeze:
            y = b.squeezed(y, inner, (inner // 4 + 4) // 8 * 8, ("Relu", "HardSigmoid"))
        y = b.conv(y, inner, out_channels, 1)
        x = b.node("Add", x, y) if stride == 1 and width == out_channels else y
        width = out_channels
    x = b.activated(b.conv(x, width, 960, 1), "HardSwish")
    x = b.activated(b.head(b.pooled(x), 960, 1280), "HardSwish")
    return _classes(b, b.head(x, 1280), size)


def _encoder(size: Size, layers: int, width: int, heads: int) -> onnx.ModelProto:
    """A BERT of so many layers: words and places, attention, GELU by erf, the pooler."""
    b, head_size = Layers(), width // heads

    def normed(x: str) -> str:
        gamma, beta = b.value(np.ones(width)), b.value(np.zeros(width))
        return b.node("LayerNormalization", x, gamma, beta, axis=-1, epsilon=1e-12)

    def split(x: str, perm: Sequence[int]) -> str:
        by_heads = b.node("Reshape", x, b.integers([size.batch, TOKENS, heads, head_size]))
        return b.node("Transpose", by_heads, perm=perm)

    words = b.node("Gather", b.value(b.rng.standard_normal((WORDS, width), np.float32)), "ids")
    x = normed(b.node("Add", words, b.value(b.rng.standard_normal((1, TOKENS, width)))))
    for _ in range(layers):
        q, k, v = (b.dense(x, width, width) for _ in range(3))
        scores = b.node("MatMul", split(q, [0, 2, 1, 3]), split(k, [0, 2, 3, 1]))
        attention = b.node("Softmax", b.node("Div", scores, b.value(head_size**0.5)), axis=-1)
        mixed = b.node("MatMul", attention, split(v, [0, 2, 1, 3]))
        joined = b.node("Transpose", mixed, perm=[0, 2, 1, 3])
        joined = b.node("Reshape", joined, b.integers([size.batch, TOKENS, width]))
        x = normed(b.node("Add", x, b.dense(joined, width, width)))
        y = b.dense(x, width, 4 * width)
        error = b.node("Erf", b.node("Div", y, b.value(2**0.5)))
        y = b.node("Mul", b.node("Mul", y, b.node("Add", error, b.value(1.0))), b.value(0.5))
        x = normed(b.node("Add", x, b.dense(y, 4 * width, width)))
    index = helper.make_tensor("first", TensorProto.INT64, [], [0])
    b.weights.append(index)
    y = b.node("Tanh", b.head(b.node("Gather", x, "first", axis=1), width, width))
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [size.batch, TOKENS])
    return b.model(ids, y, [size.batch, width])


def bert_base(size: Size) -> onnx.ModelProto:
    """BERT-base on 128 tokens."""
    return _encoder(size, size.layers or 12, 768, 12)


def minilm_l6(size: Size) -> onnx.ModelProto:
    """MiniLM-L6 on 128 tokens."""
    return _encoder(size, size.layers or 6, 384, 12)


NETWORKS: dict[str, Callable[[Size], onnx.ModelProto]] = {
    "MobileNetV2": mobilenet_v2,
    "ResNet-50": resnet50,
    "VGG16": vgg16,
    "EfficientNet-B0": efficientnet_b0,
    "MobileNetV3-large": mobilenet_v3_large,
    "BERT-base/128": bert_base,
    "MiniLM-L6/128": minilm_l6,
    "ResNeXt-50": resnext50,
}
USUAL = tuple(NETWORKS)[:7]
"""The networks of the tables in docs/performance.md."""


def inputs(model: onnx.ModelProto, seed: int) -> dict[str, NDArray[np.generic]]:
    """Returns random inputs of a model: images, or token ids."""
    rng, (x,) = np.random.default_rng(seed), model.graph.input
    shape = [dim.dim_value for dim in x.type.tensor_type.shape.dim]
    if x.type.tensor_type.elem_type == TensorProto.INT64:
        return {x.name: rng.integers(0, WORDS, shape)}
    return {x.name: rng.standard_normal(shape, np.float32)}
