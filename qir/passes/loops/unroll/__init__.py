"""Unrolls loops of a known number of rounds, and recurrent layers.

    graph main as native {
      %x = input() : 2xf32
      %n = constant(2) : i64
      %y = loop(count=%n, vs.0=%x) : 2xf32 with body {
        %i = input() : i64
        %go = input() : bool
        %h = input() : 2xf32
        %r = add(%h, %h) : 2xf32
        output(go=%go, r=%r)
      }
      output(y=%y)
    }

By `unroll` it becomes:

    graph main as native {
      %x = input() : 2xf32
      %y.0.r = add(%x, %x) : 2xf32
      %y = add(%y.0.r, %y.0.r) : 2xf32
      output(y=%y)
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qir.errors import PassError
from qir.ir.graph import Graph
from qir.ir.inlining import inline
from qir.ir.node import Node, Value
from qir.ir.ops.layers import RECURRENT_OPS
from qir.ledger import Change, Ledger
from qir.passes.loops.unroll.layers import RunCount, layer_size, write_layer
from qir.rewrite.runner.contract import Pass
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.tolerance import REGROUPED

_CONTROL = ("loop", "scan")


@dataclass(frozen=True)
class Unroll(Pass):
    """Unrolls loops, scans, rnn, lstm and gru: each round or step becomes nodes of its own.

    - A loop is unrolled where its count is a constant and its condition is true throughout: none,
      a constant, or in the body what the body was given. Its numbers stay to the bit.
    - A scan is unrolled where the length of its sequences is known, as exactly.
    - A recurrent layer is unrolled where its steps are known, no sequence has a length of its own,
      nothing within it is quantized or planned, and its activations are ops. Its sums are rounded
      in each step then.
    - What has no round stays, and so do sequences of quantized values with several scales.

    What would make more than `limit` nodes is refused by an error; `keep_large` leaves it.
    """

    name = "unroll"
    tolerance = REGROUPED
    limit: int = 10_000
    loops: bool = True
    layers: bool = True
    keep_large: bool = False

    def __post_init__(self) -> None:
        self.require_least(limit=1)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        ops = (*(_CONTROL if self.loops else ()), *(RECURRENT_OPS if self.layers else ()))
        count = sum(self._unroll(graph, node, ledger) for node in list(graph) if node.op in ops)
        return count + (graph.prune() if count else 0)

    def _unroll(self, graph: Graph, node: Node, ledger: Ledger) -> bool:
        steps = _run_count(graph, node)
        if steps is None or not steps.count:
            return False
        name, op = node.name, node.op
        # Counted before anything is written: a loop of a million rounds would fill the memory
        # first.
        if steps.nodes > self.limit:
            if self.keep_large:
                return False
            message = f"unrolling {op} {name} of {steps.count} rounds makes {steps.nodes} nodes"
            remedy = "raise limit, or leave such alone with keep_large=true"
            raise PassError(f"{message}, the limit is {self.limit}; {remedy}")
        if not may(self.name, f"unroll {op}", node):
            return False
        results = (
            _write_rounds(graph, node, steps.count) if op in _CONTROL else write_layer(graph, node)
        )
        _replace_node(graph, node, results)
        change = Change.EXACT if op in _CONTROL else Change.REGROUPED
        ledger.add(change, self.name, name, f"{op} becomes its {steps.count} rounds")
        return True


def _run_count(graph: Graph, node: Node) -> RunCount | None:
    """Returns how often a node runs and how many nodes that makes; None if it cannot be
    unrolled."""
    # Plans and inner types are those of the whole node: a single round has no slot for them.
    if node.schemes or node.inner:
        return None
    if node.op in RECURRENT_OPS:
        return layer_size(node)
    body = graph.body(node)
    count = _loop_count(node, body) if node.op == "loop" else _scan_length(node)
    if count is None or not _can_slice_and_join(node, body):
        return None
    nodes = sum(len(part) for _, part in body.walk())
    # Each round adds its body, and a slice and a squeeze for each sequence.
    return RunCount(count, count * (nodes + 2 * len(node.variadic("ss"))))


def _loop_count(node: Node, body: Graph) -> int | None:
    """Returns how often a loop runs, where its condition is true throughout."""
    count_value, start = node.operands.get("count"), node.operands.get("cond")
    condition = next(iter(body.outputs.values()))
    # Exporters copy the condition of a loop that always goes on.
    while condition.node.op == "identity":
        condition = condition.node.operands["x"]
    if not (condition is body.inputs[1] or _is_constant_true(condition)) or not (
        start is None or _is_constant_true(start)
    ):
        return None
    array = None if count_value is None else count_value.constant
    return None if array is None else max(0, int(array.data.reshape(())))


def _is_constant_true(value: Value) -> bool:
    constant = value.constant
    return constant is not None and constant.contents.size == 1 and bool(constant.data.reshape(()))


def _scan_length(node: Node) -> int | None:
    values = node.variadic("ss")
    sizes = [v.type.shape[a] for v, a in zip(values, _axes(node, "axes", values), strict=True)]
    # All sequences of a scan have one length, so that one known size says all.
    return next((size for size in sizes if isinstance(size, int)), None)


def _axes(node: Node, name: str, values: Sequence[Value]) -> list[int]:
    """Returns the axis of each; none given: the first."""
    axes = node.attrs[name] if node.op == "scan" else ()
    listed = [a for a in axes if isinstance(a, int)] if isinstance(axes, tuple) else []
    return [a % v.type.rank for a, v in zip(listed or [0] * len(values), values, strict=True)]


def _reverse_flags(node: Node, name: str, count: int) -> list[bool]:
    reverse = node.attrs[name] if node.op == "scan" else ()
    return (
        [bool(flag) for flag in reverse]
        if isinstance(reverse, tuple) and reverse
        else [False] * count
    )


def _can_slice_and_join(node: Node, body: Graph) -> bool:
    """Returns whether sequences and parts are floats, or integers of one quantized type: these are
    cut and joined."""
    parts = node.results[len(node.variadic("vs")) :]
    quants = [value.type.quant for value in (*node.variadic("ss"), *parts)]
    return all(q is None or (q.granularity is None and not q.dynamic) for q in quants)


def _write_rounds(graph: Graph, node: Node, count: int) -> list[Value | None]:
    """Adds the rounds before a loop or scan; returns the values that replace its results."""
    body, carried = graph.body(node), node.variadic("vs")
    sequences, captured = node.variadic("ss"), node.variadic("xs")
    axes = _axes(node, "axes", sequences)
    is_reverse = _reverse_flags(node, "reverse", len(sequences))
    stacks: list[list[Value]] = [[] for _ in node.results[len(carried) :]]
    for k in range(count):
        entries = [
            _entry(graph, node, value, axis, count - 1 - k if reverse else k)
            for value, axis, reverse in zip(sequences, axes, is_reverse, strict=True)
        ]
        leading = _counter_and_condition(graph, node, body, k) if node.op == "loop" else []
        copies = inline(
            graph, body, [*leading, *carried, *entries, *captured], node, prefix=f"{node.name}.{k}."
        )
        # The body of a loop takes a counter and a condition more, and gives the condition alone.
        outputs = [copies[value] for value in body.outputs.values()][len(leading) // 2 :]
        carried = outputs[: len(carried)]
        for stack, value in zip(stacks, outputs[len(carried) :], strict=True):
            stack.append(value)
    parts = node.results[len(carried) :]
    out_axes = _axes(node, "out_axes", parts)
    out_back = _reverse_flags(node, "out_reverse", len(parts))
    joined = [
        _join_parts(graph, node, stack[::-1] if reverse else stack, axis) if part.uses else None
        for stack, part, axis, reverse in zip(stacks, parts, out_axes, out_back, strict=True)
    ]
    return [*carried, *joined]


def _counter_and_condition(graph: Graph, node: Node, body: Graph, index: int) -> list[Value]:
    """Returns the number of a round, and that it is to be run."""
    data = (np.asarray(index, np.int64), np.asarray(True))
    return [
        graph.constant(
            number.reshape((1,) * value.type.rank),
            name=graph.fresh(f"{node.name}.{index}.{value.name}"),
            before=node,
        )
        for number, value in zip(data, body.inputs, strict=False)
    ]


def _entry(graph: Graph, node: Node, value: Value, axis: int, index: int) -> Value:
    attrs = {"starts": (index,), "ends": (index + 1,), "axes": (axis,), "steps": (1,)}
    part = graph.add("slice", {"x": value}, attrs, before=node, origins=node.origins).result
    made = graph.add("squeeze", {"x": part}, {"axes": (axis,)}, before=node, origins=node.origins)
    return made.result


def _join_parts(graph: Graph, node: Node, parts: list[Value], axis: int) -> Value:
    wide = [
        graph.add("unsqueeze", {"x": part}, {"axes": (axis,)}, before=node, origins=node.origins)
        for part in parts
    ]
    operands = {f"xs.{i}": made.result for i, made in enumerate(wide)}
    if len(operands) == 1:
        return wide[0].result
    return graph.add("concat", operands, {"axis": axis}, before=node, origins=node.origins).result


def _replace_node(graph: Graph, node: Node, replacements: list[Value | None]) -> None:
    """Removes a node; its replacements get its uses, names and lineage."""
    operands = frozenset(node.operands.values())
    old_names = [(old.name, old.lineage) for old in node.results]
    for old, new in zip(node.results, replacements, strict=True):
        if new is not None:
            graph.replace(old, new)
    graph.remove(node)
    for (name, lineage), new in zip(old_names, replacements, strict=True):
        # A result may be an operand that every round hands on, which keeps its own name.
        if new is not None and new not in operands and not graph.has(name):
            graph.rename(new, name)
            graph.set_lineage(new, lineage)
