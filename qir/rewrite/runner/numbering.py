"""Numbers and records rewrites, and stops after a limit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from qir.errors import PassError
from qir.ir.graph import Graph
from qir.ir.node import Node, RewriteFilter, Value
from qir.ir.origin import Origin
from qir.rewrite.runner.filter import asking

WHOLE = "all of it"
"""The one rewrite of a pass that asks for none of its changes."""
_REWRITES_PER_NODE = 100
"""Rewrites of one pass for each node of the graph, and as many hundreds more."""


@dataclass(frozen=True, slots=True)
class RewriteStep:
    """One rewrite that was done."""

    number: int
    """From 1, through all passes of a run."""
    by: str
    """The pass."""
    rewrite: str
    node: str
    """The name of its node before, with the path of the body that it is in."""
    origins: tuple[Origin, ...] = ()
    """Of all nodes that it was about."""

    def __str__(self) -> str:
        return f"rewrite {self.rewrite} at {self.node}"


@dataclass
class Numbering:
    """Numbers the rewrites of a run, and allows at most `limit` of them."""

    graph: Graph
    limit: int | None = None
    steps: list[RewriteStep] = field(default_factory=list)
    path: str = ""
    stopped: bool = False
    """Whether a rewrite was left out."""
    nodes: tuple[Node, ...] = ()
    """What the last rewrite was about."""
    last_operands: tuple[Value, ...] = ()
    """The operands that its node had, which tell where it stood when it is gone."""
    before_rewrite: Callable[[], None] = lambda: None
    """Called before each rewrite."""
    _asked: RewriteStep | None = None
    _version_at_rewrite: int = -1
    _first: int = 0
    _most: int = 0

    @property
    def full(self) -> bool:
        """Whether no more rewrites may be done."""
        return self.limit is not None and len(self.steps) >= self.limit

    @property
    def last(self) -> RewriteStep | None:
        """The last rewrite that this pass began; None where it asked for none."""
        return self.steps[-1] if len(self.steps) > self._first else None

    @property
    def first(self) -> int:
        """How many rewrites the passes before this one did."""
        return self._first

    @property
    def last_asked(self) -> RewriteStep | None:
        """The last rewrite that this pass began, though it may have changed nothing."""
        return self._asked

    @property
    def done(self) -> list[RewriteStep]:
        """The rewrites of the pass that runs, or ran last."""
        return self.steps[self._first :]

    def begin(self) -> None:
        """Forgets what the pass before was about, and allows this one so many rewrites."""
        self._first, self.nodes, self.path = len(self.steps), (), ""
        self.last_operands = ()
        self._asked = None
        # A small graph may need more rewrites than it has nodes times this, hence the second term.
        self._most = _REWRITES_PER_NODE * (len(self.graph) + _REWRITES_PER_NODE)
        self._version_at_rewrite = -1

    def end(self, by: str, changed: int) -> tuple[RewriteStep, ...]:
        """Returns the rewrites of the pass that ran; changes for which none was asked count as
        one."""
        self._drop_idle_rewrite()
        # A pass that never asks is one rewrite, so that bisection can name it.
        if changed and len(self.steps) == self._first and not self.stopped:
            self.steps.append(RewriteStep(self._first + 1, by, WHOLE, self.graph.name))
        return tuple(self.done)

    def __call__(self, by: str, rewrite: str, nodes: tuple[Node, ...]) -> bool:
        self._drop_idle_rewrite()
        self.before_rewrite()
        # Asked before anything is numbered: what is refused is no step.
        if self.full:
            self.stopped = True
            return False
        node = nodes[0]
        self.last_operands = tuple(node.operands.values())
        if len(self.steps) - self._first >= self._most:
            self.nodes = nodes
            raise PassError(
                f"pass {by}: rewrite {rewrite} at {node.name}: it goes on for ever; "
                f"{self._most:,} rewrites were done"
            )
        origins = tuple(dict.fromkeys(o for n in nodes for o in n.origins))
        # The name is kept as text, as the node may be gone when it is shown.
        number, name = len(self.steps) + 1, f"{self.path}{node.name}"
        self._asked = RewriteStep(number, by, rewrite, name, origins)
        self.steps.append(self._asked)
        self.nodes, self._version_at_rewrite = nodes, self.graph.version
        return True

    def _drop_idle_rewrite(self) -> None:
        """Takes back the number of a rewrite that changed nothing after all."""
        if self._version_at_rewrite == self.graph.version and len(self.steps) > self._first:
            self.steps.pop()
        self._version_at_rewrite = -1


def watched(numbering: Numbering, allow: RewriteFilter) -> AbstractContextManager[None]:
    """Sets a numbering as the filter of its graph; it numbers what `allow` lets through."""

    def ask(by: str, rewrite: str, nodes: tuple[Node, ...]) -> bool:
        # The caller's filter first: what it refuses must not count towards the limit.
        return allow(by, rewrite, nodes) and numbering(by, rewrite, nodes)

    return asking(numbering.graph, ask)
