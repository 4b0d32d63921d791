"""Rewrites products with a constant matrix as `linear`, for targets that have no other layer.

    graph main as native {
      %x = input() : 2x2xf32
      %w = constant([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) : 2x3xf32
      %b = constant([0.5, 1.0, 1.5]) : 3xf32
      %y = gemm(%x, %w, c=%b) : 2x3xf32
      output(y=%y)
    }

By `raise-linear` it becomes:

    graph main as native {
      %x = input() : 2x2xf32
      %b = constant([0.5, 1.0, 1.5]) : 3xf32
      %w.t = constant([1.0, 4.0, 2.0, 5.0, 3.0, 6.0]) : 3x2xf32
      %y = linear(%x, %w.t, bias=%b) : 2x3xf32
      output(y=%y)
    }

A `matmul` with a constant matrix is rewritten likewise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.rewrite import Pass
from qir.rewrite.layer_weights import operands
from qir.rewrite.runner.filter import may

_MATRIX_RANK = 2
"""Axes of a matrix."""


@dataclass(frozen=True)
class RaiseLinear(Pass):
    """Rewrites float `gemm` and `matmul` with a constant matrix as `linear`."""

    name = "raise-linear"

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a product of matrices with a row, and one of a stack of rows."""
        text = (
            "graph main as native {\n  %x = input() : 2x3xf32\n  %z = input() : 2x2x3xf32\n"
            "  %w = constant([1.0, 2.0, 3.0, -1.0, 0.5, 0.0]) : 3x2xf32\n"
            "  %b = constant([0.5, -0.5]) : 2xf32\n"
            "  %p = gemm(%x, %w, c=%b) : 2x2xf32\n"
            "  %q = matmul(%z, %w) : 2x2x2xf32\n  output(p=%p, q=%q)\n}\n"
        )
        yield cls(), parse(text)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            if not _is_layer(node) or not may(self.name, "raise", node):
                continue
            # `linear` keeps one row for each output, as PyTorch and TensorFlow Lite store weights.
            x, weight, bias = operands(node)
            arguments = {"x": x, "w": _with_output_rows(graph, node, weight)}
            arguments |= {} if bias is None else {"bias": bias}
            layer = graph.add(
                "linear",
                arguments,
                types=[node.result.type],
                name=graph.fresh(node.name),
                before=node,
                origins=node.origins,
                profile=node.profile,
            )
            name = node.name
            graph.substitute(node, layer.result)
            ledger.add(Change.EXACT, self.name, name, "a product with a constant is a linear layer")
            count += 1
        return count + (graph.prune() if count else 0)


def _is_layer(node: Node) -> bool:
    """Returns whether a node computes what a linear layer does, on floats."""
    if node.op not in ("gemm", "matmul") or node.stages or node.schemes:
        return False
    if any(value.type.quant for value in (*node.operands.values(), node.result)):
        return False
    x, weight, bias = operands(node)
    # Two constants are folded, not raised.
    if weight.constant is None or x.constant is not None or weight.type.rank != _MATRIX_RANK:
        return False
    if node.attrs["trans_a"] or x.type.rank < _MATRIX_RANK:
        return False
    # linear has no factors.
    if node.op == "gemm" and not node.attrs["alpha"] == node.attrs["beta"] == 1.0:
        return False
    # gemm's `c` broadcasts to the whole matrix; the bias of a layer is a row.
    return bias is None or bias.type.shape == node.result.type.shape[-1:]


def _with_output_rows(graph: Graph, node: Node, weight: Value) -> Value:
    """Returns the matrix with one row for each output."""
    if node.attrs["trans_b"]:
        return weight
    assert weight.constant is not None
    transposed = np.ascontiguousarray(weight.constant.data.T)
    constant = graph.constant(transposed, name=graph.fresh(f"{weight.name}.t"), before=node)
    graph.set_lineage(constant, weight.lineage.then("transposed"))
    return constant
