"""Stores the integers that kernels make of their float weights and biases.

    graph main as mxnet-1.9 {
      %x = input() : 1x2x2x2x!quant.uniform<u8:f32, 0.5>
      %w = constant([6.375, 0.875]) : 1x2x1x1xf32
      %y = conv2d(%x, %w) : 1x1x2x2x!quant.uniform<u8:f32, 4.0>
      output(y=%y)
    }

By `store-weights` it becomes:

    graph main as mxnet-1.9 {
      %x = input() : 1x2x2x2x!quant.uniform<u8:f32, 0.5>
      %w = constant(@w) : 1x2x1x1x!quant.uniform<i8:f32:0, {0.05}, from -6.375..6.375 / 127.5>
      %y = conv2d(%x, %w) : 1x1x2x2x!quant.uniform<u8:f32, 4.0>
      output(y=%y)
    }

Some runtimes are given float weights with integer data, and quantize the weights when they load a
model. The profile says what they make of them, so it can be stored: then other runtimes can be
given it, and weights take a quarter of the memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.scheme import Scheme
from qir.ir.types import Array, QuantType, TensorType, uniform
from qir.ledger import Change, Ledger
from qir.numerics import Affine, quantize_bias, requantize_bias
from qir.profiles import Profile, declared_range_for, profile, query_for_op
from qir.reference.interpreter import profile_name_of
from qir.reference.products import ProductKernel
from qir.reference.weights import quantize_weights
from qir.rewrite import Pass


@dataclass(frozen=True)
class StoreWeights(Pass):
    """Replaces constant float weights by the integers that the profile's kernel makes of them.

    A float bias becomes 32-bit integers in units of the accumulator, where the kernel rounds it to
    these. Weights that a kernel scales down so that a bias fits next to its sums stay float.
    """

    name = "store-weights"
    rescaled: bool = False
    """Whether biases that are integers with a scale of their own become 32-bit integers too."""

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            if (layer := _layer(graph, node)) is None:
                continue
            layer.store(graph)
            said = "its weights are stored as the integers that its kernel makes of them"
            ledger.add(Change.EXACT, self.name, node.name, said)
            count += 1
        for node in list(graph) if self.rescaled else ():
            if (layer := _layer(graph, node, stored=True)) and layer.store_bias(graph):
                said = "its bias is stored as the integers that its kernel adds to the sums"
                ledger.add(Change.EXACT, self.name, node.name, said)
                count += 1
        if count:
            graph.prune()
        return count


@dataclass(frozen=True)
class _Layer:
    """A layer whose kernel quantizes its weights, with what it makes of them."""

    node: Node
    slots: dict[str, str]
    """By slot of the op: the slot of the node, which may be a group."""
    owner: Profile
    kernel: ProductKernel
    weight: NDArray[np.generic]

    def store(self, graph: Graph) -> None:
        """Puts integers in the place of weights and bias."""
        traits = spec(self.kernel.op).traits
        assert traits.weight is not None
        w = self.kernel.maps[traits.weight]
        slot = self.slots[traits.weight]
        old = self.node.operands[slot]
        self._put(graph, slot, self.weight, old.type.with_element(_type(self.owner, old, w)))
        bias = self.node.operands.get(self.slots.get(traits.bias or "", ""))
        rule = self.kernel.rule
        if bias is None or bias.constant is None or rule.bias.domain != "rounded_acc":
            return
        made = quantize_bias(bias.constant.data, self.kernel.affine(traits.data), w, rule)
        if made.dtype == np.int32:
            kind = Array.of(made).type
            self._put(graph, self.slots[traits.bias or ""], made, kind)

    def store_bias(self, graph: Graph) -> bool:
        """Puts 32-bit integers in the place of a bias with a scale; False where it has none."""
        traits = spec(self.kernel.op).traits
        slot = self.slots.get(traits.bias or "", "")
        bias, rule = self.node.operands.get(slot), self.kernel.rule
        if bias is None or bias.constant is None or bias.type.quant is None:
            return False
        if rule.bias.domain != "rescaled_acc":
            return False
        names = traits.bias or "", traits.data, traits.weight or ""
        of, x, w = map(self.kernel.affine, names)
        made = requantize_bias(bias.constant.data, of, x, w, rule)
        if made.dtype != np.int32:
            return False
        self._put(graph, slot, made, Array.of(made).type)
        return True

    def _put(self, graph: Graph, slot: str, data: NDArray[np.generic], kind: TensorType) -> None:
        old = self.node.operands[slot]
        name = graph.fresh(f"{old.name}.stored")
        if len(old.uses) == 1:  # it is not needed any more, so the new constant takes its name
            free, name = name, old.name
            graph.rename(old, free)
        made = graph.constant(Array(np.asarray(data), kind, old.name), name=name, before=self.node)
        graph.set_origins(made.node, old.node.origins)
        graph.set_lineage(made, old.lineage.then("quantized"))
        graph.set_operand(self.node, slot, made)


def _type(owner: Profile, weight: Value, of: Affine) -> QuantType:
    """Returns the type of stored weights, with the range that the runtime goes by."""
    assert of.ends is not None
    kind = uniform(of.storage, of.scale, of.zero, axis=of.axis, name=weight.name)
    scheme = Scheme(of.storage, True, "tensor" if of.axis is None else "channel")
    ends = of.ends.low, of.ends.high
    declared = declared_range_for(owner, *ends, scheme, of.scale, weight.name, weight=True)
    return replace(kind, declared=declared)


def _layer(graph: Graph, node: Node, *, stored: bool = False) -> _Layer | None:
    """Returns what a layer's kernel makes of constant weights; None where it is given no such.

    Of float ones, or of those that are stored as integers.
    """
    op, attrs = (node.stages[0].op, node.stages[0].attrs) if node.stages else (node.op, node.attrs)
    if node.stages:
        slots = dict(zip(node.stages[0].slots, node.stages[0].group_slots(0), strict=True))
    else:
        slots = {slot: slot for slot in node.operands}
    weight = spec(op).traits.weight
    if weight is None or weight not in slots or len(node.results) != 1:
        return None
    old = node.operands[slots[weight]]
    if old.constant is None or (old.type.quant is not None) != stored:
        return None
    if not stored and not old.type.dtype.is_float:
        return None
    values = {slot: node.operands[held] for slot, held in slots.items()}
    types = {slot: value.type for slot, value in values.items()}
    arrays = {s: v.constant.data for s, v in values.items() if v.constant is not None}
    owner, result = profile(profile_name_of(graph, node)), node.result.type
    rule = owner.resolve(query_for_op(op, attrs, types, result))
    kernel, made = quantize_weights(ProductKernel(op, attrs, types, result, rule), arrays)
    of = kernel.maps.get(weight)
    if stored:  # one that the kernel changes leaves no room for the bias
        return None if of is not None else _Layer(node, slots, owner, kernel, made[weight])
    if of is None or of.ends is None or of.ends.gain is not None:
        return None
    return _Layer(node, slots, owner, kernel, made[weight])
