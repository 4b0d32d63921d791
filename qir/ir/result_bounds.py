"""Bounds that an op gives its result, whatever it reads."""

from __future__ import annotations

import math
from collections.abc import Mapping

from qir.ir.attrs import Attr
from qir.ir.node import Node


def result_bounds(node: Node) -> tuple[float, float]:
    """Returns the least and the greatest float value of an op's result, or of a chain's
    last stage."""
    stage = node.stages[-1] if node.stages else None
    op, attrs = (stage.op, stage.attrs) if stage else (node.op, node._attrs)
    match op:
        case "relu" | "abs":
            return 0.0, math.inf
        case "sigmoid" | "hard_sigmoid" | "softmax":
            return 0.0, 1.0
        case "clip":
            low, high = (_bound(attrs, name) for name in ("min", "max"))
            # A clip whose min is above its max gives max everywhere, as ONNX and NumPy have it.
            high = math.inf if high is None else high
            return min(-math.inf if low is None else low, high), high
    return -math.inf, math.inf


def _bound(attrs: Mapping[str, Attr], name: str) -> float | None:
    bound = attrs.get(name)
    return bound if isinstance(bound, float) and not math.isnan(bound) else None
