"""Evaluates what depends on constants and known sizes while a model is read."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir.dims import known_shape
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.passes.fold.fold_shapes import MADE_TO, made_to, reckoned, whole
from qir.reference.interpreter import run_node

_MOST = 1 << 12
"""Elements of a value that may decide a shape."""
_DEEPEST = 10_000
Known = dict[Value, "NDArray[np.generic] | None"]
"""Elements; as objects where some of them are symbolic or not known."""
_ASKS = ("shape", "size")


def settled(value: Value, done: Known) -> NDArray[np.generic] | None:
    """Returns what a value is, whatever the inputs; None where that is not known or is large."""
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
        made = _computed(node, done)
        for i, result in enumerate(node.results):
            done[result] = None if made is None else made[i]
    found = done.get(value)
    return None if found is None or found.dtype == object else found


def state(graph: Graph, node: Node, done: Known, spare: Collection[str]) -> None:
    """Writes into a type the sizes that follow from constants and known ones.

    Of constants but those of the names that are `spare`: a caller may give others.
    """
    kind = node.result.type
    if node.op not in MADE_TO or None not in kind.shape:
        return
    wanted = node.operands["shape"]
    if spare and _hangs(wanted, spare):
        return
    settled(wanted, done)
    sizes = done.get(wanted)
    shape = None if sizes is None else made_to(node, sizes.astype(object))
    if shape is None or len(shape) != kind.rank:
        return
    if all(not isinstance(size, int) or size >= 0 for size in shape):
        more = tuple(n if o is None else o for o, n in zip(kind.shape, shape, strict=True))
        graph.set_type(node.result, kind.with_shape(more))


def _hangs(value: Value, names: Collection[str]) -> bool:
    """Returns whether a value hangs on a constant of one of these names."""
    seen, waiting = {value}, [value]
    while waiting and len(seen) < _DEEPEST:
        node = waiting.pop().node
        if node.op == "constant" and node.result.lineage.tensor in names:
            return True
        more = [v for v in _needed(node) if v not in seen]
        seen.update(more)
        waiting += more
    return False


def _needed(node: Node) -> list[Value]:
    """What has to be known before the node is."""
    if node.op in (*_ASKS, "input", "constant", "foreign") or node.bodies:
        return []
    return list(node.operands.values())


def _computed(node: Node, done: Known) -> Sequence[NDArray[np.generic]] | None:
    if node.op == "constant":
        array = node.result.constant
        return None if array is None or array.type.quant else (array.data,)
    if node.op in ("input", "foreign") or node.bodies:
        return None
    held = {slot: done.get(value) for slot, value in node.operands.items()}
    present = {slot: data for slot, data in held.items() if data is not None}
    if node.op not in _ASKS and len(present) < len(held):
        return None
    if node.op in _ASKS or any(data.dtype == object for data in present.values()):
        return _reckoned(node, done)
    return _run(node, present)


def _reckoned(node: Node, done: Known) -> list[NDArray[np.generic]] | None:
    """Returns what sizes say of the results, some of them symbolic."""
    parts = {v: data for v in node.operands.values() if (data := done.get(v)) is not None}
    found = reckoned(node, {v: data.astype(object) for v, data in parts.items()}, _MOST)
    if len(found) < len(node.results):
        return None
    pairs = zip(found, node.results, strict=False)
    return [sizes.astype(v.type.dtype.carrier) if whole(sizes) else sizes for sizes, v in pairs]


def _run(
    node: Node, operands: dict[str, NDArray[np.generic]]
) -> tuple[NDArray[np.generic], ...] | None:
    if any(v.type.quant for v in node.results):
        return None
    sizes = [known_shape(v.type.shape) for v in node.results]
    if any(s is not None and math.prod(s) > _MOST for s in sizes):
        return None
    if node.op in ("range", "expand", "constant_of_shape", "tile") and _grows(node, operands):
        return None
    try:
        return run_node(node, operands, "")
    except QirError:
        return None


def _grows(node: Node, operands: dict[str, NDArray[np.generic]]) -> bool:
    """Returns whether the numbers given may ask for more elements than decide a shape."""
    if node.op == "range":
        start, limit, step = (operands[s].item() for s in ("start", "limit", "step"))
        return not step or abs(limit - start) > _MOST * abs(step)
    return "shape" not in operands or math.prod(abs(int(s)) for s in operands["shape"]) > _MOST
