"""Float networks of a seed, such as people train, with what they hold as integers afterwards."""

from __future__ import annotations

import random
from typing import TypeAlias

import numpy as np

from qir.analysis.kernel_groups import KernelGroup
from qir.ir.attrs import Attr
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.origin import Origin
from qir.ir.types import TensorType

Activations: TypeAlias = "tuple[tuple[str, dict[str, Attr]], ...]"
"""Ops with their attributes; those that stand there twice are chosen more often."""
ACTIVATIONS: Activations = (
    ("relu", {}),
    ("relu", {}),
    ("clip", {"min": 0.0, "max": 6.0}),
    ("leaky_relu", {"alpha": 0.125}),
    ("silu", {}),
    ("hard_swish", {}),
    ("sigmoid", {}),
    ("tanh", {}),
)


class Grown:
    """Convolutions with norms and activations, sums, pools and joins, then one or two layers.

    `plain` ones compute no curve and no mean behind the layers, so that float32 has one answer.
    """

    def __init__(
        self, seed: int, activations: Activations = ACTIVATIONS, *, plain: bool = False
    ) -> None:
        self.pick = random.Random(seed)
        self.activations, self.plain = activations, plain
        self.rng = np.random.default_rng(seed)
        self.graph = Graph()
        self.count = 0
        kind = TensorType((2, 4, 6, 6), F32)
        self.values = [self.graph.add("input", types=[kind], name="x").result]
        for _ in range(self.pick.randint(2, 6)):
            self.values.append(self.layer(self.pick.choice(self.values[-3:])))
        left = [v for v in self.values if not v.uses]
        outputs = {f"y{i}": v for i, v in enumerate(left[1:])}
        self.graph.add("output", {**outputs, "y": self.head(left[0], whole=not plain)})

    def add(self, op: str, operands: dict[str, Value], attrs: dict[str, Attr]) -> Value:
        self.count += 1
        origin = Origin("test", op, f"{op}{self.count}")
        name = f"{op}{self.count}"
        return self.graph.add(op, operands, attrs, name=name, origins=[origin]).result

    def held(self, *shape: int, low: float = -1.0) -> Value:
        self.count += 1
        data = self.rng.uniform(low, 1, shape).astype(np.float32)
        return self.graph.constant(data, name=f"k{self.count}")

    def layer(self, x: Value) -> Value:
        kind = self.pick.choice(
            ["conv"] * 5 + ["add"] * 3 + ["mul", "concat", "pool", "activation"]
        )
        if kind == "conv":
            return self.behind(self.conv(x))
        if kind == "activation":
            return self.behind(x, 1.0)
        if kind == "pool":
            op = self.pick.choice(["max_pool2d", "max_pool2d" if self.plain else "avg_pool2d"])
            return self.add(op, {"x": x}, {"kernel": (3, 3), "pad": (1, 1, 1, 1)})
        others = [v for v in self.values if v.type == x.type]
        if kind == "concat":
            joined = self.add("concat", {"xs.0": x, "xs.1": self.pick.choice(others)}, {"axis": 1})
            return self.conv(joined)
        fresh = self.conv(x)
        pair = [fresh, self.pick.choice([*others, self.conv(x), self.held(2, 4, 6, 6)])]
        self.pick.shuffle(pair)
        return self.behind(self.add(kind, {"a": pair[0], "b": pair[1]}, {}))

    def conv(self, x: Value) -> Value:
        wide, groups = x.type.shape[1], self.pick.choice([1, 1, 1, 4])
        assert isinstance(wide, int)
        side = self.pick.choice([1, 3])
        operands = {"x": x, "w": self.held(4, wide // groups, side, side)}
        if self.pick.random() < 0.6:
            operands["bias"] = self.held(4)
        pad = (side // 2,) * 4
        y = self.add("conv2d", operands, {"pad": pad, "groups": groups})
        if self.pick.random() < 0.4:
            norm = {s: self.held(4, low=0.5) for s in ("gamma", "beta", "mean", "var")}
            y = self.add("batch_norm", {"x": y, **norm}, {})
        return y

    def behind(self, x: Value, chance: float = 0.7) -> Value:
        if self.pick.random() > chance:
            return x
        op, attrs = self.pick.choice(self.activations)
        return self.add(op, {"x": x}, attrs)

    def head(self, x: Value, *, whole: bool) -> Value:
        if whole:
            x = self.add("global_avg_pool", {"x": x}, {})
        else:
            x = self.add("max_pool2d", {"x": x}, {"kernel": (3, 3), "stride": (3, 3)})
        x = self.add("flatten", {"x": x}, {})
        for wide in (5, 3)[: self.pick.randint(1, 2)]:
            last = x.type.shape[-1]
            assert isinstance(last, int)
            if self.pick.random() < 0.5:
                bias = {"c": self.held(wide)} if self.pick.random() < 0.7 else {}
                x = self.add("gemm", {"a": x, "b": self.held(last, wide), **bias}, {})
            else:
                x = self.add("matmul", {"a": x, "b": self.held(last, wide)}, {})
                x = self.add("add", {"a": x, "b": self.held(wide)}, {})
            if self.pick.random() < 0.6:
                op = self.pick.choice(["relu", "gelu", "tanh"]) if whole else "relu"
                x = self.add(op, {"x": x}, {})
        return self.add("softmax", {"x": x}, {}) if whole and self.pick.random() < 0.3 else x


def network(seed: int) -> Graph:
    """The network of a seed."""
    return Grown(seed).graph


def samples(seed: int, count: int = 2) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(0, 1, (2, 4, 6, 6)).astype(np.float32)} for _ in range(count)]


def members(node: Node | KernelGroup) -> frozenset[str]:
    """The ops of the source that one kernel computes."""
    parts = node.ops if isinstance(node, KernelGroup) else node.stages or (node,)
    return frozenset(o.name for part in parts for o in part.origins if o.op != "batch_norm")


def quantized_kernels(graph: Graph) -> set[frozenset[str]]:
    """The kernels of a grouped graph, each by the ops of the source in it."""
    edges = ("input", "constant", "output", "quantize", "dequantize")
    nodes = [n for n in graph if n.op not in edges]
    taken = [n for n in nodes if any(v.type.quant for v in n.operands.values())]
    return {members(n) for n in taken}
