"""Moves batch normalization into the weights of the convolution or product beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.ir.calls import make_call
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.types import Array
from qir.ledger import Change, Ledger
from qir.rewrite import Pass
from qir.rewrite.tolerance import Tolerance
from qir.rewrite.watch import may

Reals: TypeAlias = NDArray[np.float64]
"""Numbers as they are reckoned with, before they are rounded once."""

_CONVS = frozenset({"conv1d", "conv2d", "conv3d"})
_TURNED = frozenset({"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"})
_PRODUCTS = frozenset({"linear", "gemm", "matmul"})
_SLOTS = {"gemm": ("a", "b", "c"), "matmul": ("a", "b", "bias")}


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """conv2d |> batch_norm becomes conv2d, where nobody else reads what stands between.

    Likewise convolutions along one and three axes, transposed ones, linear, gemm and matmul. A
    normalization before such an op goes into it too, unless `before` is false: where the op pads
    or is a transposed convolution, only one that shifts nothing, since zeros are put beside what
    was shifted. New weights are computed in float64 and rounded once.
    """

    name = "fold-batch-norm"
    tolerance = Tolerance(1024, 0, "equal in reals; new weights are rounded")
    before: bool = True

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            if node.op == "batch_norm" and node in graph:
                count += self._after(graph, node, ledger) or self._before(graph, node, ledger)
        return count + (graph.prune() if count else 0)

    def _after(self, graph: Graph, norm: Node, ledger: Ledger) -> bool:
        node, parts = _producer(norm), _affine(norm)
        if node is None or parts is None or not may(self.name, "after", norm, node):
            return False
        _, w, b = _operands(node)
        subject, into = norm.name, node.name
        bias = parts.beta + ((_reals(b) if b else 0.0) - parts.mean) * parts.gain
        _store(graph, node, w, _outward(node)(_reals(w), parts.gain), bias)
        _take_over(graph, node, norm)
        ledger.add(Change.REGROUPED, self.name, subject, f"folded into {into}'s weights")
        return True

    def _before(self, graph: Graph, norm: Node, ledger: Ledger) -> bool:
        node, parts = _consumer(norm) if self.before else None, _affine(norm)
        if node is None or parts is None:
            return False
        gain, shift = parts.gain, parts.beta - parts.mean * parts.gain
        if shift.any() and not _even(node):
            return False
        if not may(self.name, "before", norm, node):
            return False
        _, w, b = _operands(node)
        weights, name = _reals(w), norm.name
        scaled = _inward(node)(weights, gain)
        bias = None if b is None else _reals(b)
        if shift.any():
            more = _through(node, _inward(node)(weights, shift))
            bias = more if bias is None else bias + more
        _store(graph, node, w, scaled, bias)
        graph.replace(norm.result, norm.operands["x"])
        graph.set_origins(node, (*norm.origins, *node.origins))
        graph.remove(norm)
        ledger.add(Change.REGROUPED, self.name, name, f"folded into {node.name}'s weights")
        return True


# -- which op takes a normalization in ------------------------------------------------------------


def _operands(node: Node) -> tuple[Value, Value, Value | None]:
    """Data, weights and bias, the last one where there is one."""
    x, w, bias = _SLOTS.get(node.op, ("x", "w", "bias"))
    return node.operands[x], node.operands[w], node.operands.get(bias)


def _fits(node: Node) -> bool:
    """Whether weights and bias are constants that may be changed, and all is real."""
    if node.op not in _CONVS | _TURNED | _PRODUCTS or node.schemes:
        return False
    _, weight, bias = _operands(node)
    if weight.constant is None:
        return False
    if bias is not None and (bias.constant is None or bias.type.rank != 1):
        return False
    if node.op == "gemm" and node.attrs["beta"] != 1.0:
        return False
    if node.op == "matmul" and weight.type.rank != 2:
        return False
    return all(v.type.quant is None for v in (*node.operands.values(), *node.results))


def _producer(norm: Node) -> Node | None:
    """The op before that can take the normalization in; None if its result has other uses."""
    x = norm.operands["x"]
    if x.only_use is None or norm.schemes or not _fits(x.node) or _manners(norm, x.node):
        return None
    return x.node if _axis(norm) == _result_axis(x.node) else None


def _consumer(norm: Node) -> Node | None:
    """The one op behind that can, if it is the only one to read the normalization."""
    use = norm.result.only_use
    if use is None or norm.schemes or not _fits(use.node) or _manners(norm, use.node):
        return None
    node = use.node
    x, w, _ = _operands(node)
    if x is not norm.result or w is norm.result:
        return None
    if node.op in _PRODUCTS:
        turned = node.attrs.get("trans_a") is True
        return node if _axis(norm) == x.type.rank - 1 and not turned and x.type.rank > 1 else None
    last = node.attrs.get("layout") == "NHWC"
    return node if _axis(norm) == (x.type.rank - 1 if last else 1) else None


def _manners(norm: Node, node: Node) -> bool:
    return norm.profile != node.profile


def _axis(norm: Node) -> int:
    axis = norm.attrs["axis"]
    assert isinstance(axis, int)
    return axis % norm.result.type.rank


def _result_axis(node: Node) -> int:
    if node.op in _TURNED:
        return 1
    found = spec(node.op).traits.result_axis
    assert found is not None
    return found(make_call(node.op, node.operands, node.attrs))


def _even(node: Node) -> bool:
    """Whether every result meets the same weights: no zeros stand beside the data."""
    pads = node.attrs.get("pad", ())
    return node.op in _PRODUCTS or (node.op in _CONVS and isinstance(pads, tuple) and not any(pads))


@dataclass(frozen=True)
class _Affine:
    """(x - mean) * gain + beta."""

    gain: Reals
    mean: Reals
    beta: Reals


def _affine(norm: Node) -> _Affine | None:
    """What the normalization does; None where that is computed, or not finite."""
    parts = [norm.operands[slot] for slot in ("gamma", "beta", "mean", "var")]
    if any(p.constant is None or p.type.quant for p in parts) or norm.result.type.quant:
        return None
    gamma, beta, mean, var = map(_reals, parts)
    eps = norm.attrs["eps"]
    assert isinstance(eps, float)
    with np.errstate(all="ignore"):
        gain = gamma / np.sqrt(var + eps)
        found = _Affine(gain, mean, beta)
        finite = np.isfinite(gain).all() and np.isfinite(beta - mean * gain).all()
    return found if finite else None


# -- weights --------------------------------------------------------------------------------------


def _groups(node: Node) -> int:
    groups = node.attrs["groups"]
    assert isinstance(groups, int)
    return groups


def _along(weights: Reals, row: Reals, axis: int) -> Reals:
    shape = [1] * weights.ndim
    shape[axis] = -1
    return weights * row.reshape(shape)


def _by_group(weights: Reals, row: Reals, groups: int) -> Reals:
    """Weights whose second axis is of one group, times a row of all groups."""
    rest = weights.shape[2:]
    split = weights.reshape(groups, weights.shape[0] // groups, weights.shape[1], *rest)
    return (split * row.reshape(groups, 1, -1, *(1,) * len(rest))).reshape(weights.shape)


def _outward(node: Node) -> Callable[[Reals, Reals], Reals]:
    """How weights are multiplied by a row of output channels."""
    if node.op in _TURNED:
        return lambda weights, row: _by_group(weights, row, _groups(node))
    found = spec(node.op).traits.weight_axis
    assert found is not None
    axis = found(make_call(node.op, node.operands, node.attrs))
    return lambda weights, row: _along(weights, row, axis)


def _inward(node: Node) -> Callable[[Reals, Reals], Reals]:
    """How weights are multiplied by a row of input channels."""
    if node.op in _CONVS:
        return lambda weights, row: _by_group(weights, row, _groups(node))
    if node.op in _TURNED:
        return lambda weights, row: _along(weights, row, 0)
    axis = 1 if node.op == "linear" or node.attrs.get("trans_b") is True else 0
    return lambda weights, row: _along(weights, row, axis)


def _through(node: Node, products: Reals) -> Reals:
    """What a shift of the input channels adds to each output channel."""
    if node.op in _CONVS:
        return np.asarray(np.sum(products.reshape(products.shape[0], -1), axis=1))
    turned = node.op == "linear" or node.attrs.get("trans_b") is True
    alpha = node.attrs.get("alpha", 1.0)
    assert isinstance(alpha, float)
    return np.asarray(alpha * np.sum(products, axis=1 if turned else 0))


def _store(graph: Graph, node: Node, old: Value, weights: Reals, bias: Reals | None) -> None:
    kind = old.type.dtype.carrier
    _, w, b = _SLOTS.get(node.op, ("x", "w", "bias"))
    new = graph.constant(
        Array.of(weights.astype(kind), old.name),
        name=graph.fresh(f"{old.name}.folded"),
        before=node,
    )
    graph.set_lineage(new, old.lineage.then("scaled"))
    graph.set_operand(node, w, new)
    if bias is not None:
        name = f"{node.name}.bias"
        elements = Array.of(np.ascontiguousarray(bias.astype(kind)), name)
        made = graph.constant(elements, name=graph.fresh(name), before=node)
        graph.set_operand(node, b, made)


def _take_over(graph: Graph, node: Node, norm: Node) -> None:
    """The producer's result becomes the normalization's, name and lineage included."""
    old, new = norm.result, node.result
    graph.replace(old, new)
    lineage, name, origins = old.lineage, old.name, norm.origins
    graph.remove(norm)
    graph.rename(new, name)
    graph.set_lineage(new, lineage)
    graph.set_origins(node, (*node.origins, *origins))


def _reals(value: Value) -> Reals:
    assert value.constant is not None
    return value.constant.data.astype(np.float64)
