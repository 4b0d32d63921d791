"""Filters rewrites: each is allowed or skipped, so that rewrites can be counted and stopped.

A pass calls `may` before each change and skips the change if it returns False; patterns call it by
themselves. The filter belongs to the graph that is rewritten: the runner sets it with `asking`
while passes run, and `may` finds it by the graph of the nodes. So `Pass.run(graph, ledger)` needs
no argument for it, and passes on two graphs, in one thread or several, do not see each other's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qir.ir.graph import Graph
from qir.ir.node import GraphLike, Node, RewriteFilter


def allow_all(step: str, rewrite: str, nodes: tuple[Node, ...]) -> bool:
    """Allows every rewrite."""
    return True


def current_filter(graph: GraphLike | None) -> RewriteFilter:
    """Returns the filter that is asked before each rewrite: the graph's own, or that of its
    holder."""
    return (graph.rewrite_filter if graph is not None else None) or allow_all


@contextmanager
def asking(graph: Graph, rewrite_filter: RewriteFilter) -> Iterator[None]:
    """Sets the filter of a graph and its bodies inside a `with` block, instead of an earlier one.

    A filter that extends the earlier one calls `current_filter` first, and then calls its result.
    """
    earlier = graph._rewrite_filter
    graph._rewrite_filter = rewrite_filter
    try:
        yield
    finally:
        graph._rewrite_filter = earlier


def may(step: str, rewrite: str, *nodes: Node) -> bool:
    """Returns whether a pass may apply a rewrite at these nodes; the first one is its root.

    A pass calls it once, just before the change. A rewrite that is skipped is not tried again in
    the same run.
    """
    return current_filter(nodes[0].graph)(step, rewrite, nodes)
