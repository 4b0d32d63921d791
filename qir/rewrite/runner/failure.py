"""Describes where a pass failed, with the nodes around."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from types import TracebackType

from qir.errors import (
    GraphError,
    OpError,
    ParseError,
    PassError,
    QirError,
    TypeRuleError,
    VerifyError,
)
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.rewrite.runner.contract_violation import locate_node
from qir.rewrite.runner.numbering import Numbering
from qir.rewrite.runner.timeout import TooLong

AROUND = 10
"""Nodes that are shown, the one that it is about among them."""
FAULTS = (GraphError, TypeRuleError, ParseError, OpError, VerifyError)
"""What a pass does not raise on purpose."""


def failed(name: str, error: BaseException, numbering: Numbering) -> tuple[QirError, str]:
    """Returns the error to raise where a pass raised one, and the node that it was at, if any.

    What was meant for a user stays what it is; raised within a rewrite, it says which.
    """
    node = _node_of(error, numbering)
    at = f"{numbering.path}{node.name}" if node else ""
    # Other exceptions are faults of the pass, whose type says more than their text: KeyError: 'x'.
    is_described = isinstance(error, QirError | TooLong)
    message = str(error) if is_described else f"{type(error).__name__}: {error}".rstrip(": ")
    names_pass = message.startswith(f"pass {name}")
    if isinstance(error, QirError) and not isinstance(error, (PassError, *FAULTS)):
        # An error that is meant for the user keeps its type: callers tell by it what is at fault.
        if numbering.last is None or names_pass:
            return error, at
        return type(error)(f"pass {name}: {numbering.last}: {message}"), at
    if not (isinstance(error, PassError) and names_pass):
        message = f"pass {name}: {place(numbering, at)}: {message}"
    return PassError(message), at


def noted(error: QirError, node: str, *graphs: Graph, neighbours: Iterable[str] = ()) -> QirError:
    """Returns an error with ten nodes as a note: around one, in the first graph that has it.

    Where none has it they are around the first of those that stood next to it; where it is about no
    node, they are the first ones of the first graph.
    """
    excerpt = next(filter(None, (around(graph, node) for graph in graphs)), "")
    # A rewrite may have removed the node that it failed at; its neighbours in the graph before it
    # still show the place.
    for neighbour in () if excerpt else neighbours:
        excerpt = excerpt or next(filter(None, (around(graph, neighbour) for graph in graphs)), "")
    error.add_note(excerpt or _beginning(graphs[0]))
    return error


def around(graph: Graph, name: str) -> str:
    """Returns ten nodes around a named node of the graph or body, an arrow at it.

    The name may have the path of its body before it.
    """
    found = locate_node(graph, name) if name else None
    if found is None:
        return ""
    path, node, part = found
    nodes = list(part)
    position = nodes.index(node)
    first = max(0, min(position - AROUND // 2, len(nodes) - AROUND))
    lines = [f"{'->' if n is node else '  '} {n!r}" for n in nodes[first : first + AROUND]]
    where = f"{graph.name}/{path}".removesuffix("/")
    return "\n".join([f"in {where}:", *lines])


def _beginning(graph: Graph) -> str:
    lines = [f"   {node!r}" for node in islice(graph, AROUND)]
    return "\n".join([f"{graph.name} begins with:", *lines])


def place(numbering: Numbering, node: str) -> str:
    """Returns the rewrite that a pass was in, else the node that it was at, in words."""
    if numbering.last is not None:
        return str(numbering.last)
    return f"at {node}, before any rewrite" if node else "before any rewrite, at no node"


def _node_of(error: BaseException, numbering: Numbering) -> Node | None:
    """Returns the node that a pass was at: of its last rewrite, else what its innermost frames
    hold."""
    # The nodes of the last rewrite, the root first.
    if numbering.nodes:
        return numbering.nodes[0]
    frames: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    # The pass has asked for no rewrite: the node is found among the locals of its innermost frame.
    for frame in reversed(frames):
        nodes = (v for v in frame.tb_frame.f_locals.values() if isinstance(v, Node))
        if (node := next((n for n in nodes if n.results), None)) is not None:
            return node
    return None
