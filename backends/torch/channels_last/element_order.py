"""Finds kernels whose vector and scalar code agree, so that the order of elements does not matter.

It runs the kernel on every integer, or pair of integers.
"""

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

Integers = NDArray[np.generic]

_SCALAR_ELEMENTS = 32
"""So few elements fill no vector: the kernel's scalar code computes them."""


@dataclass(frozen=True)
class ReorderedKernel:
    """An op, with the relu that may be fused to it, between 8-bit integers of one scale each."""

    node: Node
    slots: tuple[str, ...]
    """Its quantized operands: one or two."""
    operands: tuple[QuantType, ...]
    relu: bool
    result: QuantType

    def graph(self, *shapes: tuple[int, ...]) -> Graph:
        """Returns a graph of the kernel alone, on operands of these shapes."""
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


def is_order_independent(node: Node, wrap: Callable[[Graph], object]) -> bool:
    """Returns whether the kernel that `wrap` finds computes the same for each integer in vectors
    and alone."""
    kernel = _reordered_kernel(node)
    if kernel is None:
        return False
    tried = [np.arange(q.low, q.high + 1).astype(q.storage.carrier) for q in kernel.operands]
    if len(tried) == 1:
        parts = [
            tried[0][i : i + _SCALAR_ELEMENTS] for i in range(0, tried[0].size, _SCALAR_ELEMENTS)
        ]
        single = [_run_kernel(kernel, wrap, part) for part in parts]
        return np.array_equal(np.concatenate(single), _run_kernel(kernel, wrap, tried[0]))
    if _is_order_independent_sum(kernel, wrap):
        return True
    left, right = tried
    separate = (
        right.reshape(-1, 1, _SCALAR_ELEMENTS)
        if right.size % _SCALAR_ELEMENTS == 0
        else right.reshape(-1, 1, 1)
    )
    single = [_run_kernel(kernel, wrap, left[None, :, None], separate)]
    vectors = _run_kernel(kernel, wrap, left[:, None], right[None, :])
    return np.array_equal(single[0].transpose(1, 0, 2).reshape(vectors.shape), vectors)


def _is_order_independent_sum(kernel: ReorderedKernel, wrap: Callable[[Graph], object]) -> bool:
    """Returns whether the runtime copies both operands to one layout before it adds them."""
    shapes = {value.type.shape for value in (*kernel.node.operands.values(), kernel.node.result)}
    graph = kernel.graph((1,), (1,))
    wrap(graph)
    (node,) = (n for n in graph if kernel.node.op in (n.op, *(s.op for s in n.stages)))
    method = profile(graph.profile).resolve(query_for_node(node)).method
    return len(shapes) == 1 and method is not None and method.name == "shifted_sum"


def _run_kernel(
    kernel: ReorderedKernel, wrap: Callable[[Graph], object], *codes: Integers
) -> Integers:
    graph = kernel.graph(*(held.shape for held in codes))
    wrap(graph)
    return run(graph, dict(zip(kernel.slots, codes, strict=True)))["y"]


def _reordered_kernel(node: Node) -> ReorderedKernel | None:
    """Returns a node as such a kernel; None for other types or more operands."""
    if node.stages:
        return None
    given = {s: v.node.operands["x"] for s, v in node.operands.items() if v.node.op == "dequantize"}
    last = _only_consumer(node)
    relu = last is not None and last.op == "relu"
    last = _only_consumer(last) if relu and last is not None else last
    if last is None or last.op != "quantize" or not 0 < len(given) < 3:
        return None
    held = [value.type.quant for value in given.values()]
    made = last.result.type.quant
    known = [q for q in (*held, made) if q is not None and _is_byte_type(q)]
    if len(given) < len(node.operands) or made is None or len(known) <= len(held):
        return None
    return ReorderedKernel(node, tuple(given), tuple(known[:-1]), relu, made)


def _only_consumer(node: Node) -> Node | None:
    use = node.result.only_use
    return use.node if use and not use.node.stages else None


def _is_byte_type(quant: QuantType) -> bool:
    static = quant.kind == "uniform" and quant.granularity is None and not quant.dynamic
    return static and quant.storage.is_integer and quant.storage.bits == 8


__all__ = ["is_order_independent"]
