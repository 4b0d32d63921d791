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

MATRIX = 2
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
            if node not in graph:
                continue
            layer = node.op in self.ops and (node.op == "linear" or _has_row(node))
            layer = layer and _is_float(node)
            if not (layer or (self.products and _stacked(node))):
                continue
            if not may(self.name, "lower", node):
                continue
            last = node if layer else _with_row(node)
            name, made = last.name, _product(graph, node, last)
            graph.substitute(last, made)
            if layer:
                _activate_first(graph, made)
            ledger.add(Change.REGROUPED, self.name, name, "a linear layer as a matrix product")
            count += 1
        return count + (graph.prune() if count else 0)


def _has_row(node: Node) -> bool:
    """Returns whether a matmul is of data with a constant matrix, and has a bias of one axis."""
    weight, bias = node.operands["b"], node.operands.get("bias")
    turned = bool(node.attrs["trans_a"])
    if bias is None or weight.constant is None or turned:
        return False
    return weight.type.rank == 2 and bias.type.rank == 1


def _stacked(node: Node) -> bool:
    """Returns whether it is a product of stacks of rows with a constant matrix, neither
    transposed."""
    if node.op != "matmul" or node.attrs["trans_a"] or node.attrs["trans_b"] or node.stages:
        return False
    a, b = node.operands["a"], node.operands["b"]
    stacked = a.type.rank > MATRIX == b.type.rank and b.constant is not None
    plain = not any(v.type.quant for v in (*node.operands.values(), node.result))
    return stacked and plain and "bias" not in node.operands and a.constant is None


def _with_row(node: Node) -> Node:
    """Returns the op that adds a constant row to a product, or the layer itself."""
    behind = adds_row(node, real=True) if node.op == "matmul" else None
    if behind is None or behind.result.type != node.result.type:
        return node
    return behind if _row(node, behind).type.rank == 1 else node


def _row(node: Node, behind: Node) -> Value:
    return next(v for v in behind.operands.values() if v is not node.result)


def _is_float(node: Node) -> bool:
    values = (*node.operands.values(), node.result)
    if node.schemes or any(value.type.quant for value in values):
        return False
    return node.result.type.rank >= 2 and all(
        isinstance(size, int) for size in node.operands[slots(node)[1]].type.shape
    )


def _product(graph: Graph, node: Node, last: Node) -> Value:
    """Adds the product before the layer; returns what replaces the layer's result."""
    x, w, bias = operands(node)
    turned = node.op == "linear" or bool(node.attrs["trans_b"])
    bias = bias if last is node else _row(node, last)
    given = {"a": x, "b": w} | ({"c": bias} if bias is not None else {})
    if x.type.rank > MATRIX:
        rows = np.asarray([-1, w.type.shape[1 if turned else 0]], np.int64)
        given["a"] = _reshaped(graph, node, x, graph.constant(rows, before=node))
    product = _added(graph, last, "gemm", given, {"trans_b": turned})
    if x.type.rank == MATRIX:
        return product
    graph.set_lineage(product, last.result.lineage.then("reshaped"))
    made = _reshaped(graph, last, product, _shape(graph, last, x))
    if made.type != last.result.type:  # sizes that are computed say less
        graph.set_type(made, last.result.type)
    return made


def _activate_first(graph: Graph, made: Value) -> None:
    """Moves ops on each element before the reshape after a product: one kernel computes both."""
    while made.node.op == "reshape" and (use := made.only_use) is not None:
        node, back = use.node, made.node
        if not spec(node.op).traits.elementwise or len(node.operands) > 1 or node.schemes:
            return
        early = _added(graph, node, node.op, {use.slot: back.operands["x"]}, node.attrs)
        graph.set_lineage(early, node.result.lineage.then("reshaped"))
        operands = {"x": early, "shape": back.operands["shape"]}
        made = _added(graph, node, "reshape", operands, back.attrs)
        if made.type != node.result.type:
            graph.set_type(made, node.result.type)
        graph.substitute(node, made)


def _reshaped(graph: Graph, node: Node, value: Value, shape: Value) -> Value:
    """Adds a reshape, whose result has the same elements and so the same statistics."""
    made = _added(graph, node, "reshape", {"x": value, "shape": shape}, {"allow_zero": True})
    graph.set_lineage(made, value.lineage.then("reshaped"))
    return made


def _shape(graph: Graph, node: Node, x: Value) -> Value:
    """Returns the shape of the layer's result: constant where at most one size is open."""
    wanted = [size if isinstance(size, int) else -1 for size in node.result.type.shape]
    if wanted.count(-1) <= (0 not in wanted):
        return graph.constant(np.asarray(wanted, np.int64), before=node)
    front = _added(graph, node, "shape", {"x": x}, {"end": -1})
    last = graph.constant(np.asarray(wanted[-1:], np.int64), before=node)
    return _added(graph, node, "concat", {"xs.0": front, "xs.1": last}, {"axis": 0})


def _added(
    graph: Graph, node: Node, op: str, operands: Mapping[str, Value], attrs: Mapping[str, Attr]
) -> Value:
    """Adds an op before the layer, with its origins and profile."""
    made = graph.add(
        op,
        operands,
        attrs,
        name=graph.fresh(f"{node.name}.{op}"),
        before=node,
        origins=node.origins,
        profile=node.profile,
    )
    return made.result
