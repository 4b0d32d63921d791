"""Folds constants, as onnxruntime does when it loads a model."""

from __future__ import annotations

import numpy as np

from qir.ir.dims import known_shape
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ir.types import Array
from qir.ledger import Change
from qir.passes.fold.fold_constants import fold, foldable
from qir.rewrite.preparation import Preparation

from .float_parameters import quantizes_float_constants

MAX_ELEMENTS = 1 << 28
"""The runtime computes at most so many elements of four bytes: a GiB."""
_EXACT_OPS = frozenset(
    "add sub mul div relu clip min max leaky_relu prelu sqrt reciprocal floor ceil round square "
    "trunc abs neg sign where reduce_max reduce_min cast constant_of_shape".split()
)
"""Ops whose float results are rounded once, so that every runtime computes the same.

The trait `value_preserving` has those that move elements.
"""


def fold_constants(graph: Graph, prepared: Preparation) -> int:
    """Folds what depends on constants alone, if the profile's runtime quantizes float constants.

    Quantized values stay, and so does what depends on a default. Ops that the runtime computes in
    an order of its own may differ in the last bit, and their quantized values by one: the ledger
    reports these. Returns how many nodes were folded.
    """
    if not quantizes_float_constants(prepared.profile):
        return 0
    count, ledger = 0, prepared.ledger
    # Shapes first, so that what is computed from sizes can be folded in the second loop.
    for node in list(graph):
        count += node.op == "shape" and _fold_shape(graph, node, prepared)
    for node in list(graph):
        if node.bodies or not foldable(node, MAX_ELEMENTS, MAX_ELEMENTS) or _reads_default(node):
            continue
        exact = node.op in _EXACT_OPS or spec(node.op).traits.value_preserving
        name, has_floats = node.name, any(v.type.dtype.is_float for v in node.results)
        if fold(graph, node, ledger, prepared.name):
            count += 1
            if has_floats and not exact:
                reason = f"the runtime's {node.op} of constants may differ in the last bit"
                ledger.add(Change.UNVERIFIED, prepared.name, name, reason)
    return count + (graph.prune() if count else 0)


def _fold_shape(graph: Graph, node: Node, prepared: Preparation) -> bool:
    """Replaces a shape whose sizes are all known by a constant."""
    sizes = known_shape(node.operands["x"].type.shape)
    if sizes is None:
        return False
    start, end = (node.attrs[name] for name in ("start", "end"))
    assert isinstance(start, int)
    assert end is None or isinstance(end, int)
    # The folded constant takes the name over; the old value is renamed out of the way.
    name = node.result.name
    graph.rename(node.result, graph.fresh(f"{name}.folded"))
    constant = Array.of(np.asarray(sizes[start:end], np.int64), name)
    graph.replace(node.result, graph.constant(constant, name=name, before=node))
    prepared.ledger.add(Change.EXACT, prepared.name, name, "sizes are known")
    return True


def _reads_default(node: Node) -> bool:
    return any(v.node.attrs["default"] for v in node.operands.values())
