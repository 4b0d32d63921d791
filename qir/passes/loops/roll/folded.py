"""First steps that constant folding reduced to a constant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir.dims import known_shape
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import Array, TensorType
from qir.reference.interpreter import profile_name_of, run_node

Row = tuple[Value, ...]
Data = NDArray[np.generic]
_DEEPEST = 6


@dataclass(frozen=True)
class Folded:
    """What the first step would have made, had nobody computed it."""

    graph: Graph
    begins: Callable[[Row], Value | None]
    """What is at the first step where later ones have these, if that is a state."""
    alike: Callable[[Node, Node], bool]

    def firsts(self, row: Row) -> dict[str, Value] | None:
        """Returns the operands of the op that the preceding constant is the result of, or None."""
        held, node = row[0].constant, row[1].node
        if held is None or row[1].constant is not None:
            return None
        operands = self._operands(row[1:], 0)
        made = None if operands is None else self._run(node, operands)
        if made is None or row[0].type != row[1].type:
            return None
        found = made[row[1].index]
        if found.dtype != held.data.dtype or found.tobytes() != held.data.tobytes():
            return None
        return operands

    def _operands(self, tail: Row, depth: int) -> dict[str, Value] | None:
        """Returns what the op of the later steps is given at the first one; None where nobody
        knows."""
        one = tail[0].node
        same = all(v.node.op == one.op and self.alike(one, v.node) for v in tail)
        if depth > _DEEPEST or not same or any(v.index != tail[0].index for v in tail):
            return None
        found: dict[str, Value] = {}
        for slot in one.operands:
            value = self._first(tuple(v.node.operands[slot] for v in tail), depth)
            if value is None:
                return None
            found[slot] = value
        return found

    def _first(self, tail: Row, depth: int) -> Value | None:
        """Returns what is at the first step where the later ones have these."""
        if (state := self.begins(tail)) is not None:
            return state
        held = tail[0].constant
        if held is not None:
            return tail[0] if all(value.constant == held for value in tail) else None
        operands = self._operands(tail, depth + 1)
        made = None if operands is None else self._run(tail[0].node, operands)
        return None if made is None else constant(made[tail[0].index], tail[0].type)

    def _run(self, node: Node, operands: Mapping[str, Value]) -> tuple[Data, ...] | None:
        held = {slot: value.constant for slot, value in operands.items()}
        arrays = {slot: array.data for slot, array in held.items() if array is not None}
        if not operands or len(arrays) < len(operands) or any(v.type.quant for v in node.results):
            return None
        try:
            with np.errstate(all="ignore"):
                return tuple(run_node(node, arrays, profile_name_of(self.graph, node)))
        except QirError:
            return None


def constant(data: Data, kind: TensorType) -> Value:
    """Returns a constant that is in no graph of the model yet."""
    return Graph().constant(Array(data, TensorType(data.shape, kind.element)))


def zeros(kind: TensorType) -> Value | None:
    """Returns a state of zeros; None where its sizes are not known, or it is quantized."""
    sizes = known_shape(kind.shape)
    if sizes is None or kind.quant is not None or not kind.dtype.is_float:
        return None
    return constant(np.zeros(sizes, kind.dtype.carrier), kind)
