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
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ir.ops.layers import INTEGER_SUM_LAYERS
from qir.ir.types import QuantType
from qir.ledger import Change, Ledger
from qir.profiles import profile, profile_in
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
        "space_to_depth resize_nearest where".split()
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

    def fusible_ops(self, graph: Graph) -> frozenset[str]:
        return _FUSIBLE_OPS

    def run(self, graph: Graph, ledger: Ledger) -> int:
        # Splits come first: the parts are then operands of the chains that `Fusing.run` looks for.
        split_count = sum(
            self._split_quantized(graph, node, ledger) for node in list(graph) if node.op == "split"
        )
        return split_count + super().run(graph, ledger)

    def allows(self, match: ChainMatch, graph: Graph) -> bool:
        if (
            match.quantize is None
            or not has_accumulator_bias(match)
            or self._too_wide(match, graph)
        ):
            return False
        # As floats they are infinite, which no integer kernel computes.
        if floats_overflow(
            (*match.operands.values(), *match.summands.values()), match.last.result.type
        ):
            return False
        if match.anchor.op in INTEGER_SUM_LAYERS:
            # An integer bias is in the unit of the sums, which a factor of gemm would change.
            gains = (match.anchor.attrs.get("alpha", 1.0), match.anchor.attrs.get("beta", 1.0))
            return match.bias is None or gains == (1.0, 1.0)
        traits = spec(match.anchor.op).traits
        # Quantized kernels of concat convert each part; all others copy integers as they are.
        return not traits.same_params or match.anchor.op == "concat" or only_moves_quantized(match)

    def _split_quantized(self, graph: Graph, node: Node, ledger: Ledger) -> bool:
        """Splits the quantized value instead of its floats, if all parts have the same type."""
        source = quantized_source(node, "x", node.operands["x"])
        quant = source.type.quant if source is not None else None
        if source is None or quant is None or quant.granularity is not None:
            return False
        quantizes = [[use.node for use in value.uses] for value in node.results]
        if not all(
            _quantizes_to(end, quant) for readers in quantizes for end in readers
        ) or not any(quantizes):
            return False
        if not may(self.name, "split", node, *(end for readers in quantizes for end in readers)):
            return False
        dequantize = node.operands["x"].node
        new_names = [graph.fresh(f"{v.name}.codes") for v in node.results]
        split_node = graph.add(
            "split",
            {"x": source},
            node.attrs,
            name=new_names,
            before=node,
            origins=node.origins,
            profile=node.profile,
        )
        graph.set_slot_origins(split_node, "x", dequantize.origins)
        for value, readers in zip(split_node.results, quantizes, strict=True):
            old_names = [(end.result.name, end.result.lineage) for end in readers]
            for end in readers:
                graph.replace(end.result, value)
                graph.remove(end)
            # The first reader's name stands for all: they held the same integers.
            if old_names:
                graph.rename(value, old_names[0][0])
                graph.set_lineage(value, old_names[0][1])
        name = node.name
        graph.remove(node)
        if not dequantize.result.uses:
            graph.remove(dequantize)
        ledger.add(Change.REGROUPED, self.name, name, "split on quantized values, rounded once")
        return True

    def _too_wide(self, match: ChainMatch, graph: Graph) -> bool:
        """Returns whether a kernel's sums could wrap in 32 bits, or its method lacks the width."""
        anchor, traits = match.anchor, spec(match.anchor.op).traits
        own_profile = profile_in(graph, anchor.profile) if anchor.profile else None
        # The op's own profile, then the one it is fused for: the kernel that would run is asked.
        rules = own_profile or self.kernel_profile(graph) or profile("native")
        rule = rules.resolve(match.query)
        bits = {
            slot: value.type.quant.storage.bits
            for slot, value in match.operands.items()
            if value.type.quant
        }
        if anchor.op in INTEGER_SUM_LAYERS | CONVOLUTIONS_1D_3D:
            # Kernels that sum in float or in 64 bits have no 32-bit sum that could wrap.
            if rule.acc.type != "i32":
                return False
            is_wide = (
                bits.get(traits.data, 0) + bits.get(traits.weight or "", 0) > _INT32_FACTOR_BITS
            )
            from qir.analysis.int32_overflow import overflow_text  # and with it the verifier

            return is_wide or bool(overflow_text(graph, anchor))
        widest_bits = widest(rule.method.name) if rule.method else None
        return widest_bits is not None and max(bits.values(), default=0) > widest_bits


def _quantizes_to(reader: Node, quant: QuantType) -> bool:
    """Returns whether a reader quantizes to a type, by the profile's rounding."""
    if reader.op != "quantize" or reader.attrs["round"] or len(reader.operands) > 1:
        return False
    result_type = reader.result.type.quant
    return result_type is not None and result_type == quant


_INT32_FACTOR_BITS = 16
"""Bits of both factors together for which 32-bit sums are made: 8 and 8."""
