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
from qir.profiles import profile_in, query_for_node
from qir.reference.interpreter import run

Integers = NDArray[np.generic]

_SCALAR_ELEMENTS = 32
"""So few elements fill no vector: the kernel's scalar code computes them."""


@dataclass(frozen=True)
class ReorderedKernel:
    """An op between 8-bit integers of one scale each, with the relu that may be fused to it."""

    node: Node
    slots: tuple[str, ...]
    """Its quantized operands: one or two."""
    operands: tuple[QuantType, ...]
    relu: bool
    result: QuantType

    def graph(self, *shapes: tuple[int, ...]) -> Graph:
        """Returns a graph of the kernel alone, on operands of these shapes."""
        graph = Graph()
        operands: dict[str, Value] = {}
        for slot, quant, shape in zip(self.slots, self.operands, shapes, strict=True):
            input_node = graph.add("input", types=[TensorType(shape, quant)], name=slot)
            operands[slot] = graph.add("dequantize", {"x": input_node.result}).result
        value = graph.add(self.node.op, operands, self.node.attrs).result
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
    # Every integer of each operand: 256 at most, so that the check is complete and cheap.
    all_integers = [np.arange(q.low, q.high + 1).astype(q.storage.carrier) for q in kernel.operands]
    if len(all_integers) == 1:
        pieces = [
            all_integers[0][i : i + _SCALAR_ELEMENTS]
            for i in range(0, all_integers[0].size, _SCALAR_ELEMENTS)
        ]
        scalar_results = [_run_kernel(kernel, wrap, part) for part in pieces]
        return np.array_equal(
            np.concatenate(scalar_results), _run_kernel(kernel, wrap, all_integers[0])
        )
    if _is_order_independent_sum(kernel, wrap):
        return True
    left, right = all_integers
    # Pieces of 32 elements are left to scalar code; the whole array has vectors of every integer.
    separate = (
        right.reshape(-1, 1, _SCALAR_ELEMENTS)
        if right.size % _SCALAR_ELEMENTS == 0
        else right.reshape(-1, 1, 1)
    )
    scalar_results = [_run_kernel(kernel, wrap, left[None, :, None], separate)]
    vectors = _run_kernel(kernel, wrap, left[:, None], right[None, :])
    return np.array_equal(scalar_results[0].transpose(1, 0, 2).reshape(vectors.shape), vectors)


def _is_order_independent_sum(kernel: ReorderedKernel, wrap: Callable[[Graph], object]) -> bool:
    """Returns whether the runtime copies both operands to one layout before it adds them."""
    shapes = {value.type.shape for value in (*kernel.node.operands.values(), kernel.node.result)}
    graph = kernel.graph((1,), (1,))
    # `wrap` groups the graph as the runtime would, so the node found names the kernel's method.
    wrap(graph)
    (node,) = (n for n in graph if kernel.node.op in (n.op, *(s.op for s in n.stages)))
    method = profile_in(graph, graph.profile).resolve(query_for_node(node)).method
    return len(shapes) == 1 and method is not None and method.name == "shifted_sum"


def _run_kernel(
    kernel: ReorderedKernel, wrap: Callable[[Graph], object], *integers: Integers
) -> Integers:
    graph = kernel.graph(*(array.shape for array in integers))
    wrap(graph)
    return run(graph, dict(zip(kernel.slots, integers, strict=True)))["y"]


def _reordered_kernel(node: Node) -> ReorderedKernel | None:
    """Returns a node as such a kernel; None for other types or more operands."""
    if node.stages:
        return None
    dequantized = {
        s: v.node.operands["x"] for s, v in node.operands.items() if v.node.op == "dequantize"
    }
    last = _only_consumer(node)
    relu = last is not None and last.op == "relu"
    last = _only_consumer(last) if relu and last is not None else last
    if last is None or last.op != "quantize" or not 0 < len(dequantized) < 3:
        return None
    operand_types = [value.type.quant for value in dequantized.values()]
    result_type = last.result.type.quant
    byte_types = [q for q in (*operand_types, result_type) if q is not None and _is_byte_type(q)]
    if (
        len(dequantized) < len(node.operands)
        or result_type is None
        or len(byte_types) <= len(operand_types)
    ):
        return None
    return ReorderedKernel(node, tuple(dequantized), tuple(byte_types[:-1]), relu, result_type)


def _only_consumer(node: Node) -> Node | None:
    use = node.result.only_use
    return use.node if use and not use.node.stages else None


def _is_byte_type(quant: QuantType) -> bool:
    is_static = quant.kind == "uniform" and quant.granularity is None and not quant.dynamic
    return is_static and quant.storage.is_integer and quant.storage.bits == 8


__all__ = ["is_order_independent"]
