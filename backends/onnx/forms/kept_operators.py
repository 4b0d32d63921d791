"""Protects operators of the source file that already have the requested form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.quantized_ops import PLAIN_INTEGER_PRODUCTS
from qir.passes.quantize.quantize_dynamic import PRODUCTS
from qir.rewrite.runner.filter import asking, current_filter

_STANDARD_QLINEAR = frozenset({"QLinearConv", "QLinearMatMul"})


def keeping(graph: Graph, which: Callable[[Node], bool]) -> AbstractContextManager[None]:
    """Returns a context in which passes leave the chosen nodes of a graph unchanged."""
    previous = current_filter(graph)

    def ask(step: str, rewrite: str, nodes: tuple[Node, ...]) -> bool:
        return not any(map(which, nodes)) and previous(step, rewrite, nodes)

    return asking(graph, ask)


def is_quantized_operator(node: Node) -> bool:
    """Returns whether a node is a quantized operator of the source file, unchanged since it was
    read."""
    return _was_read_as_operator(node, standard=False)


def is_standard_quantized_operator(node: Node) -> bool:
    """Returns whether a node is one, and is ONNX's own."""
    return _was_read_as_operator(node, standard=True)


def is_float_group(node: Node) -> bool:
    """Returns whether a group has no quantized values inside or next to it, so that opening
    gains nothing."""
    if node.op != "fused" or not node.bodies:
        return False
    inside = list(_inside(node))
    neighbours: list[Value] = [*node.operands.values(), *node.results]
    if any(v.type.quant for v in (*neighbours, *(v for n in inside for v in n.results))):
        return False
    reads_dequantized = any(v.node.op == "dequantize" for v in node.operands.values())
    # Opened, such a product could be quantized.
    return not (reads_dequantized and any(n.op in PRODUCTS for n in inside))


def _inside(node: Node) -> Iterator[Node]:
    """Yields the nodes of a group and of the groups in it."""
    for body in node.bodies.values():
        for each in body:
            yield each
            yield from _inside(each)


def feeds_raw_sums(node: Node) -> bool:
    """Returns whether a node moves integers that only raw sums read: the form keeps them
    integers."""
    moves = not node.stages and spec(node.op).traits.value_preserving
    if not moves and node.op != "recode":
        return False
    readers = [use.node for value in node.results for use in value.uses]
    return bool(readers) and all(
        n.op in PLAIN_INTEGER_PRODUCTS or feeds_raw_sums(n) for n in readers
    )


def _was_read_as_operator(node: Node, *, standard: bool) -> bool:
    """Returns whether a node is one ONNX operator of the source with a quantized result."""
    if len(node.origins) != 1 or node.stages or node.origins[0].framework != "onnx":
        return False
    if not any(value.type.quant for value in node.results):
        return False
    # onnxruntime's quantized operators start with Q too, and ONNX's own two are these.
    op = node.origins[0].op.rpartition(".")[2]
    return not standard or not op.startswith("Q") or op in _STANDARD_QLINEAR
