"""The arguments of a preparation step of a profile, apart from the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Ledger
from qir.profiles import Profile


@dataclass
class Preparation:
    """One run of all steps of a profile over one graph."""

    profile: Profile
    ledger: Ledger
    name: str
    """The pass that runs the steps, as the ledger names it."""
    wrap: Callable[[Graph], object]
    """Makes kernels of a graph of its own, to try one out."""
    default_weights: set[Node] = field(default_factory=set)
    """Products whose weights the caller may give: a step has quantized the default, and a runtime
    makes the quantized values when it runs."""

    @property
    def moving(self) -> frozenset[str]:
        """The ops over which the runtime moves quantize and dequantize."""
        return frozenset(g.chain[0] for g in self.profile.groups if g.propagates)
