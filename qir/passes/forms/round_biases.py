"""Rounds float biases of integer layers to the unit of their sums.

    graph main as tf-2.21.onednn {
      %x = input() : 1x2x2x2x!quant.uniform<u8:f32, 0.5>
      %w = constant(@w) : 1x2x1x1x!quant.uniform<i8:f32:0, {0.25}>
      %b = constant([1.3125]) : 1xf32
      %y = conv2d(%x, %w, bias=%b) : 1x1x2x2x!quant.uniform<u8:f32, 4.0>
      output(y=%y)
    }

By `round-biases` it becomes:

    graph main as tf-2.21.onednn {
      %x = input() : 1x2x2x2x!quant.uniform<u8:f32, 0.5>
      %w = constant(@w) : 1x2x1x1x!quant.uniform<i8:f32:0, {0.25}>
      %b = constant([10]) : 1xi32
      %y = conv2d(%x, %w, bias=%b) : 1x1x2x2x!quant.uniform<u8:f32, 4.0>
      output(y=%y)
    }

Some runtimes add biases to floats, others to the integer sums. A layer of the former gets an
integer kernel in the latter when its bias is a whole number of steps of its sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.ops.layers import TRANSPOSED
from qir.ir.types import Array
from qir.ledger import Change, Ledger
from qir.profiles import Profile, profile, query_on, reals_of
from qir.reference.interpreter import profile_of
from qir.rewrite import Pass
from qir.rewrite.fusing import TAILS, accumulator_scale

_GREATEST = float(2**31 - 1)


@dataclass(frozen=True)
class RoundBiases(Pass):
    """Replaces biases that a profile adds to floats by 32-bit integers in the sums' unit.

    A bias that does not fit 32 bits, or that would move results by more than one quantization
    step, stays float. The ledger says how far each bias moved in steps of its layer's result.
    """

    name = "round-biases"

    def run(self, graph: Graph, ledger: Ledger) -> int:
        found = [layer for node in list(graph) if (layer := _layer(graph, node)) is not None]
        count = sum(layer.round(graph, ledger) for layer in found)
        if count:
            graph.prune()
        return count


@dataclass(frozen=True)
class _Layer:
    """An integer layer whose bias is added to floats."""

    node: Node
    slot: str
    """The slot of the node, which may be a group, that holds the bias."""
    unit: NDArray[np.float32]
    """What one step of the sums means, for all channels or for each."""
    bias: NDArray[np.floating]

    def round(self, graph: Graph, ledger: Ledger) -> bool:
        """Puts integers in the place of the bias; False where it stays float."""
        with np.errstate(all="ignore"):
            whole = np.rint(self.bias / self.unit.astype(np.float64))
        if not np.all(np.abs(whole) <= _GREATEST):
            said = "its bias does not fit 32 bits in the unit of its sums: it stays float"
            ledger.add(Change.EXACT, RoundBiases.name, self.node.name, said)
            return False
        moved = self._moved(whole)
        if not moved < 1:
            said = f"a whole bias would move results by {moved:.3g} steps: it stays float"
            ledger.add(Change.EXACT, RoundBiases.name, self.node.name, said)
            return False
        self._put(graph, whole.astype(np.int32))
        if moved:
            said = f"bias rounded to the unit of the sums, by at most {moved:.2g} steps of results"
            ledger.add(Change.NUDGED, RoundBiases.name, self.node.name, said, codes=1.0)
        else:
            said = "bias stored as the whole number of steps of the sums that it is"
            ledger.add(Change.REGROUPED, RoundBiases.name, self.node.name, said)
        return True

    def _moved(self, whole: NDArray[np.floating]) -> float:
        """Returns how far results move at most, in steps; 0 for what float32 cannot tell apart."""
        exact = whole * self.unit.astype(np.float64)
        apart = exact.astype(np.float32) != self.bias.astype(np.float32)
        quant = self.node.result.type.quant
        assert quant is not None
        step = float(np.asarray(quant.scales(), np.float64).reshape(()))
        return float(np.max(np.abs(exact - self.bias), initial=0.0, where=apart)) / step

    def _put(self, graph: Graph, data: NDArray[np.int32]) -> None:
        old = self.node.operands[self.slot]
        name = graph.fresh(f"{old.name}.whole")
        if len(old.uses) == 1:  # it is not needed any more, so the new constant takes its name
            free, name = name, old.name
            graph.rename(old, free)
        made = graph.constant(Array.of(data, old.name), name=name, before=self.node)
        graph.set_origins(made.node, old.node.origins)
        graph.set_lineage(made, old.lineage.then("quantized"))
        graph.set_operand(self.node, self.slot, made)


def _layer(graph: Graph, node: Node) -> _Layer | None:
    """Returns an integer layer whose bias is added to floats; None for what is none."""
    stage = node.stages[0] if node.stages else node
    traits, quant = spec(stage.op).traits, node.results[0].type.quant if node.results else None
    if traits.weight is None or traits.bias is None or stage.op in TRANSPOSED:
        return None
    if quant is None or quant.dynamic or quant.grain is not None:
        return None
    if any(each.op not in TAILS for each in node.stages[1:]) or not _plain(stage.attrs):
        return None
    slots = {slot: slot for slot in node.operands}
    if node.stages:
        slots = dict(zip(node.stages[0].slots, node.stages[0].group_slots(0), strict=True))
    values = {slot: node.operands[held] for slot, held in slots.items()}
    bias, owner = values.get(traits.bias), profile(profile_of(graph, node))
    types = {slot: value.type for slot, value in values.items()}
    rule = owner.resolve(query_on(stage.op, stage.attrs, types, node.result.type))
    if bias is None or bias.type.rank != 1 or rule.bias.domain != "real_after":
        return None
    if not all(_counts(values[slot]) for slot in (traits.data, traits.weight)):
        return None
    unit, floats = accumulator_scale(stage, values), _floats(bias, owner)
    if unit is None or floats is None or unit.size not in (1, floats.size):
        return None
    return _Layer(node, slots[traits.bias], unit, floats)


def _plain(attrs: Mapping[str, object]) -> bool:
    """Whether sums and bias are added as they are."""
    return attrs.get("alpha", 1.0) == attrs.get("beta", 1.0) == 1.0


def _counts(value: Value) -> bool:
    """Whether integers are whole steps from a whole zero, in a known scale."""
    quant = value.type.quant
    return quant is not None and not (quant.dynamic or quant.real_zero or quant.plus is not None)


def _floats(bias: Value, owner: Profile) -> NDArray[np.float64] | None:
    """Returns the floats of a constant bias; None for raw integers, whose unit is the sums'."""
    if bias.constant is None:
        return None
    if bias.type.quant is not None:
        return np.asarray(reals_of(owner, bias.constant.data, bias.type.quant), np.float64)
    return bias.constant.data.astype(np.float64) if bias.type.dtype.is_float else None
