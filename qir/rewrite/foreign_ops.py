"""Reads foreign ops again once their operands have become constants."""

from __future__ import annotations

from collections.abc import Sequence

from qir.errors import QirError
from qir.frontend import frontend
from qir.ir.graph import Graph
from qir.ir.inlining import inline
from qir.ir.node import Node, Value
from qir.ledger import Change, Ledger
from qir.rewrite.runner.filter import may


def read_again(graph: Graph, node: Node, ledger: Ledger, step: str) -> Sequence[Node]:
    """Replaces a foreign node by ops of the language; returns them, or none if it stays."""
    if node.op != "foreign" or node.bodies or node.schemes:
        return ()
    # The frontend kept it because some operand was computed; only a constant can change that.
    if all(value.constant is None for value in node.operands.values()):
        return ()
    try:
        body = frontend(str(node.attrs["framework"])).read_again(node)
    except QirError:
        return ()
    if body is None or not _fits(node, body) or not may(step, f"read {node.attrs['op']!s}", node):
        return ()
    operands = {value.name: value for value in node.operands.values()}
    names = [value.name for value in node.results]
    for value in node.results:
        # The values that replace the results have their names, so the results give these up first.
        graph.rename(value, graph.fresh(f"{value.name}.foreign"))
    copies = inline(graph, body, [operands[value.name] for value in body.inputs], node)
    for old, found, name in zip(node.results, body.outputs.values(), names, strict=True):
        _replace(graph, old, copies[found], name)
        ledger.add(Change.EXACT, step, name, "read again: more of its operands are constants")
    graph.remove(node)
    return list(dict.fromkeys(v.node for v in copies.values() if v not in operands.values()))


def _fits(node: Node, body: Graph) -> bool:
    """Returns whether those who read the results find the same kind of elements."""
    found = [value.type for value in body.outputs.values()]
    wanted = [value.type for value in node.results]
    return [(t.element, t.rank) for t in found] == [(t.element, t.rank) for t in wanted]


def _replace(graph: Graph, old: Value, new: Value, name: str) -> None:
    """Gives readers the new value, under the name and with the sizes that were known before."""
    if new.node.op != "input" and new.name == name:
        # Sizes that the graph's outputs declare stay; elsewhere known ones fill in unknown ones.
        is_output = any(use.node.op == "output" for use in old.uses)
        pairs = zip(old.type.shape, new.type.shape, strict=True)
        sizes = old.type.shape if is_output else tuple(n if o is None else o for o, n in pairs)
        graph.set_type(new, new.type.with_shape(sizes))
        graph.set_lineage(new, old.lineage)
    graph.replace(old, new)
