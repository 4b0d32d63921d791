"""A network with the layers of MobileNetV2 1.0, its weights random."""

from __future__ import annotations

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import Array, TensorType

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""By how much a block widens, its channels, how many blocks, and the first one's stride."""


class _Network:
    def __init__(self, size: int) -> None:
        self.graph = Graph()
        self.rng = np.random.default_rng(0)
        self.count = 0
        kind = TensorType((1, 3, size, size), F32)
        self.last = self.graph.add("input", types=[kind], name="x").result

    def held(self, name: str, *shape: int, spread: float) -> Value:
        data = self.rng.normal(0, spread, shape).astype(np.float32)
        return self.graph.constant(Array.of(data, f"{name}{self.count}"))

    def conv(self, out: int, kernel: int, stride: int = 1, *, deep: bool = False) -> Value:
        """A convolution with "same" padding; `deep`: one filter a channel."""
        given = self.last.type.shape[1]
        assert isinstance(given, int)
        self.count += 1
        depth = 1 if deep else given
        spread = (2 / (depth * kernel * kernel)) ** 0.5
        w = self.held("w", out, depth, kernel, kernel, spread=spread)
        operands = {"x": self.last, "w": w, "bias": self.held("b", out, spread=0.1)}
        attrs: dict[str, Attr] = {
            "stride": (stride, stride),
            "pad": (kernel // 2,) * 4,
            "groups": given if deep else 1,
        }
        self.last = self.graph.add("conv2d", operands, attrs).result
        return self.last

    def relu6(self) -> None:
        self.last = self.graph.add("clip", {"x": self.last}, {"min": 0.0, "max": 6.0}).result

    def block(self, widen: int, out: int, stride: int) -> None:
        before = self.last
        inner = before.type.shape[1]
        assert isinstance(inner, int)
        inner *= widen
        if widen != 1:
            self.conv(inner, 1)
            self.relu6()
        self.conv(inner, 3, stride, deep=True)
        self.relu6()
        self.conv(out, 1)
        if stride == 1 and before.type.shape == self.last.type.shape:
            self.last = self.graph.add("add", {"a": self.last, "b": before}).result


def mobilenet_v2(size: int = 224, classes: int = 1000) -> Graph:
    """The network, of 3.5 million weights and 300 million products at 224."""
    net = _Network(size)
    net.conv(32, 3, 2)
    net.relu6()
    for widen, out, blocks, stride in STAGES:
        for number in range(blocks):
            net.block(widen, out, stride if number == 0 else 1)
    net.conv(1280, 1)
    net.relu6()
    net.last = net.graph.add("global_avg_pool", {"x": net.last}).result
    net.last = net.graph.add("flatten", {"x": net.last}, {"axis": 1}).result
    net.count += 1
    w = net.held("w", classes, 1280, spread=0.02)
    operands = {"x": net.last, "w": w, "bias": net.held("b", classes, spread=0.1)}
    net.graph.add("output", {"y": net.graph.add("linear", operands).result})
    return net.graph
