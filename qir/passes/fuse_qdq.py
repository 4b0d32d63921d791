"""From QDQ form to integer form: dequantize, op, quantize become the op on codes."""

from __future__ import annotations

from dataclasses import dataclass

from qir.ir.graph import Graph
from qir.ir.ops import spec
from qir.rewrite.fusing import PRODUCTS, Fusing, Match, counts_accumulator, moves_codes


@dataclass(frozen=True)
class FuseQdq(Fusing):
    """Fuses every op that has an integer form, with the activations that follow it.

    What only moves codes must find and leave one map, though concat may convert; a bias must count
    in the accumulator's own unit.
    """

    name = "fuse-qdq"

    def allows(self, match: Match, graph: Graph) -> bool:
        if match.quantize is None or not counts_accumulator(match):
            return False
        if match.head.op in PRODUCTS:
            gains = (match.head.attrs.get("alpha", 1.0), match.head.attrs.get("beta", 1.0))
            return match.bias is None or gains == (1.0, 1.0)
        traits = spec(match.head.op).traits
        return not traits.same_params or match.head.op == "concat" or moves_codes(match)
