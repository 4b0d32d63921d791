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
Written: TypeAlias = "Callable[..., Any]"
"""A function that writes a replacement and returns its value or values; None declines."""


def replacement(
    function: Written,
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
        given = [match if name == "match" else match.get(name) for name in names]
        made: object = function(Adder(graph), *given)
        listed = made if isinstance(made, list | tuple) else (made,)
        if made is not None and not all(isinstance(value, Value) for value in listed):
            said = f"returned {made!r}; return a value, a list of values, or None to decline"
            raise TypeRuleError(f"replacement {function.__name__} {said}")
        return made  # type: ignore[return-value]  # it was checked

    return replace


@dataclass(frozen=True)
class Adder:
    """Adds nodes to a graph, an op a call: `op.relu(x)`, `op.softmax(x, axis=-1)`."""

    graph: Graph

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        row = spec(name)

        def add(*operands: Operand, **more: object) -> Value | tuple[Value, ...]:
            return self._add(row, operands, more)

        return add

    def _add(
        self, row: OpSpec, operands: Sequence[Operand], more: dict[str, object]
    ) -> Value | tuple[Value, ...]:
        """Returns one node; its result, or its results where there are several."""
        if len(operands) > len(row.operands):
            raise TypeRuleError(f"{row.name} takes {len(row.operands)} operands at most")
        attrs: dict[str, Attr] = {}
        filled: dict[str, object] = {
            slot.name: operand for slot, operand in zip(row.operands, operands, strict=False)
        }
        kinds = more.pop("types", None)
        for name, thing in more.items():
            if not is_slot(row, name):
                attrs[name] = thing  # type: ignore[assignment]  # the op checks it
            elif name in filled:
                raise TypeRuleError(f"{row.name}: slot {name} is bound twice")
            else:
                filled[name] = thing
        listed = _listed(row, filled)
        values = [thing for thing in listed.values() if isinstance(thing, Value)]
        made = self.graph.add(
            row.name,
            {slot: self._value(row, thing, values) for slot, thing in listed.items()},
            attrs,
            types=kinds,  # type: ignore[arg-type]
        )
        return made.results[0] if len(made.results) == 1 else made.results

    def _value(self, row: OpSpec, thing: object, others: Sequence[Value]) -> Value:
        """Returns the value in a slot; a number becomes a constant."""
        if isinstance(thing, Value):
            return thing
        if isinstance(thing, np.ndarray):
            return self.graph.constant(thing)
        if not isinstance(thing, bool | int | float) or not others:
            said = "give a value, a number or a NumPy array"
            raise TypeRuleError(f"{row.name}: {thing!r} is no operand of a replacement; {said}")
        kind = others[0].type.express
        return self.graph.constant(Array(np.array(thing, kind.carrier), TensorType((), kind)))


def _listed(row: OpSpec, filled: dict[str, object]) -> dict[str, object]:
    """Operands by slot: without empty ones, lists of variadic slots one by one."""
    out: dict[str, object] = {}
    several = {slot.name for slot in row.operands if slot.variadic}
    for name, thing in filled.items():
        if name in several and isinstance(thing, Sequence):
            out |= {f"{name}.{i}": each for i, each in enumerate(thing)}
        elif thing is not None:
            out[f"{name}.0" if name in several else name] = thing
    return out
