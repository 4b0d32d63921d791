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
from qir.ledger import Change, Ledger
from qir.passes.loops.unroll.layers import LAYERS, RunCount, layer_size, put_layer
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
        ops = (*(_CONTROL if self.loops else ()), *(LAYERS if self.layers else ()))
        count = sum(self._unroll(graph, node, ledger) for node in list(graph) if node.op in ops)
        return count + (graph.prune() if count else 0)

    def _unroll(self, graph: Graph, node: Node, ledger: Ledger) -> bool:
        steps = _size(graph, node)
        if steps is None or not steps.count:
            return False
        name, op = node.name, node.op
        if steps.nodes > self.limit:
            if self.keep_large:
                return False
            said = f"unrolling {op} {name} of {steps.count} rounds makes {steps.nodes} nodes"
            hint = "raise limit, or leave such alone with keep_large=true"
            raise PassError(f"{said}, the limit is {self.limit}; {hint}")
        if not may(self.name, f"unroll {op}", node):
            return False
        made = _rounds(graph, node, steps.count) if op in _CONTROL else put_layer(graph, node)
        _replace(graph, node, made)
        change = Change.EXACT if op in _CONTROL else Change.REGROUPED
        ledger.add(change, self.name, name, f"{op} becomes its {steps.count} rounds")
        return True


def _size(graph: Graph, node: Node) -> RunCount | None:
    """Returns how often it runs, and what that makes; None where nobody knows, or it cannot be
    said."""
    if node.schemes or node.inner:
        return None
    if node.op in LAYERS:
        return layer_size(node)
    body = graph.body(node)
    count = _count(node, body) if node.op == "loop" else _length(node)
    if count is None or not _moves(node, body):
        return None
    nodes = sum(len(each) for _, each in body.walk())
    return RunCount(count, count * (nodes + 2 * len(node.variadic("ss"))))


def _count(node: Node, body: Graph) -> int | None:
    """Returns how often a loop runs, where its condition is true throughout."""
    held, start = node.operands.get("count"), node.operands.get("cond")
    go = next(iter(body.outputs.values()))
    while go.node.op == "identity":
        go = go.node.operands["x"]
    if not (go is body.inputs[1] or _true(go)) or not (start is None or _true(start)):
        return None
    array = None if held is None else held.constant
    return None if array is None else max(0, int(array.data.reshape(())))


def _true(value: Value) -> bool:
    held = value.constant
    return held is not None and held.contents.size == 1 and bool(held.data.reshape(()))


def _length(node: Node) -> int | None:
    values = node.variadic("ss")
    sizes = [v.type.shape[a] for v, a in zip(values, _axes(node, "axes", values), strict=True)]
    return next((size for size in sizes if isinstance(size, int)), None)


def _axes(node: Node, name: str, values: Sequence[Value]) -> list[int]:
    """Returns the axis of each; none given: the first."""
    along = node.attrs[name] if node.op == "scan" else ()
    named = [a for a in along if isinstance(a, int)] if isinstance(along, tuple) else []
    return [a % v.type.rank for a, v in zip(named or [0] * len(values), values, strict=True)]


def _backwards(node: Node, name: str, count: int) -> list[bool]:
    turned = node.attrs[name] if node.op == "scan" else ()
    return [bool(t) for t in turned] if isinstance(turned, tuple) and turned else [False] * count


def _moves(node: Node, body: Graph) -> bool:
    """Returns whether sequences and parts are floats, or integers of one quantized type: these are
    cut and joined."""
    parts = node.results[len(node.variadic("vs")) :]
    quants = [value.type.quant for value in (*node.variadic("ss"), *parts)]
    return all(q is None or (q.granularity is None and not q.dynamic) for q in quants)


def _rounds(graph: Graph, node: Node, count: int) -> list[Value | None]:
    """Writes the rounds before a loop or scan; gives what stands for its results."""
    body, carried = graph.body(node), node.variadic("vs")
    sequences, given = node.variadic("ss"), node.variadic("xs")
    along = _axes(node, "axes", sequences)
    back = _backwards(node, "reverse", len(sequences))
    stacks: list[list[Value]] = [[] for _ in node.results[len(carried) :]]
    for k in range(count):
        entries = [
            _entry(graph, node, value, axis, count - 1 - k if turned else k)
            for value, axis, turned in zip(sequences, along, back, strict=True)
        ]
        first = _first(graph, node, body, k) if node.op == "loop" else []
        known = inline(
            graph, body, [*first, *carried, *entries, *given], node, prefix=f"{node.name}.{k}."
        )
        made = [known[value] for value in body.outputs.values()][len(first) // 2 :]
        carried = made[: len(carried)]
        for stack, value in zip(stacks, made[len(carried) :], strict=True):
            stack.append(value)
    parts = node.results[len(carried) :]
    out_axes = _axes(node, "out_axes", parts)
    out_back = _backwards(node, "out_reverse", len(parts))
    joined = [
        _joined(graph, node, stack[::-1] if turned else stack, axis) if part.uses else None
        for stack, part, axis, turned in zip(stacks, parts, out_axes, out_back, strict=True)
    ]
    return [*carried, *joined]


def _first(graph: Graph, node: Node, body: Graph, index: int) -> list[Value]:
    """Returns the number of a round, and that it is to be run."""
    data = (np.asarray(index, np.int64), np.asarray(True))
    return [
        graph.constant(
            one.reshape((1,) * value.type.rank),
            name=graph.fresh(f"{node.name}.{index}.{value.name}"),
            before=node,
        )
        for one, value in zip(data, body.inputs, strict=False)
    ]


def _entry(graph: Graph, node: Node, value: Value, axis: int, index: int) -> Value:
    attrs = {"starts": (index,), "ends": (index + 1,), "axes": (axis,), "steps": (1,)}
    part = graph.add("slice", {"x": value}, attrs, before=node, origins=node.origins).result
    made = graph.add("squeeze", {"x": part}, {"axes": (axis,)}, before=node, origins=node.origins)
    return made.result


def _joined(graph: Graph, node: Node, parts: list[Value], axis: int) -> Value:
    wide = [
        graph.add("unsqueeze", {"x": part}, {"axes": (axis,)}, before=node, origins=node.origins)
        for part in parts
    ]
    operands = {f"xs.{i}": made.result for i, made in enumerate(wide)}
    if len(operands) == 1:
        return wide[0].result
    return graph.add("concat", operands, {"axis": axis}, before=node, origins=node.origins).result


def _replace(graph: Graph, node: Node, made: list[Value | None]) -> None:
    """Gives uses, names and lineage to what comes instead, and takes the node out."""
    given = frozenset(node.operands.values())
    named = [(old.name, old.lineage) for old in node.results]
    for old, new in zip(node.results, made, strict=True):
        if new is not None:
            graph.replace(old, new)
    graph.remove(node)
    for (name, lineage), new in zip(named, made, strict=True):
        if new is not None and new not in given and not graph.has(name):
            graph.rename(new, name)
            graph.set_lineage(new, lineage)
