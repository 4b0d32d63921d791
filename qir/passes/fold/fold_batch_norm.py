"""Folds batch normalization into the weights of the convolution or product next to it.

    graph main as native {
      %x = input() : 1x2x6x6xf32
      %w = constant(@w) : 2x2x3x3xf32
      %m = constant([0.0, 0.0]) : 2xf32
      %v = constant([1.0, 4.0]) : 2xf32
      %c = conv2d(%x, %w) : 1x2x4x4xf32
      %y = batch_norm(%c, %v, %m, %m, %v) : 1x2x4x4xf32
      output(y=%y)
    }

By `fold-batch-norm` it becomes:

    graph main as native {
      %x = input() : 1x2x6x6xf32
      %w.folded = constant(@w.folded) : 2x2x3x3xf32
      %c.bias = constant([0.0, 0.0]) : 2xf32
      %y = conv2d(%x, %w.folded, bias=%c.bias) : 1x2x4x4xf32
      output(y=%y)
    }
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qir.ir.graph import Graph
from qir.ir.layer_channels import summed_axis
from qir.ir.node import Node
from qir.ir.ops.layers import CONVOLUTIONS, LAYERS, MATRIX_PRODUCTS
from qir.ledger import Change, Ledger
from qir.rewrite import Pass
from qir.rewrite.layer_weights import (
    Float64Array,
    float_weights,
    inward,
    operands,
    outward,
    result_axis,
    store,
    through,
)
from qir.rewrite.patterns.conditions import Condition, Place, first_failed
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.tolerance import Tolerance


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """Folds a batch_norm after conv2d into the weights, if the value between has no other use.

    Likewise convolutions along one and three axes, transposed ones, linear, gemm and matmul. A
    normalization before such an op goes into it too, unless `before` is false: where the op pads or
    is a transposed convolution, only one that shifts nothing, since zeros are put next to what was
    shifted. New weights are computed in float64 and rounded once.
    """

    name = "fold-batch-norm"
    tolerance = Tolerance(1024, 0, "equal in exact arithmetic; new weights are rounded")
    before: bool = True

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            if node.op == "batch_norm" and node in graph:
                # The layer before first: its padding is no obstacle, as the normalization comes
                # after it.
                count += self._fold_into_producer(graph, node, ledger) or self._fold_into_consumer(
                    graph, node, ledger
                )
        return count + (graph.prune() if count else 0)

    def _fold_into_producer(self, graph: Graph, norm: Node, ledger: Ledger) -> bool:
        if first_failed(_conditions_after(norm)) is not None:
            return False
        node, parts = norm.operands["x"].node, affine(norm)
        assert parts is not None
        if not may(self.name, "after", norm, node):
            return False
        _, w, b = operands(node)
        # Read before the layer takes over the normalization's name.
        norm_name, layer_name = norm.name, node.name
        # gain * (W x + b - mean) + beta = (gain * W) x + (beta + (b - mean) * gain).
        bias = parts.beta + ((float_weights(b) if b else 0.0) - parts.mean) * parts.gain
        store(graph, node, outward(node)(float_weights(w), parts.gain), bias, "folded")
        _take_over_result(graph, node, norm)
        ledger.add(Change.REGROUPED, self.name, norm_name, f"folded into {layer_name}'s weights")
        return True

    def _fold_into_consumer(self, graph: Graph, norm: Node, ledger: Ledger) -> bool:
        if not self.before or first_failed(_conditions_before(norm)) is not None:
            return False
        use, parts = norm.result.only_use, affine(norm)
        assert use is not None
        assert parts is not None
        node, gain, shift = use.node, parts.gain, parts.beta - parts.mean * parts.gain
        if not may(self.name, "before", norm, node):
            return False
        _, w, b = operands(node)
        weights, name = float_weights(w), norm.name
        # W (gain * x + shift) + b = (W * gain) x + (W shift + b).
        scaled = inward(node)(weights, gain)
        bias = None if b is None else float_weights(b)
        # Without a shift the layer needs no bias of its own.
        if shift.any():
            shift_bias = through(node, inward(node)(weights, shift))
            bias = shift_bias if bias is None else bias + shift_bias
        store(graph, node, scaled, bias, "folded")
        graph.replace(norm.result, norm.operands["x"])
        graph.set_origins(node, (*norm.origins, *node.origins))
        graph.remove(norm)
        ledger.add(Change.REGROUPED, self.name, name, f"folded into {node.name}'s weights")
        return True


# -- which op takes a normalization in ------------------------------------------------------------


def _layer_conditions(norm: Node, node: Node) -> Iterator[Condition]:
    """Yields the conditions on the layer that a normalization is folded into."""
    is_layer = node.op in LAYERS
    article = "an" if node.op[:1] in "aeiou" else "a"
    obstacle = f"{article} {node.op} stands there, which takes in no batch norm"
    yield Condition(is_layer, node, _obstacle_text(norm, node) or obstacle)
    # A plan was made for these weights, whose ranges the fold would change.
    yield Condition(not node.schemes and not norm.schemes, node, "a scheme is planned for it")
    _, weight, bias = operands(node)
    yield Condition(weight.constant is not None, node, f"its weight %{weight.name} is not constant")
    if bias is not None:
        message = f"its bias %{bias.name} is no constant row"
        yield Condition(bias.constant is not None and bias.type.rank == 1, node, message)
    # gemm multiplies its bias by beta: the new bias would have to be divided by it.
    yield Condition(node.attrs.get("beta", 1.0) == 1.0, node, "its beta is not 1")
    has_matrix = node.op != "matmul" or weight.type.rank == 2
    yield Condition(has_matrix, node, f"its weight %{weight.name} has more than two axes")
    is_float = all(v.type.quant is None for v in (*node.operands.values(), *node.results))
    yield Condition(is_float, node, "it is quantized")
    has_same_profile = norm.profile == node.profile
    yield Condition(has_same_profile, node, f"it computes by another profile than {norm.name}")


def _obstacle_text(norm: Node, node: Node) -> str:
    """Returns the text for an op that stands between a normalization and a layer; or nothing."""
    producers = [value.node for value in node.operands.values() if value.node is not norm]
    users = [user for value in node.results for user in value.users if user is not norm]
    neighbour_layers = [other for other in (*producers, *users) if other.op in LAYERS]
    article = "an" if node.op[:1] in "aeiou" else "a"
    # Far from any layer there is nothing of which to say what stands between.
    if not neighbour_layers:
        return ""
    layer = neighbour_layers[0]
    return f"{article} {node.op} stands between it and {layer.op} {layer.name}"


def _norm_conditions(norm: Node) -> Iterator[Condition]:
    """Yields the conditions on the normalization itself."""
    for slot in ("gamma", "beta", "mean", "var"):
        value = norm.operands[slot]
        is_float_constant = value.constant is not None and value.type.quant is None
        yield Condition(is_float_constant, norm, f"its {slot} %{value.name} is not constant")
    yield Condition(norm.result.type.quant is None, norm, "it is quantized")
    yield Condition(affine(norm) is not None, norm, "its factors are not finite")


def _conditions_after(norm: Node) -> Iterator[Condition]:
    """Yields the conditions for folding a normalization into the layer before it."""
    yield Condition(norm.op == "batch_norm", norm, f"it is {norm.op}, not batch_norm")
    x = norm.operands["x"]
    node = x.node
    if node.op in LAYERS:
        others = ", ".join(user.name for user in x.users if user is not norm) or "it twice"
        yield Condition(x.only_use is not None, node, f"%{x.name} is also read by {others}")
    yield from _layer_conditions(norm, node)
    is_channel_axis = _norm_axis(norm) == result_axis(node)
    yield Condition(
        is_channel_axis, norm, f"it goes along another axis than the channels of {node.name}"
    )
    yield from _norm_conditions(norm)


def _conditions_before(norm: Node) -> Iterator[Condition]:
    """Yields the conditions for folding a normalization into the layer after it."""
    yield Condition(norm.op == "batch_norm", norm, f"it is {norm.op}, not batch_norm")
    use, readers = norm.result.only_use, ", ".join(u.name for u in norm.result.users)
    yield Condition(use is not None, norm, f"%{norm.result.name} is read by {readers or 'nobody'}")
    assert use is not None
    node = use.node
    yield from _layer_conditions(norm, node)
    x, w, _ = operands(node)
    is_data = x is norm.result and w is not norm.result
    yield Condition(is_data, node, f"%{norm.result.name} is not its data")
    channels = f"it goes along another axis than the one that {node.name} sums over"
    yield Condition(_norm_axis(norm) == summed_axis(node, x), norm, channels)
    yield from _norm_conditions(norm)
    parts = affine(norm)
    assert parts is not None
    shifts = bool((parts.beta - parts.mean * parts.gain).any())
    padded = "it pads with zeros, or spreads, next to what would be shifted"
    yield Condition(not shifts or _has_no_padding(node), node, padded)


def _norm_axis(norm: Node) -> int:
    axis = norm.attrs["axis"]
    assert isinstance(axis, int)
    return axis % norm.result.type.rank


def _has_no_padding(node: Node) -> bool:
    """Returns whether all results use all weights: there is no padding.

    Padding inserts zeros after the normalization. A shift that is folded into the weights would
    also reach those zeros.
    """
    pads = node.attrs.get("pad", ())
    return node.op in MATRIX_PRODUCTS or (
        node.op in CONVOLUTIONS and isinstance(pads, tuple) and not any(pads)
    )


@dataclass(frozen=True)
class Normalization:
    """The affine map (x - mean) * gain + beta, channel by channel."""

    gain: Float64Array
    mean: Float64Array
    beta: Float64Array


def affine(norm: Node) -> Normalization | None:
    """Returns the affine map of a normalization; None if it is not constant or not finite."""
    parts = [norm.operands[slot] for slot in ("gamma", "beta", "mean", "var")]
    if any(p.constant is None or p.type.quant for p in parts) or norm.result.type.quant:
        return None
    gamma, beta, mean, var = map(float_weights, parts)
    eps = norm.attrs["eps"]
    assert isinstance(eps, float)
    # A variance of 0 with eps 0 divides by zero; the gain is then infinite and nothing is folded.
    with np.errstate(all="ignore"):
        gain = gamma / np.sqrt(var + eps)
        normalization = Normalization(gain, mean, beta)
        finite = np.isfinite(gain).all() and np.isfinite(beta - mean * gain).all()
    return normalization if finite else None


def _take_over_result(graph: Graph, node: Node, norm: Node) -> None:
    """Puts the layer's result in place of the normalization's, with its name and lineage."""
    graph.substitute(norm, node.result)
    graph.set_origins(node, (*node.origins, *norm.origins))


FoldBatchNorm.places = (
    Place("after", ("batch_norm",), _conditions_after, "a batch norm goes into the op before it"),
    Place("before", ("batch_norm",), _conditions_before, "a batch norm goes into the op after it"),
)
