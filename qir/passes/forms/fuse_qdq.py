"""Fuses dequantize, op and quantize into the op on quantized values.

    graph main as native {
      %x = input() : 2x!quant.uniform<u8:f32, 0.5:3>
      %d = dequantize(%x) : 2xf32
      %r = relu(%d) : 2xf32
      %y = quantize(%r) : 2x!quant.uniform<u8:f32, 0.25>
      output(y=%y)
    }

By `fuse-qdq` it becomes:

    graph main as native {
      %x = input() : 2x!quant.uniform<u8:f32, 0.5:3>
      %y = relu(%x) : 2x!quant.uniform<u8:f32, 0.25>
      output(y=%y)
    }
"""

from __future__ import annotations

from dataclasses import dataclass

from qir.analysis.float32_overflow import floats_overflow
from qir.analysis.int32_overflow import overflow_text
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ir.ops.layers import INTEGER_SUM_LAYERS
from qir.ir.types import QuantType
from qir.ledger import Change, Ledger
from qir.profiles import profile
from qir.profiles.methods import widest
from qir.rewrite.fusing import (
    CONVOLUTIONS_1D_3D,
    INTEGER_OPS,
    ChainMatch,
    Fusing,
    has_accumulator_bias,
    only_moves_quantized,
    quantized_source,
)
from qir.rewrite.runner.filter import may

_FUSIBLE_OPS = (
    INTEGER_OPS
    | CONVOLUTIONS_1D_3D
    | frozenset(
        "avg_pool1d avg_pool3d max_pool1d max_pool3d gather expand tile depth_to_space "
        "resize_nearest where".split()
    )
)
"""Ops with an integer form, including those that no target quantizes on its own account."""


@dataclass(frozen=True)
class FuseQdq(Fusing):
    """Fuses every op that has an integer form, with the activations that follow it.

    What only moves quantized values must find and leave one quantized type, though concat may
    convert; a bias must count in the accumulator's own unit. Integer products too wide for sums of
    32 bits stay float, those too whose sums would wrap in them, what has no kernel for quantized
    values of its width, and what is infinite in float32.
    """

    name = "fuse-qdq"

    def known(self, graph: Graph) -> frozenset[str]:
        return _FUSIBLE_OPS

    def run(self, graph: Graph, ledger: Ledger) -> int:
        parted = sum(self._part(graph, node, ledger) for node in list(graph) if node.op == "split")
        return parted + super().run(graph, ledger)

    def allows(self, match: ChainMatch, graph: Graph) -> bool:
        if (
            match.quantize is None
            or not has_accumulator_bias(match)
            or self._too_wide(match, graph)
        ):
            return False
        if floats_overflow(
            (*match.codes.values(), *match.summands.values()), match.last.result.type
        ):
            return False
        if match.head.op in INTEGER_SUM_LAYERS:
            gains = (match.head.attrs.get("alpha", 1.0), match.head.attrs.get("beta", 1.0))
            return match.bias is None or gains == (1.0, 1.0)
        traits = spec(match.head.op).traits
        return not traits.same_params or match.head.op == "concat" or only_moves_quantized(match)

    def _part(self, graph: Graph, node: Node, ledger: Ledger) -> bool:
        """Splits the quantized value instead of its floats, if all parts have the same type."""
        source = quantized_source(node, "x", node.operands["x"])
        quant = source.type.quant if source is not None else None
        if source is None or quant is None or quant.granularity is not None:
            return False
        ends = [[use.node for use in value.uses] for value in node.results]
        if not all(_quantizes_to(end, quant) for each in ends for end in each) or not any(ends):
            return False
        if not may(self.name, "split", node, *(end for each in ends for end in each)):
            return False
        given = node.operands["x"].node
        fresh = [graph.fresh(f"{v.name}.codes") for v in node.results]
        made = graph.add(
            "split",
            {"x": source},
            node.attrs,
            name=fresh,
            before=node,
            origins=node.origins,
            profile=node.profile,
        )
        graph.set_slot_origins(made, "x", given.origins)
        for value, each in zip(made.results, ends, strict=True):
            names = [(end.result.name, end.result.lineage) for end in each]
            for end in each:
                graph.replace(end.result, value)
                graph.remove(end)
            if names:
                graph.rename(value, names[0][0])
                graph.set_lineage(value, names[0][1])
        name = node.name
        graph.remove(node)
        if not given.result.uses:
            graph.remove(given)
        ledger.add(Change.REGROUPED, self.name, name, "split on quantized values, rounded once")
        return True

    def _too_wide(self, match: ChainMatch, graph: Graph) -> bool:
        """Returns whether a kernel's sums could wrap in 32 bits, or its method lacks the width."""
        head, traits = match.head, spec(match.head.op).traits
        named = profile(head.profile) if head.profile else self.named(graph) or profile("native")
        rule = named.resolve(match.query)
        bits = {s: v.type.quant.storage.bits for s, v in match.codes.items() if v.type.quant}
        if head.op in INTEGER_SUM_LAYERS | CONVOLUTIONS_1D_3D:
            if rule.acc.type != "i32":
                return False
            wide = bits.get(traits.data, 0) + bits.get(traits.weight or "", 0) > _INT32_FACTOR_BITS
            return wide or bool(overflow_text(graph, head))
        most = widest(rule.method.name) if rule.method else None
        return most is not None and max(bits.values(), default=0) > most


def _quantizes_to(end: Node, quant: QuantType) -> bool:
    """Returns whether a reader quantizes to a type, by the profile's rounding."""
    if end.op != "quantize" or end.attrs["round"] or len(end.operands) > 1:
        return False
    kept = end.result.type.quant
    return kept is not None and kept == quant


_INT32_FACTOR_BITS = 16
"""Bits of both factors together for which 32-bit sums are made: 8 and 8."""
