"""What is said of a pass that fails: where it was, and the nodes around."""

from __future__ import annotations

from types import TracebackType

from qir.errors import GraphError, ParseError, PassError, QirError, TypeRuleError
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.rewrite.numbering import Numbering

AROUND = 10
"""Nodes that are shown, the one that it is about among them."""
FAULTS = (GraphError, TypeRuleError, ParseError)
"""What a pass does not raise on purpose."""


def failed(name: str, error: Exception, numbering: Numbering, before: Graph) -> QirError:
    """The error to raise where a pass raised one: its own, if it was meant, else a PassError."""
    node = _node_of(error, numbering)
    if isinstance(error, QirError) and not isinstance(error, (PassError, *FAULTS)):
        return error
    said = str(error) if isinstance(error, QirError) else f"{type(error).__name__}: {error}"
    if not (isinstance(error, PassError) and said.startswith(f"pass {name}")):
        said = f"pass {name}: {_place(numbering, node)}{said}"
    return noted(PassError(said), numbering.graph, before, node.name if node else "")


def noted(error: PassError, graph: Graph, before: Graph, node: str) -> PassError:
    """An error with the nodes around one as a note, as they are now, or else were before."""
    shown = around(graph, node) or around(before, node)
    if shown:
        error.add_note(shown)
    return error


def around(graph: Graph, name: str) -> str:
    """Ten nodes of the graph or body that has a value of that name, an arrow at its own."""
    for path, part in graph.walk():
        if not part.has(name):
            continue
        nodes, wanted = list(part), part[name].node
        at = nodes.index(wanted)
        first = max(0, min(at - AROUND // 2, len(nodes) - AROUND))
        lines = [f"{'->' if n is wanted else '  '} {n!r}" for n in nodes[first : first + AROUND]]
        return "\n".join([f"in {path}:", *lines])
    return ""


def _place(numbering: Numbering, node: Node | None) -> str:
    step = numbering.last
    if step is not None:
        return f"{step}: "
    return f"at {node.name}: " if node is not None else ""


def _node_of(error: Exception, numbering: Numbering) -> Node | None:
    """The node that a pass was at: of its last rewrite, else what its innermost frames hold."""
    if numbering.nodes:
        return numbering.nodes[0]
    frames: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    for frame in reversed(frames):
        held = (v for v in frame.tb_frame.f_locals.values() if isinstance(v, Node))
        if (node := next((n for n in held if n.results), None)) is not None:
            return node
    return None
