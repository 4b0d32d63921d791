"""Pads of zeros before pools, which onnxruntime's optimizer would merge into the pool.

A pool passes its own padding over, and takes less of it than a Pad may have. The optimizer leaves a
Pad alone whose third input is there and names nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx

from qir.ir.node import Node
from qir.ir.types import Array
from qir.ledger import Change

from ..writer.writer import STEP, OnnxWriter

_POOLS = ("max_pool", "avg_pool", "adaptive_")
_POOLED = ("MaxPool", "AveragePool")
_GONE = {"add": 0, "sub": 0, "mul": 1, "div": 1}
"""Ops that an optimizer takes out where the other operand is that."""


def kept(writer: OnnxWriter, node: Node) -> bool:
    """Returns whether a Pad of zeros has to keep them, which the ledger says then."""
    pool = _pooled(node)
    if pool is not None:
        reason = "its empty input keeps onnxruntime's optimizer from merging its zeros into"
        writer.ledger.add(Change.EXACT, STEP, node.name, f"{reason} {pool.name}")
    return pool is not None


def keep(writer: OnnxWriter, node: Node, made: Iterable[onnx.NodeProto]) -> None:
    """Empties the third input of Pads that a kept operator is written as."""
    held = {writer.name(v): v for v in node.variadic("xs")}
    for pad in made:
        modes = [a.s for a in pad.attribute if a.name == "mode"]
        if pad.op_type != "Pad" or modes not in ([], [b"constant"]) or writer.opset < 11:
            continue
        given = [held.get(name) for name in pad.input[1:]]
        arrays = [v.constant for v in given if v is not None]
        if len(given) > 2 or len(arrays) < len(given) or not _zeros(arrays[1:]):
            continue
        if kept(writer, node):
            pad.input[2:] = [""]


def _zeros(arrays: Iterable[Array | None]) -> bool:
    return all(a is not None and not any(a.data.tobytes()) for a in arrays)


def _pooled(node: Node) -> Node | None:
    """Returns the pool that reads a node's result, or what an optimizer makes the same."""
    todo = [node]
    while todo:
        for use in todo.pop().results[0].uses:
            reader = use.node
            ops = [stage.op for stage in reader.stages] or [reader.op]
            foreign = reader.attrs.get("op") if reader.op == "foreign" else None
            if foreign in _POOLED or any(op.startswith(_POOLS) for op in ops):
                return reader
            if _passed(reader):
                todo.append(reader)
    return None


def _passed(node: Node) -> bool:
    """Returns whether it only moves, or may be taken out."""
    if node.op not in _GONE:
        return node.op in ("cast", "transpose", "expand")
    held = [v.constant for v in node.operands.values()]
    return any(a is not None and bool(np.all(a.data == _GONE[node.op])) for a in held)
