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
from qir.profiles import Profile, dequantize_by_profile, profile, profile_names
from qir.profiles.kernel_forms import CONVOLUTIONS
from qir.reference.interpreter import profile_name_of
from qir.rewrite import Pass
from qir.rewrite.fusing import ACTIVATIONS
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.tolerance import Tolerance

Ends = tuple[float, float]
_EXACT = "native"
"""The profile of what is made: its kernels have zero points, which those with sums may lack."""
_SLACK = 0.01
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
        for named in profile_names():
            graph = parse(text.format(named), {"w": np.ones((1, 2, 1, 1), np.int8)})
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
        made, node = kernel.between(), kernel.node
        biased = float_bias(graph, node, ACTIVATIONS | {"add"}) if self.biases else None
        bias = biased.rounded() if biased else None
        moved = kernel.moved(made, bias.moved if bias else 0.0)
        if moved > self.steps:
            said = (
                f"stays a sum before rounding: with one more rounding its results would move by "
                f"up to {moved} steps; split-sums{{steps={moved}}} splits it"
            )
            ledger.add(Change.EXACT, self.name, node.name, said)
            return False
        if not may(self.name, f"split {node.stages[0].op} and add", node):
            return False
        said = (
            f"rounded to steps of {float(made.scales()):.3g} before another tensor is added, "
            f"which moves results by at most {moved} step{'s' if moved > 1 else ''}"
        )
        ledger.add(Change.NUDGED, self.name, node.name, said, codes=float(moved))
        if biased and bias:
            biased.put(graph, bias)
        kernel.split(graph, made)
        return True


@dataclass(frozen=True)
class _Kernel:
    """A kernel that adds a quantized tensor to its sums and rounds once."""

    node: Node
    summand: Value
    x: QuantType
    out: QuantType
    reach: Ends
    """Between which the sums of its weights lie."""

    def between(self) -> QuantType:
        """Returns the type of the sums: all that make a difference to the result."""
        assert self.summand.type.quant is not None
        (low, high), (least, most) = _ends(self.out), _ends(self.summand.type.quant)
        first, last = max(low - most, self.reach[0]), min(high - least, self.reach[1])
        first, last = min(first, 0.0), max(last, 0.0)
        storage = self.x.storage
        lowest, highest = storage.bounds
        scale = np.float32((last - first) / (highest - lowest)) or self.out.scales()
        zero = int(np.clip(lowest - np.rint(first / float(scale)), lowest, highest))
        return uniform(storage, np.float32(scale), zero)

    def moved(self, between: QuantType, bias: float) -> int:
        """Returns the steps by which results move at most: half a step of the sums, what rounding
        the bias moves, and rounding once more."""
        half = float(between.scales()) / float(self.out.scales()) / 2
        return floor(half + bias + _SLACK) + 1

    def split(self, graph: Graph, between: QuantType) -> None:
        """Puts the two nodes in the kernel's place."""
        node, (first, added) = self.node, self.node.stages[:2]
        operands = {s: node.operands[s] for s in first.group_slots(0)}
        sums = graph.add(
            first.op,
            operands,
            first.attrs,
            types=[node.result.type.with_element(between)],
            name=graph.fresh(f"{node.name}.sums"),
            before=node,
            origins=first.origins,
            profile=_EXACT,
        ).result
        (slot,) = added.slots
        flow = added.flow
        assert flow is not None
        made = graph.add(
            added.op,
            {flow: sums, slot: self.summand},
            added.attrs,
            types=[node.result.type],
            before=node,
            origins=[o for stage in node.stages[1:] for o in stage.origins],
            profile=_EXACT,
        )
        graph.substitute(node, made.result)


def _kernel(graph: Graph, node: Node) -> _Kernel | None:
    """Returns a kernel that adds another tensor; None for what is none, or has other tails."""
    if len(node.stages) < 2 or len(node.results) != 1 or node.stages[1].op != "add":
        return None
    layer, added = node.stages[:2]
    traits, out = spec(layer.op).traits, node.result.type.quant
    if traits.weight is None or any(s.type is not None for s in node.stages[:-1]):
        return None
    values = dict(zip(layer.slots, (node.operands[s] for s in layer.group_slots(0)), strict=True))
    x, w = values.get(traits.data), values.get(traits.weight)
    others = list(node.stage_operands(1).values())
    if x is None or w is None or len(others) != 1 or len(added.slots) != 1 or added.flow is None:
        return None
    kinds = (x.type.quant, others[0].type.quant, out)
    if any(kind is None or not _plain(kind) for kind in kinds) or saturation_note(graph, node):
        return None
    assert out is not None
    assert x.type.quant is not None
    if others[0].type.shape != node.result.type.shape or not _without_tail(node.stages[2:], out):
        return None
    owner = profile(profile_name_of(graph, node))
    reach: Ends | None = (-np.inf, np.inf)
    if layer.op in CONVOLUTIONS:
        reach = _reach(x.type.quant, w, values.get(traits.bias or ""), owner)
    return None if reach is None else _Kernel(node, others[0], x.type.quant, out, reach)


def _plain(quant: QuantType) -> bool:
    """Whether a type has one known scale and bytes that are whole steps from a whole zero."""
    odd = quant.dynamic or quant.kind != "uniform" or quant.has_float_zero or quant.plus is not None
    return not odd and quant.granularity is None and _is_byte(quant.storage)


def _is_byte(storage: DType) -> bool:
    return storage.is_integer and storage.bits == 8


def _ends(quant: QuantType) -> Ends:
    """Returns the lowest and the highest number of a type."""
    zero, scale = int(quant.zeros()), float(quant.scales())
    return (quant.low - zero) * scale, (quant.high - zero) * scale


def _without_tail(tails: tuple[Stage, ...] | list[Stage], out: QuantType) -> bool:
    """Whether the type of the result ends where an activation does, or before."""
    low, high = _ends(out)
    for tail in tails:
        if tail.op not in ACTIVATIONS:
            return False
        least = 0.0 if tail.op == "relu" else tail.attrs.get("min")
        most = tail.attrs.get("max")
        if isinstance(least, float) and least > low:
            return False
        if isinstance(most, float) and most < high:
            return False
    return True


def _reach(x: QuantType, w: Value, bias: Value | None, owner: Profile) -> Ends | None:
    """Returns the lowest and the highest sum that a kernel can have, by its weights and bias."""
    if w.constant is None or w.type.quant is None or (bias is not None and bias.constant is None):
        return None
    quant = w.type.quant
    if quant.granularity is not None and quant.axis != 0:
        return None
    weights = np.asarray(dequantize_by_profile(owner, w.constant.data, quant), np.float64)
    rows, (low, high) = weights.reshape(len(weights), -1), _ends(x)
    beside = np.zeros(1) if bias is None else _floats(bias, x, quant, owner)
    above, below = np.clip(rows, 0, None).sum(1), np.clip(rows, None, 0).sum(1)
    most, least = above * high + below * low + beside, above * low + below * high + beside
    return float(least.min()), float(most.max())


def _floats(bias: Value, x: QuantType, w: QuantType, owner: Profile) -> NDArray[np.float64]:
    """Returns the numbers of a constant bias; raw integers are steps of the sums."""
    held: Array | None = bias.constant
    assert held is not None
    if bias.type.quant is not None:
        return np.asarray(dequantize_by_profile(owner, held.data, bias.type.quant), np.float64)
    unit = float(x.scales()) * np.asarray(w.scales(), np.float64)
    steps = np.asarray(held.data, np.float64)
    return np.asarray(steps * unit) if bias.type.dtype.is_integer else steps
