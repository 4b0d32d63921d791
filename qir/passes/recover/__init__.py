"""Finds ops in what exporters have taken apart.

Each file has the patterns of one family. A family is looked for in the whole graph before the next
one, in an order in which what one makes is there when another asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.recover import (
    attention,
    batch_norm,
    clip,
    gelu,
    group_norm,
    lengths,
    norm,
    relus,
    rotary,
    sigmoids,
    softmax,
    softplus,
    squeeze_excite,
)
from qir.rewrite.rewriting import PatternPass, Rewrite, rewrite
from qir.rewrite.tolerance import REGROUPED

FAMILIES: dict[str, tuple[Rewrite, ...]] = {
    "relus": relus.REWRITES,
    "clip": clip.REWRITES,
    "gelu": gelu.REWRITES,
    "sigmoids": sigmoids.REWRITES,
    "softplus": softplus.REWRITES,
    "softmax": softmax.REWRITES,
    "attention": attention.REWRITES,
    "group-norm": group_norm.REWRITES,
    "norm": norm.REWRITES,
    "lengths": lengths.REWRITES,
    "rotary": rotary.REWRITES,
    "batch-norm": batch_norm.REWRITES,
    "squeeze-excite": squeeze_excite.REWRITES,
}


@dataclass(frozen=True)
class Recover(PatternPass):
    """Decomposed patterns become the ops that they are: gelu, layer_norm, softmax, attention.

    A constant may be off by 1e-5 of itself, as six written digits are; what has other uses inside
    stays. `only` names the families to look for, with a + between two. Sizes and scales that a
    model computes at run time are to be folded first (fold-shapes, fold-constants).
    """

    name = "recover"
    tolerance = REGROUPED
    rewrites = tuple(one for family in FAMILIES.values() for one in family)
    only: str = ""

    def __post_init__(self) -> None:
        for name in self._named():
            if name not in FAMILIES:
                raise UsageError(f"recover has no family {name!r}; it has {', '.join(FAMILIES)}")

    def _named(self) -> list[str]:
        return [name.strip() for name in self.only.split("+") if name.strip()]

    def chosen(self) -> tuple[Rewrite, ...]:
        named = self._named() or list(FAMILIES)
        return tuple(one for name in named for one in FAMILIES[name])

    def run(self, graph: Graph, ledger: Ledger) -> int:
        """Family by family, so that a graph without them costs one look each."""
        named = self._named()
        found = [family for name, family in FAMILIES.items() if not named or name in named]
        return sum(rewrite(graph, family, ledger, self.name) for family in found)
