"""Average pools whose padding differs before and after and is not counted, as TensorFlow's `SAME`.

PyTorch's pools pad both sides alike. In float such a mean is written as a padded one times gains;
quantized values have no such product.
"""

from __future__ import annotations

from qir.ir.node import Node

UNEVEN = "PyTorch has no quantized average pool that leaves uneven padding out of its means"


def is_uneven_average(node: Node) -> bool:
    """Returns whether an op is an average pool with such padding."""
    pads = node.attrs.get("pad")
    if not isinstance(pads, tuple) or node.attrs.get("count_pad") is not False:
        return False
    half = len(pads) // 2
    return pads[:half] != pads[half:]
