"""Numbers that hang on constants and known sizes alone, computed while a model is read."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir.dims import known
from qir.ir.node import Node, Value
from qir.reference.interpreter import run_node

_MOST = 1 << 12
"""Elements of a value that may decide a shape."""
_DEEPEST = 10_000
Known = dict[Value, "NDArray[np.generic] | None"]


def settled(value: Value, done: Known) -> NDArray[np.generic] | None:
    """What a value is, whatever the inputs; None where that is not known or is large."""
    waiting = [value]
    while waiting and len(done) < _DEEPEST:
        node = waiting[-1].node
        if waiting[-1] in done:
            waiting.pop()
            continue
        missing = [v for v in _needed(node) if v not in done]
        if missing:
            waiting += missing
            continue
        found = _computed(node, done)
        for i, result in enumerate(node.results):
            done[result] = None if found is None else found[i]
    return done.get(value)


def _needed(node: Node) -> list[Value]:
    """What has to be known before the node is."""
    if _measures(node) or node.op in ("input", "constant", "foreign") or node.bodies:
        return []
    return list(node.operands.values())


def _measures(node: Node) -> bool:
    return node.op in ("shape", "size") and known(node.operands["x"].type.shape) is not None


def _computed(node: Node, done: Known) -> tuple[NDArray[np.generic], ...] | None:
    if node.op == "constant":
        array = node.result.constant
        return None if array is None or array.type.quant else (array.data,)
    if node.op in ("input", "foreign") or node.bodies:
        return None
    if _measures(node):
        return (_measured(node),)
    operands = {slot: done[value] for slot, value in node.operands.items()}
    present = {slot: data for slot, data in operands.items() if data is not None}
    if len(present) < len(operands) or any(v.type.quant for v in node.results):
        return None
    sizes = [known(v.type.shape) for v in node.results]
    if any(s is not None and math.prod(s) > _MOST for s in sizes):
        return None
    if node.op in ("range", "expand", "constant_of_shape", "tile") and _grows(node, present):
        return None
    try:
        return run_node(node, present, "")
    except QirError:
        return None


def _measured(node: Node) -> NDArray[np.generic]:
    sizes = known(node.operands["x"].type.shape) or ()
    if node.op == "size":
        return np.array(math.prod(sizes), np.int64)
    start, end = node.attrs["start"], node.attrs["end"]
    assert isinstance(start, int)
    return np.array(sizes[start : end if isinstance(end, int) else None], np.int64)


def _grows(node: Node, operands: dict[str, NDArray[np.generic]]) -> bool:
    """Whether the numbers given may ask for more elements than decide a shape."""
    if node.op == "range":
        start, limit, step = (operands[s].item() for s in ("start", "limit", "step"))
        return not step or abs(limit - start) > _MOST * abs(step)
    return "shape" not in operands or math.prod(abs(int(s)) for s in operands["shape"]) > _MOST
