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
from qir.reference.interpreter import rules_of, run_node

Row = tuple[Value, ...]
Data = NDArray[np.generic]
# A first step that starts from zeros is often folded: sigmoid(0) and the like are constants.
_MAX_DEPTH = 6


@dataclass(frozen=True)
class Folded:
    """What the first step would have made, had nobody computed it."""

    graph: Graph
    initial_state: Callable[[Row], Value | None]
    """What is at the first step where later ones have these, if that is a state."""
    is_same_node: Callable[[Node, Node], bool]

    def first_operands(self, row: Row) -> dict[str, Value] | None:
        """Returns the operands of the op that the preceding constant is the result of, or None."""
        first_constant, node = row[0].constant, row[1].node
        if first_constant is None or row[1].constant is not None:
            return None
        operands = self._operands(row[1:], 0)
        results = None if operands is None else self._run(node, operands)
        if results is None or row[0].type != row[1].type:
            return None
        computed = results[row[1].index]
        if (
            computed.dtype != first_constant.data.dtype
            or computed.tobytes() != first_constant.data.tobytes()
        ):
            return None
        return operands

    def _operands(self, later: Row, depth: int) -> dict[str, Value] | None:
        """Returns what the op of the later steps is given at the first one; None where nobody
        knows."""
        node = later[0].node
        all_same = all(v.node.op == node.op and self.is_same_node(node, v.node) for v in later)
        if depth > _MAX_DEPTH or not all_same or any(v.index != later[0].index for v in later):
            return None
        operands: dict[str, Value] = {}
        for slot in node.operands:
            value = self._first_value(tuple(v.node.operands[slot] for v in later), depth)
            if value is None:
                return None
            operands[slot] = value
        return operands

    def _first_value(self, later: Row, depth: int) -> Value | None:
        """Returns what is at the first step where the later ones have these."""
        if (state := self.initial_state(later)) is not None:
            return state
        first_constant = later[0].constant
        if first_constant is not None:
            return later[0] if all(value.constant == first_constant for value in later) else None
        operands = self._operands(later, depth + 1)
        results = None if operands is None else self._run(later[0].node, operands)
        return None if results is None else constant(results[later[0].index], later[0].type)

    def _run(self, node: Node, operands: Mapping[str, Value]) -> tuple[Data, ...] | None:
        constants = {slot: value.constant for slot, value in operands.items()}
        arrays = {slot: array.data for slot, array in constants.items() if array is not None}
        if not operands or len(arrays) < len(operands) or any(v.type.quant for v in node.results):
            return None
        try:
            # Infinities and NaNs are results like others here.
            with np.errstate(all="ignore"):
                return tuple(run_node(node, arrays, rules_of(self.graph, node)))
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
