"""Finds ops that exporters have decomposed, such as gelu or layer norm.

    graph main as native {
      %x = input() : 2xf32
      %s = sigmoid(%x) : 2xf32
      %y = mul(%x, %s) : 2xf32
      output(y=%y)
    }

By `recover` it becomes:

    graph main as native {
      %x = input() : 2xf32
      %y = silu(%x) : 2xf32
      output(y=%y)
    }

Each file has the patterns of one family. A family is looked for in the whole graph before the next
one, in an order in which what one makes is there when another asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.recover import (
    attention,
    batch_norm,
    clip,
    gelu,
    group_norm,
    lp_normalize,
    norm,
    pools,
    relus,
    rotary,
    sigmoids,
    softmax,
    softplus,
    squeeze_excite,
)
from qir.rewrite import Pass
from qir.rewrite.patterns.pattern import Either, Many, Op, Out
from qir.rewrite.patterns.rewriting import PatternPass, Rewrite, rewrite
from qir.rewrite.runner.tolerance import REGROUPED

FAMILIES: dict[str, tuple[Rewrite, ...]] = {
    "relus": relus.REWRITES,
    "clip": clip.REWRITES,
    "gelu": gelu.REWRITES,
    "sigmoids": sigmoids.REWRITES,
    "softplus": softplus.REWRITES,
    "softmax": softmax.REWRITES,
    "attention": attention.REWRITES,
    "norm": norm.REWRITES,
    "group-norm": group_norm.REWRITES,
    "lengths": lp_normalize.REWRITES,
    "rotary": rotary.REWRITES,
    "batch-norm": batch_norm.REWRITES,
    "squeeze-excite": squeeze_excite.REWRITES,
    "pools": pools.REWRITES,
}
"""The rewrites of each family, in the order in which they are looked for."""


@dataclass(frozen=True)
class Recover(PatternPass):
    """Rewrites decomposed ops as one: gelu, layer_norm, softmax, attention.

    A constant may be off by 1e-5 of itself, as six written digits are; what has other uses inside
    stays. `only` names the families to look for: `only=[gelu, norm]`. Sizes and scales that a model
    computes at run time are to be folded first (fold-shapes, fold-constants). `halves` says that
    cosines and sines that come in as inputs have two equal halves, as rotary wants them.
    """

    name = "recover"
    tolerance = REGROUPED
    rewrites = tuple(one for family in FAMILIES.values() for one in family)
    only: tuple[str, ...] = ()
    halves: bool = False

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a gelu in its parts."""
        text = (
            "graph main as native {\n  %x = input() : 2x3xf32\n"
            "  %root = constant(1.4142135) : f32\n  %half = constant(0.5) : f32\n"
            "  %one = constant(1.0) : f32\n  %d = div(%x, %root) : 2x3xf32\n"
            "  %e = erf(%d) : 2x3xf32\n  %p = add(%e, %one) : 2x3xf32\n"
            "  %m = mul(%x, %p) : 2x3xf32\n  %y = mul(%m, %half) : 2x3xf32\n  output(y=%y)\n}\n"
        )
        yield cls(), parse(text)

    def __post_init__(self) -> None:
        # A single name is common in Python, and would else be read letter by letter.
        families = (self.only,) if isinstance(self.only, str) else tuple(self.only)
        object.__setattr__(self, "only", families)
        for name in families:
            if name not in FAMILIES:
                raise UsageError(f"recover has no family {name!r}; it has {', '.join(FAMILIES)}")

    def chosen(self) -> tuple[Rewrite, ...]:
        families = self.only or tuple(FAMILIES)
        return tuple(family_rewrite for name in families for family_rewrite in self._family(name))

    def _family(self, name: str) -> tuple[Rewrite, ...]:
        extra = rotary.DECLARED_REWRITES if self.halves and name == "rotary" else ()
        return (*FAMILIES[name], *extra)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        """Family by family; one whose ops the graph does not have costs nothing."""
        requested, count, rewritten = self.only, 0, -1
        for name in FAMILIES:
            if requested and name not in requested:
                continue
            family = self._family(name)
            # Ops are counted anew only after a family has changed the graph.
            if rewritten:
                present_ops = frozenset(node.op for node in graph)
            if any(_can_match(one.pattern.results[0], present_ops) for one in family):
                rewritten = rewrite(graph, family, ledger, self.name)
                count += rewritten
            else:
                rewritten = 0
        return count


def _can_match(term: object, present_ops: frozenset[str]) -> bool:
    """Returns whether a graph of such ops has all that a pattern cannot do without."""
    match term:
        case Op():
            return not present_ops.isdisjoint(term.ops) and all(
                _can_match(operand, present_ops) for operand in term.operands.values()
            )
        case Out():
            return _can_match(term.op, present_ops)
        case Either():
            return any(_can_match(alternative, present_ops) for alternative in term.terms)
        case Many():
            return all(_can_match(item, present_ops) for item in term.items)
    return True
