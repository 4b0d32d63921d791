"""A softmax that its source has as one op on axes taken as one, and the graph as an op of rows
between a flatten and a reshape back: what a runtime computes on quantized values as one kernel."""

from __future__ import annotations

from dataclasses import dataclass

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import QuantType
from qir.ledger import Change, Ledger
from qir.rewrite.fusing import TAILS

_KINDS = ("softmax", "log_softmax")


@dataclass(frozen=True, slots=True)
class _Rows:
    """The three nodes of one op of the source."""

    flat: Node
    soft: Node
    back: Node


def _rows(node: Node) -> _Rows | None:
    """The three that a reshape ends."""
    soft = node.operands["x"].node if node.op == "reshape" else node
    flat = soft.operands["x"].node if soft.op in _KINDS else node
    if flat.op != "flatten" or any(n.stages or n.schemes for n in (flat, soft, node)):
        return None
    if not soft.origins or not soft.origins == flat.origins == node.origins:
        return None
    alone = (use is not None for use in (flat.result.only_use, soft.result.only_use))
    return _Rows(flat, soft, node) if all(alone) else None


def lays_back(node: Node) -> bool:
    """Whether a reshape is part of such a softmax, and moves nothing by itself."""
    return _rows(node) is not None


def rows_of_codes(graph: Graph, ledger: Ledger, step: str) -> int:
    """Lays quantized values into rows, and quantized values back, where such a softmax stands
    between a dequantize and a quantize, activations before that one aside. Says how many."""
    count = 0
    for node in list(graph):
        found = _rows(node) if node.op == "reshape" else None
        end = _end(found.back) if found and found.soft.op == "softmax" else None
        if found is None or end is None:
            continue
        back, quant = found.flat.operands["x"].node, end.result.type.quant
        if back.op != "dequantize" or not (_plain(back.operands["x"].type.quant) and _plain(quant)):
            continue
        _lay(graph, found, back, end)
        said = "softmax over several axes is over rows of quantized values"
        ledger.add(Change.EXACT, step, found.soft.name, said)
        count += 1
    return count


def _plain(quant: QuantType | None) -> bool:
    return quant is not None and quant.grain is None and not quant.dynamic


def _end(node: Node) -> Node | None:
    """The quantize that alone reads a node, or the activations after it."""
    while True:
        use = node.result.only_use
        if use is None or use.node.stages or use.node.schemes:
            return None
        node = use.node
        if node.op not in TAILS:
            plain = node.op == "quantize" and len(node.operands) == 1 and not node.attrs["round"]
            return node if plain else None


def _lay(graph: Graph, found: _Rows, first: Node, end: Node) -> None:
    """Puts the flatten before the dequantize, and the reshape after the quantize."""
    flat, soft, back = found.flat, found.soft, found.back
    laid = graph.add(
        "flatten", {"x": first.operands["x"]}, flat.attrs, before=soft, origins=flat.origins
    )
    real = _again(graph, first, laid.result, soft)
    graph.set_operand(soft, "x", real)
    flow, node, gone = soft.result, _reader(back), [end]
    while node is not end:
        flow, gone = _again(graph, node, flow, end), [*gone, node]
        node = _reader(node)
    codes = _again(graph, end, flow, end)
    shaped = {"x": codes, "shape": back.operands["shape"]}
    kind = [end.result.type]
    made = graph.add("reshape", shaped, types=kind, before=end, origins=back.origins).result
    graph.substitute(end, made, gone=(*reversed(gone[1:]), back, flat))


def _reader(node: Node) -> Node:
    use = node.result.only_use
    assert use is not None
    return use.node


def _again(graph: Graph, node: Node, value: Value, before: Node) -> Value:
    """The same op on another value of one operand, its result of that value's shape."""
    kind = value.type.with_element(node.result.type.element)
    made = graph.add(
        node.op,
        {"x": value},
        node.attrs,
        types=[kind],
        name=graph.fresh(f"{node.result.name}.rows"),
        before=before,
        origins=node.origins,
        profile=node.profile,
    )
    return made.result


__all__ = ["lays_back", "rows_of_codes"]
