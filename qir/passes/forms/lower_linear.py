"""Rewrites `linear`, and `matmul` with a bias, as `gemm`, for targets that have none of their own.

    graph main as native {
      %x = input() : 2x4xf32
      %w = constant(@w) : 3x4xf32
      %b = constant([0.5, 1.0, 1.5]) : 3xf32
      %y = linear(%x, %w, bias=%b) : 2x3xf32
      output(y=%y)
    }

By `lower-linear` it becomes:

    graph main as native {
      %x = input() : 2x4xf32
      %w = constant(@w) : 3x4xf32
      %b = constant([0.5, 1.0, 1.5]) : 3xf32
      %y = gemm(%x, %w, c=%b) {trans_b = true} : 2x3xf32
      output(y=%y)
    }

Reshapes stand around it where x has more than two axes, so that the layer stays one kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.rewrite import Pass
from qir.rewrite.layer_weights import operands, slots
from qir.rewrite.linear_layers import adds_row
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.tolerance import REGROUPED

MATRIX_RANK = 2
"""Axes of a matrix."""


@dataclass(frozen=True)
class LowerLinear(Pass):
    """Rewrites float `linear` as `gemm`, between reshapes where x has more than two axes.

    Likewise `matmul` of data with a matrix that is a constant, where it has a bias. Layers on
    quantized values, and planned ones, stay: their schemes name the slots of `linear`.
    """

    name = "lower-linear"
    tolerance = REGROUPED
    ops: tuple[str, ...] = ("linear", "matmul")
    """The ops to rewrite."""
    products: bool = False
    """Whether products of stacks of rows with a constant matrix, and the row that is added to them,
    become `gemm` too, for targets whose kernels take matrices alone."""

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a layer of two axes, one of three, and one without bias."""
        text = (
            "graph main as native {\n  %x = input() : 2x3xf32\n  %z = input() : 2x2x3xf32\n"
            "  %w = constant([1.0, 2.0, 3.0, -1.0, 0.5, 0.0]) : 2x3xf32\n"
            "  %b = constant([0.5, -0.5]) : 2xf32\n"
            "  %p = linear(%x, %w, bias=%b) : 2x2xf32\n"
            "  %q = linear(%z, %w, bias=%b) : 2x2x2xf32\n"
            "  %r = linear(%z, %w) : 2x2x2xf32\n  output(p=%p, q=%q, r=%r)\n}\n"
        )
        yield cls(), parse(text)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            # An activation that a layer before has moved away.
            if node not in graph:
                continue
            is_layer = node.op in self.ops and (node.op == "linear" or _is_biased_matmul(node))
            is_layer = is_layer and _is_float(node)
            if not (is_layer or (self.products and _is_stacked_product(node))):
                continue
            if not may(self.name, "lower", node):
                continue
            last = node if is_layer else _following_row_add(node)
            name, replacement = last.name, _add_product(graph, node, last)
            graph.substitute(last, replacement)
            if is_layer:
                _move_activations_first(graph, replacement)
            ledger.add(Change.REGROUPED, self.name, name, "a linear layer as a matrix product")
            count += 1
        return count + (graph.prune() if count else 0)


def _is_biased_matmul(node: Node) -> bool:
    """Returns whether a matmul is of data with a constant matrix, and has a bias of one axis."""
    weight, bias = node.operands["b"], node.operands.get("bias")
    transposed = bool(node.attrs["trans_a"])
    # Without a bias gemm gives nothing that matmul has not.
    if bias is None or weight.constant is None or transposed:
        return False
    return weight.type.rank == 2 and bias.type.rank == 1


def _is_stacked_product(node: Node) -> bool:
    """Returns whether it is a product of stacks of rows with a constant matrix, neither
    transposed."""
    if node.op != "matmul" or node.attrs["trans_a"] or node.attrs["trans_b"] or node.stages:
        return False
    a, b = node.operands["a"], node.operands["b"]
    is_stack = a.type.rank > MATRIX_RANK == b.type.rank and b.constant is not None
    is_float = not any(v.type.quant for v in (*node.operands.values(), node.result))
    return is_stack and is_float and "bias" not in node.operands and a.constant is None


def _following_row_add(node: Node) -> Node:
    """Returns the op that adds a constant row to a product, or the layer itself."""
    row_add = adds_row(node, real=True) if node.op == "matmul" else None
    if row_add is None or row_add.result.type != node.result.type:
        return node
    return row_add if _added_row(node, row_add).type.rank == 1 else node


def _added_row(node: Node, row_add: Node) -> Value:
    return next(v for v in row_add.operands.values() if v is not node.result)


def _is_float(node: Node) -> bool:
    values = (*node.operands.values(), node.result)
    if node.schemes or any(value.type.quant for value in values):
        return False
    return node.result.type.rank >= 2 and all(
        isinstance(size, int) for size in node.operands[slots(node)[1]].type.shape
    )


def _add_product(graph: Graph, node: Node, last: Node) -> Value:
    """Adds the product before the layer; returns what replaces the layer's result."""
    x, w, bias = operands(node)
    transposed = node.op == "linear" or bool(node.attrs["trans_b"])
    bias = bias if last is node else _added_row(node, last)
    arguments = {"a": x, "b": w} | ({"c": bias} if bias is not None else {})
    if x.type.rank > MATRIX_RANK:
        # gemm takes matrices: all axes but the last become rows, and come back after the product.
        rows = np.asarray([-1, w.type.shape[1 if transposed else 0]], np.int64)
        arguments["a"] = _add_reshape(graph, node, x, graph.constant(rows, before=node))
    product = _add_node(graph, last, "gemm", arguments, {"trans_b": transposed})
    if x.type.rank == MATRIX_RANK:
        return product
    graph.set_lineage(product, last.result.lineage.then("reshaped"))
    reshaped = _add_reshape(graph, last, product, _result_shape(graph, last, x))
    if reshaped.type != last.result.type:  # sizes that are computed say less
        graph.set_type(reshaped, last.result.type)
    return reshaped


def _move_activations_first(graph: Graph, result: Value) -> None:
    """Moves ops on each element before the reshape after a product: one kernel computes both."""
    while result.node.op == "reshape" and (use := result.only_use) is not None:
        node, reshape = use.node, result.node
        if not spec(node.op).traits.elementwise or len(node.operands) > 1 or node.schemes:
            return
        activated = _add_node(graph, node, node.op, {use.slot: reshape.operands["x"]}, node.attrs)
        graph.set_lineage(activated, node.result.lineage.then("reshaped"))
        operands = {"x": activated, "shape": reshape.operands["shape"]}
        result = _add_node(graph, node, "reshape", operands, reshape.attrs)
        if result.type != node.result.type:
            graph.set_type(result, node.result.type)
        graph.substitute(node, result)


def _add_reshape(graph: Graph, node: Node, value: Value, shape: Value) -> Value:
    """Adds a reshape, whose result has the same elements and so the same statistics."""
    # A size of 0 is meant as one here; without `allow_zero` it would copy the size of the operand.
    reshaped = _add_node(graph, node, "reshape", {"x": value, "shape": shape}, {"allow_zero": True})
    graph.set_lineage(reshaped, value.lineage.then("reshaped"))
    return reshaped


def _result_shape(graph: Graph, node: Node, x: Value) -> Value:
    """Returns the shape of the layer's result: constant where at most one size is open."""
    sizes = [size if isinstance(size, int) else -1 for size in node.result.type.shape]
    # A reshape infers one size; next to a size of 0 any size would fit, so it infers none.
    if sizes.count(-1) <= (0 not in sizes):
        return graph.constant(np.asarray(sizes, np.int64), before=node)
    # Several open sizes are read while the model runs: rows keep theirs, the last one is known.
    leading = _add_node(graph, node, "shape", {"x": x}, {"end": -1})
    last_size = graph.constant(np.asarray(sizes[-1:], np.int64), before=node)
    return _add_node(graph, node, "concat", {"xs.0": leading, "xs.1": last_size}, {"axis": 0})


def _add_node(
    graph: Graph, node: Node, op: str, operands: Mapping[str, Value], attrs: Mapping[str, Attr]
) -> Value:
    """Adds an op before the layer, with its origins and profile."""
    added = graph.add(
        op,
        operands,
        attrs,
        name=graph.fresh(f"{node.name}.{op}"),
        before=node,
        origins=node.origins,
        profile=node.profile,
    )
    return added.result
