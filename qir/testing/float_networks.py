"""Float networks, grown layer by layer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import Array, TensorType
from qir.testing.random_source import Pick


class Reals:
    """Grows a float network layer by layer; every layer takes a value that is there."""

    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        self.graph = Graph("main")
        self.rng = np.random.default_rng(pick(1 << 16))
        self.values: list[Value] = []

    def build(self) -> Graph:
        batch: tuple[dims.Dim, ...] = (1, 2, dims.symbol("N"))
        shape = (
            batch[self.pick(3)],
            (1, 2, 3, 4, 6)[self.pick(5)],
            4 + self.pick(5),
            4 + self.pick(5),
        )
        for name in ("x", "y")[: 1 + self.pick(2)]:
            kind = self.kind(shape)
            self.values.append(self.graph.add("input", types=[kind], name=name).result)
        for _ in range(1 + self.pick(7)):
            layer = self.layers()[self.pick(len(self.layers()))]
            # One of the last three values, so that graphs grow deep but may branch.
            result = layer(self.values[-1 - self.pick(min(3, len(self.values)))])
            if result is not None:
                self.values.append(result)
        ends = [v for v in self.values if not v.uses] or [self.values[-1]]
        if self.pick(2):
            ends.append(self.head(ends[0]))
        if self.pick(4) == 0:  # what nobody needs
            self.pool(self.values[0])
        self.graph.add("output", {f"y{i}": v for i, v in enumerate(ends)})
        return self.graph

    def kind(self, shape: dims.Shape) -> TensorType:
        return TensorType(shape, F32)

    def layers(self) -> list[Callable[[Value], Value | None]]:
        return [
            self.conv,
            self.conv,
            self.activation,
            self.residual,
            self.pool,
            self.norm,
            self.arithmetic,
            self.move,
        ]

    def constant(self, *shape: int, positive: bool = False) -> Value:
        data = self.rng.normal(0, 1, shape).astype(np.float32)
        return self.graph.constant(Array.of(abs(data) + 0.5 if positive else data), name="c")

    def add(self, op: str, operands: dict[str, Value], **attrs: Attr) -> Value:
        return self.graph.add(op, operands, attrs).result

    def size(self, x: Value, axis: int) -> int:
        size = x.type.shape[axis]
        assert isinstance(size, int)
        return size

    def window(self, x: Value) -> dict[str, tuple[int, ...]]:
        """Returns a kernel that fits, with stride and pad."""
        kernel = tuple(1 + self.pick(min(3, self.size(x, axis))) for axis in (2, 3))
        # Padding stays below the kernel: a window of padding alone has no maximum.
        pad = tuple(self.pick(k) for k in (*kernel, *kernel))
        return {"kernel": kernel, "stride": (1 + self.pick(2), 1 + self.pick(2)), "pad": pad}

    def conv(self, x: Value) -> Value:
        window, attrs, channels, out = self.filters(x)
        kernel = window.pop("kernel")
        weight = self.constant(out, channels, *kernel)
        operands = {"x": x, "w": weight}
        if self.pick(3):
            operands["bias"] = self.constant(out)
        return self.add("conv2d", operands, **window, **attrs)

    def filters(self, x: Value) -> tuple[dict[str, tuple[int, ...]], dict[str, Attr], int, int]:
        """Window, groups, channels a group and output channels: dense, grouped or depthwise."""
        channels = self.size(x, 1)
        groups = (1, channels, 2 if channels % 2 == 0 else 1)[self.pick(3)]
        return self.window(x), {"groups": groups}, channels // groups, groups * (1 + self.pick(2))

    def activation(self, x: Value) -> Value:
        match self.pick(4):
            case 0:
                return self.add("relu", {"x": x})
            case 1:
                return self.add("clip", {"x": x}, min=0.0, max=6.0)
            case 2:
                return self.add("sigmoid", {"x": x})
            case _:
                return self.add("softmax", {"x": x}, axis=self.pick(4))

    def residual(self, x: Value) -> Value:
        same_shape = [v for v in self.values if v.type.shape == x.type.shape]
        return self.add("add", {"a": x, "b": same_shape[self.pick(len(same_shape))]})

    def pool(self, x: Value) -> Value:
        window: dict[str, Attr] = dict(self.window(x))
        if self.pick(2):
            return self.add("max_pool2d", {"x": x}, **window, ceil=bool(self.pick(2)))
        return self.add("avg_pool2d", {"x": x}, **window, count_pad=bool(self.pick(2)))

    def norm(self, x: Value) -> Value:
        size = self.size(x, 1)
        rows = {s: self.constant(size) for s in ("gamma", "beta", "mean")}
        return self.add("batch_norm", {"x": x, **rows, "var": self.constant(size, positive=True)})

    def arithmetic(self, x: Value) -> Value:
        op = ("add", "sub", "mul")[self.pick(3)]
        shape = ((), (1, self.size(x, 1), 1, 1))[self.pick(2)]
        b = self.constant(*shape)
        if self.pick(4) == 0:  # a constant that is yet to be computed
            b = self.add("mul", {"a": b, "b": self.constant()})
        return self.add(op, {"a": x, "b": b})

    def move(self, x: Value) -> Value:
        match self.pick(3):
            case 0:
                return self.add("transpose", {"x": x}, perm=(0, 1, 3, 2))
            case 1:
                same_type = [v for v in self.values if v.type == x.type]
                parts = {"xs.0": x, "xs.1": same_type[self.pick(len(same_type))]}
                return self.add("concat", parts, axis=1)
            case _:
                return self.add("pad", {"x": x}, pads=(0, 0, 1, 0, 0, 0, 0, self.pick(2)))

    def head(self, x: Value) -> Value:
        x = self.add("flatten", {"x": self.add("global_avg_pool", {"x": x})})
        width, out = self.size(x, 1), 1 + self.pick(4)
        match self.pick(3):
            case 0:
                w, bias = self.constant(out, width), self.constant(out)
                return self.add("linear", {"x": x, "w": w, "bias": bias})
            case 1:
                b, c = self.constant(width, out), self.constant(out)
                return self.add("gemm", {"a": x, "b": b, "c": c})
            case _:
                return self.add("matmul", {"a": x, "b": self.constant(width, out)})
