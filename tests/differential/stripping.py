"""Models whose ops that only move elements have lost a pair: as other exporters write them."""

from __future__ import annotations

from dataclasses import replace

import onnx

from .models import Model
from .spelling import MOVES

# What onnxruntime moves quantize and dequantize over; Flatten stays where it is.
CROSSED = tuple(op for op in MOVES if op != "Flatten")


def without_pairs_before_moves(model: Model) -> Model:
    """Returns the model without the pairs that only a move reads: it quantizes after the move."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    nodes = proto.graph.node
    removed = set()
    for move in [n for n in nodes if n.op_type in CROSSED]:
        producers = {output: n for n in nodes for output in n.output}
        readers: dict[str, int] = {}
        for name in [i for n in nodes for i in n.input] + [o.name for o in proto.graph.output]:
            readers[name] = readers.get(name, 0) + 1
        after = producers.get(move.input[0])
        before = producers.get(after.input[0]) if after is not None else None
        if after is None or before is None or before.op_type != "QuantizeLinear":
            continue
        source = producers.get(before.input[0])
        if source is None or any(readers[n.output[0]] != 1 for n in (before, after)):
            continue
        removed.add(before.output[0])
        move.input[0] = before.input[0]
        nodes.remove(before)
        nodes.remove(after)
    integers = tuple(c for c in model.codes if c.name not in removed)
    return replace(model, proto=proto, codes=integers)
