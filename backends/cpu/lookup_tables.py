"""Elementwise functions of one 8-bit tensor, as lookup tables of 256 bytes.

A chain of ops on each element alone (dequantize, erf, multiply by a scalar, quantize ...) gives the
same result wherever the same byte stands, and so does a diamond such as x * sigmoid(x). So the
reference computes the chain once for all 256 bytes, step by step, when a graph is compiled, and a
run looks the results up: the bytes are the reference's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.quantized_ops import CONVERSION_OPS
from qir.profiles import NamedProfile, query_for_node
from qir.records import record
from qir.reference import methods
from qir.reference.interpreter import rules_of, run_node
from qir.rewrite.fusing import ACTIVATIONS

from .builder import CannotLower, MeanSource, sizes
from .kernel_types import all_bytes, byte_parameters
from .sizes import Sizes

Tensor = NDArray[np.generic]

_CONVERSIONS = CONVERSION_OPS | {"cast", "identity"}
"""Ops of quantized types that compute each element by itself."""
_POINTWISE_OPS = frozenset(
    "add sub mul div mod floor_div squared_difference pow atan2 min max sum mean prelu where equal "
    "not_equal less less_equal greater greater_equal".split()
)
"""Ops of several operands that compute each element by itself. The trait `elementwise` has those
of one operand."""


@record
class ByteTable:
    """The elements of a value for each of the 256 bytes of a quantized tensor, its root."""

    root: Value
    data: Tensor

    @property
    def table(self) -> Tensor:
        """The elements in the order of the root's bytes."""
        return np.ascontiguousarray(self.data).reshape(256)


def is_pointwise(op: str) -> bool:
    """Returns whether an op computes each element by itself."""
    return op in _CONVERSIONS | _POINTWISE_OPS or spec(op).traits.elementwise


def lookup_tables(graph: Graph) -> dict[Value, ByteTable]:
    """Returns the table of every value that one 8-bit tensor decides element by element."""
    tables: dict[Value, ByteTable] = {}
    for node in graph:
        image = _lookup_table(graph, node, tables)
        if image is not None:
            tables[node.result] = image
    return tables


def needed_values(
    graph: Graph, tables: Mapping[Value, ByteTable], replaced_sources: Mapping[Value, MeanSource]
) -> set[Value]:
    """Returns the values that a run has to compute. Values between a root and its tables are not
    needed.

    `replaced_sources` has the results whose step reads another value than their node's operands.
    """
    needed: set[Value] = set()
    # From the outputs back, so that the consumers of a value are known before its producer.
    for node in reversed(list(graph)):
        if node.op == "output":
            needed.update(node.operands.values())
        elif any(value in needed for value in node.results):
            result = node.results[0]
            if result in tables:
                needed.add(tables[result].root)
            elif result in replaced_sources:
                needed.add(replaced_sources[result].source)
            else:
                needed.update(node.operands.values())
    return needed


def _lookup_table(graph: Graph, node: Node, tables: Mapping[Value, ByteTable]) -> ByteTable | None:
    """Returns the table of a node's result; None where more than one 8-bit tensor decides it."""
    if len(node.results) != 1 or not node.operands or not _is_pointwise_node(node):
        return None
    varying = {slot: v for slot, v in node.operands.items() if v.constant is None}
    # Constants that differ per element would need a table for each position.
    if not all(_has_one_element(v) for slot, v in node.operands.items() if slot not in varying):
        return None
    roots = {tables[v].root if v in tables else v for v in varying.values()}
    # A diamond such as x * sigmoid(x) has one root; a sum of two tensors has two.
    if len(roots) != 1:
        return None
    (root,) = roots
    probe = _all_bytes_of(root, len(node.operands) == 1)
    if probe is None or prod(sizes(node.result)) != prod(sizes(root)):
        return None
    operands = {
        slot: tables[v].data if v in tables else probe if slot in varying else _constant_elements(v)
        for slot, v in node.operands.items()
    }
    rules = rules_of(graph, node).on_processor()
    # Asked last: a float network needs no profile at all.
    if not _is_pointwise_method(rules, node):
        return None
    try:
        (image,) = run_node(node, operands, rules)
    except QirError:  # some byte has no result: a run says so if it comes to that byte
        return None
    return ByteTable(root, image) if image.size == 256 else None


def _is_pointwise_node(node: Node) -> bool:
    """Returns whether the op of a node computes each element by itself."""
    stages = [stage.op for stage in node.stages] or [node.op]
    if not is_pointwise(stages[0]) or not ACTIVATIONS.issuperset(stages[1:]):
        return False
    if any(stage.type is not None for stage in node.stages):
        return False
    kinds = [value.type for value in (*node.operands.values(), node.result)]
    return all(kind.quant is None or kind.quant.granularity is None for kind in kinds)


def _is_pointwise_method(rules: NamedProfile, node: Node) -> bool:
    """Returns whether a profile computes each element of a node by itself."""
    method = rules.resolve(query_for_node(node)).method
    return method is None or methods.is_pointwise(method.name)


def _has_one_element(value: Value) -> bool:
    return prod(sizes(value)) == 1


def _constant_elements(value: Value) -> Tensor:
    assert value.constant is not None
    return value.constant.data


def _all_bytes_of(root: Value, single: bool) -> Tensor | None:
    """Returns all 256 bytes of a tensor, in a shape that broadcasts as the tensor itself does.

    The bytes are along the innermost axis that is not 1, because a sum may swap its operands where
    that axis is 1. A tensor of one element has none: then only a node of one operand is accepted
    (`single`).
    """
    try:
        params = byte_parameters(root)
    except CannotLower:
        return None
    shape = sizes(root)
    long_axes = [axis for axis, size in enumerate(shape) if size != 1]
    if not long_axes and not single:
        return None
    probe: Sizes = tuple(256 if long_axes[-1:] == [axis] else 1 for axis in range(len(shape)))
    return all_bytes(params).reshape(probe if long_axes else (256, *shape))
