"""Asks before every rewrite whether to do it, so that rewrites can be counted and stopped.

Whoever runs passes says `asking`; a pass asks `may` before each of its changes, and leaves out
what it may not do. Passes that are patterns ask by themselves. `Pass.run(graph, ledger)` has no
argument for it, so it is a context variable: of the thread alone, and set only while passes run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from qir.ir.node import Node

Watch: TypeAlias = "Callable[[str, str, tuple[Node, ...]], bool]"
"""Whether to do a rewrite, asked of pass, rewrite and the nodes that it is about, its own first."""


def allow_all(step: str, rewrite: str, nodes: tuple[Node, ...]) -> bool:
    """Allows every rewrite."""
    return True


_watching: ContextVar[Watch] = ContextVar("watching", default=allow_all)


def current_filter() -> Watch:
    """Returns the filter that is asked before each rewrite."""
    return _watching.get()


@contextmanager
def asking(watch: Watch) -> Iterator[None]:
    """Has this asked meanwhile, and nobody else: it may ask on those that are `asked` before."""
    token = _watching.set(watch)
    try:
        yield
    finally:
        _watching.reset(token)


def may(step: str, rewrite: str, *nodes: Node) -> bool:
    """Returns whether a pass may apply a rewrite at these nodes; the first one names it.

    Asked once, just before the change; what may not be done now is not tried again in this run.
    """
    return current_filter()(step, rewrite, nodes)
