"""The pass runner: works on a copy, verifies after each pass, and says what changed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from qir.errors import PassError, QirError
from qir.ir.graph import Graph
from qir.ir.verify import errors
from qir.ledger import Ledger
from qir.rewrite.tolerance import EXACT, Tolerance


@dataclass(frozen=True)
class Pass(ABC):
    """One rewriting of a graph; its fields are its options.

    `run` changes the graph in place and says how many things it changed: 0 means untouched. It
    need not leave a valid graph in the middle, but must at the end.
    """

    name: ClassVar[str]
    nested: ClassVar[bool] = True
    """Whether it runs on bodies too, each by itself, inner ones first."""
    requires: ClassVar[tuple[str, ...]] = ()
    """Names of properties (`qir.rewrite.properties`) that a graph must have for it to run."""
    ensures: ClassVar[tuple[str, ...]] = ()
    """Names of properties that every graph has when it has run."""
    tolerance: ClassVar[Tolerance] = EXACT
    """How far it may move numbers; what says nothing may move none."""

    @abstractmethod
    def run(self, graph: Graph, ledger: Ledger) -> int:
        """Rewrites the graph; the ledger hears of every change of numbers."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one pass did."""

    name: str
    changed: int
    seconds: float


def run_passes(
    graph: Graph,
    passes: Iterable[Pass],
    ledger: Ledger,
    *,
    after: Callable[[Report, Graph], None] | None = None,
) -> Graph:
    """Runs passes on a copy and gives the copy; the caller's graph stays as it was.

    Raises PassError, naming pass and node, where a pass breaks its contract or fails.
    """
    work = graph.copy()
    passes = tuple(passes)
    if passes and (faults := errors(work)):
        raise PassError(f"no pass runs on a graph that is broken: {faults[0]}")
    for one in passes:
        before, started = work.version, time.perf_counter()
        try:
            graphs = [graph for _, graph in work.walk()] if one.nested else [work]
            changed = sum(one.run(graph, ledger) for graph in graphs)
        except QirError:
            raise
        except Exception as error:
            raise PassError(f"pass {one.name}: {type(error).__name__}: {error}") from error
        if (changed == 0) != (work.version == before):
            said = "no change" if changed == 0 else f"{changed} changes"
            raise PassError(f"pass {one.name} reports {said}, the graph says otherwise")
        faults = errors(work)
        if faults:
            raise PassError(f"pass {one.name} leaves a broken graph: {faults[0]}")
        if after:
            after(Report(one.name, changed, time.perf_counter() - started), work)
    return work
