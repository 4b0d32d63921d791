"""Ops that MXNet lacks, rewritten as those that it has before a graph is written."""

from __future__ import annotations

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node, Value

_LAYERS = {"lstm": ("h0", "c0"), "gru": ("h0",), "rnn": ("h0",)}
_SHAPED = frozenset(("unsqueeze", "squeeze", "reshape", "expand", "transpose", "cast", "flatten"))
"""Ops that make zeros of zeros."""


def rewritten(graph: Graph) -> None:
    """Makes products of einsums, and leaves out states of zeros; others stay as they are."""
    for node in list(graph):
        if node.op == "einsum":
            _product(graph, node)
        for slot in _LAYERS.get(node.op, ()):
            if slot in node.operands and _is_zeros(node.operands[slot]):
                graph.set_operand(node, slot, None)  # MXNet infers the batch of zeros
    graph.prune()


def _is_zeros(value: Value) -> bool:
    """Returns whether a value is zeros, of whatever shape the data have."""
    while value.node.op in _SHAPED:
        value = next(iter(value.node.operands.values()))
    if value.node.op == "constant_of_shape":
        held = value.node.attrs["value"]
        return held is None or not np.any(held.data)  # type: ignore[union-attr]
    return value.constant is not None and not np.any(value.constant.data)


def _product(graph: Graph, node: Node) -> None:
    """Makes a product of matrices of an einsum that is one, with axes that all may lead."""
    terms, arrow, made = str(node.attrs["equation"]).replace(" ", "").partition("->")
    parts = terms.split(",")
    if not arrow or len(parts) != 2 or "." in terms:
        return
    a, b = parts
    if any(len(set(each)) != len(each) for each in (a, b, made)):
        return
    lead = [c for c in a if c in b and c in made]
    ours, along, theirs = (
        [c for c in a if c not in b],
        [c for c in a if c in b and c not in made],
        [c for c in b if c not in a],
    )
    if (len(ours), len(along), len(theirs)) != (1, 1, 1) or set(made) != {*lead, *ours, *theirs}:
        return
    left = _turned(graph, node, node.operands["xs.0"], a, [*lead, *ours, *along])
    right = _turned(graph, node, node.operands["xs.1"], b, [*lead, *along, *theirs])
    result = graph.add("matmul", {"a": left, "b": right}, before=node, origins=node.origins).result
    result = _turned(graph, node, result, "".join((*lead, *ours, *theirs)), list(made))
    name = node.result.name
    graph.rename(node.result, graph.fresh(f"{name}.einsum"))
    graph.rename(result, name)
    graph.substitute(node, result)


def _turned(graph: Graph, node: Node, x: Value, axes: str, wanted: list[str]) -> Value:
    perm = tuple(axes.index(c) for c in wanted)
    if perm == tuple(range(len(perm))):
        return x
    made = graph.add("transpose", {"x": x}, {"perm": perm}, before=node, origins=node.origins)
    return made.result
