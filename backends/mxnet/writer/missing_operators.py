"""Replaces ops that MXNet lacks by ops that it has."""

from __future__ import annotations

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node, Value

_STATE_SLOTS = {"lstm": ("h0", "c0"), "gru": ("h0",), "rnn": ("h0",)}
"""The initial states of recurrent layers."""
_ZERO_PRESERVING_OPS = frozenset(
    "unsqueeze squeeze reshape expand transpose cast flatten slice gather split".split()
)
"""Ops of which the result is zeros if the operand is."""


def replace_missing_ops(graph: Graph) -> None:
    """Replaces einsums by products, and removes initial states of zeros; other ops stay."""
    for node in list(graph):
        if node.op == "einsum":
            _einsum_to_matmul(graph, node)
        for slot in _STATE_SLOTS.get(node.op, ()):
            if slot in node.operands and _is_zeros(node.operands[slot]):
                graph.set_operand(node, slot, None)  # MXNet infers the batch of zeros
    graph.prune()


def _is_zeros(value: Value) -> bool:
    """Returns whether a value is zeros, whatever its shape."""
    while value.node.op in _ZERO_PRESERVING_OPS:
        value = next(iter(value.node.operands.values()))
    if value.node.op == "constant_of_shape":
        fill = value.node.attrs["value"]
        return fill is None or not np.any(fill.data)  # type: ignore[union-attr]
    return value.constant is not None and not np.any(value.constant.data)


def _einsum_to_matmul(graph: Graph, node: Node) -> None:
    """Replaces an einsum by a matmul with leading batch axes, if it is one."""
    terms, arrow, result_axes = str(node.attrs["equation"]).replace(" ", "").partition("->")
    parts = terms.split(",")
    if not arrow or len(parts) != 2 or "." in terms:
        return
    a, b = parts
    # A letter twice in one term is a diagonal.
    if any(len(set(axes)) != len(axes) for axes in (a, b, result_axes)):
        return
    # Letters in all three terms are batch axes; those of both operands alone are summed over.
    batch_axes = [c for c in a if c in b and c in result_axes]
    left_axes, summed_axes, right_axes = (
        [c for c in a if c not in b],
        [c for c in a if c in b and c not in result_axes],
        [c for c in b if c not in a],
    )
    if (len(left_axes), len(summed_axes), len(right_axes)) != (1, 1, 1) or set(result_axes) != {
        *batch_axes,
        *left_axes,
        *right_axes,
    }:
        return
    left = _transposed(
        graph, node, node.operands["xs.0"], a, [*batch_axes, *left_axes, *summed_axes]
    )
    right = _transposed(
        graph, node, node.operands["xs.1"], b, [*batch_axes, *summed_axes, *right_axes]
    )
    result = graph.add("matmul", {"a": left, "b": right}, before=node, origins=node.origins).result
    result = _transposed(
        graph, node, result, "".join((*batch_axes, *left_axes, *right_axes)), list(result_axes)
    )
    name = node.result.name
    graph.rename(node.result, graph.fresh(f"{name}.einsum"))
    graph.rename(result, name)
    graph.substitute(node, result)


def _transposed(graph: Graph, node: Node, x: Value, axes: str, order: list[str]) -> Value:
    perm = tuple(axes.index(c) for c in order)
    if perm == tuple(range(len(perm))):
        return x
    transpose = graph.add("transpose", {"x": x}, {"perm": perm}, before=node, origins=node.origins)
    return transpose.result
