"""The pass interface and what a pass promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.rewrite.patterns.conditions import Place
from qir.rewrite.runner.tolerance import EXACT, Tolerance


@dataclass(frozen=True)
class Pass(ABC):
    """One pass over a graph; its fields are its options.

    `run` changes the graph in place and says how many things it changed: 0 means untouched. It
    need not leave a valid graph in the middle, but must at the end, with the inputs and outputs
    that it had. Before each change it asks `qir.rewrite.runner.filter.may`, so that its changes are
    numbered and can be searched; a change is at least one edit, and may be several.
    """

    name: ClassVar[str]
    nested: ClassVar[bool] = True
    """Whether it runs on bodies too, each by itself, inner ones first."""
    requires: ClassVar[tuple[str, ...]] = ()
    """Properties (`qir.rewrite.runner.properties`) that a graph must have for it to run."""
    ensures: ClassVar[tuple[str, ...]] = ()
    """Names of properties that every graph has when it has run."""
    tolerance: ClassVar[Tolerance] = EXACT
    """How far it may move numbers; what says nothing may move none."""
    places: ClassVar[tuple[Place, ...]] = ()
    """Where it does its rewrites, for `qir why-not`; one that is patterns need say nothing."""

    def require_least(self, **least: int) -> None:
        """Raises UsageError where an option, by the name of its field, is less than it may be."""
        for field, bound in least.items():
            if (value := getattr(self, field)) < bound:
                name = field.replace("_", "-")
                raise UsageError(f"pass {self.name}: option {name} = {value} is below {bound}")

    @abstractmethod
    def run(self, graph: Graph, ledger: Ledger) -> int:
        """Rewrites the graph, and writes every change of numbers into the ledger."""

    def explain_no_change(self, graph: Graph, ledger: Ledger) -> None:
        """Says in the ledger why a graph that the pass left untouched stays as it is, if asked."""
        return
