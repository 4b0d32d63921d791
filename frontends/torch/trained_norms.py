"""Folds the batch norm of a layer in quantization-aware training, as torch.ao's convert does.

Training quantizes the weights as they will be after folding, and divides the layer's result by the
same factor, so that the norm sees the statistics of the float layer:
`norm(layer(x, fake(w * factor)) / factor + bias)`, where `factor` is `gamma / std`. That equals
`layer(x, fake(w * factor)) + folded bias`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops.layers import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS
from qir.ir.types import Array
from qir.ledger import Change, Ledger
from qir.rewrite.layer_weights import operands, store_bias

_NORM = ("gamma", "beta", "mean", "var")
_RESHAPES = ("reshape", "unsqueeze", "flatten")
_FAKE_QUANTIZE = ("dequantize", "quantize")


def fold_trained_norms(graph: Graph, ledger: Ledger) -> int:
    """Folds all batch norms of that form; returns their count."""
    norms = [node for node in graph if node.op == "batch_norm"]
    count = sum(_fold(graph, norm, ledger) for norm in norms)
    if count:
        graph.prune()
    return count


def _fold(graph: Graph, norm: Node, ledger: Ledger) -> bool:
    quotient, bias = _without_bias(norm.operands["x"])
    if quotient.node.op != "div" or not _has_constant_parameters(norm):
        return False
    layer, factor = (quotient.node.operands[slot].node for slot in ("a", "b"))
    if layer.op not in ("linear", *CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS) or _has_other_uses(
        norm, layer
    ):
        return False
    # Each check is one part of the formula above: layer / factor, w * factor, factor = gamma / std.
    scaled = _weights_times_factor(layer)
    factor = _before_reshapes(factor.result).node
    if scaled is None or not _is_factor(factor, norm):
        return False
    product, weights, scaled_by = scaled
    if _before_reshapes(scaled_by).node is not factor or (
        # `fuse_conv_bn_weights` scales axis 1 of transposed weights, which with groups is not the
        # channel.
        layer.op in TRANSPOSED_CONVOLUTIONS and layer.attrs["groups"] != 1
    ):
        return False
    folded, folded_bias = _fold_parameters(layer, norm, weights, bias)
    folded_weights = graph.constant(
        Array.of(folded.numpy(), weights.name),
        name=graph.fresh(f"{weights.name}.folded"),
        before=product,
    )
    graph.set_lineage(folded_weights, weights.lineage.then("scaled"))
    graph.replace(product.result, folded_weights)
    store_bias(graph, layer, folded_bias.numpy())
    name, origins = norm.name, (*layer.origins, *norm.origins)
    graph.substitute(norm, layer.result)
    graph.set_origins(layer, origins)
    message = f"folded into {layer.name}'s weights, as torch.ao's convert does after training"
    ledger.add(Change.REGROUPED, "read torch", name, message)
    return True


def _without_bias(x: Value) -> tuple[Value, Value | None]:
    """Returns the operand of a bias addition and the bias; a value without one as it is."""
    node = x.node
    if node.op == "add":
        for data, bias_slot in (("a", "b"), ("b", "a")):
            bias = _before_reshapes(node.operands[bias_slot])
            if bias.constant is not None and bias.type.rank == 1:
                return node.operands[data], bias
    return x, None


def _before_reshapes(value: Value) -> Value:
    """Returns a vector before it was reshaped to broadcast."""
    while value.node.op in _RESHAPES:
        value = value.node.operands["x"]
    return value


def _has_constant_parameters(norm: Node) -> bool:
    return all(norm.operands[slot].constant is not None for slot in _NORM)


def _has_other_uses(norm: Node, layer: Node) -> bool:
    """Returns whether values between a layer and its norm have other uses, or the layer a bias."""
    node = norm.operands["x"].node
    # Walks from the norm's operand up to the layer, along the operand that is data.
    while node.result.only_use is not None:
        if node is layer:
            _, _, bias = operands(layer)
            return bias is not None and (bias.constant is None or bool(bias.constant.data.any()))
        data = next(v for v in node.operands.values() if v.type.rank and _leads_to(v, layer))
        node = data.node
    return True


def _leads_to(value: Value, layer: Node) -> bool:
    return value.node is layer or layer.result in value.node.operands.values()


def _weights_times_factor(layer: Node) -> tuple[Node, Value, Value] | None:
    """Returns (product, weights, factor) of weights that are scaled before fake quantization."""
    _, value, _ = operands(layer)
    for op in _FAKE_QUANTIZE:
        if value.node.op == op:
            value = value.node.operands["x"]
    product = value.node
    if product.op != "mul" or product.result.only_use is None:
        return None
    a, b = product.operands["a"], product.operands["b"]
    weights, factor = (a, b) if a.constant is not None else (b, a)
    return (product, weights, factor) if weights.constant is not None else None


def _is_factor(node: Node, norm: Node) -> bool:
    """Returns whether a node computes gamma / sqrt(var + eps) of this norm."""
    if node.op != "div" or node.operands["b"].node.op != "sqrt":
        return False
    inner = node.operands["b"].node.operands["x"].node
    if inner.op != "add" or not _are_equal_constants(node.operands["a"], norm.operands["gamma"]):
        return False
    a, b = inner.operands["a"], inner.operands["b"]
    var, eps = (a, b) if a.type.rank else (b, a)
    if eps.constant is None or not _are_equal_constants(var, norm.operands["var"]):
        return False
    return bool(np.float32(eps.constant.data) == np.float32(norm.attrs["eps"]))  # type: ignore[arg-type]


def _are_equal_constants(a: Value, b: Value) -> bool:
    first, second = a.constant, b.constant
    return first is not None and second is not None and np.array_equal(first.data, second.data)


def _fold_parameters(
    layer: Node, norm: Node, weights: Value, bias: Value | None
) -> tuple[Tensor, Tensor]:
    """Returns weights and bias as torch.ao computes them."""
    gamma, beta, mean, var = (_tensor(norm.operands[slot]) for slot in _NORM)
    layer_bias = torch.zeros_like(mean) if bias is None else _tensor(bias)
    w, eps = _tensor(weights), norm.attrs["eps"]
    assert isinstance(eps, float)
    if layer.op == "linear":
        fused = fuse_linear_bn_weights(w, layer_bias, mean, var, eps, gamma, beta)
    else:
        is_transposed = layer.op in TRANSPOSED_CONVOLUTIONS
        fused = fuse_conv_bn_weights(
            w, layer_bias, mean, var, eps, gamma, beta, transpose=is_transposed
        )
    return fused[0].detach(), fused[1].detach()


def _tensor(value: Value) -> Tensor:
    assert value.constant is not None
    return torch.tensor(value.constant.data)


__all__ = ["fold_trained_norms"]
