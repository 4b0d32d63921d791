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
from qir.profiles import NO_PROFILE
from qir.reference.interpreter import run_node

_MAX_ELEMENTS = 1 << 12
"""Elements of values that are evaluated; larger ones are data, not shapes."""
_MAX_VALUES = 10_000
Known = dict[Value, "NDArray[np.generic] | None"]
"""Results so far: elements, as objects where some are symbolic; None for unknown ones."""


def evaluated(value: Value, results_so_far: Known) -> NDArray[np.generic] | None:
    """Returns the elements of a value that no input changes; None if unknown or large."""
    # A stack, not recursion: exported chains are longer than Python's limit.
    waiting = [value]
    while waiting and len(results_so_far) < _MAX_VALUES:
        node = waiting[-1].node
        if waiting[-1] in results_so_far:
            waiting.pop()
            continue
        missing = [v for v in _prerequisites(node) if v not in results_so_far]
        if missing:
            waiting += missing
            continue
        results = _node_results(node, results_so_far)
        for i, result in enumerate(node.results):
            results_so_far[result] = None if results is None else results[i]
    data = results_so_far.get(value)
    # Object arrays have symbolic sizes, which no attribute of a node can be.
    return None if data is None or data.dtype == object else data


def refine_created_shape(
    graph: Graph, node: Node, results_so_far: Known, overridable: Collection[str]
) -> None:
    """Replaces open sizes in the result of a reshape, expand, ... by those of its `shape` operand.

    Defaults of inputs (`overridable`) are not used, since a caller may replace them.
    """
    created_type = node.result.type
    if node.op not in SHAPED_BY_OPERAND or None not in created_type.shape:
        return
    shape_operand = node.operands["shape"]
    if overridable and _depends_on_constant(shape_operand, overridable):
        return
    evaluated(shape_operand, results_so_far)
    sizes = results_so_far.get(shape_operand)
    shape = None if sizes is None else requested_shape(node, sizes.astype(object))
    if shape is None or len(shape) != created_type.rank:
        return
    if all(not isinstance(size, int) or size >= 0 for size in shape):
        refined = tuple(
            n if o is None else o for o, n in zip(created_type.shape, shape, strict=True)
        )
        graph.set_type(node.result, created_type.with_shape(refined))


def _depends_on_constant(value: Value, names: Collection[str]) -> bool:
    """Returns whether a value depends on a constant of one of these names."""
    visited, waiting = {value}, [value]
    while waiting and len(visited) < _MAX_VALUES:
        node = waiting.pop().node
        if node.op == "constant" and node.result.lineage.tensor in names:
            return True
        prerequisites = [v for v in _prerequisites(node) if v not in visited]
        visited.update(prerequisites)
        waiting += prerequisites
    return False


def _prerequisites(node: Node) -> list[Value]:
    """Returns the operands that are evaluated before the node."""
    if node.op in (*SHAPE_QUERIES, "input", "constant", "foreign") or node.bodies:
        return []
    return list(node.operands.values())


def _node_results(node: Node, results_so_far: Known) -> Sequence[NDArray[np.generic]] | None:
    if node.op == "constant":
        array = node.result.constant
        return None if array is None or array.type.quant else (array.data,)
    if node.op in ("input", "foreign") or node.bodies:
        return None
    data_by_slot = {slot: results_so_far.get(value) for slot, value in node.operands.items()}
    present = {slot: data for slot, data in data_by_slot.items() if data is not None}
    # Shape queries need no operand data: the types of their operands state the sizes.
    if node.op not in SHAPE_QUERIES and len(present) < len(data_by_slot):
        return None
    if node.op in SHAPE_QUERIES or any(data.dtype == object for data in present.values()):
        return _symbolic_results(node, results_so_far)
    return _run(node, present)


def _symbolic_results(node: Node, results_so_far: Known) -> list[NDArray[np.generic]] | None:
    """Returns the results by symbolic arithmetic on sizes."""
    operand_data = {
        v: data for v in node.operands.values() if (data := results_so_far.get(v)) is not None
    }
    results = computed_sizes(
        node, {v: data.astype(object) for v, data in operand_data.items()}, _MAX_ELEMENTS
    )
    if len(results) < len(node.results):
        return None
    pairs = zip(results, node.results, strict=False)
    return [
        sizes.astype(v.type.dtype.carrier) if all_integers(sizes) else sizes for sizes, v in pairs
    ]


def _run(
    node: Node, operands: dict[str, NDArray[np.generic]]
) -> tuple[NDArray[np.generic], ...] | None:
    if any(v.type.quant for v in node.results):
        return None
    sizes = [known_shape(v.type.shape) for v in node.results]
    # A model could ask for huge constants that nothing needs.
    if any(s is not None and math.prod(s) > _MAX_ELEMENTS for s in sizes):
        return None
    if node.op in SIZED_BY_OPERANDS and _may_exceed_limit(node, operands):
        return None
    try:
        return run_node(node, operands, NO_PROFILE)
    except QirError:
        return None


def _may_exceed_limit(node: Node, operands: dict[str, NDArray[np.generic]]) -> bool:
    """Returns whether a result may exceed `_MAX_ELEMENTS`, whatever its open type says."""
    if node.op == "range":
        start, limit, step = (operands[s].item() for s in ("start", "limit", "step"))
        # A step of 0 would never end.
        return not step or abs(limit - start) > _MAX_ELEMENTS * abs(step)
    return (
        "shape" not in operands or math.prod(abs(int(s)) for s in operands["shape"]) > _MAX_ELEMENTS
    )
