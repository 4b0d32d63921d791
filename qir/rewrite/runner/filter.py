"""Asking before every rewrite whether to do it: so rewrites are numbered, told and stopped.

Whoever runs passes sets `watching`; a pass asks `may` before each of its changes, and leaves out
what it may not do. Passes that are patterns ask by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeAlias

from qir.ir.node import Node

Watch: TypeAlias = "Callable[[str, str, tuple[Node, ...]], bool]"
"""Whether to do a rewrite, asked of pass, rewrite and the nodes that it is about, its own first."""
watching: ContextVar[Watch | None] = ContextVar("watching", default=None)
"""Asked before every rewrite, whether to do it."""


def may(step: str, rewrite: str, *nodes: Node) -> bool:
    """Whether a pass may do this at these nodes, the one it is named by first.

    Asked once, just before the change; what may not be done now is not tried again in this run.
    """
    watch = watching.get()
    return watch is None or watch(step, rewrite, nodes)
