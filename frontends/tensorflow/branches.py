"""Conditionals: reads If with its functions, and Switch with Merge, as `if`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qir.ir.dtype import BOOL
from qir.ir.graph import Graph
from qir.ir.node import Value

from .call import KeepNode
from .graphdef import Branch, FunctionBody, GraphDefNode, GraphSource, function_source
from .loops import ValueOrList

if TYPE_CHECKING:
    from .reader import GraphDefReader


def read(reader: GraphDefReader, node: GraphDefNode) -> list[ValueOrList]:
    """Adds an `if` node and returns its results."""
    condition, *given = [reader.operand(node, place) for place in node.inputs]
    if not isinstance(condition, Value) or condition.type.dtype != BOOL or condition.type.rank:
        raise KeepNode("its condition is no single truth value")
    branch = reader.source.branches.get(node.name) or _branch_of_functions(reader.source, node)
    sides = {"then": branch.then, "else": branch.orelse}
    bodies = {name: _read_body(reader, name, side, given) for name, side in sides.items()}
    outside = [value for value in given if _is_computed(value)]
    operands = {"cond": condition}
    operands |= {f"xs.{i}": v for i, v in enumerate(outside) if isinstance(v, Value)}
    return list(reader.add_control(node, "if", operands, bodies))


def _branch_of_functions(source: GraphSource, node: GraphDefNode) -> Branch:
    call = GraphDefNode(node.name, node.op, node.inputs[1:], node.attrs)
    then, orelse = (
        FunctionBody(*function_source(source, call, name))
        for name in ("then_branch", "else_branch")
    )
    return Branch(then, orelse)


def _is_computed(held: ValueOrList) -> bool:
    """Returns whether a value becomes an input of a body; constants are copied into it."""
    return isinstance(held, Value) and held.constant is None


def _read_body(
    reader: GraphDefReader, name: str, side: FunctionBody, given: list[ValueOrList]
) -> Graph:
    args, results = side.argument_places, side.result_places
    graph = Graph(name, profile="")
    inner = type(reader)(side.source, name, reader.ledger, graph=graph)
    for index, held in enumerate(given):
        if not isinstance(held, Value):
            inner.results[args[index][0]] = held
        elif _is_computed(held):
            made = graph.add("input", types=[held.type], name=f"given_{index}").result
            inner.results[args[index][0]] = made
    for index, held in enumerate(given):
        if isinstance(held, Value) and held.constant is not None:
            made = graph.constant(held.constant, name=f"constant_{index}")
            inner.results[args[index][0]] = made
    outputs = {}
    for index, held in enumerate(inner.read_places(results)):
        if not isinstance(held, Value):
            raise KeepNode("a branch gives back a list of tensors")
        outputs[f"result_{index}"] = held
    graph.add("output", outputs)
    return graph
