"""Rewrites kernels that add another tensor as a kernel without it and an addition of integers.

    graph main as tf-2.21.onednn {
      %x = input() : 1x2x2x2x!quant.uniform<u8:f32, 0.5>
      %w = constant(@w) : 1x2x1x1x!quant.uniform<i8:f32:0, {0.25}>
      %s = input() : 1x1x2x2x!quant.uniform<u8:f32, 0.25>
      %y = conv2d(%x, %w) |> add(., %s) |> relu : 1x1x2x2x!quant.uniform<u8:f32, 0.5>
      output(y=%y)
    }

By `split-sums` it becomes:

    graph main as tf-2.21.onednn {
      %x = input() : 1x2x2x2x!quant.uniform<u8:f32, 0.5>
      %w = constant(@w) : 1x2x1x1x!quant.uniform<i8:f32:0, {0.25}>
      %s = input() : 1x1x2x2x!quant.uniform<u8:f32, 0.25>
      %y.sums = conv2d(%x, %w) : 1x1x2x2x!quant.uniform<u8:f32, 0.75:85> as native
      %y = add(%y.sums, %s) : 1x1x2x2x!quant.uniform<u8:f32, 0.5> as native
      output(y=%y)
    }

Some runtimes add a tensor to the sums of a convolution before they round; others have a kernel for
each, with a quantized tensor between them. No statistics are needed for its range: sums that lie
below the result's low end less the highest summand, or above its high end less the lowest, give
the ends of the result whatever they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from qir.analysis.summand_storage import saturation_note
from qir.ir.dtype import DType
from qir.ir.graph import Graph
from qir.ir.node import Node, Stage, Value
from qir.ir.ops import spec
from qir.ir.text import parse
from qir.ir.types import Array, QuantType, uniform
from qir.ledger import Change, Ledger
from qir.passes.forms.round_biases import float_bias
from qir.profiles import Profile, dequantize_by_profile, profile_in, profile_names
from qir.profiles.kernel_forms import CONVOLUTIONS
from qir.reference.interpreter import profile_name_of
from qir.rewrite import Pass
from qir.rewrite.fusing import ACTIVATIONS
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.tolerance import Tolerance

Interval = tuple[float, float]
_RESULT_PROFILE = "native"
"""The profile of what is made: its kernels have zero points, which those with sums may lack."""
_ROUNDING_SLACK = 0.01
"""Steps that are left to the rounding of float32."""


@dataclass(frozen=True)
class SplitSums(Pass):
    """Splits kernels whose results move by at most some steps; others stay, which the ledger says.

    The sums are rounded once more, to the steps of the tensor between; biases that were added to
    floats are rounded to the unit of the sums, except with `biases=False`.
    """

    name = "split-sums"
    tolerance = Tolerance(0, 1, "sums are rounded before another tensor is added")
    steps: int = 1
    biases: bool = True

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Yields a kernel with a summand."""
        text = (
            "graph main as {} {{\n  %x = input() : 1x2x2x2x!quant.uniform<u8:f32, 0.5>\n"
            "  %w = constant(@w) : 1x2x1x1x!quant.uniform<i8:f32:0, {{0.25}}>\n"
            "  %s = input() : 1x1x2x2x!quant.uniform<u8:f32, 0.25>\n"
            "  %y = conv2d(%x, %w) |> add(., %s) |> relu : 1x1x2x2x!quant.uniform<u8:f32, 0.5>\n"
            "  output(y=%y)\n}}\n"
        )
        # Only profiles of runtimes that add before rounding have such kernels.
        for profile_name in profile_names():
            graph = parse(text.format(profile_name), {"w": np.ones((1, 2, 1, 1), np.int8)})
            if any(_kernel(graph, node) for node in graph):
                yield cls(), graph
                return

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            kernel = _kernel(graph, node)
            count += kernel is not None and self._split(graph, kernel, ledger)
        return count

    def _split(self, graph: Graph, kernel: _Kernel, ledger: Ledger) -> bool:
        sum_type, node = kernel.sum_type(), kernel.node
        float_layer = float_bias(graph, node, ACTIVATIONS | {"add"}) if self.biases else None
        bias = float_layer.rounded() if float_layer else None
        movement = kernel.movement(sum_type, bias.moved if bias else 0.0)
        if movement > self.steps:
            message = (
                f"stays a sum before rounding: with one more rounding its results would move by "
                f"up to {movement} steps; split-sums{{steps={movement}}} splits it"
            )
            ledger.add(Change.EXACT, self.name, node.name, message)
            return False
        if not may(self.name, f"split {node.stages[0].op} and add", node):
            return False
        message = (
            f"rounded to steps of {float(sum_type.scales()):.3g} before another tensor is added, "
            f"which moves results by at most {movement} step{'s' if movement > 1 else ''}"
        )
        ledger.add(Change.NUDGED, self.name, node.name, message, codes=float(movement))
        if float_layer and bias:
            float_layer.store(graph, bias)
        kernel.split(graph, sum_type)
        return True


@dataclass(frozen=True)
class _Kernel:
    """A kernel that adds a quantized tensor to its sums and rounds once."""

    node: Node
    summand: Value
    x: QuantType
    out: QuantType
    sum_interval: Interval
    """Between which the sums of its weights lie."""

    def sum_type(self) -> QuantType:
        """Returns the type of the sums: all that make a difference to the result."""
        assert self.summand.type.quant is not None
        (low, high), (summand_low, summand_high) = (
            _represented_interval(self.out),
            _represented_interval(self.summand.type.quant),
        )
        first, last = (
            # Sums outside this interval give an end of the result with any summand, and the weights
            # may not reach even that far.
            max(low - summand_high, self.sum_interval[0]),
            min(high - summand_low, self.sum_interval[1]),
        )
        # A zero point must exist, so the interval includes 0.
        first, last = min(first, 0.0), max(last, 0.0)
        storage = self.x.storage
        lowest, highest = storage.bounds
        # An empty interval has no scale; any other serves, as all sums are then equal.
        scale = np.float32((last - first) / (highest - lowest)) or self.out.scales()
        zero = int(np.clip(lowest - np.rint(first / float(scale)), lowest, highest))
        return uniform(storage, np.float32(scale), zero)

    def movement(self, sum_type: QuantType, bias: float) -> int:
        """Returns the steps by which results move at most: half a step of the sums, what rounding
        the bias moves, and rounding once more."""
        half_step = float(sum_type.scales()) / float(self.out.scales()) / 2
        # The half step of the new rounding and the bias move the value by less than this floor; the
        # second rounding can then move the result by one step more.
        return floor(half_step + bias + _ROUNDING_SLACK) + 1

    def split(self, graph: Graph, sum_type: QuantType) -> None:
        """Puts the two nodes in the kernel's place."""
        node, (first, added) = self.node, self.node.stages[:2]
        operands = {s: node.operands[s] for s in first.group_slots(0)}
        sums = graph.add(
            first.op,
            operands,
            first.attrs,
            types=[node.result.type.with_element(sum_type)],
            name=graph.fresh(f"{node.name}.sums"),
            before=node,
            origins=first.origins,
            profile=_RESULT_PROFILE,
        ).result
        (slot,) = added.slots
        flow = added.flow
        assert flow is not None
        addition = graph.add(
            added.op,
            {flow: sums, slot: self.summand},
            added.attrs,
            types=[node.result.type],
            before=node,
            origins=[o for stage in node.stages[1:] for o in stage.origins],
            profile=_RESULT_PROFILE,
        )
        graph.substitute(node, addition.result)


def _kernel(graph: Graph, node: Node) -> _Kernel | None:
    """Returns a kernel that adds another tensor; None for what is none, or has other tails."""
    if len(node.stages) < 2 or len(node.results) != 1 or node.stages[1].op != "add":
        return None
    layer, added = node.stages[:2]
    traits, out = spec(layer.op).traits, node.result.type.quant
    # A stage with a type rounds there already: nothing is left to split.
    if traits.weight is None or any(s.type is not None for s in node.stages[:-1]):
        return None
    values = dict(zip(layer.slots, (node.operands[s] for s in layer.group_slots(0)), strict=True))
    x, w = values.get(traits.data), values.get(traits.weight)
    summands = list(node.stage_operands(1).values())
    if x is None or w is None or len(summands) != 1 or len(added.slots) != 1 or added.flow is None:
        return None
    types = (x.type.quant, summands[0].type.quant, out)
    if any(quant is None or not _is_plain_byte_type(quant) for quant in types) or saturation_note(
        graph, node
    ):
        return None
    assert out is not None
    assert x.type.quant is not None
    if summands[0].type.shape != node.result.type.shape or not _is_clamped_by_type(
        node.stages[2:], out
    ):
        return None
    rules = profile_in(graph, profile_name_of(graph, node))
    # Sums of matrix products are not bounded by their weights here: the result's type bounds them.
    interval: Interval | None = (-np.inf, np.inf)
    if layer.op in CONVOLUTIONS:
        interval = _sum_interval(x.type.quant, w, values.get(traits.bias or ""), rules)
    return None if interval is None else _Kernel(node, summands[0], x.type.quant, out, interval)


def _is_plain_byte_type(quant: QuantType) -> bool:
    """Whether a type has one known scale and bytes that are whole steps from a whole zero."""
    is_unusual = (
        quant.dynamic or quant.kind != "uniform" or quant.has_float_zero or quant.plus is not None
    )
    return not is_unusual and quant.granularity is None and _is_byte(quant.storage)


def _is_byte(storage: DType) -> bool:
    return storage.is_integer and storage.bits == 8


def _represented_interval(quant: QuantType) -> Interval:
    """Returns the lowest and the highest number of a type."""
    zero, scale = int(quant.zeros()), float(quant.scales())
    return (quant.low - zero) * scale, (quant.high - zero) * scale


def _is_clamped_by_type(activations: tuple[Stage, ...] | list[Stage], out: QuantType) -> bool:
    """Whether the type of the result ends where an activation does, or before."""
    low, high = _represented_interval(out)
    for activation in activations:
        if activation.op not in ACTIVATIONS:
            return False
        clip_low = 0.0 if activation.op == "relu" else activation.attrs.get("min")
        clip_high = activation.attrs.get("max")
        if isinstance(clip_low, float) and clip_low > low:
            return False
        if isinstance(clip_high, float) and clip_high < high:
            return False
    return True


def _sum_interval(x: QuantType, w: Value, bias: Value | None, rules: Profile) -> Interval | None:
    """Returns the lowest and the highest sum that a kernel can have, by its weights and bias."""
    if w.constant is None or w.type.quant is None or (bias is not None and bias.constant is None):
        return None
    quant = w.type.quant
    if quant.granularity is not None and quant.axis != 0:
        return None
    weights = np.asarray(dequantize_by_profile(rules, w.constant.data, quant), np.float64)
    rows, (low, high) = weights.reshape(len(weights), -1), _represented_interval(x)
    bias_floats = np.zeros(1) if bias is None else _bias_floats(bias, x, quant, rules)
    # The highest sum takes the highest data for positive weights and the lowest for negative ones.
    positive, negative = np.clip(rows, 0, None).sum(1), np.clip(rows, None, 0).sum(1)
    highest, lowest = (
        positive * high + negative * low + bias_floats,
        positive * low + negative * high + bias_floats,
    )
    return float(lowest.min()), float(highest.max())


def _bias_floats(bias: Value, x: QuantType, w: QuantType, rules: Profile) -> NDArray[np.float64]:
    """Returns the numbers of a constant bias; raw integers are steps of the sums."""
    constant: Array | None = bias.constant
    assert constant is not None
    if bias.type.quant is not None:
        return np.asarray(dequantize_by_profile(rules, constant.data, bias.type.quant), np.float64)
    unit = float(x.scales()) * np.asarray(w.scales(), np.float64)
    steps = np.asarray(constant.data, np.float64)
    return np.asarray(steps * unit) if bias.type.dtype.is_integer else steps
