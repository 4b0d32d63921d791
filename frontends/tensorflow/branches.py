"""Conditionals: reads If with its functions, and Switch with Merge, as `if`."""

from __future__ import annotations

from qir.ir.dtype import BOOL
from qir.ir.graph import Graph
from qir.ir.node import Value

from .graphdef import Branch, FunctionBody, GraphDefNode, GraphSource, function_source
from .reader import GraphDefReader, KeepNode
from .results import ValueOrList


def read(reader: GraphDefReader, node: GraphDefNode) -> list[ValueOrList]:
    """Adds an `if` node and returns its results."""
    condition, *arguments = [reader.operand(node, place) for place in node.inputs]
    if not isinstance(condition, Value) or condition.type.dtype != BOOL or condition.type.rank:
        raise KeepNode("its condition is no single truth value")
    branch = reader.source.branches.get(node.name) or _branch_of_functions(reader.source, node)
    sides = {"then": branch.then, "else": branch.orelse}
    bodies = {name: _read_body(reader, name, side, arguments) for name, side in sides.items()}
    captured = [value for value in arguments if _is_computed(value)]
    operands = {"cond": condition}
    operands |= {f"xs.{i}": v for i, v in enumerate(captured) if isinstance(v, Value)}
    return list(reader.add_control(node, "if", operands, bodies))


def _branch_of_functions(source: GraphSource, node: GraphDefNode) -> Branch:
    call = GraphDefNode(node.name, node.op, node.inputs[1:], node.attrs)
    then, orelse = (
        FunctionBody(*function_source(source, call, name))
        for name in ("then_branch", "else_branch")
    )
    return Branch(then, orelse)


def _is_computed(argument: ValueOrList) -> bool:
    """Returns whether a value becomes an input of a body; constants are copied into it."""
    return isinstance(argument, Value) and argument.constant is None


def _read_body(
    reader: GraphDefReader, name: str, side: FunctionBody, arguments: list[ValueOrList]
) -> Graph:
    args, results = side.argument_places, side.result_places
    graph = Graph(name, profile="")
    inner = reader.nested(side.source, name, graph)
    for index, argument in enumerate(arguments):
        if not isinstance(argument, Value):
            inner.results[args[index][0]] = argument
        elif _is_computed(argument):
            body_value = graph.add("input", types=[argument.type], name=f"given_{index}").result
            inner.results[args[index][0]] = body_value
    for index, argument in enumerate(arguments):
        if isinstance(argument, Value) and argument.constant is not None:
            body_value = graph.constant(argument.constant, name=f"constant_{index}")
            inner.results[args[index][0]] = body_value
    outputs = {}
    for index, argument in enumerate(inner.read_places(results)):
        if not isinstance(argument, Value):
            raise KeepNode("a branch gives back a list of tensors")
        outputs[f"result_{index}"] = argument
    graph.add("output", outputs)
    return graph
