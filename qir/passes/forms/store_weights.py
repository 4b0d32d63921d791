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

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qir.ir.graph import Graph
from qir.ir.lexer import write_word
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.scheme import Scheme
from qir.ir.text import parse
from qir.ir.types import Array, QuantType, TensorType, uniform
from qir.ledger import Change, Ledger
from qir.numerics import Affine, quantize_bias, requantize_bias
from qir.profiles import Profile, declared_range_for, profile_in, profile_names, query_for_op
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

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Yields a layer with float weights under a profile that quantizes them."""
        text = (
            "graph main as {} {{\n  %x = input() : 1x2x2x2x!quant.uniform<u8:f32, 0.5>\n"
            "  %w = constant([6.375, 0.875]) : 1x2x1x1xf32\n"
            "  %y = conv2d(%x, %w) : 1x1x2x2x!quant.uniform<u8:f32, 4.0>\n"
            "  output(y=%y)\n}}\n"
        )
        # The core names no runtime: the sample takes the first profile that quantizes weights.
        for profile_name in profile_names():
            graph = parse(text.format(write_word(profile_name)))
            if any(_layer(graph, node) for node in graph):
                yield cls(), graph
                return

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            if (layer := _layer(graph, node)) is None:
                continue
            layer.store(graph)
            message = "its weights are stored as the integers that its kernel makes of them"
            ledger.add(Change.EXACT, self.name, node.name, message)
            count += 1
        # A second round, as the first has stored the weights that these layers must have.
        for node in list(graph) if self.rescaled else ():
            if (layer := _layer(graph, node, stored=True)) and layer.store_bias(graph):
                message = "its bias is stored as the integers that its kernel adds to the sums"
                ledger.add(Change.EXACT, self.name, node.name, message)
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
    rules: Profile
    kernel: ProductKernel
    weight: NDArray[np.generic]

    def store(self, graph: Graph) -> None:
        """Puts integers in the place of weights and bias."""
        traits = spec(self.kernel.op).traits
        assert traits.weight is not None
        w = self.kernel.maps[traits.weight]
        slot = self.slots[traits.weight]
        old = self.node.operands[slot]
        self._replace_constant(
            graph, slot, self.weight, old.type.with_element(_weight_type(self.rules, old, w))
        )
        bias = self.node.operands.get(self.slots.get(traits.bias or "", ""))
        rule = self.kernel.rule
        if bias is None or bias.constant is None or rule.bias.domain != "rounded_acc":
            return
        bias_integers = quantize_bias(bias.constant.data, self.kernel.affine(traits.data), w, rule)
        # A kernel with 64-bit sums makes a 64-bit bias, which 32 bits may not hold: it stays float.
        if bias_integers.dtype == np.int32:
            tensor_type = Array.of(bias_integers).type
            self._replace_constant(graph, self.slots[traits.bias or ""], bias_integers, tensor_type)

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
        bias_affine, x, w = map(self.kernel.affine, names)
        integers = requantize_bias(bias.constant.data, bias_affine, x, w, rule)
        if integers.dtype != np.int32:
            return False
        self._replace_constant(graph, slot, integers, Array.of(integers).type)
        return True

    def _replace_constant(
        self, graph: Graph, slot: str, data: NDArray[np.generic], tensor_type: TensorType
    ) -> None:
        old = self.node.operands[slot]
        name = graph.fresh(f"{old.name}.stored")
        if len(old.uses) == 1:  # it is not needed any more, so the new constant takes its name
            spare, name = name, old.name
            graph.rename(old, spare)
        constant = graph.constant(
            Array(np.asarray(data), tensor_type, old.name), name=name, before=self.node
        )
        graph.set_origins(constant.node, old.node.origins)
        graph.set_lineage(constant, old.lineage.then("quantized"))
        graph.set_operand(self.node, slot, constant)


def _weight_type(rules: Profile, weight: Value, affine: Affine) -> QuantType:
    """Returns the type of stored weights, with the range that the runtime goes by."""
    assert affine.ends is not None
    quant_type = uniform(
        affine.storage, affine.scale, affine.zero, axis=affine.axis, name=weight.name
    )
    scheme = Scheme(affine.storage, True, "tensor" if affine.axis is None else "channel")
    ends = affine.ends.low, affine.ends.high
    declared = declared_range_for(rules, *ends, scheme, affine.scale, weight.name, weight=True)
    return replace(quant_type, declared=declared)


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
    weight_value = node.operands[slots[weight]]
    if weight_value.constant is None or (weight_value.type.quant is not None) != stored:
        return None
    if not stored and not weight_value.type.dtype.is_float:
        return None
    values = {slot: node.operands[node_slot] for slot, node_slot in slots.items()}
    types = {slot: value.type for slot, value in values.items()}
    arrays = {s: v.constant.data for s, v in values.items() if v.constant is not None}
    rules, result = profile_in(graph, profile_name_of(graph, node)), node.result.type
    rule = rules.resolve(query_for_op(op, attrs, types, result))
    kernel, integers = quantize_weights(ProductKernel(op, attrs, types, result, rule), arrays)
    affine = kernel.maps.get(weight)
    if stored:  # one that the kernel changes leaves no room for the bias
        return None if affine is not None else _Layer(node, slots, rules, kernel, integers[weight])
    # With a gain the kernel has scaled weights down for the bias: its integers depend on both.
    if affine is None or affine.ends is None or affine.ends.gain is not None:
        return None
    return _Layer(node, slots, rules, kernel, integers[weight])
