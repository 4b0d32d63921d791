"""Quantized operators that are kept, whatever form the others get."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.passes.quantize.quantize_dynamic import PRODUCTS
from qir.rewrite.runner.filter import asked, asking

_STANDARD = frozenset({"QLinearConv", "QLinearMatMul"})
_SUMS = frozenset({"matmul_integer", "conv_integer"})


def kept(which: Callable[[Node], bool]) -> AbstractContextManager[None]:
    """Passes leave some nodes as they are."""
    outer = asked()

    def watch(step: str, rewrite: str, nodes: tuple[Node, ...]) -> bool:
        return not any(map(which, nodes)) and outer(step, rewrite, nodes)

    return asking(watch)


def same(node: Node) -> bool:
    """Returns whether a node is a quantized operator that a file had, and no rewrite made it
    another."""
    return _read(node, standard=False)


def same_and_standard(node: Node) -> bool:
    """Returns whether it is one, and ONNX's own."""
    return _read(node, standard=True)


def on_reals(node: Node) -> bool:
    """Returns whether a node is a group with nothing inside that quantized values could be for.

    None are about it or in it, and no product in it reads what is dequantized.
    """
    if node.op != "fused" or not node.bodies:
        return False
    inside = list(_inside(node))
    near: list[Value] = [*node.operands.values(), *node.results]
    if any(v.type.quant for v in (*near, *(v for n in inside for v in n.results))):
        return False
    read = any(v.node.op == "dequantize" for v in node.operands.values())
    return not (read and any(n.op in PRODUCTS for n in inside))


def _inside(node: Node) -> Iterator[Node]:
    for body in node.bodies.values():
        for each in body:
            yield each
            yield from _inside(each)


def fed_to_sums(node: Node) -> bool:
    """Returns whether a node moves quantized values that raw sums alone read: integers there and
    here."""
    moves = not node.stages and spec(node.op).traits.value_preserving
    if not moves and node.op != "recode":
        return False
    readers = [use.node for value in node.results for use in value.uses]
    return bool(readers) and all(n.op in _SUMS or fed_to_sums(n) for n in readers)


def _read(node: Node, *, standard: bool) -> bool:
    if len(node.origins) != 1 or node.stages or node.origins[0].framework != "onnx":
        return False
    if not any(value.type.quant for value in node.results):
        return False
    op = node.origins[0].op.rpartition(".")[2]
    return not standard or not op.startswith("Q") or op in _STANDARD
