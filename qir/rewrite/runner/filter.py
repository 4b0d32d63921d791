"""Filters rewrites: each is allowed or skipped, so that rewrites can be counted and stopped.

The runner sets the filter by `asking`. A pass calls `may` before each change and skips the change
if it returns False; patterns call it by themselves. `Pass.run(graph, ledger)` has no argument for a
filter, so it is a context variable of the thread, set only while passes run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from qir.ir.node import Node

Watch: TypeAlias = "Callable[[str, str, tuple[Node, ...]], bool]"
"""Returns whether a rewrite is allowed, from the pass, the rewrite and its nodes, root first."""


def allow_all(step: str, rewrite: str, nodes: tuple[Node, ...]) -> bool:
    """Allows every rewrite."""
    return True


_watching: ContextVar[Watch] = ContextVar("watching", default=allow_all)


def current_filter() -> Watch:
    """Returns the filter that is asked before each rewrite."""
    return _watching.get()


@contextmanager
def asking(watch: Watch) -> Iterator[None]:
    """Sets the filter inside a `with` block, instead of the one outside.

    A filter that extends the outer one calls `current_filter` first, and then calls its result.
    """
    token = _watching.set(watch)
    try:
        yield
    finally:
        _watching.reset(token)


def may(step: str, rewrite: str, *nodes: Node) -> bool:
    """Returns whether a pass may apply a rewrite at these nodes; the first one is its root.

    A pass calls it once, just before the change. A rewrite that is skipped is not tried again in
    the same run.
    """
    return current_filter()(step, rewrite, nodes)
