"""PReLU kernels that multiply values above zero by something else than 1."""

from __future__ import annotations

import numpy as np

from qir.errors import GraphError
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.reference.constants import compute_constants, constant_value

_ROUNDING_STEPS = 2
"""Steps that a different order of rounding may move a result."""


def prelu_error_note(graph: Graph, node: Node) -> str:
    """Returns the end of a ledger line that says how far a kernel is from the float PReLU.

    Some kernels multiply positive values by 1 in the quantized type of the slopes, which holds 1
    only if the largest slope is near 1. Empty where only rounding differs.
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
    integers = np.arange(x.low, x.high + 1).astype(x.storage.carrier)
    integers = integers.reshape(-1, *(1,) * max(node.result.type.rank - 1, slopes.ndim))
    computed = compute_constants(node, {"x": integers, "slope": slopes}, graph.profile)
    if not computed:
        return ""
    floats = np.subtract(integers, x.zeros(), dtype=np.float64) * x.scales()
    by = np.subtract(slopes, slope.zeros(), dtype=np.float64) * slope.scales()
    wanted = np.where(floats > 0, floats, floats * by) / result.scales() + result.zeros()
    off = np.abs(computed[0] - np.clip(np.rint(wanted), result.low, result.high))
    if not off.size or off.max() <= _ROUNDING_STEPS:
        return ""
    return (
        ", which is a PReLU, and its kernel is not: the type of the slopes holds no 1 by which it "
        f"would multiply what is above zero; results differ by up to {int(off.max())} steps of "
        f"{result.low}..{result.high}; the float model, quantized again, has the right ones"
    )
