"""Evaluates values that depend on constants and known sizes only, while a model is read.

Exporters compute sizes, axes and bounds by operators (Shape, Gather, Concat, ...) that the language
has as attributes. Results with open dimensions are kept symbolically, as object arrays.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir.dims import known_shape
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.passes.fold.fold_shapes import (
    SHAPE_QUERIES,
    SHAPED_BY_OPERAND,
    SIZED_BY_OPERANDS,
    all_integers,
    computed_sizes,
    requested_shape,
)
from qir.reference.interpreter import run_node

_MAX_ELEMENTS = 1 << 12
"""Elements of values that are evaluated; larger ones are data, not shapes."""
_MAX_VALUES = 10_000
Known = dict[Value, "NDArray[np.generic] | None"]
"""Results so far: elements, as objects where some are symbolic; None for unknown ones."""


def evaluated(value: Value, known: Known) -> NDArray[np.generic] | None:
    """Returns the elements of a value that no input changes; None if unknown or large."""
    # A stack, not recursion: exported chains are longer than Python's limit.
    waiting = [value]
    while waiting and len(known) < _MAX_VALUES:
        node = waiting[-1].node
        if waiting[-1] in known:
            waiting.pop()
            continue
        missing = [v for v in _prerequisites(node) if v not in known]
        if missing:
            waiting += missing
            continue
        made = _node_results(node, known)
        for i, result in enumerate(node.results):
            known[result] = None if made is None else made[i]
    found = known.get(value)
    return None if found is None or found.dtype == object else found


def refine_created_shape(
    graph: Graph, node: Node, known: Known, overridable: Collection[str]
) -> None:
    """Replaces open sizes in the result of a reshape, expand, ... by those of its `shape` operand.

    Defaults of inputs (`overridable`) are not used, since a caller may replace them.
    """
    kind = node.result.type
    if node.op not in SHAPED_BY_OPERAND or None not in kind.shape:
        return
    shape_operand = node.operands["shape"]
    if overridable and _depends_on_constant(shape_operand, overridable):
        return
    evaluated(shape_operand, known)
    sizes = known.get(shape_operand)
    shape = None if sizes is None else requested_shape(node, sizes.astype(object))
    if shape is None or len(shape) != kind.rank:
        return
    if all(not isinstance(size, int) or size >= 0 for size in shape):
        more = tuple(n if o is None else o for o, n in zip(kind.shape, shape, strict=True))
        graph.set_type(node.result, kind.with_shape(more))


def _depends_on_constant(value: Value, names: Collection[str]) -> bool:
    """Returns whether a value depends on a constant of one of these names."""
    seen, waiting = {value}, [value]
    while waiting and len(seen) < _MAX_VALUES:
        node = waiting.pop().node
        if node.op == "constant" and node.result.lineage.tensor in names:
            return True
        more = [v for v in _prerequisites(node) if v not in seen]
        seen.update(more)
        waiting += more
    return False


def _prerequisites(node: Node) -> list[Value]:
    """Returns the operands that are evaluated before the node."""
    if node.op in (*SHAPE_QUERIES, "input", "constant", "foreign") or node.bodies:
        return []
    return list(node.operands.values())


def _node_results(node: Node, known: Known) -> Sequence[NDArray[np.generic]] | None:
    if node.op == "constant":
        array = node.result.constant
        return None if array is None or array.type.quant else (array.data,)
    if node.op in ("input", "foreign") or node.bodies:
        return None
    held = {slot: known.get(value) for slot, value in node.operands.items()}
    present = {slot: data for slot, data in held.items() if data is not None}
    if node.op not in SHAPE_QUERIES and len(present) < len(held):
        return None
    if node.op in SHAPE_QUERIES or any(data.dtype == object for data in present.values()):
        return _symbolic_results(node, known)
    return _run(node, present)


def _symbolic_results(node: Node, known: Known) -> list[NDArray[np.generic]] | None:
    """Returns the results by symbolic arithmetic on sizes."""
    parts = {v: data for v in node.operands.values() if (data := known.get(v)) is not None}
    found = computed_sizes(
        node, {v: data.astype(object) for v, data in parts.items()}, _MAX_ELEMENTS
    )
    if len(found) < len(node.results):
        return None
    pairs = zip(found, node.results, strict=False)
    return [
        sizes.astype(v.type.dtype.carrier) if all_integers(sizes) else sizes for sizes, v in pairs
    ]


def _run(
    node: Node, operands: dict[str, NDArray[np.generic]]
) -> tuple[NDArray[np.generic], ...] | None:
    if any(v.type.quant for v in node.results):
        return None
    sizes = [known_shape(v.type.shape) for v in node.results]
    if any(s is not None and math.prod(s) > _MAX_ELEMENTS for s in sizes):
        return None
    if node.op in SIZED_BY_OPERANDS and _may_exceed_limit(node, operands):
        return None
    try:
        return run_node(node, operands, "")
    except QirError:
        return None


def _may_exceed_limit(node: Node, operands: dict[str, NDArray[np.generic]]) -> bool:
    """Returns whether a result may exceed `_MAX_ELEMENTS`, whatever its open type says."""
    if node.op == "range":
        start, limit, step = (operands[s].item() for s in ("start", "limit", "step"))
        return not step or abs(limit - start) > _MAX_ELEMENTS * abs(step)
    return (
        "shape" not in operands or math.prod(abs(int(s)) for s in operands["shape"]) > _MAX_ELEMENTS
    )
