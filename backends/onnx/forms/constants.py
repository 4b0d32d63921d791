"""Quantizes constants to types that QuantizeLinear lacks: ONNX holds the integers themselves."""

from __future__ import annotations

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.types import Array
from qir.ledger import Change, Ledger
from qir.reference.constants import compute_constants
from qir.reference.interpreter import profile_of

from ..writer import custom
from ..writer.writer import STEP
from . import qcdq

_SAID = "quantized when written: QuantizeLinear has no such type"


def quantized(graph: Graph, ledger: Ledger) -> int:
    """Replaces the quantize of a constant by integers where only its making needs a function.

    Weights of fake quantization leave out the lowest integer, which QuantizeLinear cannot.
    onnxruntime would inline a function, fold it to float and quantize that with its own scale.
    """
    count = sum(_stored(graph, node, ledger) for node in list(graph) if _only_made_so(node))
    if count:
        graph.prune()
    return count


def _only_made_so(node: Node) -> bool:
    """Returns whether a quantize of a constant needs a function, and reading its result needs
    none."""
    if node.op != "quantize" or node.operands["x"].constant is None or len(node.operands) > 1:
        return False
    kind = node.result.type
    quant = kind.quant
    if quant is None or qcdq.source(node) is not None or node.operands["x"].type.quant is not None:
        return False
    made, read = (custom.odd(quant, kind.shape, constant=held) for held in (False, True))
    return made and not read


def _stored(graph: Graph, node: Node, ledger: Ledger) -> bool:
    held, old = node.operands["x"].constant, node.result
    assert held is not None
    found = compute_constants(node, {"x": held.data}, profile_of(graph, node))
    if not found:
        return False
    name = old.name
    graph.rename(old, graph.fresh(f"{name}.made"))
    array = Array(np.ascontiguousarray(found[0]), old.type, name)
    made = graph.constant(array, name=name, before=node)
    graph.set_origins(made.node, node.origins)
    graph.set_lineage(made, old.lineage)
    graph.replace(old, made)
    ledger.add(Change.EXACT, STEP, name, _SAID)
    return True
