"""Calls of submodules: `torch.cond` becomes `if`, `while_loop` becomes `loop`, with closed bodies.

What `torch.no_grad` and a switched-off `torch.autocast` wrap is read in its place.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from qir.ir.dtype import BOOL, I64
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import TensorType

from . import sizes
from .program import TorchProgram, mutates_views

if TYPE_CHECKING:
    from .reader import ProgramReader


def cond(reader: ProgramReader, node: fx.Node) -> list[Value]:
    """Reads `torch.cond`; the operands of both branches become inputs of the bodies."""
    condition, then, otherwise, *more_args = node.args
    captured: Sequence[Any] = more_args[0] if more_args else ()  # type: ignore[assignment]
    captured_values = _captured_values(reader, captured)
    bodies = {}
    for name, branch in (("then", then), ("else", otherwise)):
        # A body has no profile of its own: numerics are those of the graph around it.
        graph = Graph(name, profile="")
        inputs = _body_inputs(graph, captured_values)
        results = _inline(reader, graph, _submodule(reader, branch), captured, inputs)
        graph.add("output", {f"result_{i}": value for i, value in enumerate(results)})
        bodies[name] = graph
    if not isinstance(condition, fx.Node) or sizes.is_size(condition):
        raise reader.error(node, "branches by a size; export it with that size fixed")
    operands = {"cond": reader.tensor(condition)}
    operands |= {f"xs.{i}": value for i, value in enumerate(captured_values.values())}
    return _add_control(reader, node, "if", operands, bodies)


def while_loop(reader: ProgramReader, node: fx.Node) -> list[Value]:
    """Reads `while_loop`; the condition is computed before the loop and at the end of its body."""
    condition, body, carried, *more_args = node.args
    carried_nodes: Sequence[Any] = carried  # type: ignore[assignment]
    captured: Sequence[Any] = more_args[0] if more_args else ()  # type: ignore[assignment]
    if not all(
        isinstance(carried_node, fx.Node) and not sizes.is_size(carried_node)
        for carried_node in carried_nodes
    ):
        raise reader.error(node, "carries a number around a loop; carry a tensor of one element")
    arguments = [*carried_nodes, *captured]
    condition_graph, body_graph = _submodule(reader, condition), _submodule(reader, body)
    initial = [reader.tensor(carried_node) for carried_node in carried_nodes]
    captured_values = _captured_values(reader, captured)
    (continues_at_first,) = _inline(
        reader,
        reader.graph,
        condition_graph,
        arguments,
        [*initial, *(captured_values.get(h) for h in captured)],
    )
    graph = Graph("body", profile="")
    # As in ONNX's Loop, a body gets the count of the round and the condition first.
    graph.add("input", types=[TensorType((), I64)], name="round")
    graph.add("input", types=[TensorType((), BOOL)], name="continues")
    inner = [
        graph.add("input", types=[value.type], name=f"carried_{i}").result
        for i, value in enumerate(initial)
    ]
    inputs = _body_inputs(graph, captured_values)
    updated = _inline(
        reader, graph, body_graph, arguments, [*inner, *(inputs.get(h) for h in captured)]
    )
    # The condition of the next round is computed at the end of the body, from the new values.
    (continues,) = _inline(
        reader, graph, condition_graph, arguments, [*updated, *(inputs.get(h) for h in captured)]
    )
    graph.add(
        "output", {"after": continues} | {f"kept_{i}": value for i, value in enumerate(updated)}
    )
    operands = {"cond": continues_at_first}
    operands |= {f"vs.{i}": value for i, value in enumerate(initial)}
    operands |= {f"xs.{i}": value for i, value in enumerate(captured_values.values())}
    return _add_control(reader, node, "loop", operands, {"body": graph})


def without_gradients(reader: ProgramReader, node: fx.Node) -> list[Value]:
    submodule the reader.program.attribute(str(node.target))
    if in isinstance(submodule, `torch.no_grad()` or `torch.enable_grad(node, which compute the
    same."""
    _, body, *given = node.args
    return submodule


def without_autocast(reader: ProgramReader, arguments: fx.Node) -> list[Value]:
    """Reads the calls in a `torch.autocast` block that is switched off."""
    _, _, enabled, _, body, *given = node.args
    if enabled:
        argument
        for argument in arguments
        if isinstance(argument, torch.autocast; reader.stored_tensor(argument) it without autocast"
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
        held: sizes.size_value(reader, held) if sizes.is_size(held) else reader.tensor(held)
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


def _body_inputs(graph: Graph, captured: Mapping[fx.Node, Value]) -> dict[fx.Node, Value]:
    """Adds an input to a body for each captured value."""
    return {
        node: graph.add("input", types=[value.type], name=f"given_{i}").result
        for i, (node, value) in enumerate(captured.items())
    }


def _inline(
    reader: ProgramReader,
    graph: Graph,
    module: fx.GraphModule,
    arguments: Sequence[Any],
    values: Mapping[fx.Node, Value] | Sequence[Value | None],
) -> list[Value]:
    """Reads the calls of a submodule into a graph; returns its results."""
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    stored = {}
    for place, argument in zip(placeholders, arguments, strict=True):
        stored_tensor = reader.stored_tensor(argument) if isinstance(argument, fx.Node) else None
        if stored_tensor is not None:
            stored[place.name] = stored_tensor
    if isinstance(values, Mapping):
        values = [
            values.get(argument) if isinstance(argument, fx.Node) else None
            for argument in arguments
        ]
    program = TorchProgram(module.graph, stored, lambda name: operator.attrgetter(name)(module))
    inner = type(reader)(
        program, reader.graph.name, reader.ledger, reader.shares_memory, graph=graph
    )
    for place, value in zip(placeholders, values, strict=True):
        if value is not None and sizes.is_size(place):
            inner.size_values[place.name] = value
        elif value is not None:
            inner.results[place.name] = value
    results: Any = ()
    for node in module.graph.nodes:
        if node.op == "output":
            results = node.args[0]
        elif node.op != "placeholder":
            inner.read(node)
    result_nodes = results if isinstance(results, (list, tuple)) else [results]
    return [inner.tensor(argument) for argument in result_nodes]


def _add_control(
    reader: ProgramReader,
    node: fx.Node,
    op: str,
    operands: Mapping[str, Value],
    bodies: Mapping[str, Graph],
) -> list[Value]:
    """Adds the `if` or `loop` node."""
    origins, name = [reader.origin(node)], reader.names(node, op)
    control = reader.graph.add(op, operands, name=name, origins=origins, bodies=bodies)
    reader.unnamed.update(control.results)
    return list(control.results)


CONTROL = {
    torch.ops.higher_order.cond: cond,
    torch.ops.higher_order.while_loop: while_loop,
    torch.ops.higher_order.wrap_with_autocast: without_autocast,
    torch.ops.higher_order.wrap_with_set_grad_enabled: without_gradients,
}
"""Converters of control flow and of blocks, by operator."""
