"""Branches: `If` with its two functions, or Switch and Merge, become `if`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qir.ir.dtype import BOOL
from qir.ir.graph import Graph
from qir.ir.node import Value

from .call import KeepNode
from .graphdef import Branch, FunctionBody, GraphDefNode, GraphSource, body_source
from .loops import Held

if TYPE_CHECKING:
    from .reader import GraphDefReader


def read(reader: GraphDefReader, node: GraphDefNode) -> list[Held]:
    """Adds a branch and returns its results."""
    condition, *given = [reader.held(node, place) for place in node.inputs]
    if not isinstance(condition, Value) or condition.type.dtype != BOOL or condition.type.rank:
        raise KeepNode("its condition is no single truth value")
    branch = reader.source.branches.get(node.name) or _of_functions(reader.source, node)
    sides = {"then": branch.then, "else": branch.orelse}
    bodies = {name: _body(reader, name, side, given) for name, side in sides.items()}
    outside = [value for value in given if _is_outside(value)]
    operands = {"cond": condition}
    operands |= {f"xs.{i}": v for i, v in enumerate(outside) if isinstance(v, Value)}
    return list(reader.add_control(node, "if", operands, bodies))


def _of_functions(source: GraphSource, node: GraphDefNode) -> Branch:
    call = GraphDefNode(node.name, node.op, node.inputs[1:], node.attrs)
    then, orelse = (
        FunctionBody(*body_source(source, call, name)) for name in ("then_branch", "else_branch")
    )
    return Branch(then, orelse)


def _is_outside(held: Held) -> bool:
    """Returns whether a body takes a value as an input: constants it has itself."""
    return isinstance(held, Value) and held.constant is None


def _body(reader: GraphDefReader, name: str, side: FunctionBody, given: list[Held]) -> Graph:
    args, results = side.args, side.results
    graph = Graph(name, profile="")
    inner = type(reader)(side.source, name, reader.ledger, graph=graph)
    for index, held in enumerate(given):
        if not isinstance(held, Value):
            inner.found[args[index][0]] = held
        elif _is_outside(held):
            made = graph.add("input", types=[held.type], name=f"given_{index}").result
            inner.found[args[index][0]] = made
    for index, held in enumerate(given):
        if isinstance(held, Value) and held.constant is not None:
            made = graph.constant(held.constant, name=f"constant_{index}")
            inner.found[args[index][0]] = made
    outputs = {}
    for index, held in enumerate(inner.read_places(results)):
        if not isinstance(held, Value):
            raise KeepNode("a branch gives back a list of tensors")
        outputs[f"result_{index}"] = held
    graph.add("output", outputs)
    return graph
