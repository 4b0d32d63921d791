"""Makes signed quantized values unsigned, as onnxruntime's QDQS8ToU8Transformer does."""

from __future__ import annotations

from dataclasses import replace

from qir.ir.dtype import I8, U8
from qir.ir.graph import Graph
from qir.ledger import Change
from qir.rewrite.preparation import Preparation

STEP = "unsigned_values"
"""The name of this step in profiles."""


def unsigned_values(graph: Graph, prepared: Preparation) -> int:
    """Makes integers unsigned that only one consumer reads; returns how many.

    The floats stay the same, but a kernel that computes on raw integers rounds elsewhere.
    """
    count = 0
    for node in graph:
        quant = node.result.type.quant if node.op == "quantize" else None
        if quant is None or quant.storage != I8 or quant.granularity is not None or quant.dynamic:
            continue
        use = node.result.only_use
        if use is None or use.node.op != "dequantize" or use.node.result.only_use is None:
            continue
        # (q + 128) - (zero + 128) = q - zero: the floats stay the same.
        low, high = quant.low + 128, quant.high + 128
        shifted = replace(
            quant,
            storage=U8,
            zero=(int(quant.zeros()) + 128,),
            bounds=(low, high) if quant.bounds else None,
        )
        graph.set_type(node.result, node.result.type.with_element(shifted))
        prepared.ledger.add(
            Change.REGROUPED, prepared.name, node.name, "its signed integers become unsigned"
        )
        count += 1
    return count
