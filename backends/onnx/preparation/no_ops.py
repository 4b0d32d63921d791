"""Removes operators that do nothing, as onnxruntime does when it loads a model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ledger import Change
from qir.rewrite.preparation import Preparation

_NEUTRAL_OPERANDS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "mul": (1.0, ("a", "b")),
    "div": (1.0, ("b",)),
    "add": (0.0, ("a", "b")),
    "sub": (0.0, ("b",)),
}
"""The number that makes an op an identity, and the operands that may be it."""
_SAME_TYPE = frozenset({"cast", "expand", "identity", "dropout"})
"""Ops that are identities where the result has the operand's type."""
_MAY_DO_NOTHING = _SAME_TYPE | _NEUTRAL_OPERANDS.keys() | {"transpose"}


def remove_no_ops(graph: Graph, prepared: Preparation) -> int:
    """Removes operators that do nothing, and returns how many.

    Before:  %m = mul(%d, 1.0); %q = quantize(%m)
    After:   %q = quantize(%d)

    onnxruntime does so by NoopElimination, CastElimination, ExpandElimination and its transpose
    optimizer, before it looks at pairs of quantize and dequantize. One that makes a result of the
    model stays.
    """
    count = 0
    for node in list(graph):
        unchanged = _unchanged_operand(node)
        if unchanged is None or unchanged.type != node.result.type:
            continue
        if any(use.node.op == "output" for use in node.result.uses):
            continue
        graph.replace(node.result, unchanged)
        reason = f"{node.op} changes no element, and the runtime removes it"
        prepared.ledger.add(Change.EXACT, prepared.name, node.name, reason)
        _remove_with_producers(graph, node)
        count += 1
    return count


def _remove_with_producers(graph: Graph, node: Node) -> None:
    """Removes a node, with the constants and transposes that it alone read.

    Other unused nodes stay: the runtime counts them among the consumers of quantized values.
    """
    producers = [value.node for value in dict.fromkeys(node.operands.values())]
    graph.remove(node)
    for producer in producers:
        if producer.op in ("constant", "transpose") and not producer.used:
            _remove_with_producers(graph, producer)


def _unchanged_operand(node: Node) -> Value | None:
    """Returns the operand that an op returns unchanged; None where it does something."""
    if node.op not in _MAY_DO_NOTHING:
        return None
    if node.stages or node.schemes or len(node.results) != 1 or node.result.type.quant:
        return None
    if node.op in _SAME_TYPE:
        return node.operands["x"]
    if node.op == "transpose":
        return _transposed_back(node)
    number, slots = _NEUTRAL_OPERANDS.get(node.op, (0.0, ()))
    others = {"a": "b", "b": "a"}
    return next(
        (node.operands[others[s]] for s in slots if _is_scalar_constant(node, s, number)), None
    )


def _is_scalar_constant(node: Node, slot: str, number: float) -> bool:
    """Returns whether an operand is one given number, and does not broadcast the other operand."""
    value, other = node.operands[slot], node.operands["b" if slot == "a" else "a"]
    array = value.constant
    if array is None or value.node.attrs["default"] or value.type.quant is not None:
        return False
    if array.contents.size != 1 or value.type.rank > other.type.rank:
        return False
    return bool(np.all(array.data == number))


def _transposed_back(last: Node) -> Value | None:
    """Returns the operand of consecutive transposes which together change nothing."""
    first, order = last, _perm(last)
    while first.operands["x"].node.op == "transpose":
        # Another reader needs the transposed value, so it stays.
        producer = first.operands["x"].node
        if producer.result.only_use is None or producer.result.type.quant:
            return None
        # Compose the permutations: sorted order means that together they do nothing.
        first, order = producer, [_perm(producer)[i] for i in order]
        if order == sorted(order):
            return first.operands["x"]
    return None


def _perm(node: Node) -> list[int]:
    perm = node.attrs["perm"]
    assert isinstance(perm, tuple)
    return [axis for axis in perm if isinstance(axis, int)]
