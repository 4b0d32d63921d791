"""IF and WHILE, whose bodies are subgraphs of the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qir.ir.dtype import BOOL, I64
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import TensorType

from .call import OperatorCall
from .reader import Unread


def _if(call: OperatorCall) -> Sequence[Value]:
    condition, *arguments = call.operands
    bodies = {}
    for name in ("then", "else"):
        body = Graph(name, profile="")
        given = _inputs(body, arguments)
        results = call.reader.inline(call.integer(f"{name}_subgraph_index"), body, given)
        body.add("output", {f"result_{i}": value for i, value in enumerate(results)})
        bodies[name] = body
    operands = {"cond": _scalar(call, condition)}
    operands |= {f"xs.{i}": value for i, value in enumerate(arguments)}
    return call.add_control("if", operands, bodies)


def _while(call: OperatorCall) -> Sequence[Value]:
    carried, condition = call.operands, call.integer("cond_subgraph_index")
    body = Graph("body", profile="")
    body.add("input", types=[TensorType((), I64)], name="round")
    body.add("input", types=[TensorType((), BOOL)], name="continues")
    given = _inputs(body, carried)
    results = call.reader.inline(call.integer("body_subgraph_index"), body, given)
    # Whether there is a next round is computed at the end of the body, by what it made.
    (continues,) = call.reader.inline(condition, body, results)
    named = {f"carried_{i}": value for i, value in enumerate(results)}
    body.add("output", {"continues": _scalar(call, continues, body), **named})
    (begins,) = call.reader.inline(condition, call.reader.graph, carried)
    operands = {"cond": _scalar(call, begins)}
    operands |= {f"vs.{i}": value for i, value in enumerate(carried)}
    return call.add_control("loop", operands, {"body": body})


def _inputs(body: Graph, arguments: Sequence[Value]) -> list[Value]:
    """Adds the inputs of a body."""
    return [
        body.add("input", types=[argument.type], name=f"given_{i}").result
        for i, argument in enumerate(arguments)
    ]


def _scalar(call: OperatorCall, condition: Value, body: Graph | None = None) -> Value:
    """Returns a condition without axes; files may have one of a single element."""
    if condition.type.element != BOOL:
        raise Unread("its condition is no truth value")
    if not condition.type.rank:
        return condition
    graph = call.reader.graph if body is None else body
    axes = tuple(range(condition.type.rank))
    return graph.add("squeeze", {"x": condition}, {"axes": axes}).result


OPS: dict[str, Callable[[OperatorCall], Value | Sequence[Value]]] = {"IF": _if, "WHILE": _while}
