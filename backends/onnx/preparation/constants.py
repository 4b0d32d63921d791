"""Folds constants, as a runtime does when it loads a model."""

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

from .float_parameters import takes_float

_MOST = 1 << 28
"""Elements of four bytes that a runtime computes at most: a GiB of them."""
_ONCE = frozenset(
    "add sub mul div relu clip min max leaky_relu prelu sqrt reciprocal floor ceil round square "
    "trunc abs neg sign where reduce_max reduce_min cast constant_of_shape".split()
)
"""Ops whose float values have one right float32, next to those that move elements."""


def fold_constants(graph: Graph, prepared: Preparation) -> int:
    """Computes what follows from constants, where a profile's runtime quantizes float ones.

    Quantized values stay, and so does what follows from a default. What the runtime computes in an
    order of its own may differ in the last bit, and quantized values made of it by one: the ledger
    says which.
    """
    if not takes_float(prepared.profile):
        return 0
    count, ledger = 0, prepared.ledger
    for node in list(graph):
        count += node.op == "shape" and _sized(graph, node, prepared)
    for node in list(graph):
        if node.bodies or not foldable(node, _MOST, _MOST) or _default(node):
            continue
        sure = node.op in _ONCE or spec(node.op).traits.value_preserving
        name, real = node.name, any(v.type.dtype.is_float for v in node.results)
        if fold(graph, node, ledger, prepared.name):
            count += 1
            if real and not sure:
                said = f"the runtime's {node.op} of constants may differ in the last bit"
                ledger.add(Change.UNVERIFIED, prepared.name, name, said)
    return count + (graph.prune() if count else 0)


def _sized(graph: Graph, node: Node, prepared: Preparation) -> bool:
    """Makes sizes constants, where all are known."""
    sizes = known_shape(node.operands["x"].type.shape)
    if sizes is None:
        return False
    start, end = (node.attrs[name] for name in ("start", "end"))
    assert isinstance(start, int)
    assert end is None or isinstance(end, int)
    name = node.result.name
    graph.rename(node.result, graph.fresh(f"{name}.folded"))
    held = Array.of(np.asarray(sizes[start:end], np.int64), name)
    graph.replace(node.result, graph.constant(held, name=name, before=node))
    prepared.ledger.add(Change.EXACT, prepared.name, name, "sizes are known")
    return True


def _default(node: Node) -> bool:
    return any(v.node.attrs["default"] for v in node.operands.values())
