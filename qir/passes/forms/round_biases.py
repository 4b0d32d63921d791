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

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.ops.layers import TRANSPOSED_CONVOLUTIONS
from qir.ir.text import parse
from qir.ir.types import Array, QuantType, TensorType, uniform
from qir.ledger import Change, Ledger
from qir.profiles import Profile, dequantize_by_profile, profile_in, profile_names, query_for_op
from qir.reference.interpreter import profile_name_of
from qir.rewrite import Pass
from qir.rewrite.fusing import ACTIVATIONS
from qir.rewrite.runner.tolerance import Tolerance

_MAX_STEPS = 2.0**30
"""Steps that a bias may have, so that 32 bits hold the sums next to it."""


@dataclass(frozen=True)
class RoundBiases(Pass):
    """Replaces biases that a profile adds to floats by 32-bit integers in the sums' unit.

    Weights get a larger scale where 32 bits would not hold the bias next to the sums. A bias that
    would move results by one quantization step or more stays float. The ledger says how far results
    move at most.
    """

    name = "round-biases"
    tolerance = Tolerance(0, 1, "biases are rounded to the unit of the sums")

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Yields a layer under a profile that adds its bias to floats."""
        text = (
            "graph main as {} {{\n  %x = input() : 1x2x2x2x!quant.uniform<u8:f32, 0.5>\n"
            "  %w = constant(@w) : 1x2x1x1x!quant.uniform<i8:f32:0, {{0.25}}>\n"
            "  %b = constant([1.3125]) : 1xf32\n"
            "  %y = conv2d(%x, %w, bias=%b) : 1x1x2x2x!quant.uniform<u8:f32, 4.0>\n"
            "  output(y=%y)\n}}\n"
        )
        # The core names no runtime: the sample takes the first profile that adds a bias to floats.
        for profile_name in profile_names():
            graph = parse(text.format(profile_name), {"w": np.ones((1, 2, 1, 1), np.int8)})
            if any(float_bias(graph, node) for node in graph):
                yield cls(), graph
                return

    def run(self, graph: Graph, ledger: Ledger) -> int:
        layers = [layer for node in list(graph) if (layer := float_bias(graph, node)) is not None]
        count = sum(_round_bias(layer, graph, ledger) for layer in layers)
        if count:
            graph.prune()
        return count


def _round_bias(layer: FloatBias, graph: Graph, ledger: Ledger) -> bool:
    """Rounds the bias of a layer; False where it would move results too far."""
    rounded = layer.rounded()
    if not rounded.moved < 1:
        message = f"a whole bias would move results by {rounded.moved:.3g} steps: it stays float"
        ledger.add(Change.EXACT, RoundBiases.name, layer.node.name, message)
        return False
    layer.store(graph, rounded)
    message, change, steps = "bias stored as the steps of the sums that it is", Change.REGROUPED, 0
    if rounded.moved:
        message, change, steps = "bias rounded to the unit of the sums", Change.NUDGED, 1
        message += f", which moves results by at most {rounded.moved:.2g} steps"
    if rounded.weights is not None:
        message += "; weights have larger scales, so that the bias fits 32 bits"
    ledger.add(change, RoundBiases.name, layer.node.name, message, codes=float(steps))
    return True


@dataclass(frozen=True)
class RoundedBias:
    """A bias in the unit of the sums."""

    integers: NDArray[np.float64]
    scales: NDArray[np.float32]
    weights: NDArray[np.float64] | None
    """The weights in those scales, where they changed."""
    moved: float
    """How far it moves results at most, in steps."""


@dataclass(frozen=True)
class FloatBias:
    """An integer layer whose bias is added to floats."""

    node: Node
    bias: str
    """The slot of the node, which may be a group, that holds the bias."""
    floats: NDArray[np.float64]
    weight: str
    x: QuantType
    w: QuantType

    def rounded(self) -> RoundedBias:
        """Returns the integers that take the place of the bias."""
        old, new = np.asarray(self.w.scales(), np.float32), self._scales()
        weights = self.node.operands[self.weight].constant
        assert weights is not None
        scales_raised, weight_values = not np.array_equal(old, new), weights.data.astype(np.float64)
        new_weights = np.asarray(
            np.rint(
                weight_values * (self._aligned_with_weights(old) / self._aligned_with_weights(new))
            )
        )
        # The product is a float32, as the runtime computes the unit of its sums.
        sum_unit = (np.float32(self.x.scales()) * new).astype(np.float64)
        integers = np.rint(self.floats / sum_unit)
        movement = self._bias_movement(integers, sum_unit)
        if scales_raised:
            # Rescaled weights are rounded again, which moves results for every input.
            movement += self._weight_movement(
                new_weights * self._aligned_with_weights(new)
                - weight_values * self._aligned_with_weights(old)
            )
        return RoundedBias(integers, new, new_weights if scales_raised else None, movement)

    def store(self, graph: Graph, rounded: RoundedBias) -> None:
        """Puts integers in the place of the bias."""
        self._replace_constant(graph, self.bias, Array.of(rounded.integers.astype(np.int32)))
        if rounded.weights is not None:
            quant_type = uniform(self.w.storage, rounded.scales, axis=self.w.axis)
            tensor_type = TensorType(
                rounded.weights.shape, replace(quant_type, bounds=self.w.bounds)
            )
            new_weights = rounded.weights.astype(quant_type.storage.carrier)
            self._replace_constant(graph, self.weight, Array(new_weights, tensor_type))

    def _scales(self) -> NDArray[np.float32]:
        """Returns the scales of the weights, larger where the bias would not fit."""
        old = np.asarray(self.w.scales(), np.float32)
        with np.errstate(all="ignore"):
            needed = np.abs(self.floats) / (float(np.float32(self.x.scales())) * _MAX_STEPS)
        needed = needed if old.ndim else needed.max(initial=0)
        return np.asarray(np.where(old < needed, needed, old), np.float32)

    def _aligned_with_weights(self, scales: NDArray[np.float32]) -> NDArray[np.float64]:
        """Returns scales shaped to go with the weights."""
        shape = [1] * self.node.operands[self.weight].type.rank
        if scales.ndim:
            shape[self.w.axis or 0] = -1
        return scales.astype(np.float64).reshape(shape)

    def _bias_movement(self, integers: NDArray[np.float64], unit: NDArray[np.float64]) -> float:
        """Returns how far the bias moves results, in steps; 0 for what is less than float32's."""
        exact = integers * unit
        # Differences that float32 cannot represent do not move the results of a float32 kernel.
        differs = exact.astype(np.float32) != self.floats.astype(np.float32)
        return float(np.max(np.abs(exact - self.floats), initial=0.0, where=differs)) / self._step()

    def _weight_movement(self, weights: NDArray[np.float64]) -> float:
        """Returns how far a change of the weights moves results at most, in steps."""
        zero = int(self.x.zeros())
        # No element of the data is further from zero than the far end of their type.
        largest_data = max(self.x.high - zero, zero - self.x.low) * float(self.x.scales())
        axes = tuple(i for i in range(weights.ndim) if i != (self.w.axis or 0))
        return float(np.abs(weights).sum(axes).max(initial=0.0)) * largest_data / self._step()

    def _step(self) -> float:
        quant = self.node.result.type.quant
        assert quant is not None
        return float(quant.scales())

    def _replace_constant(self, graph: Graph, slot: str, array: Array) -> None:
        old = self.node.operands[slot]
        name = graph.fresh(f"{old.name}.whole")
        if len(old.uses) == 1:  # it is not needed any more, so the new constant takes its name
            spare, name = name, old.name
            graph.rename(old, spare)
        named_array = Array(array.contents, array.type, old.name)
        constant = graph.constant(named_array, name=name, before=self.node)
        graph.set_origins(constant.node, old.node.origins)
        graph.set_lineage(constant, old.lineage.then("quantized"))
        graph.set_operand(self.node, slot, constant)


def float_bias(
    graph: Graph, node: Node, activations: Collection[str] = ACTIVATIONS
) -> FloatBias | None:
    """Returns an integer layer whose bias is added to floats; None for what is none, or ends in
    other ops than `activations`."""
    # A group has its layer first, and the bias in one of the group's own slots.
    stage = node.stages[0] if node.stages else node
    traits, quant = spec(stage.op).traits, node.results[0].type.quant if node.results else None
    if traits.weight is None or traits.bias is None or stage.op in TRANSPOSED_CONVOLUTIONS:
        return None
    if quant is None or quant.dynamic or quant.granularity is not None:
        return None
    if any(later.op not in activations for later in node.stages[1:]) or not _has_unit_factors(
        stage.attrs
    ):
        return None
    slots = {slot: slot for slot in node.operands}
    if node.stages:
        slots = dict(zip(node.stages[0].slots, node.stages[0].group_slots(0), strict=True))
    values = {slot: node.operands[node_slot] for slot, node_slot in slots.items()}
    bias, rules = values.get(traits.bias), profile_in(graph, profile_name_of(graph, node))
    types = {slot: value.type for slot, value in values.items()}
    rule = rules.resolve(query_for_op(stage.op, stage.attrs, types, node.result.type))
    if bias is None or bias.type.rank != 1 or rule.bias.domain != "real_after":
        return None
    x, w = values[traits.data].type.quant, values[traits.weight].type.quant
    if (
        x is None
        or w is None
        or not (_is_plain_integer(x) and _is_plain_integer(w))
        or x.granularity is not None
    ):
        return None
    floats = _bias_floats(bias, rules)
    if floats is None or np.any(w.zeros()) or np.size(w.scales()) not in (1, floats.size):
        return None
    if values[traits.weight].constant is None or (w.granularity is not None and w.axis is None):
        return None
    return FloatBias(node, slots[traits.bias], floats, slots[traits.weight], x, w)


def _has_unit_factors(attrs: Mapping[str, object]) -> bool:
    """Returns whether sums and bias are added as they are."""
    return attrs.get("alpha", 1.0) == attrs.get("beta", 1.0) == 1.0


def _is_plain_integer(quant: QuantType) -> bool:
    """Returns whether integers are whole steps from a whole zero, in a known scale."""
    return not (quant.dynamic or quant.has_float_zero or quant.plus is not None)


def _bias_floats(bias: Value, rules: Profile) -> NDArray[np.float64] | None:
    """Returns the floats of a constant bias; None for raw integers, whose unit is the sums'."""
    if bias.constant is None:
        return None
    if bias.type.quant is not None:
        return np.asarray(
            dequantize_by_profile(rules, bias.constant.data, bias.type.quant), np.float64
        )
    return bias.constant.data.astype(np.float64) if bias.type.dtype.is_float else None
