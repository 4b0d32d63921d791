"""Rewrites `linear` as `gemm`, for targets that have no linear layers of their own.

    %y = linear(%x, %w, bias=%b) : 2x3xf32

becomes

    %y = gemm(%x, %w, c=%b) {trans_b = true} : 2x3xf32

between reshapes where x has more than two axes, so that the layer stays one kernel with its bias.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from qir.capability import Capability
from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.rewrite import Pass, run_passes
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.journal import Journal
from qir.rewrite.runner.tolerance import REGROUPED


@dataclass(frozen=True)
class LowerLinear(Pass):
    """Rewrites float `linear` as `gemm`, between reshapes where x has more than two axes.

    Layers on quantized values, and planned ones, stay: their schemes name the slots of `linear`.
    """

    name = "lower-linear"
    tolerance = REGROUPED

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """A layer of two axes, one of three, and one without bias."""
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
            if node.op != "linear" or not _is_float(node) or not may(self.name, "lower", node):
                continue
            name = node.name
            graph.substitute(node, _product(graph, node))
            ledger.add(Change.REGROUPED, self.name, name, "a linear layer as a matrix product")
            count += 1
        return count + (graph.prune() if count else 0)


def lowered(
    graph: Graph, table: Capability, ledger: Ledger, *, journal: Journal | None = None
) -> Graph:
    """Returns a float graph in the ops of a target: one without `linear` has `gemm`."""
    if "linear" in table.ops or "gemm" not in table.ops:
        return graph
    return run_passes(graph, (LowerLinear(),), ledger, journal=journal)


def _is_float(node: Node) -> bool:
    values = (*node.operands.values(), node.result)
    if node.schemes or any(value.type.quant for value in values):
        return False
    return node.result.type.rank >= 2 and all(
        isinstance(size, int) for size in node.operands["w"].type.shape
    )


def _product(graph: Graph, node: Node) -> Value:
    """Adds the product before the layer; returns what replaces the layer's result."""
    x, w, bias = (node.operands.get(slot) for slot in ("x", "w", "bias"))
    assert x is not None
    assert w is not None
    operands = {"a": x, "b": w} | ({"c": bias} if bias is not None else {})
    if x.type.rank > 2:
        operands["a"] = _reshaped(
            graph, node, x, graph.constant(np.asarray([-1, w.type.shape[1]], np.int64), before=node)
        )
    product = _added(graph, node, "gemm", operands, {"trans_b": True})
    if x.type.rank == 2:
        return product
    graph.set_lineage(product, node.result.lineage.then("reshaped"))
    made = _reshaped(graph, node, product, _shape(graph, node, x))
    if made.type != node.result.type:  # sizes that are computed say less
        graph.set_type(made, node.result.type)
    return made


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
