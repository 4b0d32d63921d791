"""From QDQ form to integer form: dequantize, op, quantize become the op on codes."""

from __future__ import annotations

from dataclasses import dataclass

from qir.ir.graph import Graph
from qir.ir.ops import spec
from qir.numerics import profile, query_of
from qir.numerics.parameters import MOST_BITS
from qir.rewrite.fusing import (
    INTEGER,
    LINES,
    PRODUCTS,
    Fusing,
    Match,
    counts_accumulator,
    moves_codes,
)

_KNOWN = (
    INTEGER
    | LINES
    | frozenset(
        "avg_pool1d avg_pool3d max_pool1d max_pool3d gather expand tile depth_to_space "
        "resize_nearest where".split()
    )
)
"""Ops that have an integer form, those too that no target asks for by itself."""


@dataclass(frozen=True)
class FuseQdq(Fusing):
    """Fuses every op that has an integer form, with the activations that follow it.

    What only moves codes must find and leave one map, though concat may convert; a bias must count
    in the accumulator's own unit. Products of codes too wide for sums of 32 bits stay real, and so
    does what has no kernel for codes of its width.
    """

    name = "fuse-qdq"

    def known(self, graph: Graph) -> frozenset[str]:
        return _KNOWN

    def allows(self, match: Match, graph: Graph) -> bool:
        if match.quantize is None or not counts_accumulator(match) or self._too_wide(match, graph):
            return False
        if match.head.op in PRODUCTS:
            gains = (match.head.attrs.get("alpha", 1.0), match.head.attrs.get("beta", 1.0))
            return match.bias is None or gains == (1.0, 1.0)
        traits = spec(match.head.op).traits
        return not traits.same_params or match.head.op == "concat" or moves_codes(match)

    def _too_wide(self, match: Match, graph: Graph) -> bool:
        head, traits = match.head, spec(match.head.op).traits
        named = profile(head.profile) if head.profile else self.named(graph) or profile("native")
        rule = named.resolve(query_of(head))
        bits = {s: v.type.quant.storage.bits for s, v in match.codes.items() if v.type.quant}
        if head.op in PRODUCTS | LINES:
            narrow = rule.acc.type == "i32"
            return narrow and bits.get(traits.data, 0) + bits.get(traits.weight or "", 0) > _BITS
        most = MOST_BITS.get(rule.method.name) if rule.method else None
        return most is not None and max(bits.values(), default=0) > most


_BITS = 16
"""Of both factors of a product that sums of 32 bits are made for."""
