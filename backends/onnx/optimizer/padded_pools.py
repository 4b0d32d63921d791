"""Pads of zeros before pools, which onnxruntime's PadFusion would merge into the pool.

A pool ignores its own padding, and accepts less of it than a Pad. PadFusion skips a Pad whose third
input is present but has no name.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx

from qir.ir.node import Node
from qir.ir.types import Array
from qir.ledger import Change

from ..writer.writer import STEP, OnnxWriter

_POOL_OPS = ("max_pool", "avg_pool", "adaptive_")
_POOL_OPERATORS = ("MaxPool", "AveragePool")
_NEUTRAL_OPERANDS = {"add": 0, "sub": 0, "mul": 1, "div": 1}
"""Ops that the optimizer removes, with the operand that makes them identities."""


def must_stay(writer: OnnxWriter, node: Node) -> bool:
    """Returns whether a Pad of zeros must not be fused, and reports it."""
    pool = _pool_consumer(node)
    if pool is not None:
        reason = "its empty input keeps onnxruntime's optimizer from merging its zeros into"
        writer.ledger.add(Change.EXACT, STEP, node.name, f"{reason} {pool.name}")
    return pool is not None


def keep_pads(writer: OnnxWriter, node: Node, written: Iterable[onnx.NodeProto]) -> None:
    """Adds the empty third input to Pads of a foreign operator."""
    operands = {writer.name(v): v for v in node.variadic("xs")}
    for pad in written:
        modes = [a.s for a in pad.attribute if a.name == "mode"]
        # Below opset 11 pads are attributes, and there is no third input to add.
        if pad.op_type != "Pad" or modes not in ([], [b"constant"]) or writer.opset < 11:
            continue
        values = [operands.get(name) for name in pad.input[1:]]
        arrays = [v.constant for v in values if v is not None]
        # Pads with axes, computed operands or another value than 0 are none that PadFusion merges.
        if len(values) > 2 or len(arrays) < len(values) or not _are_zeros(arrays[1:]):
            continue
        if must_stay(writer, node):
            pad.input[2:] = [""]


def _are_zeros(arrays: Iterable[Array | None]) -> bool:
    return all(a is not None and not any(a.data.tobytes()) for a in arrays)


def _pool_consumer(node: Node) -> Node | None:
    """Returns the pool that reads a node's result, also through ops that the optimizer removes."""
    pending = [node]
    while pending:
        for use in pending.pop().results[0].uses:
            reader = use.node
            ops = [stage.op for stage in reader.stages] or [reader.op]
            foreign = reader.attrs.get("op") if reader.op == "foreign" else None
            if foreign in _POOL_OPERATORS or any(op.startswith(_POOL_OPS) for op in ops):
                return reader
            if _may_be_removed(reader):
                pending.append(reader)
    return None


def _may_be_removed(node: Node) -> bool:
    """Returns whether an op only moves elements, or may be an identity."""
    if node.op not in _NEUTRAL_OPERANDS:
        return node.op in ("cast", "transpose", "expand")
    constants = [v.constant for v in node.operands.values()]
    return any(
        a is not None and bool(np.all(a.data == _NEUTRAL_OPERANDS[node.op])) for a in constants
    )
