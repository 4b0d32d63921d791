"""Finds what must not share a type of fixed scale: values that reach beyond it.

A kernel of sigmoid, softmax or tanh makes integers of one scale, for 0..1 or -1..1. An op that
joins its result with wider data reads it quantized again, by the scheme of what is joined.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

import numpy as np

from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.result_bounds import result_bounds
from qir.ir.scheme import Scheme

_MAX_STEPS = 64
"""Consecutive ops that are followed upwards."""


@dataclass(frozen=True)
class Requantized:
    """A stored value as one slot reads it: quantized again, by another scheme than its own."""

    value: Value
    node: Node
    slot: str

    @property
    def name(self) -> str:
        """The name of the value."""
        return self.value.name


Stored: TypeAlias = Value | Requantized
"""What has one scheme in a plan."""


class FixedScales:
    """The values of a plan that have a fixed scale, and the slots that join them with others."""

    def __init__(self) -> None:
        self.allowed: dict[Value, tuple[Scheme, ...]] = {}
        """Value that a kernel makes by a fixed scale, also once moved -> what the kernel allows."""
        self.joining: dict[Value, dict[Requantized, None]] = {}

    def note(
        self,
        node: Node,
        moved: Iterable[tuple[str, Value]],
        made: Iterable[Value],
        allowed: tuple[Scheme, ...],
    ) -> None:
        """Notes an integer op: what it moves, what it makes, and the schemes of its result."""
        moved = list(moved)
        if not allowed or any(s.scale is None for s in allowed):
            alike = {self.allowed.get(value, ()) for _, value in moved}
            allowed = next(iter(alike)) if len(alike) == 1 else ()
        if allowed:
            self.allowed |= dict.fromkeys(made, allowed)
            return
        for slot, value in moved:
            if value in self.allowed:
                self.joining.setdefault(value, {})[Requantized(value, node, slot)] = None

    def too_narrow(self, values: Iterable[Stored], wanted: Scheme | None) -> set[Requantized]:
        """Returns the operands of a share set whose fixed scale does not do for the whole set.

        It has values beyond the range of that scale, or other fixed scales. `wanted` is the scheme
        of a user's rule.
        """
        members = [v for v in values if not isinstance(v, Requantized)]
        fixed = [v for v in members if v in self.allowed]
        schemes = {
            next((s for s in self.allowed[v] if not wanted or s.storage in wanted.storages), None)
            for v in fixed
        }
        scheme = next(iter(schemes), None)
        others = (v for v in members if v not in self.allowed)
        if not fixed or (len(schemes) == 1 and scheme and all(fits(v, scheme) for v in others)):
            return set()
        return {slot for value in fixed for slot in self.joining.get(value, ())}


def fits(value: Value, scheme: Scheme) -> bool:
    """Reports whether the ops show that a fixed scale has integers for all elements of a value.

    An element may lie one step beyond the last integer, as the 1 of a sigmoid does.
    """
    assert scheme.scale is not None
    low, high = _bounds(value, _MAX_STEPS)
    zero = scheme.zero or 0
    least, most = (scheme.low - zero - 1, scheme.high - zero + 1)
    return least * scheme.scale <= low and high <= most * scheme.scale


def _bounds(value: Value, steps: int) -> tuple[float, float]:
    """Returns the bounds that the ops give a value, also once moved."""
    node = value.node
    if value.constant is not None:
        data = value.constant.data
        return float(np.min(data, initial=0)), float(np.max(data, initial=0))
    if node.op == "tanh" and not node.stages:
        return -1.0, 1.0
    low, high = result_bounds(node)
    if (low, high) != (-inf, inf) or node.stages or not spec(node.op).traits.value_preserving:
        return low, high
    read = [v for v in node.operands.values() if v.type.express.is_float]
    if not steps or not read:
        return -inf, inf
    bounds = [_bounds(v, steps - 1) for v in read]
    return min(b[0] for b in bounds), max(b[1] for b in bounds)


__all__ = ["FixedScales", "Requantized", "Stored", "fits"]
