"""Replacements written as functions of a pattern's variables.

    @pattern
    def scaled(op, x, w, c):
        return op.mul(op.matmul(x, w.where("constant")), c.where("constant"))

    @replacement
    def scaled_weight(op, x, w, c):
        return op.matmul(x, op.mul(w, c))

    FOLD = Rewrite(scaled, scaled_weight)

Each parameter after the first is a variable of the pattern: a value, or None where an optional slot
is empty. `op` adds nodes to the graph; a number is a constant of the type of the other operands, a
NumPy array one of its own type. A parameter named `match` is the match, for attributes of matched
nodes: `match.node("matmul")`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.errors import TypeRuleError, UsageError
from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.ops import OpSpec, spec
from qir.ir.types import Array, TensorType
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import is_slot

Operand: TypeAlias = "Value | float | NDArray[np.generic] | Sequence[Value | float] | None"
"""What a replacement writes in a slot; a list for a variadic one."""
ReplacementFunction: TypeAlias = "Callable[..., Any]"
"""A function that writes a replacement and returns its value or values; None declines."""


def replacement(
    function: ReplacementFunction,
) -> Callable[[Graph, Match], Value | Sequence[Value] | None]:
    """Makes a replacement of a function whose parameters are the pattern's variables.

    Its first parameter adds ops, as in a pattern. Raises UsageError for a function without it; a
    variable that the pattern does not name is an error when the rewrite is applied.
    """
    parameters = list(inspect.signature(function).parameters)
    if not parameters:
        raise UsageError(f"replacement {function.__name__}: its first parameter adds ops")
    names = parameters[1:]

    def replace(graph: Graph, match: Match) -> Value | Sequence[Value] | None:
        arguments = [match if name == "match" else match.get(name) for name in names]
        returned: object = function(Adder(graph), *arguments)
        values = returned if isinstance(returned, list | tuple) else (returned,)
        if returned is not None and not all(isinstance(value, Value) for value in values):
            problem = f"returned {returned!r}; return a value, a list of values, or None to decline"
            raise TypeRuleError(f"replacement {function.__name__} {problem}")
        return returned  # type: ignore[return-value]  # it was checked

    return replace


@dataclass(frozen=True)
class Adder:
    """Adds nodes to a graph, an op a call: `op.relu(x)`, `op.softmax(x, axis=-1)`."""

    graph: Graph

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # Protocols of Python, such as `copy`, look for names like these, which are no ops.
        if name.startswith("__"):
            raise AttributeError(name)
        op_spec = spec(name)

        def add(*operands: Operand, **more: object) -> Value | tuple[Value, ...]:
            return self._add(op_spec, operands, more)

        return add

    def _add(
        self, op_spec: OpSpec, operands: Sequence[Operand], keywords: dict[str, object]
    ) -> Value | tuple[Value, ...]:
        """Returns one node; its result, or its results where there are several."""
        if len(operands) > len(op_spec.operands):
            raise TypeRuleError(f"{op_spec.name} takes {len(op_spec.operands)} operands at most")
        attrs: dict[str, Attr] = {}
        filled: dict[str, object] = {
            slot.name: operand for slot, operand in zip(op_spec.operands, operands, strict=False)
        }
        # `types` is an argument of `Graph.add`, for ops whose result type does not follow from
        # operands.
        types = keywords.pop("types", None)
        for name, filling in keywords.items():
            if not is_slot(op_spec, name):
                attrs[name] = filling  # type: ignore[assignment]  # the op checks it
            elif name in filled:
                raise TypeRuleError(f"{op_spec.name}: slot {name} is bound twice")
            else:
                filled[name] = filling
        by_slot = _operands_by_slot(op_spec, filled)
        values = [filling for filling in by_slot.values() if isinstance(filling, Value)]
        node = self.graph.add(
            op_spec.name,
            {slot: self._value(op_spec, filling, values) for slot, filling in by_slot.items()},
            attrs,
            types=types,  # type: ignore[arg-type]
        )
        return node.results[0] if len(node.results) == 1 else node.results

    def _value(self, op_spec: OpSpec, operand: object, neighbours: Sequence[Value]) -> Value:
        """Returns the value in a slot; a number becomes a constant."""
        if isinstance(operand, Value):
            return operand
        if isinstance(operand, np.ndarray):
            return self.graph.constant(operand)
        if not isinstance(operand, bool | int | float) or not neighbours:
            remedy = "give a value, a number or a NumPy array"
            raise TypeRuleError(
                f"{op_spec.name}: {operand!r} is no operand of a replacement; {remedy}"
            )
        # A number is of the type that its neighbours have.
        element = neighbours[0].type.express
        return self.graph.constant(
            Array(np.array(operand, element.carrier), TensorType((), element))
        )


def _operands_by_slot(op_spec: OpSpec, filled: dict[str, object]) -> dict[str, object]:
    """Operands by slot: without empty ones, lists of variadic slots one by one."""
    by_slot: dict[str, object] = {}
    variadic_slots = {slot.name for slot in op_spec.operands if slot.variadic}
    for name, operand in filled.items():
        if name in variadic_slots and isinstance(operand, Sequence):
            by_slot |= {f"{name}.{i}": element for i, element in enumerate(operand)}
        elif operand is not None:
            by_slot[f"{name}.0" if name in variadic_slots else name] = operand
    return by_slot
