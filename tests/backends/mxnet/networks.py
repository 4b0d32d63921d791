"""Small float networks that hold what the target writes in integers, with weights by a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, dtype
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import Array as Stored
from qir.ir.types import DeclaredBounds, TensorType, uniform

SEED = 20261201
SHAPE = (4, 6, 9, 9)
Array = NDArray[np.float32]


class Net:
    """A float graph that grows layer by layer."""

    def __init__(self, name: str) -> None:
        self.graph = Graph(name)
        self.rng = np.random.default_rng(SEED)
        self.data = self.graph.add("input", types=[TensorType(SHAPE, F32)], name="data").result

    def held(self, *shape: int, spread: float = 0.4) -> Value:
        return self.graph.constant(self.rng.normal(0, spread, shape).astype(np.float32))

    def op(self, op: str, *values: Value, **attrs: Attr) -> Value:
        slots = {"concat": [f"xs.{i}" for i in range(len(values))]}.get(op)
        slots = slots or (["x"] if len(values) == 1 else ["a", "b"])
        return self.graph.add(op, dict(zip(slots, values, strict=True)), attrs).result

    def conv(
        self, x: Value, count: int = 6, *, side: int = 3, bias: bool = True, **attrs: Attr
    ) -> Value:
        groups = attrs.get("groups", 1)
        width = x.type.shape[1]
        assert isinstance(groups, int)
        assert isinstance(width, int)
        operands = {"x": x, "w": self.held(count, width // groups, side, side)}
        if bias:
            operands["bias"] = self.held(count)
        return self.graph.add("conv2d", operands, {"pad": (side // 2,) * 4, **attrs}).result

    def linear(self, x: Value, count: int, *, bias: bool = True) -> Value:
        width = x.type.shape[-1]
        assert isinstance(width, int)
        operands = {"x": x, "w": self.held(count, width)}
        if bias:
            operands["bias"] = self.held(count)
        return self.graph.add("linear", operands).result

    def norm(self, x: Value) -> Value:
        width = x.type.shape[1]
        assert isinstance(width, int)
        rows = {slot: self.held(width) for slot in ("beta", "mean")}
        for slot in ("gamma", "var"):
            held = self.rng.uniform(0.5, 1.5, width).astype(np.float32)
            rows[slot] = self.graph.constant(held)
        return self.graph.add("batch_norm", {"x": x, **rows}).result

    def ends(self, *values: Value) -> Graph:
        self.graph.add("output", {f"y{i}": v for i, v in enumerate(values)})
        return self.graph


def residual() -> Graph:
    """Sums in the kernel of a convolution, of unsigned and signed tensors, relu behind or not."""
    net = Net("residual")
    first = net.op("relu", net.conv(net.data))
    both = net.op("relu", net.op("add", net.conv(first), first))
    plain = net.op("add", net.conv(both, side=1), net.conv(both))
    last = net.op("relu", net.op("add", net.conv(plain, bias=False), plain))
    return net.ends(last)


def mobile() -> Graph:
    """Depthwise layers, layers in groups, clips at 6, odd padding, and a linear layer."""
    net = Net("mobile")
    x = net.op("clip", net.conv(net.data, 8, stride=(2, 2), pad=(0, 0, 1, 1)), min=0.0, max=6.0)
    x = net.op("clip", net.conv(x, 8, groups=8), min=0.0, max=6.0)
    x = net.op("relu", net.conv(x, 4, groups=2, pad=(2, 1, 1, 1)))
    x = net.op("flatten", net.op("global_avg_pool", x), axis=1)
    return net.ends(net.linear(net.op("relu", net.linear(x, 7)), 5, bias=False))


def fire() -> Graph:
    """Concatenations, unsigned and mixed, and pools."""
    net = Net("fire")
    x = net.op("max_pool2d", net.op("relu", net.conv(net.data)), kernel=(3, 3), stride=(2, 2))
    parts = [net.op("relu", net.conv(x, 4, side=side)) for side in (1, 3)]
    x = net.op("concat", *parts, axis=1)
    x = net.op("concat", x, net.conv(x, 4), axis=1)
    window: dict[str, Attr] = {"kernel": (2, 2), "stride": (1, 1), "pad": (1, 1, 1, 1)}
    return net.ends(net.op("avg_pool2d", x, **window), net.op("avg_pool2d", parts[0], **window))


def norms() -> Graph:
    """A batch norm that no layer takes, a relu on integers, and sums of their own."""
    net = Net("norms")
    pair = [net.op("relu", net.conv(net.data)) for _ in range(2)]
    unsigned = net.op("add", *pair)
    signed = net.op("add", net.op("max_pool2d", net.conv(unsigned), kernel=(1, 1)), unsigned)
    return net.ends(net.conv(net.op("relu", net.norm(signed))), unsigned)


def dense() -> Graph:
    """Products as other frameworks have them: gemm with weights by row and column, and matmul."""
    net = Net("dense")
    x = net.op("flatten", net.op("max_pool2d", net.data, kernel=(4, 4), stride=(4, 4)), axis=1)
    width = x.type.shape[1]
    assert isinstance(width, int)
    rows = {"a": x, "b": net.held(8, width), "c": net.held(8)}
    x = net.op("relu", net.graph.add("gemm", rows, {"trans_b": True}).result)
    x = net.op("matmul", x, net.held(8, 7))
    columns = {"a": x, "b": net.held(7, 5), "c": net.held(5)}
    return net.ends(net.op("relu", net.graph.add("gemm", columns).result))


def edges() -> Graph:
    """A quantized network whose results lie on ties and beyond both ends, by scales of 1 and 2."""
    net = Net("edges")
    graph, kinds = net.graph, (dtype("i8"), dtype("u8"))

    def coded(value: Value, scale: float, *, signed: bool = True) -> Value:
        level = 127.5 if signed else 255.5
        made = uniform(kinds[not signed], np.asarray(scale, np.float32))
        ends = (-scale * level if signed else 0.0,), (scale * level,)
        kind = value.type.with_element(replace(made, declared=DeclaredBounds(*ends, level)))
        if value.constant is not None:
            floats = np.asarray(value.constant.data, np.float32)
            data = np.clip(np.rint(floats / scale), -128, 127).astype(np.int8)
            held = graph.constant(Stored(data, kind))
            return graph.add("dequantize", {"x": held}).result
        held = graph.add("quantize", {"x": value}, types=[kind]).result
        return graph.add("dequantize", {"x": held}).result

    few, many = (graph.constant(np.float32(factor)) for factor in (6, 80))
    x = coded(net.op("mul", net.data, many), 1.0)
    small = coded(net.op("mul", net.data, few), 1.0)
    data = net.rng.integers(-3, 4, (6, 6, 1, 1)).astype(np.float32)
    data[:, 0] = 127
    w = coded(graph.constant(data), 1.0)
    conv = graph.add("conv2d", {"x": small, "w": w}).result
    clipped = coded(net.op("clip", conv, min=0.0, max=6000.0), 4.0, signed=False)
    both = coded(net.op("add", x, coded(graph.add("neg", {"x": net.data}).result, 0.25)), 0.5)
    means = coded(net.op("avg_pool2d", x, kernel=(8, 8)), 1.0)
    pooled = coded(net.op("global_avg_pool", means), 1.0)
    graph.profile = "mxnet-1.9"
    return net.ends(clipped, both, pooled)


def pruned() -> Graph:
    """Channels of zeros alone, with a bias and without, and a tensor of zeros alone."""
    net = Net("pruned")

    def conv(x: Value, bias: tuple[float, ...] | None) -> Value:
        data = net.held(6, 6, 3, 3).constant
        assert data is not None
        weights = np.array(data.data)
        weights[1:3] = 0
        operands = {"x": x, "w": net.graph.constant(weights)}
        if bias is not None:
            operands["bias"] = net.graph.constant(np.array(bias, np.float32))
        made = net.graph.add("conv2d", operands, {"pad": (1, 1, 1, 1)}).result
        return net.op("relu", made)

    x = conv(net.data, (0.1, 0, 0.3, -0.2, 0, 0.5))
    y = conv(x, None)
    dead = conv(y, (-1e3,) * 6)
    x = net.op("add", net.conv(dead), x)
    x = net.op("flatten", net.op("global_avg_pool", net.op("relu", x)), axis=1)
    data = net.held(5, 6).constant
    assert data is not None
    weights = np.array(data.data)
    weights[3] = 0
    return net.ends(net.graph.add("linear", {"x": x, "w": net.graph.constant(weights)}).result)


def broadcast() -> Graph:
    """Sums and products that MXNet has no kernel on integers for: of other shapes and signs."""
    net = Net("broadcast")
    first = net.conv(net.data)
    pooled = net.op("max_pool2d", net.op("relu", first), kernel=(2, 2), stride=(2, 2))
    row = net.conv(net.op("add", pooled, net.held(1, 6, 1, 1)))
    gate = net.op("global_avg_pool", first)
    raised = net.op("add", first, net.graph.constant(np.float32(3)))
    gated = net.op("mul", raised, gate)
    squared = net.op("mul", first, first)
    lifted = net.op("add", squared, raised)
    return net.ends(row, net.conv(net.op("add", gated, gate)), net.conv(lifted))


NETWORKS: dict[str, Callable[[], Graph]] = {
    made.__name__: made for made in (residual, mobile, fire, norms, dense, edges, pruned, broadcast)
}


def data() -> Array:
    """Returns data for all of them."""
    return np.random.default_rng(SEED + 1).normal(0, 1, SHAPE).astype(np.float32)
