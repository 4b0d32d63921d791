"""Which axis of a layer's data holds the channels that it sums over."""

from __future__ import annotations

from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.ops.layers import LAYERS, MATRIX_PRODUCTS


def summed_axis(node: Node, data: Value) -> int | None:
    """Returns the axis of its data that a layer sums over; None where its weights are along none.

    Only `data.type` is read, so that it may be any value of that rank.
    """
    rank = data.type.rank
    if node.op in MATRIX_PRODUCTS:
        return rank - 1 if node.attrs.get("trans_a") is not True and rank > 1 else None
    return rank - 1 if node.attrs.get("layout") == "NHWC" else 1


def layer_data(node: Node) -> Value | None:
    """Returns the data of a layer whose weights are constants; None for other nodes."""
    if node.op not in LAYERS:
        return None
    traits = spec(node.op).traits
    weight = node.operands.get(traits.weight or "w")
    return None if weight is None or weight.constant is None else node.operands[traits.data]
