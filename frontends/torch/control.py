"""Calls of submodules: `torch.cond` becomes `if`, `while_loop` becomes `loop`, with closed bodies.

What `torch.no_grad` and a switched-off `torch.autocast` wrap is read in its place.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from qir.ir.dtype import BOOL, I64
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import TensorType

from .program import TorchProgram, mutates_views
from .reader import ProgramReader
from .sizes import is_size


def cond(reader: ProgramReader, node: fx.Node) -> list[Value]:
    """Reads `torch.cond`; the operands of both branches become inputs of the bodies."""
    condition, then, other, *rest = node.args
    given: Sequence[Any] = rest[0] if rest else ()  # type: ignore[assignment]
    outside = _captured_values(reader, given)
    bodies = {}
    for name, held in (("then", then), ("else", other)):
        graph = Graph(name, profile="")
        inputs = _body_inputs(graph, outside)
        made = _inline(reader, graph, _submodule(reader, held), given, inputs)
        graph.add("output", {f"result_{i}": value for i, value in enumerate(made)})
        bodies[name] = graph
    if not isinstance(condition, fx.Node) or is_size(condition):
        raise reader.error(node, "branches by a size; export it with that size fixed")
    operands = {"cond": reader.tensor(condition)}
    operands |= {f"xs.{i}": value for i, value in enumerate(outside.values())}
    return _add_control(reader, node, "if", operands, bodies)


def while_loop(reader: ProgramReader, node: fx.Node) -> list[Value]:
    """Reads `while_loop`; the condition is computed before the loop and at the end of its body."""
    condition, body, carried, *rest = node.args
    kept: Sequence[Any] = carried  # type: ignore[assignment]
    more: Sequence[Any] = rest[0] if rest else ()  # type: ignore[assignment]
    if not all(isinstance(held, fx.Node) and not is_size(held) for held in kept):
        raise reader.error(node, "carries a number around a loop; carry a tensor of one element")
    given = [*kept, *more]
    asks, runs = _submodule(reader, condition), _submodule(reader, body)
    first = [reader.tensor(held) for held in kept]
    outside = _captured_values(reader, more)
    (before,) = _inline(
        reader, reader.graph, asks, given, [*first, *(outside.get(h) for h in more)]
    )
    graph = Graph("body", profile="")
    graph.add("input", types=[TensorType((), I64)], name="round")
    graph.add("input", types=[TensorType((), BOOL)], name="continues")
    inner = [
        graph.add("input", types=[value.type], name=f"carried_{i}").result
        for i, value in enumerate(first)
    ]
    inputs = _body_inputs(graph, outside)
    made = _inline(reader, graph, runs, given, [*inner, *(inputs.get(h) for h in more)])
    (after,) = _inline(reader, graph, asks, given, [*made, *(inputs.get(h) for h in more)])
    graph.add("output", {"after": after} | {f"kept_{i}": value for i, value in enumerate(made)})
    operands = {"cond": before}
    operands |= {f"vs.{i}": value for i, value in enumerate(first)}
    operands |= {f"xs.{i}": value for i, value in enumerate(outside.values())}
    return _add_control(reader, node, "loop", operands, {"body": graph})


def without_gradients(reader: ProgramReader, node: fx.Node) -> list[Value]:
    """Reads the calls in a `torch.no_grad()` or `torch.enable_grad()` block, which compute the
    same."""
    _, body, *given = node.args
    return _in_place(reader, node, body, given)


def without_autocast(reader: ProgramReader, node: fx.Node) -> list[Value]:
    """Reads the calls in a `torch.autocast` block that is switched off."""
    _, _, enabled, _, body, *given = node.args
    if enabled:
        said = "computes in fewer bits by torch.autocast; export it without autocast"
        raise reader.error(node, said)
    return _in_place(reader, node, body, given)


def _in_place(
    reader: ProgramReader, node: fx.Node, body: object, given: Sequence[Any]
) -> list[Value]:
    """Reads the calls of a submodule in the place of the node that calls it."""
    module = _submodule(reader, body)
    if mutates_views(module.graph):
        raise reader.error(node, "changes a tensor from outside in a block; change a copy of it")
    values = {
        held: reader.size_value(held) if is_size(held) else reader.tensor(held)
        for held in given
        if isinstance(held, fx.Node) and reader.stored_tensor(held) is None
    }
    return _inline(reader, reader.graph, module, given, values)


def _submodule(reader: ProgramReader, held: Any) -> fx.GraphModule:
    found = reader.program.attribute(str(held.target))
    if not isinstance(found, fx.GraphModule):
        raise reader.error(held, "is no graph of calls")
    return found


def _captured_values(reader: ProgramReader, given: Sequence[Any]) -> dict[fx.Node, Value]:
    """Returns the computed operands of a body; stored tensors are constants inside it."""
    nodes = [
        held for held in given if isinstance(held, fx.Node) and reader.stored_tensor(held) is None
    ]
    return {node: reader.tensor(node) for node in nodes}


def _body_inputs(graph: Graph, outside: Mapping[fx.Node, Value]) -> dict[fx.Node, Value]:
    """Adds an input to a body for each captured value."""
    return {
        node: graph.add("input", types=[value.type], name=f"given_{i}").result
        for i, (node, value) in enumerate(outside.items())
    }


def _inline(
    reader: ProgramReader,
    graph: Graph,
    module: fx.GraphModule,
    given: Sequence[Any],
    values: Mapping[fx.Node, Value] | Sequence[Value | None],
) -> list[Value]:
    """Reads the calls of a submodule into a graph; returns its results."""
    places = [n for n in module.graph.nodes if n.op == "placeholder"]
    stored = {}
    for place, held in zip(places, given, strict=True):
        found = reader.stored_tensor(held) if isinstance(held, fx.Node) else None
        if found is not None:
            stored[place.name] = found
    if isinstance(values, Mapping):
        values = [values.get(held) if isinstance(held, fx.Node) else None for held in given]
    program = TorchProgram(module.graph, stored, lambda name: operator.attrgetter(name)(module))
    inner = reader.nested(program, graph)
    for place, value in zip(places, values, strict=True):
        if value is not None and is_size(place):
            inner.size_values[place.name] = value
        elif value is not None:
            inner.results[place.name] = value
    results: Any = ()
    for node in module.graph.nodes:
        if node.op == "output":
            results = node.args[0]
        elif node.op != "placeholder":
            inner.read(node)
    held_results = results if isinstance(results, (list, tuple)) else [results]
    return [inner.tensor(held) for held in held_results]


def _add_control(
    reader: ProgramReader,
    node: fx.Node,
    op: str,
    operands: Mapping[str, Value],
    bodies: Mapping[str, Graph],
) -> list[Value]:
    """Adds the `if` or `loop` node."""
    origins, name = [reader.origin(node)], reader.names(node, op)
    made = reader.graph.add(op, operands, name=name, origins=origins, bodies=bodies)
    reader.unnamed.update(made.results)
    return list(made.results)


CONTROL = {
    torch.ops.higher_order.cond: cond,
    torch.ops.higher_order.while_loop: while_loop,
    torch.ops.higher_order.wrap_with_autocast: without_autocast,
    torch.ops.higher_order.wrap_with_set_grad_enabled: without_gradients,
}
"""Converters of control flow and of blocks, by operator."""
