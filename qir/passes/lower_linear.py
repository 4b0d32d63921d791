"""Rewrites `linear` in the matrix products that targets without it have.

    %y = linear(%x, %w, bias=%b) : 2x3xf32

becomes

    %y = gemm(%x, %w, c=%b) {trans_b = true} : 2x3xf32

and, where x has more axes than two,

    %t = transpose(%w) {perm = (1, 0)} : 4x3xf32
    %p = matmul(%x, %t) : 2x5x3xf32
    %y = add(%p, %b) : 2x5x3xf32
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.text import parse
from qir.ir.types import Array, TensorType
from qir.ledger import Change, Ledger
from qir.rewrite import Pass
from qir.rewrite.tolerance import REGROUPED
from qir.rewrite.watch import may


@dataclass(frozen=True)
class LowerLinear(Pass):
    """Rewrites float `linear` as `gemm`, or as `matmul` and `add` where x has more than two axes.

    Layers on quantized values, and planned ones, stay: their schemes name the slots of `linear`.
    """

    name = "lower-linear"
    tolerance = REGROUPED

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """A layer of two axes, one of three, and one without bias."""
        text = (
            "graph main as native {\n  %x = input() : 2x3xf32\n  %z = input() : 2x2x3xf32\n"
            "  %w = constant([[1.0, 2.0, 3.0], [-1.0, 0.5, 0.0]]) : 2x3xf32\n"
            "  %b = constant([0.5, -0.5]) : 2xf32\n"
            "  %p = linear(%x, %w, bias=%b) : 2x2xf32\n"
            "  %q = linear(%z, %w, bias=%b) : 2x2x2xf32\n"
            "  %r = linear(%z, %w) : 2x2x2xf32\n  output(p=%p, q=%q, r=%r)\n}\n"
        )
        yield cls(), parse(text)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            if node.op != "linear" or not _is_float(node) or not may(self.name, "lower", node):
                continue
            name = node.name
            graph.substitute(node, _lowered(graph, node))
            ledger.add(Change.REGROUPED, self.name, name, "a linear layer as a matrix product")
            count += 1
        return count + (graph.prune() if count else 0)


def _is_float(node: Node) -> bool:
    values = (*node.operands.values(), node.result)
    return not node.schemes and all(value.type.quant is None for value in values)


def _lowered(graph: Graph, node: Node) -> Value:
    """Adds the product in front of the layer; returns its result."""
    x, w, bias = (node.operands.get(slot) for slot in ("x", "w", "bias"))
    assert x is not None
    assert w is not None

    def add(op: str, operands: dict[str, Value], attrs: dict[str, bool] | None = None) -> Value:
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

    if x.type.rank == 2:
        operands = {"a": x, "b": w} | ({"c": bias} if bias is not None else {})
        return add("gemm", operands, {"trans_b": True})
    product = add("matmul", {"a": x, "b": _transposed(graph, node, w)})
    return product if bias is None else add("add", {"a": product, "b": bias})


def _transposed(graph: Graph, node: Node, w: Value) -> Value:
    """Returns the weights with their axes swapped; those of a constant as a constant."""
    if w.constant is None:
        perm = {"perm": (1, 0)}
        return graph.add("transpose", {"x": w}, perm, before=node, origins=node.origins).result
    data = w.constant.data.T.copy()
    held = Array(data, TensorType(data.shape, w.type.dtype))
    made = graph.constant(held, name=graph.fresh(f"{w.name}.transposed"), before=node)
    graph.set_origins(made.node, w.node.origins)
    graph.set_lineage(made, w.lineage.then("permuted(1, 0)"))
    return made
