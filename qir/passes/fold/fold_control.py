"""Inlines the body of a branch or loop that runs exactly once, and removes one that never runs.

    graph main as native {
      %x = input() : 2xf32
      %p = constant(true) : bool
      %y = if(%p, xs.0=%x) : 2xf32 with then {
        %h = input() : 2xf32
        %r = relu(%h) : 2xf32
        output(r=%r)
      } with else {
        %h = input() : 2xf32
        output(h=%h)
      }
      output(y=%y)
    }

By `fold-control` it becomes:

    graph main as native {
      %x = input() : 2xf32
      %y = relu(%x) : 2xf32
      output(y=%y)
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qir.errors import QirError
from qir.ir.calls import infer_result_types
from qir.ir.graph import Graph
from qir.ir.inlining import inline
from qir.ir.node import Node, Value
from qir.ir.ops.layers import CONTROL_FLOW_OPS
from qir.ir.types import Array, TensorType
from qir.ledger import Change, Ledger
from qir.rewrite import Pass
from qir.rewrite.runner.filter import may


@dataclass(frozen=True)
class FoldControl(Pass):
    """Inlines the branch of a constant `if`, and the body of a loop of no round or one.

    How often a loop runs is known by a constant count of 0 or 1, by a constant condition before
    it, or by one that its body gives; a scan's by the length of its sequences. What would make a
    size unknown that was known stays.
    """

    name = "fold-control"

    def run(self, graph: Graph, ledger: Ledger) -> int:
        return self.fold(graph, [node for node in graph if node.op in CONTROL_FLOW_OPS], ledger)

    def fold(self, graph: Graph, todo: list[Node], ledger: Ledger) -> int:
        """Folds these control ops, and those that are inlined with them."""
        count = 0
        # Inlined bodies may hold control ops whose conditions are known only now.
        while todo:
            node = todo.pop()
            flow = _known_flow(graph, node)
            if flow is None or not may(self.name, node.op, node):
                continue
            name, op = node.name, node.op
            todo += flow.replace_node(graph, node)
            ledger.add(Change.EXACT, self.name, name, f"{op} {flow.description}")
            count += 1
        return count + (graph.prune() if count else 0)


@dataclass(frozen=True)
class _KnownFlow:
    """What a control op is known to do: run a body once, or none."""

    description: str
    body: Graph | None
    axes: tuple[int, ...]
    """Where each of the parts is stacked."""
    entries: tuple[int, ...] = ()
    """Along which axis a sequence has its one entry."""

    def replace_node(self, graph: Graph, node: Node) -> list[Node]:
        """Replaces the node by its results; returns the control ops that were inlined."""
        operands = frozenset(node.operands.values())
        copies: dict[Value, Value] = {}
        replacements = (
            self._without_rounds(graph, node)
            if self.body is None
            else self._inlined(graph, node, self.body, copies)
        )
        old_names = [(old.name, old.lineage) for old in node.results]
        for old, new in zip(node.results, replacements, strict=True):
            graph.replace(old, new)
        graph.remove(node)
        for (name, lineage), new in zip(old_names, replacements, strict=True):
            # A value that was an operand of the node keeps its own name.
            if new not in operands and not graph.has(name):
                graph.rename(new, name)
                graph.set_lineage(new, lineage)
        return list(dict.fromkeys(v.node for v in copies.values() if v.node.op in CONTROL_FLOW_OPS))

    def _without_rounds(self, graph: Graph, node: Node) -> list[Value]:
        carried = node.variadic("vs")
        parts = node.results[len(carried) :]
        results = list(carried)
        for value, axis in zip(parts, self.axes, strict=True):
            data = np.zeros(_empty_shape(value.type, axis), value.type.dtype.carrier)
            tensor_type = TensorType(data.shape, value.type.element)
            results.append(graph.constant(Array(data, tensor_type, value.name), before=node))
        return results

    def _inlined(
        self, graph: Graph, node: Node, body: Graph, copies: dict[Value, Value]
    ) -> list[Value]:
        carried, captured = node.variadic("vs"), node.variadic("xs")
        leading: list[Value] = []
        if node.op == "loop":
            # A loop's body reads the number of the round and its condition: 0 and true in the first
            # round.
            for data, value in zip((np.int64(0), np.bool_(True)), body.inputs, strict=False):
                ones = np.asarray(data).reshape((1,) * value.type.rank)
                leading.append(graph.constant(ones, name=value.name, before=node))
        entries = [
            graph.add("squeeze", {"x": value}, {"axes": (axis,)}, before=node).result
            for value, axis in zip(node.variadic("ss"), self.entries, strict=True)
        ]
        copies |= inline(graph, body, [*leading, *carried, *entries, *captured], node)
        outputs = [copies[value] for value in body.outputs.values()]
        # The first output of a loop's body is its condition, which nobody reads any more.
        outputs = outputs[1:] if node.op == "loop" else outputs
        carried_count = len(outputs) - len(self.axes)
        stacked = [
            graph.add("unsqueeze", {"x": value}, {"axes": (axis,)}, before=node).result
            for value, axis in zip(outputs[carried_count:], self.axes, strict=True)
        ]
        return [*outputs[:carried_count], *stacked]


def _empty_shape(tensor_type: TensorType, axis: int) -> tuple[int, ...]:
    """Returns the shape of no parts: what is not known is 0, as the interpreter has it."""
    sizes = [d if isinstance(d, int) else 0 for d in tensor_type.shape]
    sizes[axis] = 0
    return tuple(sizes)


def _known_flow(graph: Graph, node: Node) -> _KnownFlow | None:
    """Returns what a control op does, if that is known and can be written without it."""
    if node not in graph or node.schemes:
        return None
    if node.op == "if":
        cond = _constant_truth(node.operands["cond"])
        if cond is None:
            return None
        flow = _KnownFlow(
            f"takes {str(cond).lower()}", graph.body(node, "then" if cond else "else"), ()
        )
    else:
        body = graph.body(node)
        rounds = _known_rounds(node, body) if node.op == "loop" else _known_scan_length(node)
        if rounds is None:
            return None
        carried = len(node.variadic("vs"))
        axes = _axes(node, "out_axes", node.results[carried:]) if node.op == "scan" else None
        axes = axes if axes is not None else (0,) * (len(node.results) - carried)
        entries = _axes(node, "axes", node.variadic("ss")) if node.op == "scan" else ()
        description = f"has {rounds} round{'s' * (rounds != 1)}"
        flow = _KnownFlow(description, body if rounds else None, axes, entries)
    return flow if _keeps_known_sizes(node, flow) else None


def _constant_truth(value: Value) -> bool | None:
    array = value.constant
    return bool(array.data.reshape(())) if array is not None and array.contents.size == 1 else None


def _known_rounds(node: Node, body: Graph) -> int | None:
    """Returns how often a loop runs, where that is never or once."""
    count_value = node.operands.get("count")
    array = count_value.constant if count_value is not None else None
    count = int(array.data.reshape(())) if array is not None and array.contents.size == 1 else None
    cond = _constant_truth(node.operands["cond"]) if "cond" in node.operands else True
    if cond is False or (count is not None and count < 1):
        return 0
    # A computed count may be 0, and then not even the first round runs.
    runs_first = cond is True and (count_value is None or count is not None)
    # A loop ends by its count, or by the condition that its body gives first.
    stops_after_first = count == 1 or _constant_truth(next(iter(body.outputs.values()))) is False
    return 1 if runs_first and stops_after_first else None


def _known_scan_length(node: Node) -> int | None:
    """Returns how many entries a scan runs over, where that is 0 or 1."""
    values = node.variadic("ss")
    sizes = {v.type.shape[a] for v, a in zip(values, _axes(node, "axes", values), strict=True)}
    return next((size for size in (0, 1) if sizes == {size}), None)


def _axes(node: Node, name: str, values: Sequence[Value]) -> tuple[int, ...]:
    axes = node.attrs[name] or (0,) * len(values)
    assert isinstance(axes, tuple)
    return tuple(
        axis % value.type.rank
        for axis, value in zip(axes, values, strict=True)
        if isinstance(axis, int)
    )


def _keeps_known_sizes(node: Node, flow: _KnownFlow) -> bool:
    """Returns whether the replacements have types and lose no known size."""
    types = _replacement_types(node, flow)
    return types is not None and all(
        new_type.element == old.type.element
        and all(a == b or b is None for a, b in zip(new_type.shape, old.type.shape, strict=True))
        for new_type, old in zip(types, node.results, strict=True)
    )


def _replacement_types(node: Node, flow: _KnownFlow) -> list[TensorType] | None:
    """Returns the types of the replacements; None if a quantized type prevents them."""
    carried = node.variadic("vs")
    if flow.body is None:
        parts = node.results[len(carried) :]
        if any(value.type.quant for value in parts):
            return None
        shapes = (_empty_shape(v.type, a) for v, a in zip(parts, flow.axes, strict=True))
        empty_types = [v.type.with_shape(shape) for v, shape in zip(parts, shapes, strict=True)]
        return [*(value.type for value in carried), *empty_types]
    outputs = list(flow.body.outputs.values())[node.op == "loop" :]
    carried_count = len(outputs) - len(flow.axes)
    input_types = dict(zip(flow.body.inputs, _body_input_types(node), strict=True))
    types = [input_types.get(value, value.type) or value.type for value in outputs[:carried_count]]
    try:
        for value, axis in zip(node.variadic("ss"), flow.entries, strict=True):
            infer_result_types("squeeze", {"x": value}, {"axes": (axis,)})
        for value, axis in zip(outputs[carried_count:], flow.axes, strict=True):
            types += infer_result_types("unsqueeze", {"x": value}, {"axes": (axis,)})
    except QirError:
        return None
    return types


def _body_input_types(node: Node) -> list[TensorType | None]:
    """Returns the types of the body's inputs; None for those that are no operand of the node."""
    counters: list[TensorType | None] = [None] * (2 if node.op == "loop" else 0)
    carried = [value.type for value in node.variadic("vs")]
    entries: list[TensorType | None] = [None] * len(node.variadic("ss"))
    return [*counters, *carried, *entries, *(value.type for value in node.variadic("xs"))]
