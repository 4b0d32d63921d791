"""A small graph, as it is read from a module of PyTorch: recipes are for modules alone."""

from __future__ import annotations

import numpy as np

from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.origin import Origin
from qir.ir.types import TensorType

_LAYERS = {
    "conv2d": "torch.nn.modules.conv.Conv2d",
    "relu": "torch.nn.modules.activation.ReLU",
    "linear": "torch.nn.modules.linear.Linear",
}
_OPERATORS = {
    "conv2d": "aten.conv2d.default",
    "relu": "aten.relu.default",
    "add": "aten.add.Tensor",
    "global_avg_pool": "aten.adaptive_avg_pool2d.default",
    "flatten": "aten.flatten.using_ints",
    "linear": "aten.linear.default",
}


def residual() -> Graph:
    """Returns a block of a residual network with a classifier after it."""
    rng, graph = np.random.default_rng(0), Graph("residual")

    def weight(name: str, *shape: int) -> Value:
        data = rng.normal(0, 0.3, shape).astype(np.float32)
        return graph.constant(data, name=name)

    def call(op: str, name: str, operands: dict[str, Value]) -> Value:
        layer = _LAYERS.get(op, "")
        origin = Origin("torch", _OPERATORS[op], name, name if layer else "", layer=layer)
        attrs = {"pad": (1, 1, 1, 1)} if op == "conv2d" else {}
        return graph.add(op, operands, attrs, name=name, origins=[origin]).result

    x = graph.add("input", types=[TensorType((2, 3, 8, 8), F32)], name="x").result
    w, v, u = weight("one.w", 4, 3, 3, 3), weight("two.w", 4, 4, 3, 3), weight("fc.w", 5, 4)
    x = call("relu", "act", {"x": call("conv2d", "one", {"x": x, "w": w})})
    y = call("conv2d", "two", {"x": x, "w": v})
    x = call("relu", "act2", {"x": call("add", "sum", {"a": y, "b": x})})
    x = call("flatten", "flat", {"x": call("global_avg_pool", "pool", {"x": x})})
    graph.add("output", {"y": call("linear", "fc", {"x": x, "w": u})})
    return graph
