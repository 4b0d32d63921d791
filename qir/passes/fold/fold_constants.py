"""Replaces what depends on constants only by its result.

    graph main as native {
      %x = input() : 2xf32
      %a = constant([0.5, 1.0]) : 2xf32
      %b = constant([1.5, 2.0]) : 2xf32
      %c = mul(%a, %b) : 2xf32
      %y = add(%x, %c) : 2xf32
      output(y=%y)
    }

By `fold-constants` it becomes:

    graph main as native {
      %x = input() : 2xf32
      %c = constant([0.75, 2.0]) : 2xf32
      %y = add(%x, %c) : 2xf32
      output(y=%y)
    }
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qir.errors import QirError
from qir.ir.calls import infer_result_types
from qir.ir.dims import known_shape
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.quantized_ops import NON_COMPUTE_OPS
from qir.ir.types import Array, TensorType
from qir.ledger import Change, Ledger
from qir.reference.interpreter import rules_of, run_node
from qir.rewrite import Pass
from qir.rewrite.foreign_ops import read_again
from qir.rewrite.runner.filter import may


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Replaces float ops on constants by their results.

    Ops on quantized values stay: a dequantized weight is what makes a model quantized. So does what
    has more than `limit` elements, or `growth` more than the constants that it is made of. Numbers
    that are read off a type become constants too. A foreign op with constant operands is read
    again.
    """

    name = "fold-constants"
    limit: int = 1 << 26
    """Elements of a folded result; ops with larger results stay."""
    growth: int = 1 << 22
    """Elements that a result may have more than its operands, so that files do not grow much."""

    def __post_init__(self) -> None:
        self.require_least(limit=0, growth=0)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            if foldable(node, self.limit, self.growth) or _reads_static_parameters(node):
                count += fold(graph, node, ledger, self.name)
            elif node.op == "foreign":
                count += bool(read_again(graph, node, ledger, self.name))
        return count + (graph.prune() if count else 0)


def foldable(node: Node, limit: int, growth: int) -> bool:
    """Returns whether all operands of an op are float constants, and its result is small enough."""
    if node.op in NON_COMPUTE_OPS or not node.operands or not node.results:
        return False
    if any(v.constant is None or v.type.quant for v in node.operands.values()):
        return False
    if any(v.type.quant for v in node.results):
        return False
    # By value, so that an operand in two slots counts once.
    operand_sizes = {v: v.constant.contents.size for v in node.operands.values() if v.constant}
    return _element_count(node) <= min(limit, sum(operand_sizes.values()) + growth)


def fold(graph: Graph, node: Node, ledger: Ledger, step: str) -> bool:
    """Replaces a node by its computed results; returns whether it did.

    A node that cannot be computed stays, without an error: it may never be run.
    """
    operands = {s: v.constant.data for s, v in node.operands.items() if v.constant}
    if node.op == "qparams":
        # `qparams` reads the type alone, so any element will do.
        operands["x"] = np.zeros((), node.operands["x"].type.dtype.carrier)  # of no account
    try:
        results = run_node(node, operands, rules_of(graph, node))
    except QirError:
        return False
    if not may(step, f"compute {node.op}", node):
        return False
    for old, data in zip(node.results, results, strict=True):
        tensor_type = TensorType(data.shape, old.type.dtype)
        # The constant takes over the name, so that outputs and statistics still find it.
        name = old.name
        graph.rename(old, graph.fresh(f"{name}.folded"))
        elements = Array(np.asarray(data, order="C"), tensor_type, name)
        value = graph.constant(elements, name=name, before=node)
        graph.set_origins(value.node, node.origins)
        graph.set_lineage(value, old.lineage)
        graph.replace(old, value)
        ledger.add(Change.EXACT, step, name, f"{node.op} of constants computed")
    return True


def _reads_static_parameters(node: Node) -> bool:
    """Returns whether it reads numbers that are in a type."""
    if node.op != "qparams" or not node.used or len(node.operands) > 1:
        return False
    quant = node.operands["x"].type.quant
    return quant is not None and not quant.dynamic


def _element_count(node: Node) -> float:
    """Returns how many elements the results have; infinite where nobody knows."""
    shapes = [known_shape(value.type.shape) for value in node.results]
    # A type may state less than the op's rule infers from constant operands.
    if None in shapes and not node.stages:
        types = infer_result_types(node.op, node.operands, node.attrs, node.bodies)
        shapes = [known_shape(result_type.shape) for result_type in types]
    return sum(math.inf if sizes is None else math.prod(sizes) for sizes in shapes)
