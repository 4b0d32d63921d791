"""Finds divisors, and operands of like ops, that reach so near 0 that few bits make them 0.

A linear attention is the usual case; the small number keeps a divisor of 0 away in float only:

    %p = matmul(%q, %k)                                sensitive: the divisor is a part of it
    %n = slice(%p) {axes = (-1,), ends = (-1,)}
    %d = slice(%p) {axes = (-1,), starts = (-1,)}      sensitive: only the sum reads it
    %e = add(%d, %tiny)                                sensitive: the divisor
    %y = div(%n, %e)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from qir.calibration import Key, Statistics
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.quantized_ops import STRUCTURAL_OPS
from qir.ir.result_bounds import result_bounds

_TINY = 1e-3
"""A positive constant up to this, added or as a lower bound, is there to keep 0 away."""
_HALF_STEP = 1 / 510
"""Half a step of 8 bits as a share of the range."""


def operands_near_zero(graph: Graph, observed: Mapping[Value, float]) -> dict[Value, str]:
    """Returns the computed operands that 8 bits may make 0, and what these are computed from.

    Each has what it feeds. `observed` holds the distance from 0 as `observed_divisors` has it;
    the ops decide on the others.
    """
    out: dict[Value, str] = {}
    for node, value in _divisors(graph):
        distance = observed.get(value)
        if _is_near(value) if distance is None else distance < _HALF_STEP:
            said = "a divisor near 0" if node.op == "div" else f"{node.op} of numbers near 0"
            for fed in _feeding(value):
                out.setdefault(fed, f"feeds {said}")
    return out


def observed_divisors(graph: Graph, statistics: Statistics) -> dict[Value, float]:
    """Returns the least distance of observed divisors from 0, as a share of their range with 0.

    Those are left out on which the ops decide alike.
    """
    out: dict[Value, float] = {}
    for _, value in _divisors(graph):
        summary = statistics.get(Key(value.lineage.tensor))
        if summary is None or not summary.finite:
            continue
        low, high = float(summary.low), float(summary.high)
        reach = max(high, 0.0) - min(low, 0.0)
        distance = max(low, -high, 0.0) / reach if reach else 0.0
        if (distance < _HALF_STEP) is not _is_near(value):
            out[value] = distance
    return out


def _divisors(graph: Graph) -> Iterator[tuple[Node, Value]]:
    for node in graph:
        slot = spec(node.op).traits.divisor
        if slot is None or node.stages or (node.op == "pow" and not _has_negative_power(node)):
            continue
        if _is_computed(value := node.operands[slot]):
            yield node, value


def _is_computed(value: Value) -> bool:
    is_float = value.type.express.is_float and value.type.quant is None
    return is_float and value.constant is None and value.node.op not in STRUCTURAL_OPS


def _has_negative_power(node: Node) -> bool:
    power = node.operands["b"].constant
    return power is not None and bool(np.less(power.data, 0).all())


def _is_near(value: Value) -> bool:
    """Returns whether the ops show that a value reaches down to 0, or to a tiny number."""
    waiting, seen = [value], set()
    while waiting:
        node = waiting.pop().node
        if 0 <= result_bounds(node)[0] <= _TINY or _has_tiny_number(node):
            return True
        if spec(node.op).traits.value_preserving:
            moved = [v for v in _moved(node) if v not in seen]
            seen.update(moved)
            waiting += moved
    return False


def _has_tiny_number(node: Node) -> bool:
    """Returns whether an op adds a tiny positive constant, or allows nothing below it."""
    if node.op not in ("add", "max"):
        return False
    held = [v.constant.data for v in node.operands.values() if v.constant is not None]
    return any(d.size == 1 and 0 < d.item() <= _TINY for d in held)


def _moved(node: Node) -> list[Value]:
    same = spec(node.op).traits.same_params
    return [v for s, v in node.operands.items() if s.split(".")[0] in same and _is_computed(v)]


def _feeding(divisor: Value) -> Iterator[Value]:
    """Yields a divisor and the values that it is near 0 with."""
    waiting, seen = [divisor], {divisor}
    while waiting:
        value = waiting.pop()
        yield value
        node = value.node
        if spec(node.op).traits.near_zero or _has_tiny_number(node):
            read = [v for v in node.operands.values() if _is_computed(v)]
        elif spec(node.op).traits.value_preserving:
            read = _moved(node)
        else:
            continue
        waiting += [v for v in read if v not in seen]
        seen.update(read)
