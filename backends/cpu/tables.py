"""Elementwise functions of one 8-bit tensor, as lookup tables of 256 bytes.

A chain of ops on each element alone (dequantize, erf, multiply by a scalar, quantize ...) gives the
same result wherever the same byte stands, and so does a diamond such as x * sigmoid(x). So the
reference computes the chain once for all 256 bytes, step by step, when a graph is compiled, and a
run looks the results up: the bytes are the reference's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.profiles import profile, query_for_node
from qir.profiles.processor import on_processor
from qir.reference.interpreter import profile_of, run_node

from .builder import CannotLower, MeanSource, sizes
from .codes import BOUNDING, codes, every
from .sizes import Sizes

Tensor = NDArray[np.generic]

_CONVERSIONS = frozenset({"quantize", "dequantize", "requantize", "cast", "identity"})
_JOINING = frozenset({"add", "sub", "mul", "div", "mod", "floor_div", "squared_difference", "pow",
                      "atan2", "min", "max", "sum", "mean", "prelu", "where", "equal", "not_equal",
                      "less", "less_equal", "greater", "greater_equal"})  # fmt: skip
"""Ops of several operands that compute each element by itself."""
_METHODS = frozenset({"reals", "fma_sum", "scaled_product", "logistic_table", "recode"})
"""Methods whose result for an element does not depend on its place in the tensor. Others, such as
those that follow a runtime's vectors, treat the last elements of a row differently."""


@dataclass(frozen=True, slots=True)
class Image:
    """What a value holds for each of the 256 bytes of another value."""

    root: Value
    data: Tensor

    @property
    def table(self) -> Tensor:
        """The elements in the order of the root's bytes."""
        return np.ascontiguousarray(self.data).reshape(256)


def pointwise(op: str) -> bool:
    """Returns whether an op computes each element by itself."""
    return op in _CONVERSIONS | _JOINING or spec(op).traits.elementwise


def images(graph: Graph) -> dict[Value, Image]:
    """Returns the image of every value that one quantized tensor of 8 bits decides."""
    found: dict[Value, Image] = {}
    for node in graph:
        image = _image(graph, node, found)
        if image is not None:
            found[node.result] = image
    return found


def needed(
    graph: Graph, found: Mapping[Value, Image], instead: Mapping[Value, MeanSource]
) -> set[Value]:
    """Returns the values that a run has to make: not those that only lead to tables.

    `instead` has the results whose step reads another value than the operands of their node.
    """
    wanted: set[Value] = set()
    for node in reversed(list(graph)):
        if node.op == "output":
            wanted.update(node.operands.values())
        elif any(value in wanted for value in node.results):
            first = node.results[0]
            if first in found:
                wanted.add(found[first].root)
            elif first in instead:
                wanted.add(instead[first].source)
            else:
                wanted.update(node.operands.values())
    return wanted


def _image(graph: Graph, node: Node, found: Mapping[Value, Image]) -> Image | None:
    if len(node.results) != 1 or not node.operands or not _alone(graph, node):
        return None
    varying = {slot: v for slot, v in node.operands.items() if v.constant is None}
    if not all(_single(v) for slot, v in node.operands.items() if slot not in varying):
        return None
    roots = {found[v].root if v in found else v for v in varying.values()}
    if len(roots) != 1:
        return None
    (root,) = roots
    start = _start(root, len(node.operands) == 1)
    if start is None or prod(sizes(node.result)) != prod(sizes(root)):
        return None
    given = {
        slot: found[v].data if v in found else start if slot in varying else _held(v)
        for slot, v in node.operands.items()
    }
    computes_as = profile_of(graph, node)
    try:
        with on_processor([computes_as]):
            (made,) = run_node(node, given, computes_as)
    except QirError:  # some byte has no result: a run says so if it comes to that byte
        return None
    return Image(root, made) if made.size == 256 else None


def _alone(graph: Graph, node: Node) -> bool:
    """Returns whether the reference computes each element of a node by itself."""
    stages = [stage.op for stage in node.stages] or [node.op]
    if not pointwise(stages[0]) or not BOUNDING.issuperset(stages[1:]):
        return False
    if any(stage.type is not None for stage in node.stages):
        return False
    kinds = [value.type for value in (*node.operands.values(), node.result)]
    if any(kind.quant is not None and kind.quant.granularity is not None for kind in kinds):
        return False
    name = profile_of(graph, node)
    with on_processor([name]):
        method = profile(name).resolve(query_for_node(node)).method
    return method is None or method.name in _METHODS


def _single(value: Value) -> bool:
    return prod(sizes(value)) == 1


def _held(value: Value) -> Tensor:
    assert value.constant is not None
    return value.constant.data


def _start(root: Value, single: bool) -> Tensor | None:
    """Returns all 256 bytes of a tensor in a shape that broadcasts as the tensor itself does.

    A sum may take its operands in turn where the innermost axis that varies is 1, so the bytes
    stand along that axis. A tensor of one element has none: `single` operands alone may vary.
    """
    try:
        root_codes = codes(root)
    except CannotLower:
        return None
    shape = sizes(root)
    wide = [axis for axis, size in enumerate(shape) if size != 1]
    if not wide and not single:
        return None
    probe: Sizes = tuple(256 if wide[-1:] == [axis] else 1 for axis in range(len(shape)))
    return every(root_codes).reshape(probe if wide else (256, *shape))
