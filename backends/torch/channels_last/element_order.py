"""Finds kernels whose vectors and single elements agree, so that element order does not matter.
Every quantized value, or pair of them, is tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import QuantType, TensorType
from qir.profiles import profile, query_for_node
from qir.reference.interpreter import run

Codes = NDArray[np.generic]

_FEW = 32
"""So many elements make no vector."""


@dataclass(frozen=True)
class ReorderedKernel:
    """An op, and the relu that may be after it, between quantized values of one scale each."""

    node: Node
    slots: tuple[str, ...]
    """Its operands that are quantized: one or two."""
    operands: tuple[QuantType, ...]
    relu: bool
    result: QuantType

    def graph(self, *shapes: tuple[int, ...]) -> Graph:
        """Returns the same on operands of these shapes."""
        graph = Graph()
        given: dict[str, Value] = {}
        for slot, quant, shape in zip(self.slots, self.operands, shapes, strict=True):
            held = graph.add("input", types=[TensorType(shape, quant)], name=slot)
            given[slot] = graph.add("dequantize", {"x": held.result}).result
        value = graph.add(self.node.op, given, self.node.attrs).result
        if self.relu:
            value = graph.add("relu", {"x": value}).result
        kind = value.type.with_element(self.result)
        graph.add("output", {"y": graph.add("quantize", {"x": value}, types=[kind]).result})
        return graph


def in_any_order(node: Node, wrap: Callable[[Graph], object]) -> bool:
    """Returns whether the kernel that `wrap` finds gives each integer, or pair of integers, the
    same result."""
    kernel = _kernel(node)
    if kernel is None:
        return False
    tried = [np.arange(q.low, q.high + 1).astype(q.storage.carrier) for q in kernel.operands]
    if len(tried) == 1:
        parts = [tried[0][i : i + _FEW] for i in range(0, tried[0].size, _FEW)]
        single = [_computed(kernel, wrap, part) for part in parts]
        return np.array_equal(np.concatenate(single), _computed(kernel, wrap, tried[0]))
    if _by_itself(kernel, wrap):
        return True
    left, right = tried
    apart = right.reshape(-1, 1, _FEW) if right.size % _FEW == 0 else right.reshape(-1, 1, 1)
    single = [_computed(kernel, wrap, left[None, :, None], apart)]
    vectors = _computed(kernel, wrap, left[:, None], right[None, :])
    return np.array_equal(single[0].transpose(1, 0, 2).reshape(vectors.shape), vectors)


def _by_itself(kernel: ReorderedKernel, wrap: Callable[[Graph], object]) -> bool:
    """Returns whether a runtime puts two operands of one shape in one order before it adds them."""
    shapes = {value.type.shape for value in (*kernel.node.operands.values(), kernel.node.result)}
    graph = kernel.graph((1,), (1,))
    wrap(graph)
    (node,) = (n for n in graph if kernel.node.op in (n.op, *(s.op for s in n.stages)))
    method = profile(graph.profile).resolve(query_for_node(node)).method
    return len(shapes) == 1 and method is not None and method.name == "shifted_sum"


def _computed(kernel: ReorderedKernel, wrap: Callable[[Graph], object], *codes: Codes) -> Codes:
    graph = kernel.graph(*(held.shape for held in codes))
    wrap(graph)
    return run(graph, dict(zip(kernel.slots, codes, strict=True)))["y"]


def _kernel(node: Node) -> ReorderedKernel | None:
    """None where it is not between 8-bit integers of one scale each, or has too many operands."""
    if node.stages:
        return None
    given = {s: v.node.operands["x"] for s, v in node.operands.items() if v.node.op == "dequantize"}
    last = _behind(node)
    relu = last is not None and last.op == "relu"
    last = _behind(last) if relu and last is not None else last
    if last is None or last.op != "quantize" or not 0 < len(given) < 3:
        return None
    held = [value.type.quant for value in given.values()]
    made = last.result.type.quant
    known = [q for q in (*held, made) if q is not None and _plain(q)]
    if len(given) < len(node.operands) or made is None or len(known) <= len(held):
        return None
    return ReorderedKernel(node, tuple(given), tuple(known[:-1]), relu, made)


def _behind(node: Node) -> Node | None:
    use = node.result.only_use
    return use.node if use and not use.node.stages else None


def _plain(quant: QuantType) -> bool:
    static = quant.kind == "uniform" and quant.granularity is None and not quant.dynamic
    return static and quant.storage.is_integer and quant.storage.bits == 8


__all__ = ["in_any_order"]
