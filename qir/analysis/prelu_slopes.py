"""PReLU kernels that multiply values above zero by something else than 1."""

from __future__ import annotations

import numpy as np

from qir.errors import GraphError
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.reference.constants import compute_constants, constant_value

_NEAR = 2
"""Steps that rounding in another place may move a result."""


def bent(graph: Graph, node: Node) -> str:
    """Returns how far a kernel is from the PReLU that it stands for, for the end of a ledger line.

    Some kernels take 1 as an integer of the type of the slopes, which holds it only where the
    largest slope is near 1. Empty where results are as rounding makes them.
    """
    quants = [v.type.quant for v in (*node.operands.values(), *node.results)]
    if node.op != "prelu" or node.stages or any(q is None or q.dynamic for q in quants):
        return ""
    x, slope, result = (q for q in quants if q is not None)
    if x.axis is not None or slope.axis is not None or result.axis is not None:
        return ""
    try:
        slopes = constant_value(graph, node.operands["slope"])
    except GraphError:
        return ""
    codes = np.arange(x.low, x.high + 1).astype(x.storage.carrier)
    codes = codes.reshape(-1, *(1,) * max(node.result.type.rank - 1, slopes.ndim))
    made = compute_constants(node, {"x": codes, "slope": slopes}, graph.profile)
    if not made:
        return ""
    reals = np.subtract(codes, x.zeros(), dtype=np.float64) * x.scales()
    by = np.subtract(slopes, slope.zeros(), dtype=np.float64) * slope.scales()
    wanted = np.where(reals > 0, reals, reals * by) / result.scales() + result.zeros()
    off = np.abs(made[0] - np.clip(np.rint(wanted), result.low, result.high))
    if not off.size or off.max() <= _NEAR:
        return ""
    return (
        ", which is a PReLU, and its kernel is not: the type of the slopes holds no 1 by which it "
        f"would multiply what is above zero; results differ by up to {int(off.max())} steps of "
        f"{result.low}..{result.high}; the float model, quantized again, has the right ones"
    )
